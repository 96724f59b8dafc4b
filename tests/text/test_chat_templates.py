"""Every real template on every kind of conversation: the text and the ids of transformers' `apply_chat_template`, or an error as there."""

import asyncio
import json
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import gguf
import pytest
from chat_cases import CONVERSATIONS, NAMES, NOW, TOKENS, Corpus, corpus
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast
from transformers.utils import chat_template_utils

from gold import TEMPLATES, vocabulary
from ridgeline.errors import RequestError
from ridgeline.text.chat_content import Conversation, unmasked
from ridgeline.text.files import load_tokenizer

STEMS = sorted(path.stem for path in TEMPLATES.glob("*.jinja"))
FOLDED_BY_DAY = {*STEMS[2::3], "Qwen-Qwen3-0.6B"}
"""Templates of every lack; `test_chat_roles.py` looks at each fold by itself."""


def is_quick(conversation: Conversation) -> bool:
    """True where every content is a plain text, and nothing else is given."""
    plain = all(isinstance(each.get("content"), str) and "tool_calls" not in each for each in conversation.messages)
    return plain and not conversation.tools and not conversation.documents


class _Clock(datetime):
    @classmethod
    def now(cls, tz: Any = None) -> datetime:  # type: ignore[override]
        return NOW


@pytest.fixture(scope="module")
def real() -> Iterator[Corpus]:
    with corpus() as found:
        yield found


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model directory: GPT-2's vocabulary, and the names in all templates as control tokens."""
    fields = gguf.GGUFReader(vocabulary("gpt-2")).fields
    pieces, merges = (fields[f"tokenizer.ggml.{key}"].contents() for key in ("tokens", "merges"))
    pairs = [tuple(merge.split(" ", 1)) for merge in merges]
    tokenizer = Tokenizer(models.BPE(vocab={piece: at for at, piece in enumerate(pieces)}, merges=pairs))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    names = {name for stem in STEMS for name in NAMES.findall((TEMPLATES / f"{stem}.jinja").read_text())} - {"<place>"}
    tokenizer.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in sorted({*names, *TOKENS.values()})])
    path = tmp_path_factory.mktemp("vocabulary")
    tokenizer.save(str(path / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "add_bos_token": False, **TOKENS}
    (path / "tokenizer_config.json").write_text(json.dumps(config))
    (path / "config.json").write_text(json.dumps({"model_type": "gpt2", "vocab_size": tokenizer.get_vocab_size()}))
    return path


@pytest.fixture(scope="module")
def reference(directory: Path) -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast.from_pretrained(directory)


@pytest.fixture(scope="module")
def tokenizer(directory: Path) -> Any:
    return load_tokenizer(directory)


@pytest.mark.parametrize("stem", STEMS)
def test_text_and_ids_are_those_of_transformers(
    stem: str, real: Corpus, reference: PreTrainedTokenizerFast, tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chat_template_utils, "datetime", _Clock)
    template = real.load(stem, tokenizer)
    text = real.texts[stem]
    for name, stated in CONVERSATIONS.items():
        fields = {"add_generation_prompt": True, **stated}
        conversation = Conversation(**fields)
        messages = fields.pop("messages")
        if template.folded_roles(conversation):
            continue  # below
        try:
            expected = reference.apply_chat_template(messages, chat_template=text, tokenize=False, **fields)
        except Exception:
            messages = [{**message, "content": message["content"] or ""} for message in messages]  # some read it of calls too
            try:
                expected = reference.apply_chat_template(messages, chat_template=text, tokenize=False, **fields)
            except Exception:
                with pytest.raises(RequestError):
                    template.encode(conversation, tokenizer)
                continue
        assert template.render(conversation) == expected, name
        ids = reference(expected, add_special_tokens=False)["input_ids"]  # as apply_chat_template does with what it rendered
        assert template.encode(conversation, tokenizer) == ids, name
        masked = asyncio.run(template.masked_from_loop(conversation))
        assert (masked and unmasked(masked)) == (expected if is_quick(conversation) else None), name


def _turn(role: str, content: str | None, **more: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **more}


HELLO, REPLY, AGAIN, MORE = _turn("user", "Hello there"), _turn("assistant", "Good day"), _turn("user", "Go on"), _turn("user", "Please")
RULES, STYLE = "Be terse.", "Write in rhyme."
RESULT = _turn("tool", "21 degrees", tool_call_id="abcdef123", name="get_weather")


def _call(arguments: object, content: str | None) -> dict[str, Any]:
    function = {"name": "get_weather", "arguments": arguments}
    return _turn("assistant", content, tool_calls=[{"id": "abcdef123", "type": "function", "function": function}])


CALLS = [_call(arguments, content) for content in (None, "") for arguments in ({"place": "Bern"}, '{"place": "Bern"}')]
"""The ways in which a template may want a call; clients send the second."""
CALL_TEXT = _turn("assistant", '[tool call: get_weather]\n{"place": "Bern"}')
RESULT_TEXT = _turn("user", "[tool result: get_weather]\n21 degrees")


FOLDS: dict[str, list[list[dict[str, Any]]]] = {
    "developer": [
        [_turn("developer", RULES), HELLO], [_turn("system", RULES), HELLO], [_turn("user", "Be terse.\n\nHello there")],
    ],
    "developer later": [
        [HELLO, REPLY, _turn("developer", RULES), AGAIN], [HELLO, REPLY, _turn("system", RULES), AGAIN],
        [HELLO, REPLY, _turn("user", "Be terse.\n\nGo on")],
    ],
    "system": [[_turn("system", RULES), HELLO], [_turn("user", "Be terse.\n\nHello there")]],
    "system later": [[HELLO, REPLY, _turn("system", RULES), AGAIN], [HELLO, REPLY, _turn("user", "Be terse.\n\nGo on")]],
    "system last": [[HELLO, REPLY, AGAIN, _turn("system", RULES)], [HELLO, REPLY, _turn("user", "Go on\n\nBe terse.")]],
    "two systems": [
        [_turn("system", RULES), _turn("system", STYLE), HELLO], [_turn("system", "Be terse.\n\nWrite in rhyme."), HELLO],
        [_turn("user", "Be terse.\n\nWrite in rhyme.\n\nHello there")],
    ],
    "two users": [[HELLO, REPLY, AGAIN, MORE], [HELLO, REPLY, _turn("user", "Go on\n\nPlease")]],
    "two assistants": [
        [HELLO, REPLY, _turn("assistant", "Who are you?"), AGAIN], [HELLO, _turn("assistant", "Good day\n\nWho are you?"), AGAIN]
    ],
    "tool last": [*([HELLO, call, RESULT] for call in CALLS), [HELLO, CALL_TEXT, RESULT], [HELLO, CALL_TEXT, RESULT_TEXT]],
    "tool": [
        *([HELLO, call, RESULT, REPLY, AGAIN] for call in CALLS), [HELLO, CALL_TEXT, RESULT, REPLY, AGAIN],
        [HELLO, CALL_TEXT, RESULT_TEXT, REPLY, AGAIN],
    ],
}  # fmt: skip
"""Conversations as they are sent, and what they are told as where a template does not take that, nearest first: written by hand."""


def stands(reference: PreTrainedTokenizerFast, template: str, messages: list[dict[str, Any]], sent: list[dict[str, Any]]) -> str | None:
    """transformers' text; None where it raises an error or leaves out something that was `sent`."""
    try:
        text: str = reference.apply_chat_template(messages, chat_template=template, tokenize=False, add_generation_prompt=True)
    except Exception:
        return None
    contents = [part for message in sent for part in ([message["content"]] if message["content"] else ["get_weather", "Bern"])]
    return text if all(content in text for content in contents) else None


@pytest.mark.parametrize("stem", [each if each in FOLDED_BY_DAY else pytest.param(each, marks=pytest.mark.night) for each in STEMS])
def test_roles_that_a_template_lacks_are_folded_as_documented(
    stem: str, real: Corpus, reference: PreTrainedTokenizerFast, tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The expected string is transformers' of the first way of telling the conversation that the template writes whole."""
    monkeypatch.setattr(chat_template_utils, "datetime", _Clock)
    template, text = real.load(stem, tokenizer), real.texts[stem]
    if stands(reference, text, [HELLO], [HELLO]) is None:
        return  # it needs tools
    for name, ways in FOLDS.items():
        native = len(CALLS) if name.startswith("tool") else 1
        texts = [stands(reference, text, messages, ways[0]) for messages in ways]
        if name == "system last" and stands(reference, text, FOLDS["system later"][0], FOLDS["system later"][0]) is None:
            texts[0] = None  # templates that count turns let it pass by chance
        number = next(at for at, found in enumerate(texts) if found is not None)
        conversation = Conversation(ways[1] if native > 1 else ways[0])
        assert template.render(conversation) == texts[number], (name, number)
        assert bool(template.folded_roles(conversation)) == (number >= native), name
