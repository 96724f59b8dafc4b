"""N9: the pace is learned from real steps; a breach of --step-ms is told. A3, X3: metrics from arrival, gauges true at idle. A10: no
setting is without effect in silence."""

import asyncio
import json
import logging
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from chat_llama import write_chat_llama

from ridgeline import LLM, SamplingParams
from ridgeline.compute.runtime.measure import step_seconds, time_steps
from ridgeline.config.groups import EngineConfig, ServerConfig
from ridgeline.config.runner import resolve_runner
from ridgeline.core.commands import Admit
from ridgeline.core.events import StepLate
from ridgeline.core.pace import Pace
from ridgeline.core.params import Admitted, Limits
from ridgeline.core.plan import Plan, Result
from ridgeline.core.policy import POLICIES
from ridgeline.core.scheduler import Scheduler
from ridgeline.core.step_time import StepSeconds
from ridgeline.engine.compose import make_engine, start_engine
from ridgeline.engine.executor import Ticket
from ridgeline.engine.record import RecordedEngine, Recorder, Setup, read_recording
from ridgeline.errors import ConfigError
from ridgeline.observe.late_steps import LateSteps
from ridgeline.sim.clock import VirtualClock
from ridgeline.sim.fleet import replay as replaying
from ridgeline.sim.laws.executor import SimExecutor, fake_executor

SLOW = StepSeconds(0.004, 0.001, 0.001)
"""What steps of the device below take, but for noise."""


class NoisyDevice(SimExecutor):
    """Takes what nobody foresees."""

    def collect(self, ticket: Ticket) -> Result:
        result = super().collect(ticket)
        singles = ticket.plan.count.count(1)
        seconds = SLOW.of(singles, len(ticket.plan.tokens) - singles) * (0.8 + ticket.plan.step * 7919 % 100 / 250)
        return replace(result, timings=replace(result.timings, run=seconds))


def noisy_device() -> NoisyDevice:
    fake = fake_executor(rows=4, blocks=512, max_model_len=2048)
    return NoisyDevice(fake.info, fake._model, VirtualClock())


def serve(engine: Any) -> tuple[list[int], list[StepLate]]:
    """Long prompts beside a decoding row: the sizes of their chunks, and late steps."""
    commands: Sequence[Admit] = [Admit(Admitted("a", (5, 6), 200, 1)), *[Admit(Admitted(f"r{n}", (7,) * 900, 3, n)) for n in range(3)]]
    sizes: list[int] = []
    late: list[StepLate] = []
    submit = engine.executor.submit

    def noted(plan: Plan) -> Ticket:
        if 1 in plan.count and max(plan.count) > 1:
            sizes.append(len(plan.tokens) - plan.count.count(1))
        return submit(plan)

    engine.executor.submit = noted
    while commands or not engine.idle:
        late += [event for event in engine.turn(commands).events if isinstance(event, StepLate)]
        commands = []
    return sizes, late


def test_n9_the_pace_is_learned_from_real_steps() -> None:
    """The start measured a third of what steps take; --step-ms is kept after some steps all the same."""
    device = noisy_device()
    device._info = replace(device.info, seconds=StepSeconds(SLOW.fixed / 3, SLOW.row / 3, SLOW.token / 3), tokens=512)
    engine, (decision,) = make_engine(device, EngineConfig("m", step_ms=40, depth=2, enable_prefix_caching=False))
    assert decision.name == "mixed_tokens"
    sizes, late = serve(engine)
    right = Pace(SLOW, 0.04).limited(Limits(token_budget=512)).prefill_budget(1)
    assert sizes[0] > 2 * right
    assert all(0.7 * right < size < 1.3 * right for size in sizes[16:-3])
    assert 0 < len(late) < len(sizes) / 3, "told of the first ones, then it is kept"


def test_n9_a_recording_with_a_learned_pace_is_decided_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    device, path = noisy_device(), tmp_path / "pace.recording"
    prior, limits = StepSeconds(SLOW.fixed, SLOW.row, SLOW.token / 3), Limits(rows=4, token_budget=512, depth=2, prefix_caching=False)
    setup = Setup(limits, device.info.kv, "fcfs", 4, seconds=prior, step_ms=40)
    scheduler = Scheduler(limits, device.info.kv, POLICIES["fcfs"], None, Pace(prior, 0.04))
    engine = RecordedEngine(scheduler, VirtualClock(), 2, Recorder(device, path, setup))
    serve(engine)
    engine.executor.close()
    compared, difference = replaying.replay(path)
    assert difference is None and compared > 100
    setup, turns = read_recording(path)
    monkeypatch.setattr(replaying, "read_recording", lambda path: (replace(setup, seconds=replace(prior, token=prior.token * 1.1)), turns))
    assert replaying.replay(path)[1] is not None, "the pace decides nothing here"


