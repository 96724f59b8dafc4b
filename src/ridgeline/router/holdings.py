"""The blocks that replicas hold, as they tell: digests of prefix keys, by which the router knows how much of a prompt is where.

Owns what is known of each replica, and the asking. What it is told may be old: a block that has gone costs its prompt a miss, nothing else.
Prefix keys of different tenants begin with different roots, which replicas tell in their answers; a router that has no root yet of a
tenant, or tokenises otherwise than the replica, goes by what it has sent.
"""

import asyncio
import logging
import re
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec

from ridgeline.core.prefix_cache import DIGEST_BYTES, block_keys
from ridgeline.observe.logs import with_fields
from ridgeline.router.prompts import Prompt
from ridgeline.router.upstream import Headers, Upstream, UpstreamError
from ridgeline.server.blocks import BlockChanges
from ridgeline.server.routers import BLOCKS_PATH, PREFIX_HEADER, ids_digest

log = logging.getLogger("ridgeline.router")

ASK_SECONDS: Final = 0.2
"""Between two questions for what has come and gone."""
SILENT_SECONDS: Final = 2.0
"""The same behind one without an answer."""
TIMEOUT_SECONDS: Final = 5.0
MOST_BYTES: Final = 4 << 20
"""Bytes of an answer: a replica tells 2 MiB of digests at most, in base 64."""
MOST_ROOTS: Final = 4_096
MOST_EXPECTED: Final = 1 << 16
EXPECTED_SECONDS: Final = 10.0
"""Seconds in which a replica should have told of the blocks of a prompt that it was sent; until then it counts as having them."""
MOST_BLOCKS: Final = 4_096
"""Blocks of a prompt that are looked at."""
_TOLD: Final = re.compile(rb"([0-9a-f]{64}) ([0-9a-f]{16})")
"""The beginning of prefix keys, and the digest of the ids."""

_decode: Final = msgspec.json.Decoder(BlockChanges).decode


class Chain:
    """The digests of a prompt's blocks behind a root, made as far as they are asked for."""

    def __init__(self, root: bytes, ids: Sequence[int], block_tokens: int) -> None:
        self._keys: Iterator[bytes] = block_keys(root, ids[: MOST_BLOCKS * block_tokens], block_tokens)
        self._made: list[bytes] = []

    def __iter__(self) -> Iterator[bytes]:
        """Not to be asked twice at a time."""
        yield from self._made
        for key in self._keys:
            self._made.append(key[:DIGEST_BYTES])
            yield self._made[-1]


@dataclass(slots=True)
class Held:
    """Knowledge of one replica. `expected`: digests of blocks that it should have soon, and until when that is believed, oldest
    first."""

    epoch: str = ""
    upto: int = 0
    block_tokens: int = 0
    family: str = ""
    digests: set[bytes] = field(default_factory=set)
    expected: OrderedDict[bytes, float] = field(default_factory=OrderedDict)

    def apply(self, told: BlockChanges) -> None:
        """Notes an answer. Raises ValueError for one that is none."""
        if len(told.added) % DIGEST_BYTES or len(told.removed) % DIGEST_BYTES or not 0 <= told.block_tokens < 1 << 16:
            raise ValueError("digests are cut")
        added, removed = ({part[at : at + DIGEST_BYTES] for at in range(0, len(part), DIGEST_BYTES)} for part in (told.added, told.removed))
        self.digests = added if told.is_whole else (self.digests | added) - removed
        self.epoch, self.upto, self.block_tokens, self.family = told.epoch, told.upto, told.block_tokens, told.family

    def count(self, chain: Chain, now: float) -> int:
        """Leading blocks that it has, or should have soon."""
        found = 0
        for digest in chain:
            if digest not in self.digests and self.expected.get(digest, 0.0) <= now:
                break
            found += 1
        return found

    def expect(self, chain: Chain, now: float) -> None:
        """Notes that it will compute a prompt."""
        while self.expected and (len(self.expected) > MOST_EXPECTED or next(iter(self.expected.values())) < now):
            self.expected.popitem(last=False)
        for digest in chain:
            self.expected[digest] = now + EXPECTED_SECONDS
            self.expected.move_to_end(digest)


