"""The layer of a model's files that predicts further tokens (MTP), behind the last of N layers: `model.layers.N` of a checkpoint
(DeepSeek-V3, GLM-4.5) or what has a prefix of its own (Qwen3-Next), `blk.N` of a GGUF file.
"""

import re
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

from ridgeline.errors import ConfigError
from ridgeline.facts.files.gguf import read_header
from ridgeline.facts.files.shards import read_shards
from ridgeline.facts.headers.checkpoint import runner_facts
from ridgeline.facts.headers.config_json import read_config
from ridgeline.facts.headers.experts import gather_experts
from ridgeline.facts.headers.gguf import check_architecture, gguf_names, gguf_shapes, without_predictors
from ridgeline.facts.headers.heads import DraftHeads
from ridgeline.facts.headers.quantisation import read_quantisation
from ridgeline.facts.headers.quantised import gather_quantised
from ridgeline.facts.headers.tensors import Shapes, add_tensors, canonical_tensors, fingerprint
from ridgeline.facts.model import ModelFacts, TensorFacts
from ridgeline.models.declare import TensorNames
from ridgeline.models.heads.mtp import GGUF_NAMES, GGUF_SHARED, NAMES, QWEN_GGUF_NAMES, QWEN_NAMES, SHARED
from ridgeline.models.table import ARCHITECTURES

FIX: Final = {"--speculative": "suffix"}


def read_predictor(path: Path, target: ModelFacts) -> DraftHeads:
    """The layer of the model at `path`, as `find_predictor` finds it. Raises ConfigError where there is none, ModelFormatError."""
    heads = find_predictor(path, target)
    if heads is None:
        name = _joining(target) if path.is_dir() else f"blk.{target.layers}.nextn.eh_proj"
        found = f"{name}.weight is not in the files"
        raise ConfigError(f"--speculative mtp: {found}: this model has no layer that predicts further tokens", fix=FIX)
    return heads


def find_predictor(path: Path, target: ModelFacts) -> DraftHeads | None:
    """The first such layer of the model at `path`, that of `target`; None where there is none. Raises ModelFormatError."""
    return _of_checkpoint(path, target) if path.is_dir() else _of_gguf(path, target)


def _joining(target: ModelFacts) -> str:
    """The module in a checkpoint that joins an id and a hidden state."""
    prefix = ARCHITECTURES[target.architecture].predictor
    return f"{prefix}fc" if prefix else f"model.layers.{target.layers}.eh_proj"


def _of_checkpoint(path: Path, target: ModelFacts) -> DraftHeads | None:
    prefix = ARCHITECTURES[target.architecture].predictor
    # Behind a prefix of its own the layer is numbered from 0; what stands beside it has no number.
    behind = re.compile(rf"{re.escape(prefix)}(layers\.0\.|(?!layers\.))" if prefix else rf"model\.layers\.{target.layers}\.")
    stored = {name: tensor for name, tensor in read_shards(path).items() if behind.match(name)}
    if f"{_joining(target)}.weight" not in stored:
        return None
    config = read_config(path / "config.json", path.resolve().name)
    facts, names = runner_facts(config)
    required = _shapes(config.shapes(tied=True), facts) | _own_shapes(facts)
    whole = replace(names, layers={**names.layers, **(QWEN_NAMES if prefix else NAMES)}, ignored=f"{names.ignored}|{SHARED}")
    moved = {behind.sub("model.layers.0.", name, count=1): tensor for name, tensor in stored.items()}
    matrices = gather_experts(gather_quantised(moved, read_quantisation(config.fields.values)))
    return _heads(target, stored.values(), matrices, whole, required, {})


def _of_gguf(path: Path, target: ModelFacts) -> DraftHeads | None:
    header, behind = read_header(path), f"blk.{target.layers}."
    stored = {name: tensor for name, tensor in header.tensors.items() if name.startswith(behind)}
    if f"{behind}nextn.eh_proj.weight" not in stored:
        return None
    names = gguf_names(check_architecture(header))
    required, optional = (_shapes(shapes, target) for shapes in gguf_shapes(without_predictors(header), target))
    own = QWEN_GGUF_NAMES if ARCHITECTURES[target.architecture].predictor else GGUF_NAMES
    whole = replace(names, layers={**names.layers, **own}, ignored=f"{names.ignored}|{GGUF_SHARED}")
    moved = {f"blk.0.{name.removeprefix(behind)}": tensor for name, tensor in stored.items()}
    return _heads(target, stored.values(), moved, whole, required | _own_shapes(target), optional)


def _shapes(shapes: Shapes, facts: ModelFacts) -> Shapes:
    """Those of the last layer with attention, as the first one's: the layer that predicts is of the same kind."""
    last = f"blk.{max(i for i, kind in enumerate(facts.layer_kinds) if kind != 'none')}."
    return {f"blk.0.{name.removeprefix(last)}": shape for name, shape in shapes.items() if name.startswith(last)}


def _own_shapes(facts: ModelFacts) -> Shapes:
    last = "next_norm" if ARCHITECTURES[facts.architecture].predictor else "head_norm"
    norms = {f"blk.0.{name}.weight": (facts.hidden,) for name in ("enorm", "hnorm", last)}
    return {**norms, "blk.0.eh_proj.weight": (facts.hidden, 2 * facts.hidden)}


def _heads(
    target: ModelFacts,
    stored: Collection[TensorFacts],
    found: Mapping[str, TensorFacts],
    names: TensorNames,
    required: Shapes,
    optional: Shapes,
) -> DraftHeads:
    """One layer of a model like `target`, from what was `found` of the `stored` tensors."""
    tensors = canonical_tensors(found, names, required, optional, f"{target.architecture} predictor")
    experts = target.experts and replace(target.experts, layers=1)
    kinds = [kind for kind in target.layer_kinds if kind != "none"]
    one = replace(target, layers=1, layer_kinds=(kinds[-1],), experts=experts, state=None, tensors={})
    return DraftHeads("mtp", add_tensors(one, tensors, fingerprint(sorted({tensor.file for tensor in stored}), stored)))
