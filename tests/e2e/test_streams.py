"""Thirty-two clients that read, stop reading, hang up and come back: no error that was not asked for, and nothing left behind."""

import asyncio
import random
import time
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

FAKE = 'fake:{"rows": 12, "blocks": 80, "windows": [0, 48], "max_model_len": 512, "step_seconds": 0.001, "token_seconds": 0.00001}'
CLIENTS = 32
WHOLE_ONLY: list[dict[str, Any]] = [
    {}, {"best_of": 3, "max_tokens": 60}, {"echo": True, "logprobs": 1},
    {"max_tokens": 9, "stop": None, "extra_body": {"use_beam_search": True}},
]  # fmt: skip


def free_blocks(server: Any) -> float:
    """Free blocks behind a small request that ran alone: the engine reports them once per step, and when it has become idle."""
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        client.completions.create(model="fake", prompt=[1], max_tokens=1)
    time.sleep(0.5)
    return server.metric("ridgeline_kv_blocks_free") + server.metric("ridgeline_kv_blocks_cached")


def wait_until_idle(server: Any, seconds: float = 10.0) -> None:
    end = time.monotonic() + seconds
    while server.metric("vllm:num_requests_running") or server.metric("vllm:num_requests_waiting"):
        assert time.monotonic() < end, "requests are left behind"
        time.sleep(0.05)


async def one_request(client: openai.AsyncOpenAI, rng: random.Random) -> str:
    """A random request, ended in a random way; returns how."""
    shared = [7] * rng.choice([0, 15, 16, 17, 64, 100])
    asked: dict[str, Any] = {
        "model": "fake",
        "prompt": shared + [rng.randrange(256) for _ in range(rng.randint(1, 60))],
        "max_tokens": rng.choice([1, 2, 17, 60, 200, 250]),
        "n": rng.choice([1, 1, 1, 2]),
        "seed": rng.randrange(5),
    }
    if rng.random() < 0.4:
        asked["stop"] = rng.sample(["ab", "Q", "z9", "!", "~~"], 2)
    end = rng.choice(["read", "read", "whole", "leave", "cancel", "compare"])
    if end in ("whole", "cancel"):
        asked |= rng.choice(WHOLE_ONLY)
        try:
            async with asyncio.timeout(None if end == "whole" else rng.random() / 20):
                await client.completions.create(**asked)
        except TimeoutError:
            return "cancelled"
        return "whole"
    stream = await client.completions.create(**asked, stream=True)
    texts, ends, patience = Counter[int](), 0, rng.randint(0, 20)
    collected: dict[int, str] = {}
    async with stream:
        async for chunk in stream:
            for choice in chunk.choices:
                collected[choice.index] = collected.get(choice.index, "") + choice.text
                ends += choice.finish_reason is not None
                texts[choice.index] += 1
            if end == "leave" and sum(texts.values()) > patience:
                return "left"
    assert ends == asked["n"]
    if end == "compare":
        whole = await client.completions.create(**asked)
        assert [choice.text for choice in whole.choices] == [collected[index] for index in sorted(collected)]
        return "compared"
    return "read"


async def storm(server: Any, seconds: float) -> Counter[str]:
    """All clients for so long; returns how often each end was met."""
    ends: Counter[str] = Counter()
    stop_at = time.monotonic() + seconds

    async def one_client(number: int) -> None:
        rng = random.Random(number)
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=30) as client:
            while time.monotonic() < stop_at:
                ends[await one_request(client, rng)] += 1

    await asyncio.gather(*(one_client(number) for number in range(CLIENTS)))
    return ends


def run_storm(serving: Callable[..., Any], seconds: float) -> None:
    with serving(FAKE) as server:
        before, engine = free_blocks(server), server.engine_pid()
        ends = asyncio.run(storm(server, seconds))
        assert set(ends) == {"read", "whole", "left", "cancelled", "compared"}, ends
        assert sum(ends.values()) > 5 * seconds, ends
        wait_until_idle(server)
        assert free_blocks(server) == before, "KV blocks are leaked"
        assert server.metric("vllm:num_preemptions_total") > 0, "the storm was too mild"
        assert server.metric("vllm:prefix_cache_hits_total") > 0
        assert server.engine_pid() == engine
        assert "Traceback" not in server.output() and "incident" not in server.output(), server.output()