class Holdings:
    """All replicas, by number.

    disagreements  answers whose prompt the replica had tokenised otherwise
    """

    def __init__(self) -> None:
        self._of: dict[int, Held] = {}
        self._roots: OrderedDict[tuple[str, bytes], bytes] = OrderedDict()
        """(family of servers, scope of prompts) → what their prefix keys begin with, least recently used first."""
        self._last: tuple[Sequence[int], dict[tuple[bytes, int], Chain]] = (), {}
        self.disagreements = 0

    def blocks(self, number: int) -> int:
        """Blocks that a replica is known to hold."""
        held = self._of.get(number)
        return 0 if held is None else len(held.digests)

    def refine(self, prompt: Prompt, cached: dict[int, int], now: float) -> dict[int, int]:
        """Replica → tokens of the prompt that it holds: in the place of what was guessed (`cached`) where it has told enough."""
        found = dict(cached)
        for number, held in self._of.items():
            if (chain := self._chain(held, prompt)) is not None:
                found[number] = held.count(chain, now) * held.block_tokens
        return found

    def _chain(self, held: Held, prompt: Prompt) -> Chain | None:
        """The digests of a prompt as a replica names them, which several may share; None while that is not known."""
        root, size = self._roots.get((held.family, prompt.scope)), held.block_tokens
        if root is None or not size:
            return None
        if self._last[0] is not prompt.ids:
            self._last = prompt.ids, {}
        return self._last[1].setdefault((root, size), Chain(root, prompt.ids, size))

    def expect(self, prompt: Prompt, number: int, now: float) -> None:
        """Notes that a replica gets a prompt."""
        held = self._of.get(number)
        if held is not None and (chain := self._chain(held, prompt)) is not None:
            self._roots.move_to_end((held.family, prompt.scope))
            held.expect(chain, now)

    def hear(self, prompt: Prompt, number: int, headers: Headers) -> None:
        """Notes what the head of a replica's answer says of the prompt's keys."""
        if not prompt.ids:
            return
        told = next((value for name, value in headers if name == PREFIX_HEADER.encode()), b"")
        held, found = self._of.get(number), _TOLD.fullmatch(told)
        if held is None or not held.family or found is None:
            return
        if bytes.fromhex(found[2].decode()) == ids_digest(prompt.ids):
            self._roots[held.family, prompt.scope] = bytes.fromhex(found[1].decode())
            if len(self._roots) > MOST_ROOTS:
                self._roots.popitem(last=False)
            return
        self._roots.pop((held.family, prompt.scope), None)
        self.disagreements += 1
        if self.disagreements == 1:
            log.warning("a replica tokenises otherwise than the router: is --exact-affinity its model?", extra=with_fields(replica=number))

    def apply(self, number: int, told: BlockChanges) -> None:
        """Notes what a replica has answered. Raises ValueError for what is no answer."""
        self._of.setdefault(number, Held()).apply(told)

    def forget(self, number: int) -> None:
        """Drops all that is known of a replica."""
        self._of.pop(number, None)

    async def ask(self, number: int, upstream: Upstream, key: Headers) -> bool:
        """Asks a replica what has come and gone; False where it does not tell, and nothing is known of it then."""
        held = self._of.get(number) or Held()
        target = f"{BLOCKS_PATH}?epoch={held.epoch}&since={held.upto}".encode()
        try:
            async with asyncio.timeout(TIMEOUT_SECONDS):
                status, body = await _get(upstream, upstream.request("GET", target, [], b"", key))
            if status == 200:
                self.apply(number, _decode(body))
                return True
        except (UpstreamError, TimeoutError, ValueError, msgspec.MsgspecError):
            pass
        self.forget(number)
        return False


async def _get(upstream: Upstream, request: bytes) -> tuple[int, bytes]:
    """Status and body of an answer. Raises UpstreamError, also for one that is too long."""
    connection, parts, size = await upstream.connect(), list[bytes](), 0
    try:
        status = await connection.send(request)
        while part := await connection.read():
            parts.append(part)
            size += len(part)
            if size > MOST_BYTES:
                raise UpstreamError
        return status, b"".join(parts)
    finally:
        upstream.release(connection)
