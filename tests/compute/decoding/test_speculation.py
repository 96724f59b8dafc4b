"""Speculation changes no bit of an answer: random requests in company, with the same tokens and log-probabilities with drafts and without.

Drafts are made of the answers of an engine that had none: right, wrong, or right for a while; or they come from each of the drafters.
Positions that are not finite end a request where they would have ended it.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from checkpoint_fixtures import checkpoint
from checkpoints import make_checkpoint
from convert import write_gguf
from heads import add_predictor, write_random
from loads import FORCED, Load, Tally
from lora_files import peft_model, write_tiny_adapter
from numpy.typing import NDArray
from serving import Run, serve
from speculating import plant
from tiny import Tiny, write_tiny

from ridgeline.compute.cpu import ext
from ridgeline.compute.decoding import forced
from ridgeline.compute.graph import StepInputs
from ridgeline.core.events import Finish
from ridgeline.engine.engine import Engine
from ridgeline.errors import ConfigError
from ridgeline.facts.headers.read import read_model_facts

__all__ = ["checkpoint"]

SIZE = Tiny()
MODELS = ("native", "screened", "numpy", "recurrent")
PREDICTORS = ("native glm4moe", "native deepseek3", "numpy glm4moe", "native qwen3next")
Seeds = Sequence[int]
Places = set[tuple[int, int, int]]
"""(position, id before, id)."""
NIGHT = [pytest.mark.night, pytest.mark.timeout(7200)]


def by_day_and_night(*day: int) -> pytest.MarkDecorator:
    """Seeds of a few loads by day, and of a thousand requests by night."""
    return pytest.mark.parametrize("seeds", [pytest.param(day, id="few"), pytest.param(range(2, 102), marks=NIGHT, id="many")])


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
    for number, rank in enumerate((1, 4, 16)):
        write_tiny_adapter(path.parent / "adapters" / f"a{number}", number, rank=rank)
    return "numpy" if request.param == "numpy" else "native", path


DRAFTERS = ["scripted", "ngram", "suffix", "itself", "another", "auto", "medusa", "eagle", "eagle3"]


def drafts_of(kind: str, model: Path, folder: Path) -> tuple[str, Path | None]:
    """The kind of a drafter as `Load.drafted` has it, and the draft model or the heads."""
    if kind in ("medusa", "eagle", "eagle3"):
        return "heads", write_random(kind, folder / "heads", read_model_facts(model))
    if kind == "another":
        return kind, write_tiny(folder / "draft.gguf", Tiny(hidden=32, ffn=64, vocab=280), seed=5)
    return kind, model if kind in ("itself", "auto") else None


def compare(
    model: tuple[str, Path],
    kind: str,
    seeds: Seeds,
    drafts: Path | None = None,
    alter: Callable[[Load], None] | None = None,
    adapters: bool = True,
) -> Tally:
    """Serves loads without drafts and with those of one kind."""
    tally = Tally()
    for seed in seeds:
        load = Load(model, seed, adapters=adapters)
        if alter is not None:
            alter(load)
        plain = load.plain()
        run, drafters = load.drafted(kind, plain, drafts)
        load.same(run, plain)
        tally.add(load, run, drafters)
    return tally


@by_day_and_night(6, 14)
def test_drafts_change_no_bit(model: tuple[str, Path], seeds: Seeds) -> None:
    tally = compare(model, "scripted", seeds)
    tally.check(accepted=5)
    assert tally.drafted > tally.accepted and (tally.adapted or tally.is_recurrent)


@by_day_and_night(4, 14)
@pytest.mark.parametrize("kind", ["ngram", "suffix"])
def test_repetition_changes_no_bit(model: tuple[str, Path], kind: str, seeds: Seeds) -> None:
    """Answers of few different ids repeat themselves and each other."""
    tally = compare(model, kind, seeds, alter=Load.narrow)
    tally.check(accepted=1)
    assert tally.drafted > tally.accepted


@by_day_and_night(2, 8)
@pytest.mark.parametrize("kind", ["ngram", "suffix"])
def test_forced_drafts_change_no_bit(model: tuple[str, Path], kind: str, seeds: Seeds, monkeypatch: pytest.MonkeyPatch) -> None:
    """Most requests follow grammars that leave little choice."""
    monkeypatch.setattr(forced, "DEAR_SECONDS", 1.0)  # a busy machine's time does not count
    tally = Tally()
    for seed in seeds:
        load = Load(model, seed, FORCED, share=0.8)
        plain = load.plain()
        run, drafters = load.drafted(kind, plain)
        load.same(run, plain)
        tally.add(load, run, drafters)
    tally.check(accepted=1)
    assert tally.drafted > tally.accepted >= tally.forced > len(seeds)


@by_day_and_night(2, 13)
@pytest.mark.parametrize("kind", ["itself", "another", "auto"])
def test_a_draft_model_changes_no_bit(model: tuple[str, Path], kind: str, seeds: Seeds, tmp_path: Path) -> None:
    """One that errs never, since it is the model itself and draws with its noise; one that errs often, with fewer tokens; and the first
    beside repetition."""
    _, path = drafts_of(kind, model[1], tmp_path)
    assert path is not None
    if read_model_facts(path).state is not None:
        with pytest.raises(ConfigError, match="recurrent layers"):
            serve(path, [], speculative="draft", draft_model=str(path))
        return
    tally = compare(model, kind, seeds, path, adapters=kind != "itself")  # the draft model has none
    tally.check()
    assert tally.accepted > 0.9 * tally.drafted if kind == "itself" else tally.accepted > 0


def narrow(load: Load) -> None:
    """About a third of the drafts of random heads are right where few ids are allowed."""
    load.narrow(0.5, temperature=4.0, top_k=0)


@by_day_and_night(4, 6)
@pytest.mark.parametrize("kind", ["medusa", "eagle", "eagle3"])
def test_heads_change_no_bit(model: tuple[str, Path], kind: str, seeds: Seeds, tmp_path: Path) -> None:
    """Random heads. Hidden states come from steps of all kinds, and prefix hits bring none."""
    tally = compare(model, "heads", seeds, drafts_of(kind, model[1], tmp_path)[1], narrow)
    tally.check()
    assert tally.drafted > tally.accepted > 0 and (tally.adapted or tally.is_recurrent)


@pytest.fixture(scope="module", params=PREDICTORS)
def predictor(request: pytest.FixtureRequest, checkpoint, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """A runner and a model with a layer that predicts further tokens: of keys and values, of latents, and behind recurrent layers."""
    runner, name = request.param.split()
    if runner != "numpy" and ext.lost() is not None:
        pytest.skip("the native extension is not built")
    made, path = checkpoint(name), tmp_path_factory.mktemp("predictor") / f"{name}.gguf"
    add_predictor(made, path, made.recipe.gguf)
    for number, rank in enumerate((1, 4, 16)):
        peft_model(made, path.parent / "adapters" / f"a{number}", rank=rank, seed=number, target_modules=["o_proj"])
    return runner, path


@by_day_and_night(2, 6)
def test_a_layer_that_predicts_changes_no_bit(predictor: tuple[str, Path], seeds: Seeds) -> None:
    """The random layer is a head as others are, in the model's own file and with a block of its own per position."""
    tally = compare(predictor, "mtp", seeds, alter=narrow)
    tally.check()
    assert tally.drafted > tally.accepted > 0 and tally.adapted


