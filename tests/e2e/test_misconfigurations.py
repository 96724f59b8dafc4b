"""Settings that cannot work: one line with the cause, and a command that starts the server."""

import os
import selectors
import shlex
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

RUN = [sys.executable, "-c", "from ridgeline.cli.main import main; main()"]
FAKE = """serve 'fake:{"rows": 4}' --port 0"""
WRONG = [
    f"{FAKE} --max-num-seqs 0",
    f"{FAKE} --max-num-seqs 5000",
    f"{FAKE} --max-num-seqs many",
    f"{FAKE} --max-num-seqs",
    "serve --port 0",
    f"{FAKE} --host 0.0.0.0",
    "serv demo --port 0",
    f"{FAKE} --no-such-flag 3",
    f"{FAKE} --scheduling-policy lifo",
    "serve demo --port 0 --max-model-len 99999999",
    f"{FAKE} --max-num-batched-tokens 0",
    f"{FAKE} --max-num-batched-tokens 2000000",
    f"{FAKE} --max-num-batched-tokens -5",
    f"{FAKE} --block-size 0",
    f"{FAKE} --block-size 4096",
    f"{FAKE} --block-size 1.5",
    "serve demo --port 70000",
    "serve demo --port -1",
    "serve demo --port http",
    "serve demo --port {busy}",
    f"{FAKE} --host 203.0.113.7 --api-key secret",
    f"{FAKE} --host ::",
    f"{FAKE} --host no.such.host.invalid --api-key k",
    f"{FAKE} --api-key ''",
    f"{FAKE} --api-key 'two\nlines'",
    f"{FAKE} --api-key schlüssel",
    f"{FAKE} --max-num-queued-reqs -1",
    f"{FAKE} --record /no/such/directory/file",
    f"{FAKE} --record /",
    f"{FAKE} --seed none",
    "serve demo --port 0 --max-model-len 0",
    "serve demo --port 0 --max-model-len -7",
    "serve demo --port 0 --kv-cache-memory-bytes 1",
    "serve demo --port 0 --kv-cache-memory-bytes 999999999999999",
    "serve demo --port 0 --kv-cache-memory-bytes 20000",
    "serve demo --port 0 --max-model-len 32768 --kv-cache-memory-bytes 4000000",
    "serve demo --port 0 --max-num-seqs 0 --host 127.0.0.1",
    "serve no-such-model --port 0",
    "serve /no/such/model.gguf --port 0",
    "serve {empty} --port 0",
    "serve 'fake:{\"cows\": 4}' --port 0",
    "serve 'fake:{' --port 0",
    f"{FAKE} --chat-template /no/such/file",
]
EVERY_DAY = [line for line in WRONG[:10] if "fake" in line]
"""Those that are tried in each run of the tests: starts of a real model are for the night."""


def refused(words: list[str], seconds: float = 60) -> str:
    """The command that the error says works."""
    done = subprocess.run([*RUN, *words], capture_output=True, text=True, timeout=seconds, check=False, env=environment())
    said = done.stderr.strip().splitlines()
    assert done.returncode == 2, done.stderr
    assert len(said) >= 2 and "Traceback" not in done.stderr
    assert said[-2].startswith("ridgeline: ") and said[-1].startswith("This works: ridgeline "), said
    return said[-1].removeprefix("This works: ")


def starts(command: str) -> bool:
    """Whether the server comes up with it; it is then ended."""
    words = shlex.split(command)[1:]
    process = subprocess.Popen([*RUN, *words], stderr=subprocess.PIPE, env=environment(), process_group=0)
    assert process.stderr is not None
    said, deadline = b"", time.monotonic() + 60
    with selectors.DefaultSelector() as selector:
        selector.register(process.stderr, selectors.EVENT_READ)
        while b"Ridgeline serves" not in said and time.monotonic() < deadline:
            part = os.read(process.stderr.fileno(), 4096) if selector.select(1.0) else None
            if part == b"":
                break
            said += part or b""
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    process.stderr.close()
    return b"Ridgeline serves" in said


def environment() -> dict[str, str]:
    return {**os.environ, "HF_HUB_OFFLINE": "1", "NO_COLOR": "1", "COLUMNS": "400"}


@pytest.mark.parametrize("words", [words if words in EVERY_DAY else pytest.param(words, marks=pytest.mark.night) for words in WRONG])
def test_the_command_in_the_message_starts_the_server(words: str, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as busy:
        text = words.replace("{busy}", str(busy.getsockname()[1])).replace("{empty}", str(tmp_path))
        works = refused(shlex.split(text))
    if "--port" not in works:  # its own port may be taken on this machine
        works += " --port 0"
    assert starts(works), works


def test_there_are_forty() -> None:
    assert len(set(WRONG)) >= 40
