"""Common prefixes of prompts: where each one leaves the earlier prompt that it follows furthest, found when it is submitted.

Owns the last prompts as fingerprints: their ids under a substitution of bytes that is drawn when the process starts, at most `MAX_TOKENS`
of them, in memory alone. Of a divergence `SPAN` ids on both sides are kept. No id and no text leaves through here but by `ids`.
"""

import random
import secrets
from array import array
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from ridgeline.core.params import Adapter, Admitted

MAX_PROMPTS: Final = 512
MAX_TOKENS: Final = 1 << 20
MAX_UNALIGNED: Final = 16
"""Places between two ids at which a search finds bytes before it gives up: ids can be chosen so that there is one at each."""
MAX_FOLLOWED: Final = 4_096
"""Prompts whose divergence is kept."""
WIDTH: Final = 4
"""Bytes of an id."""
SPAN: Final = 32
"""Ids kept from a divergence on, on each side, and a quarter as many in front of it."""
BEFORE: Final = SPAN // 4
RUN: Final = 8
"""Ids that have to be the same again behind a divergence."""
SKIPS: Final = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64, 128, 256)
"""Ids of the earlier prompt that may be passed over until the prompts are the same again."""


@dataclass(frozen=True, slots=True)
class Divergence:
    """The point at which a prompt leaves an earlier one.

    known_blocks  leading full blocks that some earlier prompt had
    at            the first token that differs from those of the earlier prompt that is followed furthest
    same_salt, same_tenant, same_adapter  of that prompt
    other         its request id
    mine, theirs  fingerprints from `before` ids in front of `at` on
    added, gone   tokens until both are the same again: of this prompt, of the earlier one; −1: they are not
    again         tokens that are the same from there on
    is_moved      what follows in either is found further down in the other
    """

    known_blocks: int
    at: int
    same_salt: bool
    same_tenant: bool
    same_adapter: bool
    other: str
    mine: bytes
    theirs: bytes
    before: int
    added: int
    gone: int
    again: int
    is_moved: bool


@dataclass(slots=True)
class _Prompt:
    request_id: str
    tenant: str
    domain: bytes
    adapter: Adapter | None
    data: bytes
    family: int
    keys: list[int]


@dataclass(frozen=True, slots=True)
class Followed:
    """A prompt: its family (that of the first prompt with the same first block, from 1), tokens of leading blocks that earlier prompts had,
    and its divergence, None where nothing earlier is like it. `own`: the divergence from prompts of its own tenant and salt alone, which is
    all that its client may know of: the other tells what strangers have sent."""

    family: int
    shared: int
    block_tokens: int
    divergence: Divergence | None
    own: Divergence | None


