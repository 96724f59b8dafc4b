"""The replicas of a router: which are ready, what each has to do, and which one gets a request.

Owns health: `/readyz` is asked every second, which a replica answers with 200 exactly when it takes requests; and failures in a row open a
circuit breaker, longer each time, that one answer closes. The last replica that may still answer is never shut out. Answers of 4xx and 429
are no failures. The choice itself is a policy of `core.routing`, the one that the simulator has.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from itertools import accumulate, count
from math import inf
from typing import Final

from ridgeline.core.routing import ReplicaLoad, RoutingPolicy
from ridgeline.observe.logs import with_fields
from ridgeline.router.budget import Budget
from ridgeline.router.chooser import Chooser, LoadShare
from ridgeline.router.holding import HoldingRoom
from ridgeline.router.holdings import ASK_SECONDS, SILENT_SECONDS, Holdings
from ridgeline.router.prompts import Prompt
from ridgeline.router.roster import Named, Roster
from ridgeline.router.trial import JUDGED_SECONDS, MOST_COMPARED, PACED_BYTES, Outcome, Trial, Usual
from ridgeline.router.upstream import Headers, Upstream, UpstreamError
from ridgeline.server.routers import KEY_HEADER, NAMES_HEADER, SHARED_HEADER, TAG_BYTES, TAG_HEADER, UNLOADED_HEADER, read_names

log = logging.getLogger("ridgeline.router")

CHECK_SECONDS: Final = 1.0
WANTED_CHECK_SECONDS: Final = 0.1
"""The same while requests wait for a replica."""
CHECK_TIMEOUT_SECONDS: Final = 5.0
FAILURES: Final = 5
"""Failures in a row that open the breaker, as in Envoy."""
FIRST_PAUSE_SECONDS: Final = 1.0
MOST_PAUSE_SECONDS: Final = 30.0
MISSED_CHECKS: Final = 3
"""Checks in a row without an answer behind which a replica's open requests are given up, and its cache is taken for lost."""


