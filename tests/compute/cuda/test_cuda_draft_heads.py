"""Heads that draft on a device from hidden states that stay there: what they draft is what the papers' formulas say, and answers are those
without them."""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoint_fixtures import checkpoint, stored
from heads import Reference, add_predictor, write_eagle3, write_medusa, write_random
from serving import Run, serve
from small import SIZE, served_on_device
from speculating import AsMuchAsFits
from tiny import tiny_weights

from ridgeline.compute.cuda.draft_heads import DeviceHeads
from ridgeline.compute.cuda.drafts import DeviceDraftModel, Span
from ridgeline.compute.cuda.runner import LaunchedStep
from ridgeline.core.drafts.heads import HeadDrafter
from ridgeline.core.params import Admitted, Sampling
from ridgeline.core.plan import LAST, DraftSpan, Plan, Result
from ridgeline.core.sequence import Sequence
from ridgeline.engine.engine import Engine
from ridgeline.facts.headers.read import read_model_facts
from ridgeline.planning.memory import kv_head_bytes

__all__ = ["checkpoint", "stored"]

SMALL = {"max_num_batched_tokens": 16, "max_num_seqs": 3, "max_model_len": 24, "block_size": 4}
GREEDY = Sampling(temperature=0.0)
SAMPLING = [GREEDY, Sampling(temperature=2.0), Sampling(temperature=1.5, top_p=0.9, top_k=40)]
BY_HOST = [GREEDY, Sampling(temperature=2.0, logprobs=1, presence_penalty=2.0), Sampling(temperature=0.5)]


@pytest.fixture(scope="module", autouse=True)
def _on_a_device() -> Iterator[None]:
    with served_on_device(**SMALL):
        yield


class Watched(AsMuchAsFits, HeadDrafter):
    """Drafts as much as there is room for; notes what came, (known ids, drafts), whose rows are whose, and counts what it meets."""

    seen: list[tuple[tuple[int, ...], tuple[int, ...]]]
    running: dict[int, str]
    counts: Counter[str]

    def spans(self, rows: list[tuple[Sequence, int]], tokens: int) -> tuple[DraftSpan, ...]:
        self.running |= {sequence.row: sequence.request.request_id for sequence, _ in rows}
        return super().spans(rows, tokens)

    def on_commit(self, sequences: list[Sequence], plan: Plan, result: Result) -> None:
        self.counts["open rows"] += sum(count > 0 for count in plan.open)
        opened = {row: count for row, count in zip(plan.row, plan.open, strict=False) if count}
        by_row = {sequence.row: (sequence, ids) for sequence, ids in zip(sequences, result.sampled, strict=True)}
        for span, drafts in zip(plan.spans, result.drafted, strict=True):
            sequence, sampled = by_row.get(span.row, (None, ()))
            self.counts["drafts of open rows"] += span.row in opened and span.ids == (LAST,)
            assert not self._cache.groups or span.start >= opened.get(span.row, 0), "no id stands in front of the context"
            self.counts["all right" if len(sampled) > len(drafts) else "some right" if len(sampled) > 1 else "all wrong"] += 1
            if sequence is not None and sampled and sequence.row >= 0:
                self.seen.append((tuple(sequence.known[: len(sequence.known) - len(sampled)]), drafts))
        super().on_commit(sequences, plan, result)


def requests(sampling: list[Sampling], outputs: int = 9, prompt: int = 3) -> list[Admitted]:
    """Rows of several lengths."""
    draw = np.random.default_rng(7)
    prompts = [tuple(draw.integers(4, 280, prompt + 2 * number).tolist()) for number in range(len(sampling))]
    return [
        Admitted(f"r{number}", ids, max_tokens=outputs - number, seed=number, sampling=each)
        for number, (ids, each) in enumerate(zip(prompts, sampling, strict=True))
    ]


def served(model: Path, waves: list[list[Admitted]], most: int = 3, **settings: object) -> tuple[Run, Watched]:
    """Answers with as many drafts a row, by heads; what they read of a row are its ids up to the newest, and they miss none."""
    drafters: list[Watched] = []
    read: list[tuple[str, bool, int, list[int]]] = []
    launch = DeviceHeads._launch

    def watch(heads: DeviceHeads, rows: list[Span], params: object, number: int = 0, *others: Any) -> LaunchedStep:
        launched = launch(heads, rows, params, number, *others)  # type: ignore[arg-type]
        if not number:
            runner, ends = heads._of(0), launched.ends.tolist()
            places, ids = runner._launches._states.states.places.tolist(), runner.ids.token_ids.tolist()  # type: ignore[union-attr]
            for (row, start, own), end, place in zip(rows, ends, places, strict=False):
                read.append((running[row], start > 0 and heads._attends, place, ids[end + 1 - len(own) : end + 1]))
        return launched

    running: dict[int, str] = {}

    def attach(engine: Engine) -> None:
        cache = engine.executor.info.drafts
        assert cache is not None and cache.window and (cache.ahead >= 3) == (settings.get("runner") != "numpy")
        said = next(each.reason for each in engine.executor.decisions if each.name == "draft_model")  # type: ignore[attr-defined]
        assert "of hidden states" in said, said
        drafter = Watched(most, (), True, cache._replace(passes=()))
        drafter.seen, drafter.counts, drafter.running = [], Counter(), running
        drafters.append(drafter)
        engine.scheduler.drafter = engine.scheduler._own_drafter = drafter

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DeviceHeads, "_launch", watch)
        run = serve(model, waves, attach, num_speculative_tokens=most, **settings)
    behind: dict[str, int] = {}
    for request, goes_on, place, ids in read:
        whole = next(each.prompt for wave in waves for each in wave if each.request_id == request) + run.answers[request, 0][0]
        assert all(ours == theirs for ours, theirs in zip(ids, whole[place - len(ids) :], strict=False)), (place, ids, whole)
        assert not goes_on or place - len(ids) <= behind[request]
        behind[request] = place
    assert read or settings.get("runner") == "numpy"
    return run, drafters[0]


