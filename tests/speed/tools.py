"""What tools cost over HTTP while nothing is called: the same chats with calls held to a grammar and free, in turn, on two threads.

    python tests/speed/tools.py [--model demo] [--streams 16] [--requests 48] [--rounds 3]

`tool_choice: "none"` sets an answer free; the prompt is the same, and so are the answers, which are compared. All have one length.
"""

import argparse
import asyncio
import time
from pathlib import Path
from statistics import median
from typing import Any

import httpx

from ridgeline.bench.servers import Server, ServerSize, parse_spec
from ridgeline.bench.session import RequestOptions

TEMPLATE = Path(__file__).resolve().parents[1] / "gold" / "templates" / "Qwen-Qwen3-0.6B.jinja"
TOKENS = 128
CITY = {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}, "required": ["city"]}
TOOLS = [{"type": "function", "function": {"name": name, "description": "Looks up.", "parameters": CITY}} for name in ("weather", "news")]


async def answers(url: str, options: argparse.Namespace, held: bool) -> tuple[float, list[str]]:
    """Output tokens per second, and the texts."""
    rest = {"min_tokens": TOKENS, "tool_choice": "auto" if held else "none"}
    waiting, found = list(range(options.requests)), [""] * options.requests

    async def stream(client: httpx.AsyncClient) -> None:
        while waiting:
            number = waiting.pop()
            question = {"role": "user", "content": f"Tell story {number} of a village by the sea."}
            asked: dict[str, Any] = {"messages": [question], "tools": TOOLS, "max_tokens": TOKENS, "temperature": 0, **rest}
            response = await client.post("/v1/chat/completions", json=asked)
            assert response.status_code == 200, response.text[:500]
            found[number] = str(response.json()["choices"][0]["message"])

    async with httpx.AsyncClient(base_url=url, timeout=600, limits=httpx.Limits(max_connections=options.streams)) as client:
        began = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            for _ in range(options.streams):
                group.create_task(stream(client))
        return options.requests * TOKENS / (time.perf_counter() - began), found


async def main(options: argparse.Namespace) -> None:
    size = ServerSize(threads=2, streams=options.streams, context=1_024)
    server = parse_spec(f"ridgeline:{options.model} --chat-template {TEMPLATE}", size, {})
    running = await Server.start(server, RequestOptions())
    ratios = []
    try:
        for number in range(options.rounds + 1):
            rates: dict[bool, float] = {}
            texts: dict[bool, list[str]] = {}
            for held in (True, False) if number % 2 else (False, True):
                rates[held], texts[held] = await answers(server.url, options, held)
            same = sum(one == other for one, other in zip(texts[True], texts[False], strict=True))
            print(f"free {rates[False]:.1f} tok/s, held {rates[True]:.1f} tok/s, {same} of {options.requests} answers the same", flush=True)
            if number:  # the first round warms up
                ratios.append(rates[True] / rates[False])
    finally:
        await running.stop()
    print(f"held / free: {median(ratios):.3f} [{min(ratios):.3f}-{max(ratios):.3f}]")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="demo")
    for name, value in (("streams", 16), ("requests", 48), ("rounds", 3)):
        parser.add_argument(f"--{name}", type=int, default=value)
    asyncio.run(main(parser.parse_args()))
