"""Reader of LoRA adapters: directories of PEFT and GGUF files to the low-rank changes of a model's matrices, by canonical name.

Hu et al. 2021, "LoRA"; Kalajdzievski 2023, "A Rank Stabilization Scaling Factor" (rsLoRA). Reads headers alone: every rank, shape and
size is checked against the model before anything is allocated, and what cannot be computed is refused by name.
"""

import hashlib
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from math import sqrt
from pathlib import Path
from typing import Any, Final

from ridgeline.errors import ModelFormatError
from ridgeline.facts.files.gguf import MAX_ALIGNMENT, Header, read_header
from ridgeline.facts.files.json_file import read_object
from ridgeline.facts.files.safetensors import read_file
from ridgeline.facts.files.values import bounded_integer, bounded_number, open_file, quoted
from ridgeline.facts.headers.gguf import gguf_names
from ridgeline.facts.headers.tensors import canonical_names
from ridgeline.facts.hub.select import ADAPTER_FILES
from ridgeline.facts.model import ModelFacts, TensorFacts
from ridgeline.models.table import ARCHITECTURES, module_name

MAX_RANK: Final = 256
PIECE_BYTES: Final = 1 << 19
"""Bytes that are hashed at once."""
CONFIG_FILE, WEIGHTS_FILE = ADAPTER_FILES
KINDS: Final = ("F32", "F16", "BF16")
"""Types of tensors of adapters."""
_MAX_ALPHA: Final = 1e6
_MERGE: Final = "merge it into the model with PEFT's merge_and_unload, and serve that"
_PREFIX: Final = "base_model.model."
_PARTS: Final = re.compile(r"(?P<module>.+)\.lora_(?P<part>[AB])(\.default)?\.weight")
_GGUF_PARTS: Final = re.compile(r"(?P<module>.+\.weight)\.lora_(?P<part>[ab])")
_PATTERN: Final = re.compile(r"\^?[\w.]{1,200}")
_REFUSED: Final[Mapping[str, str]] = {
    "use_dora": "DoRA", "modules_to_save": "whole modules (modules_to_save)", "lora_bias": "biases of its own (lora_bias)",
    "trainable_token_indices": "rows of the embedding (trainable_token_indices)",
    "target_parameters": "single parameters (target_parameters)",
    "alora_invocation_tokens": "activated LoRA (alora_invocation_tokens)", "use_qalora": "QALoRA", "layer_replication": "repeated layers",
    "megatron_config": "a layout of Megatron's",
}  # fmt: skip
"""Key of adapter_config.json that changes what the adapter computes → what it asks for."""
_STRANGE: Final = {
    "lora_magnitude_vector": "DoRA's magnitudes (lora_magnitude_vector)", "lora_embedding": "a change of the embedding (lora_embedding)",
    "lora_B.bias": "biases of its own (lora_B.bias)", "modules_to_save": "whole modules (modules_to_save)",
}  # fmt: skip
"""Part of a tensor's name → what it is."""


@dataclass(frozen=True, slots=True)
class LowRank:
    """The change scale · B · A of the matrix `name` [N, K].

    a          [rank, K]
    b          [≥ N, rank]: rows `first` … first + N − 1 belong to this matrix
    transform  "interleaved": rows of B are in the order of pairwise RoPE, as those of the matrix in the adapter's format
    """

    name: str
    shape: tuple[int, int]
    a: TensorFacts
    b: TensorFacts
    scale: float
    first: int = 0
    transform: str = ""

    @property
    def rank(self) -> int:
        """Rows of A."""
        return self.a.shape[0]


@dataclass(frozen=True, slots=True)
class AdapterFacts:
    """An adapter of a model. `bytes`: of its matrices as fp32."""

    parts: tuple[LowRank, ...]
    files: tuple[Path, ...]

    @property
    def rank(self) -> int:
        """The largest one."""
        return max(part.rank for part in self.parts)

    @property
    def bytes(self) -> int:
        """Bytes of all matrices in memory, at most."""
        return sum(4 * part.rank * sum(part.shape) for part in self.parts)


def read_adapter(path: Path, facts: ModelFacts, max_rank: int = MAX_RANK) -> AdapterFacts:
    """The adapter at `path`, a directory of PEFT's or a GGUF file, for a model of these facts.

    Raises ModelFormatError with the cause and what to do; ModelNotFoundError where a file is missing.
    """
    found = _read_peft(path, facts) if path.is_dir() else _read_gguf(path, facts)
    if not found.parts:
        raise ModelFormatError(f"{path.name} holds no pair of LoRA matrices; is it an adapter?")
    ((name, times),) = Counter(part.name for part in found.parts).most_common(1)
    if times > 1:
        raise ModelFormatError(f"{path.name} changes {name} {times} times, under several names; which change is meant is unknown")
    if found.rank > max_rank:
        advice = f"start with --max-lora-rank {found.rank}" if found.rank <= MAX_RANK else f"at most {MAX_RANK} are possible: {_MERGE}"
        raise ModelFormatError(f"{path.name} has rank {found.rank}, at most {max_rank} are taken; {advice}")
    return found


