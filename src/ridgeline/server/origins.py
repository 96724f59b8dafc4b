"""Pages of other origins (CORS): which may use the server, the answer to a browser's preflight, the headers that let a page read answers.

By default none may. Owns what browsers are told; `server.auth` rejects requests of origins that are not allowed.
"""

import re
from collections.abc import Sequence
from typing import Final

from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ridgeline.errors import ConfigError

ORIGIN: Final = re.compile(r"[a-z][a-z0-9+.-]{0,31}://([A-Za-z0-9_.-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\])(:[0-9]{1,5})?")
HEADER_NAME: Final = re.compile(r"[A-Za-z0-9-]{1,64}")
MAX_HEADERS: Final = 64
EVERY: Final = "*"
METHODS: Final = "GET, POST, DELETE, OPTIONS"
EXPOSED: Final = ", ".join((
    "x-request-id", "request-id", "retry-after", "x-ridgeline-ignored-fields", "x-ridgeline-folded-roles", "x-ridgeline-brown-out",
    *(f"x-ratelimit-{name}-{unit}" for unit in ("requests", "tokens") for name in ("limit", "remaining", "reset")),
))  # fmt: skip
"""Headers of answers that a page may read besides those that every page may."""
MAX_AGE_SECONDS: Final = 600
"""Time for which a browser need not ask again; browsers have limits of their own."""


def parse_origins(origins: Sequence[str]) -> frozenset[str]:
    """The origins as browsers send them. Raises ConfigError for what is none."""
    flag = "--allowed-origins"
    for each in origins:
        if each == "null":
            message = f"{flag} null is the origin of files and of frames that hide theirs, so it would allow every site; write *"
            raise ConfigError(message, fix={flag: EVERY})
        if each != EVERY and ORIGIN.fullmatch(each) is None:
            cut = re.match(r"[a-z][a-z0-9+.-]*://[^/]+", each.lower())
            fix = cut[0] if cut and ORIGIN.fullmatch(cut[0]) else None
            hint = f"write {fix}" if fix else "write https://host or https://host:port, or *"
            raise ConfigError(f"{flag} {each!r:.80} is not an origin; {hint}", fix={flag: fix})
    return frozenset(each.lower() for each in origins)


class CrossOrigin:
    """Answers preflights of allowed origins, before a key is asked for, and adds the headers of CORS to all other answers for them.

    Every answer depends on the origin, and says so, since caches between browser and server would mix them up.
    """

    def __init__(self, app: ASGIApp, origins: frozenset[str]) -> None:
        self._app = app
        self._origins = origins

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        origin = _one(scope, b"origin") if scope["type"] == "http" else None
        if origin is None or not allows(self._origins, origin):
            await self._app(scope, receive, send)
            return
        allowed = [(b"access-control-allow-origin", b"*" if EVERY in self._origins else origin.encode("latin-1")), (b"vary", b"Origin")]
        if scope["method"] == "OPTIONS" and _one(scope, b"access-control-request-method") is not None:
            await _preflight(scope, allowed)(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], *allowed, (b"access-control-expose-headers", EXPOSED.encode())]
            await send(message)

        await self._app(scope, receive, send_with_headers)


def allows(origins: frozenset[str], origin: str) -> bool:
    """True if pages of this origin may use the server."""
    return EVERY in origins or origin.lower() in origins


def _preflight(scope: Scope, allowed: list[tuple[bytes, bytes]]) -> Response:
    """Headers for what a page of an allowed origin may send: the headers that it asks for, where they are names of headers."""
    asked = [name.strip() for name in (_one(scope, b"access-control-request-headers") or "").split(",")]
    names = [name for name in asked if HEADER_NAME.fullmatch(name)][:MAX_HEADERS]
    headers = {"access-control-allow-methods": METHODS, "access-control-max-age": str(MAX_AGE_SECONDS)}
    if names:
        headers["access-control-allow-headers"] = ", ".join(names)
    if _one(scope, b"access-control-request-private-network") == "true":  # a site on the Internet asks for a machine that is not
        headers["access-control-allow-private-network"] = "true"
    answer = Response(status_code=204, headers=headers)
    answer.raw_headers += allowed
    return answer


def _one(scope: Scope, name: bytes) -> str | None:
    """The header's value; None where it is absent or stands there more than once."""
    found = [value for key, value in scope["headers"] if key == name]
    return found[0].decode("latin-1") if len(found) == 1 else None
