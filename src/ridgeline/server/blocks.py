"""`/router/blocks`: the blocks that the prefix cache holds, as digests, told to routers with the key, so that these know where a prompt's
prefix is.

Owns the record of what has come and gone, and what an answer may weigh. A digest is the beginning of a prefix key: it says nothing of a
text to whoever lacks the domain of its tenant. Nothing is told, and nothing kept, before a router asks.
"""

import re
import secrets
from collections import deque
from collections.abc import Iterator, Sequence
from hashlib import sha256
from itertools import islice
from typing import TYPE_CHECKING, Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from ridgeline.core.commands import TellBlocks
from ridgeline.core.events import Event, Evicted, Moved, Published
from ridgeline.core.plan import KVShape
from ridgeline.core.prefix_cache import DIGEST_BYTES
from ridgeline.engine.admit import tenant_domain
from ridgeline.server.callers import current_caller
from ridgeline.server.errors import ApiError
from ridgeline.server.routers import BLOCKS_PATH
from ridgeline.server.transport import json_response

if TYPE_CHECKING:
    from ridgeline.engine.client import EngineClient
    from ridgeline.server.service import Service

_NUMBER: Final = re.compile(r"[0-9]{1,18}")
MOST_CHANGES: Final = 1 << 16
"""Changes that are remembered: a router that comes later is told everything again."""
MOST_BLOCKS: Final = 1 << 18
"""Blocks that an answer tells of, 2 MiB of digests; of more, those that were published last."""


class BlockChanges(msgspec.Struct, frozen=True):
    """Blocks that have come and gone since a router asked last. Digests stand one behind the other.

    epoch, upto   what to ask with next: of this engine, and so many changes
    is_whole      `added` is all there is, whatever the router knew
    block_tokens  of every block
    family        the same for servers whose prefix keys of one tenant are the same: those of one model that share a secret
    """

    epoch: str
    upto: int
    is_whole: bool
    block_tokens: int
    family: str
    added: bytes
    removed: bytes


class HeldBlocks:
    """The blocks of one engine after the other. `begin` it with each. `asked`: a router has; until then nothing is heard."""

    def __init__(self, secret: bytes) -> None:
        """`secret`: of the domains of tenants."""
        self.asked = False
        self._secret = secret
        self._epoch = ""
        self._engine: tuple[EngineClient | None, int] = (None, 0)
        self._held: dict[int, bytes] = {}
        """Block → digest, the one published last at the end."""
        self._changes: deque[tuple[bytes, bool]] = deque(maxlen=MOST_CHANGES)
        self._count = 0

    def begin(self, client: "EngineClient") -> None:
        """Has an engine tell of its blocks, unless it does already."""
        if self._engine != (client, client.starts) and client.is_ready:
            self._engine, self._epoch, self._count = (client, client.starts), secrets.token_hex(8), 0
            self._held.clear()
            self._changes.clear()
            self.asked = True
            client.send(TellBlocks())

    def hear(self, client: "EngineClient | None", events: Sequence[Event]) -> None:
        """Notes what an engine tells; of one that has not been asked nothing."""
        if client is None or self._engine != (client, client.starts):
            return
        for event in events:
            match event:
                case Published(block_ids, digests):
                    for place, block_id in enumerate(block_ids):
                        self._held[block_id] = digest = digests[place * DIGEST_BYTES : (place + 1) * DIGEST_BYTES]
                        self._note(digest, is_here=True)
                case Evicted(block_id) if (gone := self._held.pop(block_id, None)) is not None:
                    self._note(gone, is_here=False)
                case Moved(block_id, to) if (moved := self._held.pop(block_id, None)) is not None:
                    self._held[to] = moved

    def _note(self, digest: bytes, *, is_here: bool) -> None:
        self._changes.append((digest, is_here))
        self._count += 1

    def since(self, epoch: str, number: int, kv: KVShape) -> BlockChanges:
        """The changes behind the first `number` of an epoch, or everything where that cannot be told."""
        family = sha256(kv.root + tenant_domain(self._secret, "\0family")).hexdigest()[:16]
        behind = self._count - number
        if epoch != self._epoch or not 0 <= behind <= len(self._changes):
            last = list(self._held.values())[-MOST_BLOCKS:]
            return BlockChanges(self._epoch, self._count, True, kv.block_tokens, family, b"".join(last), b"")
        last_of = dict(self._last(behind))
        added, removed = (b"".join([digest for digest, is_here in last_of.items() if is_here is wanted]) for wanted in (True, False))
        return BlockChanges(self._epoch, self._count, False, kv.block_tokens, family, added, removed)

    def _last(self, count: int) -> Iterator[tuple[bytes, bool]]:
        return islice(self._changes, len(self._changes) - count, None)


def routes(service: "Service") -> list[BaseRoute]:
    """The routes of this family."""

    async def blocks(request: Request) -> Response:
        if current_caller().relay is None:
            raise ApiError("router_only", "blocks are told to routers that have this server's key; give both the same --router-key-file")
        asked, told = request.query_params, service.blocks
        told.begin(service.engine)
        number = int(asked["since"]) if _NUMBER.fullmatch(asked.get("since", "")) else -1
        return json_response(told.since(asked.get("epoch", ""), number, service.model.limits.kv))

    return [Route(BLOCKS_PATH, blocks, methods=["GET"], include_in_schema=False)]
