"""How long this machine takes for a step, measured while nobody waits: rows that get their next token, and tokens of prompts.

Owns the steps that are measured. They write to the reserved page 0, which is never read for a request.
"""

from array import array
from time import perf_counter, process_time
from typing import Any, Final

from ridgeline.compute.runtime.batch import step_inputs
from ridgeline.compute.runtime.executor import Runner
from ridgeline.compute.runtime.rows import Rows
from ridgeline.core.pace import StepSeconds
from ridgeline.core.params import RowParams
from ridgeline.core.plan import KVShape, NewRow, Plan

ROWS: Final = 16
TOKENS: Final = 64
ROUNDS: Final = 4
ENOUGH_SECONDS: Final = 0.25
"""No further round begins after so long: a large model takes seconds for one."""


def measure(runner: Runner, kv: Any, shape: KVShape, threads: int, most_rows: int, most_tokens: int) -> StepSeconds | None:
    """Processor time over threads, of the quickest of some rounds: who is busy beside us while we start may be gone later.

    None where a step has room for one token only.
    """
    rows, tokens = min(ROWS, most_rows, most_tokens), min(TOKENS, most_tokens)
    if tokens < 2:
        return None
    began, best = perf_counter(), [float("inf")] * 3
    for _ in range(ROUNDS):
        for index, counts in enumerate(([1], [1] * max(2, rows), [tokens])):
            best[index] = min(best[index], _seconds(runner, kv, shape, counts))
        if perf_counter() - began > ENOUGH_SECONDS:
            break
    one, many, chunk = (seconds / threads for seconds in best)
    return StepSeconds.fitted(one, many, max(2, rows), chunk, tokens)


def _seconds(runner: Runner, kv: Any, shape: KVShape, counts: list[int]) -> float:
    """Of all processors together, in a step in which each row computes so many tokens from its first on and samples."""
    blocks = -(-max(counts) // shape.block_tokens)
    rows = Rows(len(counts), len(shape.groups), blocks)
    params, tables = RowParams(seed=0, choice=0, prompt_tokens=1), ((0,) * blocks,) * len(shape.groups)
    plan = Plan(
        step=0,
        row=array("i", range(len(counts))),
        start=array("i", [0] * len(counts)),
        count=array("i", counts),
        tokens=array("i", [0] * sum(counts)),
        sample=bytearray(b"\1" * len(counts)),
        new_rows=tuple(NewRow(index, index, params, (0,) * count, tables) for index, count in enumerate(counts)),
    )
    rows.apply(plan)
    inputs = step_inputs(plan, rows, shape.block_tokens).complete(rows.last)
    began = process_time()
    runner.run(inputs, kv)
    return process_time() - began
