"""Speculation changes no bit of an answer: random requests in company, with the same tokens and log-probabilities with drafts and without.

Drafts are made of the answers of an engine that had none: right, wrong, or right for a while; or they come from prompt lookup. Positions
that are not finite end a request where they would have ended it.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from checkpoints import make_checkpoint
from convert import write_gguf
from numpy.typing import NDArray
from serving import Run, serve
from speculating import AsMuchAsFits, Scripted, plant, request, settings, waves
from tiny import Tiny, write_tiny

from ridgeline.compute.cpu import ext
from ridgeline.compute.graph import StepInputs
from ridgeline.config.groups import EngineConfig
from ridgeline.core.drafts.auto import AutoDrafter
from ridgeline.core.drafts.depth import Offer
from ridgeline.core.drafts.heads import HeadDrafter
from ridgeline.core.drafts.model import ModelDrafter
from ridgeline.core.drafts.prompt_lookup import PromptLookupDrafter
from ridgeline.core.drafts.suffix import OutputStore
from ridgeline.core.events import Finish
from ridgeline.core.plan import Plan, Result
from ridgeline.core.sequence import Sequence, State
from ridgeline.engine.engine import Engine
from ridgeline.errors import ConfigError
from ridgeline.facts.headers.read import read_model_facts
from ridgeline.planning.memory import kv_costs

Prepare = Callable[[Engine], None]
SIZE = Tiny()
MODELS = ("native", "screened", "numpy", "recurrent")
FEW = (7, 8, 9)
LOAD = 10
"""Requests of one load."""


@pytest.fixture(scope="module", params=MODELS)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """A runner and its model: with a Q8_0 head for the one that is screened, and one with recurrent layers, whose refused drafts must leave
    no trace in their states."""
    if request.param != "numpy" and ext.lost() is not None:
        pytest.skip("the native extension is not built")
    if request.param == "recurrent":
        made = make_checkpoint("qwen3next", tmp_path_factory.mktemp("recurrent"))
        return "native", write_gguf(made.directory / "F32.gguf", made.model, "qwen3next", "F32")
    stored = {"kind": "Q8_0"} if request.param == "screened" else {}
    path = write_tiny(tmp_path_factory.mktemp("speculation") / "tiny.gguf", SIZE, **stored)
    return "numpy" if request.param == "numpy" else "native", path


def pool(path: Path, draw: Random, chosen: dict[str, Any]) -> dict[str, object]:
    """Now and then little more memory than one request needs: whoever is younger is preempted."""
    if draw.random() < 0.5:
        return {}
    sizes = {name: chosen[name] for name in ("block_size", "max_num_batched_tokens", "kv_dtype")}
    costs = kv_costs(read_model_facts(path), EngineConfig(model="", **sizes))
    return {"kv_cache_memory_bytes": (costs.sequence_blocks(chosen["max_model_len"]) + 2) * costs.block_bytes}


class Load:
    """Random requests, served without drafts in a large pool and then with them, by the same settings."""

    def __init__(self, model: tuple[str, Path], seed: int) -> None:
        self.seed = seed
        self.draw, (self.runner, self.path) = Random(seed), model
        self.vocab = read_model_facts(self.path).tokens
        self.requests = [request(number, self.draw, self.vocab) for number in range(LOAD)]
        self.chosen = settings(self.draw, self.runner) | {"speculative": "ngram"}

    def plain(self, prepare: Prepare | None = None) -> Run:
        return serve(self.path, waves(self.requests, self.draw), prepare, **self.chosen | {"speculative": "off"})

    def drafted(self, answers: Run, prepare: Callable[[Engine, Scripted], None] | None = None) -> tuple[Run, Scripted]:
        """With drafts made of `answers`; `prepare` is told of their drafter."""
        known = {key: ids for key, (ids, _) in answers.answers.items()}
        drafter = Scripted(known, self.draw, self.draw.randint(1, 4), self.vocab)

        def attach(engine: Engine) -> None:
            engine.scheduler.drafter = drafter
            if prepare is not None:
                prepare(engine, drafter)

        return serve(self.path, waves(self.requests, self.draw), attach, **self.chosen | pool(self.path, self.draw, self.chosen)), drafter

    def same(self, run: Run, expected: Run) -> None:
        for key in expected.answers:
            assert run.answers[key] == expected.answers[key], f"load {self.seed}, {key}"
        assert run.ends == expected.ends, f"load {self.seed}"
        for name, scores in expected.scores.items():  # how many came before an error depends on how the prompt was cut
            assert run.scores.get(name) == scores or expected.ends[name, 0] is Finish.ERROR, f"load {self.seed}, {name}"


MANY = pytest.param(range(2, 100), marks=[pytest.mark.night, pytest.mark.timeout(7200)], id="many")


@pytest.mark.parametrize("seeds", [pytest.param(range(2), id="few"), MANY])
def test_drafts_change_no_bit(model: tuple[str, Path], seeds: range) -> None:
    drafted = accepted = preempted = hits = 0
    for seed in seeds:
        load = Load(model, seed)
        plain = load.plain()
        run, drafter = load.drafted(plain)
        load.same(run, plain)
        drafted, accepted = drafted + drafter.drafted, accepted + drafter.accepted
        preempted, hits = preempted + run.preempted, hits + run.hit_tokens
    assert drafted > accepted > 5 * len(seeds)
    if len(seeds) > 50:
        assert preempted and hits


@pytest.mark.parametrize("seeds", [pytest.param(range(3000, 3001), id="few"), pytest.param(*MANY.values, marks=MANY.marks, id="many")])
@pytest.mark.parametrize("recent", [False, True])
def test_repetition_changes_no_bit(model: tuple[str, Path], recent: bool, seeds: range) -> None:
    """Answers of few different ids repeat themselves and each other; a price that nobody measured lets every step draft."""
    accepted = 0
    for seed in seeds:
        load = Load(model, seed)
        load.requests = [replace(each, sampling=replace(each.sampling, allowed_ids=FEW, bad_words=())) for each in load.requests]
        plain = load.plain()
        lookup = Counted(load.draw.randint(1, 4), (), False, OutputStore() if recent else None)

        def attach(engine: Engine, lookup: Counted = lookup) -> None:
            engine.scheduler.drafter = lookup

        load.same(serve(load.path, waves(load.requests, load.draw), attach, **load.chosen), plain)
        accepted += lookup.accepted
    assert accepted > len(seeds)


@pytest.mark.parametrize("seeds", [pytest.param(range(4002, 4003), id="few"), pytest.param(*MANY.values, marks=MANY.marks, id="many")])
@pytest.mark.parametrize("kind", ["itself", "another", "auto"])
def test_a_draft_model_changes_no_bit(model: tuple[str, Path], kind: str, seeds: range, tmp_path: Path) -> None:
    """One that errs never, since it is the model itself and draws with its noise; one that errs often, with fewer tokens; and the first
    beside repetition."""
    path = write_tiny(tmp_path / "draft.gguf", Tiny(hidden=32, ffn=64, vocab=280), seed=5) if kind == "another" else model[1]
    if read_model_facts(path).state is not None:
        with pytest.raises(ConfigError, match="recurrent layers"):
            serve(path, [], speculative="draft", draft_model=str(path))
        return
    drafted = accepted = 0
    for seed in seeds:
        load = Load(model, seed)
        plain = load.plain()
        drafters: list[CountedModel] = []

        def attach(engine: Engine, load: Load = load, drafters: list[CountedModel] = drafters) -> None:
            cache = engine.executor.info.drafts
            assert cache is not None
            small = cache._replace(passes=(), blocks=cache.blocks if load.draw.random() < 0.7 else 3 * cache.groups)
            drafters.append(CountedModel(load.draw.randint(1, 4), (), True, small))
            engine.scheduler.drafter = drafters[0]
            if kind == "auto":
                engine.scheduler.drafter = AutoDrafter(PromptLookupDrafter(4, (), True, OutputStore()), drafters[0], ())

        chosen = load.chosen | pool(load.path, load.draw, load.chosen) | {"speculative": "draft", "draft_model": str(path)}
        load.same(serve(load.path, waves(load.requests, load.draw), attach, **chosen), plain)
        drafted, accepted = drafted + drafters[0].drafted, accepted + drafters[0].accepted
    assert drafted > 5 * len(seeds)
    assert accepted > 0.9 * drafted if kind != "another" else accepted < drafted


@pytest.mark.parametrize("seeds", [pytest.param(range(5000, 5001), id="few"), pytest.param(*MANY.values, marks=MANY.marks, id="many")])
@pytest.mark.parametrize("kind", ["medusa", "eagle", "eagle3"])
def test_heads_change_no_bit(model: tuple[str, Path], kind: str, seeds: range, tmp_path: Path) -> None:
    """Random heads: where few ids are allowed, about a third of their drafts are right. Hidden states come from steps of all kinds, and
    prefix hits bring none."""
    from heads import write_random

    heads = write_random(kind, tmp_path / "heads", read_model_facts(model[1]))
    drafted = accepted = hits = 0
    for seed in seeds:
        load = Load(model, seed)
        narrow = {"allowed_ids": FEW, "bad_words": (), "temperature": 4.0, "top_k": 0}
        load.requests = [
            replace(each, sampling=replace(each.sampling, **narrow)) if load.draw.random() < 0.5 else each for each in load.requests
        ]
        plain = load.plain()
        drafters: list[CountedHeads] = []

        def attach(engine: Engine, load: Load = load, drafters: list[CountedHeads] = drafters) -> None:
            cache = engine.executor.info.drafts
            assert cache is not None
            small = cache._replace(passes=(), blocks=cache.blocks if load.draw.random() < 0.7 else 3 * cache.groups)
            drafters.append(CountedHeads(load.draw.randint(1, 4), (), True, small))
            engine.scheduler.drafter = drafters[0]

        chosen = load.chosen | pool(load.path, load.draw, load.chosen) | {"speculative": "draft", "draft_model": str(heads)}
        run = serve(load.path, waves(load.requests, load.draw), attach, **chosen)
        load.same(run, plain)
        drafted, accepted, hits = drafted + drafters[0].drafted, accepted + drafters[0].accepted, hits + run.hit_tokens
    assert drafted > 5 * len(seeds) and accepted
    assert hits or len(seeds) < 50


class Eager(AsMuchAsFits, ModelDrafter):
    """Drafts as much as there is room for, whatever it costs. Counts drafts, and those of them that were right, of rows that go on."""

    drafted = accepted = 0

    def on_commit(self, sequences: list[Sequence], plan: Plan, result: Result) -> None:
        ids_of = dict(zip(plan.row, result.sampled, strict=True))
        ended = {sequence.row for sequence in sequences if sequence.state is not State.RUNNING}
        for span in plan.spans:
            if span.drafts and span.row not in ended:
                self.drafted += span.drafts
                self.accepted += len(ids_of[span.row]) - 1
        super().on_commit(sequences, plan, result)


class CountedModel(Eager):
    """A draft model whose drafts are counted."""


class CountedHeads(Eager, HeadDrafter):
    """Heads whose drafts are counted, now and then none at all, so that hidden states are gone before they are read."""

    def _depths(self, tokens: int, offers: list[Offer], rows: int, max_drafts: int) -> list[int]:
        depths = super()._depths(tokens, offers, rows, max_drafts)
        return depths if tokens % 3 else [0] * len(depths)


class Counted(PromptLookupDrafter):
    """Counts the drafts that were right."""

    accepted = 0

    def on_commit(self, sequences: list[Sequence], plan: Plan, result: Result) -> None:
        self.accepted += sum(max(0, len(ids) - 1) for ids in result.sampled)
        super().on_commit(sequences, plan, result)


@pytest.mark.parametrize("seeds", [pytest.param(range(1000, 1001), id="few"), pytest.param(*MANY.values, marks=MANY.marks, id="many")])
def test_a_position_that_is_not_finite_ends_a_request_where_it_did(model: tuple[str, Path], seeds: range) -> None:
    """Ids before it go out, then the error, whether the position was a draft or not."""
    for seed in seeds:
        load = Load(model, seed)
        healthy = load.plain()
        chosen = load.draw.choice(load.requests)
        at = len(chosen.prompt) - 1 + load.draw.randrange(len(healthy.answers[chosen.request_id, 0][0]))
        plain = load.plain(lambda engine, at=at: plant(engine, lambda inputs: inputs.positions[0] == at))
        run, _ = load.drafted(healthy, lambda engine, _, at=at: plant(engine, lambda inputs: inputs.positions[0] == at))
        assert Finish.ERROR in plain.ends.values()
        load.same(run, plain)


@pytest.mark.parametrize("seeds", [pytest.param(range(2000, 2001), id="few"), pytest.param(*MANY.values, marks=MANY.marks, id="many")])
def test_what_is_not_finite_behind_a_rejection_counts_for_nothing(model: tuple[str, Path], seeds: range) -> None:
    """Wrong drafts are NaN, in the cache too, until the right ids are written over them."""
    spoiled = 0
    for seed in seeds:
        load = Load(model, seed)
        healthy = load.plain()

        def wrong(inputs: StepInputs, drafter: Scripted) -> NDArray[np.bool_]:
            nonlocal spoiled
            found = np.zeros(len(inputs.ids), np.bool_)
            for token in inputs.select.tolist():
                before = int(inputs.ids[token - 1]) if token else -1
                found[token] = (int(inputs.positions[0, token]), before, int(inputs.ids[token])) in drafter.wrong
            spoiled += int(found.sum())
            return found

        run, _ = load.drafted(healthy, lambda engine, drafter: plant(engine, lambda inputs: wrong(inputs, drafter)))
        load.same(run, healthy)
    assert spoiled