def check_an_end(model: tuple[str, Path], kind: str, seeds: Seeds, drafts: Path | None = None) -> None:
    """A position of one request, and of others as long, is not finite: ids before it go out, then the error, whether it was a draft or
    not."""
    tally = Tally()
    for seed in seeds:
        load = Load(model, seed)
        load.narrow(0.5)
        healthy = load.plain()
        chosen = load.draw.choice(load.requests)
        at = len(chosen.prompt) - 1 + load.draw.randrange(len(healthy.answers[chosen.request_id, 0][0]))

        def planted(engine: Engine, at: int = at) -> None:
            plant(engine, lambda inputs: inputs.positions[0] == at)

        plain = load.plain(planted)
        run, drafters = load.drafted(kind, healthy, drafts, planted)
        assert Finish.ERROR in plain.ends.values()
        load.same(run, plain)
        tally.add(load, run, drafters)
    assert tally.drafted and (tally.accepted or len(seeds) < 5), vars(tally)


def check_rejections(model: tuple[str, Path], kind: str, seeds: Seeds, drafts: Path | None = None) -> None:
    """Wrong drafts are NaN, in the cache too, until the right ids are written over them."""
    spoiled = 0
    for seed in seeds:
        load = Load(model, seed)
        load.narrow(0.5)
        healthy = load.plain()
        right = following(load, healthy)

        def wrong(inputs: StepInputs, right: Places = right) -> NDArray[np.bool_]:
            nonlocal spoiled
            found = np.zeros(len(inputs.ids), np.bool_)
            for token in set(inputs.select.tolist()) - set(inputs.cu_q.tolist()):  # the first of a row is no draft
                place = int(inputs.positions[0, token]), int(inputs.ids[token - 1]), int(inputs.ids[token])
                found[token] = place not in right
            spoiled += int(found.sum())
            return found

        run, _ = load.drafted(kind, healthy, drafts, lambda engine, wrong=wrong: plant(engine, wrong))
        load.same(run, healthy)
    assert spoiled


