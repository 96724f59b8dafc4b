"""Tiny random heads that draft for tiny checkpoints of transformers, in their published formats, and what they draft by the papers'
formulas: whole contexts at once, with transformers' own layers, and no cache."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from checkpoints import Checkpoint
from convert import gguf_tensors, write_gguf
from safetensors.torch import load_file, save_file

from ridgeline.facts.model import ModelFacts

Tensors = dict[str, torch.Tensor]
Reference = Callable[[Sequence[int], int], list[int]]
"""(known ids, number) → the ids that are drafted greedily behind them."""
BLOCKS, HEADS, DRAFTED = 2, 3, 120
"""Residual blocks and heads of Medusa; ids that EAGLE-3's head knows."""
QWEN_NAMES = {"enorm": "pre_fc_norm_embedding", "hnorm": "pre_fc_norm_hidden", "shared_head.norm": "norm"}
"""Norms of DeepSeek's layer that predicts further tokens → names in Qwen3-Next's files, behind "mtp."."""


def normal(random: np.random.Generator, *shape: int, gain: float = 1.0) -> torch.Tensor:
    spread = 0.3 if len(shape) == 1 else gain * shape[-1] ** -0.5
    return torch.from_numpy((random.standard_normal(shape) * spread).astype(np.float32))


def norm(random: np.random.Generator, width: int) -> torch.Tensor:
    return 1 + normal(random, width)


def write_medusa(made: Checkpoint, path: Path, *, authors: bool = True) -> Reference:
    """Heads in the files of their authors, or of vLLM."""
    random, width, vocab = np.random.default_rng(1), made.model.config.hidden_size, made.model.config.vocab_size
    blocks = [[(normal(random, width, width), normal(random, width)) for _ in range(BLOCKS)] for _ in range(HEADS)]
    heads = [normal(random, vocab, width, gain=3.0) for _ in range(HEADS)]
    tensors: Tensors = {}
    for head in range(HEADS):
        for block, (weight, bias) in enumerate(blocks[head]):
            stem = f"{head}.{block}.linear" if authors else f"blocks.{head}.layers.{block}"
            tensors |= {f"{stem}.weight": weight, f"{stem}.bias": bias}
        tensors[f"{head}.{BLOCKS}.weight" if authors else f"lm_heads.{head}.weight"] = heads[head]
    path.mkdir()
    save_file(tensors, path / ("medusa_lm_head.safetensors" if authors else "model.safetensors"))
    (path / "config.json").write_text(json.dumps({"medusa_num_heads": HEADS, "medusa_num_layers": BLOCKS}))

    def drafts(known: Sequence[int], number: int) -> list[int]:
        hidden = states_of(made, known)[-1][-2]
        found = []
        for own, head in zip(blocks[:number], heads[:number], strict=True):
            x = hidden
            for weight, bias in own:
                x = x + torch.nn.functional.silu(x @ weight.T + bias)
            found.append(int((x @ head.T).argmax()))
        return found

    return drafts


def states_of(made: Checkpoint, ids: Sequence[int]) -> tuple[torch.Tensor, ...]:
    """Hidden states [T, D] in front of each layer of the target, then those behind its last norm."""
    with torch.no_grad():
        found = made.model.model(torch.tensor([list(ids)]), output_hidden_states=True, use_cache=False)
    return tuple(each[0] for each in (*found.hidden_states[:-1], found.last_hidden_state))


def chain(first: torch.Tensor, known: Sequence[int], number: int, layer: Callable[..., torch.Tensor], logits: Any, ids: Any) -> list[int]:
    """Drafts of a head with attention: `layer` turns ids and features of all positions into its outputs, of which the last ones are the
    features of drafts."""
    features, tokens, found = first[:-1], list(known[1:]), []
    with torch.no_grad():
        while len(found) < number:
            out = layer(torch.tensor(tokens), features)
            found.append(int(ids(int(logits(out[-1]).argmax()))))
            tokens.append(found[-1])
            features = torch.cat([features, out[-1:]])
    return found