def test_n9_one_noisy_moment_at_the_start_says_little() -> None:
    """Every second step takes half as long again, the first ones twice."""
    for shift in range(4):
        calls = [0]

        def seconds(counts: Sequence[int], samples: Sequence[int], calls: list[int] = calls, shift: int = shift) -> float:
            calls[0] += 1
            right = SLOW.of(len(samples), 0) if max(counts) == 1 else SLOW.of(1, counts[0] - 1)
            return right * (2.0 if calls[0] < 4 else 1.5 if (calls[0] + shift) % 2 else 1.0)

        found = step_seconds(time_steps(seconds, 16, 64))
        assert found is not None
        assert (found.fixed, found.row, found.token) == pytest.approx((SLOW.fixed, SLOW.row, SLOW.token))


def test_n9_a_breach_of_step_ms_is_told_once_in_ten_seconds(caplog: pytest.LogCaptureFixture) -> None:
    late = LateSteps(60)
    with caplog.at_level(logging.WARNING, "ridgeline.engine"):
        for step in range(300):
            late.apply(StepLate(step, 1000.0 + step / 10, 0.1 + step / 1000, 4, 80 if step < 150 else 0))
    assert [record.getMessage() for record in caplog.records] == ["steps took longer than --step-ms"] * 3
    first, _, last = [record.__dict__["fields"] for record in caplog.records]
    expected = {"steps": 1, "step_ms": 60, "longest_ms": 100, "decode_rows": 4, "prompt_tokens": 80}
    assert {name: first[name] for name in expected} == expected and "fewer tokens" in first["advice"]
    assert last["steps"] == 100 and "raise --step-ms" in last["advice"]


def test_n9_a_breach_is_counted_and_logged_by_a_server(serving: Callable[..., Any]) -> None:
    """X3 too: while a request holds its blocks they are in use, and when all is over they are free, without another step."""
    with serving('fake:{"step_seconds": 0.05, "blocks": 64, "rows": 4}', "--step-ms", "20", "--no-enable-prefix-caching") as server:
        body = {"prompt": "p" * 100, "max_tokens": 6}
        assert httpx.post(f"{server.url}/v1/completions", json=body, timeout=20).status_code == 200
        assert server.metric("ridgeline_late_steps_total") >= 4
        told = re.search(r"steps took longer than --step-ms steps=\d+ step_ms=20 longest_ms=5\d decode_rows=1", server.output())
        assert told, server.output()
        end = time.monotonic() + 5
        while server.metric("ridgeline_kv_blocks_free") != 64:
            assert time.monotonic() < end, "blocks look leaked at idle"
            time.sleep(0.02)
        assert server.metric("vllm:kv_cache_usage_perc") == 0


def test_x3_gauges_are_true_at_idle() -> None:
    """Blocks of the last step are free when its requests are over; an abort while nothing runs frees them too."""
    from ridgeline.core.commands import Abort, Close
    from ridgeline.core.events import Finish
    from ridgeline.observe.metrics import Metrics

    engine, _ = start_engine(EngineConfig('fake:{"blocks": 40, "rows": 4}', max_num_batched_tokens=64), lambda stage, fraction: None)
    metrics = Metrics()

    def turns(*commands: Any) -> tuple[int | None, int]:
        given: Sequence[Any] = commands
        while True:
            turn = engine.turn(given)
            given = ()
            for event in turn.events:
                metrics.apply(event)
            if not turn.progressed:
                return metrics.free_blocks, metrics.cached_blocks

    assert turns() == (40, 0)
    free, cached = turns(Admit(Admitted("a", tuple(range(5, 105)), 4, 1)))
    assert (free, cached) == (len(engine.scheduler.cache.pool.free), len(engine.scheduler.cache.pool.cached)) == (34, 6)
    held, _ = turns(Admit(Admitted("b", tuple(range(200, 300)), 4, 1, two_phase=True)))
    assert held is not None and held < 34 and metrics.running == 1, "an answer that is not closed yet holds its blocks"
    assert sum(filter(None, turns(Close("b", 0, 4, Finish.LENGTH)))) == 40
    turns(Admit(Admitted("c", tuple(range(300, 400)), 4, 1, two_phase=True)))
    assert sum(filter(None, turns(Abort("c")))) == 40 and engine.idle


