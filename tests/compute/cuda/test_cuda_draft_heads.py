"""Heads that draft on a device from hidden states that stay there: what they draft is what the papers' formulas say, and answers are those
without them."""

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from checkpoint_fixtures import checkpoint, stored
from heads import Reference, add_predictor, write_eagle, write_eagle3, write_medusa
from serving import serve
from small import served_on_device
from speculating import AsMuchAsFits

from ridgeline.core.drafts.heads import HeadDrafter
from ridgeline.core.params import Admitted, Sampling
from ridgeline.core.plan import Plan, Result
from ridgeline.core.sequence import Sequence
from ridgeline.engine.engine import Engine

__all__ = ["checkpoint", "stored"]

SMALL = {"max_num_batched_tokens": 24, "max_num_seqs": 3, "max_model_len": 32, "block_size": 4, "enable_prefix_caching": False}


@pytest.fixture(scope="module", autouse=True)
def _on_a_device() -> Iterator[None]:
    with served_on_device(**SMALL):
        yield


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


def requests(count: int, outputs: int = 8) -> list[Admitted]:
    draw = np.random.default_rng(7)
    return [
        Admitted(
            f"r{number}",
            tuple(draw.integers(4, 288, 3 + 4 * number).tolist()),
            max_tokens=outputs,
            seed=number,
            sampling=Sampling(temperature=0.0),
        )
        for number in range(count)
    ]


def heads_of(kind: str, checkpoint: Callable, path: Path) -> tuple[Path, Reference, dict[str, object]]:
    if kind.startswith("mtp"):
        return path, add_predictor(checkpoint(kind.split()[1]), path), {"speculative": "mtp"}
    made = checkpoint("llama3")
    write = {"medusa": write_medusa, "eagle": write_eagle, "eagle3": write_eagle3}[kind]
    return made.directory, write(made, path), {"speculative": "draft", "draft_model": str(path)}


@pytest.mark.parametrize("kind", ["medusa", "eagle", "eagle3", "mtp glm4moe", "mtp deepseek3"])
def test_drafts_are_those_of_the_formulas(kind: str, checkpoint: Callable, tmp_path: Path) -> None:
    target, reference, settings = heads_of(kind, checkpoint, tmp_path / "heads")
    waves = [requests(3)]
    plain = serve(target, waves, runner="numpy", dtype="auto")
    drafters: list[Watched] = []

    def attach(engine: Engine) -> None:
        cache = engine.executor.info.drafts
        assert cache is not None and cache.window
        drafters.append(Watched(3, (), True, cache._replace(passes=())))
        drafters[0].seen = []
        engine.scheduler.drafter = engine.scheduler._own_drafter = drafters[0]

    found = serve(target, waves, attach, num_speculative_tokens=3, **settings)
    assert found.answers == plain.answers
    seen = drafters[0].seen
    wrong = [(known, drafts, right) for known, drafts in seen if tuple(right := reference(known, len(drafts))) != drafts]
    print(len(seen), len(wrong))
    assert len(seen) > 8 and len(wrong) <= len(seen) // 20, wrong[:3]
