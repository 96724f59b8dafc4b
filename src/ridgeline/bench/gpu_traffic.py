"""Requests of random ids for an engine in this process, kept coming: what GPU benchmarks put on it without HTTP and without text.

Owns the requests under way and their numbers. What they ask for is the caller's.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from ridgeline.core.commands import Abort, Admit, Command
from ridgeline.core.events import Closed, Rejected
from ridgeline.core.params import SamplingParams
from ridgeline.engine.admit import ModelLimits, admit
from ridgeline.engine.engine import Engine, Turn

POOL: Final = 64
"""Prompts that take turns: to make one takes longer than to admit it."""
SHARED: Final = 8
"""Different beginnings of prompts that share one."""


@dataclass(frozen=True, slots=True)
class Wish:
    """What one request asks for: tokens of its prompt, and how it is sampled. shared: leading ids that it has in common with its like."""

    prompt: int
    params: SamplingParams
    shared: int = 0


class Traffic:
    """Keeps `most` requests of an engine open; each is what `wish` returns for its number."""

    def __init__(self, engine: Engine, most: int, wish: Callable[[int], Wish], longest: int) -> None:
        info, draws = engine.executor.info, random.Random(0)
        self.most = most
        self.closed = 0
        self._limits = ModelLimits(info.vocab, info.max_model_len, frozenset(), info.kv)
        self._wish, self._number = wish, 0
        self._open: set[str] = set()
        self._pool = [tuple(draws.randrange(info.vocab) for _ in range(longest)) for _ in range(POOL)]

    @property
    def open(self) -> frozenset[str]:
        """Requests that have not ended."""
        return frozenset(self._open)

    def commands(self) -> list[Command]:
        """Requests in place of those that have ended."""
        return [self._next() for _ in range(self.most - len(self._open))]

    def take(self, turn: Turn) -> None:
        """Notes what has ended. Raises RuntimeError where the engine refuses a request: the load is then not what was asked for."""
        for event in turn.events:
            if isinstance(event, Rejected):
                raise RuntimeError(f"the engine refuses {event.request_id}: {event.message}")
            if isinstance(event, Closed) and event.request_id in self._open:
                self._open.remove(event.request_id)
                self.closed += 1

    def abort(self) -> list[Command]:
        """Ends everything."""
        return [Abort(name) for name in self._open]

    def _next(self) -> Admit:
        number, self._number = self._number, self._number + 1
        wish = self._wish(number)
        own, common = self._pool[number % POOL], self._pool[number % SHARED]
        ids = (*common[: wish.shared], *own[wish.shared : wish.prompt])
        self._open.add(f"r{number}")
        return Admit(admit(ids, wish.params, self._limits, request_id=f"r{number}", draw_seed=lambda: number))
