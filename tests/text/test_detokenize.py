"""Text that arrives token by token equals the text of all ids at once, and never has the prompt's."""

import random
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from ridgeline.text.stream import Detokenizer
from ridgeline.text.tokenizer import ByteTokenizer

LIKELY = (*"aé€😀\ufffd".encode(), 0xE0, 0xED, 0xA0, 0x80, 0xBF, 0xF4, 0x90, 0xFF, 0xC0, 256, 257)


def texts(ids: Sequence[int], prompt: Sequence[int] = (), skip_special: bool = True) -> list[str]:
    detokenizer = Detokenizer(ByteTokenizer(), skip_special, prompt)
    return [*map(detokenizer.push, ids), detokenizer.finish()]


def test_token_by_token_equals_all_at_once() -> None:
    rng = random.Random(5)
    tokenizer = ByteTokenizer()
    for _ in range(20_000):
        ids = rng.choices(LIKELY, k=rng.randrange(10))
        skip_special = rng.random() < 0.5
        assert "".join(texts(ids, (), skip_special)) == tokenizer.decode(ids, skip_special)


def test_the_outputs_continue_the_prompt_and_repeat_nothing_of_it() -> None:
    """The prompt's text stands as it was shown; if it ended inside a character that the outputs do not complete, as U+FFFD."""
    rng = random.Random(6)
    tokenizer = ByteTokenizer()
    for _ in range(20_000):
        prompt, ids = rng.choices(LIKELY[:10], k=rng.randrange(8)), rng.choices(LIKELY, k=rng.randrange(8))
        prompt_text, whole = tokenizer.decode(prompt, True), tokenizer.decode([*prompt, *ids], True)
        completed = Detokenizer(tokenizer, True, prompt).is_incomplete and not whole.startswith(prompt_text)
        expected = whole[len(prompt_text) - completed :]
        assert "".join(texts(ids, prompt)) == expected


@given(st.text(), st.randoms(use_true_random=False))
def test_text_survives(text: str, rng: random.Random) -> None:
    tokenizer = ByteTokenizer()
    ids = tokenizer.encode(text, add_bos=True)
    pieces = texts(ids)
    assert "".join(pieces) == text == tokenizer.decode(ids, True)
    assert pieces[-1] == ""


def test_a_character_belongs_to_the_token_that_completes_it() -> None:
    assert texts([97, *"€".encode(), 98]) == ["a", "", "", "€", "b", ""]
    assert texts([0xE2, 0x82, 97, 0xF0]) == ["", "", "\ufffda", "", "\ufffd"]


def test_control_tokens_show_only_when_asked() -> None:
    assert texts([256, 97, 257]) == ["", "a", "", ""]
    assert texts([256, 97, 257], skip_special=False) == ["<bos>", "a", "<eos>", ""]
