"""Levers: changes of a deployment and their effects on sequences, throughput, ITL and cost, one at a time.

A lever is a function from a deployment to a changed one, or None where it does not apply.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import ceil
from typing import Literal

from ridgeline.planning.deployment import Deployment, drafting
from ridgeline.planning.formats import KV_BITS, class_bytes
from ridgeline.planning.heads import PlannedHeads
from ridgeline.planning.objectives import Objective
from ridgeline.planning.parallel import kv_transfer_seconds
from ridgeline.planning.speed import (
    best_batch,
    decode_work,
    mean_context,
    million_token_cost,
    mixed_itl,
    prefill_seconds,
    prefill_work,
    with_layout,
)
from ridgeline.planning.step import RowGroup, add_prefill, link_seconds, pass_seconds, step_work

ASSUMED_REUSE = 0.5
"""Assumed share of a prompt in the prefix cache: the usual ratio of chats. Notes on inference, part 5, section 13."""

MAX_DRAFT_TOKENS = 8
DRAFT_TOKENS, ACCEPTANCE = 4, 0.7
"""Drafted tokens per step (Notes on inference, part 5, section 14: 4 or 5) and their assumed acceptance."""


@dataclass(frozen=True, slots=True)
class Effect:
    """Figures of a deployment: most sequences, batch, output tokens per second, ITL in seconds, dollars per million tokens, devices."""

    max_sequences: int
    batch: int
    tokens_per_second: float
    itl: float
    cost: float | None
    devices: int


@dataclass(frozen=True, slots=True)
class Lever:
    """A lever, the figures with it, and a note."""

    name: str
    effect: Effect
    note: str


Change = Callable[[Deployment], tuple[Deployment, str] | None]


def effect_of(deployment: Deployment, objective: Objective) -> Effect:
    """Figures at the batch that objective, knee and memory allow."""
    batch, _ = best_batch(deployment, objective)
    return _effect(deployment, batch, mixed_itl(deployment, batch) if batch else 0.0)


def _effect(deployment: Deployment, batch: int, itl: float) -> Effect:
    devices, price, most = deployment.layout.devices, deployment.device.price, deployment.memory.max_sequences
    if batch == 0:
        return Effect(most, 0, 0.0, 0.0, None, devices)
    cost = million_token_cost(price.dollars_per_hour * devices, batch / itl) if price else None
    return Effect(most, batch, batch / itl, itl, cost, devices)


def levers(deployment: Deployment, objective: Objective) -> list[Lever]:
    """All levers that apply, each alone, sorted by tokens per second and device."""
    found = [no_batching(deployment)]
    for name, change in CHANGES.items():
        changed = change(deployment)
        if changed is not None:
            found.append(Lever(name, effect_of(changed[0], objective), changed[1]))
    found.append(speculation(deployment, objective))
    return sorted(found, key=lambda lever: -lever.effect.tokens_per_second / lever.effect.devices)


def no_batching(deployment: Deployment) -> Lever:
    """Figures of one sequence at a time."""
    effect = _effect(deployment, 1, mixed_itl(deployment, 1))
    return Lever("no batching", effect, "one sequence at a time reads all weights for each token")


def speculation(deployment: Deployment, objective: Objective) -> Lever:
    """Verification of drafts in place of decode steps: those of the draft model or of heads, or n-gram drafts, which cost nothing.

    `DRAFT_TOKENS` drafts of the assumed acceptance; where one is given, as many as pay best with it.
    """
    batch = max(1, best_batch(deployment, objective)[0])
    accepted = ACCEPTANCE if deployment.acceptance is None else deployment.acceptance

    def speedup(drafts: int, sequences: int) -> float:
        return speculation_speedup(accepted_tokens(accepted, drafts), _verification(deployment, sequences, drafts, accepted)[0])

    most = MAX_DRAFT_TOKENS
    if isinstance(deployment.draft, PlannedHeads):
        most = deployment.draft.most or most
    depths = (DRAFT_TOKENS, DRAFT_TOKENS)
    if deployment.acceptance is not None:
        alone, full = (max(range(most + 1), key=lambda drafts: speedup(drafts, each)) for each in (1, batch))
        depths = alone, full
    said = [f"× {speedup(drafts, each):.2f} for {each} ({drafts} drafts)" for drafts, each in zip(depths, (1, batch), strict=True)]
    helps = "" if depths[0] or depths[1] else "; it does not help"
    note = f"{accepted:.0%} of drafts right: decode {said[0]}, {said[1]}, without prefill{helps}"
    tokens = accepted_tokens(accepted, depths[1])
    return Lever("speculation", _effect(deployment, batch, _verification(deployment, batch, depths[1], accepted)[1] / tokens), note)


def _verification(deployment: Deployment, batch: int, drafts: int, accepted: float) -> tuple[float, float]:
    """(cost of drafting and of one verification in decode steps, its seconds in the steady state) at `batch` sequences."""
    running = ceil(batch / deployment.layout.replicas / deployment.layout.pipeline)
    work = step_work(deployment, [RowGroup(mean_context(deployment), drafts + 1, running, sampled=drafts + 1)])
    plain = pass_seconds(deployment, decode_work(deployment, running))
    share = running * accepted_tokens(accepted, drafts) / deployment.workload.output
    steady = pass_seconds(deployment, add_prefill(work, prefill_work(deployment), share))
    alone = drafting(deployment)
    draft = 0.0 if alone is None else pass_seconds(alone, decode_work(alone, running))
    return speculation_passes(drafts, draft, pass_seconds(deployment, work), plain), steady + drafts * draft


def eight_bit_weights(deployment: Deployment) -> tuple[Deployment, str] | None:
    """fp8 weights where the device supports them, else int8."""
    dtype = "fp8" if "fp8" in deployment.device.flops_per_second else "int8"
    return _weights(deployment, dtype, "half of the bytes of 16-bit weights, and faster products where the device has them")


def four_bit_weights(deployment: Deployment) -> tuple[Deployment, str] | None:
    """Weight-only quantisation to 4 bits (AWQ)."""
    return _weights(deployment, "awq", "a quarter of the bytes; products stay 16 bits wide; check quality")


def _weights(deployment: Deployment, dtype: str, note: str) -> tuple[Deployment, str] | None:
    if sum(class_bytes(deployment.model, dtype).values()) >= sum(class_bytes(deployment.model, deployment.dtype).values()):
        return None
    return replace(deployment, dtype=dtype), f"{dtype}: {note}"


def eight_bit_kv(deployment: Deployment) -> tuple[Deployment, str] | None:
    """KV cache in 8 bits."""
    if KV_BITS[deployment.kv_dtype] <= 8:
        return None
    dtype = "fp8" if "fp8" in deployment.device.flops_per_second else "int8"
    return replace(deployment, kv_dtype=dtype), f"{dtype}: half of the bytes per token, so up to twice the sequences; check quality"


def double_tensor_ranks(deployment: Deployment) -> tuple[Deployment, str] | None:
    """Twice the tensor ranks."""
    wider = with_layout(deployment, tensor=2 * deployment.layout.tensor)
    if deployment.model.heads % wider.layout.tensor:
        return None
    spent = link_seconds(wider, 1) * 1e3
    return wider, f"{wider.layout.devices} devices; two all-reduces per layer take {spent:.2f} ms of every step at batch 1"


def double_stages(deployment: Deployment) -> tuple[Deployment, str] | None:
    """Twice the pipeline stages."""
    longer = with_layout(deployment, pipeline=2 * deployment.layout.pipeline)
    if longer.layout.pipeline > deployment.model.layers:
        return None
    return longer, f"{longer.layout.devices} devices; little communication, no lower latency for one sequence"


def double_expert_ranks(deployment: Deployment) -> tuple[Deployment, str] | None:
    """Twice the expert ranks."""
    wider = with_layout(deployment, expert=2 * deployment.layout.expert)
    if deployment.model.experts is None or deployment.model.experts.routed % wider.layout.expert:
        return None
    return wider, f"{wider.layout.devices} devices; experts are split, attention is copied, tokens are sent to their experts"


def double_replicas(deployment: Deployment) -> tuple[Deployment, str] | None:
    """Twice the replicas behind a load balancer."""
    more = with_layout(deployment, replicas=2 * deployment.layout.replicas)
    return more, f"{more.layout.devices} devices; twice the users at the same latency"


def prefix_reuse(deployment: Deployment) -> tuple[Deployment, str] | None:
    """A common prefix of half of every prompt in the prefix cache."""
    load = deployment.workload
    if load.reused >= ASSUMED_REUSE or load.prompt < 2 * deployment.block_tokens:
        return None
    changed = replace(deployment, workload=replace(load, reused=ASSUMED_REUSE), shared=int(load.prompt * ASSUMED_REUSE))
    before, after = prefill_seconds(deployment), prefill_seconds(changed)
    ideal = reused_prefill_speedup(ASSUMED_REUSE)
    return changed, f"{ASSUMED_REUSE:.0%} of each prompt shared: prefill {before * 1e3:.0f} → {after * 1e3:.0f} ms (× {ideal:.0f} at best)"


CHANGES: dict[str, Change] = {
    "8-bit weights": eight_bit_weights,
    "4-bit weights": four_bit_weights,
    "8-bit KV": eight_bit_kv,
    "prefix reuse": prefix_reuse,
    "tensor parallel × 2": double_tensor_ranks,
    "pipeline × 2": double_stages,
    "expert parallel × 2": double_expert_ranks,
    "replicas × 2": double_replicas,
}


@dataclass(frozen=True, slots=True)
class PhaseSplit:
    """Disaggregation of prefill and decode: seconds of interference and of KV transfer, and the better layout."""

    interference: float
    transfer: float
    layout: str


def phase_split(deployment: Deployment, batch: int) -> PhaseSplit:
    """Compares the time that prefill adds to steps of `batch` decoding sequences with sending the prompt's KV and state over the link."""
    load, running = deployment.workload, max(1, ceil(batch / deployment.layout.replicas / deployment.layout.pipeline))
    chunk = min(deployment.chunk, load.prompt)
    decode = RowGroup(mean_context(deployment), 1, running)
    alone = pass_seconds(deployment, step_work(deployment, [decode]))
    mixed = pass_seconds(deployment, step_work(deployment, [decode, RowGroup(load.prompt - chunk, chunk)]))
    stalled = interference_seconds(mixed, alone) * load.prompt / chunk
    carried = deployment.memory.kv_token * load.prompt + deployment.memory.state
    moved = kv_transfer_seconds(float(carried), deployment.device.link_bytes_per_second)
    return PhaseSplit(stalled, moved, phase_layout(stalled, moved))


