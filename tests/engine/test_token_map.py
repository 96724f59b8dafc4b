"""A draft model whose ids are others than the target's: texts meet, and answers are the target's to the bit."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from serving import serve
from speculating import AsMuchAsFits
from tiny import write_tiny

from ridgeline.core.drafts.model import ModelDrafter
from ridgeline.core.params import Admitted, Sampling
from ridgeline.core.plan import Plan, Result
from ridgeline.core.sequence import Sequence
from ridgeline.engine.engine import Engine
from ridgeline.engine.token_map import map_tokens
from ridgeline.errors import ConfigError

VOCAB = 300


def vocabulary(*pieces: str, control: tuple[int, ...] = (), ends: tuple[int, ...] = ()) -> SimpleNamespace:
    return SimpleNamespace(pieces=[piece.encode() for piece in pieces], control=list(control), ends=list(ends))


TARGET = vocabulary("<s>", "</s>", "a", "b", "</s>", control=(0, 1), ends=(1,))
"""The last token is the text `</s>`, which ends nothing."""


def test_the_same_vocabulary_and_a_longer_one_need_no_map() -> None:
    assert map_tokens(TARGET, TARGET, "m") is None
    assert map_tokens(TARGET, vocabulary("<s>", "</s>", "a", "b", "</s>", "c", control=(0, 1, 5), ends=(1,)), "m") is None


def test_a_permuted_vocabulary_is_mapped_by_texts_and_kinds() -> None:
    found = map_tokens(TARGET, vocabulary("b", "</s>", "</s>", "<s>", "a", control=(2, 3), ends=(2,)), "m")
    assert found == ([3, 2, 4, 0, 1], [3, 2, 4, 0, 1]), "a control id is no text, though it looks like one"


def test_the_same_texts_with_other_control_ids_are_mapped() -> None:
    found = map_tokens(TARGET, vocabulary("<s>", "</s>", "a", "b", "</s>", control=(0, 4), ends=(4,)), "m")
    assert found == ([0, 4, 2, 3, 1], [0, 4, 2, 3, 1])


def test_ends_meet_though_they_have_other_names() -> None:
    """A token without a counterpart is never drafted; an end stands for it in the context."""
    found = map_tokens(TARGET, vocabulary("<|end|>", "a", "b", control=(0,), ends=(0,)), "m")
    assert found == ([0, 0, 1, 2, 0], [-1, 0, 1, 2, -1])


def test_too_few_texts_in_common_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"--draft-model m: 40% of the model's tokens .*50% are needed") as caught:
        map_tokens(TARGET, vocabulary("a", "b", "c"), "m")
    assert caught.value.fix == {"--draft-model": None, "--speculative": "ngram"}
    half = map_tokens(vocabulary("a", "b"), vocabulary("c", "a"), "m")
    assert half == ([1, 0], [1, -1]), "half of them are enough"


class Watched(AsMuchAsFits, ModelDrafter):
    """Counts the drafts that were verified, and those that came true."""

    drafted = accepted = 0

    def on_commit(self, sequences: list[Sequence], plan: Plan, result: Result) -> None:
        by_row = {sequence.row: ids for sequence, ids in zip(sequences, result.sampled, strict=True)}
        for span, drafts in zip(plan.spans, result.drafted, strict=True):
            if (ids := by_row.get(span.row)) is not None:  # else it has ended
                self.drafted, self.accepted = self.drafted + len(drafts), self.accepted + max(0, len(ids) - 1)
        super().on_commit(sequences, plan, result)


def attach(drafters: list[Watched]) -> Callable[[Engine], None]:
    def prepare(engine: Engine) -> None:
        cache = engine.executor.info.drafts
        assert cache is not None
        drafters.append(Watched(3, (), True, cache._replace(passes=())))
        engine.scheduler.drafter = drafters[-1]

    return prepare


@pytest.mark.parametrize("runner", ["native", "numpy"])
def test_drafts_of_a_permuted_vocabulary_are_accepted_and_change_no_bit(tmp_path: Path, runner: str) -> None:
    draw = np.random.default_rng(3)
    target = write_tiny(tmp_path / "target.gguf")
    draft = write_tiny(tmp_path / "draft.gguf", order=draw.permutation(VOCAB).tolist())
    prompts = [tuple(draw.integers(4, VOCAB, 9).tolist()) for _ in range(4)]
    wave = [
        Admitted(f"r{number}", prompt, max_tokens=20, seed=number, sampling=Sampling(temperature=float(number % 2), logprobs=2))
        for number, prompt in enumerate(prompts)
    ]
    common: dict[str, object] = {"runner": runner, "max_model_len": 64, "max_num_seqs": 4}
    drafters: list[Watched] = []
    plain = serve(target, [wave], **common)
    found = serve(target, [wave], attach(drafters), **common, speculative="draft", draft_model=str(draft))
    assert found.answers == plain.answers
    assert drafters[0].drafted > 20 and drafters[0].accepted > 0.8 * drafters[0].drafted
