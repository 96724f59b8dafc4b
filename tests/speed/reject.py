"""How soon a full server says 429, and what that costs those that it serves: `python tests/speed/reject.py [--bursts 10]`.

Fills the queue of a server with long requests, then sends 400 more at once, each on a connection of its own, again and again. A time is
from before `connect` to the last byte of the answer. The cost is the decode throughput in seconds with a burst, against seconds without, in
turn. Run it on a machine at rest: client, front end and engine share its cores.
"""

import argparse
import os
import sys
import time
from pathlib import Path
from statistics import median, quantiles

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "helpers"))
from bursts import burst, fill
from processes import SOURCE, ServerProcess

ROWS, WAITING = 16, 16


def decoded(server: ServerProcess, seconds: float, count: int) -> tuple[float, list[float]]:
    """Tokens per second in that time, and the times of the burst at its start, of `count` requests."""
    before, began = server.metric("vllm:generation_tokens_total"), time.perf_counter()
    answers = burst(server.url, count) if count else []
    assert {status for _, status in answers} <= {b"HTTP/1.1 429 Too Many Requests"}, answers[:3]
    time.sleep(max(0.0, seconds - (time.perf_counter() - began)))
    after, took = server.metric("vllm:generation_tokens_total"), time.perf_counter() - began
    return (after - before) / took, [each for each, _ in answers]


def summary(seconds: list[float]) -> str:
    return f"p50 {median(seconds) * 1e3:.1f} ms, p99 {quantiles(seconds, n=100)[98] * 1e3:.1f}, longest {max(seconds) * 1e3:.1f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", default="demo")
    parser.add_argument("--bursts", type=int, default=10)
    parser.add_argument("--count", type=int, default=400)
    parser.add_argument("--seconds", type=float, default=2.0, help="time of a measurement with a burst, and of one without")
    asked = parser.parse_args()
    flags = ["--max-num-seqs", str(ROWS), "--max-num-queued-reqs", str(WAITING), "--max-model-len", "4096"]
    server = ServerProcess([asked.model, *flags], {**os.environ, "PYTHONPATH": str(SOURCE)})
    try:
        clients = fill(server.url, ROWS + WAITING)
        time.sleep(1.0)
        quiet, busy, times = [], [], []
        for number in range(asked.bursts):
            quiet.append(decoded(server, asked.seconds, 0)[0])
            rate, new = decoded(server, asked.seconds, asked.count)
            busy.append(rate)
            times += new
            print(f"burst {number}: {summary(new)}", flush=True)
        print(f"{len(times)} × 429: {summary(times)}")
        ratio = median(busy) / median(quiet)
        print(f"decode: {median(quiet):.1f} tokens/s; {median(busy):.1f} in {asked.seconds:g} s with a burst ({ratio:.3f} ×)")
        for each in clients:
            each.close()
    finally:
        server.stop()


if __name__ == "__main__":
    main()
