"""Reader of directories with a config.json and safetensors files, to `ModelFacts`. Follows no code: `auto_map` is an unknown key."""

from collections.abc import Mapping
from dataclasses import replace
from hashlib import sha256
from math import prod
from pathlib import Path

from ridgeline.errors import ModelFormatError
from ridgeline.facts.files.safetensors import read_tensors
from ridgeline.facts.files.shards import read_shards
from ridgeline.facts.files.values import quoted
from ridgeline.facts.headers.config_json import Config, read_config
from ridgeline.facts.headers.config_rope import read_config_ropes
from ridgeline.facts.headers.fields import Fields
from ridgeline.facts.headers.integers import drop_zero_biases, gather_integers
from ridgeline.facts.headers.quantisation import read_quantisation
from ridgeline.facts.headers.tensors import canonical_tensors, fingerprint, parts_of, with_tensors
from ridgeline.facts.model import CLASSES, ModelFacts, TensorFacts
from ridgeline.models.declare import Layout
from ridgeline.models.table import COMPUTED


def read_checkpoint(directory: Path) -> ModelFacts:
    """Facts of the checkpoint in `directory`. `tokens` is the vocabulary's size: what the tokenizer names is not counted here.

    Raises ModelFormatError, ModelNotFoundError.
    """
    config = read_config(directory / "config.json", directory.resolve().name)
    facts, layout = _for_runners(config)
    quantisation = read_quantisation(config.fields.values)
    stored = read_shards(directory)
    matrices = gather_integers(stored, quantisation)
    facts = replace(facts, tied=_tied(config.fields, matrices, layout))
    files = sorted({tensor.file for tensor in stored.values()})
    must = config.shapes(tied=facts.tied)
    matrices = drop_zero_biases(matrices, lambda stored_name: set(parts_of(stored_name, layout) or ()) <= must.keys())
    tensors = canonical_tensors(matrices, layout, must, {}, facts.architecture)
    return with_tensors(facts, tensors, fingerprint(files, stored.values(), config.text.encode()))


def facts_of_config(file: Path) -> ModelFacts:
    """Facts of the model that a config.json describes, where there are no weights: each tensor in bf16 and nowhere stored.

    Raises ModelFormatError.
    """
    config = read_config(file, file.stem)
    facts, _ = _for_runners(config)
    shapes = config.shapes(tied=facts.tied)
    tensors = {name: TensorFacts(name, "BF16", shape, file, 0, 2 * prod(shape)) for name, shape in shapes.items()}
    return with_tensors(facts, tensors, sha256(config.text.encode()).digest())


def describe_checkpoint(directory: Path) -> ModelFacts:
    """Facts for the planner of the checkpoint in `directory`, of any architecture that is known, with the bytes that files hold."""
    facts = read_config(directory / "config.json").facts
    stored = dict.fromkeys(CLASSES, 0)
    tensors = read_tensors(directory)
    for name, tensor in tensors.items():
        kind = _class(name)
        if kind is not None and not (kind == "head" and facts.tied):
            stored[kind] += tensor.bytes
    return replace(facts, stored=stored if tensors else {})


def _class(name: str) -> str | None:
    """The class of a checkpoint's tensor by the names of the transformers library; None for what is no part of the text model."""
    if any(part in name for part in ("vision_tower.", "multi_modal_projector.", "visual.")):
        return None
    if any(part in name for part in ("embed_tokens.", "wte.", "wpe.")):
        return "embedding"
    if name.startswith("lm_head.") or ".lm_head." in name:
        return "head"
    if "norm" in name.rsplit(".", 2)[-2]:
        return "norms"
    if ".experts." in name and ".shared_experts." not in name:
        return "experts"
    return "attention" if "attn." in name else "ffn" if any(part in name for part in (".mlp.", ".block_sparse_moe.")) else "norms"


def _for_runners(config: Config) -> tuple[ModelFacts, Layout]:
    """(facts with all that a step needs but tensors, names of the tensors). Raises ModelFormatError for what is not computed."""
    fields, facts = config.fields, config.facts
    layout = _computed(config)
    _check_neutral(fields)
    if facts.head_dim % 2:
        raise ModelFormatError(f"config.json: heads have length {facts.head_dim}, an even number was expected")
    ropes = read_config_ropes(fields, facts.head_dim, facts.context)
    numbers = replace(
        facts,
        context=ropes.context,
        eps=fields.number("rms_norm_eps", 0.0, 1.0),
        rope=ropes.by_kind,
        attn_scale=fields.own_number("query_pre_attn_scalar", 1e-6, 1e9, float(facts.head_dim)) ** -0.5,
        attn_softcap=fields.own_number("attn_logit_softcapping", 0.0, 1e6, 0.0),
        final_softcap=fields.own_number("final_logit_softcapping", 0.0, 1e6, 0.0),
        long_rope=ropes.long,
    )
    return numbers, layout


def _computed(config: Config) -> Layout:
    """Names of the tensors of an architecture that runners compute. Raises ModelFormatError for any other."""
    experts = config.facts.experts
    if experts is not None:
        raise ModelFormatError(f"config.json: {experts.routed} experts; mixtures of experts are not computed, dense models are")
    layout = config.fields.architecture.checkpoint
    if layout is None or config.facts.architecture not in COMPUTED:
        known = sorted(kind for each in COMPUTED.values() if each.checkpoint for kind in each.model_types)
        raise ModelFormatError(f"model_type {config.fields.values['model_type']!r:.60} is not supported; supported: {', '.join(known)}")
    return layout


def _check_neutral(fields: Fields) -> None:
    architecture = fields.architecture
    for key, neutral in architecture.neutral_config:
        found = fields.values.get(key)
        if found is not None and found != neutral:
            raise ModelFormatError(f"config.json: {key} is {found!r:.40}, which is not computed; {neutral!r} is")
    key = architecture.keys.get("hidden_act", "hidden_act")
    found = fields.values.get(key)
    if found is not None and found not in architecture.activations:
        raise ModelFormatError(f"config.json: {key} is {quoted(found)}, which is not computed; {architecture.activations[0]!r} is")


def _tied(fields: Fields, stored: Mapping[str, TensorFacts], layout: Layout) -> bool:
    """True where the head is the embedding: the file has no head. One that it has is used, whatever config.json says of it."""
    present = any(parts_of(name, layout) == ("output.weight",) for name in stored)
    if not present and not fields.flag("tie_word_embeddings"):
        raise ModelFormatError(
            "the files hold no head and config.json does not say that it is the embedding (tie_word_embeddings); "
            "download the whole checkpoint"
        )
    return not present
