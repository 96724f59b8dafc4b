"""Cost of a step: operations and bytes as a function of its rows and the model's shape, and the seconds that devices need for them."""

from collections.abc import Iterable
from dataclasses import dataclass
from math import ceil

from ridgeline.core.step_time import StepSeconds
from ridgeline.facts.model import ModelFacts
from ridgeline.planning.deployment import ACTIVATION_BYTES, Deployment, kv_share, screen_bytes, weight_classes
from ridgeline.planning.formats import token_kv_bits
from ridgeline.planning.memory import adapter_bytes
from ridgeline.planning.parallel import expert_parallel_seconds, experts_touched, pipeline_seconds, tensor_parallel_seconds


@dataclass(frozen=True, slots=True)
class RowGroup:
    """`sequences` equal rows of a step: each computes `count` tokens from position `start` on and samples at `sampled` of them."""

    start: int
    count: int
    sequences: float = 1.0
    sampled: int = 1


@dataclass(frozen=True, slots=True)
class StepWork:
    """Operations and bytes of a step at TP=1. `tokens` pass through the layers, `sampled` positions through the head, whose
    operations are `head_flops`."""

    tokens: float = 0.0
    sampled: float = 0.0
    linear_flops: float = 0.0
    attention_flops: float = 0.0
    weight_bytes: float = 0.0
    expert_bytes: float = 0.0
    kv_bytes: float = 0.0
    state_flops: float = 0.0
    state_bytes: float = 0.0
    head_flops: float = 0.0

    @property
    def flops(self) -> float:
        """All operations."""
        return self.linear_flops + self.head_flops + self.attention_flops + self.state_flops

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
    """Shares of a device's peaks that products, reads, attention and the head reach, and how much of the shorter the longer hides: see
    `Device`."""

    compute: float
    bandwidth: float
    attention: float
    overlap: float
    head: float


IDEAL = Efficiency(1.0, 1.0, 1.0, 1.0, 1.0)
"""Efficiency for floors."""


def reached(deployment: Deployment) -> Efficiency:
    """Efficiency for estimates: what steps reach on its device."""
    device = deployment.device
    head = device.compute_share if device.head_share is None else device.head_share
    return Efficiency(device.compute_share, device.bandwidth_share, device.attention_share, device.overlap, head)


def overlapped(compute: float, memory: float, overlap: float) -> float:
    """Seconds of a part that computes and reads for so long: the longer, and what it does not hide of the shorter."""
    return max(compute, memory) + (1.0 - overlap) * min(compute, memory)


STATE_FLOPS = 6
"""Operations per token and element of a recurrent state: decay (1), update by an outer product (2), reading out (2), and the delta rule's
correction (2) in half of the families. Dao & Gu 2024; Yang et al. 2024."""

FITTED_ROWS = 16
"""Rows of the step from which `step_seconds` fits the cost per row."""

MLA_EXPANSION_TOKENS = 64
"""Tokens per row from which MLA expands its latent into heads."""


def attended_pairs(start: int, count: int, window: int) -> float:
    """Pairs of query and key positions in causal attention of `count` tokens from `start` on; `window` 0: full attention.

    Each token attends to itself and to preceding positions, at most `window` in all.
    """
    if not window:
        return count * start + count * (count + 1) / 2
    rising = max(0, min(count, window - start - 1))
    return rising * start + rising * (rising + 1) / 2 + (count - rising) * window


def step_work(deployment: Deployment, rows: Iterable[RowGroup]) -> StepWork:
    """Operations and bytes of a step. Weights are read once, K and V once per row, adapters once where all rows have another; states are
    read and written once per row."""
    model, tokens, sampled, attention, cached, sequences = deployment.model, 0.0, 0.0, 0.0, 0.0, 0.0
    kinds = {"full": (model.layer_kinds.count("full"), 0), "window": (model.layer_kinds.count("window"), model.window)}
    for row in rows:
        tokens += row.count * row.sequences
        sampled += row.sampled * row.sequences
        sequences += row.sequences
        for layers, window in kinds.values():
            width = model.widths.decode if row.count < MLA_EXPANSION_TOKENS else model.widths.prefill
            attention += layers * row.sequences * attended_pairs(row.start, row.count, window) * width
            end = row.start + row.count
            cached += layers * row.sequences * (min(end, window + row.count - 1) if window else end)
    classes = weight_classes(deployment)
    touched = 0.0
    if model.experts:
        touched = experts_touched(model.experts.routed, model.experts.active, tokens) / model.experts.routed
    active = layer_parameters(model) * tokens - skipped_parameters(deployment) * (tokens - sampled)
    adapters = min(deployment.adapters, sequences) * adapter_bytes(model, deployment.adapter_rank)
    head, state = "head" if model.parameters["head"] else "embedding", model.state
    return StepWork(
        tokens=tokens,
        sampled=sampled,
        linear_flops=2.0 * active,
        head_flops=2.0 * model.vocab * model.hidden * sampled,
        attention_flops=2.0 * attention,
        weight_bytes=classes["attention"] + classes["ffn"] + classes["norms"] + (screen_bytes(deployment) or classes[head]) + adapters,
        expert_bytes=classes["experts"] * touched,
        kv_bytes=cached * token_kv_bits(model, deployment.kv_dtype) / 8,
        state_flops=STATE_FLOPS * tokens * state.layers * state.recurrent if state else 0.0,
        state_bytes=2.0 * sequences * model.state_bytes,
    )


