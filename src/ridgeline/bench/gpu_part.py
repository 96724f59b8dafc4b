"""One part of `ridgeline bench gpu` in a process of its own: an error of the device ends it and no other part.

Owns the rows' way out: a line of JSON each on stdout, so that what was measured is there whatever happens next. Settings are one JSON
object, the only argument. Parts that need the engine are beside this file, the others the computing wing's; `host` is here: the host's work
for a step of single tokens, without a device (plan, inputs, results, commit, and the frame to the front end).
"""

import asyncio
import importlib
import importlib.util
import json
import random
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from string import ascii_letters
from tempfile import TemporaryDirectory
from typing import Any, Final

from ridgeline.bench.gpu_serving import serving, soak
from ridgeline.config.groups import EngineConfig
from ridgeline.core.commands import Admit
from ridgeline.core.params import SamplingParams
from ridgeline.engine.admit import ModelLimits, admit
from ridgeline.engine.compose import make_engine
from ridgeline.engine.engine import Engine, Turn
from ridgeline.engine.executor import ExecutorInfo, Ticket
from ridgeline.errors import RidgelineError
from ridgeline.facts.headers.checkpoint import read_config_facts
from ridgeline.facts.headers.read import RANDOM_PREFIX
from ridgeline.facts.model import ModelFacts

NULL: Final = "ridgeline.compute.runtime.null_graphs"
MESSAGES: Final = "ridgeline.engine.messages"
BLOCK_TOKENS: Final = 16
PROMPTS: Final = 8
"""That one step takes, before anything is counted."""


class Clocked:
    """An executor and the seconds that its callers have been in it."""

    def __init__(self, executor: Any) -> None:
        self._executor = executor
        self.seconds = 0.0

    @property
    def info(self) -> ExecutorInfo:
        """The executor's own."""
        info: ExecutorInfo = self._executor.info
        return info

    def submit(self, plan: Any) -> Ticket:
        """See `Executor`."""
        began = time.thread_time()
        ticket: Ticket = self._executor.submit(plan)
        self.seconds += time.thread_time() - began
        return ticket

    def collect(self, ticket: Ticket) -> Any:
        """See `Executor`."""
        began = time.thread_time()
        result = self._executor.collect(ticket)
        self.seconds += time.thread_time() - began
        return result

    def close(self) -> None:
        """Closes the executor."""
        self._executor.close()


def host(facts: ModelFacts, settings: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """A row for each of `batches`: seconds of the host for one step of so many rows, in the midst of a step's life.

    settings  batches, context (positions when the count begins), steps (that are counted)
    host_seconds      of a whole turn, median     executor_seconds  what the computing wing has of it     worst_seconds  of the slowest
    """
    encode = _encoder()
    for batch in settings["batches"]:
        seconds, inside = _turns(facts, batch, settings["context"], settings["steps"], encode)
        row = {"batch": batch, "host_seconds": median(seconds), "executor_seconds": median(inside), "worst_seconds": max(seconds)}
        yield {**row, "frames": encode is not None}


def _turns(
    facts: ModelFacts, batch: int, context: int, steps: int, encode: Callable[[int, Turn], object] | None
) -> tuple[list[float], list[float]]:
    """Seconds of each turn, and of those the executor's."""
    config = EngineConfig("null", max_num_seqs=batch, max_num_batched_tokens=batch + PROMPTS * context)
    length = context + steps + 2 * (batch // PROMPTS + config.depth)
    executor = importlib.import_module(NULL).null_executor(
        facts, rows=batch, tokens=config.tokens, positions=length, block_tokens=BLOCK_TOKENS, depth=config.depth
    )
    clocked = Clocked(executor)
    engine, _ = make_engine(clocked, config)
    turn = engine.turn(requests(engine, batch, context, length))
    while len(turn.outputs) < batch:
        turn = engine.turn()
    seconds, inside = [], []
    for number in range(steps):
        clocked.seconds, began = 0.0, time.thread_time()
        turn = engine.turn()
        if encode is not None:
            encode(number, turn)
        seconds.append(time.thread_time() - began)
        inside.append(clocked.seconds)
        assert len(turn.outputs) == batch
    executor.close()
    return seconds, inside


def _encoder() -> Callable[[int, Turn], object] | None:
    """A function that makes a frame of a turn; None where the packages of a server are not installed."""
    try:
        messages = importlib.import_module(MESSAGES)
    except ModuleNotFoundError:
        return None
    return lambda number, turn: messages.encode(messages.Frame(number, turn.time, turn.outputs, turn.events))


def requests(engine: Engine, count: int, prompt: int, length: int) -> list[Admit]:
    """So many prompts of random ids, each of which goes on to `length` positions."""
    info, draws = engine.executor.info, random.Random(0)
    limits = ModelLimits(info.vocab, info.max_model_len, frozenset(), info.kv)
    params = SamplingParams(temperature=0.0, max_tokens=length - prompt, ignore_eos=True)
    made = []
    for number in range(count):
        ids = [draws.randrange(info.vocab) for _ in range(prompt)]
        made.append(Admit(admit(ids, params, limits, request_id=f"{number:032x}", draw_seed=lambda: 0)))
    return made


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


PARTS: Final = "ridgeline.compute.cuda.bench.parts"
WATCH: Final = "ridgeline.compute.cuda.bench.timing"
SMALL: Final = {
    "num_hidden_layers": 1, "hidden_size": 16, "num_attention_heads": 1, "num_key_value_heads": 1, "intermediate_size": 16,
    "vocab_size": 512,
}  # fmt: skip
"""Of a config.json, in place of its own."""


def rows(settings: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """A row about the device, then the rows of the part that `settings` name. Raises ConfigError where there is no GPU."""
    computing = importlib.import_module(PARTS)
    facts = read_config_facts(Path(settings["model"]))
    device = computing.device_of(settings["device"])
    yield {"about": computing.about(device)}
    match settings["part"]:
        case "serving":
            yield from serving(facts, settings, importlib.import_module(WATCH).TimedGraphs(device))
        case "soak":
            yield from soak(facts, settings, device.memory)
        case "host":
            yield from host(small_facts(Path(settings["model"])), settings)
        case "ttft":
            yield from ttft(settings)
        case part:
            yield from computing.PARTS[part](facts, device, settings)


def small_facts(model: Path) -> ModelFacts:
    """Facts of a model of the same kind that computes next to nothing: the host's work for a step does not depend on layers or widths."""
    with TemporaryDirectory() as folder:
        config = Path(folder) / "config.json"
        config.write_text(json.dumps(json.loads(model.read_text()) | SMALL))
        return read_config_facts(config)


def main() -> None:
    """Prints the rows; the last one is an error alone where a user's setting or machine ended the part."""
    try:
        for row in rows(json.loads(sys.argv[1])):
            print(json.dumps(row), flush=True)
    except RidgelineError as error:
        print(json.dumps({"error": str(error)}), flush=True)


if __name__ == "__main__":
    main()
