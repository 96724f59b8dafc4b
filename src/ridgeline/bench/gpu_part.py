"""One part of `ridgeline bench gpu` in a process of its own, so that an error of the device ends only this part.

The only argument is a JSON object of settings; each row is a JSON line on stdout once it is measured. `host` measures the host's work of a
decode step without a device (plan, inputs, results, commit, and the frame to the front end). `ttft` measures the time to first token of
a prompt on an idle engine, over HTTP where the packages of a server are installed, else through `LLM`; weights are random and the tokenizer
is bytes, so tokenizing costs nothing. Serving is in `gpu_serving`, the other parts are in `ridgeline.compute.cuda.bench`.
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

NULL_EXECUTOR: Final = "ridgeline.compute.runtime.null_graphs"
MESSAGES: Final = "ridgeline.engine.messages"
BLOCK_TOKENS: Final = 16
PROMPTS_PER_STEP: Final = 8
"""Prompts per step, before counting begins."""


class TimedExecutor:
    """Wraps an executor and measures the CPU seconds spent in it."""

    grammars = None
    trace = None
    adapters = None
    blocks = None

    def __init__(self, executor: Any) -> None:
        self._executor = executor
        self.seconds = 0.0

    @property
    def info(self) -> ExecutorInfo:
        """Info of the executor."""
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

    def beat(self) -> int:
        """See `Executor`."""
        return int(self._executor.beat())

    def close(self) -> None:
        """Closes the executor."""
        self._executor.close()


def host(facts: ModelFacts, settings: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """A row for each of `batches`: CPU seconds of the host for one decode step.

    settings  batches, context (positions when counting begins), steps (counted)
    host_seconds  of a turn, median     executor_seconds  part of it in the executor     worst_seconds  of the slowest turn
    """
    encode = _encoder()
    for batch in settings["batches"]:
        seconds, executor_seconds = _turns(facts, batch, settings["context"], settings["steps"], encode)
        row = {"batch": batch, "host_seconds": median(seconds), "executor_seconds": median(executor_seconds), "worst_seconds": max(seconds)}
        yield {**row, "frames": encode is not None}


def _turns(
    facts: ModelFacts, batch: int, context: int, steps: int, encode: Callable[[int, Turn], object] | None
) -> tuple[list[float], list[float]]:
    """(seconds of each turn, seconds of each turn in the executor)."""
    config = EngineConfig("null", max_num_seqs=batch, max_num_batched_tokens=batch + PROMPTS_PER_STEP * context)
    length = context + steps + 2 * (batch // PROMPTS_PER_STEP + config.depth)
    executor = importlib.import_module(NULL_EXECUTOR).null_executor(
        facts, rows=batch, tokens=config.tokens, positions=length, block_tokens=BLOCK_TOKENS, depth=config.depth
    )
    timed = TimedExecutor(executor)
    engine, _ = make_engine(timed, config)
    turn = engine.turn(make_requests(engine, batch, context, length))
    while len(turn.outputs) < batch:
        turn = engine.turn()
    seconds, executor_seconds = [], []
    for number in range(steps):
        timed.seconds, began = 0.0, time.thread_time()
        turn = engine.turn()
        if encode is not None:
            encode(number, turn)
        seconds.append(time.thread_time() - began)
        executor_seconds.append(timed.seconds)
        assert len(turn.outputs) == batch
    executor.close()
    return seconds, executor_seconds


def _encoder() -> Callable[[int, Turn], object] | None:
    """A function that encodes a turn as a frame; None where the packages of a server are not installed."""
    try:
        messages = importlib.import_module(MESSAGES)
    except ModuleNotFoundError:
        return None
    return lambda number, turn: messages.encode(messages.Frame(number, turn.time, turn.outputs, turn.events))


def make_requests(engine: Engine, count: int, prompt: int, length: int) -> list[Admit]:
    """`count` requests with prompts of random ids, each up to `length` positions."""
    info, rng = engine.executor.info, random.Random(0)
    limits = ModelLimits(info.vocab, info.max_model_len, frozenset(), info.kv)
    params = SamplingParams(temperature=0.0, max_tokens=length - prompt, ignore_eos=True)
    made = []
    for number in range(count):
        ids = [rng.randrange(info.vocab) for _ in range(prompt)]
        made.append(Admit(admit(ids, params, limits, request_id=f"{number:032x}", draw_seed=lambda: 0)))
    return made


SERVER_PACKAGES: Final = ("msgspec", "starlette", "uvicorn", "httptools")
"""Packages of the server and of the measuring client."""
OUTPUT_TOKENS: Final = 2
PAUSE_SECONDS: Final = 0.1
"""Between requests, so that the engine is idle."""
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
    """Settings of the engine, by their names in `EngineConfig`: a prompt is one step, no prefix cache."""
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
    rng, found = random.Random(0), []
    with Model(RANDOM_PREFIX + settings["model"], **_engine(settings)) as model:
        for _ in range(settings["repeats"] + 1):
            prompt = [rng.randrange(model.limits.vocab) for _ in range(settings["prompt_tokens"])]
            began = time.perf_counter()
            outputs = model.stream(prompt, params)
            next(outputs)
            found.append(time.perf_counter() - began)
            list(outputs)
            time.sleep(PAUSE_SECONDS)
    return _row(LLM, settings, found)


def through_http(settings: Mapping[str, Any], model: str | None = None) -> dict[str, Any]:
    """Seconds from sending a request to the first event with text. model: to serve; None: the settings' with random weights."""
    return asyncio.run(_over_http(settings, model or RANDOM_PREFIX + settings["model"]))


