"""The short way of a request through the router: without a task, a scope or a layer, from the callbacks of its two connections.

It is for what nearly all requests are: generation, in one message with a length, for a replica to which a connection is open. Everything
else goes the long way (`proxy`): what is read here is read strictly, and whatever it is not, or must go elsewhere, is given back as it came
while nothing of an answer has been sent. A stream that breaks off goes on as any other, by `Proxy.go_on`.
"""

import asyncio
import re
import time
from collections import OrderedDict
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from starlette.types import Message
from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from ridgeline.router.attempts import ELSEWHERE, REWRITTEN, Begun, Broken, Hedge
from ridgeline.router.journal import Journal, stop_of
from ridgeline.router.metrics import RouterMetrics
from ridgeline.router.prompts import BYTES_PER_TOKEN, Prompt, Sessions, read_prompt
from ridgeline.router.proxy import Chosen, Proxy
from ridgeline.router.replicas import Replica, Replicas, Turn
from ridgeline.router.upstream import Connection, Headers, UpstreamError, passed_on
from ridgeline.server.access import ACCESS_KEY, CLIENT_DISCONNECTED, REQUEST_ID, Access, id_of, write_line
from ridgeline.server.auth import AccessGuard
from ridgeline.server.errors import ApiError
from ridgeline.server.routes import ROWS, Row, rows_of

if TYPE_CHECKING:
    from ridgeline.router.front import Front
    from ridgeline.router.tokens import PromptTokens

_TOKEN: Final = rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
_HEAD: Final = re.compile(rb"POST (/[!-\"$-~]*) HTTP/1\.1\r\n((?:" + _TOKEN + rb":(?:[\t -~\x80-\xff]*[!-~\x80-\xff])?\r\n)+)\r\n")
"""A head as RFC 9112 has it, without what only old clients write and without spaces that end a line: every line is checked, so that nobody
reads it otherwise."""
_FIELDS: Final = re.compile(rb"(" + _TOKEN + rb"):([^\r]*)\r\n")
_LENGTH: Final = re.compile(rb"\n[Cc]ontent-[Ll]ength: ?([0-9]{1,9})\r")
_LONG: Final = frozenset((b"transfer-encoding", b"expect", b"upgrade", b"te", b"trailer"))
"""Headers that change what follows a head, or what the connection is. So may one that stands twice."""
_OWN: Final = frozenset((b"authorization", b"x-api-key", b"api-key", b"x-request-id", b"traceparent", b"cookie"))
"""Headers that make a head one client's, or one request's: it is not kept."""
MOST_HEADS: Final = 256
SETTLE_SECONDS: Final = 0.002
"""Pause behind an answer's last bytes, before its prompt is learned and its line written: the client that they have woken often waits for
the same processor, and a request for this one."""
_NO_TRIES: Final = set[int]()
_UNTOLD: Final = Journal(None)
BODYLESS: Final = (204, 304)
PATHS: Final = {
    row.path.encode(): row
    for row in ROWS
    if row.method == "POST" and row.is_queued and len(rows_of(row.path)) == 1 and not row.path.startswith("/v1/responses")
}
"""Paths of generation whose requests name no stored answer."""


class Head(NamedTuple):
    """The head of a request, but for its length. `line`: method and path; `passed`: lines for the replica; `given`: the client's id for
    it, b"" without a harmless one; `tenant`: of its key."""

    row: Row
    line: bytes
    headers: Headers
    passed: bytes
    given: bytes
    tenant: bytes


