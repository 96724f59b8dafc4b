"""Deployments (a model, devices, a layout over them, formats, a workload) and their memory.

Owns the memory of a deployment. Block arithmetic is that of `memory.py`, which the engine uses to allocate.
"""

from dataclasses import dataclass, replace
from functools import cached_property

from ridgeline.config.resolve import ADAPTER_SHARE
from ridgeline.facts.hardware.devices import Device
from ridgeline.facts.model import ModelFacts
from ridgeline.planning.formats import KV_BITS, WEIGHT_FORMATS, class_bytes, code_dtype, token_kv_bits
from ridgeline.planning.heads import PlannedHeads
from ridgeline.planning.memory import DRAFT_SHARE, adapter_bytes, groups_of, kv_bytes, longest_sequence, sequence_blocks
from ridgeline.planning.parallel import kv_heads_per_device

ACTIVATION_BYTES = 2
"""Activations are 16 bits wide."""

MAX_SEQUENCES = 1 << 20
"""Upper bound of reported sequences."""

MAX_DEVICES = 1_024

SCREENED_BITS, SCREEN_BITS = 8.5, 5.5
"""Bits per weight of the format whose heads are screened (Q8_0), and of the screen."""


@dataclass(frozen=True, slots=True)
class Workload:
    """An average request: prompt and output tokens, share of prompt tokens in the prefix cache, peak over mean arrival rate."""

    prompt: int
    output: int
    reused: float = 0.0
    burst: float = 1.0


@dataclass(frozen=True, slots=True)
class Layout:
    """Parallelism: ranks that split every matrix (`tensor`), the layers (`pipeline`) and the routed experts (`expert`).

    With `expert` > 1 every expert rank has a copy of attention and serves its share of the sequences. `replicas` are independent copies
    of the whole model.
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
    """A deployment to plan.

    dtype         weight format, None: as the file stores them      kv_dtype   key of `KV_BITS`
    context       most tokens per sequence, prompt and output        users      sequences at once
    utilisation   share of a device's memory that may be used        chunk      most tokens per step
    shared        tokens of a common prefix of all sequences, stored once
    draft         a draft model beside it, or heads that draft for it, a copy on each device; None: there is none
    acceptance    share of drafts that are right; None: an assumed one
    adapters      LoRA adapters that the sequences of a step may have, and `adapter_rank`, the largest rank; 0: none are taken
    expert_memory bytes for routed experts, where others are read from disk; 0: all are in memory
    """

    model: ModelFacts
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
    draft: ModelFacts | PlannedHeads | None = None
    acceptance: float | None = None
    adapters: int = 0
    adapter_rank: int = 64
    expert_memory: int = 0

    @property
    def compute_dtype(self) -> str:
        """Data type of the matrix products. A CPU multiplies codes by 8-bit activations, at the ceiling of the codes if it is known."""
        form = WEIGHT_FORMATS[self.dtype or self.model.dtype]
        codes = code_dtype(form.code_bits)
        if codes in self.device.flops_per_second:
            return codes
        on_codes = not self.device.is_gpu and form.layer_bits < 16 and "int8" in self.device.flops_per_second
        return "int8" if on_codes else form.compute

    @property
    def attention_dtype(self) -> str:
        """Data type at whose peak attention and recurrences count."""
        return "f32" if self.compute_dtype == "f32" else "f16"

    @property
    def kv_bits(self) -> int:
        """Bits of a cached element."""
        return KV_BITS[self.kv_dtype]

    @cached_property
    def memory(self) -> "Memory":
        """Memory of this deployment."""
        return memory_of(self)


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes of one replica over all its ranks; sequences over all replicas.

    overhead      driver, context, framework                        reserve      not used because of `utilisation`
    kv_token      K and V of one token in all layers                kv_sequence  blocks of one sequence of `context` tokens
    state         state of one sequence in recurrent layers
    draft         weights and cache of what drafts                  adapters     what is set aside for them
    kv_budget     left for the KV cache; negative where weights do not fit
    shortfall     bytes missing for all users, 0 where they fit
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
    draft: int = 0
    adapters: int = 0

    @property
    def fits(self) -> bool:
        """True where weights, activations, overhead, reserve and every user's KV fit."""
        return self.shortfall == 0


def weight_classes(deployment: Deployment) -> dict[str, float]:
    """Bytes of weights by class, of one copy of the model; on a CPU as its kernels read them."""
    return class_bytes(deployment.model, deployment.dtype, native=not deployment.device.is_gpu)


