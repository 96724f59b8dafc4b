"""An executor whose device does nothing: what is left of a step is the host's work, on any machine.

Owns the stand-in for graphs. Everything else is what serves: rows, packing, the copies, reading back.
"""

from collections.abc import Sequence

from ridgeline.compute.cuda.backend import CudaBackend
from ridgeline.compute.cuda.buckets import Bucket
from ridgeline.compute.cuda.cache import allocate_device_kv
from ridgeline.compute.cuda.device import DTYPES, copy_alone, interpreted
from ridgeline.compute.cuda.graphs import Graphs
from ridgeline.compute.cuda.load import random_weights
from ridgeline.compute.cuda.plan import Call
from ridgeline.compute.cuda.runner import CudaRunner
from ridgeline.compute.load.record import record
from ridgeline.compute.runtime.executor import StepExecutor
from ridgeline.core.plan import KVShape
from ridgeline.engine.executor import ExecutorInfo
from ridgeline.facts.model import ModelFacts
from ridgeline.planning.memory import kv_groups


class NullGraphs(Graphs):
    """Replays nothing: every row samples the id 0."""

    def run(self, bucket: Bucket, body: Sequence[Call], tail: Sequence[Call]) -> None:
        """Starts nothing."""


def null_executor(facts: ModelFacts, *, rows: int, tokens: int, positions: int, block_tokens: int, depth: int) -> StepExecutor:
    """For `rows` sequences of `positions` positions each, steps of `tokens` tokens, `depth` in flight; the model should be tiny."""
    copy_alone()
    device = interpreted(1 << 30)
    oplist, weights = random_weights(facts, record(facts)["step"], device, DTYPES["f32"])
    groups = kv_groups(facts)
    shape = KVShape(groups, block_tokens, rows * len(groups) * -(-positions // block_tokens), b"")
    sizes = {"tokens": tokens, "rows": rows, "positions": positions, "vocab": facts.tokens, "kv_heads": facts.kv_heads}
    runner = CudaRunner(oplist, weights, shape, device, DTYPES["f32"], **sizes, depth=depth, graphs=NullGraphs(None))
    runner.ids.out[1].fill_(1)  # all finite
    cache = allocate_device_kv(shape, facts.kv_heads, facts.head_dim, "f32", device.torch)
    runner.attach(cache)
    info = ExecutorInfo(shape, facts.tokens, positions, rows, "nothing", weights.nbytes, cache.pool.nbytes)
    return StepExecutor(info, (), CudaBackend(runner, cache, rows=rows))
