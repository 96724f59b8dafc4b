"""What a committed step changes: ids become known, full blocks are published, sequences end.

Never decides what runs next, and trusts a result only as far as it fits its plan.
"""

from collections.abc import Iterable

from ridgeline.core.commands import Output
from ridgeline.core.events import Finish
from ridgeline.core.kv import Cache
from ridgeline.core.lifecycle import Lifecycle
from ridgeline.core.plan import Plan, Result, TokenLogprobs
from ridgeline.core.sequence import Sequence, State
from ridgeline.core.stop import why_ended
from ridgeline.errors import LawViolation

Logprobs = tuple[TokenLogprobs, ...] | None
NOT_FINITE = "the model produced numbers that are not finite; the request cannot be answered"


def commit(sequences: list[Sequence], plan: Plan, result: Result, cache: Cache, life: Lifecycle, now: float) -> list[Output]:
    """Applies the result of the oldest step in flight, whose rows are `sequences`. Raises LawViolation if it does not fit the plan."""
    if bytearray(map(len, result.sampled)) != plan.sample:
        raise LawViolation(4, f"step {plan.step} sampled where its plan does not, or did not where it does")
    outputs: list[Output] = []
    if plan.score or result.scores is not None:
        _deliver_scores(sequences, plan, result, outputs)
    running, make = State.RUNNING, tuple.__new__  # what `Output(…)` calls, at half its price: one is made for every row of every step
    shown: Iterable[Logprobs] = result.logprobs or [None] * len(sequences)
    for sequence, count, sampled, finite, logprobs in zip(sequences, plan.count, result.sampled, result.finite, shown, strict=True):
        sequence.in_flight -= 1
        if not finite:
            _poison(sequence, outputs, life, now)
        elif sequence.state is running:
            sequence.computed = computed = sequence.computed + count
            if computed >= sequence.full_at:
                cache.publish(sequence)
            if sampled:
                known = sequence.known
                known += sampled
                if len(known) >= sequence.limit or sampled[-1] in sequence.stop_ids:
                    _deliver(sequence, sampled, logprobs, outputs, life, now)
                else:
                    outputs.append(make(Output, (sequence.request.request_id, sequence.choice, sampled, logprobs, None, None)))
        else:
            _late(sequence, sampled, logprobs, outputs, life, now)
    cache.committed(plan.step)
    return outputs


def _deliver(
    sequence: Sequence, sampled: tuple[int, ...], logprobs: Logprobs, outputs: list[Output], life: Lifecycle, now: float
) -> None:
    """Ids that are known already go out, with the end if they bring it."""
    reason = why_ended(sequence)
    outputs.append(Output(sequence.request.request_id, sequence.choice, sampled, logprobs, reason))
    if reason is not None:
        life.end(sequence, reason, now)


def _deliver_scores(sequences: list[Sequence], plan: Plan, result: Result, outputs: list[Output]) -> None:
    """Log-probabilities of prompt tokens go out before ids: they count though the row has been preempted since, not if it has ended."""
    scores, expected = result.scores or (), [count for _, _, count in plan.score]
    if [len(found) for found in scores] != expected:
        raise LawViolation(4, f"step {plan.step} scored {[len(found) for found in scores]} prompt positions, its plan names {expected}")
    for (index, _, _), found in zip(plan.score, scores, strict=True):
        sequence = sequences[index]
        if result.finite[index] and sequence.state in (State.RUNNING, State.WAITING):
            outputs.append(Output(sequence.request.request_id, sequence.choice, (), prompt_logprobs=found))


def _late(
    sequence: Sequence, sampled: tuple[int, ...], logprobs: Logprobs, outputs: list[Output], life: Lifecycle, now: float
) -> None:
    """A row that was preempted or ended after this step was planned: ids count for the former, nothing for the latter."""
    if sequence.state is State.WAITING and sampled:
        sequence.known += sampled
        _deliver(sequence, sampled, logprobs, outputs, life, now)
    if not sequence.in_flight:
        life.landed(sequence)


def _poison(sequence: Sequence, outputs: list[Output], life: Lifecycle, now: float) -> None:
    """The row's hidden states are not finite: the choice ends with an error, and nothing more of it is published."""
    if sequence.state in (State.RUNNING, State.WAITING):
        sequence.message = NOT_FINITE
        outputs.append(Output(sequence.request.request_id, sequence.choice, (), None, Finish.ERROR))
        life.end(sequence, Finish.ERROR, now)
    if not sequence.in_flight:
        life.landed(sequence)