def screen_bytes(deployment: Deployment) -> float:
    """Bytes of the second, shorter form of the head that steps on a CPU read where it is Q8_0: 5 of 8 bits, the scales, and a bound per row
    (csrc/screen/bounds.cpp). 0 where there is none."""
    model, classes = deployment.model, weight_classes(deployment)
    head = "head" if model.parameters["head"] else "embedding"
    if deployment.device.is_gpu or 8 * classes[head] != SCREENED_BITS * model.parameters[head]:
        return 0.0
    return model.parameters[head] * SCREEN_BITS / 8 + 4 * model.vocab


def rank_weights(deployment: Deployment) -> float:
    """Bytes of weights on one device."""
    layout, classes = deployment.layout, weight_classes(deployment)
    rest = sum(classes.values()) - classes["experts"] + screen_bytes(deployment)
    experts = min(classes["experts"], deployment.expert_memory or classes["experts"])
    return (rest + experts / layout.expert) / layout.tensor / layout.pipeline


def kv_share(deployment: Deployment) -> float:
    """Share of a sequence's KV cache on one of its tensor and pipeline ranks. MLA's latent is copied, not split."""
    model, layout = deployment.model, deployment.layout
    heads = 1.0 if model.widths.latent else kv_heads_per_device(model.kv_heads, layout.tensor) / model.kv_heads
    return heads / layout.pipeline


def attention_score_bytes(heads: int, tokens: int, element_bytes: float) -> float:
    """Bytes of attention scores of one layer if the whole matrix is stored: heads · tokens² · bytes.

    32 heads at 4,096 tokens in 16 bits: 1 GiB per layer. Notes on inference, part 3, "Activation Memory".
    """
    return heads * tokens * tokens * element_bytes


def tiled_score_bytes(heads: int, tokens: int, element_bytes: float) -> float:
    """Bytes of the running maximum and sum per row of tiled attention: O(heads · tokens).

    Notes on inference, part 3, "Activation Memory" (FlashAttention).
    """
    return 2 * heads * tokens * element_bytes


def activation_bytes(tokens: int, hidden: int, ffn: int, queries: int, element_bytes: float) -> float:
    """Bytes of activations of one layer in a step of `tokens` tokens; all layers reuse them.

    Residual and normed input (2 · hidden), queries and attention output (2 · queries), gate and up (2 · ffn).
    The O(B · P · d_ff) term of Notes on inference, part 3, "Activation Memory".
    """
    return tokens * (2 * hidden + 2 * queries + 2 * ffn) * element_bytes


def rank_activations(deployment: Deployment, tiled: bool = True) -> float:
    """Bytes of activations on one device: those of one layer, attention tiled or with stored scores, and logits."""
    model, tokens = deployment.model, min(deployment.chunk, deployment.context)
    layer = activation_bytes(tokens, model.hidden, model.ffn, model.heads * model.head_dim, ACTIVATION_BYTES)
    scores = (
        tiled_score_bytes(model.heads, tokens, 4) if tiled else attention_score_bytes(model.heads, deployment.context, ACTIVATION_BYTES)
    )
    logits = min(deployment.users, tokens) * model.vocab * 4
    return (layer + scores + logits) / deployment.layout.tensor


def drafting(deployment: Deployment) -> Deployment | None:
    """The drafter as a deployment of its own, on one device: a draft model, or what a pass of heads reads. None where there is none."""
    draft = deployment.draft
    if draft is None:
        return None
    model = draft.one if isinstance(draft, PlannedHeads) else draft
    return replace(deployment, model=model, draft=None, adapters=0, layout=Layout(), dtype=None)


