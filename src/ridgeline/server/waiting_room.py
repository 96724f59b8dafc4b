"""The bound on what waits, its shares for tenants, and Retry-After by the queue's real pace.

What waits is counted in sequences: a request has one for each prompt and each of its n choices. A tenant may have its share of all places,
rows and queue together, by its weight among the tenants that have something open: alone it has all of them. So a tenant that floods the
server fills its own share and hears of it, and another one's next request has a place. Clocks are passed in.
"""

from collections import Counter, deque
from collections.abc import Mapping
from itertools import islice
from typing import Final

from ridgeline.errors import OverloadedError, RequestError
from ridgeline.server.keys import Caller
from ridgeline.server.promises import Promises
from ridgeline.server.targets import Patience

MIN_ENDS: Final = 96
MOST_BEHIND: Final = 2
"""Rounds of all rows: more that would wait, had nobody been refused, are not counted, as they would not wait for ever."""
NO_PATIENCE: Final = Patience()


class QueuePace:
    """Sequences that end per second, measured while others wait: an engine that is not full ends what comes, and tells nothing of what it
    could do."""

    def __init__(self) -> None:
        self._ends: deque[tuple[float, int]] = deque()
        """Busy second, ends: the newest, at least two rounds of all rows."""
        self._half: tuple[float, int] | None = None
        """Busy second at which the newer half of them begins, and its ends; None: to be counted."""
        self._sum = 0
        self._busy = 0.0
        self._began = 0.0
        """Busy second at which the oldest of `_ends` began to be waited for."""
        self._at: float | None = None

    def advance(self, now: float, was_full: bool) -> None:
        """Counts the time since the last call as busy if something waited. Call it before every change."""
        if self._at is not None and was_full:
            self._busy += now - self._at
        self._at = now

    def on_ended(self, count: int, rows: int) -> None:
        """Counts ends of now, of a full engine."""
        self._ends.append((self._busy, count))
        self._half = None
        self._sum += count
        while len(self._ends) > 1 and self._sum - self._ends[0][1] >= max(MIN_ENDS, 2 * rows):
            self._began, oldest = self._ends.popleft()
            self._sum -= oldest

    @property
    def is_known(self) -> bool:
        """True once something has ended while others waited."""
        return self._sum > 0

    @property
    def waited(self) -> float:
        """Seconds for which ends have been waited for, as far back as is known."""
        return self._busy - self._began

    def per_second(self) -> float:
        """The pace, of all that is known or of its newer half, whichever is slower: where answers grow the older half is no measure. With
        no end yet, that of one end in all the time for which it was waited, or in a second."""
        pace = max(1, self._sum) / max(self.waited, 1e-3 if self._sum else 1.0)
        if len(self._ends) < 2:
            return pace
        if self._half is None:
            middle = len(self._ends) // 2
            self._half = self._ends[middle - 1][0], sum([count for _, count in islice(self._ends, middle, None)])
        began, ends = self._half
        return min(pace, ends / max(self._busy - began, 1e-3))


class Backlog:
    """Sequences that would wait if nobody had been refused: they tell a server that has fallen behind from one that is busy for a moment.

    Who is too late for a target ranks behind all who are not, and costs them nothing. A lull will serve him, if there is one: refusing him
    in a short queue loses his tokens and gains nothing, taking him under lasting overload fills the queue with those who are late.
    """

    def __init__(self) -> None:
        self.is_lasting = False
        """True from the moment at which the queue is no passing one until nobody would wait."""
        self._sequences = 0.0
        self._at = 0.0

    def advance(self, now: float, waiting: int, pace: float) -> None:
        """Counts the time since the last call, in which so many waited; 0: rows were free, and would have worked it off at this pace, in
        sequences per second. Call it before every change."""
        if waiting <= 0:
            self._sequences -= pace * (now - self._at)
        self._sequences = max(self._sequences, waiting, 0)
        self._at = now

    def add(self, count: int, waiting: int, rows: int) -> None:
        """Counts so many who come, of whom `waiting` have no row: while others would wait all of them would, behind these. As many as there
        are rows are no passing queue."""
        self._sequences = min(self._sequences + (count if self._sequences else waiting), MOST_BEHIND * rows)
        if not self._sequences or self._sequences > rows:
            self.is_lasting = self._sequences > 0

    def on_ended(self, count: int) -> None:
        """Counts so many ends while others waited."""
        self._sequences = max(0.0, self._sequences - count)


