"""An executor whose device computes nothing: measures the host's work for a step, on any machine.

Everything but the graphs is what serves: rows, packing, copies, reading back.
"""

from collections.abc import Sequence

from ridgeline.compute.cuda.backend import CudaBackend
from ridgeline.compute.cuda.buckets import Bucket
from ridgeline.compute.cuda.cache import allocate_device_kv
from ridgeline.compute.cuda.device import DTYPES, interpreted, use_one_copy_thread
from ridgeline.compute.cuda.graphs import Graphs, Launch
from ridgeline.compute.cuda.load import random_weights
from ridgeline.compute.cuda.runner import CudaRunner
from ridgeline.compute.load.record import record
from ridgeline.compute.runtime.executor import StepExecutor
from ridgeline.core.plan import KVShape
from ridgeline.engine.executor import ExecutorInfo
from ridgeline.facts.model import ModelFacts
from ridgeline.planning.memory import kv_groups


class NullGraphs(Graphs):
    """Graphs that launch nothing: every row samples the id 0."""

    def run(self, bucket: Bucket, body: Sequence[Launch], tail: Sequence[Launch]) -> None:
        """Launches nothing."""


def null_executor(facts: ModelFacts, *, rows: int, tokens: int, positions: int, block_tokens: int, depth: int) -> StepExecutor:
    """An executor for `rows` sequences of `positions` positions, steps of `tokens` tokens, `depth` in flight; the model should be tiny."""
    use_one_copy_thread()
    device = interpreted(1 << 30)
    oplist, weights = random_weights(facts, record(facts)["step"], device, DTYPES["f32"])
    groups = kv_groups(facts)
    shape = KVShape(groups, block_tokens, rows * len(groups) * -(-positions // block_tokens), b"")
    runner = CudaRunner(
        oplist, weights, shape, device, DTYPES["f32"],
        tokens=tokens, rows=rows, positions=positions, vocab=facts.tokens, cached=facts.cached, depth=depth, graphs=NullGraphs(None),
    )  # fmt: skip
    runner.ids.results[1].fill_(1)  # all finite
    cache = allocate_device_kv(shape, facts.cached, "f32", device.torch)
    runner.attach(cache)
    info = ExecutorInfo(shape, facts.tokens, positions, rows, "nothing", weights.nbytes, cache.pool.nbytes)
    return StepExecutor(info, (), CudaBackend(runner, cache, rows=rows))
