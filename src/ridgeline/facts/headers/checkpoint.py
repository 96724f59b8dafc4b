"""Reader of checkpoints (config.json and safetensors files) to `ModelFacts`. Runs no code of a checkpoint: `auto_map` is ignored."""

from collections.abc import Mapping
from dataclasses import replace
from hashlib import sha256
from math import prod
from pathlib import Path

from ridgeline.errors import ModelFormatError, ModelNotFoundError
from ridgeline.facts.files.safetensors import read_tensors
from ridgeline.facts.files.shards import read_shards
from ridgeline.facts.files.values import quoted
from ridgeline.facts.headers.config_json import Config, read_config
from ridgeline.facts.headers.config_rope import read_config_ropes
from ridgeline.facts.headers.experts import gather_experts
from ridgeline.facts.headers.fields import MAX_LAYERS, Fields
from ridgeline.facts.headers.pooling import checkpoint_pooling
from ridgeline.facts.headers.quantisation import read_quantisation
from ridgeline.facts.headers.quantised import count_activation_scales, drop_zero_biases, gather_quantised
from ridgeline.facts.headers.tensors import add_tensors, canonical_names, canonical_tensors, fingerprint
from ridgeline.facts.model import CLASSES, ModelFacts, TensorFacts
from ridgeline.models.declare import TensorNames
from ridgeline.models.table import RUNNABLE


def read_checkpoint(directory: Path) -> ModelFacts:
    """Facts of the checkpoint in `directory`, with its tensors. `tokens` is the vocabulary's size; the tokenizer is not read.

    Raises ModelFormatError, ModelNotFoundError.
    """
    config = read_config(directory / "config.json", directory.resolve().name)
    facts, names = runner_facts(config)
    quantisation = read_quantisation(config.fields.values)
    stored = without_predictors(read_shards(directory), config)
    matrices = gather_quantised(stored, quantisation)
    tied = _is_tied(config.fields, matrices, names)
    ties_ignored = not tied and config.fields.flag("tie_word_embeddings")
    facts = replace(facts, tied=tied, ties_ignored=ties_ignored, pooling=checkpoint_pooling(directory))
    facts = replace(facts, activation_scales=count_activation_scales(stored, quantisation))
    files = sorted({tensor.file for tensor in stored.values()})
    required = config.shapes(tied=facts.tied)
    matrices = drop_zero_biases(matrices, lambda stored_name: set(canonical_names(stored_name, names) or ()) <= required.keys())
    tensors = canonical_tensors(gather_experts(matrices), names, required, {}, facts.architecture)
    return add_tensors(facts, tensors, fingerprint(files, stored.values(), config.text.encode()))


def check_config(directory: Path) -> None:
    """Raises ModelFormatError where no runner has the architecture that a checkpoint's config.json names."""
    _supported_names(read_config(directory / "config.json"))


def read_config_facts(file: Path) -> ModelFacts:
    """Facts of the model that a config.json describes, without weights: all tensors are bf16 and have no data.

    Raises ModelFormatError.
    """
    config = read_config(file, file.stem)
    facts, _ = runner_facts(config)
    shapes = config.shapes(tied=facts.tied)
    tensors = {name: TensorFacts(name, "BF16", shape, file, 0, 2 * prod(shape)) for name, shape in shapes.items()}
    return add_tensors(facts, tensors, sha256(config.text.encode()).digest())


def describe_checkpoint(directory: Path) -> ModelFacts:
    """Facts for the planner of a checkpoint of any known architecture, with the stored bytes."""
    config = read_config(directory / "config.json")
    facts, stored = config.facts, dict.fromkeys(CLASSES, 0)
    tensors = without_predictors(read_tensors(directory), config)
    for name, tensor in tensors.items():
        kind = _class(name)
        if kind is not None and not (kind == "head" and facts.tied):
            stored[kind] += tensor.bytes
    return replace(facts, stored=stored, packed=_packed(directory)) if tensors else replace(facts, stored={})


def _packed(directory: Path) -> Mapping[str, int]:
    """Bytes by class as native kernels read them; none of a checkpoint that no runner has."""
    try:
        return read_checkpoint(directory).packed
    except (ModelFormatError, ModelNotFoundError):
        return {}


