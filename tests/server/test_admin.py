"""The admin socket: who may use it, what it tells, what it changes, and the line that each change leaves."""

import asyncio
import json
import logging
import os
import pstats
import socket
import stat
import struct
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from chat_llama import write_chat_llama
from typer.testing import CliRunner

from ridgeline.cli import chaos
from ridgeline.cli.admin_client import ask_admin
from ridgeline.cli.main import make_app
from ridgeline.cli.profile import print_steps
from ridgeline.cli.profile import profile as steps_of_server
from ridgeline.config.groups import EngineConfig, ServerConfig
from ridgeline.errors import ConfigError
from ridgeline.observe.metrics import Metrics
from ridgeline.observe.requests import Result
from ridgeline.server import admin_listener, knob_watch, profile
from ridgeline.server import chaos as faults
from ridgeline.server.admin import Admin
from ridgeline.server.admin_listener import admin_socket
from ridgeline.server.keys import ApiKeys
from ridgeline.server.running import announced, running_servers


class Opened:
    """A site with its admin socket. `drained`: what the end of the server was asked with."""

    def __init__(self, site: Any, listening: socket.socket) -> None:
        self.site, self.path, self.drained = site, listening.getsockname(), list[tuple[str, float | None]]()
        self.admin: Any = None
        site.loop.call_soon_threadsafe(self._start, listening)

    def _start(self, listening: socket.socket) -> None:
        self.admin = Admin(listening, self.site.service, self.drain, list, lambda config: None)
        self.admin.start()

    def drain(self, reason: str, seconds: float | None) -> float:
        self.drained.append((reason, seconds))
        return 30.0 if seconds is None else seconds

    def ask(self, method: str, path: str, body: Any = None, key: Path | None = None) -> Any:
        return ask_admin(self.path, key, method, path, body, seconds=10)


@pytest.fixture
def opened(new_site: Any, tmp_path: Path) -> Iterator[Opened]:
    site = new_site(EngineConfig('fake:{"rows": 2}', speculative="ngram", num_speculative_tokens=3))
    tmp_path.chmod(0o700)
    with admin_socket(str(tmp_path / "a.sock")) as listening:
        found = Opened(site, listening)
        yield found
        site.wait(asyncio.sleep(0))
        site.loop.call_soon_threadsafe(found.admin.close)
        site.wait(asyncio.sleep(0.01))


