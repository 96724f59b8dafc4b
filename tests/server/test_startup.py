"""Start and restart: `/startupz` tells how far it is, no engine takes requests before its canary, crash loops are called that."""

import asyncio
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ridgeline.config.groups import EngineConfig
from ridgeline.engine.client import State
from ridgeline.errors import Finding
from ridgeline.observe.starts import keep_start, last_start
from ridgeline.server import deployment
from ridgeline.server.startup import Startup


def test_the_time_left_follows_the_measured_pace() -> None:
    clock = [100.0]
    startup = Startup(lambda: clock[0])
    assert startup.snapshot().eta_seconds is None
    startup.note("packing weights", 0.2)
    assert startup.snapshot().eta_seconds is None, "one report has no pace"
    clock[0] += 4
    startup.note("packing weights", 0.4)
    told = startup.snapshot()
    assert (told.stage, told.progress, told.eta_seconds, told.elapsed_seconds) == ("packing weights", 0.4, 12.0, 4.0)
    startup.note("warming up", 0.0)
    assert startup.snapshot().eta_seconds is None, "the pace of another stage says nothing"
    clock[0] += 2
    startup.end()
    clock[0] += 50
    startup.note("packing weights", 0.1)
    told = startup.snapshot()
    assert (told.stage, told.progress, told.eta_seconds, told.elapsed_seconds) == ("ready", 1.0, 0.0, 6.0), "a restart is no start"


def test_later_stages_are_reckoned_as_they_took_last(tmp_path: Path) -> None:
    clock = [0.0]

    def start(known: dict[str, float]) -> Iterator[float | None]:
        startup = Startup(lambda: clock[0])
        startup.before = known
        for stage, seconds in (("starting", 1), ("packing weights", 8), ("warming up", 3)):
            startup.note(stage, 0.0)
            yield startup.snapshot().eta_seconds
            clock[0] += seconds / 2
            startup.note(stage, 0.5)
            yield startup.snapshot().eta_seconds
            clock[0] += seconds / 2
        startup.end()
        keep_start(tmp_path, "m", "1", startup.phases)

    assert list(start({})) == [None, 0.5, None, 4.0, None, 1.5], "nothing is known but the pace of the stage"
    known = last_start(tmp_path, "m")
    assert known == {"starting": 1, "packing weights": 8, "warming up": 3} and last_start(tmp_path, "other") == {}
    assert list(start(known)) == [12.0, 11.5, 11.0, 7.0, 3.0, 1.5]
    keep_start(tmp_path, "m", "1", {"process": 5.0, "starting": 2.0})
    keep_start(tmp_path, "other", "1", {"starting": -1.0})
    assert last_start(tmp_path, "m") == {"starting": 2.0} and last_start(tmp_path, "other") == {}, "the newest; none that cannot be"


def test_startupz_while_loading_and_behind_it(new_site: Any) -> None:
    site = new_site(EngineConfig('fake:{"rows": 1}'), start=False)
    site.service.deployment.startup.note("packing weights", 0.25)
    answer = site.get("/startupz")
    assert answer.status_code == 503 and 1 <= int(answer.headers["retry-after"]) <= 60
    assert answer.json()["error"]["code"] == "engine_unavailable"
    assert (answer.json()["stage"], answer.json()["progress"], answer.json()["eta_seconds"]) == ("packing weights", 0.25, None)
    site.wait(site.service.start())
    answer = site.get("/startupz")
    assert answer.status_code == 200 and answer.json()["stage"] == "ready"
    os.kill(site.service.engine.pid, signal.SIGKILL)
    wait_until(lambda: site.get("/readyz").status_code == 503)
    assert site.get("/startupz").status_code == 200, "a restart is not a start"


def wait_until(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_no_request_before_the_canary_of_a_restarted_engine(new_site: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first restarted engine answers wrongly and is ended; the second is looked at as long as it takes; then requests are taken."""
    site = new_site(EngineConfig("fake:{}"), start=False)
    site.wait(site.service.start())
    deployed, looks, may_pass = site.service.deployment, [], asyncio.Event()

    async def check(client: Any, model: Any) -> tuple[Finding, ...]:
        looks.append((client.pid, deployed.is_ready))
        if len(looks) == 1:
            return (Finding("error", "answers", "it answers nonsense", "none"),)
        await may_pass.wait()
        return ()

    monkeypatch.setattr(deployment, "_check_answers", check)
    deployed._recheck.cancel()
    deployed._recheck = asyncio.run_coroutine_threadsafe(
        deployed._check_restarts(deployed.client, deployed.model, has_answers=True), site.loop
    )
    os.kill(deployed.engine.pid, signal.SIGKILL)
    wait_until(lambda: len(looks) == 2)
    assert looks[0][0] != looks[1][0] and not looks[0][1] and not looks[1][1]
    answer = site.get("/readyz")
    assert answer.status_code == 503 and "are being checked" in answer.json()["error"]["message"]
    assert site.complete(prompt="a").status_code == 503
    site.loop.call_soon_threadsafe(may_pass.set)
    wait_until(lambda: site.get("/readyz").status_code == 200)
    assert site.complete(prompt="a", max_tokens=1).status_code == 200


def test_a_crash_loop_is_told(new_site: Any, caplog: pytest.LogCaptureFixture) -> None:
    site = new_site(EngineConfig("fake:{}"))
    client = site.service.deployment.client
    client._delay = lambda failures: 0.0 if failures < 3 else 7.0
    for failures in range(1, 4):
        wait_until(lambda: client.is_ready)
        os.kill(client.pid, signal.SIGKILL)
        wait_until(lambda expected=failures: client.failures == expected)
    wait_until(lambda: client.state is State.DEAD)
    answer = site.get("/readyz")
    message = answer.json()["error"]["message"]
    assert "ended early 3 times in a row" in message and "the next start is in" in message and int(answer.headers["retry-after"]) in (6, 7)
    said = [record for record in caplog.records if record.message == "engine keeps ending early"]
    assert len(said) == 1 and said[0].fields["failures_in_a_row"] == 3 and said[0].fields["next_start_seconds"] == 7.0
