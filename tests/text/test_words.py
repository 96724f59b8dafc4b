"""Bad words as ids, and the choice among `best_of` answers."""

import pytest

from ridgeline.engine.answer import best_indices
from ridgeline.errors import RequestError
from ridgeline.text.tokenizer import ByteTokenizer, bad_word_ids

TOKENIZER = ByteTokenizer()


def test_words_come_with_and_without_a_space() -> None:
    assert bad_word_ids(TOKENIZER, ["ab"]) == (tuple(b"ab"), tuple(b" ab"))
    assert bad_word_ids(TOKENIZER, (" ab",)) == (tuple(b" ab"),)
    assert bad_word_ids(TOKENIZER, ["a", "a", " a"]) == (tuple(b"a"), tuple(b" a"))
    assert bad_word_ids(TOKENIZER, ()) == ()


@pytest.mark.parametrize("words", [["", "a"], [" "], ["a" * 65], ["a"] * 65, "abc", [1], None])
def test_what_are_no_words_is_refused(words: object) -> None:
    with pytest.raises(RequestError) as caught:
        bad_word_ids(TOKENIZER, words)  # type: ignore[arg-type]
    assert caught.value.param == "bad_words"


def test_at_their_bounds() -> None:
    assert len(bad_word_ids(TOKENIZER, [chr(97 + index % 26) * (index + 1) for index in range(64)])) == 128


def test_the_likeliest_come_first_and_of_equals_the_first() -> None:
    assert best_indices([-3.0, -1.0, -2.0], 2) == [1, 2]
    assert best_indices([-1.0, -1.0, float("nan"), -0.5], 4) == [3, 0, 1, 2]
    assert best_indices([float("-inf"), -9.0], 1) == [1]
    assert best_indices([], 3) == []
