"""Schemas and grammars made to cost much: each ends within its budgets with a 400 that says why, or is followed; others are served."""

import asyncio
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import count
from typing import Any

import httpx
import pytest
from bombs import BOMBS, BY_DAY

SLOWEST_SECONDS = 5.0
_numbers = count(int(time.time()))


@pytest.fixture(scope="module")
def http(demo_server: Any) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=demo_server.url, timeout=60) as client:
        body = {"prompt": "x", "max_tokens": 1, "structured_outputs": {"regex": "a"}}
        client.post("/v1/completions", json=body).raise_for_status()  # the vocabulary has been read
        yield client


def check(http: httpx.Client, name: str) -> None:
    began = time.monotonic()
    body = {"prompt": "x", "max_tokens": 8, "temperature": 1.5, "seed": 1, "structured_outputs": BOMBS[name]}
    answer = http.post("/v1/completions", json=body)
    seconds = time.monotonic() - began
    assert seconds < SLOWEST_SECONDS, (name, seconds)
    assert answer.status_code in (200, 400, 413, 429), (name, answer.text)  # 429: the machine had no time for it
    if answer.status_code != 200:
        message = answer.json()["error"]["message"]
        assert len(message) < 600 and "\n" not in message, (name, message)
    print(f"{name}: {answer.status_code} in {seconds:.2f} s {answer.text[:160] if answer.status_code != 200 else ''}")


def left(server: Any) -> tuple[int, float, float]:
    return server.engine_pid(), server.metric("vllm:num_requests_running"), server.metric("vllm:num_requests_waiting")


def explode(http: httpx.Client, server: Any, names: Iterable[str]) -> None:
    before = left(server)
    for name in names:
        check(http, name)
    assert left(server) == before == (before[0], 0, 0)


def test_bombs_end_within_their_budgets(http: httpx.Client, demo_server: Any) -> None:
    explode(http, demo_server, BY_DAY)


@pytest.mark.night
def test_all_bombs_end_within_their_budgets(http: httpx.Client, demo_server: Any) -> None:
    explode(http, demo_server, BOMBS)


def test_tools_may_be_bombs(http: httpx.Client) -> None:
    """A template that reads no tools refuses them; where it reads them their schemas are compiled as any."""
    tool = {"type": "function", "function": {"name": "f", "parameters": BOMBS["schema: multiple"]["json"]}}
    body = {"messages": [{"role": "user", "content": "x"}], "tools": [tool], "tool_choice": "required", "max_tokens": 4}
    assert http.post("/v1/chat/completions", json=body).status_code == 400


def new_bomb() -> dict[str, Any]:
    """One that has not been refused before, and needs all the time that there is to compile."""
    return {"json": {"type": "integer", "multipleOf": 99_000_001 + 2 * (next(_numbers) % 400_000)}}


async def post(client: httpx.AsyncClient, form: dict[str, Any]) -> httpx.Response:
    return await client.post("/v1/completions", json={"prompt": "x", "max_tokens": 2, "structured_outputs": form})


async def throw(url: str, bombs: int) -> tuple[list[int], list[float]]:
    """Statuses of bombs of one client, all at once, and seconds of new grammars of another client meanwhile."""
    neighbour = httpx.AsyncHTTPTransport(local_address="127.0.0.2")
    async with (
        httpx.AsyncClient(base_url=url, timeout=60, limits=httpx.Limits(max_connections=None)) as attacker,
        httpx.AsyncClient(transport=neighbour, base_url=url, timeout=60) as other,
        asyncio.TaskGroup() as tasks,
    ):
        thrown = [tasks.create_task(post(attacker, new_bomb())) for _ in range(bombs)]
        await asyncio.sleep(0.3)
        seconds = []
        for _ in range(3):
            began = time.monotonic()
            answer = await post(other, {"regex": f"a{{{next(_numbers) % 1_000 + 1}}}|b"})
            assert answer.status_code == 200, answer.text
            seconds.append(time.monotonic() - began)
    return [each.result().status_code for each in thrown], seconds


@pytest.mark.night
def test_one_clients_bombs_do_not_starve_anothers_grammars(demo_server: Any) -> None:
    statuses, seconds = asyncio.run(throw(demo_server.url, 80))
    print(f"new grammars of another client: {[f'{each:.2f} s' for each in seconds]}; bombs: {Counter(statuses)}")
    assert set(statuses) == {400, 429} and max(seconds) < SLOWEST_SECONDS