def digest_of(contents: Iterable[bytes], between: Callable[[], None] = lambda: None) -> bytes:
    """SHA-256 over the contents of an adapter's files, in their order: what names it, in prefix keys too. `between` is called between
    pieces of the work."""
    digests = []
    for content in contents:
        digest = hashlib.sha256()
        for begin in range(0, len(content), PIECE_BYTES):
            digest.update(memoryview(content)[begin : begin + PIECE_BYTES])
            between()
        digests.append(digest.digest())
    return hashlib.sha256(b"".join(digests)).digest()


def file_contents(facts: AdapterFacts) -> Iterator[bytes]:
    """Contents of an adapter's files, whose sizes have been checked. Raises ModelNotFoundError."""
    for path in facts.files:
        with open_file(path) as file:
            yield file.read()


def _read_peft(path: Path, facts: ModelFacts) -> AdapterFacts:
    config = read_object(path / CONFIG_FILE)
    weights = path / WEIGHTS_FILE
    if not weights.exists() and weights.with_suffix(".bin").exists():
        raise ModelFormatError(f"{path.name} holds adapter_model.bin, a pickle, which is never read; save it again as safetensors")
    scales = _scales(config)
    names = ARCHITECTURES[facts.architecture].checkpoint
    if names is None:
        raise ModelFormatError(f"adapters of PEFT are not supported for {facts.architecture}; {_MERGE}")
    pairs: dict[str, dict[str, TensorFacts]] = {}
    for name, tensor in read_file(weights).items():
        found = _PARTS.fullmatch(name.removeprefix(_PREFIX))
        if found is None:
            raise _strange(name)
        _add(pairs, found["module"], found["part"].lower(), tensor)
    transforms = {name: each for name, each in names.transforms.items() if each == "interleaved"}  # B of a Conv1D is [N, rank] too
    parts: list[LowRank] = []
    for module, pair in pairs.items():
        made = _parts(module, pair, canonical_names(f"{module}.weight", names), facts, transforms)
        parts += [replace(each, scale=scales.of(module, each.rank)) for each in made]
    return AdapterFacts(tuple(parts), (path / CONFIG_FILE, weights))


@dataclass(frozen=True, slots=True)
class _Scales:
    alpha: float
    patterns: Mapping[str, float]
    is_stabilised: bool

    def of(self, module: str, rank: int) -> float:
        """The factor of a module's change. Alpha is that of the first pattern that names it, or the end of its path, as in PEFT."""
        alpha = self.alpha
        for pattern, own in self.patterns.items():
            name = pattern.removeprefix("^")
            if module == name or (name == pattern and module.endswith(f".{name}")):
                alpha = own
                break
        return alpha / (sqrt(rank) if self.is_stabilised else rank)


def _scales(config: Mapping[str, Any]) -> _Scales:
    """Checks adapter_config.json. Raises ModelFormatError for what changes the arithmetic in another way than LoRA's."""
    kind = config.get("peft_type")
    if kind != "LORA":
        raise ModelFormatError(f"{CONFIG_FILE}: peft_type is {quoted(kind)}, only LORA is supported; {_MERGE}")
    for key, asks_for in _REFUSED.items():
        if config.get(key):
            raise ModelFormatError(f"{CONFIG_FILE}: the adapter asks for {asks_for}, which is not supported; {_MERGE}")
    if config.get("bias", "none") != "none":
        raise ModelFormatError(f"{CONFIG_FILE}: bias is {quoted(config['bias'])}, only none is supported; {_MERGE}")
    bounded_integer(config.get("r"), f"{CONFIG_FILE}: r", 1, 1 << 20)
    patterns = config.get("alpha_pattern") or {}
    if not isinstance(patterns, dict) or len(patterns) > 4_096 or not all(_PATTERN.fullmatch(each) for each in patterns):
        raise ModelFormatError(f"{CONFIG_FILE}: alpha_pattern has more than names of modules; {_MERGE}")
    numbers = {each: bounded_number(alpha, f"{CONFIG_FILE}: alpha_pattern", 0, _MAX_ALPHA) for each, alpha in patterns.items()}
    alpha = bounded_number(config.get("lora_alpha"), f"{CONFIG_FILE}: lora_alpha", 0, _MAX_ALPHA, default=8)
    return _Scales(alpha, numbers, bool(config.get("use_rslora")))


