"""The KV cache as thinking sees it: tables of pages per sequence and group, grown, shared, released and published.

Every group has the same number of blocks in its table; blocks behind a window become page 0 when their page is let go. A published page
that is taken for something else moves to the host, where there is a tier of pages for that, and comes back when its block is wanted.
"""

from collections.abc import Callable

from ridgeline.core.blocks import Pages
from ridgeline.core.events import Event, Evicted, Moved, Published
from ridgeline.core.host import HostPages
from ridgeline.core.plan import KVShape
from ridgeline.core.prefix import PrefixIndex
from ridgeline.core.sequence import Sequence


class Cache:
    """Pages, their holders and the prefix index, kept in step.

    copies  (from, to) of pages, which the next plan brings about, in this order
    """

    def __init__(self, shape: KVShape, shared: bool, emit: Callable[[Event], None]) -> None:
        self.shape = shape
        self.index = PrefixIndex(shape, shared)
        self.pages = Pages(shape.pages, self._evicted)
        self.host = HostPages(shape.pages + 1, shape.host_pages, self._forget)
        self.copies: list[tuple[int, int]] = []
        self._emit = emit

    def _evicted(self, page: int) -> None:
        """A page of the device is taken for something else."""
        to = self.host.take()
        if to:
            self._move(page, to)
            self.host.keep(to)
        else:
            self._forget(page)

    def _forget(self, page: int) -> None:
        self.index.forget(page)
        self._emit(Evicted(page))

    def _move(self, page: int, to: int) -> None:
        self.index.move(page, to)
        self.copies.append((page, to))
        self._emit(Moved(page, to))

    def longest_hit(self, sequence: Sequence) -> int:
        """Leading blocks that are published in every group and that the sequence need not compute itself."""
        size = self.shape.block_tokens
        return self.index.longest_hit(sequence, sequence.capacity // size, sequence.reusable // size)

    def adopt(self, sequence: Sequence, blocks: int) -> None:
        """The sequence, which has nothing in flight, shares the published pages of its first `blocks` blocks and stands behind them.

        Those that are on the host stand in its tables until `fetch` or `release`, which follows before anything is planned.
        """
        size = self.shape.block_tokens
        first = sequence.capacity // size
        for g, group in enumerate(self.shape.groups):
            seen = max(first, self.index.first_seen(group.window, blocks * size))
            shared = [self.index.blocks[key].pages[g] for key in sequence.keys[seen:blocks]]
            for page in shared:
                if page > self.shape.pages:
                    self.host.claim(page)
                else:
                    self.pages.hold(page)
            pages = [0] * (seen - first) + shared
            sequence.tables[g] += pages
            sequence.unsent.append((g, first, tuple(pages)))
        for block in range(first, blocks):
            self.index.settle(sequence, block)
        sequence.computed = sequence.scheduled = blocks * size
        sequence.cover(blocks * size)
        self._offered(sequence, blocks)

    def away(self, sequence: Sequence) -> int:
        """Pages of the host in the sequence's tables."""
        device = self.shape.pages
        return sum([page > device for table in sequence.tables for page in table]) if self.host.count else 0

    def fits(self, sequence: Sequence, blocks: int) -> bool:
        """Whether pages suffice for `adopt` and `fetch` of the first `blocks` blocks, as `longest_hit` has found them."""
        if not self.host.count:
            return True
        size, pages = self.shape.block_tokens, self.pages
        first, needed = sequence.capacity // size, 0
        for g, group in enumerate(self.shape.groups):
            seen = max(first, self.index.first_seen(group.window, blocks * size))
            shared = [self.index.blocks[key].pages[g] for key in sequence.keys[seen:blocks]]
            needed += sum([page > pages.count or not pages.holders[page] for page in shared])
        return needed <= pages.available

    def fetch(self, sequence: Sequence) -> int:
        """Blocks on the host come to pages of the device. The caller has made room. Returns how many tokens they hold."""
        away = [(table, at) for table in sequence.tables for at, page in enumerate(table) if page > self.shape.pages]
        if not away:
            return 0
        for (table, at), page in zip(away, self.pages.take(len(away)), strict=True):
            self._move(table[at], page)
            self.pages.published[page] = 1
            self.host.give_back(table[at])
            table[at] = page
        tables = sequence.tables
        sequence.unsent = [(g, first, tuple(tables[g][first : first + len(pages)])) for g, first, pages in sequence.unsent]
        return len({at for _, at in away}) * self.shape.block_tokens

    def grow(self, sequence: Sequence, upto: int) -> None:
        """Takes pages so that positions below `upto` are covered. The caller has made room."""
        size = self.shape.block_tokens
        first, blocks = sequence.capacity // size, -(-upto // size)
        if blocks <= first:
            return
        more = blocks - first
        taken = tuple(self.pages.take(more * len(sequence.tables)))
        for g, table in enumerate(sequence.tables):
            pages = taken[g * more : (g + 1) * more]
            table += pages
            sequence.unsent.append((g, first, pages))
        sequence.cover(blocks * size)

    def behind_window(self, sequence: Sequence) -> int:
        """Pages that the sequence holds behind the window of its next position, committed or not."""
        return sum(
            sum(page != 0 for page in sequence.tables[g][: self.index.first_seen(window, sequence.scheduled)])
            for g, window in self.index.windows
        )

    def release_behind(self, sequence: Sequence) -> None:
        """Lets go of committed blocks that no further position of the sequence can see."""
        for g, window in self.index.windows:
            first = sequence.released[g]
            last = min(sequence.computed // self.shape.block_tokens, self.index.first_seen(window, sequence.scheduled))
            if last > first:
                table = sequence.tables[g]
                self._let_go(sequence, [page for page in reversed(table[first:last]) if page])
                table[first:last] = [0] * (last - first)
                sequence.released[g] = last

    def release(self, sequence: Sequence) -> None:
        """Lets go of everything, deepest block first in all groups at once, so that the start of a shared prefix is evicted last."""
        self.index.renounce(sequence)
        deepest_first = zip(*[reversed(table) for table in sequence.tables], strict=True)
        self._let_go(sequence, [page for pages in deepest_first for page in pages if page])
        for table in sequence.tables:
            table.clear()
        sequence.unsent.clear()
        sequence.released = [0] * len(sequence.tables)
        sequence.computed = sequence.scheduled = 0
        sequence.cover(0)
        self._offered(sequence, 0)

    def _let_go(self, sequence: Sequence, pages: list[int]) -> None:
        if sequence.in_flight:
            self.pages.hand_over(pages, sequence.last_step)
            return
        for page in pages:
            self._drop(page)

    def _drop(self, page: int) -> None:
        if page > self.shape.pages:
            self.host.keep(page)
            return
        if not self.index.shared and self.pages.holders[page] == 1 and self.pages.published[page]:
            self.index.forget(page)
            self.pages.withdraw(page)
        self.pages.drop(page)

    def committed(self, step: int) -> None:
        """The step is over: what was handed over to it loses that holder."""
        for page in self.pages.handed_over.pop(step, ()):
            self._drop(page)

    def publish(self, sequence: Sequence) -> None:
        """Offers the blocks that the sequence has filled with committed content."""
        filled = sequence.computed // self.shape.block_tokens
        if not self.index.shares(sequence):
            self._offered(sequence, filled)
            return
        keys, published = self.index.keys(sequence, filled), self.pages.published
        for block in range(sequence.published, filled):
            for group, page in self.index.publish(sequence, block):
                published[page] = 1
                self._emit(Published(page, group, keys[block]))
        self._offered(sequence, filled)

    def _offered(self, sequence: Sequence, blocks: int) -> None:
        sequence.published = blocks
        sequence.full_at = (blocks + 1) * self.shape.block_tokens
