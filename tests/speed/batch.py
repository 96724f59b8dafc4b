"""Tokens per second of `ridgeline batch` beside those of `LLM`, in turn: python tests/speed/batch.py [MODEL] [REQUESTS] [ROUNDS].

The same prompts of both, with the same lengths; loading is not counted: of a batch it is taken from a run with one request. Beside them
stands the processor time of all threads, which other work on the machine disturbs less.
"""

import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

PROMPT = "Write a few sentences about the number {}."
TOKENS = 64
LLM_RUN = """
import sys, time
from ridgeline import LLM, SamplingParams
model, count, tokens = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
llm = LLM(model)
prompts = [{prompt!r}.format(number) for number in range(count)]
began, used = time.monotonic(), time.process_time()
llm.generate(prompts, SamplingParams(max_tokens=tokens, ignore_eos=True, seed=1))
print(time.monotonic() - began, time.process_time() - used)
"""
BATCH = [sys.executable, "-c", "import sys; sys.argv[0] = 'ridgeline'; from ridgeline.cli.main import main; main()", "batch"]


def batch_seconds(model: str, count: int) -> tuple[float, float]:
    """Seconds and processor seconds of a whole run, the model's loading included."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "in.jsonl"
        source.write_text("".join(
            json.dumps({"custom_id": str(number), "method": "POST", "url": "/v1/completions",
                        "body": {"prompt": PROMPT.format(number), "max_tokens": TOKENS, "ignore_eos": True, "seed": 1}}) + "\n"
            for number in range(count)
        ))  # fmt: skip
        began, used = time.monotonic(), _processor_seconds()
        subprocess.run([*BATCH, source, Path(folder) / "out.jsonl", "--model", model], check=True, capture_output=True)
        return time.monotonic() - began, _processor_seconds() - used


def _processor_seconds() -> float:
    """Of all children that have ended, and of theirs."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def llm_seconds(model: str, count: int) -> tuple[float, float]:
    """Seconds and processor seconds of the generation alone."""
    command = [sys.executable, "-c", LLM_RUN.replace("{prompt!r}", repr(PROMPT)), model, str(count), str(TOKENS)]
    wall, used = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    return float(wall), float(used)


def main(model: str = "demo", requests: str = "128", rounds: str = "3") -> None:
    """Prints each round, and the ratio of the fastest."""
    count, ours, theirs = int(requests), list[float](), list[float]()
    for _ in range(int(rounds)):
        loading, loading_used = batch_seconds(model, 1)
        wall, used = batch_seconds(model, count)
        ours.append(wall - loading)
        wall, llm_used = llm_seconds(model, count)
        theirs.append(wall)
        print(f"batch {count * TOKENS / ours[-1]:,.0f} tokens/s, {used - loading_used:.1f} s of processors; "
              f"LLM {count * TOKENS / theirs[-1]:,.0f} tokens/s, {llm_used:.1f} s", flush=True)  # fmt: skip
    print(f"ratio of the fastest: {min(theirs) / min(ours):.3f}")


if __name__ == "__main__":
    main(*sys.argv[1:])
