"""Bad input over real sockets: mutated JSON and mutated HTTP. Only 4xx with an error body, quickly, and nothing left behind."""

import json
import random
import socket
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from ridgeline.server.errors import CATALOGUE

JSON_REQUESTS, RAW_REQUESTS, CANARY_EVERY = 1_800, 200, 100
FAKE = 'fake:{"blocks": 300, "max_model_len": 1024, "windows": [0, 32]}'
GOOD: dict[str, Any] = {
    "model": "fake", "prompt": "hello", "max_tokens": 4, "temperature": 0.5, "top_p": 0.9, "top_k": 5, "n": 1, "seed": 1, "stop": ["x"],
    "stop_token_ids": [1], "min_tokens": 0, "logprobs": 1, "stream": False, "ignore_eos": False, "skip_special_tokens": True,
}  # fmt: skip
PATHS = ["/v1/completions"] * 8 + ["/v1/chat/completions", "/tokenize", "/detokenize"]
ODD: list[Any] = [
    None, True, False, 0, -1, 1, 2, 1.5, -0.0, 2**31, 2**63, 2**64, -(2**63) - 1, 10**30, 1e308,
    "", "a", "\u0000", "\ud83e", "🦊" * 50, "a" * 3000,
    [], {}, [[]], [None], [[1], "a"], [1, "a"], {"a": 1}, [0] * 2000, ["a"] * 70, [2**40], "NaN", "1", [[[[[]]]]],
]  # fmt: skip


def mutated(rng: random.Random) -> bytes:
    """A good body, broken in one to three ways: odd values, bytes flipped, cut, doubled, nested."""
    body: dict[str, Any] = {name: value for name, value in GOOD.items() if rng.random() < 0.6}
    for _ in range(rng.randint(1, 2)):
        body[rng.choice([*GOOD, "echo", "suffix", "stream_options", "logit_bias", "tokens", "messages", "zzz"])] = rng.choice(ODD)
    data = bytearray(json.dumps(body).encode())
    match rng.randrange(6):
        case 0:
            data[rng.randrange(len(data))] = rng.randrange(256)
        case 1:
            del data[rng.randrange(len(data)) :]
        case 2:
            at = rng.randrange(len(data))
            data[at:at] = rng.choice([b"[" * 100, b'{"a":' * 40, b"1e999", b"\xff\xfe", b"null", b",", b'"', b"9" * 1000, b"\\u0000"])
    return bytes(data)


RAW = [
    b"", b"\r\n\r\n", b"GET\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", b"GET / HTTP/1.1\r\n\r\n",
    b"GET http://evil.example/ HTTP/1.1\r\nHost: evil.example\r\n\r\n",
    b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999999\r\n\r\n{",
    b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n{}",
    b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n{}   ",
    b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n{}\r\n0\r\n\r\n",
    b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
    b"GET /%00%ff HTTP/1.1\r\nHost: localhost\r\n\r\n", b"GET /\xff HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"GET /" + b"a" * 40_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 40_000 + b"\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: localhost\r\n" + b"X: a\r\n" * 3_000 + b"\r\n", b"GET / HTTP/1.1\r\nHost: localhost\r\nX\x00: a\r\n\r\n",
    b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
    b"OPTIONS * HTTP/1.1\r\nHost: localhost\r\n\r\n", b"CONNECT localhost:80 HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"TRACE / HTTP/1.1\r\nHost: localhost\r\n\r\n",
]  # fmt: skip


def raw_answer(address: tuple[str, int], data: bytes) -> bytes:
    """What comes back until the server closes, or has been quiet for a while."""
    with socket.create_connection(address, timeout=5) as connection:
        connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)
        connection.settimeout(0.25)
        answer = b""
        try:
            while part := connection.recv(65536):
                answer += part
                head, _, body = answer.partition(b"\r\n\r\n")
                if f"content-length: {len(body)}\r".encode() in head.lower() + b"\r":
                    break
        except (TimeoutError, ConnectionResetError):
            pass
        return answer


