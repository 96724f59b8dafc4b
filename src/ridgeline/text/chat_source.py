"""Sources of a model's chat template: a GGUF header, the files of a directory, a file that the user names, or Ridgeline's own.

Owns which place wins. Reads bounded texts and never looks into them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from ridgeline.errors import ConfigError, ModelFormatError, ModelNotFoundError
from ridgeline.facts.files.gguf import Header, read_header
from ridgeline.facts.files.json_file import read_object, read_text
from ridgeline.text.tokenizer import Tokenizer

Source = Literal["model", "file", "built in"]

MAX_TEMPLATE_BYTES: Final = 1 << 20
MAX_JSON_BYTES: Final = 16 << 20
"""Gemma 3's tokenizer_config.json has 1.2 MB."""
MAX_NAMES: Final = 64

DEFAULT, TOOL_USE = "default", "tool_use"
"""The variants of a template that are ever used: the second for conversations with tools, where a model has it."""

_BUILT_IN = frozenset({"demo"})
"""Packaged models without a template, for which one lies in `templates/`."""

_GGUF_TOKENS = {
    "bos": "bos_token", "eos": "eos_token", "unknown": "unk_token", "padding": "pad_token", "seperator": "sep_token", "mask": "mask_token",
    "cls": "cls_token",
}  # fmt: skip
"""`tokenizer.ggml.*_token_id` (spelt as in GGUF) → the variable that templates read."""


@dataclass(frozen=True, slots=True)
class Found:
    """texts: variant → template, the default among them. tokens: variable → name of a token, as templates read them (`bos_token`)."""

    texts: Mapping[str, str]
    tokens: Mapping[str, str]
    source: Source


def find_template(path: Path | None, model: str, tokenizer: Tokenizer, file: Path | None) -> Found | None:
    """The template of the model at `path` (None: a fake model, without files), which the user calls `model`; None where there is none.

    Raises ConfigError where `file` cannot be read, ModelFormatError where the model's files are malformed.
    """
    if path is None:
        texts, tokens = dict[str, str](), dict[str, str]()
    elif path.is_dir():
        config = _object(path / "tokenizer_config.json")
        texts, tokens = _of_directory(path, config), _tokens_of_directory(path, config)
    else:
        header = read_header(path)
        texts, tokens = _of_header(header), _tokens_of_header(header, tokenizer)
    if file is not None:
        return Found({DEFAULT: _named_file(file)}, tokens, "file")
    if DEFAULT in texts:
        return Found(texts, tokens, "model")
    if model in _BUILT_IN:
        return Found({DEFAULT: read_text(Path(__file__).with_name("templates") / f"{model}.jinja")}, tokens, "built in")
    return None


def _named_file(file: Path) -> str:
    try:
        return read_text(file, MAX_TEMPLATE_BYTES)
    except (ModelFormatError, ModelNotFoundError) as error:
        raise ConfigError(f"--chat-template: {error}", fix={"--chat-template": None}) from None


def _of_header(header: Header) -> dict[str, str]:
    keys = {DEFAULT: "tokenizer.chat_template", TOOL_USE: f"tokenizer.chat_template.{TOOL_USE}"}
    if keys[DEFAULT] not in header.metadata:
        keys[DEFAULT] += f".{DEFAULT}"
    return {name: header.text(key) for name, key in keys.items() if key in header.metadata}


def _tokens_of_header(header: Header, tokenizer: Tokenizer) -> dict[str, str]:
    tokens = {}
    for key, name in _GGUF_TOKENS.items():
        if f"tokenizer.ggml.{key}_token_id" in header.metadata:
            token = header.integer(f"tokenizer.ggml.{key}_token_id", 0, tokenizer.vocab_size - 1)
            tokens[name] = tokenizer.piece(token).decode("utf-8", "replace")
    return tokens


def _of_directory(path: Path, config: Mapping[str, Any]) -> dict[str, str]:
    """Templates by name, as in transformers: files of their own before tokenizer_config.json; chat_template.json is older."""
    texts = {}
    for name, file in ((DEFAULT, path / "chat_template.jinja"), (TOOL_USE, path / "additional_chat_templates" / f"{TOOL_USE}.jinja")):
        if file.is_file():
            texts[name] = read_text(file, MAX_TEMPLATE_BYTES)
    return texts or _stated(config, "tokenizer_config.json") or _stated(_object(path / "chat_template.json"), "chat_template.json")


def _stated(values: Mapping[str, Any], name: str) -> dict[str, str]:
    """`chat_template`: a string, or a list of objects with name and template."""
    stated = values.get("chat_template")
    if stated is None:
        return {}
    if isinstance(stated, str):
        stated = [{"name": DEFAULT, "template": stated}]
    if not isinstance(stated, list) or not all(isinstance(one, dict) and isinstance(one.get("template"), str) for one in stated):
        raise ModelFormatError(f"{name}: chat_template is neither a string nor a list of objects with name and template")
    texts: dict[str, str] = {one["name"]: one["template"] for one in stated if one.get("name") in (DEFAULT, TOOL_USE)}
    if longest := max((len(text) for text in texts.values() if len(text) > MAX_TEMPLATE_BYTES), default=0):
        raise ModelFormatError(f"{name}: a chat template has {longest} characters, at most {MAX_TEMPLATE_BYTES} are possible")
    return texts


def _tokens_of_directory(path: Path, config: Mapping[str, Any]) -> dict[str, str]:
    tokens: dict[str, str] = {}
    for values in (_object(path / "special_tokens_map.json"), config):
        for name, value in values.items():
            text = value.get("content") if isinstance(value, dict) else value
            if name.endswith("_token") and isinstance(text, str) and len(tokens) < MAX_NAMES:
                tokens[name] = text
    return tokens


def _object(path: Path) -> dict[str, Any]:
    return read_object(path, MAX_JSON_BYTES) if path.is_file() else {}