def test_streams_aborts_and_disconnects(serving: Callable[..., Any]) -> None:
    run_storm(serving, 5.0)


@pytest.mark.night
@pytest.mark.timeout(600)
def test_streams_aborts_and_disconnects_for_five_minutes(serving: Callable[..., Any]) -> None:
    run_storm(serving, 300.0)


def test_a_disconnect_ends_the_request_at_once(serving: Callable[..., Any]) -> None:
    with serving('fake:{"step_seconds": 0.005}') as server:

        async def leave(stream: bool) -> None:
            async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
                asked: dict[str, Any] = {"model": "fake", "prompt": "p", "max_tokens": 4000}
                if stream:
                    async with await client.completions.create(**asked, stream=True) as events:
                        async for _ in events:
                            break
                else:
                    with pytest.raises(TimeoutError):
                        async with asyncio.timeout(0.3):
                            await client.completions.create(**asked)

        for stream in (True, False):
            asyncio.run(leave(stream))
            wait_until_idle(server, 1.0)
        assert server.metric("vllm:request_success_total", 'finished_reason="abort"') == 2


BOMB = """{% if bomb is defined %}{% for a in range(9999) %}{% for b in range(9999) %}{% for c in range(9999) %}x{% endfor %}{% endfor %}
{% endfor %}{% endif %}{% if dots is defined %}{{ "." * 99999999 }}{% endif %}{% for m in messages %}{{ m.role }}:{{ m.content }}
{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}"""


def test_a_template_that_runs_away_slows_nobody(serving: Callable[..., Any], tmp_path: Path) -> None:
    """A client cannot send a template, but it may find what makes the model's expensive: refused soon, while a stream keeps its pace."""
    template = tmp_path / "bomb.jinja"
    template.write_text(BOMB)
    with serving('fake:{"step_seconds": 0.01}', "--chat-template", str(template)) as server:

        async def watch() -> list[float]:
            async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=30) as client:
                arrived = []
                async for _ in await client.completions.create(
                    model="fake", prompt="p", max_tokens=250, stream=True, extra_body={"ignore_eos": True}
                ):
                    arrived.append(time.monotonic())
                return [after - before for before, after in pairwise(arrived)]

        async def attack() -> list[float]:
            took = []
            async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=30) as client:
                for name in ("bomb", "dots", "bomb"):
                    began = time.monotonic()
                    with pytest.raises(openai.BadRequestError):
                        await client.chat.completions.create(
                            model="fake", messages=[{"role": "user", "content": "x"}], extra_body={"chat_template_kwargs": {name: 1}}
                        )
                    took.append(time.monotonic() - began)
                answer = await client.chat.completions.create(model="fake", messages=[{"role": "user", "content": "x"}], max_tokens=3)
                assert answer.choices[0].message.content, "whoever comes next is served"
            return took

        async def both() -> tuple[list[float], list[float]]:
            return await asyncio.gather(watch(), attack())

        gaps, took = asyncio.run(both())
        print(f"refused after {max(took):.2f} s, the longest gap of the stream was {max(gaps):.3f} s")
        assert max(took) < 1.0, took
        assert len(gaps) >= 249 and sorted(gaps)[len(gaps) * 95 // 100] < 0.05 and max(gaps) < 0.5, sorted(gaps)[-5:]


def test_many_that_run_away_hold_up_chats_alone(serving: Callable[..., Any], tmp_path: Path) -> None:
    template = tmp_path / "bomb.jinja"
    template.write_text(BOMB)
    with serving("fake:{}", "--chat-template", str(template)) as server:

        async def run() -> tuple[Counter[int], float]:
            async with httpx.AsyncClient(base_url=server.url, timeout=30) as client:
                body = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 1, "chat_template_kwargs": {"bomb": 1}}
                attacks = [asyncio.create_task(client.post("/v1/chat/completions", json=body)) for _ in range(60)]
                await asyncio.sleep(0.5)
                began = time.monotonic()
                long = await client.post("/tokenize", json={"prompt": "long enough for a thread " * 1_000})
                took = time.monotonic() - began
                assert long.status_code == 200
                return Counter([answer.status_code for answer in await asyncio.gather(*attacks)]), took

        statuses, took = asyncio.run(run())
        print(f"{dict(statuses)}; a long text took {took:.2f} s")
        assert set(statuses) <= {400, 429} and took < 1.0