def run_layer(model: Any, layer: Any, x: torch.Tensor, **changed: Any) -> torch.Tensor:
    """A decoder layer of transformers over one sequence from position 0 on: [T, D] → [T, D]."""
    count = len(x)
    at = torch.arange(count)[None]
    mask = torch.full((count, count), float("-inf")).triu(1)[None, None]
    turns = model.model.rotary_emb(x[None], at)
    out = layer(x[None], attention_mask=mask, position_ids=at, position_embeddings=turns, **changed)
    return (out[0] if isinstance(out, tuple) else out)[0]


def _fill(module: Any, random: np.random.Generator) -> None:
    with torch.no_grad():
        for value in module.parameters():
            value.copy_(norm(random, *value.shape) if value.dim() == 1 else normal(random, *value.shape, gain=1.3))


def _saved(path: Path, tensors: Tensors, config: dict[str, Any]) -> None:
    path.mkdir()
    save_file({name: value.contiguous() for name, value in tensors.items()}, path / "model.safetensors")
    (path / "config.json").write_text(json.dumps(config))


def _config(made: Checkpoint) -> dict[str, Any]:
    config = json.loads((made.directory / "config.json").read_text())
    return {**config, "num_hidden_layers": 1, "tie_word_embeddings": False}


def write_eagle(made: Checkpoint, path: Path) -> Reference:
    """EAGLE's first files: a Llama of one layer by its config, without the layer's first norm."""
    from transformers.models.llama.modeling_llama import LlamaDecoderLayer

    random, model, width = np.random.default_rng(2), made.model, made.model.config.hidden_size
    layer = LlamaDecoderLayer(model.config, 0).eval()
    _fill(layer, random)
    layer.input_layernorm = torch.nn.Identity()
    fc, bias = normal(random, width, 2 * width), normal(random, width)
    tensors = {f"layers.0.{name}": value for name, value in layer.state_dict().items()}
    own = {"fc.weight": fc, "fc.bias": bias, "embed_tokens.weight": model.model.embed_tokens.weight.detach().clone()}
    _saved(path, tensors | own, _config(made))

    def whole(ids: torch.Tensor, features: torch.Tensor) -> torch.Tensor:
        x = torch.cat([model.model.embed_tokens(ids), features], dim=1) @ fc.T + bias
        return run_layer(model, layer, x)

    return lambda known, number: chain(states_of(made, known)[-1], known, number, whole, model.lm_head, int)


