"""Deployments: a model, devices, a layout over them, formats and a workload; and the memory they take.

Owns the memory of a deployment. Block arithmetic is that of `memory.py`, with which the engine allocates.
"""

from dataclasses import dataclass
from functools import cached_property

from ridgeline.facts.hardware.devices import Device
from ridgeline.planning.memory import block_bytes, groups_of, longest_sequence, sequence_pages
from ridgeline.planning.parallel import kv_heads_per_device
from ridgeline.planning.shape import KV_BITS, WEIGHT_FORMATS, ModelShape

ACTIVATION_BYTES = 2
"""Activations are 16 bits wide."""

MAX_SEQUENCES = 1 << 20
"""More sequences than this are not counted."""


@dataclass(frozen=True, slots=True)
class Workload:
    """An average request: tokens in and out, the share of prompt tokens that the cache has, and peak over mean arrivals."""

    prompt: int
    output: int
    reused: float = 0.0
    burst: float = 1.0


@dataclass(frozen=True, slots=True)
class Layout:
    """Devices of one copy of the model: every matrix cut by `tensor`, layers by `pipeline`, routed experts by `expert` as well.

    With `expert` > 1 attention is copied, each copy serving its share of the sequences. `replicas` are independent copies of all that.
    """

    tensor: int = 1
    pipeline: int = 1
    expert: int = 1
    replicas: int = 1

    @property
    def ranks(self) -> int:
        """Devices of one replica."""
        return self.tensor * self.pipeline * self.expert

    @property
    def devices(self) -> int:
        """Devices in all."""
        return self.ranks * self.replicas


@dataclass(frozen=True)
class Deployment:
    """One question to the planner.

    dtype         weight format, None: as the file stores them      kv_dtype   key of `KV_BITS`
    context       tokens of a sequence at most, prompt and output    users      sequences at once
    utilisation   share of a device's memory that may be used        chunk      tokens of a step at most
    shared        tokens at the start of every sequence that are stored once
    """

    shape: ModelShape
    device: Device
    layout: Layout
    dtype: str | None
    kv_dtype: str
    context: int
    users: int
    workload: Workload
    utilisation: float = 0.90
    chunk: int = 2048
    block_tokens: int = 16
    shared: int = 0

    @property
    def compute_dtype(self) -> str:
        """Data type of the matrix products."""
        return WEIGHT_FORMATS[self.dtype or self.shape.dtype].compute

    @property
    def kv_bits(self) -> int:
        """Bits of a cached element."""
        return KV_BITS[self.kv_dtype]

    @cached_property
    def memory(self) -> "Memory":
        """The memory that this takes."""
        return memory_of(self)


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes of one replica over all its ranks, and what they hold. Sequences count over all replicas.

    overhead      driver, context, framework                        reserve    what utilisation leaves untouched
    kv_token      K and V of one token in all layers                kv_sequence  pages of one sequence of `context` tokens
    state         what a sequence keeps beside its pages, in recurrent layers
    kv_budget     what is left for KV; negative where weights do not fit
    shortfall     bytes that are missing for the users asked for, 0 where they fit
    """

    total: int
    weights: int
    activations: int
    untiled_activations: int
    overhead: int
    reserve: int
    kv_token: int
    kv_sequence: int
    state: int
    kv_budget: int
    max_sequences: int
    max_context: int
    shortfall: int

    @property
    def fits(self) -> bool:
        """True where weights, activations, overhead, reserve and every user's KV fit."""
        return self.shortfall == 0


def weight_classes(deployment: Deployment) -> dict[str, float]:
    """Bytes of the weights by class, one copy."""
    return deployment.shape.class_bytes(deployment.dtype)


def rank_weights(deployment: Deployment) -> float:
    """Bytes of weights on one device."""
    layout, classes = deployment.layout, weight_classes(deployment)
    rest = sum(classes.values()) - classes["experts"]
    return (rest + classes["experts"] / layout.expert) / layout.tensor / layout.pipeline


def kv_share(deployment: Deployment) -> float:
    """Share of a sequence's KV that one device of its tensor and pipeline ranks holds. A latent is copied, not cut."""
    shape, layout = deployment.shape, deployment.layout
    heads = 1.0 if shape.attention == "MLA" else kv_heads_per_device(shape.kv_heads, layout.tensor) / shape.kv_heads
    return heads / layout.pipeline


def attention_score_bytes(heads: int, tokens: int, element_bytes: float) -> float:
    """Scores of one layer where the whole matrix is stored: heads · tokens² · bytes; × layers where all are kept.

    32 heads at 4,096 tokens in 16 bits: 1 GiB per layer. Notes on inference, part 3, "Activation Memory".
    """
    return heads * tokens * tokens * element_bytes


def tiled_score_bytes(heads: int, tokens: int, element_bytes: float) -> float:
    """Running maximum and sum per row, all that tiled attention keeps: O(heads · tokens).

    Notes on inference, part 3, "Activation Memory" (FlashAttention).
    """
    return 2 * heads * tokens * element_bytes


