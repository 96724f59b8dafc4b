"""The changes of a committed step: ids become known, full blocks are published, sequences end.

Never decides what runs next, and trusts a result only as far as it fits its plan. A row with drafts keeps the accepted ids, up to the first
that ends the sequence; only kept ids advance it.
"""

from collections.abc import Iterable, Iterator
from collections.abc import Sequence as Items
from itertools import repeat
from typing import Final, NamedTuple

from ridgeline.core.commands import Output
from ridgeline.core.events import Finish
from ridgeline.core.kv_blocks import KVBlocks
from ridgeline.core.lifecycle import Lifecycle
from ridgeline.core.plan import DRAFT, IntColumn, Plan, Result, TokenLogprobs
from ridgeline.core.sequence import Sequence, State
from ridgeline.errors import LawViolation

RUNNING: Final = State.RUNNING
"""Looked up once: Python finds members of enumerations by a call."""
Ids = tuple[int, ...]
Logprobs = tuple[TokenLogprobs, ...] | None
Row = tuple[Sequence, int, Ids, int, Logprobs]
"""A row of a result: its sequence, the positions that it computed, its ids, whether it is finite, and its log-probabilities."""
NOT_FINITE = "the model produced numbers that are not finite; the request cannot be answered"


class InFlightStep(NamedTuple):
    """A step between `schedule` and `commit`.

    sequences, numbers  of its rows, in the plan's order
    drafted             ids drafted in all rows
    ahead               steps may be planned behind them
    """

    plan: Plan
    sequences: list[Sequence]
    numbers: tuple[int, ...]
    drafted: int = 0
    ahead: bool = False

    @property
    def is_barrier(self) -> bool:
        """True if nothing is planned behind it until it is committed."""
        return self.drafted > 0 and not self.ahead


def commit(step: InFlightStep, result: Result, lengths: bytearray, cache: KVBlocks, lifecycle: Lifecycle, now: float) -> list[Output]:
    """Applies the result of the oldest step in flight, whose rows sampled `lengths` ids each. Raises LawViolation if the result does not
    fit the plan."""
    outputs: list[Output] = []
    sequences, plan = step.sequences, step.plan
    if plan.score or result.scores is not None:
        _emit_scores(sequences, plan, result, outputs)
    running, new_tuple = RUNNING, tuple.__new__  # half the price of `Output(…)`, which is made for every row of every step
    rows: Iterable[Row]
    if step.drafted or lengths != plan.sample:
        rows = _verified(sequences, plan, result)
    else:
        rows = zip(sequences, plan.count, result.sampled, result.finite, result.logprobs or repeat(None, len(sequences)), strict=True)
    for sequence, count, sampled, finite, logprobs in rows:
        sequence.in_flight -= 1
        if not finite:
            _fail(sequence, _failure(sequences.index(sequence), result), sampled, logprobs, outputs, lifecycle, now)
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
                    outputs.append(new_tuple(Output, (sequence.request.request_id, sequence.choice, sampled, logprobs, None, None, None)))
        else:
            _commit_stopped(sequence, sampled, logprobs, outputs, lifecycle, now)
    if plan.pool or result.vectors:
        _emit_vectors(sequences, plan, result, outputs, lifecycle, now)
    cache.release_step(plan.step)
    return outputs


def finish_reason(sequence: Sequence) -> Finish | None:
    """Returns the reason for which the sequence ends with its newest id, or None: a stop id behind `min_tokens` outputs, or its length.
    Stop strings are found by the front end."""
    if sequence.known[-1] in sequence.stop_ids and sequence.outputs > sequence.request.min_tokens:
        return Finish.STOP
    return Finish.LENGTH if len(sequence.known) >= sequence.limit else None


def _verified(sequences: list[Sequence], plan: Plan, result: Result) -> Iterator[Row]:
    """Yields the rows of a step with drafts: the positions, ids and log-probabilities that count. Advances `scheduled` and `target` by the
    accepted drafts. Raises LawViolation if the ids of a row do not fit its drafts."""
    tokens, end = _drafted(plan, result) if plan.spans or result.drafted else plan.tokens, 0
    logprobs_of = result.logprobs or repeat(None, len(sequences))
    columns = zip(sequences, plan.count, plan.sample, result.sampled, result.finite, logprobs_of, strict=True)
    for sequence, count, samples, sampled, finite, logprobs in columns:
        end += count
        kept = length = len(sampled)
        if length != samples or not finite or (samples > 1 and sampled[:-1] != tuple(tokens[end - samples + 1 : end])):
            _check_verification(plan, sequences.index(sequence), sampled, tokens[end - samples + 1 : end] if samples else (), bool(finite))
        if len(sequence.known) + length >= sequence.limit or not sequence.stop_ids.isdisjoint(sampled):
            kept = _accepted_length(sequence, sampled)
            sampled, logprobs = sampled[:kept], logprobs and logprobs[:kept]
        if samples > 1 and sequence.state is RUNNING:
            sequence.draft(1 - samples)
        if kept > 1:
            sequence.target += kept - 1
            if sequence.state is RUNNING:
                sequence.scheduled += kept - 1
        yield sequence, count - samples + kept, sampled, finite, logprobs


