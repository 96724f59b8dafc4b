"""Faults on demand in a real server: each is done, told, and got over; none where the server does not allow them."""

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from processes import SOURCE

from ridgeline.cli.admin_client import ask_admin, find_socket
from ridgeline.errors import ConfigError

JUMPS = """
import time
from pathlib import Path

def jumping(clock, scale):
    return lambda: clock() + scale * int(Path({file!r}).read_text())

time.time, time.time_ns = jumping(time.time, 1), jumping(time.time_ns, 10**9)
"""
"""A `sitecustomize` under which the time of day is off by the seconds in a file."""
YEAR = 366 * 86_400
FAKE = 'fake:{"rows": 8, "step_seconds": 0.004}'


def streams(server: Any, texts: list[str], at_once: int = 4) -> list[threading.Thread]:
    """Four clients, each with one long answer; `texts` gets what they read, "" of one that was cut off. So many run at once."""

    def one(number: int) -> None:
        body = {"prompt": [number], "max_tokens": 150, "seed": number, "ignore_eos": True}
        try:
            answer = httpx.post(server.url + "/v1/completions", json=body, timeout=30)
            texts.append(answer.json()["choices"][0]["text"] if answer.status_code == 200 else str(answer.status_code))
        except httpx.TransportError:
            texts.append("")

    found = [threading.Thread(target=one, args=(number,)) for number in range(4)]
    for each in found:
        each.start()
    while server.metric("vllm:num_requests_running") < at_once:
        time.sleep(0.02)
    return found


def test_each_fault_is_got_over(serving: Callable[..., Any], tmp_path: Path) -> None:
    store = "--response-store", "file", "--response-store-dir", str(tmp_path / "store")
    arguments = "--allow-chaos", "--step-timeout", "0.5", "--send-timeout", "0.3", *store
    template = tmp_path / "template.jinja"
    template.write_text("{% for message in messages %}{{ message.content }}{% endfor %}")
    with serving(FAKE, *arguments, "--chat-template", str(template)) as server:
        where = find_socket(str(server.process.pid))

        def inject(fault: str, seconds: float, *, loaded: bool = True) -> tuple[dict[str, Any], list[str]]:
            texts: list[str] = []
            clients = streams(server, texts) if loaded else []
            report = ask_admin(where, None, "POST", "/chaos", {"fault": fault, "seconds": seconds}, 60)
            for each in clients:
                each.join()
            assert report["recovered"] and report["fault"] == fault and report["failed"] == 0
            return report, texts

        report, texts = inject("kill-engine", 1)
        assert report["engine_restarted"] and report["open_requests"] == 4 and "SIGKILL" in report["what"]
        assert [len(text) for text in texts] == [150] * 4, "every answer goes on"
        report, texts = inject("stop-engine", 10)
        assert report["engine_restarted"] and "found to hang" in report["what"] and [len(text) for text in texts] == [150] * 4
        report, texts = inject("slow-engine", 0.5)
        assert not report["engine_restarted"] and [len(text) for text in texts] == [150] * 4
        report, texts = inject("drop-connections", 5)
        assert texts == [""] * 4 and not report["engine_restarted"]
        asked = {"input": "hi", "max_output_tokens": 3}
        kept = httpx.post(server.url + "/v1/responses", json=asked, timeout=30).json()["id"]
        during: list[int] = []
        client = threading.Timer(0.2, lambda: during.append(httpx.post(server.url + "/v1/responses", json=asked, timeout=30).status_code))
        client.start()
        inject("full-disk", 1, loaded=False)
        client.join()
        assert during and during[0] in (200, 500, 503), "an answer, or an error that says so: no hang"
        assert httpx.get(f"{server.url}/v1/responses/{kept}", timeout=30).status_code == 200
        assert httpx.post(server.url + "/v1/responses", json=asked, timeout=30).status_code == 200
        report, texts = inject("stall-readers", 20)
        assert "4 of 4 clients that read nothing were closed" in report["what"] and [len(text) for text in texts] == [150] * 4
        assert server.metric("ridgeline_http_requests_total", 'error="client_too_slow"') == 4
        assert "Traceback" not in server.output(), server.output()
        assert server.output().count("action=chaos ") == 6
        end = time.monotonic() + 10
        while server.output().count('action="chaos ended"') < 6:  # lines are written a moment behind the answer
            assert time.monotonic() < end, server.output()
            time.sleep(0.02)
        with pytest.raises(ConfigError, match="there are: kill-engine"):
            ask_admin(where, None, "POST", "/chaos", {"fault": "format-disk"})
        assert server.stop() == 0


@pytest.mark.parametrize("is_loaded", [True, False])
def test_a_server_that_is_told_to_end_answers_what_is_open_and_says_so(serving: Callable[..., Any], is_loaded: bool) -> None:
    with serving(FAKE, "--allow-chaos") as server:
        texts: list[str] = []
        clients = streams(server, texts) if is_loaded else []
        report = ask_admin(str(server.process.pid), None, "POST", "/chaos", {"fault": "end-server", "seconds": 20}, 60)
        for each in clients:
            each.join()
        assert report["open_requests"] == len(clients) and f"{len(clients)} of {len(clients)} requests had ended" in report["what"]
        assert not report["recovered"] and not report["failed"] and not report["engine_restarted"]
        assert [len(text) for text in texts] == [150] * len(clients) and server.process.wait(20) == 0
        assert "reason=SIGTERM aborted_requests=0" in server.output() and "Traceback" not in server.output()


def test_a_clock_that_jumps_changes_no_answer(serving: Callable[..., Any], tmp_path: Path) -> None:
    """By a year ahead and two back, in front end and engine, in the middle of answers and of waits: no deadline, watch, rate or pause
    counts the time of day, which dates answers and lines of the log alone."""
    off, ahead = tmp_path / "off", tmp_path / "ahead"
    off.write_text("0")
    (tmp_path / "sitecustomize.py").write_text(JUMPS.format(file=str(off)))
    path = os.pathsep.join([str(tmp_path), str(SOURCE)])
    limits = "--step-timeout", "0.5", "--send-timeout", "0.5", "--brown-out", "5", "--max-num-seqs", "3"
    with serving(FAKE, *limits, PYTHONPATH=path) as server:
        created: list[int] = []
        for jump in (0, YEAR, -YEAR):
            texts: list[str] = []
            clients = streams(server, texts, at_once=3)
            ahead.write_text(str(jump))
            ahead.replace(off)  # at once: a server that read a file just emptied would have no time at all
            for each in clients:
                each.join()
            assert [len(text) for text in texts] == [150] * 4
            body = {"prompt": [1], "max_tokens": 1}
            created.append(httpx.post(server.url + "/v1/completions", json=body, timeout=30).json()["created"])
        assert created[1] - created[0] > YEAR - 60 and created[1] - created[2] > 2 * YEAR - 60, "the clock did not jump"
        assert server.metric("ridgeline_engine_starts_total") == 1 and "client_too_slow" not in server.output()
        assert server.metric("vllm:num_requests_running") == 0 == server.metric("vllm:num_requests_waiting")
        assert server.stop() == 0


def test_no_fault_where_none_is_allowed(demo_server: Any) -> None:
    engine = demo_server.engine_pid()
    with pytest.raises(ConfigError, match="start it with --allow-chaos"):
        ask_admin(str(demo_server.process.pid), None, "POST", "/chaos", {"fault": "kill-engine"})
    assert demo_server.engine_pid() == engine and demo_server.get("/readyz")[0] == 200
