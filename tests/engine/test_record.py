"""The simulator takes the decisions of a recorded engine process, given the same commands and results."""

import asyncio
import os
import signal
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from chat_llama import write_chat_llama

from ridgeline.config.groups import EngineConfig
from ridgeline.core.commands import Admit, Command, Output, SetKnob
from ridgeline.core.drafts.kinds import make_drafter
from ridgeline.core.events import Computed
from ridgeline.core.params import Admitted, Limits, Pooling, RowParams, SamplingParams
from ridgeline.core.policy import POLICIES
from ridgeline.core.scheduler import Scheduler
from ridgeline.engine.admit import ModelLimits, admit
from ridgeline.engine.client import EngineClient
from ridgeline.engine.engine import Engine
from ridgeline.engine.record import Recorder, Setup, read_recording
from ridgeline.errors import ConfigError
from ridgeline.sim.clock import VirtualClock
from ridgeline.sim.fleet.replay import read_arrivals, read_step_log, replay
from ridgeline.sim.laws.executor import fake_executor
from ridgeline.sim.laws.model import FakeModel

FAKE = EngineConfig('fake:{"rows": 4, "blocks": 40, "step_seconds": 0.001}', max_num_batched_tokens=24)


async def _drive(config: EngineConfig, prompts: list[tuple[int, ...]], outputs: int) -> None:
    """Requests that come at odd moments, one of which is given up."""
    client = EngineClient(config)
    await client.start()
    try:
        info = (await client.ready()).info
        limits = ModelLimits(info.vocab, info.max_model_len, frozenset(), info.kv)

        async def ask(number: int, prompt: tuple[int, ...]) -> None:
            await asyncio.sleep(0.003 * (number % 5))
            params = SamplingParams(max_tokens=outputs, temperature=0.8, n=1 + number % 2, prompt_logprobs=1 if number % 5 == 0 else None)
            arrived = time.monotonic()
            request = admit(prompt, params, limits, request_id=f"r{number}", draw_seed=lambda: number, arrived=arrived)
            request = replace(request, ttft_ms=number % 3 * 5, itl_ms=number % 2 * 4, tenant=f"t{number % 2}")
            seen = 0
            async for item in client.submit(request):
                seen += isinstance(item, Output)
                if number == 3 and seen == 4:
                    client.abort(request.request_id)

        await asyncio.gather(*(ask(number, prompt) for number, prompt in enumerate(prompts)))
    finally:
        await client.shutdown()


def record(config: EngineConfig, prompts: list[tuple[int, ...]], outputs: int) -> None:
    asyncio.run(asyncio.wait_for(_drive(config, prompts, outputs), 100))


@pytest.mark.parametrize("policy", ["fcfs", "slo"])
def test_a_recording_is_decided_again(tmp_path: Path, policy: str) -> None:
    path = tmp_path / "fake.recording"
    prompts = [(5, 6, 7) * (1 + number % 7) for number in range(24)]
    record(replace(FAKE, record=str(path), scheduling_policy=policy), prompts, 12)
    compared, difference = replay(path)
    assert difference is None and compared > 30
    asked = read_arrivals(path)
    assert len(asked) == 24 and sorted(each.prompt for each in asked) == sorted(map(len, prompts))
    assert sum(each.tokens for each in read_step_log(path)) >= sum(map(len, prompts[:1]))


def test_another_scheduler_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "fake.recording"
    record(replace(FAKE, record=str(path)), [(5, 6, 7) * 9] * 6, 12)
    setup, turns = read_recording(path)
    smaller = replace(setup, limits=replace(setup.limits, token_budget=20))
    monkeypatch.setattr("ridgeline.sim.fleet.replay.read_recording", lambda path: (smaller, turns))
    _, difference = replay(path)
    assert difference is not None


def test_a_model_that_computes_is_decided_again(tmp_path: Path) -> None:
    """Weights, a real process with a pace, prompts of several lengths with a shared beginning, targets."""
    path, model = tmp_path / "random.recording", write_chat_llama(tmp_path / "random")
    prompts = [(2, *range(100, 100 + 8 * (1 + number)), 50 + number) for number in range(6)]
    limits = {"max_num_seqs": 4, "max_num_batched_tokens": 32, "kv_cache_memory_bytes": 64 << 20, "max_model_len": 256}
    record(EngineConfig(str(model), **limits, record=str(path), scheduling_policy="slo"), prompts, 6)
    compared, difference = replay(path)
    assert difference is None and compared >= 10