def ids_of(run: Run) -> dict[str, tuple[int, ...]]:
    return {request: ids for (request, _), (ids, _) in sorted(run.answers.items())}


def heads_of(kind: str, checkpoint: Callable, path: Path) -> tuple[Path, Reference, dict[str, object]]:
    """(target, what its heads draft, settings)."""
    if kind.startswith("mtp"):
        return path, add_predictor(checkpoint(kind.split()[1]), path), {"speculative": "mtp"}
    made = checkpoint("llama3")
    write = {"medusa": write_medusa, "eagle3": write_eagle3}[kind]
    return made.directory, write(made, path), {"speculative": "draft", "draft_model": str(path)}


@pytest.mark.parametrize("kind", ["medusa", "eagle3", "mtp deepseek3"])
def test_drafts_are_those_of_the_formulas(kind: str, checkpoint: Callable, tmp_path: Path) -> None:
    """EAGLE-3's head knows some ids alone; its first list has a product more than its second."""
    target, reference, settings = heads_of(kind, checkpoint, tmp_path / "heads")
    waves = [requests([GREEDY], 8)] if kind == "mtp deepseek3" else [requests([GREEDY] * 2, 8)]
    plain = serve(target, waves, runner="numpy", dtype="auto")
    found, drafter = served(target, waves, enable_prefix_caching=False, **settings)
    assert ids_of(found) == ids_of(plain)
    assert len(drafter.seen) >= 4 and drafter.counts["open rows"] >= 2
    wrong = [(known, drafts, right) for known, drafts in drafter.seen if tuple(right := reference(known, len(drafts))) != drafts]
    assert not wrong, wrong[:3]


@pytest.fixture(scope="module")
def heads(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], dict[str, object]]:
    """Settings for heads that are often right."""
    facts, folder = read_model_facts(model), tmp_path_factory.mktemp("heads")
    matrix = tiny_weights(SIZE)["token_embd.weight"]
    found = {kind: write_random(kind, folder / kind, facts, matrix) for kind in ("eagle", "medusa")}
    return lambda kind: {"speculative": "draft", "draft_model": str(found[kind])}


@pytest.mark.parametrize(("kind", "most", "depth"), [("eagle", 1, 3), ("eagle", 4, 2), ("medusa", 3, 2)])
def test_rows_go_on_from_what_stands(model: Path, heads: Callable, kind: str, most: int, depth: int) -> None:
    """Greedy and sampled rows, in steps that are planned behind drafts of which the host has not heard: answers are those without, and
    drafts those of the numpy runner."""
    waves, settings = [requests(SAMPLING, 14)], heads(kind)
    plain = ids_of(serve(model, waves, runner="numpy", dtype="auto"))
    run, drafter = served(model, waves, most, depth=depth, **settings)
    _, reference = served(model, waves, most, runner="numpy", dtype="auto", **settings)
    assert ids_of(run) == plain
    counts = drafter.counts
    assert counts["drafts of open rows"] > 4 and counts["all right"] > 1 and counts["all wrong"] > 1, counts
    theirs = dict(reference.seen)
    both = [(ids, theirs[known]) for known, ids in drafter.seen if known in theirs]
    assert len(both) > 4 and all(ours == ids[: len(ours)] or ids == ours[: len(ids)] for ours, ids in both), both


def test_a_row_by_the_host(model: Path, heads: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has penalties: every pass is read before the next."""
    read: list[int] = []
    go_on = DeviceDraftModel._go_on
    monkeypatch.setattr(DeviceDraftModel, "_go_on", lambda self, rows: (read.append(len(rows)), go_on(self, rows))[1])
    plain = ids_of(serve(model, [requests(BY_HOST)], runner="numpy", dtype="auto"))
    run, drafter = served(model, [requests(BY_HOST)], **heads("eagle"))
    assert ids_of(run) == plain
    assert read and drafter.counts["all right"] > 1, drafter.counts


def test_prefix_hits_and_preemption(model: Path, heads: Callable) -> None:
    """Contexts begin behind what was hit, and anew for a row that lost its blocks."""
    block = SIZE.layers * 2 * 4 * SIZE.kv_heads * kv_head_bytes(SIZE.head_dim, "f32")
    first = requests([SAMPLING[1]], 9, prompt=9)[0]
    waves = [[replace(first, request_id="first")], [replace(first, request_id="again")], requests(SAMPLING, 10, prompt=2)]
    plain = ids_of(serve(model, waves, runner="numpy", dtype="auto"))
    run, drafter = served(model, waves, depth=3, max_model_len=18, kv_cache_memory_bytes=5 * block, **heads("eagle"))
    assert ids_of(run) == plain
    assert run.hit_tokens > 0 and run.preempted > 0
    assert drafter.counts["all right"] + drafter.counts["some right"] > 2, drafter.counts
