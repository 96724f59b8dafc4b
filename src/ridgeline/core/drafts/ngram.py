"""Prompt lookup: what followed the last time that a sequence's newest ids stood in it. An index that grows with the ids, never a scan.

Two ids are a key; occurrences of a key are chained, the newest first, and of the first few the one is taken whose ids before agree for
longest. Saxena 2023 (prompt lookup decoding) searches n-grams of falling length instead.
"""

from typing import Final

MAX_CANDIDATES: Final = 6
"""Occurrences that are compared: the newest ones."""
MAX_MATCH_LENGTH: Final = 8
"""Ids that are compared: who agrees in so many is taken at once."""
MAX_IDS_PER_UPDATE: Final = 1024
"""Ids of a prompt that are indexed at once: some tenths of a millisecond."""


class NgramIndex:
    """Occurrences of pairs in `ids`, which only ever grows.

    before    of each position the one at which its pair stood before, -1 where it did not; as long as what is indexed
    match     the position whose continuation is proposed, -1 for none; `match_length`: how many ids agree there, `MAX_MATCH_LENGTH` at most
    """

    __slots__ = ("_before", "_ids", "_last", "match", "match_length")

    def __init__(self, ids: list[int]) -> None:
        self._ids = ids
        self._last: dict[tuple[int, int], int] = {}
        self._before: list[int] = []
        self.match = -1
        self.match_length = 0

    def update(self) -> bool:
        """Indexes what is new, `MAX_IDS_PER_UPDATE` ids at most, and looks for what stood there before; whether all is indexed."""
        ids, before, last = self._ids, self._before, self._last
        first, end = len(before), len(ids)
        if end - first == 1 and first and self.match >= 0 and ids[self.match + 1] == ids[first]:
            # What was proposed has come: the next one is proposed.
            pair = ids[first - 1], ids[first]
            before.append(last.get(pair, -1))
            last[pair] = first
            self.match += 1
            self.match_length += 1
            if self.match_length >= MAX_MATCH_LENGTH:
                self.match_length = MAX_MATCH_LENGTH
                return True
        elif end > first:
            end = min(end, first + MAX_IDS_PER_UPDATE)
            if not first:
                before.append(-1)
                first = 1
            for at, pair in enumerate(zip(ids[first - 1 : end - 1], ids[first:end], strict=True), first):
                before.append(last.get(pair, -1))
                last[pair] = at
            if end < len(ids):
                return False
        self._search()
        return True

    def _search(self) -> None:
        """The newest of those earlier occurrences of the last pair that agree in most ids before it."""
        ids, before, end = self._ids, self._before, len(self._ids) - 1
        self.match, self.match_length = -1, 0
        at = before[end] if end > 0 else -1
        for _ in range(MAX_CANDIDATES):
            if at < 0:
                return
            match_length = 2
            while match_length < MAX_MATCH_LENGTH and match_length <= at and ids[at - match_length] == ids[end - match_length]:
                match_length += 1
            if match_length > self.match_length:
                self.match, self.match_length = at, match_length
                if match_length == MAX_MATCH_LENGTH:
                    return
            at = before[at]

    def propose(self, most: int) -> tuple[int, ...]:
        """`most` ids that may come next: those behind the match, again and again where they run into the end. None without a match."""
        if self.match < 0:
            return ()
        found = self._ids[self.match + 1 : self.match + 1 + most]
        if len(found) < most:
            found = (found * (most // len(found) + 1))[:most]
        return tuple(found)