async def _over_http(settings: Mapping[str, Any], model: str) -> dict[str, Any]:
    """Starts the server as a user does and sends requests one by one."""
    # imported here: they need the packages of a server
    from ridgeline.bench.client import Client, PreparedRequest, make_body
    from ridgeline.bench.http import HttpClient, ServerAddress
    from ridgeline.bench.servers import RIDGELINE_MAIN, Server, ServerSpec, free_port
    from ridgeline.bench.session import RequestOptions, first_model

    port = free_port()
    command = [sys.executable, "-P", "-c", RIDGELINE_MAIN, "serve", model, "--port", str(port), *_flags(_engine(settings))]
    server = await Server.start(ServerSpec("ridgeline", f"http://127.0.0.1:{port}", command), RequestOptions())
    try:
        http = HttpClient(ServerAddress.parse(f"http://127.0.0.1:{port}"))
        name, client, rng = await first_model(http), Client(http, "completions", 60.0), random.Random(0)
        found = []
        for number in range(settings["repeats"] + 1):
            text = "".join(rng.choices(ascii_letters, k=settings["prompt_tokens"] - 1))  # one token is added before the text
            body = make_body("completions", name, text, OUTPUT_TOKENS, True, {})
            request = PreparedRequest(number, body, settings["prompt_tokens"], OUTPUT_TOKENS)
            outcome = await client.run(request, time.perf_counter())
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
    """The row of a measurement. The first request is a warm-up and reported apart."""
    counted = found[1:]
    return {
        "through": through, "prompt_tokens": settings["prompt_tokens"], "repeats": len(counted), "seconds": median(counted),
        "best_seconds": min(counted), "worst_seconds": max(counted), "first_seconds": found[0], "tokenizer": "bytes",
    }  # fmt: skip


PARTS: Final = "ridgeline.compute.cuda.bench.parts"
WATCH: Final = "ridgeline.compute.cuda.bench.timing"
TINY_CONFIG: Final = {
    "num_hidden_layers": 1, "hidden_size": 16, "num_attention_heads": 1, "num_key_value_heads": 1, "intermediate_size": 16,
    "vocab_size": 512,
}  # fmt: skip
"""Replaces values of a config.json."""


def run_part(settings: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yields a row about the device, then the rows of the part in `settings`. Raises ConfigError without a GPU."""
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
            yield from host(tiny_facts(Path(settings["model"])), settings)
        case "ttft":
            yield from ttft(settings)
        case part:
            yield from computing.PARTS[part](facts, device, settings)


def tiny_facts(model: Path) -> ModelFacts:
    """Facts of a tiny model of the same architecture: the host's work for a step does not depend on layers or widths."""
    with TemporaryDirectory() as folder:
        config = Path(folder) / "config.json"
        config.write_text(json.dumps(json.loads(model.read_text()) | TINY_CONFIG))
        return read_config_facts(config)


def main() -> None:
    """Prints the rows; after a RidgelineError the last one has only the error."""
    try:
        for row in run_part(json.loads(sys.argv[1])):
            print(json.dumps(row), flush=True)
    except RidgelineError as error:
        print(json.dumps({"error": str(error)}), flush=True)


if __name__ == "__main__":
    main()
