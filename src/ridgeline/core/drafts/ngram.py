"""Prediction of a sequence's next ids from its own ids: the continuation of the earlier position whose context agrees longest with the
newest ids, and the estimated chance that it comes true.

Prompt lookup decoding (Saxena 2023) searches n-grams of falling length in the whole sequence. Here pairs of ids are indexed as they come,
their occurrences are chained, and of the newest few the one is taken whose preceding ids agree longest.
"""

from typing import Final

MAX_CANDIDATES: Final = 6
"""Occurrences that are compared, the newest ones."""
MAX_MATCH_LENGTH: Final = 8
"""Ids that are compared: an occurrence that agrees in as many is taken at once."""
IDS_PER_SEARCH: Final = 4
"""Ids that come, without a match, before they are indexed and searched for one: a step in four pays for text that does not repeat."""
MAX_IDS_PER_UPDATE: Final = 1024
"""Ids that are indexed at once (some tenths of a millisecond): longer prompts take several updates."""
PRIOR_ACCEPTANCE: Final = (0.0, 0.0, 0.35, 0.45, 0.6, 0.7, 0.8, 0.85, 0.92)
"""Acceptance of a first draft by the length of its match, before the sequence has a record of its own: from edits and stories."""
PRIOR_WEIGHT: Final = 6.0
"""Comparisons that the prior counts for."""
COMPARISON_DECAY: Final = 0.93
"""Factor of a comparison's weight per further comparison."""
TOTAL_WEIGHT: Final = 1.0 / (1.0 - COMPARISON_DECAY)
"""Sum of the weights of endless comparisons."""
ENDLESS: Final = 1 << 30
"""Ids that are predicted by who repeats its prediction as often as is asked."""
_PRIOR_RIGHT: Final = tuple([PRIOR_WEIGHT * acceptance for acceptance in PRIOR_ACCEPTANCE])
assert len(PRIOR_ACCEPTANCE) == MAX_MATCH_LENGTH + 1


def _decay(count: int) -> tuple[float, float]:
    """The weight that is left of earlier comparisons behind `count` further ones, and what these add, of which the last counts 1."""
    kept = COMPARISON_DECAY**count
    return kept, (1.0 - kept) * TOTAL_WEIGHT


MAX_RUN: Final = 16
"""Predictions that come true one after the other before their record is written: each number of it is fetched from memory."""
_KEPT, _GAINED = zip(*map(_decay, range(MAX_RUN)), strict=True)
"""Powers by count: one takes microseconds where the caches are cold."""


class NgramPredictor:
    """An index of pairs in `ids`, a list that only grows, with the record of its predictions.

    match            the position whose continuation is predicted, −1 for none
    match_length     ids up to that position that agree with the newest ones, `MAX_MATCH_LENGTH` at most
    due              the length of `ids` at which the next update is worth its time
    right, compared  predictions that came true, of so many, with exponential decay
    run              predictions of a long match that came true since, `MAX_RUN` at most
    acceptance       the estimated chance that a predicted id is right if those before it are; 0 without a match
    reach            ids that are predicted at most
    """

    reach = ENDLESS
    __slots__ = ("_ids", "_last", "_previous", "_seen", "acceptance", "compared", "due", "match", "match_length", "right", "run")

    def __init__(self, ids: list[int]) -> None:
        self._ids = ids
        self._seen = 0
        """Ids that have been compared with the predicted ones."""
        self._last: dict[tuple[int, int], int] = {}
        """Pair → the position of its second id at the newest occurrence."""
        self._previous: list[int] = []
        """Per indexed position the occurrence of the same pair before it, −1 for none."""
        self.match = -1
        self.match_length = self.due = self.run = 0
        self.right = self.compared = 0.0
        self.acceptance = 0.0

    def update(self) -> bool:
        """Compares the ids that came since the last call with the predicted ones, up to the first that differs, and finds another match
        unless a long one goes on. Returns False while ids are left to index."""
        ids, match, seen = self._ids, self.match, self._seen
        end, place, length = len(ids), match + 1, 0
        if match >= 0 and seen < end:
            while seen < end and ids[seen] == ids[place]:
                seen += 1
                place += 1
            right = place - match - 1
            run = self.run + right
            if seen == end:
                if run < MAX_RUN and self.match_length == MAX_MATCH_LENGTH:
                    self.match, self.run = place - 1, run
                    self._seen, self.due = end, end + 1
                    return True
                length = min(MAX_MATCH_LENGTH, self.match_length + right)
            self.match, self.match_length = place - 1, length
            self._record(run, seen == end)
        self._seen = end
        if length < MAX_MATCH_LENGTH:
            self.match, self.match_length = -1, 0
            if not self._index():
                return False
            if self._previous and self._previous[-1] >= 0:
                self._search()
        self.acceptance = (self.right + _PRIOR_RIGHT[self.match_length]) / (self.compared + PRIOR_WEIGHT)
        self.due = end + (1 if self.match >= 0 else IDS_PER_SEARCH)
        return True

    def _record(self, right: int, all_right: bool) -> None:
        """Counts `right` comparisons that came true, and one that did not unless all did."""
        kept, gained = (_KEPT[right], _GAINED[right]) if right < MAX_RUN else _decay(right)
        self.run = 0
        self.right = kept * self.right + gained
        self.compared = kept * self.compared + gained
        if not all_right:
            self.right = COMPARISON_DECAY * self.right
            self.compared = COMPARISON_DECAY * self.compared + 1.0

    def _index(self) -> bool:
        """Indexes the ids that came since it last did, `MAX_IDS_PER_UPDATE` at most; returns False while some are left."""
        ids, previous, last = self._ids, self._previous, self._last
        if not previous and ids:
            previous.append(-1)
        position = len(previous)
        if position < len(ids):
            before, append, find = ids[position - 1], previous.append, last.get
            for token in ids[position : position + MAX_IDS_PER_UPDATE]:
                pair = before, token
                append(find(pair, -1))
                last[pair] = position
                position += 1
                before = token
        return position == len(ids)

    def _search(self) -> None:
        """Finds the earlier occurrence of the newest pair, which has one, whose preceding ids agree longest; of equals the newest."""
        ids, previous, end = self._ids, self._previous, len(self._ids) - 1
        position = previous[end]
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
        """Returns `count` predicted ids: those behind the match, repeated if they run into the end; none without a match."""
        if self.match < 0:
            return ()
        ids = self._ids[self.match + 1 : self.match + 1 + count]
        if len(ids) < count:
            ids = (ids * (count // len(ids) + 1))[:count]
        return tuple(ids)
