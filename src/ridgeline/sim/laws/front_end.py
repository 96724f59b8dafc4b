"""Simulated front end: reads outputs, finds stop strings after a delay, answers provisional ends, counts the ids of each choice.

Owns one oracle per choice and the laws that only a client can observe (1, 8, 9, 10, 11, 15); never touches the scheduler.
A stop string is modelled as a short pattern of ids.
"""

from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any

from ridgeline.core import events
from ridgeline.core.commands import Abort, Admit, Close, Command, Output
from ridgeline.core.events import Finish
from ridgeline.core.params import Admitted
from ridgeline.engine.engine import Turn
from ridgeline.errors import LawViolation
from ridgeline.sim.laws.oracle import AnswerSource, Oracle
from ridgeline.sim.laws.workload import World

Key = tuple[str, int]


class Choice:
    """State of one choice in the front end.

    requested_close  the close that was sent: number of outputs to keep and the reason; None before
    num_new_ids      ids in the newest output
    """

    __slots__ = ("closed", "end", "num_new_ids", "oracle", "pattern", "requested_close")

    def __init__(self, oracle: Oracle, pattern: tuple[int, ...]) -> None:
        self.oracle = oracle
        self.pattern = pattern
        self.num_new_ids = 0
        self.end: Finish | None = None
        self.requested_close: tuple[int, Finish] | None = None
        self.closed: Finish | None = None

    def find_stop(self, num_known: int) -> int | None:
        """Number of outputs before the first stop pattern that ends after the first `num_known` outputs; None without one."""
        ids, pattern = self.oracle.ids, self.pattern
        if pattern:
            for end in range(max(num_known, self.oracle.request.min_tokens) + 1, len(ids) + 1):
                if tuple(ids[max(0, end - len(pattern)) : end]) == pattern:
                    return end - len(pattern)
        return None


