"""The choice of the model that a request is for, in front of the applications of all: by the body's `model`, or by the query's where there
is no body.

Owns what is read of a body to know that, and the time in which a request waits for its model to be loaded: a stream is told of it in
comments that clients skip. Behind it everything is of one model, as in a server that has no other.
"""

import time
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import parse_qs

import msgspec
from msgspec import structs
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ridgeline.errors import EngineDeadError
from ridgeline.server import routes
from ridgeline.server.access import note_model
from ridgeline.server.body import decode
from ridgeline.server.callers import current_caller
from ridgeline.server.errors import ApiError, Dialect, as_api_error
from ridgeline.server.ollama import UNLOADS_KEY
from ridgeline.server.ollama_chat import LATEST, keep_alive_seconds
from ridgeline.server.routes import Row
from ridgeline.server.several.resident import Phase, Resident
from ridgeline.server.several.roster import Roster
from ridgeline.server.transport import (
    ANTHROPIC_EVENTS,
    GGML_EVENTS,
    GONE_KEY,
    OLLAMA_LINES,
    OPENAI_EVENTS,
    RESPONSES_EVENTS,
    Disconnected,
    EventGrammar,
    read_body,
    replayed,
)

GRAMMARS: Final[Mapping[Dialect, EventGrammar]] = {
    each.dialect: each for each in (OPENAI_EVENTS, ANTHROPIC_EVENTS, RESPONSES_EVENTS, OLLAMA_LINES, GGML_EVENTS)
}
MAX_STAGE: Final = 200


class _Asked(msgspec.Struct):
    """The part of a body that is read here; all else, and what is wrong with it, is the endpoint's to read."""

    model: str | None = None
    stream: Any = None
    keep_alive: Any = None


class ModelGate:
    """Passes a request to the application of its model, behind its load.

    apps    of the models
    shared  answers what is asked of all of them, by its path
    """

    def __init__(self, roster: Roster, apps: Mapping[Resident, ASGIApp], shared: Mapping[str, ASGIApp]) -> None:
        self._roster = roster
        self._apps = apps
        self._shared = shared

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        rows, row = routes.rows_of(scope["path"]), routes.find_row(scope)
        shared = self._shared.get(rows[0].path) if rows else None
        if shared is not None:
            if row is not None:
                routes.note_limits(scope, row)
            await shared(scope, receive, send)
        elif row is not None and _names_a_model(row):
            await self._with_body(row, scope, receive, send)
        else:
            await self._without_body(row, scope, receive, send)

    async def _without_body(self, row: Row | None, scope: Scope, receive: Receive, send: Send) -> None:
        resident = self._by_id(scope) or self._by_query(scope)
        note_model(scope, resident.name)
        if resident.phase is not Phase.LOADED and row is not None and 503 in row.errors:
            raise EngineDeadError(f"{resident.name} is {resident.phase}; a request for an answer loads it")
        await self._apps[resident](scope, receive, send)

    def _by_query(self, scope: Scope) -> Resident:
        """The model of `?model=`; the first one where there is none."""
        names = parse_qs(scope.get("query_string", b"").decode("latin-1")).get("model", ())
        return self._roster.find(names[0]) if names else self._roster.first

    def _by_id(self, scope: Scope) -> Resident | None:
        """The model that a request was answered by whose id stands in the path."""
        path: str = scope["path"]
        if not path.startswith("/v1/requests/"):
            return None
        name = path.removeprefix("/v1/requests/").partition("/")[0]
        return next((each for each in self._roster.residents.values() if each.service.ledger.find(name) is not None), None)

    async def _with_body(self, row: Row, scope: Scope, receive: Receive, send: Send) -> None:
        routes.note_limits(scope, row)
        body = await read_body(Request(scope, receive))
        asked = decode(_Asked, body)  # what is no request loads no model
        resident = self._of(asked.model, row.dialect)
        keep_alive = self._bounded(keep_alive_seconds(asked.keep_alive)) if row.dialect == "ollama" else None
        note_model(scope, resident.name)
        quota = current_caller().quota
        if quota is not None and row.is_queued and resident.phase is not Phase.LOADED:
            quota.check_request(time.monotonic())  # one that would be refused loads no model
        wait = _Wait(scope, send, GRAMMARS[row.dialect], row.event is not None and _streams(asked, row.dialect))
        if keep_alive == 0 and not resident.is_idle:
            keep_alive = self._roster.config.min_residence  # it is others' too
        elif keep_alive == 0:
            scope[UNLOADS_KEY] = True
        try:
            async with self._roster.using(resident, keep_alive, wait.tell):
                await self._apps[resident](scope, replayed(body, receive), wait.send if wait.has_begun else send)
        except Exception as error:
            await wait.fail(error)
            raise

    def _bounded(self, keep_alive: float | None) -> float | None:
        """The wish of a request. Where keys are needed, a client's keeps a model no longer than the server would: its memory is that of
        all. A shorter one counts, as does an admin's."""
        longest, has_keys = self._roster.config.keep_alive, self._roster.first.service.keys.needed
        if keep_alive is None or longest is None or not has_keys or current_caller().is_admin:
            return keep_alive
        return min(keep_alive, longest) if keep_alive >= 0 else longest

    def _of(self, name: str | None, dialect: Dialect) -> Resident:
        if not name:
            names = ", ".join(map(repr, self._roster.residents))
            raise ApiError("missing_field", f"model is missing; send the name of one of this server's: {names}", param="model")
        return self._roster.find(name.removesuffix(LATEST) if dialect == "ollama" else name)


