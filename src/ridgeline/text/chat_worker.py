"""The process that renders one model's chat templates: `python -m ridgeline.text.chat_worker FD`. Started by `chat_process`.

Owns what the operating system forbids to it: more memory, files, processes, more time than a render may ever take. Answers each frame with
one frame until the other end closes; never answers with more than a text.
"""

import resource
import signal
import socket
import sys
from pathlib import Path
from typing import Any, Final

from ridgeline.text.chat_frames import frame, receive, send
from ridgeline.text.chat_sandbox import Refusal, Sandbox, TooMuch, seal

MEMORY_BYTES: Final = 256 << 20
"""Address space beyond what the interpreter has at its start."""
ORPHAN_SECONDS: Final = 4.0
"""A render that lasts so long has no parent any more (it kills far earlier): the kernel ends this process."""
MAX_MESSAGE: Final = 2_000


def main(descriptor: int) -> None:
    """Compiles what the first frame brings, says so, seals itself and renders."""
    stream = socket.socket(fileno=descriptor)
    first = receive(stream)
    if first is None:
        return
    _bound_memory()
    signal.setitimer(signal.ITIMER_REAL, 3 * ORPHAN_SECONDS)
    try:
        sandbox = Sandbox(first["templates"], first["mask"])
    except Exception as error:
        send(stream, frame({"failed": _said(error)}))
        return
    send(stream, frame({"variables": sandbox.variables}))
    _give_up_everything()
    while True:
        signal.setitimer(signal.ITIMER_REAL, 0)
        request = receive(stream)
        if request is None:
            return
        signal.setitimer(signal.ITIMER_REAL, ORPHAN_SECONDS)
        send(stream, frame(_render(sandbox, request)))


def _render(sandbox: Sandbox, request: dict[str, Any]) -> dict[str, Any]:
    """A template may raise anything at all, hence the last clause: each end of it is an answer."""
    try:
        return {"text": sandbox.render(request["template"], request["variables"], request["now"])}
    except Refusal as error:
        return {"refused": str(error.message)[:MAX_MESSAGE]}
    except TooMuch as error:
        return {"exceeded": str(error)}
    except MemoryError:
        return {"exceeded": f"needs more than {MEMORY_BYTES >> 20} MiB of memory"}
    except RecursionError:
        return {"exceeded": "calls itself too deeply"}
    except Exception as error:
        return {"failed": _said(error)}


def _said(error: BaseException) -> str:
    line = getattr(error, "lineno", None)
    place = f" (line {line})" if isinstance(line, int) else ""
    return f"{type(error).__name__}: {str(error)[:MAX_MESSAGE]}{place}"


def _give_up_everything() -> None:
    """No file can be opened, none written, no process started, no core dumped, and Python does nothing that it audits."""
    for limit in (resource.RLIMIT_NOFILE, resource.RLIMIT_FSIZE, resource.RLIMIT_NPROC, resource.RLIMIT_CORE):
        resource.setrlimit(limit, (0, 0))
    seal()


def _bound_memory() -> None:
    """Elsewhere than on Linux memory has no bound but the time that filling it takes."""
    if sys.platform == "linux":
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        most = pages * resource.getpagesize() + MEMORY_BYTES
        resource.setrlimit(resource.RLIMIT_AS, (most, most))


if __name__ == "__main__":
    main(int(sys.argv[1]))
