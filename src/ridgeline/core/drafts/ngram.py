"""An index of a sequence's own ids: the earlier position whose context agrees longest with the newest ids. Grows with the ids.

Prompt lookup decoding (Saxena 2023) searches n-grams of falling length in the whole sequence. Here pairs of ids are indexed, their
occurrences are chained, and of the newest few the one is taken whose preceding ids agree longest.
"""

from typing import Final

MAX_CANDIDATES: Final = 6
"""Occurrences that are compared, the newest ones."""
MAX_MATCH_LENGTH: Final = 8
"""Ids that are compared: an occurrence that agrees in as many is taken at once."""
MAX_IDS_PER_UPDATE: Final = 1024
"""Ids that are indexed at once (some tenths of a millisecond): longer prompts take several updates."""


class NgramIndex:
    """Occurrences of pairs in `ids`, a list that only grows.

    match         the position whose continuation is proposed, −1 for none
    match_length  ids up to that position that agree with the newest ones, `MAX_MATCH_LENGTH` at most
    new           ids that the last update indexed behind a match, 0 where there was none
    continued     the first so many of these were the continuation of that match
    """

    __slots__ = ("_ids", "_last", "_previous", "continued", "match", "match_length", "new")

    def __init__(self, ids: list[int]) -> None:
        self._ids = ids
        self._last: dict[tuple[int, int], int] = {}
        """Pair → the position of its second id at the newest occurrence."""
        self._previous: list[int] = []
        """Per indexed position the occurrence of the same pair before it, −1 for none."""
        self.match = -1
        self.match_length = 0
        self.new = 0
        self.continued = 0

    def update(self) -> bool:
        """Indexes new ids, `MAX_IDS_PER_UPDATE` at most, and looks up the newest. Returns False while ids are left to index."""
        ids, previous, last, match = self._ids, self._previous, self._last, self.match
        if not previous and ids:
            previous.append(-1)
        position = len(previous)
        new = ids[position : position + MAX_IDS_PER_UPDATE]
        if new:
            before, append, find = ids[position - 1], previous.append, last.get
            for token in new:
                pair = before, token
                append(find(pair, -1))
                last[pair] = position
                position += 1
                before = token
            if position < len(ids):
                return False
        if match < 0:
            self.new = self.continued = 0
        else:
            self.new = count = len(new)
            if ids[match + 1 : match + 1 + count] == new:
                self.continued = count
                self.match = match + count
                self.match_length += count
                if self.match_length >= MAX_MATCH_LENGTH:
                    self.match_length = MAX_MATCH_LENGTH
                    return True
            else:
                self.continued = next(place for place, token in enumerate(new) if token != ids[match + 1 + place])
        self._search()
        return True

    def _search(self) -> None:
        """Finds the earlier occurrence of the newest pair whose preceding ids agree longest; of equals the newest."""
        ids, previous, end = self._ids, self._previous, len(self._ids) - 1
        self.match, self.match_length = -1, 0
        position = previous[end] if end > 0 else -1
        for _ in range(MAX_CANDIDATES):
            if position < 0:
                return
            length = 2
            while length < MAX_MATCH_LENGTH and length <= position and ids[position - length] == ids[end - length]:
                length += 1
            if length > self.match_length:
                self.match, self.match_length = position, length
                if length == MAX_MATCH_LENGTH:
                    return
            position = previous[position]

    def propose(self, count: int) -> tuple[int, ...]:
        """Returns the `count` ids behind the match, repeated where they run into the end of the sequence; none without a match."""
        if self.match < 0:
            return ()
        ids = self._ids[self.match + 1 : self.match + 1 + count]
        if len(ids) < count:
            ids = (ids * (count // len(ids) + 1))[:count]
        return tuple(ids)
