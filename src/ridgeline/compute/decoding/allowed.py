"""`allowed_token_ids`: no other id can be sampled."""

import numpy as np

from ridgeline.compute.decoding.edit import Edit, Logits
from ridgeline.compute.decoding.history import History
from ridgeline.core.params import RowParams


def asked(row: RowParams, output: int) -> bool:
    """See `Edit.asked`."""
    return row.sampling.allowed_ids is not None


def apply(logits: Logits, row: RowParams, history: History | None) -> None:
    """Only the allowed ids keep their logit."""
    ids = list(row.sampling.allowed_ids or ())
    kept = logits[ids]
    logits.fill(-np.inf)
    logits[ids] = kept


ALLOWED = Edit(asked, apply)
