"""A model's files on the model itself: its names, the ids that end its answers, and whether it was trained to chat.

Owns the keys and files that state these. `model_kind` concludes base or instruct from them; nothing here looks at weights.
"""

import json
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from ridgeline.facts.files.gguf import read_header
from ridgeline.facts.files.json_file import read_object, read_text
from ridgeline.facts.headers.generation import FILE, read_generation
from ridgeline.text.chat import MAX_JSON_BYTES, ChatTemplate
from ridgeline.text.tokenizer import Tokenizer

Ends = Mapping[str, frozenset[int]]
"""Place that states ids that end an answer → the ids; -1 for the name of a token that does not exist."""

MAX_TOKENIZER_BYTES: Final = 64 << 20
_NAME_KEYS: Final = ("general.finetune", "general.basename", "general.name")
_MAX_NAME: Final = 200
_INSTRUCT: Final = re.compile(
    r"(?i)(?<![a-z])(?:it|instruct(?:ion|ed)?|chat(?:ml|bot)?|sft|dpo|orpo|rlhf|assistant|thinking|reasoning|r1|distill|zephyr|hermes|vicuna"
    r"|gpt-oss)(?![a-z])"
)
_BASE: Final = re.compile(r"(?i)(?<![a-z])(?:base|pt|pretrain(?:ed|ing)?|foundation)(?![a-z])")
"""Words of a model's name that say how it was trained."""


@dataclass(frozen=True, slots=True)
class Statements:
    """Statements of the files of a model.

    names  of the model
    ends   ids that end an answer, by the place that says so
    added  (id, name) of the tokens that tokenizer.json adds to its vocabulary
    """

    names: tuple[str, ...]
    ends: Ends
    added: tuple[tuple[int, str], ...] = ()


@dataclass(frozen=True, slots=True)
class ModelKind:
    """The way a model was trained, and a sentence that says from what this was concluded.

    A base model continues texts; asked as if it could chat it answers nonsense.
    """

    kind: Literal["base", "instruct"]
    reason: str


def read_statements(name: str, path: Path | None, tokenizer: Tokenizer) -> Statements:
    """Statements of the files at `path` (None: a model without files), which the user calls `name`."""
    names, ends = list[Any](), dict[str, frozenset[int]]()
    if path is not None and path.is_dir():
        names, ends = _of_directory(path, tokenizer)
    elif path is not None:
        metadata = read_header(path).metadata
        names = [metadata.get(key) for key in _NAME_KEYS]
        keys = (f"tokenizer.ggml.{end}_token_id" for end in ("eos", "eot", "eom"))
        ends = {key: frozenset({value}) for key in keys if type(value := metadata.get(key)) is int}
        names.append(path.stem)
    texts = (each.rpartition("/")[2][:_MAX_NAME] for each in (*names, name) if isinstance(each, str))
    added = () if path is None or not path.is_dir() else _added_tokens(path / "tokenizer.json")
    return Statements(tuple(dict.fromkeys(filter(None, texts))), {place: ids for place, ids in ends.items() if ids}, added)


def _of_directory(path: Path, tokenizer: Tokenizer) -> tuple[list[Any], dict[str, frozenset[int]]]:
    config, named = _object(path / "config.json"), _object(path / "tokenizer_config.json")
    ids = config.get("eos_token_id")
    ends = {
        FILE: read_generation(path).eos_ids,
        "config.json": frozenset(each for each in (ids if isinstance(ids, list) else [ids]) if type(each) is int),
    }
    content = named.get("eos_token")
    text = content.get("content") if isinstance(content, dict) else content
    if isinstance(text, str):
        found = tokenizer.id_of(text)
        ends["tokenizer_config.json"] = frozenset({-1 if found is None else found})
    return [config.get("_name_or_path"), path.name], ends


def _added_tokens(file: Path) -> tuple[tuple[int, str], ...]:
    """Entries of `added_tokens`, read without the vocabulary behind them, which may have 30 MB."""
    text = read_text(file, MAX_TOKENIZER_BYTES) if file.is_file() else ""
    start = text.find("[", text.find('"added_tokens"'))
    try:
        entries = json.JSONDecoder().raw_decode(text, start)[0] if '"added_tokens"' in text and start > 0 else []
    except (RecursionError, ValueError):
        return ()
    pairs = ((entry.get("id"), entry.get("content")) for entry in entries if isinstance(entry, dict))
    return tuple((token, name) for token, name in pairs if type(token) is int and isinstance(name, str))


def _object(path: Path) -> Mapping[str, Any]:
    return read_object(path, MAX_JSON_BYTES) if path.is_file() else {}


def model_kind(stated: Statements, template: ChatTemplate | None) -> ModelKind:
    """Base or instruct: what the name says, else whether the files hold a chat template, and end answers where it ends turns."""
    if name := _name_with(_INSTRUCT, stated.names):
        return ModelKind("instruct", f"its name {name!r} says so")
    if name := _name_with(_BASE, stated.names):
        return ModelKind("base", f"its name {name!r} says so")
    if template is None or template.source == "built in":
        return ModelKind("base", "its files hold no chat template")
    # Only this file is the authors' word on it: GGUF files of chat models often state the end of texts alone.
    ends = stated.ends.get(FILE, frozenset())
    if template.source == "model" and ends and template.stop_ids and not template.stop_ids & ends:
        return ModelKind("base", f"its {FILE} does not end answers where its chat template ends turns")
    return ModelKind("instruct", "it has a chat template" if template.source == "model" else "it was started with a chat template")


def _name_with(pattern: re.Pattern[str], names: Collection[str]) -> str | None:
    return next((name for name in names if pattern.search(name)), None)
