"""Heads that draft, from their published formats: what they draft is what the papers' formulas say, and answers are those without them."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from checkpoint_fixtures import checkpoint, stored
from heads import Reference, add_predictor, write_eagle, write_eagle3, write_medusa
from serving import serve
from speculating import AsMuchAsFits

from ridgeline.core.drafts.auto import AutoDrafter
from ridgeline.core.drafts.heads import HeadDrafter
from ridgeline.core.drafts.prompt_lookup import PromptLookupDrafter
from ridgeline.core.params import Admitted, Sampling
from ridgeline.core.plan import Plan, Result
from ridgeline.core.sequence import Sequence
from ridgeline.engine.engine import Engine

__all__ = ["checkpoint", "stored"]

VOCAB, OUTPUTS = 288, 16


class Watched(AsMuchAsFits, HeadDrafter):
    """Drafts as much as there is room for, and notes what came: (known ids, drafts)."""

    seen: list[tuple[tuple[int, ...], tuple[int, ...]]]

    def on_commit(self, sequences: list[Sequence], plan: Plan, result: Result) -> None:
        by_row = {sequence.row: (sequence, ids) for sequence, ids in zip(sequences, result.sampled, strict=True)}
        for span, drafts in zip(plan.spans, result.drafted, strict=True):
            sequence, sampled = by_row[span.row]
            if sequence.row >= 0:
                self.seen.append((tuple(sequence.known[: len(sequence.known) - len(sampled)]), drafts))
        super().on_commit(sequences, plan, result)


def attach(drafters: list[Watched], depth: int) -> Callable[[Engine], None]:
    def prepare(engine: Engine) -> None:
        cache = engine.executor.info.drafts
        assert cache is not None and cache.window
        drafter = Watched(depth, (), True, cache._replace(passes=()))
        drafter.seen = []
        drafters.append(drafter)
        engine.scheduler.drafter = drafter

    return prepare


def requests(count: int) -> list[Admitted]:
    draw = np.random.default_rng(7)
    prompts = [tuple(draw.integers(4, VOCAB, draw.integers(3, 20)).tolist()) for _ in range(count)]
    return [
        Admitted(f"r{number}", prompt, max_tokens=OUTPUTS, seed=number, sampling=Sampling(temperature=0.0))
        for number, prompt in enumerate(prompts)
    ]


def heads_of(kind: str, checkpoint: Callable, path: Path) -> tuple[Path, Reference, dict[str, object]]:
    """(target, what its heads draft, settings)."""
    if kind.startswith("mtp"):
        made = checkpoint(kind.split()[1])
        gguf = made.recipe.gguf if kind.endswith("gguf") else None
        path = path.with_suffix(".gguf") if gguf else path
        return path, add_predictor(made, path, gguf), {"speculative": "mtp"}
    made = checkpoint("llama3")
    write = WRITERS[kind]
    return made.directory, write(made, path), {"speculative": "draft", "draft_model": str(path)}


LAYER_IDS = "eagle_aux_hidden_state_layer_ids"
WRITERS: dict[str, Callable[..., Reference]] = {
    "medusa": write_medusa,
    "medusa of vllm": partial(write_medusa, authors=False),
    "eagle": write_eagle,
    "eagle3": write_eagle3,
    "eagle3 of vllm": partial(write_eagle3, taps=(0, 1, 2), **{LAYER_IDS: [0, 1, 2]}),
    "eagle3 of sglang": partial(write_eagle3, taps=(1, 2, 2), eagle_config={LAYER_IDS: [0, 1, 1], "use_aux_hidden_state": True}),
    "eagle3 of speculators": partial(write_eagle3, normed=True, speculators_model_type="eagle3"),
    "eagle3 normed": partial(write_eagle3, normed=True, norm_before_residual=True),
}
KINDS = [*WRITERS, *(f"mtp {name}{form}" for name in ("glm4moe", "deepseek3", "qwen3next") for form in ("", " gguf"))]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("runner", ["numpy", "native"])
def test_drafts_are_those_of_the_formulas(kind: str, runner: str, checkpoint, tmp_path: Path) -> None:
    target, reference, settings = heads_of(kind, checkpoint, tmp_path / "heads")
    common: dict[str, object] = {"runner": runner, "max_model_len": 64, "max_num_seqs": 4, "enable_prefix_caching": False}
    waves = [requests(4)]
    plain = serve(target, waves, **common)
    drafters: list[Watched] = []
    found = serve(target, waves, attach(drafters, 3), **common, **settings)
    assert found.answers == plain.answers
    seen = drafters[0].seen
    assert len(seen) > 20
    wrong = [(known, drafts, right) for known, drafts in seen if tuple(right := reference(known, len(drafts))) != drafts]
    assert len(wrong) <= len(seen) // 20, wrong[:3]


def test_auto_takes_the_layer_of_the_checkpoint(checkpoint, tmp_path: Path) -> None:
    target, _, _ = heads_of("mtp glm4moe", checkpoint, tmp_path / "heads")
    common: dict[str, object] = {"runner": "native", "max_model_len": 64, "max_num_seqs": 4}
    kinds: list[type] = []
    found = serve(target, [requests(2)], lambda engine: kinds.append(type(engine.scheduler.drafter)), **common, speculative="auto")
    assert kinds == [AutoDrafter]
    assert found.answers == serve(target, [requests(2)], **common).answers
    plain = checkpoint("llama3").directory
    serve(plain, [requests(1)], lambda engine: kinds.append(type(engine.scheduler.drafter)), **common, speculative="auto")
    assert kinds[1] is PromptLookupDrafter
