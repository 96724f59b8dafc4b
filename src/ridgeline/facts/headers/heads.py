"""Checkpoints of heads that draft for another model from its hidden states: Medusa, EAGLE and EAGLE-3, in their published formats.

Owns how they are told from models of their own, their names and shapes. What is given beside them and drafts the same, copies of the
target's embedding and head, is not read.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from ridgeline.errors import ConfigError, ModelFormatError
from ridgeline.facts.files.json_file import read_object
from ridgeline.facts.files.shards import read_shards
from ridgeline.facts.headers.checkpoint import runner_facts
from ridgeline.facts.headers.config_json import parse_config
from ridgeline.facts.headers.tensors import Shapes, add_tensors, canonical_names, canonical_tensors, fingerprint
from ridgeline.facts.model import ModelFacts, TensorFacts
from ridgeline.models.declare import LAYER_NAMES, TensorNames

Tensors = dict[str, TensorFacts]

MAX_HEADS: Final = 8
"""Heads of Medusa that are read: no row drafts more ids."""
_LAYER: Final = {**LAYER_NAMES, "hidden_norm": ("hidden_norm",)}
_OUTER: Final = {"fc": "fc", "norm": "output_norm", "lm_head": "output"}
_LAYER_IDS: Final = "eagle_aux_hidden_state_layer_ids"
EAGLE: Final = TensorNames(_LAYER, outer={"fc": "fc"}, ignored=r".*(rotary_emb\..*|embed_tokens\.weight|lm_head\.weight)")
EAGLE3: Final = TensorNames(_LAYER, outer=_OUTER, ignored=r".*(rotary_emb\..*|embed_tokens\.weight)")
_MEDUSA: Final = (
    (re.compile(r"(?:medusa_head\.)?(\d+)\.(\d+)\.linear\.(weight|bias)"), "res"),
    (re.compile(r"(?:medusa_head\.)?(\d+)\.(\d+)\.(weight)"), "head"),
    (re.compile(r"blocks\.(\d+)\.layers\.(\d+)\.(weight|bias)"), "res"),
    (re.compile(r"lm_heads\.(\d+)()\.(weight)"), "head"),
)
"""Names of the authors' files (medusa_lm_head.safetensors), and of vLLM's."""


@dataclass(frozen=True, slots=True)
class DraftHeads:
    """Heads that draft for a target.

    kind     module of `ridgeline.models.heads`
    facts    their own layer and tensors; a layer, or none, with K and V
    most     ids that they draft one behind the other; 0: any number
    tapped   layers of the target in front of which its hidden states are read; (): behind the last norm
    offsets  tensor that says, for each id of the heads, how far behind it the target's is (int64); None: ids are the target's
    norm_before_residual  EAGLE-3 adds attention to the normed hidden states
    """

    kind: str
    facts: ModelFacts
    most: int = 0
    tapped: tuple[int, ...] = ()
    offsets: TensorFacts | None = None
    norm_before_residual: bool = False

    @property
    def attends(self) -> bool:
        """True where they have keys and values."""
        return self.kind != "medusa"


def read_heads(directory: Path, target: ModelFacts) -> DraftHeads | None:
    """The heads in a checkpoint's directory; None for a model of its own. Raises ConfigError for heads that no runner has and for those of
    another model, ModelFormatError."""
    file = directory / "config.json"
    if not file.is_file():
        return None  # GGUF files have none
    config = read_object(file)
    kind = _kind(config) or _kind_of_tensors(directory)
    if kind is None:
        return None
    if kind not in ("Medusa", "EAGLE"):
        raise ConfigError(
            f"--draft-model {str(directory)!r:.200} has {kind} heads, which are not read. Give Medusa or EAGLE heads, or a small model "
            "of the same tokens; layers inside of the target's checkpoint draft with --speculative mtp",
            fix={"--draft-model": None, "--speculative": "suffix"},
        )
    stored = read_shards(directory)
    return _read_medusa(stored, target) if kind == "Medusa" else _read_eagle(stored, config, target)


def _kind(config: Mapping[str, Any]) -> str | None:
    """The name of the heads, as config.json has it; None for what looks like a model of its own."""
    given = config.get("architectures")
    named = [config.get("model_type"), config.get("speculators_model_type"), *(given if isinstance(given, list) else ())]
    words = " ".join(each.lower() for each in named if isinstance(each, str))
    if "medusa_num_heads" in config or "medusa" in words:
        return "Medusa"
    if "eagle" in words or "draft_vocab_size" in config:
        return "EAGLE"
    if "mlp_speculator" in words:
        return "MLP speculator"
    return "MTP" if "mtp" in words or "nextn" in words else None


def _kind_of_tensors(directory: Path) -> str | None:
    """EAGLE's first files call themselves a model of one layer; what joins ids and hidden states tells them."""
    single = directory / "model.safetensors"
    return "EAGLE" if single.is_file() and "fc.weight" in read_shards(directory) else None