def _drafted(plan: Plan, result: Result) -> IntColumn:
    """The plan's tokens with the ids that the draft model has drafted. Raises LawViolation if these are not those that the plan names."""
    tokens = plan.tokens[:]
    if [len(ids) for ids in result.drafted] != [span.drafts for span in plan.spans]:
        raise LawViolation(4, f"step {plan.step} drafts {[len(ids) for ids in result.drafted]} ids, not {[s.drafts for s in plan.spans]}")
    by_row = {span.row: ids for span, ids in zip(plan.spans, result.drafted, strict=True) if ids}
    end = 0
    for row, count in zip(plan.row, plan.count, strict=True):
        end += count
        if tokens[end - 1] == DRAFT:
            ids = by_row[row]
            tokens[end - len(ids) : end] = IntColumn("i", ids)
    return tokens


def _check_verification(plan: Plan, index: int, ids: Ids, drafts: Items[int], finite: bool) -> None:
    """Raises LawViolation unless the ids of a row are its drafts up to and including the first that differs; fewer only where the next
    position is not finite."""
    samples, length = plan.sample[index], len(ids)
    if finite:
        accepted, is_complete = length - 1, length == samples or (0 < length < samples and ids[-1] != drafts[length - 1])
    else:
        accepted, is_complete = length, length < max(1, samples)
    if not is_complete or any(token != draft for token, draft in zip(ids[: max(0, accepted)], drafts, strict=False)):
        raise LawViolation(4, f"step {plan.step} sampled {ids} at row index {index}, {samples} at most, with the drafts {list(drafts)}")


def _accepted_length(sequence: Sequence, ids: Ids) -> int:
    """Returns the number of ids up to and including the first that ends the sequence."""
    outputs, min_tokens, known = sequence.outputs, sequence.request.min_tokens, len(sequence.known)
    for length, token in enumerate(ids, 1):
        if (token in sequence.stop_ids and outputs + length > min_tokens) or known + length >= sequence.limit:
            return length
    return len(ids)


def _emit_ids(sequence: Sequence, sampled: Ids, logprobs: Logprobs, outputs: list[Output], lifecycle: Lifecycle, now: float) -> bool:
    """Sends ids that are already known, with the end if they bring it. Returns True if they do."""
    reason = finish_reason(sequence)
    outputs.append(Output(sequence.request.request_id, sequence.choice, sampled, logprobs, reason))
    if reason is not None:
        lifecycle.end(sequence, reason, now)
    return reason is not None


def _emit_scores(sequences: list[Sequence], plan: Plan, result: Result, outputs: list[Output]) -> None:
    """Sends the log-probabilities of prompt tokens, before any ids; to a row that was preempted since too, to one that ended not."""
    scores, expected = result.scores or (), [count for _, _, count in plan.score]
    if [len(found) for found in scores] != expected:
        raise LawViolation(4, f"step {plan.step} scored {[len(found) for found in scores]} prompt positions, its plan names {expected}")
    for (index, _, _), found in zip(plan.score, scores, strict=True):
        sequence = sequences[index]
        if result.finite[index] and sequence.state in (State.RUNNING, State.WAITING):
            outputs.append(Output(sequence.request.request_id, sequence.choice, (), prompt_logprobs=found))


def _emit_vectors(sequences: list[Sequence], plan: Plan, result: Result, outputs: list[Output], lifecycle: Lifecycle, now: float) -> None:
    """Sends the vectors of texts that this step has computed to their ends, which ends their sequences; that of one that was preempted
    since too."""
    if len(result.vectors) != len(plan.pool):
        raise LawViolation(4, f"step {plan.step} pooled {len(result.vectors)} texts, its plan names {len(plan.pool)}")
    for index, vector in zip(plan.pool, result.vectors, strict=True):
        sequence = sequences[index]
        if result.finite[index] and sequence.state in (State.RUNNING, State.WAITING):
            outputs.append(Output(sequence.request.request_id, sequence.choice, (), end=Finish.STOP, vector=vector))
            lifecycle.end(sequence, Finish.STOP, now)


def _commit_stopped(sequence: Sequence, sampled: Ids, logprobs: Logprobs, outputs: list[Output], lifecycle: Lifecycle, now: float) -> None:
    """Commits a row that was preempted or ended after this step was planned: ids count for the former, nothing for the latter."""
    if sequence.state is State.WAITING and sampled:
        sequence.known += sampled
        _emit_ids(sequence, sampled, logprobs, outputs, lifecycle, now)
    if not sequence.in_flight:
        lifecycle.on_drained(sequence)


def _failure(index: int, result: Result) -> str:
    """Returns the reason for which a row cannot go on."""
    return next((reason for row, reason in result.failures if row == index), NOT_FINITE)


def _fail(
    sequence: Sequence, reason: str, sampled: Ids, logprobs: Logprobs, outputs: list[Output], lifecycle: Lifecycle, now: float
) -> None:
    """Ends a row that cannot go on: the ids before that are sent, then the error, unless these ids end the sequence. Nothing more of it is
    published."""
    if sequence.state in (State.RUNNING, State.WAITING):
        sequence.known += sampled
        if not sampled or not _emit_ids(sequence, sampled, logprobs, outputs, lifecycle, now):
            sequence.message = reason
            outputs.append(Output(sequence.request.request_id, sequence.choice, (), None, Finish.ERROR))
            lifecycle.end(sequence, Finish.ERROR, now)
    if not sequence.in_flight:
        lifecycle.on_drained(sequence)
