"""The time that a prompt waits for tiers: a share of what computing it takes, which is what a tier that brings nothing costs."""

from typing import Final

SHARE: Final = 0.5
"""Part of the time that computing what is missing takes: below one, or a tier that answers at its last moment would save nothing."""
LEAST_SECONDS: Final = 0.01
"""Time that a fetch takes at the least, its way through two threads and back to the engine's loop with it: a shorter wait is in vain."""
PATIENT_SECONDS: Final = 0.05
"""Wait behind which a tier that has not answered is left alone as one that failed; behind a shorter one for a time as much shorter: it may
be well, and had to connect for a short prompt."""
UNKNOWN_SECONDS: Final = 0.05
"""Wait of an engine that cannot tell what computing takes, as one whose model is simulated."""


def wait_seconds(tokens: int, token_seconds: float) -> float:
    """Seconds that a prompt waits for so many tokens, each of which takes `token_seconds` to compute, 0 where that is unknown; 0 where
    asking is not worth while."""
    if not token_seconds:
        return UNKNOWN_SECONDS
    seconds = SHARE * tokens * token_seconds
    return seconds if seconds >= LEAST_SECONDS else 0.0


def least_tokens(token_seconds: float) -> int:
    """Tokens that a prompt has to miss, so that it is worth while to ask tiers for them."""
    return int(-(-LEAST_SECONDS // (SHARE * token_seconds))) if token_seconds else 1
