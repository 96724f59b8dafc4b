"""Events put together from prefix, text and suffix equal the events that the encoder makes, whatever the fields and the text."""

import msgspec
import pytest

from ridgeline.engine.answer import ChoiceDelta
from ridgeline.server.answer import AnswerFormat, Header, TextEvents
from ridgeline.server.chat import ChatFormat
from ridgeline.server.completions import CompletionFormat
from ridgeline.server.logprobs import TokenNames
from ridgeline.text.stream import TextDelta
from ridgeline.text.tokenizer import ByteTokenizer

TEXTS = ("", "a", "0", "1", '"', "\\", "\n\t\x00\x1f", "naïve 漢字 🙂", "\u2028", "</script>", '01","text":"0')
NAMES = TokenNames(ByteTokenizer(), False)


def formats(name: str) -> list[AnswerFormat]:
    header = Header("cmpl-0101", 1, name, "fp_10")
    return [CompletionFormat(header, NAMES, None, None, False, False), ChatFormat(header, NAMES, False, None, False)]


@pytest.mark.parametrize("name", ["model", "0", '"text":"0"', "01" * 9])
def test_prefix_text_and_suffix_equal_the_encoded_event(name: str) -> None:
    for form in formats(name):
        assert form.is_text_only
        texts = TextEvents(lambda delta, form=form: form.delta_event(delta, None))
        for index in (0, 3, 10, 0):
            for text in TEXTS:
                delta = ChoiceDelta(index, TextDelta(7, (5,), (text,)))
                assert texts.encode(delta) == msgspec.json.encode(form.delta_event(delta, None))


def test_events_with_more_than_text_are_encoded_whole() -> None:
    header = Header("x", 1, "m", "fp")
    assert not CompletionFormat(header, NAMES, 0, None, False, False).is_text_only
    assert not CompletionFormat(header, NAMES, None, None, False, True).is_text_only
    assert not ChatFormat(header, NAMES, True, None, False).is_text_only
    assert not ChatFormat(header, NAMES, False, None, True).is_text_only
