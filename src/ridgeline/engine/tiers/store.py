"""Blocks that outlive their engine: asked of tiers for new prompts, and given to tiers behind each commit, by threads of their own.

Owns the threads, what they have brought and what they are yet to write; decides nothing about the cache. What tiers bring reaches the core
as a command, so that a recording has it. No tier is waited for: a fetch has a deadline, and a write that finds the queue full is dropped.
"""

import os
import threading
import time
from collections import Counter
from collections.abc import Callable
from collections.abc import Sequence as Items
from contextlib import suppress
from dataclasses import fields
from itertools import count
from queue import Empty, SimpleQueue
from typing import Final, ParamSpec

from ridgeline.core.commands import BlocksFetched
from ridgeline.core.events import TierUsed
from ridgeline.core.kv_blocks import KVBlocks
from ridgeline.core.params import Admitted
from ridgeline.core.plan import KVShape
from ridgeline.core.prefix_cache import PrefixIndex
from ridgeline.core.sequence import Sequence
from ridgeline.engine.executor import BlockContents
from ridgeline.engine.tiers.fetch import Fetch
from ridgeline.engine.tiers.patience import PATIENT_SECONDS, wait_seconds
from ridgeline.engine.tiers.peer_server import PeerServer
from ridgeline.engine.tiers.seal import Content, Seal
from ridgeline.engine.tiers.tier import Tier
from ridgeline.engine.tiers.units import Layout, contents_of, keys_of, sealed

LOW_PRIORITY: Final = 10
BATCH: Final = 16
"""Values that are asked for at a time: a deadline is looked at in between."""
MOST_SECONDS: Final = 3.0
"""An engine whose requests all wait does not move, and must not be taken for one that hangs (`step_timeout_seconds`)."""
MOST_QUEUED_BYTES: Final = 256 << 20
PAUSE_SECONDS: Final = 5.0
"""Seconds for which a tier that failed is left alone: each time it fails again, twice as long, as one prompt waits in vain to find out."""
MOST_PAUSE_SECONDS: Final = 60.0
COUNTED: Final = tuple(each.name for each in fields(TierUsed) if each.name != "tier")
P = ParamSpec("P")
Source = tuple[Tier, Items[Layout]]
"""A tier, and the layouts of what is asked of it."""


