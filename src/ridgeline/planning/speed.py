"""Speed of a deployment: latency floors, the batch curve and its knee, the largest batch that meets an objective."""

from dataclasses import dataclass, replace
from math import ceil
from typing import Literal

from ridgeline.planning.deployment import Deployment
from ridgeline.planning.objectives import Objective
from ridgeline.planning.parallel import pipeline_bubble
from ridgeline.planning.step import IDEAL, RowGroup, StepWork, add_prefill, pass_seconds, reached, resource_seconds, step_work

MAX_BATCH = 4_096
"""Largest batch that is considered."""

Limit = Literal["objective", "memory", "knee", "users"]

Bottleneck = Literal["compute", "bandwidth", "capacity"]
"""The three scarce resources (Notes on inference, part 3, "The Three Resources")."""


@dataclass(frozen=True, slots=True)
class BatchPoint:
    """One row of the batch table: `batch` sequences at once over all replicas.

    itl                ITL in seconds of decode steps            mixed_itl  ITL in seconds with the workload's prefill in the same steps
    tokens_per_second  output tokens per second with prefill     decode_tokens_per_second  without prefill
    utilisation        share of the compute peak                 cost       dollars per million output tokens, None without a price
    bound_by           the bottleneck
    """

    batch: int
    itl: float
    mixed_itl: float
    tokens_per_second: float
    decode_tokens_per_second: float
    utilisation: float
    kv_bytes: float
    bound_by: Bottleneck
    cost: float | None


def mean_context(deployment: Deployment) -> int:
    """Mean tokens in a sequence's KV cache: the prompt and half of the output."""
    return deployment.workload.prompt + deployment.workload.output // 2


def decode_work(deployment: Deployment, sequences: float, context: int | None = None) -> StepWork:
    """Cost of a decode step of `sequences` sequences of `context` tokens (default: the workload's mean)."""
    start = mean_context(deployment) if context is None else context - 1
    return step_work(deployment, [RowGroup(start, 1, sequences)])


def prefill_work(deployment: Deployment) -> StepWork:
    """Cost of prefilling one prompt, without what the prefix cache has."""
    load = deployment.workload
    reused = min(load.prompt - 1, round(load.prompt * load.reused))
    return step_work(deployment, [RowGroup(reused, load.prompt - reused)])


def mixed_work(deployment: Deployment, sequences: float) -> StepWork:
    """Cost of a step in the steady state: one token per sequence, and 1 / output of a prompt prefilled for each."""
    load = deployment.workload
    return add_prefill(decode_work(deployment, sequences), prefill_work(deployment), sequences / load.output)


def decode_floor(deployment: Deployment, sequences: int = 1) -> float:
    """Floor of the ITL in seconds of `sequences` sequences of `context` tokens on one replica, without communication."""
    return max(resource_seconds(deployment, decode_work(deployment, sequences, deployment.context), IDEAL))


def prefill_floor(deployment: Deployment) -> float:
    """Floor of the prefill of one prompt in seconds: at the peaks of all devices, in one chunk, without communication."""
    return max(resource_seconds(deployment, prefill_work(deployment), IDEAL)) / deployment.layout.pipeline


def prefill_seconds(deployment: Deployment) -> float:
    """Estimated seconds to prefill one prompt on an idle replica in chunks; pipeline stages work on different chunks.

    Every chunk reads the weights again, so short chunks make a prefill memory-bound.
    """
    work, stages = prefill_work(deployment), deployment.layout.pipeline
    chunks = max(1, ceil(work.tokens / deployment.chunk))
    read = replace(work, weight_bytes=work.weight_bytes * chunks, expert_bytes=work.expert_bytes * chunks)
    return pass_seconds(deployment, read) / stages / (1.0 - pipeline_bubble(stages, chunks))


def decode_itl(deployment: Deployment, batch: int) -> float:
    """Estimated ITL in seconds at `batch` sequences over all replicas; each pipeline stage has its own part of the batch."""
    return pass_seconds(deployment, decode_work(deployment, _in_flight(deployment, batch)))


def mixed_itl(deployment: Deployment, batch: int) -> float:
    """Estimated ITL in seconds at `batch` sequences in the steady state, with the workload's prefill in the same steps."""
    return pass_seconds(deployment, mixed_work(deployment, _in_flight(deployment, batch)))


