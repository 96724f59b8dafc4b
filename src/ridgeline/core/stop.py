"""Engine-side ends: stop ids and length. Stop strings are the front end's."""

from ridgeline.core.events import Finish
from ridgeline.core.sequence import Sequence


def why_ended(sequence: Sequence) -> Finish | None:
    """Why the sequence ends with its newest id, if it does. A stop id counts once `min_tokens` outputs came before it."""
    if sequence.known[-1] in sequence.stop_ids and sequence.outputs > sequence.request.min_tokens:
        return Finish.STOP
    return Finish.LENGTH if len(sequence.known) >= sequence.limit else None
