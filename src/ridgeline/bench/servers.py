"""Servers that are started for a comparison: the command of each kind, start-up to the first token, memory of its processes.

Owns the flags by which other engines are started: what their projects recommend for many users on a given number of threads.
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

from ridgeline.bench.client import Client, PreparedRequest, make_body
from ridgeline.bench.http import HttpClient, HttpError, ServerAddress
from ridgeline.bench.processes import ProcessGuard
from ridgeline.bench.session import FIRST_WORD, RequestOptions, first_model
from ridgeline.errors import ConfigError

START_SECONDS: Final = 900.0
STOP_SECONDS: Final = 20.0
POLL_SECONDS: Final = 0.02
LOG_LINES: Final = 5
RIDGELINE_MAIN: Final = "import sys; sys.argv[0] = 'ridgeline'; from ridgeline.cli.main import main; main()"


@dataclass(frozen=True, slots=True)
class ServerSize:
    """The size of a server: threads to use, sequences at once, tokens of each."""

    threads: int
    streams: int
    context: int


@dataclass(frozen=True, slots=True)
class ServerKind:
    """A kind of server. command: from (program, model, port, size); api: path of its API."""

    program: str
    command: Callable[[str, str, int, ServerSize], list[str]]
    api: str = ""


def _ridgeline_command(program: str, model: str, port: int, size: ServerSize) -> list[str]:
    sized = ["--max-num-seqs", str(size.streams), "--max-model-len", str(size.context)]
    return [program, "-c", RIDGELINE_MAIN, "serve", model, "--port", str(port), "--threads", str(size.threads), *sized]


def _llama_cpp_command(program: str, model: str, port: int, size: ServerSize) -> list[str]:
    shared = ["-np", str(size.streams), "-c", str(size.streams * size.context)]  # its context is divided among the streams
    return [program, "-m", model, "--host", "127.0.0.1", "--port", str(port), "-t", str(size.threads), *shared]


def _vllm_command(program: str, model: str, port: int, size: ServerSize) -> list[str]:
    sized = ["--max-num-seqs", str(size.streams), "--max-model-len", str(size.context)]
    # By default it reserves a CPU core for HTTP, which is half of two.
    bound = [f"OMP_NUM_THREADS={size.threads}", f"VLLM_CPU_OMP_THREADS_BIND=0-{size.threads - 1}"]
    begin = ["env", "VLLM_TARGET_DEVICE=cpu", "VLLM_CPU_KVCACHE_SPACE=2", *bound]
    return [*begin, program, "serve", model, "--host", "127.0.0.1", "--port", str(port), "--dtype", "bfloat16", *sized]


def _ollama_command(program: str, model: str, port: int, size: ServerSize) -> list[str]:
    sized = [f"OLLAMA_NUM_PARALLEL={size.streams}", f"OLLAMA_CONTEXT_LENGTH={size.context}"]
    return ["env", f"OLLAMA_HOST=127.0.0.1:{port}", *sized, program, "serve"]


def _tgi_command(program: str, model: str, port: int, size: ServerSize) -> list[str]:
    sized = ["--max-concurrent-requests", str(max(128, size.streams)), "--max-total-tokens", str(size.context)]
    return [program, "--model-id", model, "--hostname", "127.0.0.1", "--port", str(port), *sized]


def _openvino_command(program: str, model: str, port: int, size: ServerSize) -> list[str]:
    return [program, "--model_path", model, "--model_name", "model", "--rest_port", str(port), "--rest_bind_address", "127.0.0.1"]


SERVER_KINDS: Final[Mapping[str, ServerKind]] = {
    "ridgeline": ServerKind(sys.executable, _ridgeline_command),
    "llama-server": ServerKind("llama-server", _llama_cpp_command),
    "vllm": ServerKind("vllm", _vllm_command),
    "ollama": ServerKind("ollama", _ollama_command),
    "tgi": ServerKind("text-generation-launcher", _tgi_command),
    "openvino": ServerKind("ovms", _openvino_command, "/v3"),
}


class NotInstalledError(ConfigError):
    """The program of a server is not on this machine."""


@dataclass(frozen=True, slots=True)
class ServerSpec:
    """One server of a comparison: name, address, the command that starts it (None: it runs already), the model name, where known."""

    name: str
    url: str
    command: Sequence[str] | None = None
    model: str | None = None


def parse_spec(text: str, size: ServerSize, programs: Mapping[str, str]) -> ServerSpec:
    """`[NAME=]http://…`, `[NAME=]KIND:MODEL [FLAGS]` or `[NAME=]cmd:COMMAND`, in which `{port}` is the port to listen on.

    programs  paths by kind, for what is not on the PATH. Raises ConfigError; NotInstalledError where the program is missing.
    """
    head, equals, rest = text.partition("=")
    name, body = (head, rest) if equals and head.replace("-", "").replace("_", "").replace(".", "").isalnum() else ("", text)
    kind, _, detail = body.partition(":")
    if kind in ("http", "https"):
        ServerAddress.parse(body)
        return ServerSpec(name or body.split("//")[1], body)
    port = free_port()
    try:
        words = shlex.split(detail)
    except ValueError as error:
        raise ConfigError(f"{text[:80]!r} is not understood: {error}") from None
    if not words or (kind != "cmd" and kind not in SERVER_KINDS):
        kinds = ", ".join(SERVER_KINDS)
        raise ConfigError(f"{text[:80]!r} is not understood; write http://HOST:PORT, cmd:COMMAND or KIND:MODEL, with a kind of {kinds}")
    if kind == "cmd":
        if "{port}" not in detail:
            raise ConfigError(f"{text[:80]!r} has no {{port}}; write it where the port goes")
        command = [word.replace("{port}", str(port)) for word in words]
        return ServerSpec(name or Path(command[0]).name, f"http://127.0.0.1:{port}", _find_program(command[0], text) + command[1:])
    recipe = SERVER_KINDS[kind]
    program = _find_program(programs.get(kind, recipe.program), text)[0]
    return ServerSpec(
        name or kind,
        f"http://127.0.0.1:{port}{recipe.api}",
        recipe.command(program, words[0], port, size) + words[1:],
        words[0] if kind == "ollama" else None,
    )


def _find_program(program: str, text: str) -> list[str]:
    path = shutil.which(program)
    if path is None:
        raise NotInstalledError(f"{text[:80]!r} needs {program}, which is not installed here; give its path with --program KIND=PATH")
    return [path]


def free_port() -> int:
    """A free port of this machine."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])