def _names_a_model(row: Row) -> bool:
    """True if the body says which of the models is to answer. What an admin pulls is none of them yet."""
    return row.request is not None and row.access != "admin" and "model" in {each.name for each in structs.fields(row.request)}


def _streams(asked: _Asked, dialect: Dialect) -> bool:
    return asked.stream is not False if dialect == "ollama" else asked.stream is True


class _Wait:
    """The time in which a request waits for its model. A stream begins in it, with the first stage that is told."""

    def __init__(self, scope: Scope, send: Send, grammar: EventGrammar, streams: bool) -> None:
        self._scope, self._send, self._grammar, self._streams = scope, send, grammar, streams
        self._status = 200
        self._failed = b""
        self._is_answered = False
        self.has_begun = False

    async def tell(self, stage: str) -> None:
        """A comment with the stage. Raises Disconnected where the client has gone."""
        if (gone := self._scope.get(GONE_KEY)) is not None and gone.done():
            raise Disconnected
        if not self._streams:
            return
        if not self.has_begun:
            self.has_begun = True
            kind = self._grammar.media_type.encode()
            headers = [(b"content-type", kind), (b"cache-control", b"no-store"), (b"x-accel-buffering", b"no")]
            await self._send({"type": "http.response.start", "status": 200, "headers": headers})
        is_lines = self._grammar is OLLAMA_LINES
        data = self._grammar.idle if is_lines else b": " + stage[:MAX_STAGE].replace("\n", " ").encode() + b"\n\n"
        await self._send({"type": "http.response.body", "body": data, "more_body": True})

    async def send(self, message: Message) -> None:
        """Passes an answer on whose start has been sent: of an error its body becomes an event."""
        if message["type"] == "http.response.start":
            self._is_answered, self._status = True, message["status"]
        elif self._status == 200:
            await self._send(message)
        else:
            self._failed += message.get("body", b"")
            if not message.get("more_body", False):
                await self._close(self._failed)

    async def fail(self, error: Exception) -> None:
        """An error of a stream that has begun in the wait, and that no answer tells of, becomes an event."""
        if self.has_begun and not self._is_answered and not isinstance(error, Disconnected):
            await self._close(as_api_error(error).body(self._grammar.dialect))

    async def _close(self, body: bytes) -> None:
        grammar = self._grammar
        await self._send({"type": "http.response.body", "body": grammar.error_start + body + grammar.stop + grammar.end})
