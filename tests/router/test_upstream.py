"""Connections to replicas, against servers that say what they like."""

import asyncio

import pytest

from ridgeline.router.upstream import Upstream, UpstreamError


def exchange(*answers: bytes, method: str = "POST", keeps: bool = True) -> list[tuple[int, bytes] | str]:
    """What comes of one request per answer; the server closes behind the last one, and behind each where it does not keep connections."""

    async def run() -> list[tuple[int, bytes] | str]:
        left, connections, serving = list(answers), 0, list[asyncio.Task[None] | None]()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal connections
            connections += 1
            serving.append(asyncio.current_task())
            while left:
                try:
                    head = await reader.readuntil(b"\r\n\r\n")
                except asyncio.IncompleteReadError:
                    break
                assert b"\r\ncontent-length: 2\r\n" in head and b"transfer-encoding" not in head and b"x-own" not in head
                await reader.readexactly(2)
                first, *more = left.pop(0).split(CUT)
                writer.write(first)
                for part in more:
                    await asyncio.sleep(0.005)
                    writer.write(part)
                if not keeps:
                    break
            writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        upstream = Upstream(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        headers = [(b"connection", b"x-own"), (b"x-own", b"1"), (b"transfer-encoding", b"chunked"), (b"accept", b"*/*")]
        found: list[tuple[int, bytes] | str] = []
        for _ in answers:
            connection = await upstream.connect()
            try:
                status, body = await connection.send(upstream.request(method, b"/x", headers, b"{}"), method == "HEAD"), b""
                while part := await connection.read():
                    body += part
                found.append((status, body))
            except UpstreamError:
                found.append("broken")
            upstream.release(connection)
        upstream.close()
        server.close()
        await asyncio.gather(*(each for each in serving if each is not None))
        found.append(f"{connections} connections")
        return found

    return asyncio.run(asyncio.wait_for(run(), 10))


CUT = b"|"
"""Where an answer comes in two pieces."""
WHOLE = b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nabc"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n"
HEAD = CHUNKED.index(b"3\r\n")


def test_connections_are_kept_between_answers() -> None:
    assert exchange(WHOLE, CHUNKED, WHOLE) == [(200, b"abc"), (200, b"abcde"), (200, b"abc"), "1 connections"]


def test_a_client_does_not_speak_as_a_router() -> None:
    own, forged = [(b"x-ridgeline-router", b"the key")], [(b"x-ridgeline-router", b"forged"), (b"x-ridgeline-continue", b"2 0")]
    for more in ([], own):
        request = Upstream("http://a:1").request("POST", b"/x", forged, b"{}", more)
        assert b"forged" not in request and b"continue" not in request and (b"the key" in request) == bool(more)


def test_an_interim_answer_is_none() -> None:
    assert exchange(b"HTTP/1.1 102 Processing\r\n\r\n" + WHOLE)[0] == (200, b"abc")


@pytest.mark.parametrize(
    "answer", [WHOLE[:-1], CHUNKED[:-5], CHUNKED[:40], b"HTTP/1.1 200", b"hello\r\n\r\n", b"", b"HTTP/1.1 200 OK\r\nx: " + b"y" * 70_000]
)
def test_an_answer_that_ends_early_or_is_none_is_told(answer: bytes) -> None:
    assert exchange(answer, keeps=False)[0] == "broken"


def test_without_a_length_the_end_is_the_connections() -> None:
    assert exchange(b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\nabc", keeps=False)[0] == (200, b"abc")


def test_bytes_behind_an_answer_are_nobodys() -> None:
    assert exchange(WHOLE + WHOLE, WHOLE)[:2] == [(200, b"abc"), (200, b"abc")]


@pytest.mark.parametrize("at", range(len(CHUNKED) - HEAD))
def test_chunks_are_read_however_they_are_cut(at: int) -> None:
    cut = CHUNKED[:HEAD] + CUT + CHUNKED[HEAD : HEAD + at] + CUT + CHUNKED[HEAD + at :]
    assert exchange(cut, cut, WHOLE) == [(200, b"abcde"), (200, b"abcde"), (200, b"abc"), "1 connections"]


@pytest.mark.parametrize(
    ("body", "found", "connections"),
    [
        (b"2\r\nab\r\n00A\r\n0123456789\r\n0\r\n\r\n", b"ab0123456789", 1),
        (b"2;x=1\r\nab\r\n1\r\nc\r\n0\r\nx-trailer: 1\r\n\r\n", b"abc", 1),
        (b"2\r\nab\r\n0\r\n\r\n0\r\n\r\n", b"ab", 2),
        (b"2\r\nab\r\n0\r\n\r\n" + WHOLE, b"ab", 2),
        (b"2\r\nab\r\n+1\r\nc\r\n0\r\n\r\n", None, 2),
        (b"2\r\nab\r\n3\r\nc\r\n0\r\n\r\n1\r\n", None, 2),
        (b"2\r\nabc\r\n0\r\n\r\n", None, 2),
    ],
)
def test_chunks_that_are_odd_or_none(body: bytes, found: bytes | None, connections: int) -> None:
    told = exchange(CHUNKED[:HEAD] + CUT + body, WHOLE)
    assert told == ["broken" if found is None else (200, found), (200, b"abc"), f"{connections} connections"]


def test_whole_chunks_are_offered_as_they_came() -> None:
    """What is not taken waits as any other part, and what comes behind it then is not offered."""
    pieces = [CHUNKED[:HEAD], b"3\r\nabc\r\n", b"2\r\nde\r\n1\r\nf\r\n", b"1\r\ng\r\n", b"2\r\nh", b"i\r\n1\r\nj\r\n0\r\n\r\n"]

    async def run() -> None:
        go = asyncio.Event()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"{}")
            for each in pieces:
                writer.write(each)
                await asyncio.sleep(0.01)
            go.set()
            writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        upstream, offered = Upstream(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"), list[bytes]()
        connection = await upstream.connect()
        connection.on_chunks = lambda chunks: len(offered.append(chunks) or offered) == 1
        await connection.send(upstream.request("POST", b"/x", [], b"{}"))
        await go.wait()
        assert offered == pieces[1:3] and connection.is_whole and await connection.read() == b"defghij"
        upstream.release(connection)
        assert connection.on_chunks is None
        upstream.close()
        server.close()

    asyncio.run(asyncio.wait_for(run(), 10))


def test_nobody_there_is_told() -> None:
    with pytest.raises(UpstreamError):
        asyncio.run(Upstream("http://127.0.0.1:1").connect())
