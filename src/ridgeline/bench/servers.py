"""Servers that are started for a comparison: the command of each kind, its start up to the first token, the memory of its processes.

Owns the flags by which other engines are started: what their projects recommend for many users at once, on so many threads. All are told.
"""

import asyncio
import os
import shlex
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ridgeline.bench.client import Ask, Client, body_of
from ridgeline.bench.http import Http, HttpError, Target
from ridgeline.bench.processes import Guard
from ridgeline.bench.session import LEAD, Manner, first_model
from ridgeline.errors import ConfigError

START_SECONDS: Final = 900.0
STOP_SECONDS: Final = 20.0
POLL_SECONDS: Final = 0.02
LOG_LINES: Final = 5
OWN: Final = "import sys; sys.argv[0] = 'ridgeline'; from ridgeline.cli.main import main; main()"


@dataclass(frozen=True, slots=True)
class Size:
    """The size of a server: threads to use, sequences at once, tokens of each."""

    threads: int
    streams: int
    context: int


@dataclass(frozen=True, slots=True)
class Recipe:
    """The recipe by which a kind of server is started. command: from (program, model, port, size); api: the path of its API."""

    program: str
    command: Callable[[str, str, int, Size], list[str]]
    api: str = ""


def _ours(program: str, model: str, port: int, size: Size) -> list[str]:
    sized = ["--max-num-seqs", str(size.streams), "--max-model-len", str(size.context)]
    return [program, "-c", OWN, "serve", model, "--port", str(port), "--threads", str(size.threads), *sized]


def _llama_cpp(program: str, model: str, port: int, size: Size) -> list[str]:
    shared = ["-np", str(size.streams), "-c", str(size.streams * size.context)]  # its context is divided among the streams
    return [program, "-m", model, "--host", "127.0.0.1", "--port", str(port), "-t", str(size.threads), *shared]


def _vllm(program: str, model: str, port: int, size: Size) -> list[str]:
    sized = ["--max-num-seqs", str(size.streams), "--max-model-len", str(size.context)]
    # By itself it leaves a processor to HTTP, which is half of two.
    bound = [f"OMP_NUM_THREADS={size.threads}", f"VLLM_CPU_OMP_THREADS_BIND=0-{size.threads - 1}"]
    begin = ["env", "VLLM_TARGET_DEVICE=cpu", "VLLM_CPU_KVCACHE_SPACE=2", *bound]
    return [*begin, program, "serve", model, "--host", "127.0.0.1", "--port", str(port), "--dtype", "bfloat16", *sized]


def _ollama(program: str, model: str, port: int, size: Size) -> list[str]:
    sized = [f"OLLAMA_NUM_PARALLEL={size.streams}", f"OLLAMA_CONTEXT_LENGTH={size.context}"]
    return ["env", f"OLLAMA_HOST=127.0.0.1:{port}", *sized, program, "serve"]


def _tgi(program: str, model: str, port: int, size: Size) -> list[str]:
    sized = ["--max-concurrent-requests", str(max(128, size.streams)), "--max-total-tokens", str(size.context)]
    return [program, "--model-id", model, "--hostname", "127.0.0.1", "--port", str(port), *sized]


def _openvino(program: str, model: str, port: int, size: Size) -> list[str]:
    return [program, "--model_path", model, "--model_name", "model", "--rest_port", str(port), "--rest_bind_address", "127.0.0.1"]


RECIPES: Final[Mapping[str, Recipe]] = {
    "ridgeline": Recipe(sys.executable, _ours),
    "llama-server": Recipe("llama-server", _llama_cpp),
    "vllm": Recipe("vllm", _vllm),
    "ollama": Recipe("ollama", _ollama),
    "tgi": Recipe("text-generation-launcher", _tgi),
    "openvino": Recipe("ovms", _openvino, "/v3"),
}


@dataclass(frozen=True, slots=True)
class Spec:
    """One server of a comparison: its name, its address or the command that starts it, and the model that it is asked for, where known."""

    name: str
    url: str
    command: Sequence[str] | None = None
    model: str | None = None


def parse_spec(text: str, size: Size, programs: Mapping[str, str]) -> Spec:
    """`[NAME=]http://…`, `[NAME=]KIND:MODEL [FLAGS]` or `[NAME=]cmd:COMMAND`, in which `{port}` is what it shall listen on.

    programs  paths by kind, for what is not on the PATH. Raises ConfigError.
    """
    head, equals, rest = text.partition("=")
    name, body = (head, rest) if equals and head.replace("-", "").replace("_", "").replace(".", "").isalnum() else ("", text)
    kind, _, detail = body.partition(":")
    if kind in ("http", "https"):
        Target.of(body)
        return Spec(name or body.split("//")[1], body)
    port = free_port()
    try:
        words = shlex.split(detail)
    except ValueError as error:
        raise ConfigError(f"{text[:80]!r} is not understood: {error}") from None
    if not words or (kind != "cmd" and kind not in RECIPES):
        raise ConfigError(f"{text[:80]!r} is not understood; write http://HOST:PORT, cmd:COMMAND or KIND:MODEL, of {', '.join(RECIPES)}")
    if kind == "cmd":
        if "{port}" not in detail:
            raise ConfigError(f"{text[:80]!r} does not say where the port goes; write {{port}} there")
        command = [word.replace("{port}", str(port)) for word in words]
        return Spec(name or Path(command[0]).name, f"http://127.0.0.1:{port}", _found(command[0], text) + command[1:])
    recipe = RECIPES[kind]
    program = _found(programs.get(kind, recipe.program), text)[0]
    return Spec(
        name or kind,
        f"http://127.0.0.1:{port}{recipe.api}",
        recipe.command(program, words[0], port, size) + words[1:],
        words[0] if kind == "ollama" else None,
    )


