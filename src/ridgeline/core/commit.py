"""Changes that a committed step brings: ids become known, full blocks are published, sequences end.

Never decides what runs next, and trusts a result only as far as it fits its plan. A row that drafts keeps the ids up to the first that
ends it; only kept ids move it on.
"""

from collections.abc import Iterable
from collections.abc import Sequence as Items
from itertools import accumulate

from ridgeline.core.commands import Output
from ridgeline.core.events import Finish
from ridgeline.core.kv_cache import KVBlocks
from ridgeline.core.lifecycle import Lifecycle
from ridgeline.core.plan import Plan, Result, TokenLogprobs
from ridgeline.core.sequence import Sequence, State
from ridgeline.errors import LawViolation

Ids = tuple[int, ...]
Logprobs = tuple[TokenLogprobs, ...] | None
NOT_FINITE = "the model produced numbers that are not finite; the request cannot be answered"


def commit(
    sequences: list[Sequence], plan: Plan, result: Result, lengths: bytearray, cache: KVBlocks, lifecycle: Lifecycle, now: float
) -> list[Output]:
    """Applies the result of the oldest step in flight, whose rows are `sequences` and sampled `lengths` ids each. Raises LawViolation if
    it does not fit the plan."""
    outputs: list[Output] = []
    if plan.score or result.scores is not None:
        _emit_scores(sequences, plan, result, outputs)
    running, make = State.RUNNING, tuple.__new__  # what `Output(…)` calls, at half its price: one is made for every row of every step
    counts: Iterable[int] = plan.count
    taken: Iterable[Ids] = result.sampled
    shown: Iterable[Logprobs] = result.logprobs or [None] * len(sequences)
    if lengths != plan.sample or plan.drafts:
        counts, taken, shown = _accepted(sequences, plan, result)
    for sequence, count, sampled, finite, logprobs in zip(sequences, counts, taken, result.finite, shown, strict=True):
        sequence.in_flight -= 1
        if not finite:
            _fail_non_finite(sequence, sampled, logprobs, outputs, lifecycle, now)
        elif sequence.state is running:
            sequence.computed = computed = sequence.computed + count
            known = sequence.known
            known += sampled
            if computed >= sequence.publish_at:
                cache.publish(sequence)
            if sampled:
                if len(known) >= sequence.limit or sampled[-1] in sequence.stop_ids:
                    _emit_ids(sequence, sampled, logprobs, outputs, lifecycle, now)
                else:
                    outputs.append(make(Output, (sequence.request.request_id, sequence.choice, sampled, logprobs, None, None)))
        else:
            _commit_stopped(sequence, sampled, logprobs, outputs, lifecycle, now)
    cache.release_step(plan.step)
    return outputs


def finish_reason(sequence: Sequence) -> Finish | None:
    """The reason for which the sequence ends with its newest id, if it does: a stop id behind `min_tokens` outputs, or its length.
    Stop strings are the front end's."""
    if sequence.known[-1] in sequence.stop_ids and sequence.outputs > sequence.request.min_tokens:
        return Finish.STOP
    return Finish.LENGTH if len(sequence.known) >= sequence.limit else None


def _accepted(sequences: list[Sequence], plan: Plan, result: Result) -> tuple[list[int], list[Ids], list[Logprobs]]:
    """Row for row: how many positions count, which ids, with their log-probabilities. What was scheduled, and promised, follows."""
    counts, taken, shown = list(plan.count), list(result.sampled), list(result.logprobs or [None] * len(sequences))
    for index, (sequence, end) in enumerate(zip(sequences, accumulate(plan.count), strict=True)):
        samples, ids = plan.sample[index], taken[index]
        _check_verification(plan, index, ids, plan.tokens[end - samples + 1 : end] if samples else (), bool(result.finite[index]))
        kept = _accepted_length(sequence, ids)
        taken[index], logprobs = ids[:kept], shown[index]
        if logprobs is not None:
            shown[index] = logprobs[:kept]
        counts[index] -= samples - kept
        sequence.drafted = 0
        if samples > 1 and kept:
            sequence.target += kept - 1
            if sequence.state is State.RUNNING:
                sequence.scheduled += kept - 1
    return counts, taken, shown