def check_error(status: int, body: bytes) -> None:
    error = json.loads(body)["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert CATALOGUE[error["code"]] == (status, error["type"])
    assert not any(word in error["message"] for word in ("Traceback", 'File "', "0x", "/home/"))


def canary(client: httpx.Client) -> str:
    body = {"prompt": "canary", "max_tokens": 8, "temperature": 0}
    return client.post("/v1/completions", json=body).raise_for_status().json()["choices"][0]["text"]


def free_pages(server: Any, client: httpx.Client) -> float:
    canary(client)
    return server.metric("ridgeline_kv_blocks_free") + server.metric("ridgeline_kv_blocks_cached")


def fuzz_json(client: httpx.Client, rng: random.Random, count: int) -> Counter[int]:
    statuses: Counter[int] = Counter()
    truth = canary(client)
    for number in range(count):
        if number % CANARY_EVERY == 0:
            assert canary(client) == truth
        body, path, began = mutated(rng), rng.choice(PATHS), time.monotonic()
        answer = client.post(path, content=body)
        assert time.monotonic() - began < 5, body
        statuses[answer.status_code] += 1
        assert answer.status_code == 200 or 400 <= answer.status_code < 500, (path, bytes(body), answer.text)
        if answer.status_code != 200:
            check_error(answer.status_code, answer.content)
    return statuses


def fuzz_http(server: Any, rng: random.Random, count: int) -> Counter[int]:
    host, port = server.url.removeprefix("http://").split(":")
    statuses: Counter[int] = Counter()
    for number in range(count):
        data = bytearray(RAW[number % len(RAW)])
        if number >= len(RAW) and data and rng.random() < 0.7:
            data[rng.randrange(min(len(data), 200))] = rng.randrange(256)
        answer = raw_answer((host, int(port)), bytes(data))
        head, _, body = answer.partition(b"\r\n\r\n")
        status = int(head.split()[1]) if head else 0
        statuses[status] += 1
        assert status in (0, 200) or 400 <= status < 500, (data[:200], answer)
        if status >= 400 and not data.startswith(b"HEAD"):
            check_error(status, body)
    return statuses


def run_fuzz(serving: Callable[..., Any], seed: int, json_requests: int, raw_requests: int) -> None:
    rng = random.Random(seed)
    with serving(FAKE) as server, httpx.Client(base_url=server.url, timeout=10) as client:
        engine, before = server.engine_pid(), free_pages(server, client)
        statuses = fuzz_json(client, rng, json_requests)
        assert statuses[400] > json_requests / 4 and statuses[200] > 0, statuses
        statuses = fuzz_http(server, rng, raw_requests)
        assert statuses[400] > raw_requests / 20 and statuses[431] and statuses[403], statuses
        assert server.engine_pid() == engine, "the engine was restarted"
        assert free_pages(server, client) == before, "KV pages are left behind"
        assert server.metric("vllm:num_requests_running") == server.metric("vllm:num_requests_waiting") == 0
        assert "Traceback" not in server.output() and "incident" not in server.output(), server.output()


def flood(connection: socket.socket, unit: bytes) -> None:
    for _ in range(1_000):
        connection.sendall(unit * 1_000)
        time.sleep(0.001)


@pytest.mark.parametrize("endless", [b"GET / HTTP/1.1\r\nHost: localhost\r\nX: ", b"GET /", b"GET / HTTP/1.1\r\n"])
def test_a_head_without_end_is_refused(serving: Callable[..., Any], endless: bytes) -> None:
    """Headers that never end must not fill memory."""
    with serving("fake:{}") as server:
        host, port = server.url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port)), timeout=5) as connection:
            connection.sendall(endless)
            with pytest.raises((BrokenPipeError, ConnectionResetError)):
                flood(connection, b"X: y\r\n" if endless.endswith(b"\n") else b"a")


def test_a_client_that_sends_too_much_gets_the_answer(serving: Callable[..., Any]) -> None:
    with serving("fake:{}") as server, httpx.Client(base_url=server.url, timeout=10) as client:
        for size in ((1 << 20) + 1, 5 << 20, 15 << 20):
            answer = client.post("/v1/completions", content=b"x" * size)
            assert (answer.status_code, answer.headers["connection"]) == (413, "close")
            check_error(413, answer.content)


def test_two_thousand_bad_requests(serving: Callable[..., Any]) -> None:
    run_fuzz(serving, 1, JSON_REQUESTS, RAW_REQUESTS)


@pytest.mark.night
@pytest.mark.timeout(1800)
def test_a_hundred_thousand_bad_requests(serving: Callable[..., Any]) -> None:
    run_fuzz(serving, 2, 98_000, 2_000)
