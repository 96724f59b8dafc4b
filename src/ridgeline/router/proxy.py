"""The router's ASGI application: its own probes, and everything else from one of the replicas.

A request whose replica cannot be reached, or is not ready, goes to another one while nothing of an answer has been sent, within a budget of
retries. A stream that breaks off later goes on at another replica, where router and replicas share a key; any other answer ends with an
error of the dialect. A client that goes ends its request at the replica.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import ExitStack
from http import HTTPStatus
from math import ceil
from typing import TYPE_CHECKING, Final, NamedTuple

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.types import Receive, Scope, Send

from ridgeline.observe.logs import with_fields
from ridgeline.router.attempts import ELSEWHERE, REWRITTEN, Answer, Attempts, Begun, Broken, Elsewhere, Hedge, race, whole
from ridgeline.router.budget import Moves
from ridgeline.router.journal import Journal, stop_of
from ridgeline.router.metrics import RouterMetrics
from ridgeline.router.prompts import NO_SESSIONS, Prompt, Sessions, read_prompt
from ridgeline.router.replicas import CHECK_SECONDS, Replicas, Turn
from ridgeline.router.upstream import Connection, Headers, UpstreamError
from ridgeline.server.callers import current_caller
from ridgeline.server.connection import PAUSED_KEY
from ridgeline.server.errors import ApiError
from ridgeline.server.routers import BLOCKS_PATH
from ridgeline.server.routes import dialect_of, find_row
from ridgeline.server.transport import (
    ANTHROPIC_EVENTS,
    BODY_LIMIT_KEY,
    BODY_SEND_KEY,
    GGML_EVENTS,
    OLLAMA_LINES,
    OPENAI_EVENTS,
    RESPONSES_EVENTS,
    json_response,
    read_body,
    unless_disconnected,
)

if TYPE_CHECKING:
    from ridgeline.router.tokens import PromptTokens

log = logging.getLogger("ridgeline.router")

MOST_BODY_BYTES: Final = 16 << 20
"""Bytes of a body of a path that this version of the table of routes has no bound for."""
BODYLESS: Final = ("GET", "HEAD", "OPTIONS")
GRAMMARS: Final = (OPENAI_EVENTS, ANTHROPIC_EVENTS, RESPONSES_EVENTS, OLLAMA_LINES, GGML_EVENTS)
PROBES: Final = ("/livez", "/readyz", "/health", "/startupz")
CONTINUE_SECONDS: Final = 30.0
"""Seconds for which a stream waits for a replica that goes on with it."""
MOST_STALLS: Final = 2
"""Replicas that may end in a row while they have a stream that gets no further."""
PAUSE_SECONDS: Final = 0.1
"""Between looks for a replica that goes on."""
CHOSEN_KEY: Final = "ridgeline.chosen"
"""Key in a scope of the `Chosen` of a request that began on the short way."""


class Chosen(NamedTuple):
    """A choice that has been made: the request's turn at a replica, and the connection on which that was asked already."""

    turn: Turn
    connection: Connection | None = None

    def drop(self) -> None:
        """Ends it unused."""
        self.turn.end()
        if self.connection is not None:
            self.connection.close()
            self.turn.replica.upstream.release(self.connection)


class _Tries:
    """Replicas that have been asked for the beginning of one answer: `numbers` of them, and what they said in place of it."""

    def __init__(self, replicas: Replicas, prompt: Prompt) -> None:
        self._replicas, self._prompt = replicas, prompt
        self.moves = Moves(replicas.budget)
        self.numbers, self._without = set[int](), set[int]()
        self._refused: Answer | None = None
        self._unknown: Answer | None = None

    def may_go_on(self, number: int, error: Elsewhere) -> bool:
        """Notes why a replica has not answered; True if another may be asked."""
        if error.is_unknown:
            self._unknown = error.answer
            self._without.add(number)
            return self._replicas.may_search(self._prompt, self.numbers)
        self._refused = error.answer or self._refused
        return not error.was_sent or self.moves.pay(is_loss=error.answer is None)

    def answer(self) -> Answer | None:
        """The answer for the client: that no replica has a stored one only where that is sure."""
        return self._refused or (None if self._replicas.may_have(self._prompt, self._without) else self._unknown)