def lines(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    return [record.fields for record in caplog.records if record.message == "admin"]


def test_status_knobs_and_drain_each_with_its_line(opened: Opened, caplog: pytest.LogCaptureFixture) -> None:
    status = opened.ask("GET", "/status")
    assert status["pid"] == os.getpid() and status["not_ready"] is None and status["engine_pid"] == opened.site.service.engine.pid
    assert status["knobs"] == opened.ask("GET", "/knobs") and status["knobs"]["step_ms"] == 60
    by = f"uid={os.geteuid()} pid={os.getpid()}"
    assert opened.ask("POST", "/knobs", {"name": "step_ms", "value": "30"}) == {"name": "step_ms", "old": 60, "new": 30}
    assert opened.ask("POST", "/knobs", {"name": "num-speculative-tokens", "value": 0})["old"] == 3
    assert opened.ask("POST", "/knobs", {"name": "max_num_queued_reqs", "value": 0})["old"] == 256
    assert opened.site.service.waiting_room.max_waiting == 0 and opened.site.service.deployment.knobs["step_ms"] == 30
    assert lines(caplog)[0] == {"action": "set", "by": by, "knob": "step_ms", "old": 60, "new": 30, "watch_seconds": 30.0}
    assert len(lines(caplog)) == 3
    assert opened.site.complete(prompt="a", max_tokens=3).status_code == 200
    answer = opened.ask("POST", "/drain", {"timeout_seconds": 5})
    assert answer == {"open_requests": 0, "timeout_seconds": 5.0} and opened.drained == [("admin", 5.0)]
    assert lines(caplog)[-1] == {"action": "drain", "by": by, "open_requests": 0, "timeout_seconds": 5.0}


def test_a_knob_reaches_the_engines_that_follow(opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    client, sent = opened.site.service.deployment.client, []
    opened.ask("POST", "/knobs", {"name": "step_ms", "value": 17})
    send = client.send
    monkeypatch.setattr(client, "send", lambda command: (sent.append(command), send(command)))
    os.kill(client.pid, 9)
    opened.site.wait(asyncio.wait_for(client.ready(1), 10))
    for _ in range(200):
        if opened.site.service.is_ready:
            break
        opened.site.wait(asyncio.sleep(0.01))
    assert [(each.name, each.value) for each in sent] == [("step_ms", 17)]


WRONG = [
    ({"name": "step_ms", "value": 0}, "outside 1 … 60000"),
    ({"name": "step_ms", "value": "soon"}, "a whole number was expected"),
    ({"name": "num_speculative_tokens", "value": 4}, "started with 3"),
    ({"name": "model", "value": "x"}, "is not a setting"),
    ({"name": "log_level", "value": "loud"}, "must be one of debug"),
    ({"name": "step_ms"}, "value"),
    ({"name": "step_ms", "value": 1, "by": "me"}, "unknown field"),
]


def test_a_wrong_change_changes_nothing(opened: Opened, caplog: pytest.LogCaptureFixture) -> None:
    before = opened.ask("GET", "/knobs")
    for body, said in WRONG:
        with pytest.raises(ConfigError, match=said):
            opened.ask("POST", "/knobs", body)
    assert opened.ask("GET", "/knobs") == before and not lines(caplog)


def test_other_requests_are_told_what_there_is(opened: Opened) -> None:
    for method, path in (("GET", "/v1/models"), ("DELETE", "/knobs"), ("POST", "/drain/")):
        with pytest.raises(ConfigError, match="This socket has: GET /status"):
            opened.ask(method, path)
    with pytest.raises(ConfigError, match="timeout_seconds is -1"):
        opened.ask("POST", "/drain", {"timeout_seconds": -1})
    assert not opened.drained
    for path in ("/status", "/knobs", "/drain"):
        assert opened.site.get(path).status_code == 404, "nothing of it is reached over TCP"


def test_another_user_is_not_heard(opened: Opened, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    class Foreign:
        size = struct.calcsize("3i")

        def unpack(self, raw: bytes) -> tuple[int, int, int]:
            pid, _, gid = struct.unpack("3i", raw)
            return pid, os.geteuid() + 1, gid

    monkeypatch.setattr(admin_listener, "_CREDENTIALS", Foreign())
    with pytest.raises(ConfigError, match="cannot be asked"):
        opened.ask("GET", "/status")
    assert "admin connection of another user was closed" in caplog.messages


def test_the_key_of_an_admin_where_the_file_has_one(opened: Opened, tmp_path: Path) -> None:
    for name, text in (("keys", "ops boss-key scope=admin\nalice client-key\n"), ("boss", "boss-key\n"), ("alice", "client-key")):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o600)
    opened.site.service.keys = ApiKeys(None, str(tmp_path / "keys"))
    for key in (None, tmp_path / "alice"):
        with pytest.raises(ConfigError, match="a key with scope=admin is needed"):
            opened.ask("GET", "/status", key=key)
    assert opened.ask("GET", "/status", key=tmp_path / "boss")["pid"] == os.getpid()


def test_the_socket_is_its_owners_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    with admin_socket("auto") as listening, announced(tmp_path / "ridgeline", url="http://127.0.0.1:1", model="m", admin="/x"):
        path = Path(listening.getsockname())
        assert stat.S_IMODE(path.stat().st_mode) == 0o600 and stat.S_IMODE(path.parent.stat().st_mode) == 0o700
        assert [each.admin for each in running_servers(tmp_path / "ridgeline")] == ["/x"]
    assert not path.exists()
    path.parent.chmod(0o755)
    with admin_socket("auto") as listening:
        assert listening is None, "others could enter the folder"
    open_folder = tmp_path / "open"
    open_folder.mkdir(mode=0o750)
    for setting, said in ((str(open_folder / "s"), "chmod 700"), (str(tmp_path / ("x" * 120)), "too long")):
        with pytest.raises(ConfigError, match=said), admin_socket(setting):
            pass
    with admin_socket("none") as listening:
        assert listening is None


def test_a_socket_left_behind_is_taken_over(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(tmp_path / "s"))
    with admin_socket(str(tmp_path / "s")) as listening:
        assert listening is not None
        with pytest.raises(ConfigError, match="cannot be made"), admin_socket(str(tmp_path / "s")):
            pass


def test_audit_lines_are_written_at_any_level() -> None:
    before = logging.getLogger("ridgeline").level
    try:
        logging.getLogger("ridgeline").setLevel("ERROR")
        assert logging.getLogger("ridgeline.audit").isEnabledFor(logging.INFO)
    finally:
        logging.getLogger("ridgeline").setLevel(before)


def test_no_server_and_several(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    with pytest.raises(ConfigError, match="no server of yours runs"):
        ask_admin(None, None, "GET", "/status")
    with announced(tmp_path / "ridgeline", url="http://127.0.0.1:1", model="m"):
        with pytest.raises(ConfigError, match="has no admin socket"):
            ask_admin("m", None, "GET", "/status")
        with pytest.raises(ConfigError, match="did you mean"):
            ask_admin("http://127.0.0.1:2", None, "GET", "/status")


def test_a_change_that_costs_goodput_is_taken_back(
    opened: Opened, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Real looks at the metrics, real knobs; of the yields one is planted."""
    monkeypatch.setattr(knob_watch, "loss", lambda before, behind: "52% of requests were good, 97% before")
    opened.ask("POST", "/knobs", {"name": "step_ms", "value": 30, "watch_seconds": 0.05})
    end = time.monotonic() + 5
    while len(lines(caplog)) < 2 and time.monotonic() < end:
        time.sleep(0.01)
    assert opened.ask("GET", "/knobs")["step_ms"] == 60 == opened.site.service.deployment.knobs["step_ms"]
    said = lines(caplog)[1]
    assert (said["action"], said["knob"], said["old"], said["new"]) == ("rolled back", "step_ms", 30, 60) and "52%" in said["reason"]
    assert said["by"] == lines(caplog)[0]["by"]
    with pytest.raises(ConfigError, match="outside 0 … 600"):
        opened.ask("POST", "/knobs", {"name": "step_ms", "value": 30, "watch_seconds": 601})


@pytest.mark.parametrize(("knob", "harmful", "reason"), [
    ("step_ms", 1, "tokens/s with requests waiting"),
    pytest.param("max_num_queued_reqs", 0, "of requests were good", marks=pytest.mark.night),
])  # fmt: skip
def test_a_knob_that_harms_a_server_under_load_is_taken_back(
    new_site: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, knob: str, harmful: int, reason: str
) -> None:
    """Nothing is planted: twelve clients at four rows of a device on which steps and tokens cost time. Steps that may take 1 ms cut
    prompts into many; without a queue most clients are refused."""
    monkeypatch.setattr(knob_watch, "PERIOD_SECONDS", 0.05)
    device = 'fake:{"rows": 4, "step_seconds": 0.006, "token_seconds": 0.0001}'
    site = new_site(EngineConfig(device, max_num_batched_tokens=320, enable_prefix_caching=False), ServerConfig(goodput="ttft=20s"))
    tmp_path.chmod(0o700)

    async def client(number: int, ended: asyncio.Event) -> None:
        body = {"prompt": [5 + number] * 300, "max_tokens": 4, "ignore_eos": True}
        while not ended.is_set():
            if (await site.client.post("/v1/completions", json=body)).status_code != 200:
                await asyncio.sleep(0.02)

    async def load(ended: asyncio.Event) -> None:
        await asyncio.gather(*(client(number, ended) for number in range(12)))

    with admin_socket(str(tmp_path / "a.sock")) as listening:
        opened, ended = Opened(site, listening), asyncio.Event()
        clients = asyncio.run_coroutine_threadsafe(load(ended), site.loop)
        try:
            time.sleep(2)
            before = opened.ask("GET", "/knobs")[knob]
            for _ in range(3):  # a machine that slows down meanwhile hides the harm
                caplog.clear()
                opened.ask("POST", "/knobs", {"name": knob, "value": harmful, "watch_seconds": 1.5})
                end = time.monotonic() + 10
                while len(lines(caplog)) < 2 and time.monotonic() < end:
                    time.sleep(0.02)
                said = lines(caplog)[1]
                if said["action"] == "rolled back":
                    break
                opened.ask("POST", "/knobs", {"name": knob, "value": before})
                time.sleep(2)
            assert said["action"] == "rolled back" and (said["old"], said["new"]) == (harmful, before), said
            assert reason in said["reason"] and opened.ask("GET", "/knobs")[knob] == before
        finally:
            site.loop.call_soon_threadsafe(ended.set)
            clients.result(20)
            site.loop.call_soon_threadsafe(opened.admin.close)
            site.wait(asyncio.sleep(0.01))


def test_what_counts_as_a_loss() -> None:
    metrics, looks = Metrics(), knob_watch.Looks()

    def second(at: int, good: int, late: int, tokens: int) -> None:
        metrics.results[Result.GOOD] += good
        metrics.results[Result.LATE_FIRST_TOKEN] += late
        metrics.generation_tokens += tokens
        looks.take(metrics, float(at))

    for at in range(11):
        second(at, 9, 1, 100)
    for at in range(11, 21):
        second(at, 7, 3, 60)
    before, behind = looks.between(0, 10), looks.between(10, 20)
    assert before == knob_watch.Yield(0.9, None) and behind == knob_watch.Yield(0.7, None), "nothing waited: fewer tokens say nothing"
    assert knob_watch.loss(before, behind) == "70% of requests were good, 90% before" and knob_watch.loss(behind, before) is None
    assert looks.between(0, 1).share is None, "ten requests are too few"
    assert knob_watch.loss(knob_watch.Yield(None, 100.0), knob_watch.Yield(0.1, 85.0)) == "85 tokens/s with requests waiting, 100 before"
    assert knob_watch.loss(knob_watch.Yield(0.9, 100.0), knob_watch.Yield(None, None)) is None


def test_a_profile_of_both_loops(opened: Opened, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "run"))
    load = threading.Thread(target=lambda: [opened.site.complete(prompt=[1], max_tokens=40, ignore_eos=True) for _ in range(6)])
    load.start()
    found = opened.ask("POST", "/profile", {"seconds": 0.3})
    load.join()
    for name, function in (("front_end", "client.py"), ("engine", "engine.py")):
        file = Path(found[name])
        assert stat.S_IMODE(file.stat().st_mode) == 0o600 and file.parent == tmp_path / "run" / "ridgeline" / "profiles"
        assert any(where.endswith(function) for where, _, _ in pstats.Stats(str(file)).stats)
        assert any("tottime" in line for line in found[f"{name}_top"]) and len(found[f"{name}_top"]) <= 16
    assert opened.site.complete(prompt=[1], max_tokens=3).status_code == 200
    with pytest.raises(ConfigError, match="outside 0 … 60"):
        opened.ask("POST", "/profile", {"seconds": 61})
    stale = Path(found["engine"]).with_name(f"engine-{os.getpid()}-2.pstats")
    stale.write_text("of a server before this one that had its number")
    monkeypatch.setattr(opened.site.service.engine, "send", lambda command: None)
    monkeypatch.setattr(profile, "WRITE_SECONDS", 0.05)
    assert opened.ask("POST", "/profile", {"seconds": 0.01})["engine"] is None and not stale.exists()


def test_the_next_steps_for_perfetto(new_site: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    """A model that computes: so many steps, by name; and those that ran in the time, where that is all."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "run"))
    tmp_path.chmod(0o700)
    model = write_chat_llama(tmp_path / "random")
    site = new_site(EngineConfig(str(model), runner="native", max_model_len=256, max_num_seqs=2, threads=1))
    with admin_socket(str(tmp_path / "a.sock")) as listening:
        opened = Opened(site, listening)
        asked, ended = {"prompt": [5], "max_tokens": 30, "ignore_eos": True}, threading.Event()
        load = threading.Thread(target=lambda: [site.complete(**asked) for _ in iter(ended.is_set, True)])
        load.start()
        found = opened.ask("POST", "/profile", {"steps": 4, "seconds": 5})
        ended.set()
        load.join()
        file = Path(found["file"])
        assert stat.S_IMODE(file.stat().st_mode) == 0o600 and file.parent == tmp_path / "run" / "ridgeline" / "profiles"
        events = json.loads(file.read_text())
        assert {event["args"]["step"] for event in events if event["ph"] == "X"} == {0, 1, 2, 3}
        assert sum(event["name"] == "step" for event in events) == 4
        assert any("perplexity" in each for each in opened.ask("GET", "/status")["findings"]), "its weights are random"
        idle = opened.ask("POST", "/profile", {"steps": 4, "seconds": 0.1})
        assert json.loads(Path(idle["file"]).read_text()) == [], "none ran"
        with pytest.raises(ConfigError, match="outside 1 … 1000"):
            opened.ask("POST", "/profile", {"steps": 1001})
        steps_of_server(steps=4, seconds=0.1, server=opened.path)
        assert "no step ran within 0.1 s" in capsys.readouterr().err
        print_steps(file, 5.0)
        told = capsys.readouterr()
        assert "attention" in told.out and "of steps" in told.out and str(file) in told.err
        site.loop.call_soon_threadsafe(opened.admin.close)
        site.wait(asyncio.sleep(0.01))


def test_steps_of_a_model_that_computes_nothing(opened: Opened) -> None:
    with pytest.raises(ConfigError, match="the runner is 'fake', which computes nothing; steps are traced of native, numpy, cuda"):
        opened.ask("POST", "/profile", {"steps": 4})


def test_where_the_time_of_requests_went(opened: Opened) -> None:
    empty = opened.ask("GET", "/explain")
    assert empty == {"requests": [], "ttft": None, "total": None, "counts": {}}
    names = [opened.site.complete(prompt=f"prompt {count}", max_tokens=count).json()["id"] for count in (2, 40, 3)]
    slowest = opened.ask("GET", "/explain?slowest=2")["requests"]
    assert len(slowest) == 2 and slowest[0]["total"]["measured_ms"] >= slowest[1]["total"]["measured_ms"]
    one = opened.ask("GET", f"/explain?id={names[1]}")["requests"][0]
    assert one["output_tokens"] == 40 and one["counterfactual"]["alone_ttft_ms"] > 0
    together = opened.ask("GET", "/explain?window_seconds=60")
    assert together["ttft"]["requests"] == together["total"]["requests"] == 3 and together["total"]["causes"]
    assert together["counts"]["good"] == 3 and together["counts"]["steps"] >= 40
    for query in ("id=none", "slowest=0", "slowest=x", "window_seconds=nan"):
        with pytest.raises(ConfigError, match=r"is known|give a number"):
            opened.ask("GET", f"/explain?{query}")
    opened.site.complete(prompt="x" * 40 + " at 10:31:07 " + "y" * 200)
    missed = opened.site.complete(prompt="x" * 40 + " at 10:32:55 " + "y" * 200).json()["id"]
    report = opened.ask("GET", "/prefix?window_seconds=60")
    worst = report["offenders"][0]
    assert worst["cause"] == "timestamp" and worst["tokens"] == 192 and "10:31" in worst["example"]["theirs"], report
    own = opened.site.get(f"/v1/requests/{missed}/explain").json()["prefix_miss"]
    assert own["cause"] == "timestamp" and own["mine"] is None and own["theirs"] is None
    for more in ((), ("--json",)):
        told = CliRunner().invoke(make_app(), ["explain", "--prefix", "--server", opened.path, *more])
        assert told.exit_code == 0 and "timestamp" in told.output, told.output
    for words in (("--slowest", "1"), (names[0],), ("--window", "1h"), ("--json",)):
        explained = CliRunner().invoke(make_app(), ["explain", *words, "--server", opened.path])
        assert explained.exit_code == 0 and "decode" in explained.output, explained.output


def test_the_command_line_lists_the_faults_there_are() -> None:
    assert set(chaos.FAULTS) == set(faults.FAULTS)