class FrontEnd:
    """Follows every request from its admission to the end of its last choice.

    source      the right answer of a choice
    not_finite  first positions that no id may be sampled from since the executor has reported NaN, by (seed, choice)
    send        `send(delay, command)`: the command reaches the engine `delay` seconds later
    """

    def __init__(
        self,
        world: World,
        source: Callable[[Admitted, int], AnswerSource],
        not_finite: Mapping[tuple[int, int], int],
        send: Callable[[float, Command], None],
    ) -> None:
        self.choices: dict[Key, Choice] = {}
        self.aborted: set[str] = set()
        self.rejected: set[str] = set()
        self._world = world
        self._rng = Random(world.seed + 1)
        self._requests: dict[str, Admitted] = {}
        self._continued: set[str] = set()
        """Requests that another engine goes on with."""
        self._source = source
        self._not_finite = not_finite
        self._send = send
        self._time = 0.0
        self._handlers: dict[type, Callable[[Any], None]] = {
            events.Rejected: self._on_rejected,
            events.Closed: self._on_closed,
            events.Scheduled: self._check_time,
            events.Computed: self._check_time,
            events.Started: self._check_time,
            events.Preempted: self._maybe_abort,
            events.Waiting: self._maybe_abort,
            events.EndedProvisionally: self._maybe_abort,
        }

    def on_turn(self, commands: Sequence[Command], turn: Turn) -> None:
        """Checks one turn of the engine: its commands, outputs and events. Raises LawViolation."""
        ended = self._apply_commands(commands)
        for event in turn.events:
            if type(event) is events.Admitted:
                self._on_admitted(event)
        for output in turn.outputs:
            if (output.request_id, output.choice) in ended:
                raise LawViolation(1, f"{output.request_id}/{output.choice} was closed by its client and emits {output.ids}")
            self._on_output(output)
        for event in turn.events:
            handler = self._handlers.get(type(event))
            if handler is not None:
                handler(event)
        for key in ended:
            if self.choices[key].closed is None:
                raise LawViolation(1, f"{key[0]}/{key[1]} was closed by its client and is still open")

    def _apply_commands(self, commands: Sequence[Command]) -> set[Key]:
        """Records commands; returns the choices that they end."""
        ended: set[Key] = set()
        for command in commands:
            match command:
                case Admit(request):
                    if request.request_id in self._requests:
                        self._continued.add(request.request_id)
                    self._requests[request.request_id] = request
                case Abort(request_id):
                    self.aborted.add(request_id)
                    ended.update(key for key in self.choices if key[0] == request_id)
                case Close(request_id, choice):
                    ended.add((request_id, choice))
        return ended

    def _on_output(self, output: Output) -> None:
        """Compares new ids with the oracle and answers ends after the delay."""
        choice = self._choice(output.request_id, output.choice)
        if choice.closed is not None or choice.end is not None:
            raise LawViolation(1, f"{output.request_id}/{output.choice} has ended and emits {output.ids}, end {output.end}")
        oracle = choice.oracle
        if output.prompt_logprobs is not None:
            oracle.follow_prompt(output.prompt_logprobs)
        oracle.follow(output.ids, output.logprobs)
        choice.end, choice.num_new_ids = output.end, len(output.ids)
        if output.end in (Finish.STOP, Finish.LENGTH) and output.end is not oracle.ended:
            raise LawViolation(1, f"{output.request_id}/{output.choice} ends with {output.end}, its ids demand {oracle.ended}")
        if output.end is None and oracle.ended is not None:
            raise LawViolation(1, f"{output.request_id}/{output.choice} goes on although its ids demand {oracle.ended}")
        if oracle.request.two_phase and choice.requested_close is None and output.end in (None, Finish.STOP, Finish.LENGTH, Finish.ERROR):
            self._send_close(output, choice, len(oracle.ids) - len(output.ids))

    def finish(self) -> None:
        """Checks at the end of the run that each choice of each accepted request has ended."""
        for request_id, request in self._requests.items():
            opened = [(request_id, index) in self.choices for index in range(request.choices)]
            if request_id in self.rejected:
                if any(opened):
                    raise LawViolation(1, f"{request_id} was both accepted and rejected")
            elif not all(opened):
                raise LawViolation(1, f"{request_id} was neither accepted nor rejected")
        for (request_id, index), choice in self.choices.items():
            if choice.closed is None:
                raise LawViolation(1, f"{request_id}/{index} never ended")

    def _choice(self, request_id: str, index: int) -> Choice:
        choice = self.choices.get((request_id, index))
        if choice is None:
            raise LawViolation(1, f"{request_id}/{index} was never accepted")
        return choice

    def _send_close(self, output: Output, choice: Choice, num_known: int) -> None:
        keep = choice.find_stop(num_known)
        if keep is not None:
            choice.requested_close = (keep, Finish.STOP)
        elif output.end is not None:
            choice.requested_close = (len(choice.oracle.ids), output.end)
        else:
            return
        close = Close(output.request_id, output.choice, *choice.requested_close)
        self._send(self._world.close_delay, close)
        if self._world.repeats_close:
            self._send(self._world.close_delay * 2, close)

    # ── events ──────────────────────────────────────────────────────────────────────────────────────────────────

    def _check_time(self, event: events.Admitted | events.Closed | events.Scheduled | events.Computed | events.Started) -> None:
        time = event.time
        if time < self._time:
            raise LawViolation(11, f"time goes back from {self._time} to {time}")
        self._time = time

    def _on_admitted(self, event: events.Admitted) -> None:
        self._check_time(event)
        request = self._requests[event.request_id]
        pattern = self._pattern(request)
        for index in range(request.choices):
            if (event.request_id, index) in self.choices:
                if event.request_id in self._continued:
                    continue
                raise LawViolation(1, f"{event.request_id} is accepted twice")
            self.choices[event.request_id, index] = Choice(Oracle(request, index, self._source(request, index)), pattern)

    def _pattern(self, request: Admitted) -> tuple[int, ...]:
        if not request.two_phase:
            return ()
        alphabet = self._world.model.alphabet
        draw = hash((request.seed, 3))
        return tuple(alphabet[(draw >> shift) % len(alphabet)] for shift in ((0,) if len(alphabet) > 4 else (0, 9)))

    def _on_rejected(self, event: events.Rejected) -> None:
        if event.request_id in self.rejected:
            raise LawViolation(1, f"{event.request_id} is rejected twice")
        self.rejected.add(event.request_id)

    def _maybe_abort(self, event: events.Preempted | events.Waiting | events.EndedProvisionally) -> None:
        if self._world.abort_permille and self._rng.randrange(1000) < self._world.abort_permille:
            self._send(self._rng.choice((0.0, 0.005)), Abort(event.request_id))

    def _on_closed(self, event: events.Closed) -> None:
        self._check_time(event)
        name = f"{event.request_id}/{event.choice}"
        choice = self._choice(event.request_id, event.choice)
        if choice.closed is not None:
            raise LawViolation(1, f"{name} ends twice: {choice.closed}, then {event.reason}")
        choice.closed = event.reason
        self._check_reason(name, choice, event)
        self._check_usage(name, choice, event.usage)

    def _check_reason(self, name: str, choice: Choice, event: events.Closed) -> None:
        request = choice.oracle.request
        nan_at = self._not_finite.get((request.seed, event.choice))
        if event.reason is Finish.ABORT:
            if event.request_id not in self.aborted:
                raise LawViolation(1, f"{name} is aborted without an abort command")
        elif event.reason is Finish.ERROR:
            if nan_at is None:
                raise LawViolation(15, f"{name} ends with an error and computed no NaN")
            if nan_at >= len(request.prompt) + len(choice.oracle.ids):
                raise LawViolation(15, f"{name} ends with an error after {len(choice.oracle.ids)} ids, the NaN is at position {nan_at}")
        else:
            expected = choice.requested_close if request.two_phase else (len(choice.oracle.ids), choice.oracle.ended)
            if expected != (event.usage.completion_tokens, event.reason):
                raise LawViolation(1, f"{name} ends with {event.usage.completion_tokens} ids, {event.reason}; expected {expected}")
            if nan_at is not None and nan_at <= len(request.prompt) + event.usage.completion_tokens - 2:
                raise LawViolation(15, f"{name} answers from position {nan_at}, which computed to NaN")

    def _check_usage(self, name: str, choice: Choice, usage: events.Usage) -> None:
        request = choice.oracle.request
        num_counted = len(choice.oracle.ids)
        if choice.requested_close and choice.closed in (Finish.STOP, Finish.LENGTH):
            num_counted = choice.requested_close[0]
        if (usage.prompt_tokens, usage.completion_tokens) != (len(request.prompt), num_counted):
            raise LawViolation(10, f"{name} is charged {usage}, its prompt has {len(request.prompt)} ids and its answer {num_counted}")
        if not 0 <= usage.cached_tokens < len(request.prompt):
            raise LawViolation(10, f"{name}: {usage.cached_tokens} of {len(request.prompt)} prompt tokens were cached")