def _found(program: str, text: str) -> list[str]:
    path = shutil.which(program)
    if path is None:
        raise ConfigError(f"{text[:80]!r} needs {program}, which is not installed here; give its path with --program KIND=PATH")
    return [path]


def free_port() -> int:
    """A port of this machine that nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])


class Server:
    """One running server, in a process group of its own, which does not outlive this process.

    first_token_seconds  from the start of its process        started_bytes  resident after that token
    """

    def __init__(self, spec: Spec, process: asyncio.subprocess.Process, log: Path) -> None:
        self._spec, self._process, self._log, self._guard = spec, process, log, Guard(process.pid)
        self.first_token_seconds = 0.0
        self.started_bytes = 0

    @classmethod
    async def start(cls, spec: Spec, manner: Manner) -> "Server":
        """Starts the command and waits for its first token. Raises ConfigError with what it last said where none comes."""
        handle, name = tempfile.mkstemp(prefix="ridgeline-bench-", suffix=".log")
        began = time.perf_counter()
        try:
            process = await asyncio.create_subprocess_exec(
                *(spec.command or ()), stdin=asyncio.subprocess.DEVNULL, stdout=handle, stderr=handle, start_new_session=True
            )
        except OSError as error:
            raise ConfigError(f"{spec.name} cannot be started: {error.strerror}") from None
        finally:
            os.close(handle)
        server = cls(spec, process, Path(name))
        try:
            async with asyncio.timeout(START_SECONDS):
                await server._first_token(manner)
        except TimeoutError:
            await server.stop()
            raise ConfigError(f"{spec.name} gave no token within {START_SECONDS:g} s; its log is {name}") from None
        except BaseException:
            await server.stop()
            raise
        server.first_token_seconds = time.perf_counter() - began
        server.started_bytes = server.resident_bytes()
        return server

    async def _first_token(self, manner: Manner) -> None:
        http = Http(Target.of(self._spec.url), manner.key)
        model, said = manner.model or self._spec.model, ""
        while True:
            if self.ended:
                raise ConfigError(f"{self._spec.name} ended with status {self._process.returncode}: {self._last_lines()}")
            try:
                model = model or await first_model(http)
                body = body_of(manner.api, model, LEAD, 1, manner.ignore_eos, manner.extra)
                outcome = await Client(http, manner.api, START_SECONDS).run(Ask(0, body, 1, 1), time.perf_counter())
                said = f"{outcome.error}: {outcome.message}"
                if outcome.error is None:
                    return http.close()
                if outcome.error in ("HTTP 400", "HTTP 401", "HTTP 404", "HTTP 422"):
                    raise ConfigError(f"{self._spec.name} refuses to answer: {said}")
            except HttpError:
                pass  # It does not listen yet, or loads.
            await asyncio.sleep(POLL_SECONDS)

    def _last_lines(self) -> str:
        lines = self._log.read_text(errors="replace").strip().splitlines()[-LOG_LINES:]
        return " / ".join(line.strip()[:200] for line in lines) or "it said nothing"

    @property
    def ended(self) -> bool:
        """True if its process has."""
        return self._process.returncode is not None

    def resident_bytes(self) -> int:
        """Resident bytes of all its processes; what they share counts in each."""
        return resident_bytes(self._process.pid)

    async def stop(self) -> None:
        """Asks the whole group to end, and ends it where it does not. The log goes."""
        for number, seconds in ((signal.SIGTERM, STOP_SECONDS), (signal.SIGKILL, STOP_SECONDS)):
            if self._process.returncode is None:
                try:
                    os.killpg(self._process.pid, number)
                    async with asyncio.timeout(seconds):
                        await self._process.wait()
                except (TimeoutError, ProcessLookupError):
                    continue
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)  # whoever of its group has outlived it
        self._guard.release()
        self._log.unlink(missing_ok=True)


def resident_bytes(pid: int, root: Path = Path("/proc")) -> int:
    """Resident memory of a process and of all that it started; 0 for what has ended or where the system does not tell."""
    try:
        pages = int((root / str(pid) / "statm").read_text().split()[1])
        children = [int(child) for file in (root / str(pid) / "task").glob("*/children") for child in file.read_text().split()]
    except (OSError, ValueError, IndexError):
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE") + sum(resident_bytes(child, root) for child in children)
