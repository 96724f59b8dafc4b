"""Drafts are laid on a step when all its rows have what they would have without them, in the policy's order: they take what is left."""

from collections.abc import Callable

from ridgeline.core.drafts.drafter import Drafter
from ridgeline.core.events import Drafting, Event
from ridgeline.core.plan_builder import PlanBuilder
from ridgeline.core.preemption import Preemptor
from ridgeline.core.sequence import Sequence


def lay_drafts(drafter: Drafter, builder: PlanBuilder, preemptor: Preemptor, depth: int, samples: int, prefill_left: int) -> None:
    """Adds drafts to rows that compute one token. They take what the step has left of tokens, samples, prefill budget and blocks.

    Where the drafter runs ahead of the ids of a step in flight, the token may be one that this step is yet to sample, and steps may be
    planned behind the drafts. Else it is known, and the row has nothing else in flight.

    depth         drafts of a row at most; samples: of the step
    prefill_left  left of the prefill budget
    """
    places, rows, chunks, end = [], [], builder.chunks, 0
    builder.ahead = not chunks and drafter.runs_ahead(builder.sequences)
    most_in_flight = 2 if builder.ahead else 1
    new = set(builder.new_sequences) if builder.new_sequences else ()
    for index, sequence in enumerate(builder.sequences):
        if index in chunks:
            end += chunks[index][0]
            continue
        end += 1
        below_limit = min(sequence.limit - sequence.target - sequence.drafted, depth)
        if below_limit > 0 and sequence.in_flight <= most_in_flight and sequence not in new:
            places.append((index, end))
            rows.append((sequence, below_limit))
    if not rows:
        return
    left = min(builder.budget - len(builder.tokens), samples - builder.sample_count, prefill_left)
    if left < 1:
        return
    tokens = min(builder.budget_left, prefill_left)
    proposed = drafter.propose(rows, len(builder.tokens), left)
    drafted = []
    for (index, end), (sequence, below_limit), ids in zip(places, rows, proposed, strict=True):
        count = min(len(ids), below_limit, left)
        upto = sequence.scheduled + sequence.drafted
        if upto + count > sequence.capacity:
            count = preemptor.allocatable_drafts(sequence, count)
            preemptor.cache.allocate(sequence, upto + count)
        if count > 0:
            left -= count
            builder.add_drafts(index, end, ids[:count])
        drafted.append((sequence, max(0, count)))
    builder.spans = drafter.spans(drafted, tokens - builder.drafted)


def tell_outlook(drafter: Drafter, running: list[Sequence], step: int, now: float, emit: Callable[[Event], None]) -> None:
    """Emits what speculation would do with the rows that decode."""
    decoding = [each for each in running if each.outputs]
    outlook = drafter.outlook(decoding) if decoding else None
    if outlook is not None:
        emit(Drafting(step, now, *outlook))
