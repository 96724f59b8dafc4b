"""Cost of a step: operations and bytes as a function of its rows and the model's shape, and the time that devices need for them."""

from collections.abc import Iterable
from dataclasses import dataclass
from math import ceil

from ridgeline.core.pace import StepSeconds
from ridgeline.planning.deployment import ACTIVATION_BYTES, Deployment, kv_share, weight_classes
from ridgeline.planning.parallel import expert_parallel_seconds, experts_touched, pipeline_seconds, tensor_parallel_seconds
from ridgeline.planning.shape import KV_BITS, ModelShape


@dataclass(frozen=True, slots=True)
class Rows:
    """`sequences` alike rows of a step: each computes `count` tokens from position `start` on and samples at `sampled` of them."""

    start: int
    count: int
    sequences: float = 1.0
    sampled: int = 1


@dataclass(frozen=True, slots=True)
class Work:
    """Operations and bytes of a step, uncut. `tokens` pass through the layers, `sampled` positions through the head."""

    tokens: float = 0.0
    sampled: float = 0.0
    linear_flops: float = 0.0
    attention_flops: float = 0.0
    weight_bytes: float = 0.0
    expert_bytes: float = 0.0
    kv_bytes: float = 0.0
    state_flops: float = 0.0
    state_bytes: float = 0.0

    @property
    def flops(self) -> float:
        """All operations."""
        return self.linear_flops + self.attention_flops + self.state_flops

    @property
    def moved_bytes(self) -> float:
        """All bytes read, and the states written."""
        return self.weight_bytes + self.expert_bytes + self.kv_bytes + self.state_bytes

    @property
    def intensity(self) -> float:
        """FLOP per byte."""
        return self.flops / self.moved_bytes


@dataclass(frozen=True, slots=True)
class Efficiency:
    """Shares of a device's peaks that are reached."""

    compute: float
    bandwidth: float


IDEAL = Efficiency(1.0, 1.0)
"""Shares for floors: nothing can be faster."""

TYPICAL = Efficiency(compute=0.5, bandwidth=0.75)
"""Shares for estimates: sixteen published figures of a tuned engine (8B, fp8, H100 and H200) are met within 10 %: docs/physics.md."""

STATE_FLOPS = 6
"""Operations per token and element of a recurrent state: decay (1), update by an outer product (2), reading out (2), and the delta rule's
correction (2) in half of the families. Dao & Gu 2024; Yang et al. 2024."""

ROWS = 16
"""Rows of the step that tells what a row costs."""

EXPANDED_FROM = 64
"""Tokens of a row from which expanding MLA's latent into heads pays."""


def looked_at(start: int, count: int, window: int) -> float:
    """Pairs of a token and a position that it sees, for `count` tokens from `start` on; `window` 0 sees all before.

    Each token sees itself and what precedes it, at most `window` positions in all.
    """
    if not window:
        return count * start + count * (count + 1) / 2
    rising = max(0, min(count, window - start - 1))
    return rising * start + rising * (rising + 1) / 2 + (count - rising) * window


def step_work(deployment: Deployment, rows: Iterable[Rows]) -> Work:
    """Operations and bytes of a step with these rows. Weights are read once, K and V once per row, states read and written once per row."""
    shape, tokens, sampled, attention, cached, sequences = deployment.shape, 0.0, 0.0, 0.0, 0.0, 0.0
    kinds = {"full": (shape.layer_kinds.count("full"), 0), "window": (shape.layer_kinds.count("window"), shape.window)}
    for row in rows:
        tokens += row.count * row.sequences
        sampled += row.sampled * row.sequences
        sequences += row.sequences
        for layers, window in kinds.values():
            width = shape.decode_width if row.count < EXPANDED_FROM else shape.prefill_width
            attention += layers * row.sequences * looked_at(row.start, row.count, window) * width
            end = row.start + row.count
            cached += layers * row.sequences * (min(end, window + row.count - 1) if window else end)
    classes = weight_classes(deployment)
    touched = 0.0
    if shape.experts:
        touched = experts_touched(shape.experts.routed, shape.experts.active, tokens) / shape.experts.routed
    head, state = "head" if shape.parameters["head"] else "embedding", shape.state
    return Work(
        tokens=tokens,
        sampled=sampled,
        linear_flops=2.0 * (layer_parameters(shape) * tokens + shape.vocab * shape.hidden * sampled),
        attention_flops=2.0 * attention,
        weight_bytes=classes["attention"] + classes["ffn"] + classes["norms"] + classes[head],
        expert_bytes=classes["experts"] * touched,
        kv_bytes=cached * shape.kv_elements * KV_BITS[deployment.kv_dtype] / 8,
        state_flops=STATE_FLOPS * tokens * state.layers * state.recurrent if state else 0.0,
        state_bytes=2.0 * sequences * shape.state_bytes,
    )


