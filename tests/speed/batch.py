"""Tokens per second of `ridgeline batch` beside those of `LLM`, in turn: python tests/speed/batch.py [MODEL] [REQUESTS] [ROUNDS].

The same prompts of both, with the same lengths; loading is not counted. Beside the seconds stand the processor time of all threads, which
other work on the machine disturbs less, and the steps that each took: as many steps of as many rows cost the same. Of a batch the processor
time of loading is that of a run with one request of one token; steps are counted in runs of their own, which are recorded.
"""

import json
import re
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

from ridgeline.engine.record import read_recording

PROMPT = "Write a few sentences about the number {}."
TOKENS = 64
LLM_RUN = """
import sys, time
from ridgeline import LLM, SamplingParams
model, count, tokens, record = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
llm = LLM(model, record=record or None)
prompts = [{prompt!r}.format(number) for number in range(count)]
began, used = time.monotonic(), time.process_time()
llm.generate(prompts, SamplingParams(max_tokens=tokens, ignore_eos=True, seed=1))
print(time.monotonic() - began, time.process_time() - used)
"""
BATCH = [sys.executable, "-c", "import sys; sys.argv[0] = 'ridgeline'; from ridgeline.cli.main import main; main()", "batch"]


def batch_seconds(model: str, count: int, tokens: int = TOKENS, record: str = "") -> tuple[float, float]:
    """Seconds of the answers as it tells them, and processor seconds of the whole run, the model's loading included."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "in.jsonl"
        source.write_text("".join(
            json.dumps({"custom_id": str(number), "method": "POST", "url": "/v1/completions",
                        "body": {"prompt": PROMPT.format(number), "max_tokens": tokens, "ignore_eos": True, "seed": 1}}) + "\n"
            for number in range(count)
        ))  # fmt: skip
        used, flags = _processor_seconds(), ["--record", record] if record else []
        command = [*BATCH, source, Path(folder) / "out.jsonl", "--model", model, *flags]
        told = subprocess.run(command, check=True, capture_output=True, text=True).stderr
        return float(re.search(r"requests in ([0-9.]+) s", told)[1]), _processor_seconds() - used  # type: ignore[index]


def _processor_seconds() -> float:
    """Of all children that have ended, and of theirs."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def llm_seconds(model: str, count: int, record: str = "") -> tuple[float, float]:
    """Seconds and processor seconds of the generation alone."""
    command = [sys.executable, "-c", LLM_RUN.replace("{prompt!r}", repr(PROMPT)), model, str(count), str(TOKENS), record]
    wall, used = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    return float(wall), float(used)


def steps(recording: Path) -> str:
    """How many steps were computed, and how many rows they had."""
    rows = [len(turn.sampled) for turn in read_recording(recording)[1] if turn.step >= 0]
    return f"{len(rows)} steps of {sum(rows) / len(rows):.1f} rows"


def main(model: str = "demo", requests: str = "128", rounds: str = "3") -> None:
    """Prints each round, and the ratio of the fastest."""
    count, ours, theirs = int(requests), list[float](), list[float]()
    for _ in range(int(rounds)):
        _, loading = batch_seconds(model, 1, 1)
        wall, used = batch_seconds(model, count)
        ours.append(wall)
        wall, llm_used = llm_seconds(model, count)
        theirs.append(wall)
        print(f"batch {count * TOKENS / ours[-1]:,.0f} tokens/s, {used - loading:.1f} s of processors; "
              f"LLM {count * TOKENS / theirs[-1]:,.0f} tokens/s, {llm_used:.1f} s", flush=True)  # fmt: skip
    print(f"ratio of the fastest: {min(theirs) / min(ours):.3f}")
    with tempfile.TemporaryDirectory() as folder:
        batch_seconds(model, count, record=f"{folder}/batch")
        llm_seconds(model, count, record=f"{folder}/llm")
        print(f"batch {steps(Path(folder) / 'batch')}; LLM {steps(Path(folder) / 'llm')}")


if __name__ == "__main__":
    main(*sys.argv[1:])
