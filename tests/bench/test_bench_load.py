"""The load client against servers that misbehave: odd chunks, stalls, every kind of failure. None of it may be hidden."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from ridgeline.bench.client import Client, PreparedRequest, RequestOutcome, make_body
from ridgeline.bench.http import HttpClient, HttpError, ServerAddress
from ridgeline.bench.report import LoadReport, make_report
from ridgeline.bench.session import DEFAULT_MODEL, Measurement, closed_loop, first_model, measure_token_costs, open_loop
from ridgeline.errors import ConfigError
from ridgeline.planning.objectives import Objective

Answer = Callable[[str, bytes, asyncio.StreamWriter], Awaitable[None]]
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
TOKEN = b'data: {"choices":[{"index":0,"text":"a","finish_reason":null}]}\n\n'
LAST = b'data: {"choices":[{"index":0,"text":"","finish_reason":"length"}]}\n\n'
USAGE = b'data: {"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":%d,"prompt_tokens_details":{"cached_tokens":3}}}\n\n'
DONE = b"data: [DONE]\n\n"


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


async def with_server(answer: Answer, use: Callable[[HttpClient], Awaitable[Any]]) -> Any:
    """Each request of a connection gets `answer(head, body, writer)`, until that closes it."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while not writer.is_closing():
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                length = next((int(line[15:]) for line in head.splitlines() if line.lower().startswith("content-length:")), 0)
                await answer(head, await reader.readexactly(length), writer)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    http = HttpClient(ServerAddress.parse(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"))
    try:
        return await use(http)
    finally:
        http.close()
        server.close()


def ask(number: int = 0, due: float = 0.0) -> PreparedRequest:
    return PreparedRequest(number, make_body("completions", "m", "hello", 4, True, {}), 7, 4, due)


def one(answer: Answer, seconds: float = 5.0, api: Any = "completions") -> RequestOutcome:
    async def use(http: HttpClient) -> RequestOutcome:
        return await Client(http, api, seconds).run(ask(), time.perf_counter())

    return asyncio.run(with_server(answer, use))  # type: ignore[no-any-return]


def sends(*parts: bytes, close: bool = False) -> Answer:
    async def answer(head: str, body: bytes, writer: asyncio.StreamWriter) -> None:
        for part in parts:
            writer.write(part)
            await writer.drain()
            await asyncio.sleep(0.002)
        if close:
            writer.close()

    return answer


WHOLE = TOKEN + TOKEN + TOKEN + LAST + USAGE % 4 + DONE


@pytest.mark.parametrize("step", [1, 7, 50, 1000])
def test_bytes_may_come_in_any_pieces(step: int) -> None:
    stream = HEAD + b"".join(chunk(WHOLE[at : at + 11]) for at in range(0, len(WHOLE), 11)) + chunk(b"")
    found = one(sends(*[stream[at : at + step] for at in range(0, len(stream), step)]) if step > 1 else sends(stream))
    assert found.error is None, found.message
    assert (found.prompt, found.output, found.cached, found.events, found.counted) == (7, 4, 3, 3, True)
    assert found.text == "aaa" and len(found.gaps) == 2 and found.first <= found.ended


def test_tokens_are_the_servers_count_and_events_where_there_is_none() -> None:
    several = b'data: {"choices":[{"text":"abc","finish_reason":null}]}\r\n\r\n'
    found = one(sends(HEAD + chunk(several + several + LAST + USAGE % 6 + DONE) + chunk(b"")))
    assert (found.output, found.events, found.counted) == (6, 2, True)
    found = one(sends(HEAD + chunk(TOKEN + TOKEN + DONE) + chunk(b"")))
    assert (found.output, found.events, found.counted, found.error) == (2, 2, False, None)


def test_roles_and_ends_are_no_tokens_of_a_chat_and_unfinished_characters_are() -> None:
    deltas = [
        b'{"role":"assistant","content":""}', b'{"reasoning_content":"hm"}', b'{"content":""}', b'{"content":"a"}',
        b'{"role":"assistant","content":"b"}',
    ]  # fmt: skip
    events = b"".join(b'data: {"choices":[{"delta":%b,"finish_reason":null}]}\n\n' % delta for delta in deltas)
    end = b'data: {"choices":[{"delta":{},"finish_reason":"stop"}]}\n\n'
    found = one(sends(HEAD + chunk(events + end + DONE) + chunk(b"")), api="chat")
    assert (found.events, found.text, found.error) == (4, "hmab", None)


def test_an_answer_may_end_with_its_connection() -> None:
    found = one(sends(b"HTTP/1.0 200 OK\r\nContent-Type: text/event-stream\r\n\r\n" + WHOLE, close=True))
    assert (found.error, found.output) == (None, 4)


REFUSED = b'{"error":{"message":"the queue is full","type":"overloaded"}}'


@pytest.mark.parametrize(
    ("answer", "kind", "said"),
    [
        (sends(b"HTTP/1.1 429 Too Many\r\nContent-Length: %d\r\n\r\n%b" % (len(REFUSED), REFUSED)), "HTTP 429", "the queue is full"),
        (sends(HEAD + chunk(TOKEN), close=True), "disconnected", "closed"),
        (sends(HEAD + chunk(TOKEN) + chunk(b"")), "unfinished", "without a reason"),
        (sends(HEAD + chunk(LAST + DONE) + chunk(b"")), "no tokens", "no token"),
        (sends(HEAD + chunk(TOKEN + b'data: {"error":{"message":"out of memory"}}\n\n') + chunk(b"")), "error in stream", "out of memory"),
        (sends(HEAD + chunk(b"data: {]\n\n") + chunk(b"")), "no stream", "OpenAI"),
        (sends(HEAD + chunk(b'data: {"choices":[],"usage":{"completion_tokens":-1}}\n\n') + chunk(b"")), "no stream", ">= 0"),
        (sends(b"SSH-2.0-OpenSSH\r\n"), "no HTTP", "no HTTP"),
        (sends(b"HTTP/1.1 200 OK\r\nX: " + b"x" * 70_000), "no HTTP", "65536"),
        (sends(HEAD + chunk(TOKEN)), "timeout", "0.3 s"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_fails_has_a_kind_and_a_message(answer: Answer, kind: str, said: str) -> None:
    found = one(answer, seconds=0.3)
    assert found.error == kind and said in found.message, (found.error, found.message)


def test_nobody_listens() -> None:
    async def use() -> RequestOutcome:
        return await Client(HttpClient(ServerAddress.parse("http://127.0.0.1:9")), "completions", 5.0).run(ask(), time.perf_counter())

    assert asyncio.run(use()).error == "no connection"


def test_connections_are_kept_and_one_closed_while_idle_is_replaced() -> None:
    """The server answers two requests of a connection and closes it: five requests need three connections, and none fails."""
    seen: list[asyncio.StreamWriter] = []

    async def answer(head: str, body: bytes, writer: asyncio.StreamWriter) -> None:
        seen.append(writer)
        writer.write(HEAD + chunk(WHOLE) + chunk(b""))
        if seen.count(writer) == 2:
            await writer.drain()
            writer.close()

    async def use(http: HttpClient) -> list[str | None]:
        client = Client(http, "completions", 5.0)
        return [(await client.run(ask(), time.perf_counter())).error for _ in range(5)]

    assert asyncio.run(with_server(answer, use)) == [None] * 5
    assert len(set(seen)) == 3


# ── loops ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def load(answer: Answer, run: Callable[[Client], Awaitable[Measurement]]) -> LoadReport:
    async def use(http: HttpClient) -> Measurement:
        return await run(Client(http, "completions", 5.0))

    return make_report(asyncio.run(with_server(answer, use)), Objective(ttft=0.1))


def stalling(seconds: float, at: int) -> Answer:
    """Answers at once, one request after the other; request number `at` holds up all that follow it."""
    free = asyncio.Lock()
    count = 0

    async def answer(head: str, body: bytes, writer: asyncio.StreamWriter) -> None:
        nonlocal count
        async with free:
            count += 1
            if count == at:
                await asyncio.sleep(seconds)
        writer.write(HEAD + chunk(TOKEN + LAST + USAGE % 1 + DONE) + chunk(b""))

    return answer


@pytest.mark.alone
def test_a_stall_shows_in_every_request_that_it_kept_waiting() -> None:
    """100 requests, one each 10 ms; the server stalls for half a second: about 50 wait, on average half of it, though only four of them can
    be sent meanwhile. A closed loop sees one."""
    found = load(stalling(0.5, 20), lambda client: open_loop(client, [ask(at, at * 0.01) for at in range(100)], 4, lambda each: None))
    assert found.requests == 100
    assert 0.35 < found.ttft.p99 < 0.7 and found.ttft.p90 > 0.25 and found.ttft.p50 < 0.2
    assert 0.3 < found.met < 0.75
    closed = load(stalling(0.5, 20), lambda client: closed_loop(client, iter([ask(at) for at in range(100)]), 1, None, lambda each: None))
    assert closed.ttft.p90 < 0.1 and closed.e2e.p99 < 0.7


@pytest.mark.alone
def test_who_waits_for_a_place_has_begun_to_wait() -> None:
    """Three requests at once, one place, 50 ms each: the last has waited 150 ms, of which 100 before it was sent."""

    async def answer(head: str, body: bytes, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(0.05)
        writer.write(HEAD + chunk(TOKEN + LAST + USAGE % 1 + DONE) + chunk(b""))

    found = load(answer, lambda client: open_loop(client, [ask(at) for at in range(3)], 1, lambda each: None))
    assert found.ttft.p99 > 0.14 and found.lag.p99 > 0.09 and found.ttft.p50 > 0.09


@pytest.mark.alone
def test_a_closed_loop_keeps_its_streams_busy_and_ends_with_its_seconds() -> None:
    busy = most = 0

    async def answer(head: str, body: bytes, writer: asyncio.StreamWriter) -> None:
        nonlocal busy, most
        busy += 1
        most = max(most, busy)
        await asyncio.sleep(0.02)
        busy -= 1
        writer.write(HEAD + chunk(TOKEN + LAST + USAGE % 1 + DONE) + chunk(b""))

    def endless() -> Any:
        number = 0
        while True:
            yield ask(number)
            number += 1

    began = time.perf_counter()
    found = load(answer, lambda client: closed_loop(client, endless(), 4, 0.3, lambda each: None))
    assert most == 4 and 12 <= found.requests <= 64 and time.perf_counter() - began < 2


# ── what a server tells of itself ───────────────────────────────────────────────────────────────────────────────────


def json_answers(routes: dict[str, bytes]) -> Answer:
    async def answer(head: str, body: bytes, writer: asyncio.StreamWriter) -> None:
        found = routes.get(head.split()[1])
        if found is None:
            writer.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
        elif found == b"stream":
            count = 1 + len(body.split(b'"prompt":"')[1].split(b'"')[0].split())
            writer.write(
                HEAD + chunk(TOKEN + LAST + (USAGE % 1).replace(b'"prompt_tokens":7', b'"prompt_tokens":%d' % count) + DONE) + chunk(b"")
            )
        else:
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(found), found))

    return answer


def test_without_tokenize_usage_tells_what_words_cost() -> None:
    answers = json_answers({"/v1/completions": b"stream"})
    costs = asyncio.run(with_server(answers, lambda http: measure_token_costs(http, "completions", "m")))
    assert costs.source == "usage of trial requests" and set(costs.words.values()) == {1} and costs.overhead == 2


def test_a_server_that_tells_nothing_is_refused() -> None:
    with pytest.raises(ConfigError, match="does not report"):
        asyncio.run(with_server(json_answers({}), lambda http: measure_token_costs(http, "completions", "m")))


def test_models_are_listed_or_unnamed() -> None:
    listed = json_answers({"/v1/models": b'{"data":[{"id":"first"},{"id":"second"}]}'})
    assert asyncio.run(with_server(listed, first_model)) == "first"
    assert asyncio.run(with_server(json_answers({}), first_model)) == DEFAULT_MODEL
    with pytest.raises(HttpError, match="names no model"):
        asyncio.run(with_server(json_answers({"/v1/models": b'{"data":[]}'}), first_model))


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("http://host:1", ("host", 1, "", "/v1", False)),
        ("https://host/v1/", ("host", 443, "", "/v1", True)),
        ("http://[::1]:80/base/v3", ("::1", 80, "/base", "/v3", False)),
    ],
)
def test_addresses(url: str, expected: tuple[object, ...]) -> None:
    found = ServerAddress.parse(url)
    assert (found.host, found.port, found.root, found.version, found.secure) == expected


@pytest.mark.parametrize("url", ["", "host:80", "ftp://host", "http://", "http://host:99999", "http://a b", "http://host\r\nX: y"])
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(ConfigError):
        ServerAddress.parse(url)
