"""Parts of choices as the engine's outputs come in any order, and the usage that is counted of them."""

import asyncio
import time
from typing import Any

import pytest

from ridgeline.core.commands import Output
from ridgeline.core.events import Closed, Finish, Usage
from ridgeline.core.params import Admitted, SamplingParams
from ridgeline.core.plan import TokenLogprobs
from ridgeline.engine.answer import ChoiceDelta, ChoiceEnd, ChoiceStart
from ridgeline.engine.streams import RequestStream, Wakeup
from ridgeline.observe.ends import AnswerEnds
from ridgeline.server.answer import Idle, Part, UsageCounter, collect
from ridgeline.server.errors import ApiError
from ridgeline.server.generate import Generation
from ridgeline.text.stream import TextDelta
from ridgeline.text.tokenizer import ByteTokenizer

SCORES = (TokenLogprobs(-1.0), TokenLogprobs(-2.0))


class Engine:
    """Answers every request with the same items, with pauses where there is a number of seconds."""

    def __init__(self, *items: Output | Closed | float) -> None:
        self.items = items
        self.aborted: list[str] = []
        self.answering: set[asyncio.Task[None]] = set()

    def submit(self, request: Admitted, wakeup: Wakeup, behind: None) -> RequestStream:
        stream = RequestStream(request, wakeup)
        self.answering.add(asyncio.create_task(self.answer(stream)))
        return stream

    async def answer(self, stream: RequestStream) -> None:
        for item in self.items:
            if isinstance(item, float):
                await asyncio.sleep(item)
            elif isinstance(item, Closed):
                stream.close(item)
            else:
                stream.put(item)

    def send(self, command: Any) -> None:
        pass

    def abort(self, request_id: str) -> None:
        self.aborted.append(request_id)


def closed(choice: int, reason: Finish = Finish.LENGTH, cached: int = 0) -> Closed:
    return Closed("r", choice, reason, Usage(3, 1, cached), 0.0)


def generated(engine: Engine, choices: int, idle: float | None = None, scored: bool = True) -> list[Part]:
    async def run() -> list[Part]:
        asked = 0 if scored else None
        request = Admitted("r", (1, 2, 3), 1, 0, choices, prompt_logprobs=asked)
        generation = Generation(engine, ByteTokenizer(), [request], SamplingParams(max_tokens=1, prompt_logprobs=asked))  # type: ignore[arg-type]
        return [part async for part in generation.parts(idle)]

    return asyncio.run(run())


def test_every_choice_has_the_scores_that_the_first_one_made() -> None:
    early = [Output("r", 1, (65,), end=Finish.LENGTH), closed(1)]
    first = [Output("r", 0, (), prompt_logprobs=SCORES[:1]), Output("r", 0, (), prompt_logprobs=SCORES[1:])]
    last = [Output("r", 0, (66,), end=Finish.LENGTH), closed(0)]
    expected = {0: (None, *SCORES), 1: (None, *SCORES)}
    items: list[Output | Closed]
    for items in ([*early, *first, *last], [*first, *early, *last], [*first, *last, *early], [first[0], *early, first[1], *last]):
        parts = generated(Engine(*items), 2)
        assert {part.index: part.prompt_logprobs for part in parts if isinstance(part, ChoiceStart)} == expected
        for choice in (0, 1):
            kinds = [type(part) for part in parts if not isinstance(part, Idle) and part.index == choice]
            assert kinds == [ChoiceStart, ChoiceDelta, ChoiceEnd]


