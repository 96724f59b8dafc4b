"""Every question of the field's guides as a fault that is planted in a live server: does `ridgeline investigate` name what was planted, and
does the lever that it names help?

    python tests/speed/investigate.py [NAME …] [--trials 1]      # some 20 s per fault and trial

Sockets and processes are real; the device sleeps for what its steps take. The server with the fault is asked for its first cause, over its
admin socket, or what is left of it where it is down; the same load then meets a server with the lever, and the figure of the alert must
fall by a tenth at least: seconds to the first token, between tokens, or of whole answers, in the mean; the share of prompt tokens that were
not cached; of requests that were refused, or had no answer. A tokeniser is made slow, or made to fail, by code that the server's process
runs first: a fake model's takes next to nothing. Engines that end, a bug, endless answers and two answers to one prompt have levers that
are no setting of a server: their cause alone is looked at. Where an alert is of a counter, that has counted.

Asked: the planted cause first in 90 % of all trials, and every lever helps. It ends with status 1 where one is missed.
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "helpers"))
from processes import COMMAND, SOURCE, ServerProcess

DEVICE = {"rows": 16, "blocks": 4_000, "max_model_len": 4_096, "step_seconds": 0.01, "token_seconds": 0.0002}
LEAST_RIGHT, LEAST_GAIN = 0.90, 1.1


@dataclass
class Ask:
    """A request of a load; `gaps` are seconds between the parts of its answer. `is_free`: the answer may end by itself. `status`: of its
    answer; 0: none came, or not to its end."""

    at: float
    prompt: list[int] | str
    output: int
    is_free: bool = False
    first: float = 0.0
    total: float = 0.0
    status: int = 0
    gaps: list[float] = field(default_factory=list)


Load = Callable[[random.Random], list[Ask]]


@dataclass
class Fault:
    """`asks`: questions of the guides that it is the fault of. `now` and `then`: a server and its load, before and with the lever; None:
    no setting helps. `figure`: first, total, gaps, prefix, or the share of requests `refused` or `unanswered`."""

    asks: str
    alert: str
    causes: tuple[str, ...]
    now: tuple[dict[str, Any], list[str], Load]
    then: tuple[dict[str, Any], list[str], Load] | None
    figure: str
    while_it_runs: Callable[[ServerProcess], None] | None = None
    """What is done to the server with the fault."""
    site: str = ""
    """Code that the server's process runs first, on both sides."""
    counter: str = ""
    """The metric that the alert is of, where it is a counter."""


def ids(rng: random.Random, count: int) -> list[int]:
    return [rng.randint(1, 200) for _ in range(count)]


def stream(
    count: int, every: float, prompt: int, output: int, shared: int = 0, text: Callable[[int], str] | None = None, is_free: bool = False
) -> Load:
    """Requests at even distances; `shared` tokens of each prompt are the same."""

    def make(rng: random.Random) -> list[Ask]:
        head = ids(rng, shared)
        return [
            Ask(number * every, text(number) if text is not None else head + ids(rng, prompt - shared), output, is_free)
            for number in range(count)
        ]

    return make


def beside(one: Load, other: Load) -> Load:
    return lambda rng: sorted([*one(rng), *other(rng)], key=lambda ask: ask.at)


def kill_engine(server: ServerProcess) -> None:
    """As the system does where memory runs out."""
    time.sleep(1.0)
    os.kill(server.engine_pid(), signal.SIGKILL)


def kill_engines(server: ServerProcess) -> None:
    """One after the other: the next one hardly serves."""
    for _ in range(4):
        time.sleep(0.7)
        with suppress(AssertionError):  # none runs now
            os.kill(server.engine_pid(), signal.SIGKILL)


def send_signal(number: signal.Signals, seconds: float = 1.0) -> Callable[[ServerProcess], None]:
    """Sends the server's process a signal in the middle of the load."""

    def send(server: ServerProcess) -> None:
        time.sleep(seconds)
        server.process.send_signal(number)

    return send


