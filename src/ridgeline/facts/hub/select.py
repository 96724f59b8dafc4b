"""Choice of the files of a repository that make up a model: one copy of the weights, JSON, tokenizer, chat template. No code, no pickles.

Owns which paths are safe to write, and which quantisation is taken where a name gives none.
"""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from ridgeline.errors import ModelFormatError, ModelNotFoundError
from ridgeline.facts.files.safetensors import MAX_FILES
from ridgeline.facts.files.shards import INDEX, SINGLE
from ridgeline.facts.hub.names import HubName

SIDE_FILES: Final = frozenset(
    {
        "config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "tokenizer.model", "special_tokens_map.json",
        "added_tokens.json", "vocab.json", "merges.txt", "chat_template.jinja", "chat_template.json",
        "additional_chat_templates/tool_use.jinja", "hf_quant_config.json",
    }
)  # fmt: skip
"""Files that belong to the weights of a checkpoint, where the repository has them."""
ADAPTER_FILES: Final = ("adapter_config.json", "adapter_model.safetensors")
"""Files of a LoRA adapter as PEFT writes it."""
ADAPTER_PICKLE: Final = "adapter_model.bin"
DEFAULT_ORDER: Final = (
    "Q4_K_M", "Q4_K_S", "Q4_0", "Q4_1", "Q5_K_M", "Q5_K_S", "Q5_0", "Q6_K", "Q8_0", "IQ4_XS", "IQ4_NL", "Q3_K_L", "Q3_K_M", "Q3_K_S",
    "MXFP4", "Q2_K", "BF16", "F16", "F32",
)  # fmt: skip
"""Quantisations in the order in which one is taken where a name gives none: good quality per byte first."""
MAX_PATH_BYTES: Final = 512
MAX_PART_BYTES: Final = 255
_PICKLED = (".bin", ".pt", ".pth", ".ckpt")
_SHARD = re.compile(r"model-\d{5}-of-\d{5}\.safetensors")
_PART = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf", re.DOTALL)
_QUANTISATION = re.compile(
    r"(?:^|[-._/])((?:UD-)?(?:I?Q\d(?:_\d|_K|_NL|_XXS|_XS|_S|_M)?(?:_XXL|_XL|_XS|_L|_M|_S)?|TQ\d_0|MXFP4(?:_MOE)?|BF16|F16|F32))"
    r"(?=[-./]|$)",
    re.IGNORECASE,
)


Select = Callable[[HubName, Iterable[str]], list[str]]
"""Chooses the files that a name means among those of its repository."""


@dataclass(frozen=True, slots=True)
class GgufModel:
    """One GGUF model of a repository: its files in order, and the quantisation that their name states, in capitals, "" without one."""

    files: tuple[str, ...]
    quantisation: str


def is_safe_path(path: str) -> bool:
    """True for a relative path that stays inside the folder it is joined to, on any file system: no `..`, no control characters."""
    parts = path.split("/")
    return (
        len(path.encode("utf-8", "replace")) <= MAX_PATH_BYTES
        and path.isprintable()
        and not any(character in path for character in '\\:*?"<>|\ufffd')
        and all(part.strip(" ") == part and part.strip(".") and len(part.encode()) <= MAX_PART_BYTES for part in parts)
        and not any(part.endswith(".") for part in parts)
    )


def quantisation_of(path: str) -> str:
    """The quantisation that a file's name states, as users write it (`Q4_K_M`); "" where it states none."""
    found: list[str] = _QUANTISATION.findall(path.removesuffix(".gguf"))
    return found[-1].upper() if found else ""


def gguf_models(files: Iterable[str]) -> list[GgufModel]:
    """The complete GGUF models among `files`, by name. Vision projectors (mmproj) are none."""
    groups: dict[str, list[str]] = {}
    for file in sorted(files):
        if file.endswith(".gguf") and "mmproj" not in file.lower():
            part = _PART.fullmatch(file)
            groups.setdefault(f"{part['stem']}-00001-of-{part['count']}.gguf" if part else file, []).append(file)
    found = []
    for first, parts in groups.items():
        named = _PART.fullmatch(first)
        if named is None or (len(parts) == int(named["count"]) and parts[0] == first):
            found.append(GgufModel(tuple(parts), quantisation_of(named["stem"] if named else first)))
    return found


