"""Routers in front of this server: known by a key, told of streams, and heard when one goes on here that began elsewhere.

Owns their headers. What a router is told, and takes back, is `server.relay`'s.
"""

import hmac
import re
import time
from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from hashlib import blake2b
from typing import Final

from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from ridgeline.core.params import Admitted
from ridgeline.core.prefix_cache import root_key
from ridgeline.errors import EngineDeadError
from ridgeline.server.callers import current_caller, serving
from ridgeline.server.errors import ApiError
from ridgeline.server.relay import MAX_JOURNAL_BYTES, Relay, read_relay
from ridgeline.server.transport import BODY_LIMIT_KEY, read_body, replayed

KEY_HEADER: Final = b"x-ridgeline-router"
CONTINUE_HEADER: Final = b"x-ridgeline-continue"
"""Bytes of the records that stand before the body, and the events that the client has: two numbers."""
LINES_HEADER: Final = b"x-ridgeline-lines"
"""Header of a router that takes marks out of streams of lines too, not of events alone."""
SHARED_HEADER: Final = "x-ridgeline-shares"
"""Header in answers of /readyz: `responses` where other servers find the answers that are stored here."""
TAG_HEADER: Final = "x-ridgeline-tag"
"""Header in answers of /readyz: what the ids of answers that are stored here end with."""
TAG_BYTES: Final = 8
NAMES_HEADER: Final = "x-ridgeline-names"
"""Header in answers of /readyz to a router with the key: names of models and adapters that are answered to, with commas."""
UNLOADED_HEADER: Final = "x-ridgeline-unloaded"
"""Those of them that have to be loaded first."""
PREFIX_HEADER: Final = "x-ridgeline-prefix"
"""Header in answers to a router with the key: what prefix keys of requests like this begin with, and a digest of the prompt's ids, by which
the router sees that it tokenises alike."""
BLOCKS_PATH: Final = "/router/blocks"
"""Path at which such a router is told which blocks are held."""
MOST_NAMES_TOLD: Final = 256
_TELLABLE: Final = re.compile(r"[!-+\--~]{1,128}")
_NUMBERS: Final = re.compile(rb"(\d{1,8}) (\d{1,8})")


def tell_names(names: Iterable[str], unloaded: Iterable[str] = ()) -> dict[str, str]:
    """Headers of an answer of /readyz: to a router with the key, what is answered to here; to others none."""
    if current_caller().relay is None:
        return {}
    told = {NAMES_HEADER: names, UNLOADED_HEADER: unloaded}
    return {header: ",".join([each for each in found if _TELLABLE.fullmatch(each)][-MOST_NAMES_TOLD:]) for header, found in told.items()}


def tell_prefix(request: Admitted, root: bytes) -> dict[str, str]:
    """The header of an answer to a request of a router with the key. `root`: of the model's KV cache."""
    root = root_key(root, request.domain, request.adapter)
    return {PREFIX_HEADER: f"{root.hex()} {ids_digest(request.prompt).hex()}"}


def ids_digest(ids: Sequence[int]) -> bytes:
    """A short digest of token ids."""
    return blake2b(array("I", ids).tobytes(), digest_size=8).digest()


def read_names(header: bytes) -> frozenset[str]:
    """The names of such a header."""
    return frozenset(header.decode("latin-1").split(",")[:MOST_NAMES_TOLD]) if header else frozenset()


def answer_created() -> int:
    """Seconds since 1970 when the answer began, here or at another replica."""
    relay = current_caller().relay
    return int(time.time()) if relay is None else relay.created


def is_continued() -> bool:
    """True if the request goes on with an answer that another replica had taken."""
    relay = current_caller().relay
    return relay is not None and relay.goes_on


def goes_elsewhere(error: Exception) -> bool:
    """True if a router goes on with a stream that ends with this error: the client is not told."""
    return isinstance(error, EngineDeadError) and current_caller().relay is not None


class RelayGate:
    """Knows routers by their key. What follows it reads bodies as clients sent them."""

    def __init__(self, app: ASGIApp, key: bytes | None, limit_of: Callable[[Scope], int]) -> None:
        """`key`: None: no router has one. `limit_of`: bytes of a request's own body."""
        self._app = app
        self._key = None if key is None else key.hex().encode()
        self._limit_of = limit_of

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        found = {name: value for name, value in scope.get("headers", ()) if name in (KEY_HEADER, CONTINUE_HEADER)}
        if not found:
            await self._app(scope, receive, send)
            return
        given, asked = found.get(KEY_HEADER, b""), found.get(CONTINUE_HEADER)
        if self._key is not None and not hmac.compare_digest(given, self._key):
            raise ApiError("router_only", "the router's key is another one than this server's; give both the same --router-key-file")
        if self._key is None and asked is not None:
            raise ApiError("router_only", "answers that began elsewhere are taken from a router with a key; set --router-key-file")
        relay: Relay | None = None
        if self._key is not None:
            relay = Relay()
            if asked is not None:
                relay, receive = await self._read(scope, receive, asked)
            relay.marks_lines = any(name == LINES_HEADER for name, _ in scope["headers"])
        with serving(replace(current_caller(), relay=relay)):
            await self._app(scope, receive, send)

    async def _read(self, scope: Scope, receive: Receive, asked: bytes) -> tuple[Relay, Receive]:
        """The records in front of a body, and what receives the body alone. Raises ApiError."""
        numbers = _NUMBERS.fullmatch(asked)
        length, events = (int(numbers[1]), int(numbers[2])) if numbers else (MAX_JOURNAL_BYTES + 1, 0)
        if length > MAX_JOURNAL_BYTES:
            message = f"this answer cannot go on here: {length} bytes of records; at most {MAX_JOURNAL_BYTES} are taken"
            raise ApiError("cannot_continue", message)
        scope[BODY_LIMIT_KEY] = length + self._limit_of(scope)
        body = await read_body(Request(scope, receive))
        scope["headers"] = [each for each in scope["headers"] if each[0] != b"content-length"]
        return read_relay(body[:length], events), replayed(body[length:], receive)
