"""Mixtures of experts in headers: their sizes, how tokens are routed, and tensors that are stored expert by expert.

Owns the keys of routing in both kinds of files. A family that leaves them out declares them (`Architecture.routing`).
"""

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from ridgeline.errors import ModelFormatError
from ridgeline.facts.files.gguf import Header
from ridgeline.facts.files.values import quoted
from ridgeline.facts.headers.fields import MAX_EXPERTS, MAX_WIDTH, Fields
from ridgeline.facts.model import Experts, TensorFacts
from ridgeline.models.declare import Architecture, Sizes

_GATING: Final = {1: "softmax", 2: "sigmoid", 3: "softmax_chosen"}
"""`expert_gating_func` of GGUF files → scores."""
_NUMBERED: Final = re.compile(r"(.*\bexperts)\.(0|[1-9]\d{0,3})\.(.+)")
_MAX_SCALE: Final = 1e3


def routed_experts(fields: Fields) -> int:
    """Routed experts per layer with a mixture; 0 without one. Raises ModelFormatError where the architecture has no such layers."""
    key = next((key for key in ("num_local_experts", "num_experts", "n_routed_experts") if not fields.is_absent(key)), None)
    routed = fields.integer(key, 0, MAX_EXPERTS) if key else 0
    if routed and "sparse" not in fields.architecture.parts:
        raise ModelFormatError(f"config.json: {key} is {routed}; mixtures of experts are not supported for this model_type")
    return routed


def expert_sizes(fields: Fields, hidden: int, routed: int, layers: int) -> tuple[Sizes, Experts | None]:
    """(dimensions of the feed-forward, the mixture of experts in `layers` layers or None).

    Shared experts have the width of the routed ones, or a width of their own, or a gate.
    """
    ffn = fields.integer("intermediate_size", 1, MAX_WIDTH, default=4 * hidden)
    sizes = {"ffn": ffn, "dense_ffn": fields.integer("shared_intermediate_size", 0, MAX_WIDTH, default=0)}
    if not layers:
        return sizes, None
    active = fields.integer("num_experts_per_tok", 1, routed)
    expert_ffn = fields.integer("moe_intermediate_size", 1, MAX_WIDTH, default=ffn)
    gated_ffn = fields.integer("shared_expert_intermediate_size", 0, MAX_WIDTH, default=0)
    shared = fields.integer("n_shared_experts", 0, MAX_EXPERTS, default=0)
    shared_ffn = fields.integer("moe_shared_expert_intermediate_size", 0, MAX_WIDTH, default=0)
    sizes |= {"experts": routed, "expert_ffn": expert_ffn, "shared_gates": int(gated_ffn > 0)}
    sizes["shared_ffn"] = gated_ffn or shared * (shared_ffn or expert_ffn)
    experts = _checked(Experts(routed, active, layers, **_routing(fields)), "config.json")
    return sizes | {"corrected": routed * experts.bias_selects}, experts


def _routing(fields: Fields) -> dict[str, Any]:
    """Routing as config.json states it, and as the architecture does it."""
    architecture = fields.architecture
    own, declared = architecture.defaults, {**architecture.routing, **architecture.routings.get(str(fields.values.get("model_type")), {})}
    found: dict[str, Any] = dict(declared)
    if "norm_topk_prob" in own:
        found["normalise"] = fields.flag("norm_topk_prob")
    found["scale"] = fields.own_number("routed_scaling_factor", 0.0, _MAX_SCALE, float(declared.get("scale", 1.0)))
    if "n_group" in own and fields.values.get("topk_method") != "greedy":
        found["groups"] = fields.integer("n_group", 1, MAX_EXPERTS, default=1)
        found["groups_kept"] = fields.integer("topk_group", 1, found["groups"], default=1)
    return found


