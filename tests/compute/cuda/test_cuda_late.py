"""Steps planned behind drafts that the host has not heard of: the device finds the places of their rows, and answers are those without."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from serving import Answer, Run, serve
from small import served_on_device
from speculating import AsMuchAsFits

from ridgeline.compute.cuda import drafts
from ridgeline.core.drafts.model import ModelDrafter
from ridgeline.core.params import Admitted, Sampling
from ridgeline.core.plan import LAST, Plan, Result
from ridgeline.core.sequence import Sequence
from ridgeline.engine.engine import Engine

SMALL = {"max_num_batched_tokens": 16, "max_num_seqs": 3, "max_model_len": 24, "block_size": 4}
SAMPLING = [Sampling(temperature=0.0), Sampling(temperature=4.0), Sampling(temperature=3.0, top_p=0.9, top_k=40)]
REQUESTS = [
    Admitted(f"r{number}", tuple(range(20 + 9 * number, 24 + 9 * number)), max_tokens=12 - number, seed=number, sampling=sampling)
    for number, sampling in enumerate(SAMPLING)
]


@pytest.fixture(scope="module", autouse=True)
def _on_a_device() -> Iterator[None]:
    with served_on_device(**SMALL):
        yield


@pytest.fixture(scope="module")
def plain(model: Path) -> dict[str, tuple[int, ...]]:
    return ids_of(serve(model, [REQUESTS], runner="numpy", dtype="auto"))


def ids_of(run: Run) -> dict[str, tuple[int, ...]]:
    answers: dict[tuple[str, int], Answer] = run.answers
    return {request: ids for (request, _), (ids, _) in sorted(answers.items())}


class Watched(AsMuchAsFits, ModelDrafter):
    """Drafts as much as there is room for, and counts what it meets."""

    counts: Counter[str]

    def on_commit(self, sequences: list[Sequence], plan: Plan, result: Result) -> None:
        self.counts["open rows"] += sum(count > 0 for count in plan.open)
        self.counts["drafts of open rows"] += sum(span.ids == (LAST,) for span in plan.spans if span.drafts)
        for samples, ids in zip(plan.sample, result.sampled, strict=True):
            if samples > 1:
                self.counts["all right" if len(ids) == samples else "all wrong" if len(ids) == 1 else "some right"] += 1
        super().on_commit(sequences, plan, result)


def served(model: Path, requests: list[Admitted], most: int = 3, **settings: object) -> tuple[Run, Counter[str]]:
    """Answers with as many drafts a row, which the model itself drafts."""
    counts: Counter[str] = Counter()

    def attach(engine: Engine) -> None:
        cache = engine.executor.info.drafts
        assert cache is not None and cache.ahead >= 3
        drafter = Watched(most, (), True, cache._replace(passes=()))
        drafter.counts = counts
        engine.scheduler.drafter = engine.scheduler._own_drafter = drafter

    draft = {"speculative": "draft", "draft_model": str(model), "num_speculative_tokens": most}
    return serve(model, [requests], attach, **draft, **settings), counts


def erring(monkeypatch: pytest.MonkeyPatch, wrong: tuple[int, ...]) -> None:
    """Drafts with these numbers are drawn with other noise, so that they are wrong but by chance."""
    make = drafts._sampling

    def other(*given: object) -> object:
        found = make(*given)  # type: ignore[arg-type]
        if found.entry - 1 in wrong:
            found.columns["seed"][:] += 12345
            found.columns["temperature"][:] = 8.0
        return found

    monkeypatch.setattr(drafts, "_sampling", other)


@pytest.mark.parametrize(("wrong", "met"), [((), "all right"), ((0,), "all wrong"), ((1,), "some right"), ((2,), "some right")])
def test_rows_go_on_from_what_stands(
    model: Path, plain: dict[str, tuple[int, ...]], wrong: tuple[int, ...], met: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two and three steps in flight; drafts all right, all wrong, and right up to a place."""
    erring(monkeypatch, wrong)
    run, counts = served(model, REQUESTS, depth=3 if wrong == (1,) else 2)
    assert ids_of(run) == plain
    assert counts["open rows"] > 3 and counts["drafts of open rows"] > 2 and counts[met] > 2, counts


def test_a_row_ends_within_its_drafts_while_the_next_step_computes(model: Path, plain: dict[str, tuple[int, ...]]) -> None:
    """A stop id in the middle, and another request takes the row."""
    stops = [replace(each, stop_ids=frozenset({plain[each.request_id][4]})) for each in REQUESTS]
    stopped = ids_of(serve(model, [stops], runner="numpy", dtype="auto"))
    assert stopped != plain
    again = [replace(each, request_id=f"again {each.request_id}") for each in REQUESTS]
    run, counts = served(model, [*stops, *again])
    assert ids_of(run) == stopped | {f"again {name}": ids for name, ids in plain.items()}
    assert counts["open rows"] > 3
