"""The map from ids of a draft model to ids of the target: the one with the same text."""

from collections.abc import Sequence
from typing import Final, Protocol

from ridgeline.errors import ConfigError

LEAST_SHARE: Final = 0.5
"""Share of the target's ids that have a counterpart: with fewer, most drafts could not be right."""


class Vocabulary(Protocol):
    """The bytes of each id, the ids that control, and those that end an answer."""

    pieces: Sequence[bytes]
    control: Sequence[int]
    ends: Sequence[int]


def map_tokens(target: Vocabulary, draft: Vocabulary, name: str) -> tuple[list[int], list[int]] | None:
    """(inputs, logits) as `compute.draft_model.TokenMap` has them, by the target's ids; None where both are the same.

    name  of the draft model, for the error. Raises ConfigError where too few texts are in both.
    """
    is_prefix = list(draft.pieces[: len(target.pieces)]) == list(target.pieces)
    if is_prefix and set(target.control) == {token for token in draft.control if token < len(target.pieces)}:
        return None
    found: dict[tuple[bytes, bool], int] = {}
    control = set(draft.control)
    for token, piece in enumerate(draft.pieces):
        found.setdefault((piece, token in control), token)
    marks = set(target.control)
    logits = [found.get((piece, token in marks), -1) for token, piece in enumerate(target.pieces)]
    for token in target.ends:  # ends have other names from family to family
        if logits[token] < 0 and draft.ends:
            logits[token] = draft.ends[0]
    shared = sum([token >= 0 for token in logits]) / len(logits)
    if shared < LEAST_SHARE:
        raise ConfigError(
            f"--draft-model {name}: {shared:.0%} of the model's tokens have the text of a token of it, {LEAST_SHARE:.0%} are needed; "
            "take a smaller model of the same family",
            fix={"--draft-model": None, "--speculative": "ngram"},
        )
    stand_in = draft.ends[0] if draft.ends else 0
    return [token if token >= 0 else stand_in for token in logits], logits
