"""Time to the first token of a prompt that comes to an idle engine: over HTTP where the packages of a server are installed, else
through `LLM`.

Owns the prompts and the figures, and which way they went. The model's weights are random and its text is bytes, so splitting text into
tokens costs nothing here.
"""

import asyncio
import importlib.util
import random
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from string import ascii_letters
from typing import Any, Final

from ridgeline.facts.headers.read import RANDOM_PREFIX

SERVER_PACKAGES: Final = ("msgspec", "starlette", "uvicorn", "httptools")
"""Of the server and of the client that measures it."""
OUTPUT_TOKENS: Final = 2
PAUSE_SECONDS: Final = 0.1
"""Between a request's end and the next one: the engine is idle."""
ROWS: Final = 64
HTTP, LLM = "HTTP", "LLM, without HTTP"


def ttft(settings: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """One row. settings: model (path of a config.json), prompt_tokens, repeats, dtype, kv_dtype; more of the engine in `engine`."""
    absent = [name for name in SERVER_PACKAGES if importlib.util.find_spec(name) is None]
    if absent:
        yield {"absent": ", ".join(absent), **through_llm(settings)}
    else:
        yield through_http(settings)


def _engine(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of the engine, by their names in `EngineConfig`: one prompt is one step, and none is found in a cache."""
    prompt = settings["prompt_tokens"]
    return {
        "runner": "cuda", "dtype": settings["dtype"], "kv_dtype": settings["kv_dtype"], "max_num_seqs": ROWS,
        "max_model_len": prompt + OUTPUT_TOKENS, "max_num_batched_tokens": prompt, "enable_prefix_caching": False,
        **settings.get("engine", {}),
    }  # fmt: skip


def through_llm(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Seconds from `LLM.stream` to its first output."""
    from ridgeline.core.params import SamplingParams
    from ridgeline.engine.llm import LLM as Model

    params = SamplingParams(temperature=0.0, max_tokens=OUTPUT_TOKENS, ignore_eos=True)
    draws, found = random.Random(0), []
    with Model(RANDOM_PREFIX + settings["model"], **_engine(settings)) as model:
        for _ in range(settings["repeats"] + 1):
            prompt = [draws.randrange(model.limits.vocab) for _ in range(settings["prompt_tokens"])]
            began = time.perf_counter()
            outputs = model.stream(prompt, params)
            next(outputs)
            found.append(time.perf_counter() - began)
            list(outputs)
            time.sleep(PAUSE_SECONDS)
    return _row(LLM, settings, found)


def through_http(settings: Mapping[str, Any], model: str | None = None) -> dict[str, Any]:
    """Seconds from sending a request to the first event with text. model: what is served; None: the settings' with random weights."""
    return asyncio.run(_over_http(settings, model or RANDOM_PREFIX + settings["model"]))


async def _over_http(settings: Mapping[str, Any], model: str) -> dict[str, Any]:
    """Starts the server as a user does, and puts one request after another on it."""
    # Loaded here alone: they need the packages of a server.
    from ridgeline.bench.client import Ask, Client, body_of
    from ridgeline.bench.http import Http, Target
    from ridgeline.bench.servers import OWN, Server, Spec, free_port
    from ridgeline.bench.session import Manner, first_model

    port = free_port()
    command = [sys.executable, "-P", "-c", OWN, "serve", model, "--port", str(port), *_flags(_engine(settings))]
    server = await Server.start(Spec("ridgeline", f"http://127.0.0.1:{port}", command), Manner())
    try:
        http = Http(Target.of(f"http://127.0.0.1:{port}"))
        name, client, draws = await first_model(http), Client(http, "completions", 60.0), random.Random(0)
        found = []
        for number in range(settings["repeats"] + 1):
            text = "".join(draws.choices(ascii_letters, k=settings["prompt_tokens"] - 1))  # and one token before all text
            ask = Ask(number, body_of("completions", name, text, OUTPUT_TOKENS, True, {}), settings["prompt_tokens"], OUTPUT_TOKENS)
            outcome = await client.run(ask, time.perf_counter())
            if outcome.error is not None:
                raise RuntimeError(f"a request failed: {outcome.error}: {outcome.message}")
            found.append(outcome.first - outcome.intended)
            await asyncio.sleep(PAUSE_SECONDS)
        http.close()
        return {**_row(HTTP, settings, found), "prompt_tokens": outcome.prompt, "start_seconds": server.first_token_seconds}
    finally:
        await server.stop()


def _flags(engine: Mapping[str, Any]) -> Iterator[str]:
    """Settings of the engine as flags of `ridgeline serve`."""
    for name, value in engine.items():
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            yield f"--{flag}" if value else f"--no-{flag}"
        else:
            yield from (f"--{flag}", str(value))


def _row(through: str, settings: Mapping[str, Any], found: Sequence[float]) -> dict[str, Any]:
    """The first request is none of the figures: what is made when it is first needed is made in it."""
    counted = found[1:]
    return {
        "through": through, "prompt_tokens": settings["prompt_tokens"], "repeats": len(counted), "seconds": median(counted),
        "best_seconds": min(counted), "worst_seconds": max(counted), "first_seconds": found[0], "tokenizer": "bytes",
    }  # fmt: skip
