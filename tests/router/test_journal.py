"""What a router keeps of a stream, however its bytes are cut: events that the client has, and records that it has not."""

import pytest

from ridgeline.router.journal import Journal, stop_of

KEY = bytes(32)
EVENTS = b':r [1]\ndata: {"a":"x"}\n\n: keep-alive\n\n:r \ndata: b\n\n:r [2],[3]\nevent: c\ndata: c\n\n'
LINES = b':r [1]\n{"a":"x"}\n  :r \n{"b":1}\n :r [2],[3]\n{"c":":r "}\n'
TOLD = {
    b"\n\n": b'data: {"a":"x"}\n\n: keep-alive\n\ndata: b\n\nevent: c\ndata: c\n\n',
    b"\n": b'{"a":"x"}\n{"b":1}\n{"c":":r "}\n',
}


def journal(stop: bytes, *parts: bytes) -> tuple[Journal, bytes]:
    made = Journal(KEY, lines=True)
    assert made.follow(stop)
    return made, b"".join(map(made.take, filter(None, parts)))


@pytest.mark.parametrize(("stop", "stream"), [(b"\n\n", EVENTS), (b"\n", LINES)])
def test_however_a_stream_is_cut_its_events_are_passed_and_its_records_kept(stop: bytes, stream: bytes) -> None:
    for at in range(len(stream)):
        for to in range(at, len(stream) + 1):
            made, passed = journal(stop, stream[:at], stream[at:to], stream[to:])
            assert passed.replace(b"\n ", b"\n").replace(b"\n ", b"\n") == TOLD[stop], (at, to)
            assert made.events == 3 and made.body(b"{}") == b"[[1],[2],[3]]{}" and made.can_continue and not made.is_over


@pytest.mark.parametrize(("stop", "stream"), [(b"\n\n", EVENTS), (b"\n", LINES)])
def test_what_is_cut_is_made_again(stop: bytes, stream: bytes) -> None:
    """An event of which the client has not all is none, nor are its records: a replica that goes on begins with it."""
    whole = TOLD[stop]
    for at in range(len(stream)):
        made, passed = journal(stop, stream[:at])
        made.lose()
        told = passed.lstrip(b" ")
        assert whole.startswith(told.replace(b"\n ", b"\n").rstrip(b" ").replace(b"\n ", b"\n"))
        assert made.events == sum(told.count(each) for each in (b'"x"', b"data: b", b'"b"', b"data: c", b'"c"'))


def test_signs_of_life_go_on_at_once() -> None:
    made, passed = journal(b"\n", LINES[:17], b" ")
    assert passed.endswith(b"\n ") and made.take(b" ") == b" " and made.take(b":r [9]\n{") == b"" and made.take(b"}\n") == b"{}\n"


def test_an_event_without_a_mark_is_the_last() -> None:
    for stop, last in ((b"\n\n", b"data: [DONE]\n\n"), (b"\n", b'{"error":"e"}\n')):
        made, passed = journal(stop, EVENTS if stop == b"\n\n" else LINES, last)
        assert passed.endswith(last) and made.is_whole and not made.can_continue


def test_which_answers_are_followed() -> None:
    for kind, stop in ((b"text/event-stream; charset=utf-8", b"\n\n"), (b"application/x-ndjson", b"\n"), (b"application/json", b"")):
        assert stop_of([(b"x", b"1"), (b"content-type", kind)]) == stop
        assert Journal(KEY, lines=True).follow(stop) == bool(stop) and not Journal(None, lines=True).follow(stop)
        assert Journal(KEY).follow(stop) == (stop == b"\n\n"), "replicas tell it nothing of lines"
    assert stop_of([]) == b""
    assert [len(each.headers) for each in (Journal(None), Journal(KEY), Journal(KEY, lines=True))] == [0, 1, 2]
