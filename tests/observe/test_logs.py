"""Log lines: one per event, in both forms; nobody forges one, and nobody who does not read them holds up the process."""

import json
import logging
import os
import re
import time
from collections.abc import Iterator

import pytest

from ridgeline.observe import logs
from ridgeline.observe.logs import logging_to, with_fields

log = logging.getLogger("ridgeline.test")


class Pipe:
    """A pipe as a log; `text` is what has been written when the log is closed."""

    def __init__(self) -> None:
        self.reader, self.writer = os.pipe()

    @property
    def text(self) -> str:
        os.set_blocking(self.reader, False)
        parts = []
        while True:
            try:
                part = os.read(self.reader, 1 << 20)
            except BlockingIOError:
                return b"".join(parts).decode()
            if not part:
                return b"".join(parts).decode()
            parts.append(part)


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    pipe = Pipe()
    yield pipe
    os.close(pipe.reader)
    os.close(pipe.writer)


def test_a_line_of_text(pipe: Pipe) -> None:
    with logging_to(pipe.writer):
        log.info("request", extra=with_fields(status=200, path="/v1/models", error=None, seconds=0.123456, reason="two words", empty=""))
    time_, rest = pipe.text.split(" ", 1)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", time_)
    assert rest == 'INFO ridgeline.test request status=200 path=/v1/models seconds=0.1235 reason="two words" empty=""\n'


def test_a_line_of_json(pipe: Pipe) -> None:
    with logging_to(pipe.writer, form="json"):
        log.warning("request", extra=with_fields(status=200, path="/é\n"))
        try:
            raise ValueError("so it is")
        except ValueError as error:
            log.error("incident", exc_info=error)
    first, second = (json.loads(line) for line in pipe.text.splitlines())
    del first["time"]
    assert first == {"level": "warning", "logger": "ridgeline.test", "message": "request", "status": 200, "path": "/é\n"}
    assert second["exception"].endswith("ValueError: so it is")


@pytest.mark.parametrize("form", ["text", "json"])
def test_nobody_forges_a_line(pipe: Pipe, form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Line breaks of every kind, colours of a terminal and lone surrogates are escaped."""
    monkeypatch.setattr(logging.getLogger(), "handlers", [])  # pytest's own would report a text that cannot be sent between processes
    bad = 'x\n2026-01-01T00:00:00.000Z INFO ridgeline.test forged\r\u2028\x85\x1b[31m\ud800 a="b'
    with logging_to(pipe.writer, form=form):
        log.info(bad, extra=with_fields(path=bad))
        try:
            raise ValueError(bad)
        except ValueError as error:
            log.error("incident", exc_info=error)
    text = pipe.text
    assert not re.search("[\r\x1b\x85\u2028]", text)
    assert len([line for line in text.splitlines() if not line.startswith("    ")]) == 2
    assert form == "text" or json.loads(text.splitlines()[0])["path"] == bad


def test_levels(pipe: Pipe) -> None:
    with logging_to(pipe.writer, level="warning"):
        log.info("not told")
        log.warning("told")
        logging.getLogger("somebody.else").warning("told")
        logging.getLogger("uvicorn.error").warning("not told: the server has its own line")
    with logging_to(pipe.writer, level="debug"):
        log.debug("told")
        logging.getLogger("somebody.else").info("not told")
    log.error("not told, as nobody listens any more")
    assert [line.split(maxsplit=3)[3] for line in pipe.text.splitlines()] == ["told"] * 3


def test_a_log_that_nobody_reads_holds_nobody_up(pipe: Pipe, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full pipe: lines are dropped, and counted in a line of their own when it is read again. The end does not wait long."""
    monkeypatch.setattr(logs, "CLOSE_SECONDS", 0.2)
    monkeypatch.setattr(logs, "MAX_QUEUED_LINES", 100)
    with logging_to(pipe.writer):
        began = time.perf_counter()
        for number in range(1_000):
            log.info("x" * 1_000, extra=with_fields(number=number))
        assert time.perf_counter() - began < 1
        text, accounted, end = "", 0, time.monotonic() + 5
        while accounted < 1_000 and time.monotonic() < end:
            text += pipe.text
            accounted = text.count("number=") + sum(map(int, re.findall(r"lost.* lines=(\d+)", text)))
            time.sleep(0.01)
        assert accounted == 1_000 > text.count("number=")
        for _ in range(200):
            log.info("y" * 1_000)
        began = time.perf_counter()
    assert time.perf_counter() - began < 1


def test_a_full_disk_holds_nobody_up() -> None:
    full = os.open("/dev/full", os.O_WRONLY)
    with logging_to(full):
        log.info("lost")
    os.close(full)


def test_lines_of_requests_wait_for_each_other_and_for_no_other_line(pipe: Pipe, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "REQUESTS_SECONDS", 1.0)
    requests = logging.getLogger(logs.REQUESTS_LOGGER)
    with logging_to(pipe.writer):
        for number in range(3):
            requests.info("request", extra=with_fields(number=number))
        time.sleep(0.3)
        assert pipe.text == ""
        began = time.monotonic()
        log.info("start")
        text = ""
        while text.count("\n") < 4:
            assert time.monotonic() < began + 0.7, text
            time.sleep(0.01)
            text += pipe.text
        assert [line.split()[3] for line in text.splitlines()] == ["request", "request", "request", "start"]
        requests.info("alone")
        while "alone" not in text:
            assert time.monotonic() < began + 5
            time.sleep(0.01)
            text += pipe.text
        requests.info("last")
    assert "last" in pipe.text, "nothing is lost at the end"


def test_between_many_lines_others_have_the_interpreter(pipe: Pipe, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "REST_SECONDS", 0.3)
    with logging_to(pipe.writer):
        for number in range(3 * logs.MAX_LINES_PER_WRITE):
            log.info("line", extra=with_fields(number=number))
        counts, began = [0], time.monotonic()
        while counts[-1] < 3 * logs.MAX_LINES_PER_WRITE:
            assert time.monotonic() < began + 10
            if found := pipe.text.count("\n"):
                counts.append(counts[-1] + found)
            time.sleep(0.01)
        assert counts == [0, *(logs.MAX_LINES_PER_WRITE * part for part in (1, 2, 3))] and time.monotonic() > began + 0.6
