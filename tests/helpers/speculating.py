"""The engine with a drafter that knows the answers, and random requests whose answers show every bit: speculation must change none."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from ridgeline.compute.cpu.cache import NativeKVCache
from ridgeline.compute.exact.cache import KVCache
from ridgeline.compute.graph import StepInputs
from ridgeline.core import scheduler
from ridgeline.core.drafts.depth import Offer
from ridgeline.core.events import Computed
from ridgeline.core.params import Admitted, Sampling
from ridgeline.core.plan import DraftSpan, Plan, Result
from ridgeline.core.sequence import Sequence as Running
from ridgeline.core.thinking import ReasoningMarks, Thinking
from ridgeline.engine.engine import Engine

RIGHT, HALF, WRONG, NONE = range(4)
Answers = Mapping[tuple[str, int], tuple[int, ...]]


@dataclass
class Scripted:
    """Implements `core.drafts.drafter.Drafter`: drafts that are right, right up to a random place, wrong from the first on, or none.

    answers  what will come of each (request, choice); behind their ends drafts are random
    most     ids per draft
    """

    answers: Answers
    draw: Random
    most: int
    vocab: int
    drafted: int = 0
    accepted: int = 0

    def should_wait(self, running: list[Running]) -> bool:
        return self.draw.random() < 0.9

    def outlook(self, running: list[Running]) -> None:
        """None: it weighs nothing."""

    def runs_ahead(self, sequences: list[Running]) -> bool:
        return False

    def propose(self, rows: list[tuple[Running, int]], tokens: int, most: int) -> list[tuple[int, ...]]:
        return [self._draft(sequence, room) for sequence, room in rows]

    def spans(self, rows: list[Running], tokens: int) -> tuple[DraftSpan, ...]:
        return ()

    def on_commit(self, sequences: list[Running], plan: Plan, result: Result) -> None:
        for samples, ids in zip(plan.sample, result.sampled, strict=True):
            self.drafted += max(0, samples - 1)
            self.accepted += max(0, len(ids) - 1)

    def _draft(self, sequence: Running, room: int) -> tuple[int, ...]:
        answer = self.answers[sequence.request.request_id, sequence.choice]
        manner, known = self.draw.choice((RIGHT, RIGHT, HALF, WRONG, NONE)), len(sequence.known)
        count = 0 if manner == NONE else self.draw.randint(1, self.most)
        right = {RIGHT: count, HALF: self.draw.randint(0, count), WRONG: 0, NONE: 0}[manner]
        done = known - len(sequence.request.prompt)
        coming = [*answer[done : done + count], *(self.draw.randrange(self.vocab) for _ in range(count))][:count]
        return tuple(token if place < right else (token + 1 + self.draw.randrange(9)) % self.vocab for place, token in enumerate(coming))


class Planted:
    """A runner whose tokens are not finite where `bad` of a step's inputs says so [T]: it reports it, and their logits, K and V are NaN."""

    def __init__(self, runner: Any, bad: Callable[[StepInputs], NDArray[np.bool_]]) -> None:
        self._runner, self._bad = runner, bad

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runner, name)

    def run(self, inputs: StepInputs, kv: Any, taps: Sequence[str] = (), **needed: Any) -> dict[str, Any]:
        values = dict(self._runner.run(inputs, kv, taps, **needed))
        bad = self._bad(inputs)
        values["finite"] = values["finite"] & ~bad
        for name in {"logits", "maxima"} & set(values):
            values[name][bad[inputs.select]] = np.nan
        for slots in inputs.slots:
            spoil(kv, slots[bad])
        return values


