"""Bodies cut around their text are the bodies that the encoder would have made, whatever stands around and whatever the text."""

import msgspec
import pytest

from ridgeline.engine.answer import Shown
from ridgeline.server.answer import Header, Render, Spelling, TextEvents
from ridgeline.server.chat import ChatRender
from ridgeline.server.completions import CompletionRender
from ridgeline.text.stream import Release
from ridgeline.text.tokenizer import ByteTokenizer

TEXTS = ("", "a", "0", "1", '"', "\\", "\n\t\x00\x1f", "naïve 漢字 🙂", "\u2028", "</script>", '01","text":"0')
SPELLING = Spelling(ByteTokenizer(), False)


def renders(name: str) -> list[Render]:
    header = Header("cmpl-0101", 1, name, "fp_10")
    return [CompletionRender(header, SPELLING, None, None, False, False), ChatRender(header, SPELLING, False, None, False)]


@pytest.mark.parametrize("name", ["model", "0", '"text":"0"', "01" * 9])
def test_cut_bodies_equal_encoded_ones(name: str) -> None:
    for render in renders(name):
        assert render.plain
        texts = TextEvents(lambda shown, render=render: render.show(shown, None))
        for index in (0, 3, 10, 0):
            for text in TEXTS:
                shown = Shown(index, Release(7, (5,), (text,)))
                assert texts.body(shown) == msgspec.json.encode(render.show(shown, None))


def test_what_shows_more_than_text_is_not_plain() -> None:
    header = Header("x", 1, "m", "fp")
    assert not CompletionRender(header, SPELLING, 0, None, False, False).plain
    assert not CompletionRender(header, SPELLING, None, None, False, True).plain
    assert not ChatRender(header, SPELLING, True, None, False).plain
    assert not ChatRender(header, SPELLING, False, None, True).plain
