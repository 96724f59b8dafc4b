"""Speed of a deployment: floors under latency, the batch curve and its knee, the batch that meets an objective."""

from dataclasses import dataclass, replace
from math import ceil
from typing import Literal

from ridgeline.planning.deployment import Deployment
from ridgeline.planning.objectives import Objective
from ridgeline.planning.parallel import pipeline_bubble
from ridgeline.planning.step import IDEAL, TYPICAL, Rows, Work, pass_seconds, resource_seconds, step_work, with_prefill

LARGEST_BATCH = 4_096
"""Batches beyond this are not looked at."""

Limit = Literal["objective", "memory", "knee", "users"]

Bound = Literal["compute", "bandwidth", "capacity"]
"""The three scarce resources (Notes on inference, part 3, "The Three Resources")."""


@dataclass(frozen=True, slots=True)
class BatchPoint:
    """One row of the batch table: `batch` sequences at once over all replicas.

    itl              seconds between tokens while nothing is prefilled       mixed_itl  with the workload's prompts in the same steps
    tokens_per_second  output tokens, prompts included in the time            decode_tokens_per_second  without prompts
    utilisation      share of the compute peak                               cost       dollars per million tokens out, None without price
    """

    batch: int
    itl: float
    mixed_itl: float
    tokens_per_second: float
    decode_tokens_per_second: float
    utilisation: float
    kv_bytes: float
    bound_by: Bound
    cost: float | None


def mean_context(deployment: Deployment) -> int:
    """Tokens that an average decode step looks at: the prompt and half of the output."""
    return deployment.workload.prompt + deployment.workload.output // 2


def decode_work(deployment: Deployment, sequences: float, context: int | None = None) -> Work:
    """A step in which `sequences` sequences get one token each, at `context` tokens (the workload's mean where not given)."""
    start = mean_context(deployment) if context is None else context - 1
    return step_work(deployment, [Rows(start, 1, sequences)])


def prefill_work(deployment: Deployment) -> Work:
    """One prompt, less what the prefix cache has."""
    load = deployment.workload
    reused = min(load.prompt - 1, round(load.prompt * load.reused))
    return step_work(deployment, [Rows(reused, load.prompt - reused)])


def mixed_work(deployment: Deployment, sequences: float) -> Work:
    """A step of the steady state: each sequence gets a token, and with every token 1 / output of a prompt is computed."""
    load = deployment.workload
    return with_prefill(decode_work(deployment, sequences), prefill_work(deployment), sequences / load.output)


def decode_floor(deployment: Deployment, sequences: int = 1) -> float:
    """Least seconds between tokens of `sequences` sequences of `context` tokens each on one replica, without communication."""
    return max(resource_seconds(deployment, decode_work(deployment, sequences, deployment.context), IDEAL))


def prefill_floor(deployment: Deployment) -> float:
    """Least seconds to compute one prompt: all its operations at the peaks of all devices, in one piece, without communication."""
    return max(resource_seconds(deployment, prefill_work(deployment), IDEAL)) / deployment.layout.pipeline


def prefill_seconds(deployment: Deployment) -> float:
    """Estimated seconds to compute one prompt on an idle replica, in chunks; stages of a pipeline work on different chunks.

    Every chunk reads the weights again, so short chunks turn a compute-bound prompt into one that waits for memory.
    """
    work, stages = prefill_work(deployment), deployment.layout.pipeline
    chunks = max(1, ceil(work.tokens / deployment.chunk))
    read = replace(work, weight_bytes=work.weight_bytes * chunks, expert_bytes=work.expert_bytes * chunks)
    return pass_seconds(deployment, read) / stages / (1.0 - pipeline_bubble(stages, chunks))


def decode_itl(deployment: Deployment, batch: int) -> float:
    """Estimated seconds between tokens at `batch` sequences over all replicas; each stage works on its own part of the batch."""
    return pass_seconds(deployment, decode_work(deployment, _in_flight(deployment, batch)))


def mixed_itl(deployment: Deployment, batch: int) -> float:
    """Estimated seconds between tokens at `batch` sequences in the steady state, the workload's prompts in the same steps."""
    return pass_seconds(deployment, mixed_work(deployment, _in_flight(deployment, batch)))