class Replica:
    """One server behind the router. `share`: the part of all requests that it gets as a canary; 0: it is none."""

    def __init__(self, number: int, named: Named, key: bytes | None = None) -> None:
        """`key`: the router's, as 32 bytes, for which the server tells what only routers may know."""
        self.upstream = Upstream(named.url)
        self.key: Headers = [] if key is None else [(KEY_HEADER, key.hex().encode())]
        self.load = ReplicaLoad(number, weight=named.weight)
        self.share = named.share
        self.is_leaving = False
        """Named no longer: it gets requests only where there is no other, and goes behind its last answer."""
        self.has_left = False
        self.is_ready = False
        self.why_not = "not asked yet"
        self.shares_responses = False
        """Others find the answers that it has stored."""
        self.tag = b""
        """Ends the ids of answers that it stores, as it says."""
        self.turns: set[Turn] = set()
        """Requests that it has."""
        self.answers: deque[Outcome] = deque(maxlen=MOST_COMPARED)
        """Outcomes since the last look at canaries."""
        self.trial = Trial()
        self.is_stopped = False
        """A canary that was worse than the others."""
        self._missed = 0
        self._failures = 0
        self._pause = FIRST_PAUSE_SECONDS
        self._shut_until = self._ready_at = 0.0
        """Times until which the breaker is open, and at which the server should be ready, as it says."""

    @property
    def number(self) -> int:
        """The replica's own among all that there have been."""
        return self.load.number

    def rename(self, named: Named | None) -> None:
        """Notes how it is named now; None: no longer. A canary with another share is tried anew."""
        self.is_leaving = named is None
        if named is not None:
            self.load.weight = named.weight
            if named.share != self.share:
                self.share, self.is_stopped, self.trial = named.share, False, Trial()
                self.answers.clear()

    def is_shut(self, now: float) -> bool:
        """True while the breaker is open."""
        return now < self._shut_until

    def seconds_to_try(self, now: float) -> float:
        """Seconds until it may take requests: as it has said, or those of the breaker; of one that is silent those to its next check."""
        return max(CHECK_SECONDS, self._shut_until - now, self._ready_at - now)

    def serving(self, tokens: int, cached: int) -> "Turn":
        """Counts a request of so many prompt tokens while it lasts; `cached` of them need no prefill."""
        return Turn(self, tokens, cached)

    def note_failure(self) -> None:
        """Notes that it did not answer as it should."""
        self._failures += 1
        if self._failures >= FAILURES and time.monotonic() >= self._shut_until:
            self._shut_until = time.monotonic() + self._pause
            self._pause = min(MOST_PAUSE_SECONDS, 2 * self._pause)
            log.warning("replica is shut out", extra=with_fields(replica=self.upstream.url, failures=self._failures))

    def note_silence(self) -> None:
        """Notes that it could not be reached: it gets nothing until it answers a check."""
        self.is_ready, self.why_not = False, "does not answer"
        self.note_failure()

    def note_answer(self) -> None:
        """Notes that it answered, whatever it said."""
        if self._failures >= FAILURES:
            log.info("replica answers again", extra=with_fields(replica=self.upstream.url))
        self._failures, self._shut_until = 0, 0.0
        self._pause = FIRST_PAUSE_SECONDS

    async def check(self) -> bool:
        """Asks `/readyz`; True if it answers again behind so long a silence that its cache may be another."""
        before, missed = self.is_ready, self._missed
        try:
            async with asyncio.timeout(CHECK_TIMEOUT_SECONDS):
                status, said = await self._ask_ready()
        except (UpstreamError, TimeoutError):
            self.is_ready, self.why_not = False, "does not answer"
            self._missed += 1
            if self._missed == MISSED_CHECKS:
                self.upstream.close()
        else:
            self.is_ready, self.why_not, self._missed = status == 200, "" if status == 200 else said, 0
            if self.is_ready and not before:
                self.note_answer()
        if self.is_ready != before:
            text = "replica is ready" if self.is_ready else "replica is not ready"
            log.info(text, extra=with_fields(replica=self.upstream.url, reason=self.why_not or None))
        return self.is_ready and missed >= MISSED_CHECKS

    def _hear(self, told: dict[bytes, bytes]) -> None:
        """Notes what a server that is ready says of itself."""
        self.shares_responses = told.get(SHARED_HEADER.encode()) == b"responses"
        self.tag = told.get(TAG_HEADER.encode(), b"")
        self.load.names, self.load.unloaded = (read_names(told.get(name.encode(), b"")) for name in (NAMES_HEADER, UNLOADED_HEADER))

    async def _ask_ready(self) -> tuple[int, str]:
        connection = await self.upstream.connect()
        try:
            status, body = await connection.send(self.upstream.request("GET", b"/readyz", [], b"", self.key)), b""
            told = dict(connection.headers)
            self._ready_at = time.monotonic() + _seconds(told.get(b"retry-after", b"")) if status != 200 else 0.0
            if status == 200:
                self._hear(told)
            while part := await connection.read():
                body = (body + part)[:200]
        finally:
            self.upstream.release(connection)
        return status, body.decode("utf-8", "replace")


def _seconds(header: bytes) -> float:
    """The seconds of a Retry-After, at most `MOST_PAUSE_SECONDS`; 0 where it says none."""
    return min(MOST_PAUSE_SECONDS, float(header)) if header.isdigit() else 0.0


