"""The simulator against a live server on this machine: the same Poisson arrivals, times to first token and throughput of both.

    python tests/speed/sim_vs_live.py [--model demo] [--rates 0.5,1.2] [--seconds 40] [--verify]

A server runs in a process of its own, loaded by `bench serve`; it records itself. The recording's arrivals are then simulated with
`sim --device this`, with nothing set. `--verify` runs `plan --verify` first. Takes about the sum of the rates' seconds and ten more.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

COMMAND = [sys.executable, "-c", "from ridgeline.cli.main import main; main()"]


def ridgeline(*words: str) -> str:
    """Output of a command."""
    return subprocess.run([*COMMAND, *words], check=True, capture_output=True, text=True).stdout


def live(model: str, rate: float, seconds: float, folder: Path, lengths: tuple[int, int]) -> tuple[dict[str, Any], Path]:
    """Report of `bench serve`, and the arrivals that the server recorded."""
    recording, log, report = folder / f"{rate}.rec", folder / f"{rate}.log", folder / f"{rate}.json"
    with log.open("w") as stream:
        server = subprocess.Popen([*COMMAND, "serve", model, "--port", "0", "--record", str(recording)], stderr=stream, stdout=stream)
    try:
        url = None
        while url is None:
            assert server.poll() is None, log.read_text()
            url = re.search(r"url=(http://\S+)", log.read_text())
        load = ["--rate", str(rate), "--seconds", str(seconds), "--input-len", str(lengths[0]), "--output-len", str(lengths[1])]
        ridgeline("bench", "serve", "--url", url[1], *load, "--json", str(report))
    finally:
        server.terminate()
        server.wait(30)
    trace = folder / f"{rate}.jsonl"
    ridgeline("replay", str(recording), "--trace", str(trace))
    return json.loads(report.read_text())["runs"][0], trace


def main() -> None:
    """Prints a table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", default="demo")
    parser.add_argument("--rates", default="0.5,1.2")
    parser.add_argument("--seconds", type=float, default=40)
    parser.add_argument("--lengths", default="127,64")
    parser.add_argument("--verify", action="store_true")
    given = parser.parse_args()
    prompt, output = map(int, given.lengths.split(","))
    if given.verify:
        print(ridgeline("plan", given.model, "--verify"))
    print(f"load average {os.getloadavg()[0]:.1f}; {given.model}, {prompt} in, {output} out")
    print(f"{'rate':>6} {'figure':<12} {'live':>9} {'simulated':>9} {'error':>7}")
    with tempfile.TemporaryDirectory() as folder:
        for rate in map(float, given.rates.split(",")):
            measured, trace = live(given.model, rate, given.seconds, Path(folder), (prompt, output))
            simulated = json.loads(ridgeline("sim", given.model, "--device", "this", "--trace", str(trace), "--json"))["runs"][0]
            for name, unit in (("ttft.p50", 1e3), ("ttft.p90", 1e3), ("itl.p50", 1e3), ("e2e.p50", 1e3), ("output_tokens_per_second", 1)):
                a, b = figure(measured, name) * unit, figure(simulated, name) * unit
                print(f"{rate:6.2f} {name:<12.12} {a:9.1f} {b:9.1f} {b / a - 1:+7.0%}")


def figure(report: dict[str, Any], name: str) -> float:
    """A number of a report: `ttft.p50`, or a plain name; of several seeds its mean."""
    value: Any = report.get("figures", report)
    if name in value:
        value = value[name]
    else:
        for part in name.split("."):
            value = value[part]
    return float(value["mean"] if isinstance(value, dict) else value)


if __name__ == "__main__":
    main()