class Proxy:
    """The application over `replicas`."""

    def __init__(
        self, replicas: Replicas, metrics: RouterMetrics, key: bytes | None = None, sessions: Sessions = NO_SESSIONS,
        hedge: Hedge | None = None, tokens: "PromptTokens | None" = None,
    ) -> None:  # fmt: skip
        """`key`: shared with the replicas; None: streams end with their replica. `hedge`: None: no request gets a second replica.
        `tokens`: None: prompts are not tokenised here."""
        self._replicas = replicas
        self._key = key
        self._metrics = metrics
        self._attempts = Attempts(metrics)
        self._sessions = sessions
        self._hedge = hedge or Hedge(None)
        self._tokens = tokens
        self._own: dict[str, Callable[[], Response]] = {
            "/livez": lambda: PlainTextResponse("ok\n"),
            "/readyz": self._readyz,
            "/health": self._readyz,
            "/startupz": self._readyz,
            "/metrics": self._read_metrics,
            "/router": self._describe,
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        own = self._own.get(scope["path"])
        if own is not None and scope["method"] in ("GET", "HEAD"):
            if scope["path"] not in PROBES and not current_caller().is_admin and current_caller().owner:
                raise ApiError("admin_only", "this route is for keys that have scope=admin")
            await own()(scope, receive, send)
        else:
            try:
                await self._pass_on(scope, receive, send)
            finally:
                if (unused := scope.pop(CHOSEN_KEY, None)) is not None:  # its client has gone before
                    unused.drop()

    # ── its own routes ──────────────────────────────────────────────────────────────────────────────────────────────

    def _readyz(self) -> Response:
        """200 while some replica takes requests, or they may wait for one."""
        if self._replicas.ready() or self._replicas.room.is_open:
            return PlainTextResponse("ok\n")
        raise _nobody(self._replicas)

    def _read_metrics(self) -> Response:
        return Response(self._metrics.exposition(self._replicas), headers={"Content-Type": self._metrics.content_type})

    def _describe(self) -> Response:
        now = time.monotonic()
        return json_response({"replicas": [
            {
                "url": each.upstream.url, "ready": each.is_ready, "why_not": each.why_not or None, "breaker_open": each.is_shut(now),
                "weight": each.load.weight, "canary": each.share or None, "stopped": each.is_stopped, "leaving": each.is_leaving,
                "requests": each.load.requests, "waiting_tokens": each.load.waiting_tokens, "held_tokens": each.load.held_tokens,
                "names": sorted(each.load.names), "unloaded": sorted(each.load.unloaded),
                "blocks": None if self._replicas.held is None else self._replicas.held.blocks(each.number),
            }
            for each in self._replicas.all
        ]})  # fmt: skip

    # ── everything else ─────────────────────────────────────────────────────────────────────────────────────────────

    async def _pass_on(self, scope: Scope, receive: Receive, send: Send) -> None:
        row = find_row(scope)
        scope[BODY_LIMIT_KEY] = row.max_body_bytes if row is not None else MOST_BODY_BYTES
        body = b"" if scope["method"] in BODYLESS else await read_body(Request(scope, receive))
        if scope["path"] == BLOCKS_PATH:  # with the router's key in front of it, a replica would tell
            raise ApiError("router_only", "replicas tell their router alone which blocks they hold")
        tenant = current_caller().tenant
        prompt = read_prompt(scope["path"], body, tenant.encode(), scope["headers"], self._sessions)
        if self._tokens is not None:
            prompt = await self._tokens.fill(prompt, scope["path"], body, tenant)
        tries, chosen = _Tries(self._replicas, prompt), scope.pop(CHOSEN_KEY, None)
        if chosen is None or chosen.connection is None:  # else it did on the short way
            self._replicas.budget.earn()
        while (choice := chosen or await self._choose(scope, prompt, tries.numbers, len(body))) is not None:
            turn, asked = choice
            tries.numbers.add(turn.replica.number)
            chosen = None
            try:
                with turn:
                    if asked is None and self._hedge.takes(scope["method"], row, prompt.bound_to):
                        work = self._hedged(scope, send, body, prompt, tries.numbers, turn)
                    else:
                        work = self._alone(scope, send, body, prompt, turn, asked)
                    await unless_disconnected(scope, work)
                return
            except Broken as broken:
                await unless_disconnected(scope, self.go_on(scope, send, body, prompt, broken, tries.moves))
                return
            except Elsewhere as error:
                if not tries.may_go_on(turn.replica.number, error):
                    break
                self._metrics.retries.inc()
        if (refused := tries.answer()) is None:
            raise _nobody(self._replicas)
        await send({"type": "http.response.start", "status": refused.status, "headers": refused.headers})
        await send({"type": "http.response.body", "body": refused.body, "more_body": False})

    async def _choose(self, scope: Scope, prompt: Prompt, tried: set[int], size: int) -> Chosen | None:
        """A replica that has not been tried; the first that comes, while there is none at all and the request may wait."""
        choice = self._replicas.choose(prompt, tried)
        if choice is None and not self._replicas.ready() and await unless_disconnected(scope, self._replicas.room.wait(size)):
            tried.clear()
            choice = self._replicas.choose(prompt, tried)
        return None if choice is None else Chosen(choice[0].serving(prompt.tokens, choice[1]))

    async def _alone(self, scope: Scope, send: Send, body: bytes, prompt: Prompt, turn: Turn, asked: Connection | None) -> None:
        """The answer of one replica, `asked` on this connection. Raises Elsewhere while nothing has been sent, Broken where it breaks
        off."""
        journal = Journal(self._key, lines=True)
        begun = await self._attempts.begin(scope, turn.replica, body, turn, journal.headers, asked)
        await self._forward(scope, send, prompt, begun, journal)

    async def _hedged(self, scope: Scope, send: Send, body: bytes, prompt: Prompt, tried: set[int], turn: Turn) -> None:
        """The answer of one replica, or of another one where that is slow to begin. Raises what `_alone` does."""
        journal, hedge = Journal(self._key, lines=True), self._hedge
        with ExitStack() as turns:

            def begin(turn: Turn) -> asyncio.Task[Begun]:
                return asyncio.ensure_future(self._attempts.begin_body(scope, turn.replica, body, turn, journal.headers))

            def begin_second() -> asyncio.Task[Begun] | None:
                choice = self._replicas.choose(prompt, tried) if self._replicas.budget.take() else None
                if choice is None:
                    return None
                tried.add(choice[0].number)
                self._metrics.hedges.inc()
                return begin(turns.enter_context(choice[0].serving(prompt.tokens, choice[1])))

            begun = await race(begin(turn), hedge.delay or 0.0, begin_second)
            if begun.turn is not turn:
                self._metrics.hedges_won.inc()
                turn.end()
            else:
                turns.close()
            await self._forward(scope, send, prompt, begun, journal)

    async def _forward(self, scope: Scope, send: Send, prompt: Prompt, begun: Begun, journal: Journal) -> None:
        """Sends an answer to the client. Raises Broken where it breaks off."""
        replica, connection = begun.replica, begun.connection
        try:
            headers = [each for each in connection.headers if each[0] not in REWRITTEN]
            if begun.status < 500:
                replica.note_answer()
            else:
                replica.note_failure()
            if self._replicas.held is not None:
                self._replicas.held.hear(prompt, replica.number, connection.headers)
            stop = stop_of(headers)
            begun.turn.is_stream = bool(stop)
            if not journal.follow(stop):
                journal = Journal(None)
            await send({"type": "http.response.start", "status": begun.status, "headers": headers})
            await self._stream(scope, send, begun, journal)
            begun.turn.judge(is_good=begun.status < 500)
        except UpstreamError:
            self.note_break(begun)
            raise Broken(begun, journal) from None
        finally:
            replica.upstream.release(connection)

    def note_break(self, begun: Begun) -> None:
        """Notes that a replica has ended in the middle of its answer."""
        begun.turn.judge(is_good=False)
        begun.replica.note_failure()
        self._metrics.broken.inc()

    # ── a stream whose replica has gone ─────────────────────────────────────────────────────────────────────────────

    async def go_on(
        self, scope: Scope, send: Send, body: bytes, prompt: Prompt, broken: Broken, moves: Moves | None = None
    ) -> None:  # fmt: skip
        """Goes on with a stream at other replicas, one after the other. Where none can, it ends with an error.

        A request that ends replicas must not end all of them: two that end in a row, without an event between, are the last. A move that
        cannot be paid for waits. `moves`: that it has made; None: it has made none.
        """
        journal, lost, refusing, stalls = broken.journal, broken.replica, set[int](), 0
        moves, is_loss, is_paid = moves or Moves(self._replicas.budget), True, False
        until = time.monotonic() + CONTINUE_SECONDS
        while journal.can_continue and stalls < MOST_STALLS and time.monotonic() < until:
            journal.lose()
            before, free = journal.events, prompt._replace(bound_to=b"")
            is_paid = is_paid or moves.pay(is_loss)
            choice = self._replicas.choose(free, refusing | {lost.number}) or self._replicas.choose(free, refusing) if is_paid else None
            if choice is None:
                await asyncio.sleep(PAUSE_SECONDS)
                continue
            replica, cached = choice
            try:
                with replica.serving(prompt.tokens, cached) as turn:
                    await self._continue_at(scope, send, body, turn, journal)
                return
            except Elsewhere as error:
                is_loss, is_paid = error.answer is None, not error.was_sent
                if error.answer is not None and error.answer.status not in ELSEWHERE:
                    refusing.add(replica.number)
                await asyncio.sleep(PAUSE_SECONDS)
            except Broken:
                lost, is_loss, is_paid = replica, True, False
                stalls = 0 if journal.events > before else stalls + 1
                until = time.monotonic() + CONTINUE_SECONDS
        if journal.is_whole:
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        else:
            await _end_broken(scope, send, broken.headers)

    async def _continue_at(self, scope: Scope, send: Send, body: bytes, turn: Turn, journal: Journal) -> None:
        """The rest of a stream from this replica. Raises Elsewhere where it does not take it, Broken where it ends too."""
        replica = turn.replica
        begun = await self._attempts.begin(scope, replica, journal.body(body), turn, journal.headers)
        connection = begun.connection
        try:
            if begun.status != HTTPStatus.OK or not journal.follow(stop_of(connection.headers)):
                answer = Answer(begun.status, connection.headers, begun.first or await whole(connection))
                log.info("replica does not go on with a stream", extra=with_fields(replica=replica.upstream.url, status=begun.status))
                raise Elsewhere(answer)
            turn.is_stream = True
            replica.note_answer()
            self._metrics.continued.labels(replica.upstream.url).inc()
            await self._stream(scope, send, begun, journal)
            turn.judge(is_good=True)
        except UpstreamError:
            self.note_break(begun)
            raise Broken(begun, journal) from None
        finally:
            replica.upstream.release(connection)

    async def _stream(self, scope: Scope, send: Send, begun: Begun, journal: Journal) -> None:
        """Passes a body on. Raises UpstreamError where it breaks off."""
        replica, connection, is_first = begun.replica, begun.connection, True
        send = scope.get(BODY_SEND_KEY, send)  # layers around this one need the start of an answer alone
        data = begun.first or await connection.read()
        while data:
            if passed := journal.take(data):
                await send({"type": "http.response.body", "body": passed, "more_body": True})
            if is_first:  # behind its sending: nobody waits for what is counted
                is_first = False
                seconds = begun.turn.first_byte()
                self._metrics.first_byte(replica.upstream.url).observe(seconds)
                self._hedge.note(seconds)
            else:
                begun.turn.passed += len(data)
            data = await connection.read()
        begun.turn.is_held = bool(scope.get(PAUSED_KEY))
        await send({"type": "http.response.body", "body": journal.end(), "more_body": False})


async def _end_broken(scope: Scope, send: Send, headers: Headers) -> None:
    """Ends a stream with an error of its dialect; raises it, so that a body of another kind breaks off."""
    failure = ApiError("engine_failed", "the replica of this request ended before its answer did")
    grammar = next((each for each in GRAMMARS if each.dialect == dialect_of(scope)), OPENAI_EVENTS)
    kind = next((value for name, value in headers if name == b"content-type"), b"")
    if kind.startswith(grammar.media_type.encode()):
        end = grammar.error_start + failure.body(grammar.dialect) + grammar.stop + grammar.end
        await send({"type": "http.response.body", "body": end, "more_body": False})
    raise failure


def _nobody(replicas: Replicas) -> ApiError:
    """The error where no replica takes a request; it may when the first of them says so, or its breaker does."""
    now = time.monotonic()
    headers = {"Retry-After": str(ceil(min((each.seconds_to_try(now) for each in replicas.all), default=CHECK_SECONDS)))}
    why = "; ".join(f"replica {each.number}: {each.why_not or 'tried'}" for each in replicas.all)
    return ApiError("engine_unavailable", f"no replica takes requests now ({why[:500]})", headers=headers)
