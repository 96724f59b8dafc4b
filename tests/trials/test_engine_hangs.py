"""X1: an engine that hangs is noticed within 10 s and replaced by one that goes on; a long step that moves is no hang."""

import asyncio
import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from threading import Thread
from typing import Any

import httpx
import pytest
from native import NativeDriver
from tiny import Driver, open_tiny

from ridgeline.compute.cpu import ext
from ridgeline.compute.cpu.packing import pack_weights
from ridgeline.compute.cuda.device import interpreted
from ridgeline.compute.cuda.graphs import MARKS, Marks
from ridgeline.config.groups import EngineConfig
from ridgeline.core.commands import Output
from ridgeline.core.params import SamplingParams
from ridgeline.engine.admit import ModelLimits, admit
from ridgeline.engine.client import CHECKS_PER_TIMEOUT, EngineClient
from ridgeline.engine.process import BEATS_PER_TIMEOUT

LONG = 512


def test_x1_a_hang_is_noticed_in_time_for_the_next_token_within_ten_seconds() -> None:
    """The watch kills an engine at its first check behind `step_timeout_seconds` without a beat, at the end of a period in which it
    may look several times; 3 s are left for the next engine's start."""
    assert EngineConfig("m").step_timeout_seconds * (1 + 1 / CHECKS_PER_TIMEOUT) < 7 and BEATS_PER_TIMEOUT > CHECKS_PER_TIMEOUT


@pytest.mark.night
@pytest.mark.alone
def test_x1_a_real_engine_that_is_stopped_is_replaced_and_a_long_step_is_not(demo_file: Path) -> None:
    """A prompt that takes longer than the timeout in one step is answered; SIGSTOP in the middle of an answer is noticed, and the
    next engine goes on with the ids that would have come, drawn by seed at a temperature of 1, within 10 s where a start takes few."""

    async def main() -> None:
        sizes = {"max_model_len": 4096, "max_num_seqs": 2, "max_num_batched_tokens": 2304, "threads": 1}
        config = EngineConfig(str(demo_file), **sizes, step_timeout_seconds=1.5)
        client, began = EngineClient(config), time.monotonic()
        await client.start()
        try:
            info = (await client.ready()).info
            start_seconds = time.monotonic() - began
            limits = ModelLimits(info.vocab, info.max_model_len, frozenset(), info.kv)

            def asked(name: str, prompt: int, tokens: int) -> Any:
                return admit(tuple(range(5, 5 + prompt)), SamplingParams(max_tokens=tokens), limits, request_id=name, draw_seed=lambda: 1)

            began = time.monotonic()
            assert [item async for item in client.submit(asked("long", 2304, 1))]
            assert time.monotonic() - began > 1.8 and client.starts == 1, "the step is too short to tell"
            undisturbed = [item async for item in client.submit(asked("undisturbed", 8, 40))]
            stream, read = client.submit(asked("a", 8, 40)), list[int]()
            while len(read) < 7:
                read += (await anext(stream)).ids
            assert client.pid is not None
            os.kill(client.pid, signal.SIGSTOP)
            stopped = time.monotonic()
            read += (await anext(stream)).ids
            while client.starts == 1 or not client.is_ready:
                await asyncio.sleep(0.01)
            assert time.monotonic() - stopped < 5 + 2 * start_seconds
            read += [token async for item in stream if isinstance(item, Output) for token in item.ids]
            assert read == [token for item in undisturbed if isinstance(item, Output) for token in item.ids] and len(read) == 40
            assert stream.continued == 1 and client.last_failure is not None and "has not moved for 1.5 s" in client.last_failure
        finally:
            await client.shutdown()

    asyncio.run(asyncio.wait_for(main(), 150))


@pytest.mark.alone
def test_x1_answers_of_a_stopped_engine_go_on(serving: Callable[..., Any]) -> None:
    """Streams and whole answers are those that they would have been; the log says why they took longer."""

    async def main(server: Any) -> None:
        async with httpx.AsyncClient(base_url=server.url, timeout=20) as client:
            body = {"prompt": "p", "max_tokens": 60, "seed": 5}

            async def stream() -> str:
                async with client.stream("POST", "/v1/completions", json=body | {"stream": True}) as answer:
                    events = [line[6:] async for line in answer.aiter_lines() if line]
                assert events[-1] == "[DONE]"
                return "".join(json.loads(each)["choices"][0]["text"] for each in events[:-1])

            asked = [asyncio.create_task(stream()) for _ in range(3)]
            whole = asyncio.create_task(client.post("/v1/completions", json=body))
            while server.metric("vllm:num_requests_running") < 4:
                await asyncio.sleep(0.02)
            os.kill(server.engine_pid(), signal.SIGSTOP)
            stopped = time.monotonic()
            texts = [*await asyncio.gather(*asked), (await whole).json()["choices"][0]["text"]]
            assert time.monotonic() - stopped < 10
            again = await client.post("/v1/completions", json=body)
            assert texts == [again.json()["choices"][0]["text"]] * 4

    with serving('fake:{"step_seconds": 0.01}', "--step-timeout", "1") as server:
        asyncio.run(asyncio.wait_for(main(server), 60))
        assert "the engine hung: its executor has not moved for 1 s" in server.output()


def beats_within(step: Callable[[], object], beat: Callable[[], int]) -> int:
    """Different values of `beat`, read by another thread while a step runs."""
    seen: set[int] = set()
    thread = Thread(target=step)
    thread.start()
    while thread.is_alive():
        seen.add(beat())
        time.sleep(0.0002)
    thread.join()
    return len(seen)


def test_x1_a_step_of_the_native_runner_moves(demo_file: Path) -> None:
    if not ext.isa_levels():
        pytest.skip(f"native extension not built: {ext.lost()}")
    from ridgeline.facts.headers.read import read_model_facts

    facts = read_model_facts(demo_file)
    driver = NativeDriver(facts, pack_weights(facts, 1, lambda stage, fraction: None), blocks=512, tokens=LONG)
    driver.step((0, range(5, 9)), select=[3])
    assert beats_within(lambda: driver.step((1, range(5, 5 + LONG)), select=[LONG - 1]), driver.runner.beat) > 20
    still = driver.runner.beat()
    time.sleep(0.01)
    assert driver.runner.beat() == still, "it beats only while it computes"


def test_x1_a_step_of_the_numpy_runner_moves(tmp_path: Path) -> None:
    driver = Driver(*open_tiny(tmp_path / "tiny.gguf"), threads=2)
    assert beats_within(lambda: driver.step((0, range(5, 200))), driver.runner.beat) > 5
    still = driver.runner.beat()
    time.sleep(0.01)
    assert driver.runner.beat() == still


def test_x1_a_large_step_of_a_gpu_moves_layer_by_layer() -> None:
    """Marks count when they are placed and when the device has passed them; where it is far behind they are used again."""

    class Event:
        def __init__(self) -> None:
            self.passed = True

        def record(self) -> None:
            self.passed = False

        def query(self) -> bool:
            return self.passed

        def synchronize(self) -> None: ...

    events: list[Event] = []

    def event() -> Event:
        events.append(Event())
        return events[-1]

    marks = Marks(event)
    assert marks.count() == 0 and len(events) == MARKS
    for _ in range(3):
        marks.place()
    assert marks.count() == 3
    events[0].passed = True
    assert marks.count() == 4
    events[1].passed = events[2].passed = True
    assert marks.count() == 6 == marks.count()
    host = Marks(lambda: interpreted(1 << 20).event())
    host.place()
    assert host.count() == 2
