"""A whole model of random weights, stepped by hand: seconds of a decoding batch, of a prompt, and of the host.

Owns the model, its cache and the steps. The cache holds random numbers: zeros would take less power, and clocks would be higher.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from time import perf_counter
from typing import Any, Final

import numpy as np
import torch

from ridgeline.compute.cuda.adapters import DeviceAdapterSlots
from ridgeline.compute.cuda.bench.timing import TimedGraphs, percentile, replayed
from ridgeline.compute.cuda.cache import DTYPES as CACHE_DTYPES
from ridgeline.compute.cuda.cache import allocate_device_kv
from ridgeline.compute.cuda.device import DTYPES, Device
from ridgeline.compute.cuda.load import random_weights
from ridgeline.compute.cuda.runner import CudaRunner, LaunchedStep
from ridgeline.compute.cuda.step import COLUMN_DTYPES, SAMPLING_COLUMNS, DeviceSampling
from ridgeline.compute.dummy import dummy_step
from ridgeline.compute.graph import StepInputs
from ridgeline.compute.load.record import record
from ridgeline.compute.lowering.adapters import changed_matrices
from ridgeline.compute.ops.lora import Pair
from ridgeline.core.plan import KVShape
from ridgeline.facts.model import ModelFacts
from ridgeline.planning.memory import kv_groups

BLOCK_TOKENS: Final = 16
MAX_CODE: Final = 0x40
"""e4m3 codes below it are numbers below 2."""


@dataclass(frozen=True, slots=True)
class Types:
    """dtype: as `--dtype`; kv_dtype: of the cache; invariant: `--batch-invariant`."""

    dtype: str
    kv_dtype: str
    invariant: bool = False


class RandomModel:
    """A model whose cache has room for `rows` sequences of `positions` each; a step has at most `tokens` tokens.

    adapters  that its rows take turns at, 0: none; rank: of each, on all matrices of layers
    drafts    most that a row verifies in a step
    """

    def __init__(
        self, facts: ModelFacts, types: Types, device: Device, *, tokens: int, rows: int, positions: int, adapters: int = 0, rank: int = 16,
        drafts: int = 0,
    ) -> None:  # fmt: skip
        self.facts, self.device = facts, device
        dtype = DTYPES["bf16" if types.dtype == "fp8" else types.dtype]
        oplist, weights = random_weights(facts, record(facts)["step"], device, dtype, fp8=types.dtype == "fp8", adapters=adapters > 0)
        self.weights_bytes = weights.nbytes
        groups = kv_groups(facts)
        self._groups, self._blocks = len(groups), -(-positions // BLOCK_TOKENS)
        shape = KVShape(groups, BLOCK_TOKENS, rows * self._blocks * self._groups, b"")
        self._timed = TimedGraphs(device)
        slots = DeviceAdapterSlots(oplist, adapters, rank, dtype, device) if adapters else None
        self.runner = CudaRunner(
            oplist, weights, shape, device, dtype,
            tokens=tokens, rows=rows, positions=positions, vocab=facts.tokens, cached=facts.cached, invariant=types.invariant,
            graphs=self._timed, adapters=slots, drafts=drafts,
        )  # fmt: skip
        cache = allocate_device_kv(shape, facts.cached, types.kv_dtype, device.torch)
        _fill(cache.pool, types.kv_dtype)
        self.runner.attach(cache)
        self.runner.tables.write(range(rows), self._step([1] * rows, [self._blocks * BLOCK_TOKENS - 1] * rows).tables)
        if slots is not None:
            one = slots.pack(_random_pairs(changed_matrices(oplist), rank))
            for slot in range(adapters):
                slots.fill(slot, one)

    def decode(self, batch: int, context: int, steps: int, *, top_p: float | None = None) -> dict[str, float]:
        """`steps` steps of one token per row, two in flight, whose rows have about `context` positions. top_p: at temperature 1, or greedy.

        step_seconds    from one step's results to the next one's, mean
        device_seconds  of a step when the host is never late
        host_seconds    of the host's work for a step, median
        idle_seconds    between the kernels of two steps, median
        """
        first = max(0, context - 1 - steps // 2)
        made = [self._inputs([1] * batch, [first + step] * batch, top_p) for step in range(steps)]
        flights: deque[LaunchedStep] = deque()
        host, ended = [], []
        self._timed.begin()
        for inputs, sampling in made:
            began = perf_counter()
            flights.append(self.runner.launch(inputs, sampling))
            host.append(perf_counter() - began)
            if len(flights) == 2:
                self.runner.read(flights.popleft())
                ended.append(perf_counter())
        self.runner.read(flights.popleft())
        ended.append(perf_counter())
        _, idle = self._timed.end()
        warm = len(ended) // 4
        mean = (ended[-1] - ended[warm]) / (len(ended) - 1 - warm)
        return {
            "batch": batch, "context": context, "tokens_per_second": batch / mean, "step_seconds": mean,
            "device_seconds": replayed(self.device, self.runner.replay, max(2, steps // 4)),
            "host_seconds": median(host[warm:]), "host_p99_seconds": percentile(host[warm:], 0.99),
            "idle_seconds": median(idle[warm:]), "idle_p99_seconds": percentile(idle[warm:], 0.99),
        }  # fmt: skip

    def prefill(self, tokens: int, repeats: int) -> dict[str, float]:
        """One prompt without cached prefix, in one step: seconds from the first packing on the host to the first token on the host."""
        inputs, sampling = self._inputs([tokens], [0])
        found = []
        for _ in range(repeats + 1):  # kernels are compiled in the first
            began = perf_counter()
            self.runner.read(self.runner.launch(inputs, sampling))
            found.append(perf_counter() - began)
        device = replayed(self.device, self.runner.replay, repeats)
        return {
            "tokens": tokens, "seconds": median(found[1:]), "best_seconds": min(found[1:]), "first_seconds": found[0],
            "device_seconds": device, "tokens_per_second": tokens / median(found[1:]),
        }  # fmt: skip

    def _step(self, counts: Sequence[int], starts: Sequence[int]) -> StepInputs:
        return dummy_step(counts, starts=starts, groups=self._groups, block_tokens=BLOCK_TOKENS, row_blocks=self._blocks)

    def _inputs(self, counts: Sequence[int], starts: Sequence[int], top_p: float | None = None) -> tuple[StepInputs, DeviceSampling]:
        """Rows 0 … with so many tokens each, behind so many that the cache has. Every row has blocks of its own."""
        rows = len(counts)
        inputs = self._step(counts, starts)
        single = len(inputs.ids) == rows
        ids = np.full(rows, -1) if single else np.random.default_rng(0).integers(0, self.facts.tokens, len(inputs.ids))
        adapters = self.runner.adapters
        slots = None if adapters is None else inputs.row_of_token % np.int32(adapters.count)
        inputs = replace(inputs, ids=ids.astype(np.int32), adapter=slots)
        columns: dict[str, Any] = {name: np.zeros(rows, COLUMN_DTYPES[kind][0]) for name, kind in SAMPLING_COLUMNS.items()}
        columns["top_p"] += 1 if top_p is None else top_p
        columns["temperature"] += 0 if top_p is None else 1
        return inputs, DeviceSampling(np.arange(rows, dtype=np.int32), np.ones(rows, np.bool_), columns)


def _random_pairs(matrices: Mapping[str, tuple[int, int]], rank: int) -> dict[str, Pair]:
    """An adapter that changes every matrix [N, K] a little."""
    made = np.random.default_rng(0)
    drawn = {name: [made.standard_normal((rank, size), np.float32) for size in shape] for name, shape in matrices.items()}
    return {name: Pair("F32", a, b, 0.01) for name, (b, a) in drawn.items()}


def _fill(pool: torch.Tensor, kind: str) -> None:
    if kind == "fp8":
        pool.random_(0, MAX_CODE)
    elif kind == "int8":
        pool.view(torch.float32).normal_()  # its bytes are codes, and some of them scales
    else:
        pool.view(CACHE_DTYPES[kind]).normal_()
