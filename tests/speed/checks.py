"""Seconds that the checks before the first request add to a start: `python tests/speed/checks.py [MODEL …]`, on a machine at rest.

Each check by itself in this process, the least of some rounds. In a server tokenizer and template are checked while the engine loads.
"""

import contextlib
import sys
import time
from collections.abc import Callable
from pathlib import Path

from ridgeline.compute.load.check import check_weights
from ridgeline.config.env import model_stores
from ridgeline.engine.llm import LLM
from ridgeline.facts.headers.plausible import check_header
from ridgeline.facts.headers.read import read_model_facts
from ridgeline.facts.hub.source import resolve_model
from ridgeline.text.files import read_files

ROUNDS = 5


def best(work: Callable[[], object], rounds: int = ROUNDS) -> float:
    seconds = []
    for _ in range(rounds):
        began = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - began)
    return min(seconds)


def measure(name: str) -> dict[str, float]:
    """Seconds by check. The first canary of a process counts: it makes the buffers that score prompts."""
    path: Path = resolve_model(name, model_stores())
    facts = read_model_facts(path)
    files = read_files(name, path, chat_template=None, generation_config="auto")
    template = files.load_template()
    with contextlib.closing(template) if template is not None else contextlib.nullcontext():
        text = best(lambda: files.check(template))
    found = {"header": best(lambda: check_header(facts)), "weights": best(lambda: check_weights(facts, 2)), "tokenizer": text}
    with LLM(name, max_model_len=256) as llm:
        llm.generate("x")
        _ = llm.chat_template
        first = best(llm.check, 1)
        again = best(llm.check)
    return {**found, "answer, first": first - text, "answer, later": again - text}


if __name__ == "__main__":
    for model in sys.argv[1:] or ["demo"]:
        print(model, "  ".join(f"{check} {seconds * 1e3:.0f} ms" for check, seconds in measure(model).items()))
