"""A prompt waits for tiers for a share of the time that computing it takes: whatever they do, it loses no more than that."""

import time
from dataclasses import replace
from pathlib import Path
from threading import Event

import pytest
from tiers import PROMPT, MemoryTier, Run, file_tier, kept, shape

from ridgeline.config.groups import EngineConfig
from ridgeline.core.commands import Admit, BlocksFetched
from ridgeline.core.params import Admitted
from ridgeline.engine.compose import make_engine
from ridgeline.engine.tiers.patience import LEAST_SECONDS, PATIENT_SECONDS, SHARE, UNKNOWN_SECONDS, least_tokens, wait_seconds
from ridgeline.engine.tiers.store import PAUSE_SECONDS, BlockStore
from ridgeline.sim.clock import VirtualClock
from ridgeline.sim.laws.executor import SimExecutor, fake_executor
from ridgeline.sim.laws.model import FakeModel

pytestmark = pytest.mark.alone
SLACK = 0.2
"""Seconds that a busy machine may take to wake threads."""


class StuckTier(MemoryTier):
    """A tier that has everything, and answers to `get` when it is let go."""

    name = "stuck"

    def __init__(self, values: dict[bytes, bytes]) -> None:
        super().__init__()
        self.values, self.go, self.asked = values, Event(), 0

    def get(self, names, seconds, value_bytes):  # type: ignore[no-untyped-def]
        self.asked += 1
        self.go.wait(20)
        return super().get(names, seconds, value_bytes)


@pytest.fixture
def values() -> dict[bytes, bytes]:
    kept(tier := MemoryTier())
    return tier.values


@pytest.mark.parametrize("token_seconds", [1e-6, 1e-4, 1.3e-3, 0.02])
def test_a_wait_is_below_what_computing_takes(token_seconds: float) -> None:
    for tokens in (16, 160, 1_600, 16_000):
        seconds, computing = wait_seconds(tokens, token_seconds), tokens * token_seconds
        assert seconds <= SHARE * computing < computing
        assert (seconds >= LEAST_SECONDS) == (tokens >= least_tokens(token_seconds)) == bool(seconds)
    assert SHARE < 1 and wait_seconds(16, 0.0) == UNKNOWN_SECONDS


def test_what_is_computed_sooner_is_not_asked_for(values: dict[bytes, bytes]) -> None:
    stuck = StuckTier(values)
    run = Run([stuck], seconds=LEAST_SECONDS / SHARE / len(PROMPT))
    assert run.answer("b") and not stuck.asked
    run.close()
    other = Run([tier := MemoryTier()], seconds=1.5 * LEAST_SECONDS / SHARE / len(PROMPT))
    tier.values = values
    sequence = Admitted(request_id="c", prompt=PROMPT, max_tokens=1, seed=1)
    assert other.store.ask(sequence, other.engine.scheduler.cache), "a little longer, and it is"
    other.close()


def test_a_tier_that_hangs_costs_a_share_of_computing(values: dict[bytes, bytes]) -> None:
    computing = 1.0
    run = Run([stuck := StuckTier(values)], seconds=computing / 96)
    began = time.monotonic()
    assert run.answer("b") and stuck.asked == 1
    assert SHARE * computing - SLACK < time.monotonic() - began < SHARE * computing + SLACK
    began = time.monotonic()
    assert run.answer("c", (7, *PROMPT)) and time.monotonic() - began < SLACK, "it is left alone"
    stuck.go.set()
    run.close()


@pytest.mark.parametrize("wait", [0.02, 0.05, 0.4])
def test_a_tier_that_had_little_time_is_left_alone_for_little(values: dict[bytes, bytes], wait: float) -> None:
    run = Run([stuck := StuckTier(values)], seconds=wait / SHARE / 96)
    began = time.monotonic()
    run.answer("b")
    pause = run.store._paused["stuck"] - began - wait
    assert 0 <= pause - PAUSE_SECONDS * min(1.0, wait / PATIENT_SECONDS) < SLACK
    stuck.go.set()
    run.close()


def test_of_many_that_come_at_once_only_the_first_one_waits_for_it(values: dict[bytes, bytes]) -> None:
    """Those behind it would be computed behind it: their own time is longer, and yet they do not use it."""
    run = Run([stuck := StuckTier(values)], seconds=0.4 / 96)
    began = time.monotonic()
    commands = run.engine.prepare([Admit(_request(str(number), PROMPT)) for number in range(8)])
    assert sum(isinstance(each, Admit) and each.fetching for each in commands) == 8
    done = {each.request_id for each in commands if isinstance(each, BlocksFetched)}
    while len(done) < 8:
        done |= {each.request_id for each in run.store.take()}
        time.sleep(0.002)
    assert time.monotonic() - began < 0.4 * SHARE + SLACK and run.store.counts["stuck"]["failures"] == 1
    stuck.go.set()
    run.close()


def test_one_that_hangs_keeps_none_waiting_for_another(tmp_path: Path, values: dict[bytes, bytes]) -> None:
    kept(file_tier(tmp_path / "kv"))
    run = Run([stuck := StuckTier(values), file_tier(tmp_path / "kv")], seconds=0.4 / 96)
    run.answer("b")
    began = time.monotonic()
    assert run.answer("c", domain=b"another") and time.monotonic() - began < SLACK, "the thread that would read the file hangs"
    stuck.go.set()
    while run.store._asking is not None:
        time.sleep(0.002)
    assert run.answer("d", PROMPT[:60]) and not run.from_tier, "which it has in memory"
    run.close()


def test_what_is_here_is_not_waited_for(values: dict[bytes, bytes]) -> None:
    run = Run([stuck := StuckTier(values)], seconds=0.4 / 96)
    run.answer("b")
    stuck.go.set()
    run.store._paused.clear()
    more = _request("c", (*PROMPT, *range(60)))
    assert run.store.ask(more, run.engine.scheduler.cache)
    (fetch,) = run.store._fetches.values()
    assert fetch.wait == pytest.approx(SHARE * 48 * 0.4 / 96), "three blocks are new"
    run.close()


def test_the_wait_follows_what_steps_take(tmp_path: Path) -> None:
    """A start on a busy machine measures too much: what counts is how long it takes now."""
    executor = fake_executor(step_seconds=0.001, token_seconds=0.002)
    executor = SimExecutor(replace(executor.info, kv=shape()), FakeModel(), VirtualClock())
    made, _ = make_engine(executor, EngineConfig(model="fake:{}", kv_cache_dir=str(tmp_path / "kv")))
    store, pace = made.store, made.scheduler.pace
    assert isinstance(store, BlockStore) and pace is not None
    assert store._token_seconds() == pytest.approx(0.002)
    for _ in range(200):
        pace.measure(0, 64, 0.001 + 64 * 0.0005)
    assert store._token_seconds() == pace.seconds.token == pytest.approx(0.0005, rel=0.2)
    made.close()


def _request(name: str, prompt: tuple[int, ...]) -> Admitted:
    return replace(Admitted(request_id=name, prompt=prompt, max_tokens=1, seed=1), two_phase=False)