def _in_flight(deployment: Deployment, batch: int) -> int:
    """Sequences per pass: the batch is divided by replicas and pipeline stages."""
    return ceil(batch / deployment.layout.replicas / deployment.layout.pipeline)


def batch_point(deployment: Deployment, batch: int) -> BatchPoint:
    """Row of the batch table for `batch` sequences."""
    work = decode_work(deployment, _in_flight(deployment, batch))
    compute, memory = resource_seconds(deployment, work, reached(deployment))
    itl, mixed = decode_itl(deployment, batch), mixed_itl(deployment, batch)
    price = deployment.device.price
    return BatchPoint(
        batch=batch,
        itl=itl,
        mixed_itl=mixed,
        tokens_per_second=batch / mixed,
        decode_tokens_per_second=batch / itl,
        utilisation=resource_seconds(deployment, work, IDEAL)[0] / itl,
        kv_bytes=decode_work(deployment, batch).kv_bytes,
        bound_by="compute" if compute > memory else "bandwidth",
        cost=million_token_cost(price.dollars_per_hour * deployment.layout.devices, batch / mixed) if price else None,
    )


def candidate_batches(most: int) -> list[int]:
    """Batches to consider up to `most`: all up to 16, then in steps of about an eighth, and `most` itself."""
    most = min(most, MAX_BATCH)
    best, batch = [], 1
    while batch < most:
        best.append(batch)
        batch += max(1, batch // 8) if batch >= 16 else 1
    return [*best, most] if most else []


def knee(deployment: Deployment, most: int) -> int:
    """Batch up to `most` with the greatest throughput / latency in the steady state (Kleinrock's power, 1979); 0 where `most` is 0.

    Above the knee latency grows faster than throughput.
    """
    return max(candidate_batches(most), key=lambda batch: batch / mixed_itl(deployment, batch) ** 2, default=0)


def meets_objective(deployment: Deployment, batch: int, objective: Objective) -> bool:
    """True where the estimates at `batch` meet the objective. TTFT is one step, then the prefill."""
    itl = mixed_itl(deployment, batch)
    return objective.is_met(itl + prefill_seconds(deployment), itl)


def best_batch(deployment: Deployment, objective: Objective) -> tuple[int, Limit]:
    """(recommended batch, its limit): the largest that meets the objective, else the knee; at most what memory holds.

    0 where no batch fits or none meets the objective.
    """
    most = deployment.memory.max_sequences
    if objective == Objective():
        best = knee(deployment, MAX_BATCH)
        return (most, "memory") if most < best else (best, "knee")
    meeting = [batch for batch in candidate_batches(MAX_BATCH) if meets_objective(deployment, batch, objective)]
    best = max(meeting, default=0)
    return (most, "memory") if most < best else (best, "objective")


def ridge(deployment: Deployment) -> float:
    """Ridge point of the device in FLOP per byte, for the data type of the matrix products."""
    device = deployment.device
    return ridge_intensity(device.flops(deployment.compute_dtype), device.bytes_per_second)


def bottleneck(deployment: Deployment, batch: int) -> Bottleneck:
    """Bottleneck at `batch`: "capacity" where memory holds fewer sequences than the knee, else the slower of compute and bandwidth."""
    most = deployment.memory.max_sequences
    if not deployment.memory.fits or most < knee(deployment, MAX_BATCH):
        return "capacity"
    return batch_point(deployment, max(1, batch)).bound_by


def with_layout(deployment: Deployment, **changes: int) -> Deployment:
    """`deployment` with other numbers of ranks or replicas."""
    return replace(deployment, layout=replace(deployment.layout, **changes))


def ridge_intensity(flops_per_second: float, bytes_per_second: float) -> float:
    """Ridge point: FLOP per byte at which compute and bandwidth take equally long; below it a kernel is memory-bound.

    A100: 312e12 / 2.0e12 = 156; H100: 989e12 / 3.35e12 = 295. Notes on inference, part 3, "The Roofline Perspective".
    """
    return flops_per_second / bytes_per_second


def million_token_cost(price_per_hour: float, tokens_per_second: float) -> float:
    """Dollars per million tokens on rented devices. $16/h: 286 tok/s is $15.5, 7,200 tok/s $0.62.

    Notes on inference, part 3, "The Cost Equation"; part 1, section 7: $3/h at 1,000 tok/s is $0.83.
    """
    return price_per_hour / 3600.0 / tokens_per_second * 1e6
