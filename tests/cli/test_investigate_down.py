"""`ridgeline investigate Down` reads what is left of a server: its process, its own last words, or that it left none."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ridgeline.cli.main import make_app
from ridgeline.errors import ConfigError
from ridgeline.server.running import MAX_ENDS, ended_servers, process_state, running_servers

PROGRAM = """
import sys, time
from pathlib import Path
from ridgeline.errors import ConfigError
from ridgeline.server.running import announced, end_noted
with end_noted(Path(sys.argv[1]), "m") as ending, announced(Path(sys.argv[1]), url="http://127.0.0.1:1", model="m"):
    print("up", flush=True)
    end = sys.stdin.readline().strip()
    if end == "error":
        raise ConfigError("the model's file is damaged")
    if end == "interrupt":
        raise KeyboardInterrupt
    ending.reason = end
"""


@pytest.fixture
def down(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[str, object]]:
    """Starts what a server does about its end, ends it, and asks why it is down."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    def start(end: Callable[[subprocess.Popen[str]], object], *, waits: bool = True) -> dict[str, object]:
        with subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(tmp_path / "ridgeline")], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL, text=True,
        ) as process:  # fmt: skip
            try:
                assert process.stdout is not None and process.stdout.readline() == "up\n"
                end(process)
                if waits:
                    process.wait(20)
                told = CliRunner().invoke(make_app(), ["investigate", "Down", "--json"], catch_exceptions=False)
            finally:
                process.kill()
        assert told.exit_code == 0, told.output
        found: dict[str, object] = json.loads(told.stdout)
        return found

    return start


def says(word: str) -> Callable[["subprocess.Popen[str]"], object]:
    return lambda process: process.stdin and (process.stdin.write(f"{word}\n"), process.stdin.flush())


@pytest.mark.parametrize(
    ("end", "cause", "said"),
    [
        (says("SIGTERM"), "stopped", "SIGTERM"),
        (says("interrupt"), "stopped", "SIGINT"),
        (says("error"), "failed", "the model's file is damaged"),
        (lambda process: process.kill(), "killed", "left without a word"),
    ],
)
def test_how_it_ended(down: Callable[..., dict[str, object]], end: Callable[[object], object], cause: str, said: str) -> None:
    found = down(end)
    assert (found["alert"], found["cause"]) == ("Down", cause) and said in str(found["evidence"]) and found["lever"]


def test_a_process_that_is_suspended_is_not_waited_for(down: Callable[..., dict[str, object]]) -> None:
    def until(number: signal.Signals, state: str) -> Callable[["subprocess.Popen[str]"], None]:
        def send(process: "subprocess.Popen[str]") -> None:
            process.send_signal(number)
            while process_state(process.pid) != state:
                time.sleep(0.01)

        return send

    began = time.monotonic()
    assert down(until(signal.SIGSTOP, "T"), waits=False)["cause"] == "suspended"
    assert down(until(signal.SIGKILL, "Z"), waits=False)["cause"] == "killed", "its parent has not waited for it yet"
    assert down(lambda process: None, waits=False)["cause"] == "hung", "it lives, and no socket of its own answers"
    assert time.monotonic() - began < 20


def test_ends_of_the_same_kind_are_counted_and_bounded(down: Callable[..., dict[str, object]], tmp_path: Path) -> None:
    for _ in range(2):
        found = down(says("error"))
    assert "2 of its last 2 starts ended so" in str(found["evidence"])
    folder = tmp_path / "ridgeline"
    for number in range(MAX_ENDS + 3):
        (folder / f"server-{4_000_000 + number}.json").write_text(json.dumps({"model": "x", "started": 1.0 + number}))
    (folder / "server-4999999.json").write_text("{}")
    assert running_servers(folder) == [] and not [*folder.glob("server-*")]
    ended = ended_servers(folder)
    assert len(ended) == MAX_ENDS and [each.started for each in ended] == sorted(each.started for each in ended)
    assert ended[-1].model == "m", "what started last"
    next(folder.glob("ended-*")).write_text('{"pid": 1}')
    assert len(ended_servers(folder)) == MAX_ENDS - 1


def test_where_no_server_was_there_is_nothing_to_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    with pytest.raises(ConfigError, match="none has ended"):
        CliRunner().invoke(make_app(), ["investigate", "Down"], catch_exceptions=False)
