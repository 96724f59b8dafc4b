"""`logit_bias`: a number is added to the logit of an id. Computed in float64 and rounded once."""

import numpy as np

from ridgeline.compute.decoding.edit import Edit, Logits
from ridgeline.compute.decoding.history import History
from ridgeline.core.params import RowParams


def asked(row: RowParams, output: int) -> bool:
    """See `Edit.asked`."""
    return bool(row.sampling.logit_bias)


def apply(logits: Logits, row: RowParams, history: History | None) -> None:
    """Adds each id's bias; ids differ from each other."""
    ids = [token for token, _ in row.sampling.logit_bias]
    values = logits[ids].astype(np.float64) + np.array([bias for _, bias in row.sampling.logit_bias])
    logits[ids] = values.astype(np.float32)


BIAS = Edit(asked, apply)