class BlockStore:
    """The tiers of one engine.

    tiers    the nearest first; each gets every block
    others   where blocks of other KV types and shares of the heads may be, with their layouts: asked last, and converted
    blocks   of the executor
    token_seconds      that a prompt token takes to compute now, 0 where it is unknown: nothing is waited for as long as computing takes
    most_seconds       that a fetch takes
    most_staged_bytes  that wait for their sequences to start
    server   that gives other engines what the tiers hold; it ends with them
    """

    def __init__(
        self,
        tiers: Items[Tier],
        seal: Seal,
        shape: KVShape,
        blocks: BlockContents,
        *,
        others: Items[Source] = (),
        token_seconds: Callable[[], float] = lambda: 0.0,
        most_seconds: float = MOST_SECONDS,
        most_staged_bytes: int = 1 << 30,
        server: PeerServer | None = None,
    ) -> None:
        self.tiers = tuple(tiers)
        self._own: Layout = (seal,)
        self._sources: tuple[Source, ...] = (*((tier, (self._own,)) for tier in tiers), *others)
        self._server = server
        self.counts = {tier.name: Counter(dict.fromkeys(COUNTED, 0)) for tier, _ in self._sources}
        """Per tier what it has done since the start, by the fields of `TierUsed`: all of them, as threads count while the loop reads."""
        self._told = {name: Counter[str]() for name in self.counts}
        self._seal, self._shape, self._blocks = seal, shape, blocks
        self._token_seconds, self._most_seconds = token_seconds, most_seconds
        self._index = PrefixIndex(shape, shared=True)
        self._most_staged = max(len(shape.groups), most_staged_bytes // max(1, shape.block_bytes))
        self._most_queued = max(1, MOST_QUEUED_BYTES // max(1, shape.block_bytes))
        self._numbers = count(1)
        self._fetches: dict[str, Fetch] = {}
        self._asked: SimpleQueue[Fetch | None] = SimpleQueue()
        self._done: SimpleQueue[BlocksFetched] = SimpleQueue()
        self._written: SimpleQueue[tuple[Content, bytes, bytes, int] | None] = SimpleQueue()
        """(content, its bytes, key of the block before it, its position)"""
        self._paused: dict[str, float] = {}
        self._pauses = dict.fromkeys(self.counts, PAUSE_SECONDS)
        """Per tier until when it is left alone, and for how long when it fails next."""
        self._asking: Tier | None = None
        self._change = threading.Condition()
        self._closed = False
        self._signal, self._wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._threads = [
            threading.Thread(target=run, name=name, daemon=True)
            for name, run in (("ridgeline-fetch", self._fetch_all), ("ridgeline-keep", self._keep_all), ("ridgeline-due", self._watch))
        ]
        for thread in self._threads:
            thread.start()

    # ── the engine's loop ───────────────────────────────────────────────────────────────────────────────────────

    def ask(self, request: Admitted, cache: KVBlocks) -> bool:
        """Begins to fetch blocks of a prompt that `cache` has not. False where tiers surely have none of them; else `take` reports it."""
        sequence = Sequence(request, 0, 0, len(self._shape.groups))
        blocks = sequence.reusable // self._shape.block_tokens
        if not blocks or not self._index.is_shareable(sequence) or request.request_id in self._fetches:
            return False
        first = keys_of(self._seal, self._index, sequence, 1)[0]
        groups, sources = range(len(self._shape.groups)), [source for source in self._sources if not self._is_paused(source[0])]
        if not any(tier.might_have(each[0].name(first, group)) for tier, layouts in sources for each in layouts for group in groups):
            return False
        asking = self._asking  # read once: its thread may be done meanwhile
        if asking is not None and self._is_paused(asking):  # its thread hangs there
            return False
        missing = blocks - cache.index.find_longest_hit(sequence, 0, blocks)
        wait = wait_seconds(missing * self._shape.block_tokens, self._token_seconds())
        if not missing or not wait:
            return False
        found = {key: cache.index.blocks.get(key) for key in self._index.keys(sequence, blocks)}
        here = {key: tuple(entry.block_ids) for key, entry in found.items() if entry is not None}
        with self._change:
            seconds = wait + sum(each.wait for each in self._fetches.values())  # as they would be computed before it
            deadline = time.monotonic() + min(self._most_seconds, seconds)
            fetch = self._fetches[request.request_id] = Fetch(request.request_id, sequence, self._shape, here, wait, deadline)
            self._change.notify()
        self._asked.put(fetch)
        return True

    def take(self) -> list[BlocksFetched]:
        """Returns what has been fetched since the last call."""
        with suppress(BlockingIOError):
            os.read(self._signal, 4_096)
        found: list[BlocksFetched] = []
        with suppress(Empty):
            while True:
                found.append(self._done.get_nowait())
        return found

    @property
    def pending(self) -> bool:
        """True while `take` has something to report, or will have."""
        return bool(self._fetches) or not self._done.empty()

    def fileno(self) -> int:
        """A file descriptor that can be read while `take` has something to report."""
        return self._signal

    def keep(self, cache: KVBlocks) -> None:
        """Copies the blocks that have been published since the last call, to be written by and by, and drops what nobody uses. Called
        behind a commit and before the next plan, which may give the blocks away."""
        for number in cache.unused:
            self._blocks.staged.pop(number, None)
        cache.unused.clear()
        fresh = cache.fresh or ()
        for block, block_id, before in fresh:
            entry = cache.index.by_block_id.get(block_id)
            if entry is None or self._written.qsize() >= self._most_queued:
                for tier in self.tiers:
                    self.counts[tier.name]["dropped"] += tier.takes
                continue
            content = Content(entry.key, entry.block_ids.index(block_id), entry.ids, entry.identity)
            self._written.put((content, self._blocks.read(block_id), before, block * self._shape.block_tokens))
        if cache.fresh:
            cache.fresh.clear()

    def used(self) -> list[TierUsed]:
        """Returns what tiers have done since the last call."""
        found = []
        for name, counts in self.counts.items():
            counts["refused"] = sum(tier.refused for tier in {tier for tier, _ in self._sources} if tier.name == name)
            if more := counts - self._told[name]:
                self._told[name] = self._told[name] + more
                found.append(TierUsed(name, **more))
        return found

    def close(self) -> None:
        """Writes what is queued, for a few seconds at most, and ends the threads. Safe to call twice."""
        with self._change:
            was_closed, self._closed = self._closed, True
            self._change.notify()
        if was_closed:
            return
        self._asked.put(None)
        self._written.put(None)
        for thread in self._threads:
            thread.join(PAUSE_SECONDS)
        if self._server is not None:
            self._server.close()
        for tier, _ in self._sources:
            tier.close()
        if not any(thread.is_alive() for thread in self._threads):  # one that a tier still holds may yet write to it
            os.close(self._signal)
            os.close(self._wake)

    # ── fetching ────────────────────────────────────────────────────────────────────────────────────────────────

    def _fetch_all(self) -> None:
        while (fetch := self._asked.get()) is not None:
            fetch.keys = keys_of(self._seal, self._index, fetch.sequence, len(fetch.sequence.keys))
            fetch.is_mixed = True
            while fetch.is_mixed:  # behind what has been converted there may be some of the engine's own again
                fetch.is_mixed = False
                for tier, layouts in self._sources:
                    if not self._is_paused(tier) and not (fetch.is_done or fetch.is_whole or self._closed):
                        self._asking = tier
                        self._attempt(tier, self._fetch, fetch, tier, layouts)
            self._asking = None
            self._finish(fetch)

    def _attempt(self, tier: Tier, call: Callable[P, object], *arguments: P.args, **options: P.kwargs) -> bool:
        """Calls something that asks a tier. One that fails, however it does it, is left alone for a while: threads go on."""
        try:
            call(*arguments, **options)
        except Exception:  # a hostile server may make more of a client than an OSError
            self._pause(tier)
            return False
        if not self._is_paused(tier):
            self._pauses[tier.name] = PAUSE_SECONDS
        return True

    def _pause(self, tier: Tier, waited: float = PATIENT_SECONDS) -> None:
        self.counts[tier.name]["failures"] += 1
        if not self._is_paused(tier):  # else another call that was under way tells the same
            self._paused[tier.name] = time.monotonic() + self._pauses[tier.name] * min(1.0, waited / PATIENT_SECONDS)
            self._pauses[tier.name] = min(MOST_PAUSE_SECONDS, 2 * self._pauses[tier.name])

    def _is_paused(self, tier: Tier) -> bool:
        return self._paused.get(tier.name, 0.0) > time.monotonic()

    def _fetch(self, fetch: Fetch, tier: Tier, layouts: Items[Layout]) -> None:
        for layout in layouts if self._own in layouts else fetch.likely(tier, layouts):
            if not fetch.is_whole:
                self._bring(fetch, tier, layout)

    def _bring(self, fetch: Fetch, tier: Tier, layout: Layout) -> None:
        """Brings what a tier has of a prompt in one layout."""
        wanted, hit = fetch.wanted(tier, layout)
        before, values, type = len(fetch.found), self._seal.units * len(layout), layout[0].type
        size, scope = max(1, BATCH // values), self._index.identity(fetch.sequence)
        for first in range(0, len(wanted), size):
            part = wanted[first : first + size]
            self._asking = None  # the tier is not to blame for what sequences that have yet to start hold
            if not self._has_room(fetch, len(part)):
                return
            self._asking = tier
            ids = {block: fetch.ids(block) for block, _ in part}
            units = [each for block, group in part for each in contents_of(self._seal, fetch.keys, block, group, ids[block], scope)]
            asked = [(seal, content, seal.name(content.key, content.group)) for content in units for seal in layout]
            given = tier.get([name for *_, name in asked], max(0.001, fetch.deadline - time.monotonic()), layout[0].value_bytes)
            opened = [self._open(tier, *each, value) for each, value in zip(asked, given, strict=True)]
            for at, (block, group) in enumerate(part):
                whole = [each for each in opened[at * values : (at + 1) * values] if each is not None]
                if len(whole) == values:
                    number, data = next(self._numbers), self._seal.join(layout, whole)
                    self._blocks.staged[number] = self._blocks.converted(data, type) if type != self._seal.type else data
                    with self._change:
                        fetch.found.append((block, group, number))
                    fetch.tier = fetch.tier or tier.name
                    self.counts[tier.name]["fetched"] += 1
                    if layout != self._own:
                        fetch.is_mixed = True
                        self.counts[tier.name]["converted"] += 1
        fetch.is_whole = hit == len(fetch.sequence.keys) and len(fetch.found) - before == len(wanted)

    def _open(self, tier: Tier, seal: Seal, content: Content, name: bytes, value: bytes | None) -> bytes | None:
        """The bytes of a value; None where it is not there, or is something else, which the tier forgets."""
        data = None if value is None else seal.open(content, value)
        if data is None and value is not None:
            self.counts[tier.name]["bad"] += 1
            tier.forget(name)
        return data

    def _has_room(self, fetch: Fetch, blocks: int) -> bool:
        """Waits until so many blocks may be brought; sequences that start make room. False behind the deadline."""
        while len(self._blocks.staged) + blocks > self._most_staged + BATCH:
            if fetch.is_done or self._closed or time.monotonic() > fetch.deadline:
                return False
            time.sleep(0.002)
        return not fetch.is_done

    def _finish(self, fetch: Fetch) -> None:
        """Reports a fetch, once: what it brings after its deadline is dropped."""
        with self._change:
            if not fetch.is_done:
                fetch.is_done = True
                del self._fetches[fetch.request_id]
                self._done.put(BlocksFetched(fetch.request_id, fetch.tier, tuple(sorted(fetch.found))))
                fetch.found = []
                with suppress(OSError):
                    os.write(self._wake, b".")
        for *_, number in fetch.found:
            self._blocks.staged.pop(number, None)

    def _watch(self) -> None:
        """Reports fetches whose time is over, whatever the tier does, and with them those that it would keep waiting too."""
        while not self._closed:
            with self._change:
                due = min((fetch.deadline for fetch in self._fetches.values()), default=None)
                self._change.wait(None if due is None else max(0.0, due - time.monotonic()))
                opened, now = list(self._fetches.values()), time.monotonic()
                late = [fetch for fetch in opened if fetch.deadline <= now]
            asking = self._asking  # once, as in `ask`
            if late and asking is not None:
                self._pause(asking, late[0].wait)
                late = opened
            for fetch in late:
                self._finish(fetch)

    # ── keeping ─────────────────────────────────────────────────────────────────────────────────────────────────

    def _keep_all(self) -> None:
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), LOW_PRIORITY)
        while (item := self._written.get()) is not None:
            content, data, before, position = item
            values = [*sealed(self._seal, self._shape, content, data, before, position)]
            for tier in self.tiers:
                if not tier.takes:
                    continue
                counts = self.counts[tier.name]
                if not self._is_paused(tier) and all(self._attempt(tier, tier.put, *each) for each in values):
                    counts["kept"] += 1
                else:
                    counts["dropped"] += 1