FAILING_TOKENISER = """
from ridgeline.text.tokenizer import ByteTokenizer
encode = ByteTokenizer.encode
def failing(self, text, *told, **more):
    if "7" in text:
        raise ZeroDivisionError("of the tokeniser")
    return encode(self, text, *told, **more)
ByteTokenizer.encode = failing
"""
SLOW_TOKENISER = """
import time
from ridgeline.text.tokenizer import ByteTokenizer
encode = ByteTokenizer.encode
def slow(self, text, *told, **more):
    time.sleep(0.0002 * len(text))
    return encode(self, text, *told, **more)
ByteTokenizer.encode = slow
"""
HEAD = "You are a careful assistant of a library. Answer in one sentence, and never guess. " * 20
FEW, MANY = {"rows": 2}, {"rows": 16}
TIGHT, ROOMY = {"blocks": 100, "max_model_len": 1_000}, {"blocks": 1_000, "max_model_len": 1_000}
SLOW_TOKENS = {"step_seconds": 0.002, "token_seconds": 0.004}
CHATS, LONG = stream(40, 0.1, 40, 60), stream(14, 0.3, 1_500, 4)
CROWD = stream(40, 0.02, 40, 60)
MIXED = beside(stream(4, 0.05, 30, 120), LONG)
HEAVY, LIGHT = {"step_seconds": 0.06}, {"step_seconds": 0.02}
"""Steps that read all weights, in 16 bits and in 4."""
FAULTS = {
    "ingress: slow tokeniser": Fault(
        "war room: ingress", "FirstTokenLate", ("tokenise",), ({}, [], stream(10, 0.5, 0, 4, text=lambda n: f"{n} {HEAD}")),
        ({}, [], stream(10, 0.5, 0, 4, text=lambda n: f"{n} {HEAD[:400]}")), "first", site=SLOW_TOKENISER,
    ),
    "first token: long prompts": Fault(
        "004 why is TTFT high (prefill); war room: processing", "FirstTokenLate", ("prefill",),
        ({}, [], stream(10, 0.9, 2_800, 4)), ({}, [], stream(10, 0.9, 2_800, 4, shared=2_400)), "first",
    ),
    "first token: queue": Fault(
        "004 why is TTFT high (queueing); 001 long initial pause", "FirstTokenLate", ("rows",), (FEW, [], CHATS), (MANY, [], CHATS), "first"
    ),
    "first token: saturated": Fault(
        "004 why is TTFT high (GPU saturated)", "FirstTokenLate", ("budget", "turn"),
        ({}, [], stream(24, 0.2, 1_500, 4)), ({}, [], stream(12, 0.4, 1_500, 4)), "first",
    ),
    "tokens: others' prompts": Fault(
        "004 why is ITL degrading, its p99 thrice its p50; 001 choppy stream", "TokensSlow", ("others_prefill",),
        ({}, ["--step-ms", "500"], MIXED), ({}, ["--step-ms", "20"], MIXED), "gaps",
    ),
    "tokens: KV pressure": Fault(
        "004 why is ITL degrading (KV cache pressure)", "Preemptions", ("preempted", "recompute", "blocks"),
        (TIGHT, [], stream(12, 0.02, 120, 250)), (ROOMY, [], stream(12, 0.02, 120, 250)), "total",
    ),
    "tokens: too many at once": Fault(
        "004 why is ITL degrading (too many requests); war room: generation", "TokensSlow", ("decode",),
        (MANY | SLOW_TOKENS, [], stream(16, 0.01, 20, 60)), ({"rows": 4} | SLOW_TOKENS, [], stream(16, 0.01, 20, 60)), "gaps",
    ),
    "tokens: reading weights": Fault(
        "004 why is ITL degrading (memory bandwidth), why is quantization worth it; war room: generation", "TokensSlow", ("decode",),
        (HEAVY, [], stream(6, 0.3, 20, 30)), (LIGHT, [], stream(6, 0.3, 20, 30)), "gaps",
    ),
    "memory: KV cache full": Fault(
        "004 why did it run out of memory; 003 only under load; war room: state", "QueueGrows", ("blocks",),
        (TIGHT, [], stream(16, 0.15, 500, 80)), (ROOMY, [], stream(16, 0.15, 500, 80)), "first",
    ),
    "memory: 95 % in use": Fault(
        "004 why the KV cache hit 95 %; war room: usage", "KVCacheFull", ("blocks", "preempted", "recompute"),
        (TIGHT, [], stream(16, 0.1, 200, 120)), (ROOMY, [], stream(16, 0.1, 200, 120)), "total",
    ),
    "throughput: KV pool too small": Fault(
        "004 why is throughput low; 003 KV pool limits concurrency", "ThroughputLow", ("blocks", "preempted", "recompute"),
        (TIGHT, [], stream(16, 0.1, 400, 60)), (ROOMY, [], stream(16, 0.1, 400, 60)), "total",
    ),
    "throughput: batch too small": Fault(
        "004 why is throughput low; 003 TTFT fine, throughput low", "ThroughputLow", ("rows",), (FEW, [], CHATS), (MANY, [], CHATS), "total"
    ),
    "prefixes: a time in front": Fault(
        "004 why does prefix caching not help; war room: hit rate", "PrefixMisses", ("timestamp",),
        ({}, [], stream(12, 0.2, 0, 4, text=lambda n: f"At 10:{10 + n}. {HEAD}")),
        ({}, [], stream(12, 0.2, 0, 4, text=lambda n: f"{HEAD} At 10:{10 + n}.")), "prefix",
    ),
    "memory: the engine is killed": Fault(
        "003 out of memory under load", "EngineRestarts", ("restart",), ({}, [], stream(20, 0.1, 40, 60)), None, "total", kill_engine
    ),
    "goodput: late first tokens": Fault(
        "003 goodput", "GoodputLow", ("rows",), (FEW, ["--goodput", "ttft=500ms"], CHATS),
        (MANY, ["--goodput", "ttft=500ms"], CHATS), "first", counter="ridgeline_requests_total",
    ),
    "goodput: slow tokens": Fault(
        "003 goodput", "GoodputLow", ("others_prefill",), ({}, ["--goodput", "itl=20ms", "--step-ms", "500"], MIXED),
        ({}, ["--goodput", "itl=20ms", "--step-ms", "20"], MIXED), "gaps", counter="ridgeline_requests_total",
    ),
    "steps: weights take longer than --step-ms": Fault(
        "004 why is ITL degrading", "LateSteps", ("decode",), (HEAVY, ["--step-ms", "30"], stream(6, 0.3, 20, 30)),
        (LIGHT, ["--step-ms", "30"], stream(6, 0.3, 20, 30)), "gaps", counter="ridgeline_late_steps_total",
    ),
    "refused: too few rows": Fault(
        "004 why is throughput low; requests are refused", "Rejections", ("rows",), (FEW, ["--max-num-queued-reqs", "4"], CROWD),
        ({"rows": 40}, ["--max-num-queued-reqs", "4"], CROWD), "refused", counter="ridgeline_rejected_requests_total",
    ),
    "refused: too few blocks": Fault(
        "003 KV pool limits concurrency; requests are refused", "Rejections", ("blocks", "preempted", "recompute"),
        (TIGHT, ["--max-num-queued-reqs", "4"], stream(40, 0.05, 500, 40)),
        (ROOMY | {"rows": 40}, ["--max-num-queued-reqs", "4"], stream(40, 0.05, 500, 40)), "refused",
        counter="ridgeline_rejected_requests_total",
    ),
    "refused: a key's rate": Fault(
        "requests are refused", "Rejections", ("quota",), ({}, ["--api-key-file", "rpm=6"], CHATS),
        ({}, ["--api-key-file", "rpm=600"], CHATS), "refused",
    ),
    "refused: too many connections": Fault(
        "requests are refused", "Rejections", ("connections",), ({}, ["--max-connections-per-client", "4"], CROWD),
        ({}, ["--max-connections-per-client", "64"], CROWD), "refused", counter="ridgeline_rejected_requests_total",
    ),
    "errors: engines end early": Fault(
        "003 out of memory under load", "Errors", ("restart",), ({}, [], stream(60, 0.08, 40, 4)), None, "unanswered", kill_engines
    ),
    "errors: a bug": Fault(
        "requests fail", "Errors", ("bug",), ({}, [], stream(20, 0.05, 0, 4, text=lambda n: f"{n} is a number")), None, "unanswered",
        site=FAILING_TOKENISER,
    ),
    "down: killed": Fault(
        "003 out of memory", "Down", ("killed",), ({}, [], CHATS), ({}, [], CHATS), "unanswered", send_signal(signal.SIGKILL)
    ),
    "down: asked to end": Fault(
        "it does not answer", "Down", ("stopped",), ({}, [], CHATS), ({}, [], CHATS), "unanswered", send_signal(signal.SIGTERM)
    ),
    "down: suspended": Fault(
        "it does not answer", "Down", ("suspended",), ({}, [], CHATS), ({}, [], CHATS), "unanswered", send_signal(signal.SIGSTOP)
    ),
    "answers: they never end": Fault(
        "003 missing stop tokens: runaway generations", "OddAnswers", ("endless",),
        ({"script": [["go", "ha ha " * 40]]}, [], stream(4, 0.1, 0, 100, text=lambda n: "go", is_free=True)), None, "total",
    ),
    "answers: two to one prompt": Fault(
        "003 another answer at temperature 0", "AnswersDiffer", ("request",), ({}, [], stream(2, 0.1, 20, 4)), None, "total"
    ),
}  # fmt: skip


