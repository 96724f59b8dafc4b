"""The layer of a checkpoint that predicts further tokens (MTP): `model.layers.N` behind the last of N layers (DeepSeek-V3, GLM-4.5)."""

from dataclasses import replace
from pathlib import Path
from typing import Final

from ridgeline.errors import ConfigError
from ridgeline.facts.files.shards import read_shards
from ridgeline.facts.headers.checkpoint import runner_facts
from ridgeline.facts.headers.config_json import read_config
from ridgeline.facts.headers.experts import gather_experts
from ridgeline.facts.headers.heads import DraftHeads
from ridgeline.facts.headers.quantisation import read_quantisation
from ridgeline.facts.headers.quantised import gather_quantised
from ridgeline.facts.headers.tensors import add_tensors, canonical_tensors, fingerprint
from ridgeline.facts.model import ModelFacts
from ridgeline.models.heads.mtp import NAMES, SHARED

FIX: Final = {"--speculative": "suffix"}


def read_predictor(path: Path, target: ModelFacts) -> DraftHeads:
    """Heads of the checkpoint at `path`, as `find_predictor` finds them. Raises ConfigError where there is none, ModelFormatError."""
    if not path.is_dir():
        raise ConfigError("--speculative mtp reads a directory of safetensors files; of GGUF files such layers are left out", fix=FIX)
    heads = find_predictor(path, target)
    if heads is None:
        found = f"model.layers.{target.layers}.eh_proj.weight is not in the files"
        raise ConfigError(f"--speculative mtp: {found}: this checkpoint has no layer that predicts further tokens", fix=FIX)
    return heads


def find_predictor(path: Path, target: ModelFacts) -> DraftHeads | None:
    """The first such layer of the checkpoint at `path`, that of `target`; None where there is none. Raises ModelFormatError."""
    behind = f"model.layers.{target.layers}."
    stored = {name: tensor for name, tensor in read_shards(path).items() if name.startswith(behind)} if path.is_dir() else {}
    if f"{behind}eh_proj.weight" not in stored:
        return None
    config = read_config(path / "config.json", path.resolve().name)
    facts, names = runner_facts(config)
    last, norm = f"blk.{facts.layers - 1}.", (facts.hidden,)
    required = {f"blk.0.{name.removeprefix(last)}": shape for name, shape in config.shapes(tied=True).items() if name.startswith(last)}
    required |= {"blk.0.enorm.weight": norm, "blk.0.hnorm.weight": norm, "blk.0.head_norm.weight": norm}
    required["blk.0.eh_proj.weight"] = (facts.hidden, 2 * facts.hidden)
    whole = replace(names, layers={**names.layers, **NAMES}, ignored=f"{names.ignored}|{SHARED}")
    moved = {f"model.layers.0.{name.removeprefix(behind)}": tensor for name, tensor in stored.items()}
    matrices = gather_experts(gather_quantised(moved, read_quantisation(config.fields.values)))
    tensors = canonical_tensors(matrices, whole, required, {}, f"{facts.architecture} predictor")
    experts = target.experts and replace(target.experts, layers=1)
    one = replace(target, layers=1, layer_kinds=target.layer_kinds[-1:], experts=experts, tensors={})
    files = sorted({tensor.file for tensor in stored.values()})
    return DraftHeads("mtp", add_tensors(one, tensors, fingerprint(files, stored.values())))