def select_files(name: HubName, files: Iterable[str]) -> list[str]:
    """Files of a repository that make up the model `name`: all parts of a GGUF model in order, or those of a checkpoint.

    Raises ModelNotFoundError where the name fits none or several, ModelFormatError where nothing that is accepted is there, and where two
    files would be one on a file system that ignores case.
    """
    names = sorted(file for file in files if is_safe_path(file))
    selected = _select(name, names)
    if len({file.casefold() for file in selected}) != len(selected):
        raise ModelFormatError(f"{name.repository} holds files whose names differ in their case alone; that is not accepted")
    return selected


def select_adapter_files(name: HubName, files: Iterable[str]) -> list[str]:
    """Files of a repository that make up the LoRA adapter `name`: PEFT's two, or a GGUF file. Raises as `select_files`."""
    names = sorted(file for file in files if is_safe_path(file))
    if name.file is None and name.quantisation is None and {*ADAPTER_FILES} <= {*names}:
        return [*ADAPTER_FILES]
    if any(file.endswith(".gguf") for file in names):
        return _select_gguf(name, names)
    pickled = ADAPTER_PICKLE in names
    reason = f"; {ADAPTER_PICKLE} can run any code when it is read and is not accepted" if pickled else ""
    raise ModelFormatError(f"{name.repository} holds no LoRA adapter: neither {' and '.join(ADAPTER_FILES)} nor GGUF{reason}")


def _select(name: HubName, names: list[str]) -> list[str]:
    if name.file is not None or name.quantisation is not None:
        return _select_gguf(name, names)
    top_level = [file for file in names if "/" not in file]
    weights = [SINGLE] if SINGLE in top_level else [file for file in top_level if _SHARD.fullmatch(file)]
    weights = weights or [file for file in top_level if file.endswith(".safetensors")]
    if weights and "config.json" in top_level:
        if len(weights) > MAX_FILES:
            raise ModelFormatError(f"{name.repository} holds {len(weights)} safetensors files, at most {MAX_FILES} were expected")
        extra = SIDE_FILES if SINGLE in top_level else SIDE_FILES | {INDEX}
        return [file for file in names if file in extra] + weights
    if any(file.endswith(".gguf") for file in names):
        return _select_gguf(name, names)
    pickled = next((file for file in names if file.endswith(_PICKLED)), None)
    if pickled is not None:
        raise ModelFormatError(
            f"{name.repository} holds its weights in {pickled} only; such files can run any code when they are read and are not "
            "accepted: name a repository with safetensors or GGUF files"
        )
    raise ModelFormatError(f"{name.repository} holds no model: {len(names)} files, neither a config.json with safetensors nor GGUF")


def _select_gguf(name: HubName, names: list[str]) -> list[str]:
    models = gguf_models(names)
    if name.file is not None:
        matching = [model for model in models if name.file in model.files]
    elif name.quantisation is not None:
        matching = _with_quantisation(models, name.quantisation)
    else:
        preferred = (_with_quantisation(models, each) for each in DEFAULT_ORDER)
        matching = models if len(models) == 1 else next((found for found in preferred if len(found) == 1), models)
    if len(matching) == 1:
        return list(matching[0].files)
    selected = name.file or name.quantisation or "one GGUF model"
    available = ", ".join(model.files[0] for model in models[:12]) or "none"
    raise ModelNotFoundError(
        f"{name.repository} holds {len(matching)} GGUF models that are {selected!r}, exactly one was expected; "
        f"name it as {name.repository}:Q4_K_M or {name.repository}/file.gguf; there are: {available}"
    )


def _with_quantisation(models: list[GgufModel], quantisation: str) -> list[GgufModel]:
    """Models of exactly this quantisation; where no name has it as its quantisation, those whose name contains it as a word."""
    exact = [model for model in models if model.quantisation == quantisation.upper()]
    word = re.compile(rf"(?:^|[-._/]){re.escape(quantisation)}(?:[-./]|$)", re.IGNORECASE)
    return exact or [model for model in models if word.search(model.files[0])]