ANSWER_SECONDS = 20.0


def send(url: str, ask: Ask, began: float) -> None:
    """Sends a request at its time. One that is refused, or is not answered, has no figures."""
    time.sleep(max(0.0, began + ask.at - time.monotonic()))
    due = began + ask.at
    body = {"prompt": ask.prompt, "max_tokens": ask.output, "ignore_eos": not ask.is_free, "stream": True}
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {KEY}"}
    try:
        with urlopen(Request(f"{url}/v1/completions", json.dumps(body).encode(), headers), timeout=ANSWER_SECONDS) as answer:
            last = None
            for line in answer:
                now = time.monotonic()
                if line.startswith(b"data: {"):
                    if last is None:
                        ask.first = now - due
                    else:
                        ask.gaps.append(now - last)
                    last = now
            ask.status = answer.status
    except HTTPError as error:
        ask.status = error.code
    except OSError:
        return  # nobody is there
    ask.total = time.monotonic() - due


def ridgeline(folder: str, *words: str) -> dict[str, Any]:
    """The JSON answer of a command beside the server of this folder."""
    done = subprocess.run([*COMMAND, *words, "--json"], env=environment(folder), check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def environment(folder: str) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(SOURCE), "XDG_RUNTIME_DIR": folder, "XDG_STATE_HOME": folder}