class Turn:
    """A request that a replica has: its share of the load, from the making of this to the end of its context.

    is_stream  its answer is one
    is_held    its client does not read as fast as it could
    passed     bytes of the answer behind the first ones
    """

    def __init__(self, replica: Replica, tokens: int, cached: int) -> None:
        self.replica = replica
        self._began = time.monotonic()
        self._first: float | None = None
        self._share = LoadShare()
        self._share.begin(replica.load, tokens, cached)
        self.is_stream = self.is_held = self._is_judged = False
        self.passed = 0
        replica.turns.add(self)

    def first_byte(self) -> float:
        """The answer begins: the prompt waits no longer. Returns the seconds that it took."""
        self._share.first_byte()
        self._first = time.monotonic()
        return self._first - self._began

    def judge(self, is_good: bool) -> None:
        """Notes whether the replica answered as it should. A request whose client has gone is not judged, and none twice."""
        if not self._is_judged:
            self._is_judged, now = True, time.monotonic()
            seconds = inf if self._first is None else self._first - self._began
            self.replica.answers.append(Outcome(now, is_good, seconds, self._pace(now), self.is_stream))

    def look(self, now: float, patience: float) -> None:
        """Judges an answer under way that should have begun, or has for long enough."""
        if self._first is None and now - self._began > patience:
            self._first = now  # at best
        if self._first is not None and now - self._first >= JUDGED_SECONDS:
            self.judge(is_good=True)

    def _pace(self, now: float) -> float | None:
        if self._first is None or not self.is_stream or self.is_held:
            return None
        seconds = now - self._first
        return seconds / max(1, self.passed) if self.passed >= PACED_BYTES or seconds >= JUDGED_SECONDS else None

    def __enter__(self) -> "Turn":
        return self

    def __exit__(self, *error: object) -> None:
        self.end()

    def end(self) -> None:
        """The request is over, or another replica has it."""
        self._share.end()
        self.replica.turns.discard(self)


