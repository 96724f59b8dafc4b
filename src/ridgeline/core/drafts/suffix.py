"""Prediction of the next ids from what the same tenant's sequences have answered lately: the continuation that followed the longest
suffix of its ids most often.

Outputs lie in a suffix automaton (Blumer et al. 1985; of several texts, that grow in turn). A sequence walks along it with every id, so a
suffix of any length is found without a search, and a prediction follows the transitions that were taken most often (SuffixDecoding, Oliaro
et al. 2024). Memory is bounded: a full automaton becomes the old one, and the one before it is dropped; so are the tenants unseen longest.
"""

from collections import OrderedDict
from typing import Final, NamedTuple

from ridgeline.core.drafts.acceptance import Acceptance

MAX_IDS: Final = 8192
"""Ids of one automaton: about three megabytes. A tenant has two."""
MAX_TENANTS: Final = 16
LEAST_MATCH: Final = 2
"""Ids of a suffix that predicts."""
COUNTED: Final = 12
"""Suffixes of an id, the longest first, whose transitions are counted."""
PREDICTED: Final = 8
"""Ids that are predicted, and compared with those that come."""
PRIOR_BY_LENGTH: Final = (0.0, 0.0, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
"""Acceptance of a prediction by the ids of its suffix, before the sequence has a record of its own."""


class _State(NamedTuple):
    """A class of substrings that end at the same places. `link`: the class of their longest shorter suffixes; `taken`: times by id."""

    following: dict[int, int]
    taken: dict[int, int]


class SuffixAutomaton:
    """All substrings of texts that grow. State 0 is the empty one. `ids` were added."""

    __slots__ = ("_link", "_states", "ids", "length")

    def __init__(self) -> None:
        self._states = [_State({}, {})]
        self._link = [-1]
        self.length = [0]
        """Ids of the longest substring of each state."""
        self.ids = 0

    def walk(self, state: int, length: int, token: int) -> tuple[int, int]:
        """The state of the longest suffix behind one more id, and its ids, given those before it."""
        states, link = self._states, self._link
        while state > 0 and length <= self.length[link[state]]:  # states are split as texts grow
            state = link[state]
        while token not in states[state].following:
            state = link[state]
            if state < 0:
                return 0, 0
            length = self.length[state]
        return states[state].following[token], length + 1

    def predict(self, state: int, count: int) -> tuple[int, ...]:
        """The ids that followed most often, one after the other, `count` at most."""
        found: list[int] = []
        while len(found) < count:
            each = self._states[state]
            if not each.taken:
                break
            token = max(each.taken, key=each.taken.__getitem__)
            found.append(token)
            state = each.following[token]
        return tuple(found)

    def add(self, last: int, token: int) -> int:
        """Adds an id to the text whose whole is the longest substring of `last`, 0 for a new one; returns the state of it now."""
        self.ids += 1
        state = self._extend(last, token)
        at, states = last, self._states
        for _ in range(COUNTED):
            if at < 0:
                break
            taken = states[at].taken
            taken[token] = taken.get(token, 0) + 1
            at = self._link[at]
        return state

    def _extend(self, last: int, token: int) -> int:
        states, link, length = self._states, self._link, self.length
        found = states[last].following.get(token)
        if found is not None:
            return found if length[found] == length[last] + 1 else self._split(last, found, token)
        made = self._new(_State({}, {}), length[last] + 1)
        at = last
        while at >= 0 and token not in states[at].following:
            states[at].following[token] = made
            at = link[at]
        if at < 0:
            link[made] = 0
        else:
            found = states[at].following[token]
            link[made] = found if length[found] == length[at] + 1 else self._split(at, found, token)
        return made

    def _split(self, at: int, found: int, token: int) -> int:
        """Gives the shorter substrings of `found`, those behind `at`, a state of their own."""
        states, link = self._states, self._link
        copy = states[found]
        made = self._new(_State(copy.following.copy(), copy.taken.copy()), self.length[at] + 1)
        link[made] = link[found]
        link[found] = made
        while at >= 0 and states[at].following.get(token) == found:
            states[at].following[token] = made
            at = link[at]
        return made

    def _new(self, state: _State, length: int) -> int:
        self._states.append(state)
        self._link.append(0)
        self.length.append(length)
        return len(self._states) - 1


class RecentOutputs:
    """Recent outputs of a tenant's sequences: two automata, of which the newer one grows."""

    __slots__ = ("generation", "new", "old")

    def __init__(self) -> None:
        self.old, self.new = SuffixAutomaton(), SuffixAutomaton()
        self.generation = 0

    def make_room(self) -> None:
        """Drops the older half where the newer one is full."""
        if self.new.ids >= MAX_IDS:
            self.old, self.new = self.new, SuffixAutomaton()
            self.generation += 1


class OutputStore:
    """Recent outputs by tenant; nobody learns of another's."""

    def __init__(self) -> None:
        self._tenants: OrderedDict[bytes, RecentOutputs] = OrderedDict()

    def of(self, tenant: bytes) -> RecentOutputs:
        """The outputs of a tenant (`Admitted.domain`), empty at first."""
        found = self._tenants.get(tenant)
        if found is None:
            found = self._tenants[tenant] = RecentOutputs()
            if len(self._tenants) > MAX_TENANTS:
                self._tenants.popitem(last=False)
        self._tenants.move_to_end(tenant)
        return found


class SuffixPredictor:
    """A sequence's place among the outputs of its tenant, and the record of its predictions. `ids` only grow.

    acceptance  the estimated chance that a predicted id is right if those before it are; 0 without a prediction
    """

    __slots__ = ("_at", "_expected", "_generation", "_ids", "_last", "_outputs", "_record", "_seen", "acceptance")

    def __init__(self, ids: list[int], prompt_tokens: int, outputs: RecentOutputs) -> None:
        """prompt_tokens: ids that the others do not learn from."""
        self._ids, self._outputs = ids, outputs
        self._seen = max(0, prompt_tokens - PREDICTED)
        self._generation = outputs.generation
        self._at = [(0, 0), (0, 0)]
        """State and matched ids in the newer automaton and in the older."""
        self._last = 0
        """The state of its own text in the newer one."""
        self._expected: tuple[int, ...] = ()
        self._record = Acceptance()
        self.acceptance = 0.0
        self._walk(prompt_tokens)

    def update(self) -> None:
        """Follows the ids that came since the last call, and predicts the next ones."""
        ids, seen, right = self._ids, self._seen, 0
        for token, expected in zip(ids[seen:], self._expected, strict=False):
            if token != expected:
                break
            right += 1
        if self._expected:
            self._record.record(min(len(self._expected), len(ids) - seen), right)
        self._walk(len(ids), learn=True)
        self._predict()

    def propose(self, count: int) -> tuple[int, ...]:
        """The next ids, `count` at most."""
        return self._expected[:count]

    def _walk(self, end: int, learn: bool = False) -> None:
        outputs = self._outputs
        if outputs.generation != self._generation:
            is_next = outputs.generation == self._generation + 1
            self._at, self._last, self._generation = [(0, 0), self._at[0] if is_next else (0, 0)], 0, outputs.generation
        for token in self._ids[self._seen : end]:
            self._at = [outputs.new.walk(*self._at[0], token), outputs.old.walk(*self._at[1], token)]
            if learn:
                self._last = outputs.new.add(self._last, token)
        self._seen = max(self._seen, end)
        outputs.make_room()

    def _predict(self) -> None:
        """The longer match predicts; of equals the newer. One that went on in a new automaton predicts again with the next id."""
        self._expected, length = (), 0
        if self._outputs.generation == self._generation:
            for automaton, (state, matched) in zip((self._outputs.new, self._outputs.old), self._at, strict=True):
                if matched >= LEAST_MATCH and matched > length:
                    found = automaton.predict(state, PREDICTED)
                    if found:
                        self._expected, length = found, matched
        prior = PRIOR_BY_LENGTH[min(length, len(PRIOR_BY_LENGTH) - 1)]
        self.acceptance = self._record.estimate(prior) if self._expected else 0.0