def served(side: tuple[dict[str, Any], list[str], Load], fault: Fault, seed: int) -> tuple[float, dict[str, Any]]:
    """The figure of the load, and what `investigate` says."""
    device, flags, load = side
    asks, is_planted = load(random.Random(seed)), side is fault.now
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "sitecustomize.py").write_text(fault.site)
        words = [f"fake:{json.dumps(DEVICE | device)}", "--max-num-queued-reqs", "4096", *with_key_file(flags, Path(folder))]
        server = ServerProcess(words, environment(folder) | {"PYTHONPATH": f"{folder}:{SOURCE}"})
        try:
            began = time.monotonic() + 0.2
            threads = [threading.Thread(target=send, args=(server.url, ask, began)) for ask in asks]
            for thread in threads:
                thread.start()
            if fault.while_it_runs is not None and is_planted:
                fault.while_it_runs(server)
            for thread in threads:
                thread.join()
            told = ridgeline(folder, "investigate", fault.alert, "--window", "2h") if is_planted else {}
            prefix = ridgeline(folder, "explain", "--prefix", "--window", "2h") if fault.figure == "prefix" else {}
            if fault.counter and is_planted:
                assert server.metric(fault.counter) > 0, fault.counter
        finally:
            server.process.send_signal(signal.SIGCONT)
            server.stop()
    if prefix:
        return 1 - prefix["cached_tokens"] / prefix["prompt_tokens"], told
    if fault.figure in UNWELL:
        return fmean(UNWELL[fault.figure](ask) for ask in asks) + NEARLY_NONE, told
    answered = [ask for ask in asks if ask.status == OK]
    assert len(answered) == len(asks) or fault.while_it_runs is not None, [ask.status for ask in asks]
    if fault.figure == "gaps":
        return fmean(gap for ask in answered for gap in ask.gaps), told
    return fmean(getattr(ask, fault.figure) for ask in answered), told


OK, REFUSED = 200, 429
UNWELL: dict[str, Callable[[Ask], bool]] = {"refused": lambda ask: ask.status == REFUSED, "unanswered": lambda ask: ask.status != OK}
NEARLY_NONE = 1e-3
"""A share that stands for none: gains are quotients."""
KEY = "key-of-the-load"


def with_key_file(flags: list[str], folder: Path) -> list[str]:
    """The flags with a file of one key in place of what that key may."""
    if "--api-key-file" not in flags:
        return flags
    at, file = flags.index("--api-key-file") + 1, folder / "keys"
    file.write_text(f"load {KEY} {flags[at]}\n")
    file.chmod(0o600)
    return [*flags[:at], str(file), *flags[at + 1 :]]


def main() -> None:
    """Prints a line per trial."""
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*", choices=[*FAULTS, []])
    parser.add_argument("--trials", type=int, default=1)
    given = parser.parse_args()
    right, missed = list[bool](), list[str]()
    for name in given.names or FAULTS:
        fault = FAULTS[name]
        for trial in range(given.trials):
            before, told = served(fault.now, fault, trial)
            right.append(told["cause"] in fault.causes)
            gain = None if fault.then is None else before / served(fault.then, fault, trial)[0]
            helps = "" if gain is None else f"; with the lever {gain:.2f} times better"
            print(f"{name} ({fault.asks}), {fault.alert}: {told['phase']}, {told['cause']}: {told['lever']}{helps}", flush=True)
            missed += [] if gain is None or gain >= LEAST_GAIN else [f"{name}: gain {gain:.2f}"]
    if sum(right) < LEAST_RIGHT * len(right):
        missed.append(f"first cause {sum(right)} of {len(right)}")
    print(f"planted cause first: {sum(right)} of {len(right)}; missed: {', '.join(missed) or 'nothing'}")
    sys.exit(bool(missed))


if __name__ == "__main__":
    main()
