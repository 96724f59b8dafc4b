"""What an operator meets at the socket and in the log: N5 N23 C13 C14, X2 X5 X6 X8 X9. Real servers, raw sockets."""

import json
import os
import re
import resource
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

import pytest
from bursts import burst, fill
from chat_llama import write_chat_llama
from watch import Watch

from ridgeline.engine.process import NICENESS
from ridgeline.server import connection

SLOW = 'fake:{"step_seconds": 0.02}'
HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"


@pytest.fixture(scope="module")
def server(serving: Callable[..., Any]) -> Iterator[Any]:
    with serving(SLOW, "--log-level", "debug") as server:
        yield server


def connect(server: Any) -> socket.socket:
    address = urlsplit(server.url)
    return socket.create_connection((address.hostname, address.port), timeout=10)


def sent(server: Any, *parts: bytes, half_close: bool = False) -> bytes:
    """All that comes back."""
    with closing(connect(server)) as client:
        for part in parts:
            client.sendall(part)
            time.sleep(0.02)
        if half_close:
            client.shutdown(socket.SHUT_WR)
        answer = b""
        while part := client.recv(65536):
            answer += part
        return answer


def post(server: Any, body: dict[str, Any], **headers: str) -> Any:
    request = Request(f"{server.url}/v1/completions", json.dumps(body).encode(), headers)
    with urlopen(request, timeout=20) as answer:
        return answer.read()


def lines(server: Any, wanted: str, count: int = 1) -> list[str]:
    """Lines of the log that hold this, as soon as there are so many."""
    end = time.monotonic() + 10
    while len(found := [line for line in server.output().splitlines() if re.search(wanted, line)]) < count:
        assert time.monotonic() < end, server.output()
        time.sleep(0.02)
    return found


def until_running(server: Any) -> None:
    end = time.monotonic() + 10
    while not server.metric("vllm:num_requests_running"):
        assert time.monotonic() < end, server.output()
        time.sleep(0.02)


# ── the log ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_n5_each_request_has_one_line_without_its_prompt(server: Any) -> None:
    post(server, {"prompt": "the secret prompt", "max_tokens": 4}, **{"X-Request-Id": "one"})
    post(server, {"prompt": "the secret prompt", "max_tokens": 4, "stream": True, "n": 2}, **{"X-Request-Id": "two"})
    [one] = lines(server, "id=one")
    fields = "method=POST path=/v1/completions status=200 prompt_tokens=18 cached_tokens=0 output_tokens=4"
    stamp = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z INFO ridgeline\.access request id=one client=127\.0\.0\.1"
    assert re.fullmatch(rf"{stamp} {fields} ttft_seconds=0\.\d+ finish=length total_seconds=0\.\d+", one)
    assert "output_tokens=8" in lines(server, "id=two")[0]
    post(server, {"prompt": "x", "max_tokens": 1}, **{"X-Request-Id": "three"})
    lines(server, "id=three")
    assert len(lines(server, "id=(one|two)")) == 2 and "secret prompt" not in server.output()


