"""The loads of the GPU's benchmark on an engine that computes nothing: what runs at once, what is counted, when memory is said to grow."""

from collections.abc import Mapping, Sequence
from itertools import count
from typing import Any

import pytest

from ridgeline.bench import gpu_serving
from ridgeline.bench.gpu_serving import (
    ConstantLoad,
    MemorySamples,
    RequestSpec,
    drain,
    growth_report,
    measure_phase,
    mixed_requests,
    percentile,
    staggered_requests,
)
from ridgeline.config.groups import EngineConfig
from ridgeline.core.params import SamplingParams
from ridgeline.engine.compose import start_engine
from ridgeline.engine.engine import Engine

FAKE = 'fake:{"rows": 8, "max_model_len": 256, "blocks": %d}'


def engine_of(blocks: int = 200) -> Engine:
    engine, _ = start_engine(EngineConfig(FAKE % blocks, max_num_seqs=8, max_num_batched_tokens=64), lambda stage, part: None)
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
    load = ConstantLoad(engine, 4, staggered_requests(4, prompt=10, output=20), longest=30)
    found = measure_phase(engine, load, rows=4, seconds=1.0, watch=Device())
    assert found["steps"] == 100 and found["seconds"] == pytest.approx(1.0)
    assert found["rows_served"] == 4 and found["tokens_per_second"] == pytest.approx(found["output_tokens"])
    assert 300 < found["output_tokens"] <= 400  # one in 21 steps of a row is its prompt's
    assert found["requests"] == pytest.approx(found["output_tokens"] / 20, abs=4)
    assert found["prompt_tokens"] == pytest.approx(10 * found["requests"], abs=50)
    assert found["step_seconds"] == found["host_seconds"] == pytest.approx(0.01)
    assert (found["device_seconds"], found["idle_seconds"], found["share_idle"]) == (0.003, 0.001, pytest.approx(0.002))
    drain(engine, load)
    assert engine.idle and not load.open


def test_the_first_requests_are_of_all_ages() -> None:
    specs = [staggered_requests(4, prompt=1000, output=1000)(number) for number in range(6)]
    assert [spec.prompt for spec in specs] == [1000, 1250, 1500, 1750, 1000, 1000]
    assert [spec.params.max_tokens for spec in specs] == [1000, 750, 500, 250, 1000, 1000]


def test_a_rejected_request_is_an_error() -> None:
    engine = engine_of()
    load = ConstantLoad(engine, 1, lambda number: RequestSpec(100, SamplingParams(max_tokens=4)), longest=100)
    commands = load.commands()
    turn = engine.turn([*commands, *commands])
    with pytest.raises(RuntimeError, match="the engine rejects r0: request id r0 is in use"):
        load.on_turn(turn)


def soaked(seconds: float, memory: Any) -> list[Mapping[str, Any]]:
    settings = {"rows": 8, "prompt_tokens": 60, "output_tokens": 20, "seconds": seconds, "every_seconds": 0.5, "swing_seconds": 2.0}
    return list(gpu_serving.run_soak(engine_of(blocks=20), settings, memory))


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
    samples = MemorySamples()
    for time in range(100):
        samples.add(float(time), {"allocated": min(time, 20) << 30, "reserved": 0, "used": 10**9 * (time == 60), "host": time << 40})
    found = growth_report(samples)
    assert found["grown_bytes"] == 0 and "error" not in found and found["host_growth_bytes"] > 0


def test_mixture() -> None:
    specs = [mixed_requests(1500, 512)(number) for number in range(500)]
    assert specs[7] == mixed_requests(1500, 512)(7)
    assert all(1 <= spec.prompt <= 1500 and spec.shared < spec.prompt and 1 <= spec.params.max_tokens <= 512 for spec in specs)
    assert any(spec.params.logprobs for spec in specs) and any(spec.shared for spec in specs)
    assert 0.3 < sum(spec.params.temperature == 0 for spec in specs) / 500 < 0.7


def test_percentile() -> None:
    assert [percentile([4.0, 1.0, 3.0, 2.0], share) for share in (0.25, 0.5, 0.99)] == [1.0, 2.0, 4.0]