def following(load: Load, answers: Run) -> Places:
    """All prompts and their answers."""
    prompts = {each.request_id: each.prompt for each in load.requests}
    whole = [(*prompts[name], *ids) for (name, _), (ids, _) in answers.answers.items()]
    return {(place, *pair) for ids in whole for place, pair in enumerate(pairwise(ids), 1)}


@by_day_and_night(6)
def test_a_position_that_is_not_finite_ends_a_request_where_it_did(model: tuple[str, Path], seeds: Seeds) -> None:
    check_an_end(model, "scripted", seeds)


@by_day_and_night(9, 11, 12)
@pytest.mark.parametrize("kind", DRAFTERS[1:])
@pytest.mark.parametrize("model", ["native"], indirect=True)
def test_it_ends_there_whoever_drafts(model: tuple[str, Path], kind: str, seeds: Seeds, tmp_path: Path) -> None:
    own, drafts = drafts_of(kind, model[1], tmp_path)
    check_an_end(model, own, seeds, drafts)


@by_day_and_night(2)
def test_it_ends_there_where_a_layer_predicts(predictor: tuple[str, Path], seeds: Seeds) -> None:
    check_an_end(predictor, "mtp", seeds)


@by_day_and_night(6)
def test_what_is_not_finite_behind_a_rejection_counts_for_nothing(model: tuple[str, Path], seeds: Seeds) -> None:
    check_rejections(model, "scripted", seeds)


@by_day_and_night(4)
@pytest.mark.parametrize("kind", [each for each in DRAFTERS[1:] if each not in ("itself", "auto")])  # these are hardly ever wrong
@pytest.mark.parametrize("model", ["native"], indirect=True)
def test_it_counts_for_nothing_whoever_drafts(model: tuple[str, Path], kind: str, seeds: Seeds, tmp_path: Path) -> None:
    own, drafts = drafts_of(kind, model[1], tmp_path)
    check_rejections(model, own, seeds, drafts)


@by_day_and_night(2)
def test_it_counts_for_nothing_where_a_layer_predicts(predictor: tuple[str, Path], seeds: Seeds) -> None:
    check_rejections(predictor, "mtp", seeds)