def rank_draft(deployment: Deployment) -> float:
    """Bytes of what drafts on one device, as a server allots them: its weights, a cache for all users within a share of the memory, and the
    hidden states that heads read."""
    alone, draft = drafting(deployment), deployment.draft
    if alone is None:
        return 0.0
    groups, size = groups_of(alone.model.layer_kinds, alone.model.window), deployment.block_tokens
    tokens = min(deployment.context, alone.model.context)
    cache = deployment.users * len(groups) * -(-tokens // size) * block_bytes_of(alone)
    stored = rank_weights(alone) + min(cache, DRAFT_SHARE * deployment.device.memory_bytes)
    if isinstance(draft, PlannedHeads):
        shared = weight_classes(alone)["head"] + screen_bytes(alone) if draft.shares_head else 0.0
        stored += (draft.copies - 1) * rank_weights(alone) - shared + deployment.users * draft.kept
    return stored


def rank_adapters(deployment: Deployment) -> float:
    """Bytes for adapters on one device: slots of the largest rank on a GPU; on a CPU the share of its memory that a server sets aside."""
    if not deployment.adapters:
        return 0.0
    if not deployment.device.is_gpu:
        return ADAPTER_SHARE * deployment.device.memory_bytes
    return deployment.adapters * adapter_bytes(deployment.model, deployment.adapter_rank) / deployment.layout.pipeline


def rank_kv_budget(deployment: Deployment) -> float:
    """Bytes left for the KV cache on one device; negative where the weights do not fit."""
    beside = rank_draft(deployment) + rank_adapters(deployment)
    taken = rank_weights(deployment) + beside + rank_activations(deployment) + deployment.device.overhead_bytes
    return deployment.device.memory_bytes * deployment.utilisation - taken


def rank_state(deployment: Deployment) -> float:
    """Bytes of a sequence's recurrent state on one device; split over ranks as attention is."""
    return deployment.model.state_bytes / deployment.layout.tensor / deployment.layout.pipeline


def block_bytes_of(deployment: Deployment) -> int:
    """Bytes of one block over all ranks; 0 where no layer has a KV cache."""
    model = deployment.model
    groups = groups_of(model.layer_kinds, model.window)
    return kv_bytes(len(groups[0].layers), deployment.block_tokens, 1, token_kv_bits(model, deployment.kv_dtype)) if groups else 0


def kv_blocks(deployment: Deployment, sequences: int = 0) -> int:
    """KV blocks of one copy of the model (per expert rank) besides the states of `sequences` sequences; 0 where nothing fits."""
    left, block = rank_kv_budget(deployment) - sequences * rank_state(deployment), block_bytes_of(deployment)
    return int(max(0.0, left) / (block * kv_share(deployment))) if block else 0


def memory_of(deployment: Deployment) -> Memory:
    """Memory of a deployment. KV cache = device memory · utilisation − weights − activations − overhead."""
    model, device, layout = deployment.model, deployment.device, deployment.layout
    groups, size = groups_of(model.layer_kinds, model.window), deployment.block_tokens
    block, state = block_bytes_of(deployment), rank_state(deployment)
    usable = device.memory_bytes * deployment.utilisation
    activations = rank_activations(deployment)
    budget = rank_kv_budget(deployment)
    sequences = layout.expert * layout.replicas

    def blocks_of(tokens: int) -> int:
        return sequence_blocks(groups, size, tokens, deployment.chunk)

    shared = deployment.shared // size * sum(group.window == 0 for group in groups)
    each = blocks_of(deployment.context) - shared
    per_copy = -(-deployment.users // sequences)
    left = max(0, kv_blocks(deployment, per_copy) - shared)
    states_fit = per_copy * state <= budget
    held = block * kv_share(deployment)
    missing = (shared + each * per_copy) * held + per_copy * state - budget
    return Memory(
        total=device.memory_bytes * layout.ranks,
        weights=round(rank_weights(deployment) * layout.ranks),
        activations=round(activations * layout.ranks),
        untiled_activations=round(rank_activations(deployment, tiled=False) * layout.ranks),
        overhead=device.overhead_bytes * layout.ranks,
        reserve=round((device.memory_bytes - usable) * layout.ranks),
        kv_token=kv_bytes(model.kv_layers, 1, 1, token_kv_bits(model, deployment.kv_dtype)),
        kv_sequence=blocks_of(deployment.context) * block,
        state=model.state_bytes,
        kv_budget=round(budget * layout.ranks),
        max_sequences=min(MAX_SEQUENCES, int(max(0.0, budget - shared * held) / (each * held + state)) * sequences),
        max_context=longest_sequence(groups, size, left // per_copy + shared, deployment.chunk, model.context if states_fit else 0),
        shortfall=max(0, round(missing * layout.ranks)),
        draft=round(rank_draft(deployment) * layout.ranks),
        adapters=round(rank_adapters(deployment) * layout.ranks),
    )


def automatic_layout(model: ModelFacts, count: int) -> Layout:
    """Default layout of `count` devices: tensor ranks within a node of eight, then pipeline stages, then replicas.

    Notes on inference, part 4, section 8. Tensor ranks: the greatest divisor of `count` up to 8 that divides the query heads.
    """
    tensor = max(width for width in range(1, min(count, 8) + 1) if count % width == 0 and model.heads % width == 0)
    rest = count // tensor
    pipeline = max(stages for stages in range(1, min(rest, model.layers) + 1) if rest % stages == 0)
    return Layout(tensor=tensor, pipeline=pipeline, replicas=rest // pipeline)
