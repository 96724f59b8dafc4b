"""Rows, step inputs and the order of steps, against a runner whose next token is a function of the ids that it finds in the KV blocks."""

from array import array
from collections.abc import Sequence
from dataclasses import replace
from threading import current_thread, main_thread
from types import SimpleNamespace

import numpy as np
import pytest

from ridgeline.compute.decoding.edits import History
from ridgeline.compute.decoding.sampler import Sampled, accept, score
from ridgeline.compute.exact.cache import KVCache, allocate_kv
from ridgeline.compute.graph import StepInputs
from ridgeline.compute.runner import finite_tokens
from ridgeline.compute.runtime.executor import StepExecutor
from ridgeline.compute.runtime.queue import QueueBackend
from ridgeline.core.params import RowParams, Sampling
from ridgeline.core.plan import LAST, KVGroup, KVShape, NewRow, Plan, Result, SlotFill, TokenLogprobs
from ridgeline.engine.executor import ExecutorInfo, Ticket
from ridgeline.facts.model import CachedHeads

VOCAB = 97
WINDOW = 6


def following(context: Sequence[int]) -> int:
    """The token that comes after `context`."""
    full = sum((place + 1) * (token + 1) for place, token in enumerate(context))
    return (full + 31 * sum(context[-WINDOW:])) % VOCAB