def accepted_tokens(acceptance: float, proposed: int) -> float:
    """Expected tokens per verification, including the target's own: (1 − αᵏ⁺¹) / (1 − α); k + 1 where α = 1.

    Leviathan, Kalman & Matias 2023, equation 1; the technique: Notes on inference, part 4, section 6.
    """
    if acceptance >= 1.0:
        return proposed + 1.0
    return (1.0 - acceptance ** (proposed + 1)) / (1.0 - acceptance)


def speculation_speedup(tokens: float, passes: float) -> float:
    """Speed-up of `tokens` tokens in the time of `passes` plain decode steps: 4 in about 1.5 is 2.7 times.

    Notes on inference, part 5, section 14.
    """
    return tokens / passes


def speculation_passes(proposed: int, draft_step_seconds: float, verify_seconds: float, decode_step_seconds: float) -> float:
    """Cost of one round in plain decode steps: k steps of the draft model and one verification of k + 1 tokens per sequence.

    A memory-bound verification costs about one decode step, a compute-bound one k + 1. So speculation helps at low concurrency
    and hurts at high: Notes on inference, part 5, section 14.
    """
    return (proposed * draft_step_seconds + verify_seconds) / decode_step_seconds


def reused_prefill_speedup(hit: float) -> float:
    """Speed-up of prefill at a prefix hit ratio `hit` < 1, if time is linear in tokens: 1 / (1 − hit).

    Ratios of 0.5 … 0.9 give the 2 … 10 times of Notes on inference, part 3, "Inference Optimization Hierarchy".
    """
    return 1.0 / (1.0 - hit)


def interference_seconds(mixed_step: float, decode_step: float) -> float:
    """Seconds that prefill in the same step adds to the ITL."""
    return max(0.0, mixed_step - decode_step)


def phase_layout(interference: float, kv_transfer: float) -> Literal["separate", "colocated"]:
    """ "separate" pools where the KV transfer is shorter than the interference: 20 < 95 ms yes, 20 < 8 ms no.

    Notes on inference, part 2, `choose_layout`.
    """
    return "separate" if kv_transfer < interference else "colocated"