def spoil(kv: NativeKVCache | KVCache, slots: NDArray[np.int64]) -> None:
    """Makes K and V of some slots NaN in every layer."""
    if isinstance(kv, KVCache):
        kv.pool[:, :, slots] = np.nan
    else:
        nothing = {"f32": np.nan, "bf16": 0x7FC0, "int8": -1}[kv.type]  # a scale of which all bits are set is NaN
        size = kv.pool.shape[4]
        kv.pool[:, :, slots // size, :, slots % size] = nothing


def plant(engine: Engine, bad: Callable[[StepInputs], NDArray[np.bool_]]) -> None:
    """Lets an engine's runner be `Planted`."""
    backend: Any = engine.executor.backend  # type: ignore[attr-defined]
    backend._runner = Planted(backend._runner, bad)


def request(number: int, draw: Random, vocab: int) -> Admitted:
    """Greedy or sampled; each option of the sampler now and then; prompts of which many share a beginning."""
    few = [draw.randrange(4, vocab) for _ in range(8)]
    shared = [Random(draw.randrange(3)).randrange(4, vocab) for _ in range(draw.choice((0, 0, 8, 21)))]
    prompt = (*shared, *(draw.randrange(4, vocab) for _ in range(draw.randint(1, 9))))

    def now_and_then(value: Any, other: Any, share: float = 0.2) -> Any:
        return value if draw.random() < share else other

    narrow = tuple(sorted({draw.randrange(4, vocab) for _ in range(12)}))
    sampling = Sampling(
        temperature=draw.choice((0.0, 0.0, 0.7, 1.0, 1.0, 2.0, 4.0)),
        top_k=now_and_then(draw.choice((1, 3, 40)), 0, 0.4),
        top_p=now_and_then(0.8, 1.0),
        min_p=now_and_then(0.05, 0.0),
        presence_penalty=now_and_then(1.5, 0.0),
        frequency_penalty=now_and_then(0.7, 0.0),
        repetition_penalty=now_and_then(1.6, 1.0),
        logit_bias=now_and_then(((few[0], 4.0), (few[1], -50.0)), ()),
        allowed_ids=now_and_then(narrow, None),
        bad_words=now_and_then((*((first, second) for first in narrow for second in narrow[::3]), (few[2],)), ()),
        logprobs=draw.choice((None, None, 0, 3)),
    )
    if sampling.allowed_ids is None and draw.random() < 0.2:
        marks = ReasoningMarks(2, ((0, few[3], 1), (1, few[4], 2)))
        close = (*few[5:7], few[3], few[4])[draw.randrange(3) :]
        sampling = replace(sampling, thinking=Thinking(marks, True, draw.randint(0, 9), close, 2))
    stops = frozenset(now_and_then({*narrow[:4], *draw.sample(range(vocab), 20)}, set(), 0.5))
    return Admitted(
        f"r{number}",
        prompt,
        max_tokens=draw.choice((1, 2, draw.randint(3, 30), draw.randint(12, 30))),
        seed=draw.getrandbits(62),
        choices=now_and_then(2, 1, 0.1),
        sampling=sampling,
        min_tokens=now_and_then(draw.randint(1, 12), 0, 0.4) if stops else 0,
        stop_ids=stops,
        prompt_logprobs=now_and_then(2, None, 0.15),
    )


def settings(draw: Random, runner: str) -> dict[str, object]:
    """How a load is served: small steps, small pools, every type of cache that the runner has."""
    kind = draw.choice(("bf16", "f32", "int8"))
    return {
        "runner": runner,
        "kv_dtype": kind if runner == "native" else "f32",
        "threads": draw.choice((1, 2)),
        "block_size": draw.choice((4, 16)),
        "max_model_len": 64,
        "max_num_batched_tokens": draw.choice((9, 17, 64, 256)),
        "max_num_seqs": draw.choice((4, 16)),
        "depth": draw.randint(1, 4),
        "enable_prefix_caching": draw.random() < 0.7,
    }


def waves(requests: Sequence[Admitted], draw: Random) -> list[list[Admitted]]:
    """Together, or in two parts one after the other, of which the second hits what the first has left."""
    shuffled = draw.sample(requests, len(requests))
    middle = draw.choice((0, len(shuffled) // 2))
    return [wave for wave in (shuffled[:middle], shuffled[middle:]) if wave]


class AsMuchAsFits:
    """For a drafter in front of its own class: drafts as much as there is room for, whatever it costs."""

    def _depths(self, tokens: int, offers: list[Offer], rows: int, max_drafts: int) -> list[int]:
        depths = []
        for *_, most in offers:
            depths.append(min(most, max_drafts))
            max_drafts -= depths[-1]
        return depths


def count_accepted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Drafts that each step of a row accepts, as the scheduler tells them from now on."""
    accepted: list[int] = []

    def counted(*columns: Any) -> Computed:
        made = Computed(*columns)
        accepted.append(made.accepted)
        return made

    monkeypatch.setattr(scheduler, "Computed", counted)
    return accepted