class ContextRunner:
    """Writes ids as keys, reads them back through the tables, and predicts `following`; NaN wherever an id is `bad`."""

    trace = None

    def __init__(self, shape: KVShape, bad: int = -2) -> None:
        self.shape = shape
        self.bad = bad
        self.seen: list[StepInputs] = []

    def run(
        self, inputs: StepInputs, kv: KVCache, taps: Sequence[str] = (), *, keep: np.ndarray | None = None, masks: object = None
    ) -> dict[str, np.ndarray]:
        assert taps == (), "no prompt is scored here"
        self.seen.append(inputs)
        size = self.shape.block_tokens
        keys, _ = kv.layer(0)
        for slots in inputs.slots:
            keys[slots, 0, 0] = inputs.ids
        logits = np.zeros((len(inputs.select), VOCAB), np.float32)
        for index, token in enumerate(inputs.select):
            row, end = inputs.row_of_token[token], int(inputs.positions[0, token]) + 1
            read = []
            for number, group in enumerate(self.shape.groups):
                first = max(0, end - group.window) if group.window else 0
                places = np.arange(first, end)
                block_ids = inputs.tables[number][row, places // size]
                assert block_ids.min() > 0, "block 0 is read"
                read.append(keys[block_ids * size + places % size, 0, 0].astype(int).tolist())
            full, window = read
            assert full[-len(window) :] == window
            logits[index, following(full)] = 1
        states = np.where(inputs.ids == self.bad, np.float32(np.nan), np.float32(0))[:, None].repeat(3, axis=1)
        return {"logits": logits, "finite": finite_tokens(states)}

    def logits(self, hidden: np.ndarray) -> np.ndarray:
        raise AssertionError("no prompt is scored here")

    def close(self) -> None:
        self.closed = True


def greedy(
    logits: np.ndarray,
    params: Sequence[RowParams],
    drafts: Sequence[Sequence[int]],
    positions: Sequence[int],
    histories: Sequence[History | None],
    finite: np.ndarray | None = None,
    maxima: None = None,
    masks: None = None,
) -> Sampled:
    assert len(positions) == len(histories) == len(params) == len(drafts)
    ids = accept(logits.argmax(axis=1).tolist(), drafts, histories, finite)
    asked = [row.sampling.logprobs is not None for row in params]
    return Sampled(ids, [(TokenLogprobs(-0.5),) * len(each) if wanted else None for each, wanted in zip(ids, asked, strict=True)])


def make_executor(block_tokens: int = 4, blocks: int = 400, rows: int = 4, bad: int = -2) -> tuple[StepExecutor, ContextRunner]:
    groups = (KVGroup("full", (1,)), KVGroup("window", (0,), WINDOW))
    shape = KVShape(groups, block_tokens, blocks, b"test")
    info = ExecutorInfo(shape, VOCAB, 120, rows, "context", 0, 0)
    runner = ContextRunner(shape, bad)
    backend = QueueBackend(runner, allocate_kv(shape, CachedHeads(1, 2)), shape, greedy, score, rows=rows, vocab=VOCAB)
    return StepExecutor(info, (), backend), runner


STANDING = -1
"""As a start: where the row stands in these tests."""


def params(prompt: Sequence[int], logprobs: int | None = None) -> RowParams:
    return RowParams(0, 0, len(prompt), Sampling(temperature=0.0, logprobs=logprobs))


def new_row(row: int, ids: Sequence[int], first_block: int, blocks: int, prompt: int | None = None) -> NewRow:
    tables = tuple(tuple(range(first_block + group * blocks, first_block + (group + 1) * blocks)) for group in range(2))
    return NewRow(row, 100 + row, params(ids[:prompt]), tuple(ids), tables)


def plan(step: int, spans: Sequence[tuple[int, int, Sequence[int], bool]], new: Sequence[NewRow] = (), freed: Sequence[int] = ()) -> Plan:
    """A plan from (row, start, tokens, samples)."""
    return Plan(
        step=step,
        row=array("i", [row for row, _, _, _ in spans]),
        start=array("i", [start for _, start, _, _ in spans]),
        count=array("i", [len(tokens) for _, _, tokens, _ in spans]),
        tokens=array("i", [token for _, _, tokens, _ in spans for token in tokens]),
        sample=bytearray(samples for _, _, _, samples in spans),
        new_rows=tuple(new),
        freed_rows=tuple(freed),
    )


def drive(executor: StepExecutor, plans: Sequence[Plan], depth: int) -> list[Result]:
    """Submits ahead by `depth` steps, collects in order."""
    waiting: list[Ticket] = []
    results = []
    ends: dict[int, int] = {}
    for each in plans:
        for index, row in enumerate(each.row):
            if each.start[index] == STANDING:
                each.start[index] = ends[row]
            ends[row] = each.start[index] + each.count[index]
        waiting.append(executor.submit(each))
        if len(waiting) == depth:
            results.append(executor.collect(waiting.pop(0)))
    return results + [executor.collect(ticket) for ticket in waiting]


def continued(prompt: Sequence[int], outputs: int) -> list[int]:
    ids = list(prompt)
    for _ in range(outputs):
        ids.append(following(ids))
    return ids


@pytest.mark.parametrize("depth", [1, 2, 3, 4])
@pytest.mark.parametrize("chunk", [1, 3, 11])
@pytest.mark.parametrize("block_tokens", [1, 4, 16])
def test_a_row_alone(depth: int, chunk: int, block_tokens: int) -> None:
    """A prompt in chunks, then one token per step planned before the one before it is known."""
    prompt = [5, 1, 88, 4, 4, 60, 7, 9, 2, 33, 20]
    executor, _ = make_executor(block_tokens)
    chunks = [prompt[i : i + chunk] for i in range(0, len(prompt), chunk)]
    first = new_row(0, prompt, 1, -(-40 // block_tokens))
    plans = [plan(0, [(0, 0, chunks[0], len(chunks) == 1)], [first])]
    plans += [plan(i, [(0, STANDING, c, i + 1 == len(chunks))]) for i, c in enumerate(chunks) if i]
    plans += [plan(len(chunks) + i, [(0, STANDING, [LAST], True)]) for i in range(9)]
    results = drive(executor, plans, depth)
    assert [r.step for r in results] == list(range(len(plans)))
    sampled = [token for result in results for token in result.sampled[0]]
    assert prompt + sampled == continued(prompt, 10)


@pytest.mark.parametrize("depth", [1, 4])
def test_rows_do_not_see_each_other(depth: int) -> None:
    """Four rows join one after the other; a chunk, a decode and a row that does not sample share a step."""
    prompts = [[row * 7 + i * 3 + 1 for i in range(4 + 3 * row)] for row in range(4)]
    executor, _ = make_executor()
    plans = []
    for step in range(12):
        spans: list[tuple[int, int, Sequence[int], bool]] = []
        new = []
        for row in reversed(range(4)):
            if step == row:
                new.append(new_row(row, prompts[row], 1 + 40 * row, 10))
                spans.append((row, 0, prompts[row][:2], False))
            elif step == row + 1:
                spans.append((row, 2, prompts[row][2:], True))
            elif step > row + 1:
                spans.append((row, STANDING, [LAST], True))
        plans.append(plan(step, spans, new))
    found: dict[int, list[int]] = {row: list(prompt) for row, prompt in enumerate(prompts)}
    for each, result in zip(plans, drive(executor, plans, depth), strict=True):
        assert list(result.finite) == [1] * len(each.row)
        for row, tokens, samples in zip(each.row, result.sampled, each.sample, strict=True):
            assert len(tokens) == samples
            found[row].extend(tokens)
    assert found == {row: continued(prompt, 11 - row) for row, prompt in enumerate(prompts)}


def test_resumption_continues_the_value() -> None:
    """A preempted sequence comes back in another row and other blocks with all its ids; then a cached prefix is not computed again."""
    prompt = [3, 14, 15, 92, 65, 35]
    whole = continued(prompt, 8)
    executor, runner = make_executor()
    steps = [plan(0, [(0, 0, prompt, True)], [new_row(0, prompt, 1, 8)])]
    steps += [plan(i, [(0, STANDING, [LAST], True)]) for i in (1, 2)]
    again = new_row(2, whole[:9], 60, 8, prompt=6)
    steps += [plan(3, [(2, 0, whole[:9], True)], [again], freed=[0])]
    shared = NewRow(0, 7, params(prompt), tuple(whole[:10]), again.tables)
    steps += [plan(4, [(0, 8, whole[8:10], True), (2, STANDING, [LAST], True)], [shared])]
    results = drive(executor, steps, 2)
    assert [r.sampled for r in results[:4]] == [((whole[i],),) for i in (6, 7, 8, 9)]
    assert results[4].sampled == ((whole[10],), (whole[10],))
    assert runner.seen[4].kv_len.tolist() == [10, 10]


def test_blocks_grow_and_pages_behind_the_window_are_not_read() -> None:
    prompt = list(range(1, 21))
    executor, _ = make_executor(block_tokens=4)
    full, window = tuple(range(1, 6)), (0, 0, 0, 50, 51)
    resumed = NewRow(1, 1, params(prompt), tuple(prompt), (full, window))
    backend = executor.backend
    assert isinstance(backend, QueueBackend)
    keys, _ = backend._kv.layer(0)
    keys[4 : 4 + 18, 0, 0] = prompt[:18]  # a warm cache: blocks 1 … of the full group, from block 50 on of the other
    keys[200 : 200 + 6, 0, 0] = prompt[12:18]
    first = plan(0, [(1, 18, prompt[18:], True)], [resumed])
    second = plan(1, [(1, STANDING, [LAST], True)])
    second = Plan(**{**{f: getattr(second, f) for f in second.__slots__}, "blocks": ((1, 0, 5, (6,)), (1, 1, 5, (52,)))})
    results = drive(executor, [first, second], 2)
    assert [r.sampled[0][0] for r in results] == continued(prompt, 2)[20:]


def test_finite_looks_at_every_token() -> None:
    """A NaN in a chunk that does not sample is reported, for its row alone."""
    executor, _ = make_executor(bad=66)
    rows = [new_row(0, [1, 66, 3, 4], 1, 4), new_row(1, [1, 2, 3], 30, 4), new_row(3, [66], 60, 4)]
    step = plan(0, [(0, 0, [1, 66, 3], False), (1, 0, [1, 2, 3], True), (3, 0, [66], True)], rows)
    (result,) = drive(executor, [step], 1)
    assert list(result.finite) == [0, 1, 0]
    assert result.sampled[0] == ()


def test_logprobs_are_row_for_row() -> None:
    executor, _ = make_executor()
    asks = NewRow(1, 1, params([4, 5], logprobs=2), (4, 5), ((30,), (31,)))
    step = plan(0, [(0, 0, [1, 2], True), (1, 0, [4, 5], True)], [new_row(0, [1, 2], 1, 4), asks])
    (result,) = drive(executor, [step], 1)
    assert result.logprobs == (None, (TokenLogprobs(-0.5),))
    (result,) = drive(executor, [plan(1, [(0, 2, [LAST], True)])], 1)
    assert result.logprobs is None
    assert result.timings.run > 0


def test_order_is_kept() -> None:
    executor, _ = make_executor()
    first = executor.submit(plan(0, [(0, 0, [1], True)], [new_row(0, [1], 1, 4)]))
    second = executor.submit(plan(1, [(0, 1, [LAST], True)]))
    with pytest.raises(RuntimeError, match="step 1 is not the oldest"):
        executor.collect(second)
    executor.collect(first)
    with pytest.raises(RuntimeError, match="step 2 is empty"):
        executor.submit(plan(2, []))
    executor.close()
    executor.close()
    with pytest.raises(RuntimeError, match="not the oldest"):
        executor.collect(second)


def test_misplaced_rows_are_refused() -> None:
    executor, _ = make_executor()
    with pytest.raises(RuntimeError, match="row 2 is planned and not resident"):
        drive(executor, [plan(0, [(2, 0, [1], True)])], 1)
    executor, _ = make_executor()
    with pytest.raises(RuntimeError, match="given to two sequences"):
        drive(executor, [plan(0, [(0, 0, [1], True)], [new_row(0, [1], 1, 4), new_row(0, [1], 9, 4)])], 1)


@pytest.mark.parametrize("place", [None, 0, 1, 2, 3, 4])
@pytest.mark.parametrize("right", [0, 1, 2, 3])
def test_a_walk_ends_before_the_first_position_that_is_not_finite(place: int | None, right: int) -> None:
    """Three drafts, of which `right` are; the tokens at place 0 … 4 of the row (a known one, the one before the drafts, drafts) are NaN
    from there on. A second row has nothing of it."""
    prompt = [5, 1, 88, 4]
    coming = continued(prompt, 4)[4:]
    drafts = [token if number < right else (token + 1) % VOCAB for number, token in enumerate(coming[:3])]
    tokens = [*prompt[2:], *drafts]
    executor, runner = make_executor(rows=2)
    drive(executor, [plan(0, [(0, 0, prompt[:2], 0), (1, 0, [3, 4], 0)], [new_row(0, prompt, 1, 6), new_row(1, [3, 4, 5], 40, 6)])], 1)
    if place is not None:
        finite = [token != place for token in range(len(tokens))]
        run = runner.run
        runner.run = lambda *given, **named: run(*given, **named) | {"finite": np.array([*finite, True])}  # type: ignore[method-assign]
    (result,) = drive(executor, [plan(1, [(0, 2, tokens, 4), (1, 2, [5], 1)])], 1)
    sound = 4 if place is None else max(0, place - 1)  # sampling positions before the first that is not
    walked = min(right + 1, sound)
    assert result.sampled == (tuple(coming[:walked]), (following([3, 4, 5]),))
    assert list(result.finite) == [right + 1 <= sound, 1]


def test_the_last_id_is_that_of_the_walk() -> None:
    """What a row samples last is what its next step finds, not what it sampled behind a draft that was wrong."""
    prompt = [5, 1, 88, 4]
    coming = continued(prompt, 3)[4:]
    executor, _ = make_executor()
    first = plan(0, [(0, 0, [*prompt, coming[0], (coming[1] + 1) % VOCAB, 9], 4)], [new_row(0, prompt, 1, 6)])
    (result,) = drive(executor, [first], 1)
    assert result.sampled == (tuple(coming[:2]),)
    (result,) = drive(executor, [plan(1, [(0, 5, [LAST], 1)])], 1)
    assert result.sampled == ((coming[2],),)


def test_adapters_of_a_step_are_found_when_it_is_taken() -> None:
    """On the engine's thread: before the step runs, its adapter may be forgotten."""
    executor, runner = make_executor()
    filled: list[tuple[int, object]] = []

    def get(digest: bytes) -> object:
        assert current_thread() is main_thread()
        return digest

    executor.backend._adapters = SimpleNamespace(get=get)  # type: ignore[attr-defined]
    runner.adapters = SimpleNamespace(fill=lambda slot, adapter: filled.append((slot, adapter)))  # type: ignore[attr-defined]
    step = plan(0, [(0, 0, [1, 2], True)], [new_row(0, [1, 2], 1, 1)])
    drive(executor, [replace(step, fills=(SlotFill(1, b"one"),))], 1)
    assert filled == [(1, b"one")]
