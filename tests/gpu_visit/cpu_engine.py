"""The engine on the processor of a machine with many cores: peaks of its instructions, and tokens per second by threads."""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from cpu_build import TARGET
from say import say

TINY = "--tiny" in sys.argv[1:]
HELPERS = Path(__file__).resolve().parents[1] / "helpers"
COMMAND = (sys.executable, "-c", "from ridgeline.cli.main import main; main()")
CORES = os.cpu_count() or 1
THREADS = (1,) if TINY else tuple(sorted({1, 2, 4, 8, CORES}))
SHAPE = {"layers": 2} if TINY else {"layers": 8, "hidden": 2048, "heads": 16, "kv_heads": 8, "head_dim": 128, "ffn": 8192, "window": 512}
TOKENS = ("4", "2") if TINY else ("256", "32")
FLAGS = ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_tile", "amx_int8", "amx_bf16")
SECONDS = 150.0
"""No measurement begins later."""


def ridgeline(*words: str) -> Any:
    """The JSON that a command prints."""
    path = os.pathsep.join([*([str(TARGET)] if TARGET.exists() else []), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run([*COMMAND, *words, "--json"], env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr[-1500:])
    return json.loads(done.stdout)


def processor() -> dict[str, Any]:
    """Name, cores, and instructions that matter."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    named = {line.partition(":")[0].strip(): line.partition(":")[2].strip() for line in lines}
    flags = named.get("flags", "").split()
    return {"name": named.get("model name"), "cores": CORES, "instructions": [flag for flag in FLAGS if flag in flags]}


def offline(model: Path, threads: int) -> dict[str, Any]:
    """Prompts and answers of one and of 16 streams."""
    batches = "1" if TINY else "1,16"
    sizes = ("--prompt-tokens", TOKENS[0], "--output-tokens", TOKENS[1], "--repeats", "1")
    found = ridgeline("bench", "offline", str(model), "--runner", "native", "--threads", str(threads), "--batch", batches, *sizes)
    names = ("batch", "decode_tokens_per_second", "decode_bound", "prefill_tokens_per_second", "prefill_bound")
    return {"figures": [{name: figure.get(name) for name in names} for figure in found["figures"]]}


def main() -> None:
    began = time.monotonic()
    say({"cpu": "processor"}, processor)
    say({"cpu": "roofline"}, lambda: ridgeline("bench", "roofline", *(("--rounds", "1") if TINY else ())))
    sys.path.append(str(HELPERS))
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "random.gguf"

        def write() -> dict[str, Any]:
            from tiny import Tiny, write_tiny

            write_tiny(file, Tiny(**SHAPE), kind="F32" if TINY else "Q8_0")
            return {"bytes": file.stat().st_size}

        say({"cpu": "weights", "kind": "Q8_0"}, write)
        for threads in THREADS:
            if time.monotonic() - began < SECONDS:
                say({"cpu": "offline", "threads": threads}, lambda threads=threads: offline(file, threads))


if __name__ == "__main__":
    main()
