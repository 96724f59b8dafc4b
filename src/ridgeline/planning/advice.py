"""Recommendations: flags with reasons, and how to scale for the shape of the traffic."""

from dataclasses import dataclass
from math import ceil

from ridgeline.planning.deployment import Deployment, kv_share, rank_state
from ridgeline.planning.objectives import Objective
from ridgeline.planning.speed import Limit, mean_context, mixed_itl
from ridgeline.planning.step import RowGroup, pass_seconds, step_work

LONG_PROMPT, MANY_USERS, BURST = 4_000, 32, 3.0
"""Tokens, sequences and peak over mean arrivals from which traffic counts as long, many users, bursty."""

CHUNKS = (8192, 4096, 2048, 1024, 512, 256)
"""Token budgets of a step. Notes on inference, part 3: 256 … 1,024; part 4, section 10: 8,192."""


@dataclass(frozen=True, slots=True)
class Flag:
    """A flag of `ridgeline serve` or vLLM (the names are the same), its value and the reason."""

    name: str
    value: str
    reason: str


@dataclass(frozen=True, slots=True)
class Scaling:
    """A shape of traffic, its symptom under growing load, and the remedy."""

    shape: str
    symptom: str
    action: str


TRAFFIC = {
    "short": Scaling(
        "many short prompts, many users", "TTFT fine, ITL rises, KV cache full", "more replicas, or a smaller --max-model-len"
    ),
    "long": Scaling(
        "few long prompts", "TTFT and ITL high, KV cache full fast", "devices with more memory, or disaggregated prefill and decode"
    ),
    "bursty": Scaling("bursty over an idle base", "p99 of TTFT spikes, p50 fine", "more replicas, scaled on queue depth, and a queue"),
    "shared": Scaling(
        "the same system prompt in all requests", "TTFT high on a cold start only", "prefix caching; keep the prompt identical"
    ),
    "mixed": Scaling("short and long contexts together", "KV cache usage is unpredictable", "a strict max_tokens for every request"),
}
"""Notes on inference, part 5, "Scaling Strategy by Traffic Shape", all five rows."""


def scaling(deployment: Deployment) -> list[Scaling]:
    """Rows of `TRAFFIC` that apply to the workload; "mixed" where none does."""
    load = deployment.workload
    applies = {
        "shared": load.reused > 0,
        "bursty": load.burst >= BURST,
        "long": load.prompt >= LONG_PROMPT,
        "short": load.prompt < LONG_PROMPT and deployment.users >= MANY_USERS,
    }
    return [TRAFFIC[name] for name, applied in applies.items() if applied] or [TRAFFIC["mixed"]]


def flags(deployment: Deployment, objective: Objective, batch: int, limit: Limit) -> list[Flag]:
    """Flags for one replica that runs `batch` sequences over all replicas; `limit` is the limit of the batch."""
    layout, memory = deployment.layout, deployment.memory
    each = max(1, batch // layout.replicas)
    found = [Flag("--max-model-len", str(deployment.context), "the planned context; longer sequences leave memory for fewer of them")]
    found.append(Flag("--max-num-seqs", str(each), _batch_reason(deployment, batch, limit)))
    found.append(_chunk_flag(deployment, objective, each))
    sequence = memory.kv_sequence * kv_share(deployment) + rank_state(deployment)
    need, budget = ceil(each / layout.expert * sequence), memory.kv_budget // layout.ranks
    held = f"{each} sequences of {deployment.context} tokens" if need < budget else "what weights, overhead and reserve leave"
    found.append(Flag("--kv-cache-memory-bytes", str(min(need, budget)), f"{held}, on each device"))
    if layout.tensor > 1:
        found.append(Flag("--tensor-parallel-size", str(layout.tensor), "every device reads its share of each matrix: lowest latency"))
    if layout.expert > 1:
        found.append(Flag("--enable-expert-parallel", "true", "a mixture's experts on different devices: each reads its share of them"))
        found.append(Flag("--data-parallel-size", str(layout.expert), "attention is copied, each copy serves its share of the sequences"))
    if layout.pipeline > 1:
        found.append(Flag("--pipeline-parallel-size", str(layout.pipeline), "more devices than one node's tensor ranks"))
    return found


def _batch_reason(deployment: Deployment, batch: int, limit: Limit) -> str:
    gap = f"{mixed_itl(deployment, batch) * 1e3:.1f} ms between tokens" if batch else "no batch is possible"
    reasons = {
        "objective": f"the most that meets the objective: {gap}",
        "memory": f"all that memory holds: {gap}",
        "knee": f"the knee, beyond which latency grows faster than throughput: {gap}",
        "users": f"the users asked for: {gap}",
    }
    return reasons[limit]


def _chunk_flag(deployment: Deployment, objective: Objective, batch: int) -> Flag:
    """Largest step that keeps the ITL within the objective; without one, the planned chunk."""
    name = "--max-num-batched-tokens"
    if objective.itl is None:
        return Flag(name, str(deployment.chunk), "long prompts are prefilled in chunks of this size, in the same steps as decode")
    start = deployment.workload.prompt // 2
    for chunk in CHUNKS:
        rows = [RowGroup(mean_context(deployment), 1, batch), RowGroup(start, max(1, chunk - batch))]
        spent = pass_seconds(deployment, step_work(deployment, rows))
        if spent <= objective.itl:
            return Flag(name, str(chunk), f"a full step takes {spent * 1e3:.0f} ms, within the {objective.itl * 1e3:.0f} ms between tokens")
    return Flag(name, str(CHUNKS[-1]), f"even the smallest step exceeds {objective.itl * 1e3:.0f} ms while a prompt is prefilled")
