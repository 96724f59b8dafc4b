"""`min_tokens`: no stop id before so many outputs exist."""

from ridgeline.compute.decoding.edit import Edit, Logits, ban
from ridgeline.compute.decoding.history import History
from ridgeline.core.params import RowParams


def asked(row: RowParams, output: int) -> bool:
    """See `Edit.asked`."""
    return output < row.min_tokens and bool(row.banned_until)


def apply(logits: Logits, row: RowParams, history: History | None) -> None:
    """Bans the stop ids."""
    ban(logits, row.banned_until)


MIN_TOKENS = Edit(asked, apply)