def test_an_engine_that_starts_again_has_a_recording_of_its_own(tmp_path: Path) -> None:
    """Both are decided again; the second begins with the request that goes on."""
    path = tmp_path / "fake.recording"

    async def main() -> None:
        client = EngineClient(replace(FAKE, record=str(path)))
        await client.start()
        try:
            info = (await client.ready()).info
            limits = ModelLimits(info.vocab, info.max_model_len, frozenset(), info.kv)
            stream = client.submit(admit((5, 6, 7), SamplingParams(max_tokens=300), limits, request_id="a", draw_seed=lambda: 7))
            await anext(stream)
            assert client.pid is not None
            os.kill(client.pid, signal.SIGKILL)
            assert [item async for item in stream] and stream.continued == 1
        finally:
            await client.shutdown()

    asyncio.run(asyncio.wait_for(main(), 60))
    for file in (path, tmp_path / "fake.recording.restart-1"):
        compared, difference = replay(file)
        assert difference is None and compared > 0


def test_what_is_no_recording_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "other"
    path.write_bytes(b"something else")
    with pytest.raises(ConfigError, match="not a recording"):
        replay(path)


def test_a_recording_that_is_cut_off_ends_early(tmp_path: Path) -> None:
    path = tmp_path / "fake.recording"
    record(replace(FAKE, record=str(path)), [(5, 6, 7)] * 3, 5)
    whole, _ = replay(path)
    path.write_bytes(path.read_bytes()[:-7])
    part, difference = replay(path)
    assert difference is None and 0 < part <= whole


@pytest.mark.parametrize(("name", "plans"), [("fake", 20), ("demo", 20)])
def test_a_recording_of_version_2_is_decided_as_it_was(name: str, plans: int) -> None:
    """Made before plans said which positions are scored; the fake one is cut off in the middle of a turn."""
    path = Path(__file__).with_name("recordings") / f"{name}.2.recording"
    compared, difference = replay(path)
    assert difference is None and compared >= plans
    assert len(read_step_log(path)) >= plans and len(read_arrivals(path)) >= 6


class Periodic(FakeModel):
    """Says the same thing again and again, mostly."""

    def sample(self, stamp: int, params: RowParams, position: int, past: Sequence[int] | None = None) -> int:
        return self.alphabet[position % 11] if hash((stamp, position)) % 9 else 200


@pytest.mark.parametrize("kind", ["ngram", "suffix", "draft", "auto"])
def test_drafts_are_decided_again(tmp_path: Path, kind: str) -> None:
    """Their depth depends on what steps took, on what a draft model drafted, and on knobs, which are recorded."""
    path = tmp_path / "drafts.recording"
    executor = fake_executor(model=Periodic(), step_seconds=2e-3, token_seconds=2e-5, rows=4, draft_blocks=64)
    limits, price = Limits(rows=4, samples=64, depth=2), ((1, 1, 2e-3), (2, 2, 2.1e-3), (8, 8, 3e-3))
    cache = executor.info.drafts
    setup = Setup(limits, executor.info.kv, "fcfs", 4, 4, price, speculative=kind, draft_cache=cache)
    recorder = Recorder(executor, path, setup)
    scheduler = Scheduler(limits, executor.info.kv, POLICIES["fcfs"], make_drafter(kind, 4, price, True, cache))
    engine, drafted = Engine(scheduler, recorder, VirtualClock(), 2), 0
    commands: list[Command] = [Admit(Admitted(f"r{number}", (5, 6) * 4, 99, number)) for number in range(3)]
    turns, knobs = 0, {20: 0, 30: 2, 50: 4}
    while commands or not engine.idle:
        recorder.begin(commands)
        turn = engine.turn(commands)
        recorder.end(turn)
        turns += 1
        commands = [SetKnob("num_speculative_tokens", knobs[turns])] if turns in knobs else []
        drafted += sum(event.drafted for event in turn.events if isinstance(event, Computed))
    recorder.close()
    compared, difference = replay(path)
    assert difference is None and compared > 20 and drafted > (5 if kind == "draft" else 100)


def test_texts_that_become_vectors_are_decided_again(tmp_path: Path) -> None:
    """Beside an answer; the plans say whose text ends, the vectors themselves are not kept."""
    path = tmp_path / "texts.recording"
    executor = fake_executor(rows=4)
    limits = Limits(rows=4, token_budget=8, depth=2)
    recorder = Recorder(executor, path, Setup(limits, executor.info.kv, "fcfs", 4))
    engine = Engine(Scheduler(limits, executor.info.kv, POLICIES["fcfs"]), recorder, VirtualClock(), 2)
    texts = [Admitted(f"t{number}", (5, 6, 7) * (1 + number), 0, 1, pooling=Pooling()) for number in range(4)]
    commands: list[Command] = [Admit(each) for each in (Admitted("g", (5, 6), 6, 1), *texts)]
    while commands or not engine.idle:
        recorder.begin(commands)
        recorder.end(engine.turn(commands))
        commands = []
    recorder.close()
    compared, difference = replay(path)
    assert difference is None and compared >= 6
    lines = [line for turn in read_recording(path)[1] for line in turn.decisions]
    assert sum(" pool [" in line for line in lines) in range(1, 5)
