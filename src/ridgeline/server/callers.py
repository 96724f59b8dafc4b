"""The caller whose request is being answered: a context variable that access control sets for everything below it.

It is no argument of endpoints, so that none can forget it: one that did would share prefixes between tenants. A task that an endpoint
starts has the same caller; a thread has it only if the endpoint asks before.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final

from starlette.types import ASGIApp, Receive, Scope, Send

from ridgeline.server.errors import ApiError
from ridgeline.server.keys import Caller

_CALLER: Final[ContextVar[Caller]] = ContextVar("caller")
NOBODY: Final = Caller()
"""The caller where no key is needed, and of the server's own requests."""


def current_caller() -> Caller:
    """The caller of the request that this task answers."""
    return _CALLER.get(NOBODY)


@contextmanager
def serving(caller: Caller) -> Iterator[None]:
    """Within it, requests are this caller's."""
    token = _CALLER.set(caller)
    try:
        yield
    finally:
        _CALLER.reset(token)


def private_salt(salt: str | None) -> str:
    """The client's salt within its tenant. A tenant's name has no NUL, so no two pairs are the same."""
    return f"{current_caller().tenant}\0{salt or ''}"


class AdminOnly:
    """Passes on requests of keys with scope=admin alone."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not current_caller().is_admin:
            raise ApiError("admin_only", "this needs a key with scope=admin (--api-key-file), which this request has not")
        await self._app(scope, receive, send)