def test_an_answer_that_is_wanted_whole_wakes_its_reader_at_its_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once for each choice; what is read is the same, and when the first output came is known."""
    items: list[Output | Closed | float] = []
    for token in range(65, 90):
        items += [Output("r", 0, (token,)), Output("r", 1, (token, token + 1)), 0.0]
    items += [Output("r", 1, (65,), end=Finish.LENGTH), closed(1), 0.0, closed(0, Finish.ABORT)]
    items[2] = 0.05
    waits, passed = 0, 0.0

    async def counted_wait(self: Wakeup, seconds: float | None = None) -> bool:
        nonlocal waits
        waits += 1
        return await Wakeup_wait(self, seconds)

    Wakeup_wait = Wakeup.wait
    monkeypatch.setattr(Wakeup, "wait", counted_wait)

    async def read(whole: bool, **more: Any) -> dict[int, str]:
        request = Admitted("r", (1, 2, 3), 50, 0, 2, **more)
        generation = Generation(Engine(*items), ByteTokenizer(), [request], SamplingParams(max_tokens=50))  # type: ignore[arg-type]
        texts = {0: "", 1: ""}
        nonlocal passed
        async for part in generation.parts(whole=whole):
            passed = time.monotonic() - (generation.usage.first_token_at or 0)
            if isinstance(part, ChoiceDelta):
                texts[part.index] += part.delta.text
        return texts

    as_they_come = asyncio.run(read(False))
    one_by_one, waits = waits, 0
    whole = asyncio.run(read(True))
    assert whole == as_they_come and len(whole[0]) == 25 and len(whole[1]) == 51
    assert waits == 2 and one_by_one == 27 and 0.05 <= passed < 60
    waits = 0
    assert asyncio.run(read(True, two_phase=True)) == whole and waits == 27, "who looks for stop strings reads all as it comes"


def test_what_has_come_of_a_whole_answer_counts_though_nobody_waits_for_it() -> None:
    async def run() -> int:
        engine = Engine(*[Output("r", 0, (token,)) for token in range(65, 75)])
        request = Admitted("r", (1, 2, 3), 50, 0)
        generation = Generation(engine, ByteTokenizer(), [request], SamplingParams(max_tokens=50))  # type: ignore[arg-type]
        reading = asyncio.create_task(collect(generation, 1))
        await asyncio.gather(*engine.answering)
        for _ in range(3):
            await asyncio.sleep(0)
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
        return generation.usage.completion_tokens

    assert asyncio.run(run()) == 10


def test_idle_times_are_reported() -> None:
    parts = generated(Engine(0.25, Output("r", 0, (66,), end=Finish.LENGTH), closed(0)), 1, idle=0.1, scored=False)
    assert [type(part) for part in parts] == [Idle, Idle, ChoiceStart, ChoiceDelta, ChoiceEnd]


def test_an_error_of_the_engine_ends_the_generation() -> None:
    with pytest.raises(ApiError, match="the engine ended this request"):
        generated(Engine(Output("r", 0, (66,), end=Finish.ERROR), closed(0, Finish.ERROR)), 1, scored=False)


def test_usage_is_what_the_engine_says_and_each_prompt_counts_once() -> None:
    counter = UsageCounter(2, 6)
    for index in range(4):
        counter.add(ChoiceDelta(index, TextDelta(0, (1, 2, 3))))
    assert counter.completion_tokens == 12
    for index in range(4):
        counter.add(ChoiceEnd(index, Finish.STOP, None, Usage(3, 2, 16)))
    assert (counter.prompt_tokens, counter.completion_tokens, counter.cached_tokens) == (6, 8, 32)


def test_a_wait_is_measured_from_its_own_start_whatever_timer_runs() -> None:
    async def run() -> tuple[list[bool], float]:
        wakeup, loop = Wakeup(), asyncio.get_running_loop()
        loop.call_later(0.15, wakeup.set)
        found = [await wakeup.wait(0.2)]
        began = loop.time()
        found.append(await wakeup.wait(0.2))
        took = loop.time() - began
        wakeup.set()
        found += [await wakeup.wait(0.2), await wakeup.wait(0.01)]
        wakeup.close()
        return found, took

    found, took = asyncio.run(run())
    assert found == [True, False, True, False]
    assert 0.19 < took < 1


def test_answers_that_end_at_once_or_loop_are_counted_and_told(
    site: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends = AnswerEnds()
    monkeypatch.setattr(site.service.metrics, "ends", ends)
    for _ in range(50):
        assert site.complete(prompt="a", allowed_token_ids=[257], max_tokens=64).json()["choices"][0]["finish_reason"] == "stop"
    for number in range(3):
        site.complete(prompt="a", allowed_token_ids=[97], max_tokens=64, stream=number == 1)
    site.complete(prompt="a", allowed_token_ids=[97], max_tokens=64, ignore_eos=True)
    assert (ends.immediate, ends.runaway) == (50, 3)
    assert sum("ended at their first token" in record.message for record in caplog.records) == 1
    text = site.request("GET", "/metrics").text
    assert 'ridgeline_immediate_ends_total{model_name="fake"} 50.0' in text