def test_n5_a_client_that_leaves_is_a_line_too(server: Any) -> None:
    body = json.dumps({"prompt": "x", "max_tokens": 4000, "stream": True, "ignore_eos": True}).encode()
    with closing(connect(server)) as client:
        client.sendall(HEAD + b"X-Request-Id: leaver\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        assert client.recv(100).startswith(b"HTTP/1.1 200")
    [line] = lines(server, "id=leaver")
    assert "error=client_disconnected" in line and "finish=abort" in line


def test_n5_so_is_one_with_several_requests_under_way(server: Any) -> None:
    body = json.dumps({"prompt": "x", "max_tokens": 4000, "ignore_eos": True}).encode()
    with closing(connect(server)) as client:
        for name in (b"first", b"second"):
            client.sendall(HEAD + b"X-Request-Id: %s\r\nContent-Length: %d\r\n\r\n" % (name, len(body)) + body)
            until_running(server)
    assert "error=client_disconnected" in lines(server, "id=first")[0]


def test_n5_probes_are_lines_of_level_debug_and_queries_are_left_out(server: Any) -> None:
    assert server.get("/livez")[0] == 200 and server.get("/v1/models?key=secret")[0] == 200
    assert " DEBUG " in lines(server, "path=/livez")[0] and " INFO " in lines(server, "path=/v1/models")[0]
    assert "secret" not in server.output()


def test_n5_start_settings_and_end_are_lines_and_json_is_json(serving: Callable[..., Any]) -> None:
    with serving(SLOW, "--log-format", "json") as server:
        assert server.get("/v1/models")[0] == 200
        server.process.terminate()
        assert server.process.wait(10) == 0
        found = [json.loads(line) for line in server.output().splitlines()]
    events = [line["message"].split(" ")[0] for line in found if line["logger"] != "ridgeline.notes"]
    assert events[0] == "starting" and "request" in events and events[-2:] == ["shutdown", "shutdown"]
    assert found[-1] | {"time": 0, "seconds": 0} == {
        "time": 0, "level": "info", "logger": "ridgeline.server", "message": "shutdown ended", "reason": "SIGTERM", "aborted_requests": 0,
        "seconds": 0,
    }  # fmt: skip
    assert not [line for line in found if line["level"] == "debug"], "settings such as screened_head are for --log-level debug"


# ── the end ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_x5_a_shutdown_that_cuts_requests_ends_with_0_and_says_how_many(serving: Callable[..., Any]) -> None:
    with serving(SLOW, "--shutdown-timeout", "0.5") as server:
        body = json.dumps({"prompt": "x", "max_tokens": 4000, "ignore_eos": True}).encode()
        clients = [connect(server) for _ in range(40)]
        for client in clients:
            client.sendall(HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body)
        while server.metric("vllm:num_requests_running") + server.metric("vllm:num_requests_waiting") < 40:
            time.sleep(0.02)
        server.process.terminate()
        answers = []
        for client in clients:
            with closing(client):
                answers.append(client.recv(20))
        assert server.process.wait(10) == 0
        assert set(answers) == {b"HTTP/1.1 503 Service"}
        assert "reason=SIGTERM open_requests=40 timeout_seconds=0.5" in lines(server, "shutdown began")[0]
        assert "reason=SIGTERM aborted_requests=40" in lines(server, "shutdown ended")[0]
        assert "engine ended" not in server.output() and "Traceback" not in server.output()


# ── what is no request ──────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("parts", "half_close"), [
    ((HEAD + b"Transfer-Encoding: chunked\r\n\r\n", b"zz\r\n{}\r\n0\r\n\r\n"), False),
    ((HEAD + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n{}\r\n0\r\n\r\n",), False),
    ((HEAD + b"Content-Length: 50\r\n\r\n", b'{"prompt":'), True),
    ((HEAD,), True),
    ((b"nonsense\r\n\r\n",), False),
])  # fmt: skip
def test_x6_what_is_malformed_or_cut_gets_a_400_before_the_end(server: Any, parts: tuple[bytes, ...], half_close: bool) -> None:
    answer = sent(server, *parts, half_close=half_close)
    assert answer.startswith(b"HTTP/1.1 400 ") and answer.count(b"HTTP/1.1 4") == 1
    head, _, body = answer.partition(b"\r\n\r\n")
    assert json.loads(body)["error"]["code"] == "invalid_http" and b"connection: close" in head


def test_x6_a_client_that_has_closed_its_side_gets_its_answer(server: Any) -> None:
    body = json.dumps({"prompt": "x", "max_tokens": 30, "ignore_eos": True}).encode()
    answer = sent(server, HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body, half_close=True)
    while answer.startswith(b"HTTP/1.1 102"):
        answer = answer.partition(b"\r\n\r\n")[2]
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200") and len(json.loads(body)["choices"][0]["text"]) == 30


def test_x6_a_client_that_has_gone_altogether_is_noticed(server: Any) -> None:
    body = json.dumps({"prompt": "x", "max_tokens": 4000, "ignore_eos": True}).encode()
    with closing(connect(server)) as client:
        client.sendall(HEAD + b"X-Request-Id: gone\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        until_running(server)
    assert "error=client_disconnected" in lines(server, "id=gone")[0]


# ── paths ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("path", "nearest"), [
    ("/v1/modles", "GET /v1/models"), ("/chat/completion", "POST /chat/completions"), ("/v1/v1/models", "GET /v1/models"),
    ("/v1/completion", "POST /v1/completions"), ("/proxy/of/a/company/deployments/one/chat/completions", "POST /chat/completions"),
    ("/health/", "GET /health"), ("/nothing/of/the/kind", None),
])  # fmt: skip
def test_n23_a_404_says_what_exists(server: Any, path: str, nearest: str | None) -> None:
    status, body = server.get(path)
    message = json.loads(body)["error"]["message"]
    assert status == 404 and "POST /v1/chat/completions" in message and "GET /metrics" in message
    assert (f"the nearest path is {nearest}." in message) if nearest else "nearest" not in message