def _check_verification(plan: Plan, index: int, ids: Ids, drafts: Items[int], finite: bool) -> None:
    """The ids of a row are its drafts up to and including the first that differs; fewer only where the position behind is not finite."""
    samples, length = plan.sample[index], len(ids)
    if finite:
        certain, ends = length - 1, length == samples or (0 < length < samples and ids[-1] != drafts[length - 1])
    else:
        certain, ends = length, length < max(1, samples)
    if not ends or any(token != draft for token, draft in zip(ids[: max(0, certain)], drafts, strict=False)):
        raise LawViolation(4, f"step {plan.step} sampled {ids} at row index {index}, {samples} times at most, with drafts {list(drafts)}")


def _accepted_length(sequence: Sequence, ids: Ids) -> int:
    """The number of ids that count: those up to the first that ends the sequence."""
    first, least, known = sequence.outputs, sequence.request.min_tokens, len(sequence.known)
    for length, token in enumerate(ids, 1):
        if (token in sequence.stop_ids and first + length > least) or known + length >= sequence.limit:
            return length
    return len(ids)


def _emit_ids(sequence: Sequence, sampled: Ids, logprobs: Logprobs, outputs: list[Output], lifecycle: Lifecycle, now: float) -> bool:
    """Ids that are known already go out, with the end if they bring it; whether they do."""
    reason = finish_reason(sequence)
    outputs.append(Output(sequence.request.request_id, sequence.choice, sampled, logprobs, reason))
    if reason is not None:
        lifecycle.end(sequence, reason, now)
    return reason is not None


def _emit_scores(sequences: list[Sequence], plan: Plan, result: Result, outputs: list[Output]) -> None:
    """Log-probabilities of prompt tokens go out before ids: they count though the row has been preempted since, not if it has ended."""
    scores, expected = result.scores or (), [count for _, _, count in plan.score]
    if [len(found) for found in scores] != expected:
        raise LawViolation(4, f"step {plan.step} scored {[len(found) for found in scores]} prompt positions, its plan names {expected}")
    for (index, _, _), found in zip(plan.score, scores, strict=True):
        sequence = sequences[index]
        if result.finite[index] and sequence.state in (State.RUNNING, State.WAITING):
            outputs.append(Output(sequence.request.request_id, sequence.choice, (), prompt_logprobs=found))


def _commit_stopped(sequence: Sequence, sampled: Ids, logprobs: Logprobs, outputs: list[Output], lifecycle: Lifecycle, now: float) -> None:
    """A row that was preempted or ended after this step was planned: ids count for the former, nothing for the latter."""
    if sequence.state is State.WAITING and sampled:
        sequence.known += sampled
        _emit_ids(sequence, sampled, logprobs, outputs, lifecycle, now)
    if not sequence.in_flight:
        lifecycle.on_drained(sequence)


def _fail_non_finite(sequence: Sequence, sampled: Ids, logprobs: Logprobs, outputs: list[Output], lifecycle: Lifecycle, now: float) -> None:
    """The row's hidden states are not finite: ids before them go out, then the choice ends with an error unless those end it. Nothing
    more of it is published."""
    if sequence.state in (State.RUNNING, State.WAITING):
        sequence.known += sampled
        if not sampled or not _emit_ids(sequence, sampled, logprobs, outputs, lifecycle, now):
            sequence.message = NOT_FINITE
            outputs.append(Output(sequence.request.request_id, sequence.choice, (), None, Finish.ERROR))
            lifecycle.end(sequence, Finish.ERROR, now)
    if not sequence.in_flight:
        lifecycle.on_drained(sequence)