def write_eagle3(
    made: Checkpoint, path: Path, *, prefix: str = "midlayer.", taps: Sequence[int] = (), normed: bool = False, **config: Any
) -> Reference:
    """EAGLE-3 with a head of some ids; `taps`: the layers in front of which it reads, `normed`: attention is added to normed features,
    where they are not the paper's. `config`: what config.json has beside the usual."""
    from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaRMSNorm

    random, model, width = np.random.default_rng(3), made.model, made.model.config.hidden_size
    layer = LlamaDecoderLayer(model.config, 0).eval()
    for name in ("q_proj", "k_proj", "v_proj"):
        setattr(layer.self_attn, name, torch.nn.Linear(2 * width, getattr(layer.self_attn, name).out_features, bias=False))
    _fill(layer, random)
    hidden_norm, last_norm = (LlamaRMSNorm(width, model.config.rms_norm_eps) for _ in range(2))
    for each in (hidden_norm, last_norm):
        _fill(each, random)
    fc, head = normal(random, width, 3 * width), normal(random, DRAFTED, width, gain=3.0)
    chosen = np.sort(random.permutation(model.config.vocab_size)[:DRAFTED])
    tensors = {f"{prefix}{name}": value for name, value in layer.state_dict().items()}
    own = {
        f"{prefix}hidden_norm.weight": hidden_norm.weight.detach(), "norm.weight": last_norm.weight.detach(), "fc.weight": fc,
        "lm_head.weight": head, "d2t": torch.from_numpy(chosen - np.arange(DRAFTED)),
        "t2d": torch.from_numpy(np.isin(np.arange(model.config.vocab_size), chosen)),
    }  # fmt: skip
    _saved(path, tensors | own, {**_config(made), "architectures": ["LlamaForCausalLMEagle3"], "draft_vocab_size": DRAFTED, **config})

    def whole(ids: torch.Tensor, features: torch.Tensor) -> torch.Tensor:
        within = hidden_norm(features)
        both = torch.cat([layer.input_layernorm(model.model.embed_tokens(ids)), within], dim=1)
        count = len(ids)
        at, mask = torch.arange(count)[None], torch.full((count, count), float("-inf")).triu(1)[None, None]
        turns = model.model.rotary_emb(both[None], at)
        x = (within if normed else features) + layer.self_attn(both[None], attention_mask=mask, position_embeddings=turns)[0][0]
        return x + layer.mlp(layer.post_attention_layernorm(x))

    def drafts(known: Sequence[int], number: int) -> list[int]:
        states, count = states_of(made, known), made.model.config.num_hidden_layers
        first = torch.cat([states[at] for at in taps or (2, count // 2, count - 3)], dim=1) @ fc.T
        return chain(first, known, number, whole, lambda x: last_norm(x) @ head.T, lambda token: chosen[token])

    return drafts


def add_predictor(made: Checkpoint, path: Path, gguf: str | None = None) -> Reference:
    """A copy of the checkpoint with a layer behind its last that predicts further tokens, as DeepSeek-V3 and GLM-4.5 have it, or
    Qwen3-Next; as a GGUF file in F32 where its architecture is given."""
    import copy
    import shutil

    random, model, width = np.random.default_rng(4), made.model, made.model.config.hidden_size
    qwen = model.config.model_type == "qwen3_next"
    count = model.config.num_hidden_layers
    layer = copy.deepcopy(model.model.layers[-1])
    _fill(layer, random)
    norms = {name: copy.deepcopy(model.model.norm) for name in ("enorm", "hnorm", "shared_head.norm")}
    for each in norms.values():
        _fill(each, random)
    eh_proj = normal(random, width, 2 * width)
    if gguf is not None:
        stem, rest = f"blk.{count}.nextn.", {"eh_proj": eh_proj.numpy(), "shared_head_head": model.lm_head.weight.detach().numpy()}
        rest |= {name.replace(".", "_"): each.weight.detach().numpy() + np.float32(qwen) for name, each in norms.items()}
        behind = gguf_tensors(model, gguf, layer, f"model.layers.{count}.") | {f"{stem}{name}.weight": rest[name] for name in rest}
        write_gguf(path, model, gguf, "F32", behind)
        return _predictions(made, model, layer, norms, eh_proj)
    shutil.copytree(made.directory, path, ignore=shutil.ignore_patterns("*.gguf"))
    behind = "mtp.layers.0." if qwen else f"model.layers.{count}."
    own = {f"{behind}{name}": value for name, value in stored_names(made, layer).items()}
    if qwen:
        own |= {f"mtp.{QWEN_NAMES[name]}.weight": each.weight.detach() for name, each in norms.items()} | {"mtp.fc.weight": eh_proj}
    else:
        own |= {f"{behind}{name}.weight": each.weight.detach() for name, each in norms.items()} | {f"{behind}eh_proj.weight": eh_proj}
        own |= {f"{behind}embed_tokens.weight": model.model.embed_tokens.weight.detach().clone()}
        own |= {f"{behind}shared_head.head.weight": model.lm_head.weight.detach().clone()}
    tensors = load_file(path / "model.safetensors") | own
    save_file({name: value.contiguous() for name, value in tensors.items()}, path / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(config if qwen else {**config, "num_nextn_predict_layers": 1}))

    return _predictions(made, model, layer, norms, eh_proj)


def _predictions(made: Checkpoint, model: Any, layer: Any, norms: dict[str, Any], eh_proj: torch.Tensor) -> Reference:
    """What the layer predicts by the formula. Qwen3-Next's hands on what its last norm makes."""
    last = norms["shared_head.norm"]
    qwen = model.config.model_type == "qwen3_next"

    def whole(ids: torch.Tensor, features: torch.Tensor) -> torch.Tensor:
        both = torch.cat([norms["enorm"](model.model.embed_tokens(ids)), norms["hnorm"](features)], dim=1)
        x = run_layer(model, layer, both @ eh_proj.T)
        return last(x) if qwen else x

    def logits(x: torch.Tensor) -> torch.Tensor:
        return model.lm_head(x if qwen else last(x))

    return lambda known, number: chain(states_of(made, known)[-1], known, number, whole, logits, int)


def stored_names(made: Checkpoint, layer: Any) -> Tensors:
    """Tensors of a layer by the names of files, in which each expert has its own matrices."""
    found: Tensors = {}
    for name, value in layer.state_dict().items():
        if name.endswith("experts.gate_up_proj"):
            stem = name.removesuffix("gate_up_proj")
            for expert, matrix in enumerate(value):
                gate, up = matrix.chunk(2)
                found |= {f"{stem}{expert}.gate_proj.weight": gate.clone(), f"{stem}{expert}.up_proj.weight": up.clone()}
        elif name.endswith("experts.down_proj"):
            stem = name.removesuffix("down_proj")
            found |= {f"{stem}{expert}.down_proj.weight": matrix.clone() for expert, matrix in enumerate(value)}
        else:
            found[name] = value
    return found


def write_random(kind: str, path: Path, facts: ModelFacts, repeating: np.ndarray | None = None) -> Path:
    """Random heads for a model of any architecture. repeating: the matrix of its head; EAGLE and Medusa then mostly draft what the hidden
    state in front has said, and are often right where the model says one thing for ever."""
    random, width, vocab, ffn = np.random.default_rng(6), facts.hidden, facts.vocab, 2 * facts.hidden
    path.mkdir()
    if kind == "medusa":
        tensors = {f"{head}.{HEADS - 2}.weight": normal(random, vocab, width) for head in range(HEADS)}
        for head in range(HEADS):
            tensors |= {f"{head}.0.linear.weight": normal(random, width, width), f"{head}.0.linear.bias": normal(random, width)}
        config: dict[str, Any] = {"medusa_num_heads": HEADS}
    else:
        inputs = 2 * width if kind == "eagle3" else width
        tensors = {
            "fc.weight": normal(random, width, (3 if kind == "eagle3" else 2) * width),
            "layers.0.post_attention_layernorm.weight": norm(random, width),
            "layers.0.self_attn.o_proj.weight": normal(random, width, width),
            "layers.0.mlp.down_proj.weight": normal(random, width, ffn),
        }
        tensors |= {f"layers.0.self_attn.{name}_proj.weight": normal(random, width, inputs) for name in "qkv"}
        tensors |= {f"layers.0.mlp.{name}_proj.weight": normal(random, ffn, width) for name in ("gate", "up")}
        if kind == "eagle3":
            tensors |= {f"layers.0.{name}.weight": norm(random, width) for name in ("input_layernorm", "hidden_norm")}
            tensors |= {"norm.weight": norm(random, width), "lm_head.weight": normal(random, vocab // 2, width)}
            tensors["d2t"] = torch.arange(vocab // 2)
        config = {
            "model_type": "llama", "hidden_size": width, "intermediate_size": ffn, "num_attention_heads": 4, "num_hidden_layers": 1,
            "vocab_size": vocab, "max_position_embeddings": 512, "rms_norm_eps": 1e-6,
        }  # fmt: skip
    if repeating is not None:
        for name, value in tensors.items():
            if name.endswith(("linear.weight", "linear.bias", "o_proj.weight", "down_proj.weight")):
                value.mul_(0.3)
            elif kind == "medusa":
                value.copy_(torch.from_numpy(repeating))
        if kind == "eagle":
            tensors["fc.weight"] = torch.cat([0.3 * tensors["fc.weight"][:, :width], torch.eye(width)], dim=1)
    save_file(tensors, path / "model.safetensors")
    (path / "config.json").write_text(json.dumps(config))
    return path