def test_c13_a_wrong_method_says_which_is_right(server: Any) -> None:
    status, body = server.get("/v1/chat/completions")
    assert status == 405 and json.loads(body)["error"]["message"] == "GET is not possible here; POST is"


def test_c14_a_slash_at_the_end_changes_nothing(server: Any) -> None:
    assert server.get("/v1/models/") == server.get("/v1/models") and server.get("/v1/models/")[0] == 200
    assert json.loads(server.get("/v1/models/fake/")[1])["id"] == "fake"
    assert server.get("/livez/")[0] == 404, "public routes have one spelling"


# ── silent clients ──────────────────────────────────────────────────────────────────────────────────────────────────


@contextmanager
def silent(server: Any, count: int, first: bytes = b"") -> Iterator[list[socket.socket]]:
    """So many connections that send this much and no more."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, count + 500)), hard))
    sockets = []
    try:
        for _ in range(count):
            sockets.append(connect(server))
            if first:
                sockets[-1].sendall(first)
        yield sockets
    finally:
        for each in sockets:
            each.close()


@pytest.mark.alone
@pytest.mark.parametrize("first", [b"", HEAD, HEAD + b"Content-Length: 100\r\n\r\n{"], ids=["nothing", "half a head", "half a body"])
def test_x2_1200_silent_sockets_leave_livez_answering(server: Any, first: bytes) -> None:
    with Watch(server.url) as watch, silent(server, 1_200, first):
        time.sleep(0.5)
    assert watch.longest <= 1.0 and watch.count >= 3


class Changed:
    """A server started with a line of Python before it."""

    def __init__(self, prelude: str, environment: dict[str, str], log: Path) -> None:
        self.log = log
        program = f"{prelude}; from ridgeline.cli.main import main; main()"
        with log.open("w") as file:
            command = [sys.executable, "-c", program, "serve", SLOW, "--port", "0"]
            self.process = subprocess.Popen(command, stderr=file, env=environment)
        self.url = lines(self, r"url=http")[0].split("url=")[1].split()[0]

    def output(self) -> str:
        return self.log.read_text()

    def __enter__(self) -> "Changed":
        return self

    def __exit__(self, *_: object) -> None:
        self.process.terminate()
        try:
            assert self.process.wait(10) == 0
        finally:
            self.process.kill()


def test_x2_260_silent_sockets_under_a_limit_of_200_files(environment: dict[str, str], tmp_path: Path) -> None:
    prelude = "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (200, 200))"
    with Changed(prelude, environment, tmp_path / "log") as server:
        with Watch(server.url) as watch, silent(server, 260):
            lines(server, "connections were closed to make room")
            files = len(list(Path(f"/proc/{server.process.pid}/fd").iterdir()))
        assert watch.longest <= 2.0 and watch.count >= 3
        assert files < 190 and "no connection can be accepted" not in server.output()


def test_x2_where_all_connections_are_at_work_only_probes_are_answered(serving: Callable[..., Any]) -> None:
    with serving('fake:{"rows": 16, "step_seconds": 0.02}', "--max-connections", "16") as server:
        busy = fill(server.url, 16)
        [(_, status)] = burst(server.url, 1)
        assert status == b"HTTP/1.1 429 Too Many Requests" and lines(server, "error=too_many_connections")
        assert server.get("/livez") == (200, "ok\n") and server.get("/readyz")[0] == 200
        assert json.loads(server.get("/v1/models")[1])["error"]["code"] == "too_many_connections"
        busy.pop().close()
        lines(server, "client_disconnected")
        assert server.get("/v1/models")[0] == 200
        for each in busy:
            each.close()


def test_x2_who_sends_too_slowly_is_told_and_closed(environment: dict[str, str], tmp_path: Path) -> None:
    """With deadlines of half a second in place of ten: half a head, though it drips; a connection at rest; one that never spoke."""
    assert connection.HEAD_TIMEOUT_SECONDS <= 10
    prelude = (
        "from ridgeline.server import connection, listener; "
        "connection.HEAD_TIMEOUT_SECONDS = listener.HEAD_TIMEOUT_SECONDS = connection.IDLE_TIMEOUT_SECONDS = 0.5"
    )
    with Changed(prelude, environment, tmp_path / "log") as server:
        began = time.monotonic()
        with closing(connect(server)) as mute, closing(connect(server)) as resting, closing(connect(server)) as dripping:
            resting.sendall(b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n")
            dripping.sendall(b"GET / HTTP/1.1\r\n")
            dripping.settimeout(0.1)
            answer = b""
            while not answer and time.monotonic() - began < 5:
                dripping.sendall(b"X: y\r\n")
                with suppress(TimeoutError):
                    answer = dripping.recv(1000)
            assert answer.startswith(b"HTTP/1.1 408 ") and b"the headers did not arrive" in answer
            assert mute.recv(100) == b""
            assert resting.recv(1000).endswith(b"ok\n") and resting.recv(100) == b""
        assert time.monotonic() - began < 8


# ── a full queue ────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.alone
def test_x8_a_full_server_says_so_at_once(serving: Callable[..., Any]) -> None:
    """400 at once, by the rejection of what is not even read. `tests/speed/reject.py` measures it beside a model that uses all cores."""
    with serving('fake:{"rows": 4, "step_seconds": 0.02}', "--max-num-queued-reqs", "4") as server:
        clients = fill(server.url, 8)
        while server.metric("vllm:num_requests_waiting") < 4:
            time.sleep(0.02)
        slow = []
        while len(slow) < 3:  # virtual machines slow down for seconds
            answers = sorted(burst(server.url, 400))
            assert {status for _, status in answers} == {b"HTTP/1.1 429 Too Many Requests"}
            if answers[395][0] <= 0.25:
                break
            slow.append(answers[395][0])
            time.sleep(1)
        assert len(slow) < 3, slow
        assert "request" in lines(server, "status=429 error=overloaded")[0]
        nice = [os.getpriority(os.PRIO_PROCESS, pid) for pid in (server.process.pid, server.engine_pid())]
        assert nice[1] == min(19, nice[0] + NICENESS), "the engine makes way for the front end"
        for client in clients:
            client.close()


# ── texts that take long ────────────────────────────────────────────────────────────────────────────────────────────

BOMB = "a" * 30 + "!"
"""A text for which `(a+)+$` is tried two to the power of thirty times."""


@pytest.fixture(scope="module")
def bombed(serving: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A model whose tokenizer.json splits text by a pattern that backtracks without end."""
    directory = tmp_path_factory.mktemp("bomb")
    write_chat_llama(directory)
    file = directory / "tokenizer.json"
    content = json.loads(file.read_text())
    content["pre_tokenizer"] = {"type": "Split", "pattern": {"Regex": "(a+)+$|."}, "behavior": "Isolated", "invert": False}
    file.write_text(json.dumps(content))
    with serving(str(directory)) as server:
        yield server