def test_a3_metrics_count_from_arrival(monkeypatch: pytest.MonkeyPatch) -> None:
    """Time that the front end spends on a prompt is part of time to first token, of the queue and of the whole request."""
    from ridgeline.server import completions
    from ridgeline.server.app import build_app
    from ridgeline.server.service import Service

    tokenise = completions.tokenise

    async def slowly(*given: Any) -> Any:
        await asyncio.sleep(0.3)
        return await tokenise(*given)

    monkeypatch.setattr(completions, "tokenise", slowly)

    async def main() -> None:
        service = Service(EngineConfig('fake:{"rows": 2}'), ServerConfig())
        await service.start()
        try:
            transport = httpx.ASGITransport(app=build_app(service))
            async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8000") as client:
                before = service.metrics.time_to_first_token.sum, service.metrics.queue.sum, service.metrics.end_to_end.sum
                answer = await client.post("/v1/completions", json={"prompt": "hello", "max_tokens": 3})
                assert answer.status_code == 200
                shown = (await client.get("/metrics")).text
            metrics = service.metrics
            after = metrics.time_to_first_token.sum, metrics.queue.sum, metrics.end_to_end.sum
            assert all(0.3 <= late - early < 3 for early, late in zip(before, after, strict=True))
            for name in ("time_to_first_token_seconds", "request_queue_time_seconds", "e2e_request_latency_seconds"):
                found = re.search(rf"^vllm:{name}_sum\S* (\S+)$", shown, re.MULTILINE)
                assert found and float(found[1]) >= 0.3
        finally:
            await service.stop()

    asyncio.run(asyncio.wait_for(main(), 30))


def test_a10_llm_records(tmp_path: Path) -> None:
    path = tmp_path / "llm.recording"
    with LLM('fake:{"rows": 4}', record=str(path)) as llm:
        llm.generate(["one", "two"], SamplingParams(max_tokens=5))
    compared, difference = replaying.replay(path)
    assert difference is None and compared >= 5
    with pytest.raises(ConfigError, match=r"--record .*; give the path of a file that can be written"):
        LLM("fake:{}", record=str(tmp_path / "no" / "folder"))


@pytest.mark.parametrize("runner", ["numpy", "cuda"])
def test_a10_trace_is_refused_where_nothing_is_traced(runner: str) -> None:
    for no_extension in (None, "not built"):
        with pytest.raises(ConfigError, match=rf"--trace .* the {runner} runner writes none") as caught:
            resolve_runner(EngineConfig("m", runner=runner, trace="t"), no_extension=no_extension, no_gpu=None, cpu_cores=2)
        assert caught.value.fix == ({"--runner": "native"} if no_extension is None else {"--trace": None})
    with pytest.raises(ConfigError, match="--trace needs the native runner"):
        LLM("fake:{}", trace="t")


def test_a10_trace_is_written_and_its_path_is_checked_first(tmp_path: Path) -> None:
    path, model = tmp_path / "trace.json", str(write_chat_llama(tmp_path / "random"))
    with LLM(model, trace=str(path), max_model_len=256, max_num_seqs=2) as llm:
        llm.generate(["hello"], SamplingParams(max_tokens=2))
    events = json.loads(path.read_text())
    assert len({event["args"]["step"] for event in events if event["ph"] == "X"}) >= 2
    began = time.monotonic()
    with pytest.raises(ConfigError, match=r"--trace .*; give the path of a file that can be written"):
        LLM(model, trace=str(tmp_path / "no" / "folder"), max_model_len=256)
    assert time.monotonic() - began < 3


def test_a10_as_many_requests_wait_as_the_flag_says() -> None:
    """More than the 4,096 that were let in whatever `--max-num-queued-reqs` said."""
    engine, _ = start_engine(EngineConfig('fake:{"rows": 1}'), lambda stage, fraction: None)
    engine.turn([Admit(Admitted(f"r{number}", (5,), 1, 0)) for number in range(5_000)])
    assert len(engine.scheduler.lifecycle.open) == 4_999