def without_predictors(tensors: Mapping[str, TensorFacts], config: Config) -> dict[str, TensorFacts]:
    """`tensors` without those of layers that only predict further tokens: behind the last, or with a prefix of their own."""
    count = config.fields.integer("num_nextn_predict_layers", 0, MAX_LAYERS, default=0)
    prefixes = [f"model.layers.{config.facts.layers + number}." for number in range(count)]
    if own := config.fields.architecture.predictor:
        prefixes.append(own)
    return {name: tensor for name, tensor in tensors.items() if not name.startswith(tuple(prefixes))}


def _class(name: str) -> str | None:
    """Class of a tensor by its name in transformers; None for tensors that are not part of the text model."""
    if any(part in name for part in ("vision_tower.", "multi_modal_projector.", "visual.")):
        return None
    if any(part in name for part in ("embed_tokens.", "wte.", "wpe.")):
        return "embedding"
    if name.startswith("lm_head.") or ".lm_head." in name:
        return "head"
    if "norm" in name.rsplit(".", 2)[-2]:
        return "norms"
    if any(part in name for part in (".experts.", ".block_sparse_moe.input_linear.", ".block_sparse_moe.output_linear.")):
        return "experts"
    return "attention" if "attn." in name else "ffn" if any(part in name for part in (".mlp.", ".block_sparse_moe.")) else "norms"


def runner_facts(config: Config) -> tuple[ModelFacts, TensorNames]:
    """(facts for runners without tensors, names of the tensors). Raises ModelFormatError for what is not supported."""
    fields, facts = config.fields, config.facts
    names = _supported_names(config)
    _check_required_values(fields)
    if not facts.kv_layers:
        raise ModelFormatError("config.json: all layers are recurrent, which is not supported; one that attends was expected")
    if facts.head_dim % 2:
        raise ModelFormatError(f"config.json: heads have length {facts.head_dim}, an even number was expected")
    latent = facts.widths.latent
    ropes = read_config_ropes(fields, latent.rotary if latent else facts.head_dim, facts.context)
    complete = replace(
        facts,
        context=ropes.context,
        eps=fields.number("rms_norm_eps", 0.0, 1.0),
        rope=ropes.by_kind,
        bidirectional=fields.architecture.bidirectional,
        attn_scale=_attention_scale(fields, facts.head_dim) * ropes.scores,
        attn_softcap=fields.own_number("attn_logit_softcapping", 0.0, 1e6, 0.0),
        final_softcap=fields.own_number("final_logit_softcapping", 0.0, 1e6, 0.0),
        embedding_scale=fields.own_number("embedding_multiplier", 1e-9, 1e9, 1.0),
        residual_scale=fields.own_number("residual_multiplier", 1e-9, 1e9, 1.0),
        logit_scale=1.0 / fields.own_number("logits_scaling", 1e-9, 1e9, 1.0),
        long_rope=ropes.long,
    )
    return complete, names


def _attention_scale(fields: Fields, head_dim: int) -> float:
    """Factor on scores: said as such, or by the length of head that it is the inverse root of."""
    scale = fields.own_number("query_pre_attn_scalar", 1e-6, 1e9, float(head_dim)) ** -0.5
    return fields.own_number("attention_multiplier", 1e-9, 1e9, scale)


def _supported_names(config: Config) -> TensorNames:
    """Tensor names of a supported architecture. Raises ModelFormatError for any other."""
    names = config.fields.architecture.checkpoint
    if names is None or config.facts.architecture not in RUNNABLE:
        known = sorted(kind for each in RUNNABLE.values() if each.checkpoint for kind in each.model_types)
        raise ModelFormatError(f"model_type {config.fields.values['model_type']!r:.60} is not supported; supported: {', '.join(known)}")
    return names


def _check_required_values(fields: Fields) -> None:
    architecture = fields.architecture
    for key, required in architecture.required_config:
        found = fields.values.get(key)
        if found is not None and found != required:
            raise ModelFormatError(f"config.json: {key} is {found!r:.40}, which is not supported; {required!r} is")
    key = architecture.keys.get("hidden_act", "hidden_act")
    found = fields.values.get(key)
    if found is not None and found not in architecture.activations:
        raise ModelFormatError(f"config.json: {key} is {quoted(found)}, which is not supported; {architecture.activations[0]!r} is")


def _is_tied(fields: Fields, stored: Mapping[str, TensorFacts], names: TensorNames) -> bool:
    """True where the files have no head, so the embedding is used. A stored head is used whatever config.json says."""
    present = any(canonical_names(name, names) == ("output.weight",) for name in stored)
    if not present and not fields.flag("tie_word_embeddings"):
        raise ModelFormatError(
            "the files have no output head and config.json does not set tie_word_embeddings; download the whole checkpoint"
        )
    return not present
