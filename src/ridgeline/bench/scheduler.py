"""CPU time of the scheduler: schedule + commit of a steady decode with all rows running, events included.

No model: sampled ids are constant. CPU time of this thread, so that a busy machine does not
count. Run it with `python -m ridgeline.bench.scheduler`.
"""

import gc
import time
from statistics import median

from ridgeline.core.commands import Admit
from ridgeline.core.params import Admitted, Limits, SamplingParams
from ridgeline.core.plan import KVGroup, KVShape, Plan, Result
from ridgeline.core.policy import POLICIES
from ridgeline.core.scheduler import Scheduler
from ridgeline.engine.admit import ModelLimits, admit

TARGET_MS = {32: 0.1, 256: 0.6, 1024: 3.0}
"""Running sequences → median milliseconds that a step may take."""

BLOCK_TOKENS, WINDOW, PROMPT_TOKENS, MODEL_LEN = 16, 512, 24, 4096
GROUPS = (KVGroup("full", (0,)), KVGroup("window", (1,), WINDOW))
ID = 7


def make_request(number: int, outputs: int, kv: KVShape) -> Admitted:
    """A request with a unique prompt, so that none waits for a prefix. Lengths differ: block boundaries fall into different steps."""
    limits = ModelLimits(vocab=1 << 20, max_model_len=MODEL_LEN, eos_ids=frozenset({1}), kv=kv)
    prompt = [number] * (PROMPT_TOKENS + number % BLOCK_TOKENS)
    params = SamplingParams(max_tokens=outputs)
    return admit(prompt, params, limits, request_id=f"request-{number}", draw_seed=lambda: number)


def make_result(plan: Plan, sampled: tuple[int, ...] = (ID,)) -> Result:
    """A result with one id for every row that samples."""
    return Result(plan.step, tuple([sampled if samples else () for samples in plan.sample]), bytearray(b"\1" * len(plan.row)))


def measure_decode(rows: int, steps: int, depth: int = 1) -> list[float]:
    """CPU seconds of schedule + commit + taking events, for each of `steps` steps in which all of `rows` sequences decode."""
    blocks = rows * len(GROUPS) * (PROMPT_TOKENS + steps + 2 * BLOCK_TOKENS) // BLOCK_TOKENS + rows * 4
    kv = KVShape(GROUPS, BLOCK_TOKENS, blocks, b"bench")
    limits = Limits(rows=rows, token_budget=rows * 64, depth=depth, max_model_len=MODEL_LEN, max_waiting=rows)
    scheduler = Scheduler(limits, kv, POLICIES["fcfs"])
    scheduler.apply([Admit(make_request(number, steps + 64, kv)) for number in range(rows)], 0.0)
    in_flight: list[Plan] = []
    seconds: list[float] = []
    while len(seconds) < steps:
        began = time.thread_time()
        while (plan := scheduler.schedule(0.0)) is not None:
            in_flight.append(plan)
        planned = time.thread_time()
        oldest = in_flight.pop(0)
        result = make_result(oldest)
        committed = time.thread_time()
        scheduler.commit(oldest, result, 0.0)
        scheduler.take_events()
        ended = time.thread_time()
        if not oldest.new_rows and len(oldest.row) == rows == len(oldest.tokens):
            seconds.append(planned - began + ended - committed)
    return seconds


def main() -> None:
    """Prints median and 99th percentile beside each target."""
    for rows, target in TARGET_MS.items():
        for depth in (1, 2):
            gc.collect()
            milliseconds = sorted(1e3 * each for each in measure_decode(rows, 512, depth))
            middle, p99 = median(milliseconds), milliseconds[len(milliseconds) * 99 // 100]
            per_sequence = 1e3 * middle / rows
            times = f"median {middle:.3f} ms, p99 {p99:.3f} ms, target {target} ms; {per_sequence:.2f} µs per sequence"
            print(f"{rows:5} running, depth {depth}: {times}")


if __name__ == "__main__":
    main()
