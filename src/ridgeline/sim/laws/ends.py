"""Engines that end in the middle of a run, and what stands between them and the front end: the production `OpenRequests`.

Owns when engines end (drawn from the seed) and which commands reach one. What was in flight is lost with it.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from random import Random
from typing import Final

from ridgeline.core.commands import Abort, Admit, Close, Command
from ridgeline.core.events import Event
from ridgeline.engine.engine import Turn
from ridgeline.engine.messages import Frame
from ridgeline.engine.open_requests import OpenRequests
from ridgeline.sim.clock import VirtualClock
from ridgeline.sim.laws.workload import World

MAX_ENDS: Final = 2
"""Ends of one world: a third could be blamed on a request."""


class EngineEnds:
    """The ends of engines in one world, of which most have none."""

    def __init__(self, world: World, clock: VirtualClock, counts: Counter[str]) -> None:
        rng = Random(world.seed + 7)
        self._steps = sorted(rng.randrange(1, rng.choice((12, 60, 200))) for _ in range(rng.choice((0, 0, 0, 0, 1, MAX_ENDS))))
        self._down = rng.choice((0.0, 0.01, 0.05))
        self._events: list[Event] = []
        self._open = OpenRequests(self._events.extend, clock.now)
        self._clock = clock
        self._counts = counts

    def pass_on(self, commands: Sequence[Command]) -> list[Command]:
        """The commands that reach the engine, with those that the front end adds."""
        passed: list[Command] = []
        for command in commands:
            if isinstance(command, Admit):
                admission = self._open.add(command.request, None).admission()
                passed += [admission] if admission else []
            elif not self._is_done(command):
                passed.append(command)
        if self._open.has_suspect:
            passed += self._open.admissions()
        return passed

    def told(self, turn: Turn) -> Turn:
        """The turn as the front end hears of it: with ends that no engine tells."""
        self._open.deliver(Frame(turn.step or 0, turn.time, turn.outputs, turn.events))
        events, self._events[:] = list(self._events), []
        return replace(turn, events=[*events, *turn.events])

    def is_due(self, steps: int) -> bool:
        """True if the engine ends behind so many steps."""
        if not self._steps or steps < self._steps[0]:
            return False
        del self._steps[0]
        return True

    def end(self) -> float:
        """The engine has ended. Returns the seconds until there is another one."""
        self._open.engine_lost()
        self._counts["engine ended under requests"] += bool(self._open)
        return self._down

    def without_engine(self, commands: Sequence[Command]) -> tuple[list[Command], list[Command], Turn]:
        """Commands that come meanwhile: which are carried out, which wait for the next engine, and the turn that tells of them."""
        done, left = list[Command](), list[Command]()
        for command in commands:
            if self._is_done(command):
                done.append(command)
                self._counts[f"{type(command).__name__.lower()} without an engine"] += 1
            else:
                left.append(command)
        return done, left, self.told(Turn(None, self._clock.now(), (), ()))

    def go_on(self) -> list[Command]:
        """Commands that the next engine is given."""
        found: list[Command] = []
        for admission in self._open.admissions():
            found.append(admission)
            for part in admission.delivered:
                self._counts["went on behind its outputs"] += bool(part.ids)
                self._counts["went on before its first output"] += not part.ids
                self._counts["went on while its prompt was being scored"] += not part.ids and part.scored > 0
            self._counts["went on beside a choice that had ended"] += len(admission.delivered) < admission.request.choices
        self._counts["suspect waited for another"] += len(found) < len(self._open)
        return found

    def _is_done(self, command: Command) -> bool:
        match command:
            case Close():
                return self._open.close(command)
            case Abort():
                return self._open.abort(command)
        return False