class Replicas:
    """All of them, and what the router has learned of their caches."""

    def __init__(
        self, named: Sequence[Named], policy: RoutingPolicy, key: bytes | None = None, seed: int | None = None, hold_seconds: float = 0.0
    ) -> None:  # fmt: skip
        """`key`: of the router and its replicas."""
        self.all: list[Replica] = []
        self.room = HoldingRoom(hold_seconds)
        """The room where requests wait while no replica is there."""
        self.chooser = Chooser(policy, seed)
        self.budget, self._searches = Budget(), Budget()
        """Budgets of requests that are sent again, and of those that look for a stored answer at one replica after the other."""
        self._usual = Usual()
        self._key = key
        self._numbers = count()
        self.follow(named)

    @property
    def held(self) -> Holdings | None:
        """Blocks that they have told of; None: they are not asked."""
        return self.chooser.held

    def follow(self, named: Sequence[Named]) -> None:
        """Takes these for the replicas. Others get requests only while none of these is ready, and go behind their last answer."""
        told = {each.url: each for each in named}
        for each in self.all:
            each.rename(told.pop(each.upstream.url, None))
        self.all += [Replica(next(self._numbers), each, self._key) for each in told.values()]
        self._has_canaries = any(each.share for each in self.all)
        self._has_leaving = any(each.is_leaving for each in self.all)

    @property
    def open_requests(self) -> int:
        """Requests that some replica has."""
        return sum(each.load.requests for each in self.all)

    def ready(self) -> list[Replica]:
        """Those that may get requests: ready ones whose breaker is closed; with every breaker open, all that are ready. Those that leave
        count only where there is no other."""
        now = time.monotonic()
        ready = [each for each in self.all if each.is_ready and not each.is_stopped]
        if self._has_leaving:
            ready = [each for each in ready if not each.is_leaving] or ready
        return [each for each in ready if not each.is_shut(now)] or ready

    def choose(self, prompt: Prompt, tried: set[int]) -> tuple[Replica, int] | None:
        """(replica for a request, tokens of its prompt in the cache there), or None where none is left that has not been tried."""
        if prompt.bound_to and (owner := self._owner(prompt)) is not None and owner.is_ready and owner.number not in tried:
            return owner, 0
        ready = self.ready()
        if tried:
            ready = [each for each in ready if each.number not in tried]
        if not ready:
            return None
        if self._has_canaries:
            chance = self.chooser.draw()
            shares = accumulate(each.share for each in ready)
            canary = next((each for each, upto in zip(ready, shares, strict=True) if each.share and chance < upto), None)
            ready = [canary] if canary is not None else [each for each in ready if not each.share] or ready
        loads = [each.load for each in ready]
        number, cached = self.chooser.choose(loads, prompt)
        return ready[[load.number for load in loads].index(number)], cached

    def note(self, prompt: Prompt, replica: Replica) -> None:
        """Notes a request that a replica was sent without a choice."""
        self.chooser.note(prompt, replica.number)

    def only(self) -> Replica | None:
        """The one that gets every request, whatever it asks for; None where there may be a choice."""
        return only if len(self.all) == 1 and (only := self.all[0]).is_ready and not only.is_stopped else None

    def _owner(self, prompt: Prompt) -> Replica | None:
        """The replica that has stored the answer which a request names, as its id says; None: that one has gone, or is none of these."""
        tag = prompt.bound_to[-TAG_BYTES:]
        return next((each for each in self.all if each.tag == tag), None)

    def may_search(self, prompt: Prompt, tried: set[int]) -> bool:
        """True if another replica may be asked for the stored answer that a request names, as the last one has not got it."""
        return bool(prompt.bound_to) and any(each.number not in tried for each in self.ready()) and self._searches.take()

    def may_have(self, prompt: Prompt, without: set[int]) -> bool:
        """True if a replica that has not said otherwise may have the stored answer that a request names."""
        if not prompt.bound_to:
            return False
        owner = self._owner(prompt)
        may = [each for each in self.all if each.is_ready or not each.tag] if owner is None else [owner]
        return any(each.number not in without for each in may)

    async def watch(self, roster: Roster) -> None:
        """Asks every replica how it is, each second, holds canaries against the others, and follows who is named. Never returns."""
        watched = set[int]()
        async with asyncio.TaskGroup() as group:
            while True:
                if roster.look():
                    self.follow(roster.named)
                for each in self.all:
                    if each.number not in watched:
                        watched.add(each.number)
                        group.create_task(self._watch_one(each))
                        if self.held is not None:
                            group.create_task(_follow_blocks(each, self.held))
                if self._has_leaving:
                    self._let_go()
                if self._has_canaries:
                    self.judge()
                await asyncio.sleep(CHECK_SECONDS)

    def _let_go(self) -> None:
        """Drops those that leave and have nothing left to answer, or cannot."""
        is_replaced = not all(each.is_leaving for each in self.ready())
        for each in [each for each in self.all if each.is_leaving and not each.load.requests and (is_replaced or not each.is_ready)]:
            self.all.remove(each)
            self.chooser.forget(each.number)
            each.upstream.close()
            each.has_left = True
            log.info("replica has left", extra=with_fields(replica=each.upstream.url))
        self._has_leaving = any(each.is_leaving for each in self.all)

    async def _watch_one(self, replica: Replica) -> None:
        while not replica.has_left:
            if await replica.check():
                self.chooser.forget(replica.number)
            if self.room.count and self.ready():
                self.room.release()
            await self.room.pause(CHECK_SECONDS, WANTED_CHECK_SECONDS)

    def judge(self) -> None:
        """Stops canaries whose last answers were worse than the others'."""
        now, patience, usual = time.monotonic(), self._usual.patience, list[Outcome]()
        for each in self.all:
            for turn in list(each.turns):
                turn.look(now, patience)
            if not each.share:
                usual += each.answers
                each.answers.clear()
        self._usual.hear(sorted(usual), now)
        for each in [each for each in self.all if each.share and not each.is_stopped and self._usual.bad is not None]:
            each.is_stopped = each.trial.hear(each.answers, self._usual)
            each.answers.clear()
            if each.is_stopped:
                fields = with_fields(replica=each.upstream.url, **self._usual.limits._asdict())
                log.warning("canary is stopped: its answers are worse than the others'", extra=fields)

    def close(self) -> None:
        """Closes all connections."""
        for each in self.all:
            with suppress(OSError):
                each.upstream.close()

    def turn_away(self) -> None:
        """Ends the wait of requests that no replica has."""
        self.room.release(is_served=False)


async def _follow_blocks(replica: Replica, held: Holdings) -> None:
    """Asks a replica which blocks have come and gone, until it has left."""
    while not replica.has_left:
        tells = replica.is_ready and await held.ask(replica.number, replica.upstream, replica.key)
        await asyncio.sleep(ASK_SECONDS if tells else SILENT_SECONDS if replica.is_ready else ASK_SECONDS)
    held.forget(replica.number)
