"""Log-probabilities of prompt tokens: from the final hidden states of a step, a few positions at a time, so that logits are never [T, V].

Owns nothing: what is scored is in the plan, what comes next in a prompt is in the rows.
"""

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ridgeline.compute.graph import StepInputs
from ridgeline.compute.runtime.rows import Rows
from ridgeline.core.plan import Plan, TokenLogprobs

SLICE: Final = 16
"""Positions whose logits exist at once: as many rows as an exact product has in a tile."""

Floats = NDArray[np.float32]

Score = Callable[[Floats, Sequence[int], Sequence[int]], list[TokenLogprobs]]
"""(logits fp32 [N, V], a token for each row, how many best ids) → log-probabilities, to the bit those that sampling reports."""


def prompt_logprobs(
    plan: Plan, inputs: StepInputs, rows: Rows, hidden: Floats, logits_of: Callable[[Floats], Floats], vocab: int, score: Score
) -> tuple[tuple[TokenLogprobs, ...], ...] | None:
    """For each entry of `Plan.score` those of the tokens behind its positions; None where there are none.

    hidden [T, D]: the step's tap. logits_of: hidden [N, D] → logits [N, ≥ vocab], bit for bit those that the step would have given.
    """
    if not plan.score:
        return None
    tokens = np.concatenate([np.arange(count, dtype=np.int32) + inputs.cu_q[index] + first for index, first, count in plan.score])
    found: list[TokenLogprobs] = []
    for start in range(0, len(tokens), SLICE):
        part = tokens[start : start + SLICE]
        indices = inputs.row_of_token[part].tolist()
        at = inputs.positions[0, part].tolist()
        following = [rows.prompt_token(plan.row[index], position + 1) for index, position in zip(indices, at, strict=True)]
        counts = [rows.params(plan.row[index]).prompt_logprobs or 0 for index in indices]
        found += score(logits_of(hidden[part])[:, :vocab], following, counts)
    ends = list(accumulate(count for _, _, count in plan.score))
    return tuple([tuple(found[end - count : end]) for end, (_, _, count) in zip(ends, plan.score, strict=True)])
