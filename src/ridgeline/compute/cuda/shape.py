"""A runner of a model's shape with random weights, and the steps that benchmarks time on it: no file, no engine, no request.

Owns neither clocks nor figures: whoever measures calls `Shaped.decode` and `Shaped.prefill` between its own events.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np

from ridgeline.compute.cuda.cache import allocate_device_kv
from ridgeline.compute.cuda.device import DTYPES, Device
from ridgeline.compute.cuda.load import random_weights
from ridgeline.compute.cuda.runner import CudaRunner, Launched
from ridgeline.compute.cuda.sampler import COLUMNS
from ridgeline.compute.cuda.step import Sampled
from ridgeline.compute.graph import StepInputs
from ridgeline.compute.record import record
from ridgeline.core.plan import KVShape
from ridgeline.facts.model import ModelFacts
from ridgeline.planning.memory import kv_groups

BLOCK_TOKENS: Final = 16


@dataclass(frozen=True, slots=True)
class Shaped:
    """A warm runner, whose rows own the pages 1, 2, 3 … one row's behind another's."""

    runner: CudaRunner
    shape: KVShape
    blocks: int

    def decode(self, rows: int, context: int) -> Launched:
        """Starts a step of one token for each of `rows` sequences, the last of `context` positions; ids come from the device."""
        return self._launch([1] * rows, [context - 1] * rows, known=False)

    def prefill(self, tokens: int) -> Launched:
        """Starts a step of the first `tokens` tokens of one sequence."""
        return self._launch([tokens], [0], known=True)

    def _launch(self, counts: list[int], starts: list[int], *, known: bool) -> Launched:
        inputs = step_of(counts, starts, self.blocks, len(self.shape.groups), known=known)
        columns = {name: np.full(len(counts), 1.0 if name == "top_p" else 0.0) for name in COLUMNS}
        sampled = Sampled(np.arange(len(counts), dtype=np.int32), np.ones(len(counts), np.bool_), columns)
        return self.runner.launch(inputs, sampled)


def shaped(
    facts: ModelFacts,
    device: Device,
    *,
    dtype: str = "bf16",
    kv_dtype: str = "bf16",
    rows: int = 256,
    context: int = 1024,
    tokens: int = 8192,
    invariant: bool = False,
) -> Shaped:
    """A runner of the model's shape with room for `rows` sequences of `context` positions and steps of `tokens` tokens; it is warm.

    dtype  bf16, fp16, f32, or fp8: matrices as e4m3 but for the head's
    """
    numbers = DTYPES["bf16" if dtype == "fp8" else dtype]
    oplist, weights = random_weights(facts, record(facts)["step"], device, numbers, fp8=dtype == "fp8")
    groups = kv_groups(facts)
    positions = max(context, tokens)
    blocks = -(-positions // BLOCK_TOKENS)
    pages = len(groups) * max(rows * -(-context // BLOCK_TOKENS), blocks)
    shape = KVShape(groups, BLOCK_TOKENS, pages, b"")
    runner = CudaRunner(
        oplist, weights, shape, device, numbers,
        tokens=tokens, rows=rows, positions=positions, vocab=facts.tokens, kv_heads=facts.kv_heads, invariant=invariant,
    )  # fmt: skip
    runner.attach(allocate_device_kv(shape, facts.kv_heads, facts.head_dim, kv_dtype, device.torch))
    runner.dry()
    runner.warm_up(lambda stage, part: None)
    return Shaped(runner, shape, pages // len(groups))


def step_of(counts: list[int], starts: list[int], pages: int, groups: int, *, known: bool) -> StepInputs:
    """A step of rows with so many tokens from such positions, whose tables divide `pages` pages of each group evenly, in order."""
    lengths = np.add(starts, counts)
    width = -(-int(lengths.max()) // BLOCK_TOKENS)
    if width * len(counts) > pages:
        raise ValueError(f"{len(counts)} rows of {int(lengths.max())} positions need {width * len(counts)} pages a group, not {pages}")
    cu_q = np.cumsum([0, *counts]).astype(np.int32)
    row = np.repeat(np.arange(len(counts), dtype=np.int32), counts)
    at = np.arange(cu_q[-1]) + (np.array(starts) - cu_q[:-1])[row]
    first = 1 + np.arange(len(counts) * width, dtype=np.int32).reshape(len(counts), width)
    tables = tuple(first + group * pages for group in range(groups))
    return StepInputs(
        ids=np.full(cu_q[-1], 1 if known else -1, np.int32),
        positions=at.astype(np.int32)[None],
        row_of_token=row,
        cu_q=cu_q,
        kv_len=lengths.astype(np.int32),
        tables=tables,
        slots=tuple(table[row, at // BLOCK_TOKENS] * np.int64(BLOCK_TOKENS) + at % BLOCK_TOKENS for table in tables),
        select=cu_q[1:] - 1,
    )