class PromptLog:
    """The last prompts, and where each of them left an earlier one."""

    def __init__(self) -> None:
        table = bytearray(range(256))
        random.Random(secrets.randbits(128)).shuffle(table)
        self._table = bytes(table)
        self._back = bytes.maketrans(self._table, bytes(range(256)))
        self._prompts: OrderedDict[str, _Prompt] = OrderedDict()
        self._tokens = 0
        self._blocks: dict[int, str] = {}
        """Chained hash of leading blocks, and the same within a domain → the newest prompt with them. Python salts hashes of bytes."""
        self._families = 0
        self.followed: OrderedDict[str, Followed] = OrderedDict()

    def add(self, request: Admitted, block_tokens: int) -> None:
        """Compares a prompt with the earlier ones, and keeps it."""
        data = array("i", request.prompt).tobytes().translate(self._table)
        size, chain = block_tokens * WIDTH, [0]
        for end in range(size, len(data) + 1, size):
            chain.append(hash((chain[-1], data[end - size : end])))
        del chain[0]
        own_chain = [hash((key, request.domain)) for key in chain]
        known, earlier = self._follow(chain)
        known_own, earlier_own = self._follow(own_chain)
        if earlier is None:
            self._families += 1
        family = self._families if earlier is None else earlier.family
        earlier = earlier or self._newest(lambda each: each.tenant == request.tenant)
        earlier_own = earlier_own or self._newest(lambda each: each.domain == request.domain)
        divergence = own = None if earlier is None else self._compare(request, data, known, earlier)
        if earlier is not earlier_own or known != known_own:
            own = None if earlier_own is None else self._compare(request, data, known_own, earlier_own)
        self.followed[request.request_id] = Followed(family, known * block_tokens, block_tokens, divergence, own)
        if len(self.followed) > MAX_FOLLOWED:
            self.followed.popitem(last=False)
        keys = chain + own_chain
        self._keep(_Prompt(request.request_id, request.tenant, request.domain, request.adapter, data, family, keys))

    def ids(self, fingerprints: bytes) -> list[int]:
        """The ids behind fingerprints."""
        found = array("i")
        found.frombytes(fingerprints.translate(self._back))
        return found.tolist()

    def _follow(self, chain: list[int]) -> tuple[int, _Prompt | None]:
        """Number of leading blocks that an earlier prompt had, and the newest one with all of them."""
        known = next((number for number, key in enumerate(chain) if key not in self._blocks), len(chain))
        return known, self._prompts.get(self._blocks[chain[known - 1]]) if known else None

    def _newest(self, is_like: Callable[[_Prompt], bool]) -> _Prompt | None:
        """The newest prompt of a kind: a prompt that differs in its first block follows none by blocks."""
        return next((each for each in reversed(self._prompts.values()) if is_like(each)), None)

    def _compare(self, request: Admitted, data: bytes, known: int, earlier: _Prompt) -> Divergence:
        at = _common(data, earlier.data)
        mine, theirs = data[at * WIDTH :], earlier.data[at * WIDTH :]
        added, gone, again = _resume(mine, theirs)
        before = min(at, BEFORE)
        begin, end = (at - before) * WIDTH, (at + SPAN) * WIDTH
        run = RUN * WIDTH
        is_moved = len(mine) > run < len(theirs) and _find(mine, theirs[:run]) > 0 and _find(theirs, mine[:run]) > 0
        return Divergence(
            known, at, earlier.domain == request.domain, earlier.tenant == request.tenant, earlier.adapter == request.adapter,
            earlier.request_id, data[begin:end], earlier.data[begin:end], before, added, gone, again, is_moved,
        )  # fmt: skip

    def _keep(self, prompt: _Prompt) -> None:
        tokens = len(prompt.data) // WIDTH
        if tokens > MAX_TOKENS:
            return
        self._prompts[prompt.request_id] = prompt
        self._tokens += tokens
        for key in prompt.keys:
            self._blocks[key] = prompt.request_id
        while self._tokens > MAX_TOKENS or len(self._prompts) > MAX_PROMPTS:
            name, oldest = self._prompts.popitem(last=False)
            self._tokens -= len(oldest.data) // WIDTH
            for key in oldest.keys:
                if self._blocks.get(key) == name:
                    del self._blocks[key]


def _common(one: bytes, other: bytes) -> int:
    """Number of leading ids that are the same."""
    low, middle = 0, min(len(one), len(other)) // WIDTH  # most often all of them are
    high = middle
    while low < high:
        if one[low * WIDTH : middle * WIDTH] == other[low * WIDTH : middle * WIDTH]:
            low = middle
        else:
            high = middle - 1
        middle = (low + high + 1) // 2
    return low


def _find(data: bytes, part: bytes) -> int:
    """The first place of some ids in others, −1 where there is none, or too many begin within an id before it."""
    at = -1
    for _ in range(MAX_UNALIGNED + 1):
        at = data.find(part, at + 1)
        if at < 0 or at % WIDTH == 0:
            return at // WIDTH if at >= 0 else -1
    return -1


def _resume(mine: bytes, theirs: bytes) -> tuple[int, int, int]:
    """(ids of mine, ids of theirs) until both are the same again, and how many are; −1, −1, 0 where they never are."""
    for gone in (0, *SKIPS):
        part = theirs[gone * WIDTH : (gone + RUN) * WIDTH]
        if len(part) < RUN * WIDTH:
            break
        added = _find(mine, part)
        if added >= 0:
            while added and gone and mine[(added - 1) * WIDTH : added * WIDTH] == theirs[(gone - 1) * WIDTH : gone * WIDTH]:
                added, gone = added - 1, gone - 1
            return added, gone, _common(mine[added * WIDTH :], theirs[gone * WIDTH :])
    return -1, -1, 0
