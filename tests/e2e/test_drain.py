"""SIGTERM under load: readiness goes first, new requests are told to come back, accepted ones end as if nothing had happened, exit 0."""

import asyncio
import json
import os
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from processes import COMMAND

FAKE = 'fake:{"rows": 16, "step_seconds": 0.004}'
CLIENTS = 16
ENDS = int(os.environ.get("ENDS", "50"))
"""Of a server, by night; `ENDS=10 pytest -m night tests/e2e/test_drain.py -k many -s` is a shorter one."""


async def one_request(client: httpx.AsyncClient, number: int, signalled: asyncio.Event, ends: Counter[str]) -> None:
    """A whole or a streamed request; counts how it ended. What was sent before the signal has been accepted and must be whole."""
    stream, when = number % 2 == 0, "after" if signalled.is_set() else "before"
    body = {"prompt": [number % 250], "max_tokens": 120 + number % 7, "seed": number, "stream": stream, "ignore_eos": True}
    try:
        answer = await client.post("/v1/completions", json=body)
    except httpx.TransportError as error:
        ends[f"{type(error).__name__} {when}"] += 1
        return
    if answer.status_code == 503:
        assert signalled.is_set() and 1 <= int(answer.headers["retry-after"]) <= 60
        assert answer.json()["error"]["code"] == "engine_unavailable"
        ends["refused"] += 1
        return
    assert answer.status_code == 200
    if stream:
        assert answer.text.endswith("data: [DONE]\n\n")
        events = [json.loads(line[6:]) for line in answer.text.split("\n\n")[:-2]]
        assert all("choices" in event for event in events), answer.text[-600:]
        text = "".join(event["choices"][0]["text"] for event in events)
        assert events[-1]["choices"][0]["finish_reason"] == "length"
    else:
        text = answer.json()["choices"][0]["text"]
    assert len(text) == body["max_tokens"]
    ends["whole"] += 1
    ends["whole, begun before, ended after"] += when == "before" and signalled.is_set()


async def storm(server: Any, end: signal.Signals | Callable[[Any], None]) -> tuple[Counter[str], list[int]]:
    """Clients that ask again and again; in the middle the signal. Returns the ends, and what `/readyz` said afterwards."""
    ends: Counter[str] = Counter()
    signalled, over = asyncio.Event(), asyncio.Event()
    ready: list[int] = []

    async def one_client(first: int) -> None:
        async with httpx.AsyncClient(base_url=server.url, timeout=20) as client:
            request = first
            while not over.is_set():
                await one_request(client, request, signalled, ends)
                request += CLIENTS
                if ends["ConnectError after"]:
                    return
                await asyncio.sleep(0.01 if signalled.is_set() else 0)

    async def watch() -> None:
        await asyncio.sleep(0.7)
        async with httpx.AsyncClient(base_url=server.url, timeout=20) as client:
            assert (await client.get("/readyz")).status_code == 200
            if isinstance(end, signal.Signals):
                server.process.send_signal(end)
            signalled.set()
            if not isinstance(end, signal.Signals):
                await asyncio.to_thread(end, server)  # it says when it has begun: what is refused meanwhile came behind it
            began = time.monotonic()
            try:
                while time.monotonic() - began < 10:
                    ready.append((await client.get("/readyz")).status_code)
                    await asyncio.sleep(0.02)
            except httpx.TransportError:
                pass
        over.set()

    await asyncio.gather(watch(), *(one_client(each) for each in range(CLIENTS)))
    return ends, ready


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, *[pytest.param(signal.SIGTERM, marks=pytest.mark.night)] * 2])
def test_accepted_requests_end_whole(serving: Callable[..., Any], number: signal.Signals) -> None:
    end_under_load(serving, number)


@pytest.mark.night
@pytest.mark.timeout(900)
def test_accepted_requests_end_whole_many_times(serving: Callable[..., Any]) -> None:
    ends: Counter[str] = Counter()
    for _ in range(ENDS):
        ends += end_under_load(serving, signal.SIGTERM)
    print(f"{ENDS} ends: {dict(ends)}")
    assert ends["refused"] > ENDS


def test_an_admin_drains_as_a_signal_does(serving: Callable[..., Any]) -> None:
    def drain(server: Any) -> None:
        verb = [*COMMAND, "admin", "drain", "--timeout", "20", "--server", str(server.process.pid)]
        assert subprocess.run(verb, timeout=20, check=False).returncode == 0

    end_under_load(serving, drain)


def end_under_load(serving: Callable[..., Any], end: signal.Signals | Callable[[Any], None]) -> Counter[str]:
    """How requests ended. `end`: a signal, or what ends the server."""
    with serving(FAKE) as server:
        ends, ready = asyncio.run(storm(server, end))
        assert server.process.wait(20) == 0
        assert 503 in ready and 200 not in ready[1:], "not ready from the signal on"
        assert ends["whole"] >= CLIENTS and ends["refused"] + ends["ConnectError after"] > 0, ends  # who comes late finds nobody
        assert ends["whole, begun before, ended after"] >= CLIENTS / 2, ends
        assert not [end for end in ends if end.endswith(" before")], ends
        assert "Traceback" not in server.output() and "incident" not in server.output(), server.output()
    return ends


def test_what_lasts_too_long_is_ended_with_an_error(serving: Callable[..., Any]) -> None:
    with serving('fake:{"step_seconds": 0.02}', "--shutdown-timeout", "0.5") as server:
        body = {"prompt": [1], "max_tokens": 4000, "stream": True, "ignore_eos": True}
        with httpx.Client(base_url=server.url, timeout=20) as client, client.stream("POST", "/v1/completions", json=body) as answer:
            lines = answer.iter_lines()
            assert next(lines).startswith("data: ")
            server.process.send_signal(signal.SIGTERM)
            began = time.monotonic()
            events = [line for line in lines if line]
            assert 0.3 < time.monotonic() - began < 5
        assert json.loads(events[-2][6:])["error"]["type"] == "server_error" and events[-1] == "data: [DONE]"
        assert server.process.wait(20) == 0


def test_the_second_signal_does_not_wait(serving: Callable[..., Any]) -> None:
    with serving('fake:{"step_seconds": 0.02}') as server:
        body = {"prompt": [1], "max_tokens": 4000, "stream": True, "ignore_eos": True}
        with httpx.Client(base_url=server.url, timeout=20) as client, client.stream("POST", "/v1/completions", json=body) as answer:
            lines = answer.iter_lines()
            next(lines)
            server.process.send_signal(signal.SIGTERM)
            time.sleep(0.3)
            assert server.process.poll() is None
            server.process.send_signal(signal.SIGTERM)
            list(lines)
        assert server.process.wait(5) == 0
