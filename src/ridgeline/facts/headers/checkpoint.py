"""From a directory with a config.json and safetensors files to `ModelFacts`. Follows no code: `auto_map` is a key like any unknown one."""

from collections.abc import Mapping
from dataclasses import replace
from hashlib import sha256
from math import prod
from pathlib import Path

from ridgeline.errors import ModelFormatError
from ridgeline.facts.files.gguf_values import quoted
from ridgeline.facts.files.json_file import read_text
from ridgeline.facts.files.shards import read_shards
from ridgeline.facts.headers.architectures import ARCHITECTURES, CHECKPOINTS, Architecture, Layout
from ridgeline.facts.headers.checkpoint_rope import read_config_ropes
from ridgeline.facts.headers.config_json import MAX_CONTEXT, MAX_LAYERS, MAX_VOCAB, MAX_WIDTH, Fields, config_fields, layer_kinds
from ridgeline.facts.headers.fingerprint import fingerprint
from ridgeline.facts.headers.integers import drop_zero_biases, gather_integers
from ridgeline.facts.headers.names import canonical_tensors, expected_shapes, parts_of
from ridgeline.facts.headers.quantisation import read_quantisation
from ridgeline.facts.model import ModelFacts, TensorFacts

_EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts")


def read_checkpoint(directory: Path) -> ModelFacts:
    """Facts of the checkpoint in `directory`. `tokens` is the vocabulary's size: what the tokenizer names is not counted here.

    Raises ModelFormatError, ModelNotFoundError.
    """
    text = read_text(directory / "config.json")
    fields, kind = config_fields(text)
    name, layout = _supported(fields, kind)
    architecture = ARCHITECTURES[name]
    _check_neutral(fields, architecture)
    quantisation = read_quantisation(fields.values)
    stored = read_shards(directory)
    matrices = gather_integers(stored, quantisation)
    facts = _numbers(fields, name, architecture, directory.resolve().name, _tied(fields, matrices, layout))
    files = sorted({tensor.file for tensor in stored.values()})
    flags = {flag: fields.flag(flag) for flag in set(architecture.biases.values()) - {"always"}}
    positions = fields.integer("max_position_embeddings", 1, MAX_CONTEXT)
    must, may = expected_shapes(architecture, facts, positions, flags)
    matrices = drop_zero_biases(matrices, lambda stored_name: set(parts_of(stored_name, layout) or ()) <= must.keys())
    tensors = canonical_tensors(matrices, layout, must, may, name)
    return replace(facts, tensors=tensors, fingerprint=fingerprint(files, stored.values(), text.encode()))


def facts_of_config(file: Path) -> ModelFacts:
    """Facts of the model that a config.json describes, where there are no weights: each tensor in bf16 and nowhere stored.

    Raises ModelFormatError.
    """
    text = read_text(file)
    fields, kind = config_fields(text)
    name, _ = _supported(fields, kind)
    architecture = ARCHITECTURES[name]
    _check_neutral(fields, architecture)
    facts = _numbers(fields, name, architecture, file.stem, fields.flag("tie_word_embeddings"))
    flags = {flag: fields.flag(flag) for flag in set(architecture.biases.values()) - {"always"}}
    must, _ = expected_shapes(architecture, facts, fields.integer("max_position_embeddings", 1, MAX_CONTEXT), flags)
    tensors = {each: TensorFacts(each, "BF16", shape, file, 0, 2 * prod(shape)) for each, shape in must.items()}
    return replace(facts, tensors=tensors, fingerprint=sha256(text.encode()).digest())


def _supported(fields: Fields, kind: str) -> tuple[str, Layout]:
    experts = next((key for key in _EXPERTS if fields.values.get(key)), None)
    if experts is not None:
        count = fields.values[experts]
        raise ModelFormatError(f"config.json: {experts} is {count!r:.20}; mixtures of experts are not computed, dense models are")
    if kind not in CHECKPOINTS:
        raise ModelFormatError(f"model_type {kind!r:.60} is not supported; supported: {', '.join(sorted(CHECKPOINTS))}")
    return CHECKPOINTS[kind]


def _check_neutral(fields: Fields, architecture: Architecture) -> None:
    for key, neutral in architecture.neutral_config:
        found = fields.values.get(key)
        if found is not None and found != neutral:
            raise ModelFormatError(f"config.json: {key} is {found!r:.40}, which is not computed; {neutral!r} is")
    key = fields.family.keys.get("hidden_act", "hidden_act")
    found = fields.values.get(key)
    if found is not None and found not in architecture.activations:
        raise ModelFormatError(f"config.json: {key} is {quoted(found)}, which is not computed; {architecture.activations[0]!r} is")


def _tied(fields: Fields, stored: Mapping[str, TensorFacts], layout: Layout) -> bool:
    """Whether the head is the embedding: the file has no head. One that it has is used, whatever config.json says of it."""
    present = any(parts_of(name, layout) == ("output.weight",) for name in stored)
    if not present and not fields.flag("tie_word_embeddings"):
        raise ModelFormatError(
            "the files hold no head and config.json does not say that it is the embedding (tie_word_embeddings); "
            "download the whole checkpoint"
        )
    return not present


def _numbers(fields: Fields, name: str, architecture: Architecture, title: str, tied: bool) -> ModelFacts:
    """Facts as config.json states them; tensors and fingerprint are left empty."""
    layers = fields.integer("num_hidden_layers", 1, MAX_LAYERS)
    hidden = fields.integer("hidden_size", 1, MAX_WIDTH)
    heads = fields.integer("num_attention_heads", 1, MAX_WIDTH)
    kv_heads = fields.integer("num_key_value_heads", 1, heads, default=heads)
    if heads % kv_heads:
        raise ModelFormatError(f"config.json: {heads} query heads are no multiple of {kv_heads} KV heads")
    head_dim = fields.integer("head_dim", 2, MAX_WIDTH, default=max(2, hidden // heads))
    if head_dim % 2:
        raise ModelFormatError(f"config.json: heads have length {head_dim}, an even number was expected")
    vocab = fields.integer("vocab_size", 1, MAX_VOCAB)
    context = fields.integer("max_position_embeddings", 1, MAX_CONTEXT)
    kinds, window = layer_kinds(fields, layers)
    ropes = read_config_ropes(fields, architecture, head_dim, context)
    return ModelFacts(
        architecture=name,
        name=title,
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        ffn=fields.integer("intermediate_size", 1, MAX_WIDTH, default=4 * hidden),
        vocab=vocab,
        tokens=vocab,
        context=ropes.context,
        eps=fields.number("rms_norm_eps", 0.0, 1.0),
        layer_kinds=kinds,
        window=window,
        rope=ropes.by_kind,
        tied=tied,
        tensors={},
        fingerprint=b"",
        attn_scale=fields.own_number("query_pre_attn_scalar", 1e-6, 1e9, float(head_dim)) ** -0.5,
        attn_softcap=fields.own_number("attn_logit_softcapping", 0.0, 1e6, 0.0),
        final_softcap=fields.own_number("final_logit_softcapping", 0.0, 1e6, 0.0),
        long_rope=ropes.long,
    )
