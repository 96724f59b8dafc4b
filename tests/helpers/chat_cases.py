"""Conversations that every template is tried with, real templates, and a tokenizer of bytes and names."""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any
from unittest.mock import patch

from tool_cases import OWN

from gold import TEMPLATES
from ridgeline.text import chat
from ridgeline.text.chat import ChatTemplate, TemplateFiles
from ridgeline.text.chat_process import Renderer
from ridgeline.text.tokenizer import MASK, Tokenizer

NOW = datetime(2026, 3, 4, 5, 6, 7)
TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}
NAMES = re.compile(
    r"<\|[^<>|\s]{1,40}\|>|<｜[^<>｜\s]{1,40}｜>|</?[a-zA-Z_]{1,30}[0-9]*\|?>|<\|[a-z_]+>|\[/?[A-Z_]{3,30}\]|\]~!?b\]|\[e~\[|\]<\][a-z]+\[>\[|</?s>"
)
"""What looks like the name of a control token, in the templates of the corpus."""


def _turn(role: str, content: str) -> dict[str, Any]:
    return {"role": role, "content": content}


_PLACE = {"place": {"type": "string", "description": "City & country"}, "days": {"type": "integer"}}
_TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "Weather of a <place>.",
            "parameters": {"type": "object", "properties": _PLACE, "required": ["place"]},
        },
    }
]
_CALLS = [{"id": "abcdef123", "type": "function", "function": {"name": "get_weather", "arguments": {"place": "Zürich & Bern", "days": 2}}}]
CONVERSATIONS: dict[str, dict[str, Any]] = {
    "system": {"messages": [_turn("system", "Be terse."), _turn("user", "Hello there!")]},
    "turns": {"messages": [_turn("user", "Hi"), _turn("assistant", "Hello, who are you?"), _turn("user", "  I'm Zoë — 你好  ")]},
    "tools": {"messages": [_turn("system", "Be terse."), _turn("user", "Weather in Bern?")], "tools": _TOOLS},
    "results": {
        "messages": [
            _turn("user", "Weather in Bern?"),
            {"role": "assistant", "content": None, "tool_calls": _CALLS},
            {"role": "tool", "tool_call_id": "abcdef123", "name": "get_weather", "content": '{"degrees": 21}'},
            _turn("assistant", "21 degrees."),
            _turn("user", "Thanks"),
        ],
        "tools": _TOOLS,
    },
    "empty": {"messages": [_turn("user", "")]},
    "continued": {
        "messages": [_turn("user", "Write a poem"), _turn("assistant", "Roses are red, ")],
        "continue_final_message": True,
        "add_generation_prompt": False,
    },
}


class NamedTokenizer:
    """A `Tokenizer`: ids 0 … 255 are bytes, then come the names of control tokens, in order."""

    def __init__(self, names: Sequence[str], bos: str | None = None, eos: Sequence[str] = ()) -> None:
        self.names = tuple(dict.fromkeys([*names, *([bos] if bos else []), *eos]))
        self.bos = self.id_of(bos) if bos else None
        self.eos_ids = frozenset(256 + self.names.index(name) for name in eos)
        self.markup = frozenset[str]()
        self.vocab_size = 256 + len(self.names)
        self.control = range(256, self.vocab_size)
        self.quick_characters = 1 << 16
        longest_first = sorted(map(re.escape, self.names), key=len, reverse=True)
        self._at = re.compile(f"({'|'.join(longest_first)})") if self.names else None

    def encode(self, text: str, add_bos: bool, special: bool = False) -> list[int]:
        ids = [self.bos] if add_bos and self.bos is not None else []
        for index, part in enumerate(self._at.split(text) if special and self._at else [text]):
            ids.extend([self.id_of(part)] if index % 2 else part.replace(MASK, "").encode())
        return ids

    def id_of(self, piece: str) -> int | None:
        return 256 + self.names.index(piece) if piece in self.names else None

    def piece(self, token: int) -> bytes:
        return bytes((token,)) if token < 256 else self.names[token - 256].encode()

    def is_control(self, token: int) -> bool:
        return token >= 256

    def decode(self, ids: Sequence[int], skip_special: bool) -> str:
        return b"".join(self.piece(token) for token in ids if not (skip_special and self.is_control(token))).decode("utf-8", "replace")


def found(text: str, tokens: Mapping[str, str] = TOKENS) -> TemplateFiles:
    """One template, as if the model's files had brought it."""
    return TemplateFiles({"default": text}, tokens, "model")


class _Variant:
    """What a `ChatTemplate` asks of its renderer, answered by one that has many models' templates."""

    def __init__(self, renderer: Renderer, name: str) -> None:
        self.variables = renderer.variables
        self._renderer, self._name = renderer, name

    def render(self, variant: str, variables: Mapping[str, Any], now: tuple[int, ...]) -> str:
        return self._renderer.render(self._name, variables, now)

    async def render_from_loop(self, variant: str, variables: Mapping[str, Any], now: tuple[int, ...]) -> str | None:
        return await self._renderer.render_from_loop(self._name, variables, now)

    def close(self) -> None:
        """Others still need the process."""


@contextmanager
def corpus(names: Collection[str] | None = None) -> Iterator["Corpus"]:
    """Every real template, and those of `tool_cases`, or some, in one process: to start one for each takes most of a test's time."""
    texts = {path.stem: path.read_text() for path in sorted(TEMPLATES.glob("*.jinja"))} | OWN
    texts = texts if names is None else {name: texts[name] for name in names}
    renderer = Renderer(texts)
    try:
        yield Corpus(texts, renderer)
    finally:
        renderer.close()


class Corpus:
    """Real templates by name."""

    def __init__(self, texts: dict[str, str], renderer: Renderer) -> None:
        self.texts = texts
        self._renderer = renderer

    def load(self, name: str, tokenizer: Tokenizer, tokens: Mapping[str, str] = TOKENS) -> ChatTemplate:
        """As `ChatTemplate` would be loaded with this template alone."""
        with patch.object(chat, "Renderer", lambda texts: _Variant(self._renderer, name)):
            return ChatTemplate(found(self.texts[name], tokens), tokenizer, lambda: NOW)