def _read_medusa(stored: Tensors, target: ModelFacts) -> DraftHeads:
    named: Tensors = {}
    for name, tensor in stored.items():
        for pattern, part in _MEDUSA:
            if found := pattern.fullmatch(name):
                head, block, suffix = found.groups()
                named[f"blk.{head}.{part}_{block}.{suffix}" if part == "res" else f"blk.{head}.head.{suffix}"] = tensor
                break
        else:
            raise ModelFormatError(f"tensor {name!r:.100} is not part of Medusa heads")
    heads = sum(name.endswith(".head.weight") for name in named)
    blocks = len({name for name in named if name.startswith("blk.0.res_") and name.endswith(".weight")})
    required: Shapes = {}
    for head in range(heads):
        required[f"blk.{head}.head.weight"] = (target.vocab, target.hidden)
        for block in range(blocks):
            required |= {f"blk.{head}.res_{block}.weight": (target.hidden,) * 2, f"blk.{head}.res_{block}.bias": (target.hidden,)}
    if not heads or named.keys() != required.keys():
        odd = min(named.keys() ^ required.keys(), default="blk.0.head.weight")
        raise ModelFormatError(f"{odd} is missing or behind the last of {heads} Medusa heads of {blocks} blocks; download them again")
    for name, shape in required.items():
        if named[name].shape != shape:
            raise _of_another(f"tensor {named[name].name!r} has shape {named[name].shape}", f"{shape} fits the target")
    used = {name: replace(tensor, name=name) for name, tensor in named.items() if int(name.split(".")[1]) < MAX_HEADS}
    return DraftHeads("medusa", _own(target, used, stored), most=min(heads, MAX_HEADS))


def _read_eagle(stored: Tensors, config: Mapping[str, Any], target: ModelFacts) -> DraftHeads:
    nested = next((config[key] for key in ("model", "transformer_layer_config") if isinstance(config.get(key), dict)), config)
    text = json.dumps({"model_type": "llama", **nested, "num_hidden_layers": 1, "tie_word_embeddings": True})
    own, _ = runner_facts(parse_config(text, "EAGLE"))
    for width in (own.hidden, config.get("target_hidden_size")):
        if width not in (None, target.hidden):
            raise _of_another(f"its hidden states have {width!r:.40} numbers", f"the target's {target.hidden}")
    offsets = stored.get("d2t")
    tensors = {re.sub(r"^midlayer\.", "layers.0.", name): tensor for name, tensor in stored.items() if name not in ("d2t", "t2d")}
    third = any(name.endswith("hidden_norm.weight") for name in tensors)
    names = EAGLE3 if third else EAGLE
    found = {part for name in tensors for part in canonical_names(name, names) or ()}
    rows = _eagle3_shapes(own, tensors) if third else _eagle_shapes(own, found)
    biases = {f"{name.removesuffix('.weight')}.bias": shape[:1] for name, shape in rows.items() if len(shape) > 1}
    required = rows | {name: shape for name, shape in biases.items() if name in found}
    canonical = canonical_tensors(tensors, names, required, {}, "EAGLE")
    facts = replace(_own(own, canonical, stored), tokens=canonical["output.weight"].shape[0] if third else target.tokens, tied=False)
    if not third:
        return DraftHeads("eagle", facts, offsets=offsets)
    normed = config.get("norm_before_residual", "speculators_model_type" in config)
    return DraftHeads("eagle3", facts, tapped=_tapped(config, target), offsets=offsets, norm_before_residual=bool(normed))