def _in_flight(deployment: Deployment, batch: int) -> int:
    """Sequences of one pass: the batch is spread over replicas and, within one, over the stages of its pipeline."""
    return ceil(batch / deployment.layout.replicas / deployment.layout.pipeline)


def batch_point(deployment: Deployment, batch: int) -> BatchPoint:
    """The row of the batch table for `batch` sequences."""
    work = decode_work(deployment, _in_flight(deployment, batch))
    compute, memory = resource_seconds(deployment, work, TYPICAL)
    itl, mixed = decode_itl(deployment, batch), mixed_itl(deployment, batch)
    price = deployment.device.price
    return BatchPoint(
        batch=batch,
        itl=itl,
        mixed_itl=mixed,
        tokens_per_second=batch / mixed,
        decode_tokens_per_second=batch / itl,
        utilisation=compute * TYPICAL.compute / itl,
        kv_bytes=decode_work(deployment, batch).kv_bytes,
        bound_by="compute" if compute > memory else "bandwidth",
        cost=million_token_cost(price.dollars_per_hour * deployment.layout.devices, batch / mixed) if price else None,
    )


def batches(most: int) -> list[int]:
    """Batches worth looking at: all up to 16, then steps of about an eighth, and `most` itself."""
    most = min(most, LARGEST_BATCH)
    found, batch = [], 1
    while batch < most:
        found.append(batch)
        batch += max(1, batch // 8) if batch >= 16 else 1
    return [*found, most] if most else []


def knee(deployment: Deployment, most: int) -> int:
    """The batch, at most `most`, at which throughput / latency is greatest in the steady state; 0 where `most` is 0.

    Below it another user costs the others little; beyond it latency grows faster than throughput (Kleinrock's power, 1979).
    """
    return max(batches(most), key=lambda batch: batch / mixed_itl(deployment, batch) ** 2, default=0)


def meets(deployment: Deployment, batch: int, objective: Objective) -> bool:
    """True where the estimates at `batch` meet the objective: the first token waits for the step under way, then for its own prompt."""
    itl = mixed_itl(deployment, batch)
    return objective.met(itl + prefill_seconds(deployment), itl)


def best_batch(deployment: Deployment, objective: Objective) -> tuple[int, Limit]:
    """The batch to run at and what sets it: the greatest that meets the objective, else the knee; memory may allow less.

    0 where no batch fits or none meets the objective.
    """
    most = deployment.memory.max_sequences
    if objective == Objective():
        found = knee(deployment, LARGEST_BATCH)
        return (most, "memory") if most < found else (found, "knee")
    able = [batch for batch in batches(LARGEST_BATCH) if meets(deployment, batch, objective)]
    found = max(able, default=0)
    return (most, "memory") if most < found else (found, "objective")


def ridge(deployment: Deployment) -> float:
    """FLOP per byte at which the device's compute and bandwidth balance, in the data type of the products."""
    device = deployment.device
    return ridge_intensity(device.flops(deployment.compute_dtype), device.bytes_per_second)


def binding(deployment: Deployment, batch: int) -> Bound:
    """The bottleneck: capacity where sequences run out of memory before batching stops paying, else the slower half of a step."""
    most = deployment.memory.max_sequences
    if not deployment.memory.fits or most < knee(deployment, LARGEST_BATCH):
        return "capacity"
    return batch_point(deployment, max(1, batch)).bound_by


def with_layout(deployment: Deployment, **changes: int) -> Deployment:
    """The same deployment with other numbers of ranks or replicas."""
    return replace(deployment, layout=replace(deployment.layout, **changes))


def ridge_intensity(flops_per_second: float, bytes_per_second: float) -> float:
    """FLOP per byte at which compute and bandwidth take equally long; below it a kernel waits for memory.

    A100: 312e12 / 2.0e12 = 156; H100: 989e12 / 3.35e12 = 295. Notes on inference, part 3, "The Roofline Perspective".
    """
    return flops_per_second / bytes_per_second


def million_token_cost(price_per_hour: float, tokens_per_second: float) -> float:
    """Dollars per million tokens on rented devices. $16/h: 286 tok/s is $15.5, 7,200 tok/s $0.62.

    Notes on inference, part 3, "The Cost Equation"; part 1, section 7: $3/h at 1,000 tok/s is $0.83.
    """
    return price_per_hour / 3600.0 / tokens_per_second * 1e6
