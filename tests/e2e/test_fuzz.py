"""Malformed requests over real sockets, on every route: only 4xx with the body of the route's dialect, quickly, and nothing left behind."""

import json
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from hostile import Tally, held, resident_mb, send_all

from gold import TEMPLATES
from ridgeline.server.errors import CATALOGUE

FAKE = 'fake:{"blocks": 300, "max_model_len": 192, "windows": [0, 32], "vocab": 258, "script": [["@@", "x"]]}'
"""It follows grammars, and has no answer that takes seconds."""
TEMPLATE = """{% for m in messages %}<{{ m.role }}>{{ m.content }}{{ m.tool_calls }}</>{% endfor %}{{ tools }}{{ documents }}{{ mood }}
{%- if add_generation_prompt %}<assistant>{% endif %}"""
MAX_GROWTH_MB = 24.0
"""Of resident memory behind the first requests, on which arenas and caches fill."""


def canary(client: httpx.Client, number: int) -> str:
    """An answer that is always the same; behind it the process that compiles grammars is there."""
    body = {"prompt": "a", "max_tokens": 4, "structured_outputs": {"regex": f"b|{number}"}}
    assert client.post("/v1/completions", json=body).raise_for_status().json()["choices"][0]["text"] in ("b", str(number))
    body = {"prompt": "canary", "max_tokens": 8, "temperature": 0}
    return client.post("/v1/completions", json=body).raise_for_status().json()["choices"][0]["text"]


def check_error(status: int, body: bytes) -> None:
    error = json.loads(body)["error"]
    assert CATALOGUE[error["code"]] == (status, error["type"])


def run_fuzz(serving: Callable[..., Any], template: Path, seed: int, warm_up: int, total: int, model: str = FAKE) -> None:
    with serving(model, "--chat-template", str(template)) as server, httpx.Client(base_url=server.url, timeout=10) as client:
        truth = canary(client, 0)
        first = send_all(server.url, seed, range(warm_up))
        assert canary(client, 1) == truth
        before, memory = held(server), resident_mb(server)
        tally = send_all(server.url, seed, range(warm_up, total))
        problems = first.problems | tally.problems
        lines = [f"python tests/helpers/malformed.py {seed} {number} {server.url}: {text}" for number, text in sorted(problems.items())]
        assert not problems, "\n".join([f"{len(lines)} of {total}:", *lines[:20]])
        assert canary(client, 2) == truth
        after, grown = held(server), [later - then for then, later in zip(memory, resident_mb(server), strict=True)]
        told = f"{dict(sorted(tally.statuses.items()))}, {tally.streams} streams, slowest {tally.slowest:.2f} s"
        print(f"{total} requests: {told}, memory grown by {grown} MB")
        assert after == before and after.running == after.waiting == 0
        assert max(grown) < MAX_GROWTH_MB
        assert tally.statuses[200] > total / 20 and tally.statuses[400] > total / 4 and tally.streams, tally.statuses
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


@pytest.fixture
def template(tmp_path: Path) -> Path:
    file = tmp_path / "chat.jinja"
    file.write_text(TEMPLATE)
    return file


def test_two_thousand_malformed_requests(serving: Callable[..., Any], template: Path) -> None:
    run_fuzz(serving, template, 1, 400, 2_000)


@pytest.mark.night
@pytest.mark.timeout(1800)
def test_a_hundred_thousand_malformed_requests(serving: Callable[..., Any], template: Path) -> None:
    """Behind as many again, which fill what the ledger remembers: some 30 MB, and then no more."""
    run_fuzz(serving, template, 2, 100_000, 200_000)


@pytest.mark.night
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", ["Qwen-Qwen3-0.6B", "meta-llama-Llama-3.1-8B-Instruct", "deepseek-ai-DeepSeek-V3.1", "MiniMax-M3"])
def test_malformed_requests_to_models_that_call_tools_and_reason(serving: Callable[..., Any], name: str) -> None:
    run_fuzz(serving, TEMPLATES / f"{name}.jinja", 3, 2_000, 12_000, FAKE.replace("192", "512"))


@pytest.mark.night
@pytest.mark.timeout(1800)
def test_a_hundred_thousand_malformed_requests_of_a_client_to_two_models(serving: Callable[..., Any], tmp_path: Path) -> None:
    """The routes before several models are others than those of one. The key is a client's: an admin's unloads models under the rest."""
    keys = tmp_path / "keys"
    keys.touch(0o600)
    keys.write_text("tenant-key\nowner admin-key scope=admin\n")
    with serving(f"fake={FAKE}", f"other={FAKE}", "--api-key-file", str(keys)) as server:
        process = Path(f"/proc/{server.process.pid}")

        def has() -> tuple[float, int]:
            """(resident MB, open files) of the front end."""
            time.sleep(1.0)  # connections that were given up are closed in a moment
            return int((process / "statm").read_text().split()[1]) * 4_096 / 1e6, len([*(process / "fd").iterdir()])

        tallies, found = list[Tally](), list[tuple[float, int]]()
        for numbers in (range(50_000), range(50_000, 100_000)):
            tallies.append(send_all(server.url, 7, numbers, b"Bearer tenant-key"))
            found.append(has())
        (memory, files), (memory_behind, files_behind) = found
        print([dict(sorted(each.statuses.items())) for each in tallies], f"memory grown by {memory_behind - memory:.1f} MB")
        assert not any(each.problems for each in tallies), [each.problems for each in tallies]
        assert files_behind == files and memory_behind - memory < MAX_GROWTH_MB
        assert all(each.statuses[200] > 2_000 and each.statuses[403] for each in tallies)
        assert "Traceback" not in server.output() and "incident" not in server.output(), server.output()