def _tapped(config: Mapping[str, Any], target: ModelFacts) -> tuple[int, ...]:
    """The layers of the target that EAGLE-3 reads: at the top of config.json, as vLLM takes them, those in front of which it does, in
    `eagle_config`, as SGLang does, those behind which. Raises ConfigError."""
    within = config.get("eagle_config")
    within = within if isinstance(within, dict) else {}
    if within.get("use_aux_hidden_state") is False:
        raise ConfigError("--draft-model: EAGLE-3 heads with use_aux_hidden_state: false are not read", fix={"--draft-model": None})
    for given, shift in ((config.get(_LAYER_IDS), 0), (within.get(_LAYER_IDS), 1)):
        if given:
            fit = isinstance(given, list) and [type(each) is int and 0 <= each + shift < target.layers for each in given]
            if fit != [True] * 3:
                raise _of_another(f"{_LAYER_IDS} is {given!r:.80}", f"three of the target's {target.layers} layers were expected")
            return tuple(each + shift for each in given)
    return 2, target.layers // 2, target.layers - 3


def _eagle_shapes(own: ModelFacts, found: set[str]) -> Shapes:
    shapes = {"fc.weight": (own.hidden, 2 * own.hidden), **_layer_shapes(own, own.hidden)}
    if "blk.0.attn_norm.weight" in found:
        shapes["blk.0.attn_norm.weight"] = (own.hidden,)
    return shapes


def _eagle3_shapes(own: ModelFacts, stored: Tensors) -> Shapes:
    head = stored.get("lm_head.weight")
    norms = dict.fromkeys(("blk.0.attn_norm.weight", "blk.0.hidden_norm.weight", "output_norm.weight"), (own.hidden,))
    drafted = own.vocab if head is None else head.shape[0]
    return {
        "fc.weight": (own.hidden, 3 * own.hidden), "output.weight": (drafted, own.hidden),
        **norms, **_layer_shapes(own, 2 * own.hidden),
    }  # fmt: skip


def _layer_shapes(own: ModelFacts, inputs: int) -> Shapes:
    """Shapes of a layer whose attention reads so many inputs."""
    queries, keys = own.heads * own.head_dim, own.kv_heads * own.head_dim
    layer = {
        "attn_q": (queries, inputs), "attn_k": (keys, inputs), "attn_v": (keys, inputs), "attn_output": (own.hidden, queries),
        "ffn_norm": (own.hidden,), "ffn_gate": (own.ffn, own.hidden), "ffn_up": (own.ffn, own.hidden), "ffn_down": (own.hidden, own.ffn),
    }  # fmt: skip
    return {f"blk.0.{name}.weight": shape for name, shape in layer.items()}


def _own(facts: ModelFacts, tensors: Tensors, stored: Tensors) -> ModelFacts:
    """Facts of a head of one layer, with its tensors."""
    files = sorted({tensor.file for tensor in stored.values()})
    one = replace(facts, layers=1, layer_kinds=("full",), window=0, ties_ignored=False)
    return add_tensors(one, tensors, fingerprint(files, stored.values()))


def _of_another(found: str, expected: str) -> ConfigError:
    return ConfigError(
        f"--draft-model: {found}, {expected}: they were trained with another model; give the heads of this one",
        fix={"--draft-model": None, "--speculative": "suffix"},
    )