def layer_parameters(shape: ModelShape) -> float:
    """Parameters of the layers that every token is multiplied with."""
    active = shape.experts.active / shape.experts.routed if shape.experts else 0.0
    return shape.parameters["attention"] + shape.parameters["ffn"] + shape.parameters["experts"] * active


def with_prefill(decode: Work, prompt: Work, share: float) -> Work:
    """A decode step that also computes `share` of a prompt: the weights are read anyway."""
    return Work(
        tokens=decode.tokens + share * prompt.tokens,
        sampled=decode.sampled + share * prompt.sampled,
        linear_flops=decode.linear_flops + share * prompt.linear_flops,
        attention_flops=decode.attention_flops + share * prompt.attention_flops,
        weight_bytes=decode.weight_bytes,
        expert_bytes=max(decode.expert_bytes, min(1.0, share) * prompt.expert_bytes),
        kv_bytes=decode.kv_bytes + share * prompt.kv_bytes,
        state_flops=decode.state_flops + share * prompt.state_flops,
        state_bytes=decode.state_bytes + share * prompt.state_bytes,
    )


def part_seconds(deployment: Deployment, work: Work, efficiency: Efficiency) -> tuple[tuple[float, float], tuple[float, float]]:
    """(compute, memory) seconds of the matrix products and of attention with recurrences, for a pass through all stages of one replica."""
    device, layout, kind = deployment.device, deployment.layout, deployment.compute_dtype
    ranks = layout.tensor * layout.expert
    bandwidth = device.bytes_per_second * efficiency.bandwidth
    # Stages follow each other, so a pass sees the bandwidth of one stage's ranks over the bytes of all stages.
    cache = work.kv_bytes * kv_share(deployment) * layout.pipeline / layout.expert + work.state_bytes / ranks
    weights = work.weight_bytes / layout.tensor + work.expert_bytes / ranks
    products = work.linear_flops / ranks / device.flops(kind) / efficiency.compute
    scores = (work.attention_flops + work.state_flops) / ranks / device.flops("f32" if kind == "f32" else "f16") / efficiency.compute
    return (products, weights / bandwidth), (scores, cache / bandwidth)


def resource_seconds(deployment: Deployment, work: Work, efficiency: Efficiency) -> tuple[float, float]:
    """(compute, memory) seconds of a pass in all; the longer is a floor of its time where `efficiency` is ideal."""
    products, attention = part_seconds(deployment, work, efficiency)
    return products[0] + attention[0], products[1] + attention[1]


def link_seconds(deployment: Deployment, tokens: float) -> float:
    """Communication of a pass of `tokens` tokens: all-reduces of tensor ranks, all-to-alls of expert ranks, hops between stages."""
    shape, layout, link, hop = deployment.shape, deployment.layout, deployment.device.link_bytes_per_second, deployment.device.hop_seconds
    count = ceil(tokens)
    spent = tensor_parallel_seconds(ceil(count / layout.expert), shape.hidden, shape.layers, ACTIVATION_BYTES, layout.tensor, link, hop)
    spent += pipeline_seconds(count, shape.hidden, ACTIVATION_BYTES, layout.pipeline, link, hop)
    if shape.experts:
        mixture = shape.experts
        spent += expert_parallel_seconds(count, shape.hidden, mixture.layers, mixture.active, ACTIVATION_BYTES, layout.expert, link, hop)
    return spent


def pass_seconds(deployment: Deployment, work: Work) -> float:
    """Estimated time of one pass of `work` through one replica: matrix products, then attention, each by its slower half, and links.

    The two alternate layer by layer, so that the compute of one does not hide behind the memory of the other.
    """
    products, attention = part_seconds(deployment, work, TYPICAL)
    return max(products) + max(attention) + link_seconds(deployment, work.tokens)


def step_seconds(deployment: Deployment, tokens: int) -> StepSeconds:
    """Seconds of a step as a line through three estimates: one row, `ROWS` rows, and `tokens` tokens of a prompt. Longer contexts take
    longer; a step that waits for memory has tokens for nothing, which a line tells the better the more tokens it goes through."""
    one, many, chunk = (pass_seconds(deployment, step_work(deployment, [rows])) for rows in (Rows(0, 1), Rows(0, 1, ROWS), Rows(0, tokens)))
    return StepSeconds.fitted(one, many, ROWS, chunk, tokens)