@pytest.mark.alone
@pytest.mark.parametrize(("path", "body"), [
    ("/v1/completions", {"prompt": BOMB}), ("/tokenize", {"prompt": BOMB}), ("/v1/completions", {"prompt": "b", "bad_words": [BOMB]}),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": BOMB}]}),
])  # fmt: skip
def test_x9_a_pattern_that_backtracks_holds_nobody_up(bombed: Any, path: str, body: dict[str, Any]) -> None:
    """The tokenizers library gives up after a while; until then others are answered, and its words stay out of the answer."""
    request = Request(f"{bombed.url}{path}", json.dumps({"max_tokens": 1, **body}).encode())
    longest = []
    while len(longest) < 3 and min(longest, default=9.0) >= 0.06:
        with Watch(bombed.url) as watch:
            with pytest.raises(HTTPError) as failed:
                urlopen(request, timeout=20)
            time.sleep(0.05)
        longest.append(watch.longest)
        message = json.loads(failed.value.read())["error"]["message"]
        assert failed.value.code == 400
        assert re.fullmatch(r"the model's tokenizer fails on these \d+ characters; send a shorter or another text", message)
    assert min(longest) < 0.06, "the pattern alone takes longer"


@pytest.mark.alone
def test_x9_a_very_long_prompt_holds_nobody_up(demo_server: Any) -> None:
    with Watch(demo_server.url) as watch:
        for text in ("word " * 180_000, "a" * 900_000, "<start_of_turn>" * 60_000):
            with pytest.raises(HTTPError) as failed:
                post(demo_server, {"prompt": text})
            assert json.loads(failed.value.read())["error"]["code"] == "context_length_exceeded"
    assert watch.longest < 0.25