class Server:
    """A running server in a process group of its own, which is killed when this process ends.

    first_token_seconds  from the start of its process        started_bytes  resident after that token
    """

    def __init__(self, spec: ServerSpec, process: asyncio.subprocess.Process, log: Path) -> None:
        self._spec, self._process, self._log, self._guard = spec, process, log, ProcessGuard(process.pid)
        self.first_token_seconds = 0.0
        self.started_bytes = 0

    @classmethod
    async def start(cls, spec: ServerSpec, request_options: RequestOptions) -> "Server":
        """Starts the command and waits for its first token. Raises ConfigError with the end of its log where none comes."""
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
                await server._first_token(request_options)
        except TimeoutError:
            await server.stop()
            raise ConfigError(f"{spec.name} gave no token within {START_SECONDS:g} s; its log is {name}") from None
        except BaseException:
            await server.stop()
            raise
        server.first_token_seconds = time.perf_counter() - began
        server.started_bytes = server.resident_bytes()
        return server

    async def _first_token(self, request_options: RequestOptions) -> None:
        http = HttpClient(ServerAddress.parse(self._spec.url), request_options.key)
        model, last_error = request_options.model or self._spec.model, ""
        while True:
            if self.has_ended:
                raise ConfigError(f"{self._spec.name} ended with status {self._process.returncode}: {self._log_tail()}")
            try:
                model = model or await first_model(http)
                body = make_body(request_options.api, model, FIRST_WORD, 1, request_options.ignore_eos, request_options.extra)
                outcome = await Client(http, request_options.api, START_SECONDS).run(PreparedRequest(0, body, 1, 1), time.perf_counter())
                last_error = f"{outcome.error}: {outcome.message}"
                if outcome.error is None:
                    return http.close()
                if outcome.error in ("HTTP 400", "HTTP 401", "HTTP 404", "HTTP 422"):
                    raise ConfigError(f"{self._spec.name} rejects requests: {last_error}")
            except HttpError:
                pass  # not listening yet, or loading
            await asyncio.sleep(POLL_SECONDS)

    def _log_tail(self) -> str:
        lines = self._log.read_text(errors="replace").strip().splitlines()[-LOG_LINES:]
        return " / ".join(line.strip()[:200] for line in lines) or "its log is empty"

    @property
    def has_ended(self) -> bool:
        """True if its process has ended."""
        return self._process.returncode is not None

    def resident_bytes(self) -> int:
        """Resident bytes of all its processes; shared memory counts in each."""
        return resident_bytes(self._process.pid)

    async def stop(self) -> None:
        """Terminates the process group, kills it after a timeout, and removes the log."""
        for number, seconds in ((signal.SIGTERM, STOP_SECONDS), (signal.SIGKILL, STOP_SECONDS)):
            if self._process.returncode is None:
                try:
                    os.killpg(self._process.pid, number)
                    async with asyncio.timeout(seconds):
                        await self._process.wait()
                except (TimeoutError, ProcessLookupError):
                    continue
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)  # remaining processes of the group
        self._guard.release()
        self._log.unlink(missing_ok=True)


def resident_bytes(pid: int, root: Path = Path("/proc")) -> int:
    """Resident memory of a process and its descendants; 0 for ended processes or without /proc."""
    try:
        pages = int((root / str(pid) / "statm").read_text().split()[1])
        children = [int(child) for file in (root / str(pid) / "task").glob("*/children") for child in file.read_text().split()]
    except (OSError, ValueError, IndexError):
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE") + sum(resident_bytes(child, root) for child in children)