def layer_parameters(model: ModelFacts) -> float:
    """Parameters of the layers that are used per token."""
    active = model.experts.active / model.experts.routed if model.experts else 0.0
    return model.parameters["attention"] + model.parameters["ffn"] + model.parameters["experts"] * active


def skipped_parameters(deployment: Deployment) -> float:
    """Parameters that positions which do not sample pass by on a CPU: the last layer's feed-forward (early selection)."""
    model = deployment.model
    return 0.0 if deployment.device.is_gpu or model.experts else model.parameters["ffn"] / model.layers


def add_prefill(decode: StepWork, prompt: StepWork, share: float) -> StepWork:
    """Cost of a decode step that also prefills `share` of a prompt; weights are read once."""
    return StepWork(
        tokens=decode.tokens + share * prompt.tokens,
        sampled=decode.sampled + share * prompt.sampled,
        linear_flops=decode.linear_flops + share * prompt.linear_flops,
        head_flops=decode.head_flops + share * prompt.head_flops,
        attention_flops=decode.attention_flops + share * prompt.attention_flops,
        weight_bytes=decode.weight_bytes,
        expert_bytes=max(decode.expert_bytes, min(1.0, share) * prompt.expert_bytes),
        kv_bytes=decode.kv_bytes + share * prompt.kv_bytes,
        state_flops=decode.state_flops + share * prompt.state_flops,
        state_bytes=decode.state_bytes + share * prompt.state_bytes,
    )


def part_seconds(deployment: Deployment, work: StepWork, efficiency: Efficiency) -> tuple[tuple[float, float], tuple[float, float]]:
    """(compute, memory) seconds of the matrix products, and of attention and recurrences, of one pass through all stages of a replica."""
    device, layout, kind = deployment.device, deployment.layout, deployment.compute_dtype
    ranks = layout.tensor * layout.expert
    bandwidth = device.bytes_per_second * efficiency.bandwidth
    # Stages run one after the other, so a pass reads the bytes of all stages at the bandwidth of one stage's ranks.
    cache = work.kv_bytes * kv_share(deployment) * layout.pipeline / layout.expert + work.state_bytes / ranks
    weights = work.weight_bytes / layout.tensor + work.expert_bytes / ranks
    products = (work.linear_flops / efficiency.compute + work.head_flops / efficiency.head) / ranks / device.flops(kind)
    scores = (work.attention_flops + work.state_flops) / ranks / device.flops(deployment.attention_dtype) / efficiency.attention
    return (products, weights / bandwidth), (scores, cache / bandwidth)


def resource_seconds(deployment: Deployment, work: StepWork, efficiency: Efficiency) -> tuple[float, float]:
    """Total (compute, memory) seconds of a pass; with `IDEAL` the longer one is a floor."""
    products, attention = part_seconds(deployment, work, efficiency)
    return products[0] + attention[0], products[1] + attention[1]


def link_seconds(deployment: Deployment, tokens: float) -> float:
    """Communication seconds of a pass of `tokens` tokens: all-reduces of tensor ranks, all-to-alls of expert ranks, hops between stages."""
    model, layout, link, hop = deployment.model, deployment.layout, deployment.device.link_bytes_per_second, deployment.device.hop_seconds
    count = ceil(tokens)
    spent = tensor_parallel_seconds(ceil(count / layout.expert), model.hidden, model.layers, ACTIVATION_BYTES, layout.tensor, link, hop)
    spent += pipeline_seconds(count, model.hidden, ACTIVATION_BYTES, layout.pipeline, link, hop)
    if model.experts:
        mixture = model.experts
        spent += expert_parallel_seconds(count, model.hidden, mixture.layers, mixture.active, ACTIVATION_BYTES, layout.expert, link, hop)
    return spent


def pass_seconds(deployment: Deployment, work: StepWork) -> float:
    """Estimated seconds of one pass of `work` through one replica: matrix products and attention, each by its bottleneck and what that
    does not hide, and links.

    The two alternate layer by layer, so the compute of one does not overlap the memory reads of the other.
    """
    products, attention = part_seconds(deployment, work, reached(deployment))
    overlap = deployment.device.overlap
    return overlapped(*products, overlap) + overlapped(*attention, overlap) + link_seconds(deployment, work.tokens)


def step_seconds(deployment: Deployment, tokens: int) -> StepSeconds:
    """Linear fit of the seconds of a step to three estimates: one row, `FITTED_ROWS` rows, and `tokens` prompt tokens. Longer contexts take
    longer. Memory-bound steps have some tokens at no cost; the fit is the better the larger `tokens` is."""
    one, many, chunk = (
        pass_seconds(deployment, step_work(deployment, [rows]))
        for rows in (RowGroup(0, 1), RowGroup(0, 1, FITTED_ROWS), RowGroup(0, tokens))
    )
    return StepSeconds.fit(one, many, FITTED_ROWS, chunk, tokens)