def activation_bytes(tokens: int, hidden: int, ffn: int, queries: int, element_bytes: float) -> float:
    """Working memory of one layer in a step of `tokens` tokens; layers run one after the other and reuse it.

    Residual and normed input (2 · hidden), queries and attention output (2 · queries), gate and up (2 · ffn).
    The O(B · P · d_ff) term of Notes on inference, part 3, "Activation Memory".
    """
    return tokens * (2 * hidden + 2 * queries + 2 * ffn) * element_bytes


def rank_activations(deployment: Deployment, tiled: bool = True) -> float:
    """Bytes of working memory on one device: one layer at a time, attention in tiles or with its scores stored, and logits."""
    shape, tokens = deployment.shape, min(deployment.chunk, deployment.context)
    layer = activation_bytes(tokens, shape.hidden, shape.ffn, shape.heads * shape.head_dim, ACTIVATION_BYTES)
    scores = (
        tiled_score_bytes(shape.heads, tokens, 4) if tiled else attention_score_bytes(shape.heads, deployment.context, ACTIVATION_BYTES)
    )
    logits = min(deployment.users, tokens) * shape.vocab * 4
    return (layer + scores + logits) / deployment.layout.tensor


def rank_kv_budget(deployment: Deployment) -> float:
    """Bytes that one device has left for KV; negative where the weights do not fit."""
    taken = rank_weights(deployment) + rank_activations(deployment) + deployment.device.overhead_bytes
    return deployment.device.memory_bytes * deployment.utilisation - taken


def rank_state(deployment: Deployment) -> float:
    """Bytes of a sequence's recurrent state on one device; heads and channels are cut as attention's are."""
    return deployment.shape.state_bytes / deployment.layout.tensor / deployment.layout.pipeline


def page_of(deployment: Deployment) -> int:
    """Bytes of one page over all ranks; 0 where no layer has keys and values."""
    shape = deployment.shape
    groups = groups_of(shape.layer_kinds, shape.window)
    return block_bytes(len(groups[0].layers), deployment.block_tokens, shape.kv_elements, deployment.kv_bits) if groups else 0


def kv_pages(deployment: Deployment, sequences: int = 0) -> int:
    """Pages of one copy of the model (of one expert rank where experts are cut) beside the states of `sequences`; 0 where nothing fits."""
    left, page = rank_kv_budget(deployment) - sequences * rank_state(deployment), page_of(deployment)
    return int(max(0.0, left) / (page * kv_share(deployment))) if page else 0


def memory_of(deployment: Deployment) -> Memory:
    """Memory of a deployment: device memory · utilisation − weights − activations − overhead is the KV cache's."""
    shape, device, layout = deployment.shape, deployment.device, deployment.layout
    groups, size = groups_of(shape.layer_kinds, shape.window), deployment.block_tokens
    page, state = page_of(deployment), rank_state(deployment)
    usable = device.memory_bytes * deployment.utilisation
    activations = rank_activations(deployment)
    budget = rank_kv_budget(deployment)
    sequences = layout.expert * layout.replicas

    def pages_of(tokens: int) -> int:
        return sequence_pages(groups, size, tokens, deployment.chunk)

    shared = deployment.shared // size * sum(group.window == 0 for group in groups)
    each = pages_of(deployment.context) - shared
    per_copy = -(-deployment.users // sequences)
    left = max(0, kv_pages(deployment, per_copy) - shared)
    states_fit = per_copy * state <= budget
    held = page * kv_share(deployment)
    missing = (shared + each * per_copy) * held + per_copy * state - budget
    return Memory(
        total=device.memory_bytes * layout.ranks,
        weights=round(rank_weights(deployment) * layout.ranks),
        activations=round(activations * layout.ranks),
        untiled_activations=round(rank_activations(deployment, tiled=False) * layout.ranks),
        overhead=device.overhead_bytes * layout.ranks,
        reserve=round((device.memory_bytes - usable) * layout.ranks),
        kv_token=block_bytes(shape.kv_layers, 1, shape.kv_elements, deployment.kv_bits),
        kv_sequence=pages_of(deployment.context) * page,
        state=shape.state_bytes,
        kv_budget=round(budget * layout.ranks),
        max_sequences=min(MAX_SEQUENCES, int(max(0.0, budget - shared * held) / (each * held + state)) * sequences),
        max_context=longest_sequence(groups, size, left // per_copy + shared, deployment.chunk, shape.context if states_fit else 0),
        shortfall=max(0, round(missing * layout.ranks)),
    )


def automatic_layout(shape: ModelShape, count: int) -> Layout:
    """Tensor parallel within a node of eight, for the lowest latency; pipeline stages beyond it; replicas once every layer is a stage.

    Notes on inference, part 4, section 8. The tensor width is the greatest divisor of `count` up to 8 that divides the query heads.
    """
    tensor = max(width for width in range(1, min(count, 8) + 1) if count % width == 0 and shape.heads % width == 0)
    rest = count // tensor
    pipeline = max(stages for stages in range(1, min(rest, shape.layers) + 1) if rest % stages == 0)
    return Layout(tensor=tensor, pipeline=pipeline, replicas=rest // pipeline)