class ShortWay:
    """The parts of a router that requests on the short way share: those of `proxy`, and the guard in front of it."""

    def __init__(
        self, proxy: Proxy, guard: AccessGuard, replicas: Replicas, metrics: RouterMetrics, key: bytes | None, sessions: Sessions,
        hedge: Hedge, tokens: "PromptTokens | None" = None,
    ) -> None:  # fmt: skip
        self.proxy, self.metrics, self.key = proxy, metrics, key
        self._own = b"".join([b"\r\n%b: %b" % each for each in Journal(key, lines=True).headers])
        self._next_id = id_of(b"")
        """The next request's, unless it brings one: made behind the one before, as everything in front of a request takes its time."""
        self.tasks: set[asyncio.Task[None]] = set()
        self._heads: OrderedDict[tuple[bytes, bytes], Head] = OrderedDict()
        """Heads that have been read, and let in; the least recently used one first: whoever sends others each time keeps nobody out."""
        self._guard, self._replicas, self._sessions, self.hedge, self._tokens = guard, replicas, sessions, hedge, tokens
        self._ended: list[Passing] = []

    def settle_later(self, passing: "Passing", loop: asyncio.AbstractEventLoop) -> None:
        """Settles an answer that ends now, behind the pause, with all others that have ended until then."""
        if not self._ended:
            loop.call_later(SETTLE_SECONDS, self.settle)
        self._ended.append(passing)

    def settle(self) -> None:
        """Settles the answers that have ended."""
        ended, self._ended = self._ended, []
        for each in ended:
            each.settle()

    def read(self, data: bytes) -> tuple[Head, int, int] | None:
        """(the head with which bytes begin, the bytes of it and of the whole request); None for one that goes the long way, also where the
        guard does not let it in."""
        begin = data.find(b"\r\n\r\n") + 4
        if (length := _LENGTH.search(data, 0, begin)) is None:
            return None
        key = data[: length.start(1)], data[length.end(1) : begin]
        if (head := self._heads.get(key)) is None:
            if (found := _HEAD.match(data)) is None or (head := self._read(found[1], found[2])) is None:
                return None
            if _OWN.isdisjoint([name for name, _ in head.headers]):
                self._heads[key] = head
                if len(self._heads) > MOST_HEADS:
                    self._heads.popitem(last=False)
        else:
            self._heads.move_to_end(key)
        size = int(length[1])
        return (head, begin, begin + size) if size <= head.row.max_body_bytes else None

    def _read(self, path: bytes, lines: bytes) -> Head | None:
        if (row := PATHS.get(path)) is None:
            return None
        found = _FIELDS.findall(lines)
        fields = {name.lower(): value.strip(b" \t") for name, value in found}
        if len(fields) != len(found) or not _LONG.isdisjoint(fields) or fields.get(b"connection", b"keep-alive").lower() != b"keep-alive":
            return None
        headers = list(fields.items())
        caller = self._guard.caller({"method": "POST", "path": row.path, "headers": headers})
        if isinstance(caller, ApiError):
            return None
        passed, given = passed_on(headers, (b"x-request-id",)), fields.get(b"x-request-id", b"")
        given = given if REQUEST_ID.fullmatch(given) else b""
        return Head(row, b"POST " + path, headers, passed, given, caller.tenant.encode())

    def hear(self, prompt: Prompt, replica: Replica, headers: Headers) -> None:
        """Notes what the head of an answer says of its prompt."""
        if self._replicas.held is not None:
            self._replicas.held.hear(prompt, replica.number, headers)

    def begin(self, client: "Front", head: Head, body_begin: int, request: bytes) -> "Passing | None":
        """Passes a whole request on to a replica; None where it went the long way."""
        body, prompt, cached = request[body_begin:], None, 0
        replica = self._replicas.only() if self._tokens is None and self.hedge.delay is None else None
        connection = None if replica is None else replica.upstream.idle()
        if replica is None or connection is None:
            prompt = self._fill(head, body)
            choice = None if prompt is None else self._replicas.choose(prompt, _NO_TRIES)
            if prompt is None or choice is None:
                client.take_long_way(request, None)
                return None
            replica, cached = choice
            if (connection := replica.upstream.idle()) is None:
                client.take_long_way(request, Chosen(replica.serving(prompt.tokens, cached)))
                return None
        request_id = head.given or self._next_id
        connection.ask(replica.upstream.asked(head.line, b"\r\nx-request-id: " + request_id + self._own + head.passed, body))
        self._next_id = id_of(b"")
        self._replicas.budget.earn()
        turn = replica.serving(len(body) // BYTES_PER_TOKEN if prompt is None else prompt.tokens, cached)
        return Passing(self, client, head, Access(request_id), request, body, prompt, connection, turn)

    def learn(self, head: Head, body: bytes, replica: Replica) -> Prompt:
        """The prompt of a request that a replica was sent without a choice, which is noted."""
        prompt = read_prompt(head.row.path, body, head.tenant, head.headers, self._sessions)
        self._replicas.note(prompt, replica)
        return prompt

    def _fill(self, head: Head, body: bytes) -> Prompt | None:
        """The prompt of a request for which there is a choice; None for one that goes the long way."""
        prompt: Prompt | None = read_prompt(head.row.path, body, head.tenant, head.headers, self._sessions)
        if prompt is not None and self._tokens is not None:
            prompt = self._tokens.fill_now(prompt, head.row.path, body, head.tenant.decode())
        return None if prompt is None or prompt.bound_to or self.hedge.delay is not None else prompt


class Passing:
    """A request that a replica has been asked for, and its answer.

    access     facts about it, for its line in the log
    has_begun  a part of the answer has been sent
    is_last    the client's connection ends with it
    """

    def __init__(
        self, way: ShortWay, client: "Front", head: Head, access: Access, request: bytes, body: bytes, prompt: Prompt | None,
        connection: Connection, turn: Turn,
    ) -> None:  # fmt: skip
        """`prompt`: None where it has not been read, as nothing was to choose."""
        connection.on_change = self.heard
        self.access, self._journal = access, _UNTOLD if way.key is None else Journal(way.key, lines=True)
        self._way, self._client, self._head, self._request, self._body = way, client, head, request, body
        self._flow, self._write = client.flow, client.transport.write_now  # type: ignore[attr-defined]
        self._prompt, self._connection, self._turn = prompt, connection, turn
        self.has_begun = self.is_last = False
        self._is_chunked = self._is_whole = self._is_counted = self._has_first = False
        self._task: asyncio.Task[None] | None = None

    # ── the replica ─────────────────────────────────────────────────────────────────────────────────────────────────

    def heard(self) -> None:
        """Passes on what has come, and sees whether it is all."""
        connection, out = self._connection, b""
        if not self.has_begun:
            if not connection.has_head:
                if connection.is_lost:
                    self._go_long_way()
                return
            if connection.status in ELSEWHERE:
                self._go_long_way()
                return
            out = self._begin()
        elif self._client.is_paused and not connection.is_lost:  # the replica's connection is read no further meanwhile
            self._turn.is_held = True
            return
        data, has_ended, is_broken = connection.take(), connection.is_whole, False
        if connection.is_lost and not has_ended:
            try:
                has_ended = connection.has_ended
            except UpstreamError:
                is_broken = True
        if data:
            out += self._framed(self._journal.take(data))
        if has_ended:
            out += self._framed(self._journal.end()) + (b"0\r\n\r\n" if self._is_chunked else b"")
        if out:
            self._write(out)
        if self._has_first:
            self._turn.passed += len(data)
        else:
            self._count(data)
        if has_ended:
            self._end()
        elif is_broken:
            self._break()

    def _pass_on(self, chunks: bytes) -> bool:
        """Passes chunks on as they came, as the client gets the same; False while it does not read."""
        if self._flow.write_paused:
            return False
        self._write(chunks)
        if self._has_first:
            self._turn.passed += len(chunks)
        else:
            self._count(chunks)
        if self._connection.is_whole:
            self._end()
        return True

    def _count(self, data: bytes) -> None:
        """Counts the beginning of an answer and of its body, behind their sending: nobody waits for it."""
        status, replica = self._connection.status, self._turn.replica
        if not self._is_counted:
            self._is_counted = True
            replica.note_answer() if status < 500 else replica.note_failure()
            self._way.metrics.answers(replica.upstream.url, f"{status // 100}xx").inc()
        if data:
            self._has_first = True
            seconds = self._turn.first_byte()
            self._way.metrics.first_byte(replica.upstream.url).observe(seconds)
            self._way.hedge.note(seconds)

    def _begin(self) -> bytes:
        """The head of the answer for the client."""
        client, status = self._client, self._connection.status
        found = [each for each in self._connection.headers if each[0] not in REWRITTEN]
        self.has_begun, self.access.status = True, status
        if self._prompt is not None:
            self._way.hear(self._prompt, self._turn.replica, self._connection.headers)
        stop = stop_of(found)
        self._turn.is_stream = bool(stop)
        if not self._journal.follow(stop):
            self._journal = _UNTOLD
        self._is_chunked = status not in BODYLESS and b"content-length" not in dict(found)
        if self._is_chunked and self._journal is _UNTOLD:
            self._connection.on_chunks = self._pass_on
        headers = [*client.server_state.default_headers, *found, (b"x-request-id", self.access.request_id)]
        if self._head.row.dialect == "anthropic":
            headers.append((b"request-id", self.access.request_id))
        if self.is_last:
            headers.append((b"connection", b"close"))
        if self._is_chunked:
            headers.append((b"transfer-encoding", b"chunked"))
        return STATUS_LINE[status] + b"".join([b"%b: %b\r\n" % each for each in headers]) + b"\r\n"

    def _framed(self, data: bytes) -> bytes:
        return b"%x\r\n%b\r\n" % (len(data), data) if data and self._is_chunked else data

    def _go_long_way(self) -> None:
        """Gives the request back with its choice: the long way hears what the replica says, and may ask another one."""
        self._connection.on_change = self._connection.notify
        self._read_prompt()
        self._client.take_long_way(self._request, Chosen(self._turn, self._connection))

    def _read_prompt(self) -> Prompt:
        self._prompt = self._prompt or self._way.learn(self._head, self._body, self._turn.replica)
        return self._prompt

    def _release(self) -> None:
        self._turn.replica.upstream.release(self._connection)
        self._turn.end()

    def _end(self) -> None:
        """The whole answer has been sent."""
        self._turn.judge(is_good=self._connection.status < 500)
        self._is_whole = True
        self._release()
        self.access.ended = time.monotonic()
        self._way.settle_later(self, self._client.loop)
        self._client.has_passed(not self.is_last)

    def settle(self) -> None:
        """Learns the prompt, and writes the line."""
        self._read_prompt()
        self._log()

    def _log(self) -> None:
        write_line(self._scope(), self.access)

    def _scope(self) -> dict[str, Any]:
        path, client = self._head.row.path, self._client
        return {
            "type": "http", "method": "POST", "path": path, "raw_path": path.encode(), "query_string": b"", "headers": self._head.headers,
            "client": client.client, ACCESS_KEY: self.access,
        }  # fmt: skip

    # ── a replica, or a client, that goes ───────────────────────────────────────────────────────────────────────────

    def _break(self) -> None:
        """The replica has ended in the middle of its answer."""
        begun = Begun(self._turn.replica, self._turn, self._connection, self._connection.status)
        self._way.proxy.note_break(begun)
        self._release()
        self._task = asyncio.ensure_future(self._go_on(Broken(begun, self._journal)))
        self._way.tasks.add(self._task)
        self._task.add_done_callback(self._way.tasks.discard)

    async def _go_on(self, broken: Broken) -> None:
        try:
            await self._way.proxy.go_on(self._scope(), self._send, self._body, self._read_prompt(), broken)
        except ApiError as error:
            self.access.error = error.code
        self._log()
        self._client.has_passed(self._is_whole and not self.is_last)

    async def _send(self, message: Message) -> None:
        """Sends a part of the answer from another replica."""
        await self._client.until_read()
        self._is_whole = not message["more_body"]
        if out := self._framed(message["body"]) + (b"0\r\n\r\n" if self._is_whole and self._is_chunked else b""):
            self._write(out)

    def client_has_gone(self) -> None:
        """Ends the request at its replica."""
        if self._task is None:
            self._connection.close()
            self._release()
        else:
            self._task.cancel()
        self.access.error = self.access.error or CLIENT_DISCONNECTED
        self.settle()
