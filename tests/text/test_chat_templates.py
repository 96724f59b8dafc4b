"""Every real template on every kind of conversation: the text and the ids of transformers' `apply_chat_template`, or an error as there."""

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
from ridgeline.text.chat_content import Conversation
from ridgeline.text.files import load_tokenizer

STEMS = sorted(path.stem for path in TEMPLATES.glob("*.jinja"))


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
        try:
            expected = reference.apply_chat_template(messages, chat_template=text, tokenize=False, **fields)
        except Exception:
            with pytest.raises(RequestError):
                template.encode(conversation, tokenizer)
            continue
        assert template.render(conversation) == expected, name
        ids = reference.apply_chat_template(messages, chat_template=text, tokenize=True, return_dict=False, **fields)
        assert template.encode(conversation, tokenizer) == ids, name