class WaitingRoom:
    """Admits sequences or refuses them. `refused` counts requests, by tenant."""

    def __init__(self, max_waiting: int) -> None:
        self.refused: Counter[str] = Counter()
        self.max_waiting = max_waiting
        self._pace = QueuePace()
        self._backlog = Backlog()
        self._weights: dict[str, int] = {}
        self._promises = Promises()
        """Promises to those of a tenant who were refused."""

    def check(
        self,
        caller: Caller,
        count: int,
        rows: int,
        open_: Mapping[str, int],
        now: float,
        patience: Patience = NO_PATIENCE,
        ahead: int | None = None,
    ) -> None:
        """Raises OverloadedError where `count` more sequences of the caller would have to wait and may not, RequestError where they never
        may.

        open_     sequences of each tenant that has some
        patience  for how long they may wait, by the pace of the queue; a target counts under lasting overload
        ahead     sequences of the caller's tenant that go first; None: all that wait
        """
        total, own = sum(open_.values()), open_.get(caller.tenant, 0)
        self._advance(now, total, rows)
        places = rows + self.max_waiting
        if count > places:
            raise RequestError(
                f"this request brings {count} sequences, one for each prompt and choice; this server takes at most {places} at once. "
                "Send fewer prompts, or lower n.", param="prompt"
            )  # fmt: skip
        self._backlog.add(count, max(0, min(count, total + count - rows)), rows)
        share = self._share(caller, open_)
        if total + count <= rows:
            return
        limit = max(int(places * share), count if own == 0 else 1)
        waiting = max(0, own - int(rows * share))
        limits = patience if self._backlog.is_lasting else (patience.deadline,)
        seconds = min([each for each in limits if each is not None], default=None)
        wait = 0.0
        if seconds is not None and self._pace.is_known:
            wait = (waiting if ahead is None else ahead) / (self._pace.per_second() * share)
        is_in_time = seconds is None or wait <= seconds
        if own + count <= limit and is_in_time:
            return
        whose = "" if share == 1 else " for this key's tenant"
        message = f"at most {limit - int(rows * share)} may wait"
        if own + count <= limit:
            message = f"it would wait for {wait:.1f} s, and be too late for its target or deadline behind {seconds:.1f} s"
        text = f"{waiting} sequences wait already{whose} and this request brings {count}; {message}"
        raise self._refusal(caller.tenant, text, waiting, count, share, now)

    def late(self, caller: Caller, count: int, rows: int, open_: Mapping[str, int], now: float) -> OverloadedError:
        """The refusal of one of the caller's requests that waits for a row, is one of those in `open_`, and would have one too late."""
        self._advance(now, sum(open_.values()), rows)
        share = self._share(caller, open_)
        waiting = max(0, open_.get(caller.tenant, 0) - count - int(rows * share))
        return self._refusal(caller.tenant, "it has waited too long for its first token to come in time", waiting, count, share, now)

    def _share(self, caller: Caller, open_: Mapping[str, int]) -> float:
        """The caller's share of all places, by weight among the tenants that have something open."""
        self._weights[caller.tenant] = caller.weight
        return caller.weight / sum(self._weights.get(tenant, 1) for tenant in {caller.tenant, *open_})

    def _refusal(self, tenant: str, text: str, waiting: int, count: int, share: float, now: float) -> OverloadedError:
        """A refusal, counted, with the time at which `count` sequences would find places behind those that wait."""
        self.refused[tenant] += 1
        pace = self._pace.per_second() * share
        return OverloadedError(text, self._promises.retry_after(tenant, waiting / pace, count / pace, now))

    def wait_seconds(self, total: int, rows: int, now: float) -> float:
        """Seconds until those who wait should have been served; `total` sequences are open. Before any has ended, the time for which they
        have waited."""
        self._advance(now, total, rows)
        if total <= rows:
            return 0.0
        return (total - rows) / self._pace.per_second() if self._pace.is_known else self._pace.waited

    @property
    def seconds_per_place(self) -> float:
        """Seconds in which one sequence ends while all rows are taken, as measured so far; 0 before any has."""
        return 1 / self._pace.per_second() if self._pace.is_known else 0.0

    def on_ended(self, count: int, rows: int, total: int, now: float, left: int = 0) -> None:
        """Counts sequences that have ended, and `left` that have left the queue, which frees no row; `total` are open still."""
        before = total + count + left
        self._advance(now, before, rows)
        if count and before > rows:
            self._pace.on_ended(count, rows)
            self._backlog.on_ended(count)

    def _advance(self, now: float, total: int, rows: int) -> None:
        """Counts the time since the last change, in which so many were open."""
        self._pace.advance(now, total > rows)
        self._backlog.advance(now, total - rows, self._pace.per_second() if self._pace.is_known else 0.0)
