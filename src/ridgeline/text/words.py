"""Bad words as ids: what the sampler may not complete. The only place where words of a request's parameters meet a tokenizer."""

from collections.abc import Sequence

from ridgeline.core.params import BAD_WORD_CHARACTERS, BAD_WORDS
from ridgeline.errors import RequestError
from ridgeline.text.tokenizer import Tokenizer


def bad_word_ids(tokenizer: Tokenizer, words: Sequence[str]) -> tuple[tuple[int, ...], ...]:
    """The ids of each word, as at the beginning of a text and as after a space; where both are the same, once.

    Raises `RequestError` for too many words, and for words that are empty, blank or too long.
    """
    if not isinstance(words, (tuple, list)) or not all(isinstance(word, str) for word in words):
        raise RequestError("bad_words must be a list of strings.", param="bad_words", code="invalid_type")
    if len(words) > BAD_WORDS:
        raise RequestError(f"bad_words has {len(words)} strings; at most {BAD_WORDS} are allowed.", param="bad_words")
    found: dict[tuple[int, ...], None] = {}
    for word in words:
        if not word.strip() or len(word) > BAD_WORD_CHARACTERS:
            message = f"a string of bad_words has {len(word)} characters, {len(word.strip())} of them not blank"
            raise RequestError(f"{message}; send 1 to {BAD_WORD_CHARACTERS}, not all blank.", param="bad_words")
        for text in (word, f" {word.lstrip()}"):
            ids = tuple(tokenizer.encode(text, add_bos=False))
            if ids:
                found[ids] = None
    return tuple(found)