def _read_gguf(path: Path, facts: ModelFacts) -> AdapterFacts:
    header = read_header(path)
    _check_gguf(header, path, facts)
    _check_length(header)
    alpha = header.number("adapter.lora.alpha", 0, _MAX_ALPHA)
    names = gguf_names(ARCHITECTURES[facts.architecture])
    pairs: dict[str, dict[str, TensorFacts]] = {}
    for name, tensor in header.tensors.items():
        found = _GGUF_PARTS.fullmatch(name)
        if found is None:
            raise _strange(name)
        _add(pairs, found["module"], found["part"], tensor)
    parts: list[LowRank] = []
    for module, pair in pairs.items():
        made = _parts(module, pair, canonical_names(module, names), facts, names.transforms)
        parts += [replace(each, scale=alpha / each.rank if alpha else 1.0) for each in made]  # as llama.cpp reads an alpha of 0
    return AdapterFacts(tuple(parts), header.files)


def _check_gguf(header: Header, path: Path, facts: ModelFacts) -> None:
    kind, form = header.text("general.type", "model"), header.text("adapter.type", "")
    if kind != "adapter" or form != "lora":
        raise ModelFormatError(f"{path.name}: general.type is {quoted(kind)}, adapter.type {quoted(form)}; adapter and lora were expected")
    architecture = header.text("general.architecture")
    if module_name(architecture) != facts.architecture:
        raise ModelFormatError(f"{path.name} is an adapter of {quoted(architecture)}, the model is {quoted(facts.architecture)}")
    if "adapter.alora.invocation_tokens" in header.metadata:
        raise ModelFormatError(f"{path.name}: the adapter asks for activated LoRA, which is not supported")


def _check_length(header: Header) -> None:
    """Raises ModelFormatError where a file goes on behind its last tensor: all of it is read, and tensors alone have a bounded size."""
    alignment = header.integer("general.alignment", 1, MAX_ALIGNMENT, default=32)
    for file in header.files:
        end = max((tensor.offset + tensor.bytes for tensor in header.tensors.values() if tensor.file == file), default=0)
        size = file.stat().st_size
        if end and size > end + alignment:
            raise ModelFormatError(f"{file.name} has {size:,} bytes and its last tensor ends at {end:,}; save the adapter again")


def _add(pairs: dict[str, dict[str, TensorFacts]], module: str, part: str, tensor: TensorFacts) -> None:
    """Notes one of a module's two matrices. Raises ModelFormatError where there is one already."""
    pair = pairs.setdefault(module, {})
    if part in pair:
        raise ModelFormatError(f"{quoted(tensor.name)} and {quoted(pair[part].name)} are the same matrix; one of them must go")
    pair[part] = tensor


def _parts(
    module: str, pair: Mapping[str, TensorFacts], names: tuple[str, ...] | None, facts: ModelFacts, transforms: Mapping[str, str]
) -> list[LowRank]:
    """The changes of the matrices of one stored module, with scale 0. Raises ModelFormatError where they do not fit the model."""
    if pair.keys() != {"a", "b"}:
        raise ModelFormatError(f"{quoted(module)} has one of the two LoRA matrices; the adapter is incomplete")
    if not names or not all(_can_change(name, facts) for name in names):
        raise ModelFormatError(f"the adapter changes {quoted(module)}, which is no matrix that an adapter can change here; {_MERGE}")
    shapes = [facts.tensors[name].shape for name in names]
    a, b = pair["a"], pair["b"]
    inputs, outputs, rank = shapes[0][1], sum(shape[0] for shape in shapes), a.shape[0] if len(a.shape) == 2 else 0
    if a.shape != (rank, inputs) or b.shape != (outputs, rank) or not rank:
        raise ModelFormatError(
            f"the matrices of {quoted(module)} have shapes {a.shape} and {b.shape}, (rank, {inputs}) and ({outputs}, rank) were expected; "
            "is it an adapter of this model?"
        )
    for tensor in (a, b):
        if tensor.kind not in KINDS:
            raise ModelFormatError(f"{quoted(tensor.name)} is stored as {tensor.kind}; {', '.join(KINDS)} are supported")
    found, first = [], 0
    for name, shape in zip(names, shapes, strict=True):
        found.append(LowRank(name, (shape[0], shape[1]), a, b, 0.0, first, transforms.get(name.split(".")[-2], "")))
        first += shape[0]
    return found


def _can_change(name: str, facts: ModelFacts) -> bool:
    """True of a matrix of a layer that is multiplied for every token; embedding, head, routers, routed experts and convolutions are not."""
    tensor = facts.tensors.get(name)
    other = name.endswith(("_exps.weight", ".ffn_gate_inp.weight", ".ffn_gate_inp_shexp.weight", ".ssm_conv1d.weight"))
    return tensor is not None and len(tensor.shape) == 2 and name.startswith("blk.") and not other


def _strange(name: str) -> ModelFormatError:
    asks_for = next((what for part, what in _STRANGE.items() if part in name), f"the tensor {quoted(name)}")
    return ModelFormatError(f"the adapter holds {asks_for}, which is not supported; {_MERGE}")
