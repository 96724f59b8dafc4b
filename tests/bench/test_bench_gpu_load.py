"""The loads of the GPU's benchmark on an engine that computes nothing: what runs at once, what is counted, when memory is said to grow."""

from collections.abc import Mapping, Sequence
from itertools import count
from typing import Any

import pytest

from ridgeline.bench import gpu_serving
from ridgeline.bench.gpu_serving import Samples, Traffic, Wish, aged, drain, mixture, percentile, phase, verdict
from ridgeline.config.groups import EngineConfig
from ridgeline.core.params import SamplingParams
from ridgeline.engine.compose import start_engine
from ridgeline.engine.engine import Engine

FAKE = 'fake:{"rows": 8, "max_model_len": 256, "blocks": %d}'


def engine_of(pages: int = 200) -> Engine:
    engine, _ = start_engine(EngineConfig(FAKE % pages, max_num_seqs=8, max_num_batched_tokens=64), lambda stage, part: None)
    engine.executor.wait_seconds = 0.0  # type: ignore[attr-defined]  # as an executor of a device has it
    return engine


class Device:
    """Steps of 3 ms, 1 ms apart."""

    def begin(self) -> None:
        pass

    def end(self) -> tuple[Sequence[float], Sequence[float]]:
        return [0.003] * 3, [0.001, 0.001]


@pytest.fixture
def _a_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """10 ms from one look at it to the next."""
    ticks = count()
    monkeypatch.setattr(gpu_serving, "perf_counter", lambda: next(ticks) / 100)


@pytest.mark.usefixtures("_a_clock")
def test_a_phase_counts_what_runs_at_once() -> None:
    engine = engine_of()
    traffic = Traffic(engine, 4, aged(4, prompt=10, output=20), longest=30)
    found = phase(engine, traffic, rows=4, seconds=1.0, watch=Device())
    assert found["steps"] == 100 and found["seconds"] == pytest.approx(1.0)
    assert found["rows_served"] == 4 and found["tokens_per_second"] == pytest.approx(found["output_tokens"])
    assert 300 < found["output_tokens"] <= 400  # one in 21 steps of a row is its prompt's
    assert found["requests"] == pytest.approx(found["output_tokens"] / 20, abs=4)
    assert found["prompt_tokens"] == pytest.approx(10 * found["requests"], abs=50)
    assert found["step_seconds"] == found["host_seconds"] == pytest.approx(0.01)
    assert (found["device_seconds"], found["idle_seconds"], found["share_idle"]) == (0.003, 0.001, pytest.approx(0.002))
    drain(engine, traffic)
    assert engine.idle and not traffic.open


def test_the_first_requests_are_of_all_ages() -> None:
    wishes = [aged(4, prompt=1000, output=1000)(number) for number in range(6)]
    assert [wish.prompt for wish in wishes] == [1000, 1250, 1500, 1750, 1000, 1000]
    assert [wish.params.max_tokens for wish in wishes] == [1000, 750, 500, 250, 1000, 1000]


def test_a_rejected_request_is_an_error() -> None:
    engine = engine_of()
    traffic = Traffic(engine, 1, lambda number: Wish(100, SamplingParams(max_tokens=4)), longest=100)
    commands = traffic.commands()
    turn = engine.turn([*commands, *commands])
    with pytest.raises(RuntimeError, match="the engine rejects r0: request id r0 is in use"):
        traffic.take(turn)


def soaked(seconds: float, memory: Any) -> list[Mapping[str, Any]]:
    settings = {"rows": 8, "prompt_tokens": 60, "output_tokens": 20, "seconds": seconds, "every_seconds": 0.5, "swing_seconds": 2.0}
    return list(gpu_serving.run(engine_of(pages=20), settings, memory))


@pytest.mark.usefixtures("_a_clock")
def test_a_soak_counts_its_requests() -> None:
    *looks, last = soaked(30.0, lambda: {"allocated": 7, "reserved": 9, "used": 11})
    assert "error" not in last and last["grown_bytes"] == last["reserved_growth_bytes"] == 0
    assert last["requests"] > 100 and last["aborted"] > 0 and last["preempted"] > 0
    assert len(looks) == 60 and looks[0]["allocated"] == 7


@pytest.mark.usefixtures("_a_clock")
def test_a_soak_sees_memory_grow() -> None:
    sizes = count(0, 1 << 20)
    *_, last = soaked(30.0, lambda: {"allocated": next(sizes), "reserved": 0, "used": 0})
    assert "allocated" in last["error"] and "reserved" not in last["error"]
    assert last["grown_bytes"] == last["allocated_growth_bytes"] - (4 << 20) > 0


def test_what_grows_while_warming_up_does_not_count() -> None:
    samples = Samples()
    for time in range(100):
        samples.add(float(time), {"allocated": min(time, 20) << 30, "reserved": 0, "used": 10**9 * (time == 60), "host": time << 40})
    found = verdict(samples)
    assert found["grown_bytes"] == 0 and "error" not in found and found["host_growth_bytes"] > 0


def test_mixture() -> None:
    wishes = [mixture(1500, 512)(number) for number in range(500)]
    assert wishes[7] == mixture(1500, 512)(7)
    assert all(1 <= wish.prompt <= 1500 and wish.shared < wish.prompt and 1 <= wish.params.max_tokens <= 512 for wish in wishes)
    assert any(wish.params.logprobs for wish in wishes) and any(wish.shared for wish in wishes)
    assert 0.3 < sum(wish.params.temperature == 0 for wish in wishes) / 500 < 0.7


def test_percentile() -> None:
    assert [percentile([4.0, 1.0, 3.0, 2.0], share) for share in (0.25, 0.5, 0.99)] == [1.0, 2.0, 4.0]