def gguf_experts(header: Header, arch: str, architecture: Architecture | None) -> Experts | None:
    """The mixture of a GGUF file; `architecture` None for one that is only planned."""
    routed = header.integer(f"{arch}.expert_count", 0, MAX_EXPERTS, default=0)
    if not routed:
        return None
    active = header.integer(f"{arch}.expert_used_count", 1, routed)
    layers = sum(name.endswith("ffn_down_exps.weight") for name in header.tensors)
    found: dict[str, Any] = dict(architecture.routing) if architecture else {}
    if f"{arch}.expert_weights_norm" in header.metadata:
        found["normalise"] = header.flag(f"{arch}.expert_weights_norm", default=False)
    found["scale"] = header.number(f"{arch}.expert_weights_scale", 0.0, _MAX_SCALE, default=float(found.get("scale", 1.0))) or 1.0
    gating = header.integer(f"{arch}.expert_gating_func", 0, len(_GATING), default=0)
    found |= {"scores": _GATING[gating]} if gating else {}
    if architecture:
        found |= next((each for each in architecture.routings.values() if each["scores"] == found.get("scores")), {})
    found["groups"] = header.integer(f"{arch}.expert_group_count", 0, routed, default=1) or 1
    found["groups_kept"] = header.integer(f"{arch}.expert_group_used_count", 0, found["groups"], default=1) or 1
    return _checked(Experts(routed, active, layers, **found), f"{arch}.expert_*")


def _checked(experts: Experts, where: str) -> Experts:
    """`experts`, whose numbers go together. Raises ModelFormatError, with `where` they stand, if they do not."""
    size, rest = divmod(experts.routed, experts.groups)
    if rest:
        raise ModelFormatError(f"{where}: {experts.routed} experts do not form {experts.groups} groups of equal size")
    if experts.active > size * experts.groups_kept:
        left = f"{experts.groups_kept} of {experts.groups} groups are kept, with {size * experts.groups_kept} experts in all"
        raise ModelFormatError(f"{where}: a token takes {experts.active} experts, but {left}")
    if experts.bias_selects and experts.scores == "softmax_chosen":
        raise ModelFormatError(f"{where}: gating 3, scores of the chosen experts alone, is not supported with a bias that chooses them")
    return experts


def gguf_expert_sizes(header: Header, arch: str, experts: Experts, ffn: int) -> Sizes:
    """Dimensions of experts by the names that rows have."""
    inner = header.integer(f"{arch}.expert_feed_forward_length", 0, MAX_WIDTH, default=0) or ffn
    shared = header.integer(f"{arch}.expert_shared_feed_forward_length", 0, MAX_WIDTH, default=0)
    count = header.integer(f"{arch}.expert_shared_count", 0, MAX_EXPERTS, default=0)
    gates = any(name.endswith("ffn_gate_inp_shexp.weight") for name in header.tensors)
    sizes = {"experts": experts.routed, "expert_ffn": inner, "corrected": experts.routed * experts.bias_selects}
    return sizes | {"shared_ffn": shared or count * inner, "shared_gates": int(gates)}


def gather_experts(stored: Mapping[str, TensorFacts]) -> dict[str, TensorFacts]:
    """`stored` with the tensors `experts.0.up_proj.weight` … of a layer as one, `experts.*.up_proj.weight`, a matrix per expert.

    Raises ModelFormatError where one is missing or unlike the others.
    """
    found: dict[str, TensorFacts] = {}
    numbered: dict[str, dict[int, TensorFacts]] = {}
    for name, tensor in stored.items():
        match = _NUMBERED.fullmatch(name)
        if match is None:
            found[name] = tensor
        else:
            numbered.setdefault(f"{match[1]}.*.{match[3]}", {})[int(match[2])] = tensor
    for name, parts in numbered.items():
        experts = tuple(parts[number] for number in sorted(parts))
        first, count = experts[0], len(experts)
        if sorted(parts) != list(range(count)):
            missing = min(set(range(max(parts))) - parts.keys())
            raise ModelFormatError(f"tensor {quoted(name)} is missing for expert {missing}; download the whole checkpoint")
        other = next((each for each in experts if (each.kind, each.shape) != (first.kind, first.shape)), first)
        if other is not first:
            raise ModelFormatError(
                f"tensor {quoted(other.name)} is {other.kind} of shape {other.shape}, that of the first expert is {first.kind} of shape "
                f"{first.shape}; download the file again"
            )
        total = sum(each.bytes for each in experts)
        found[name] = replace(first, name=name, shape=(count, *first.shape), bytes=total, quantised=None, experts=experts)
    return found
