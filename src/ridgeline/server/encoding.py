"""Texts to ids without holding up the event loop: what may take long runs in threads of its own, and has a time to be done in.

How long a text takes depends on the model's file too: patterns of a tokenizer.json may be anything, and one that backtracks takes a second
for thirty characters.
"""

from collections.abc import Callable, Sequence
from typing import Final, TypeVar

from ridgeline.errors import RequestError
from ridgeline.server.workers import Workers
from ridgeline.text.tokenizer import Tokenizer, bad_word_ids

ENCODE_SECONDS: Final = 10.0
"""Time for the texts of a request to become ids, waiting included; a MiB takes some 0.5 s."""
_WORKERS: Final = Workers("encode", 4, "texts wait to be tokenised", ENCODE_SECONDS)

Result = TypeVar("Result")


async def run_encoding(tokenizer: Tokenizer, characters: int, work: Callable[[], Result], param: str = "prompt") -> Result:
    """The result of `work`, which encodes so many characters of the field `param`. Raises RequestError and OverloadedError where that takes
    too long."""
    if characters <= tokenizer.quick_characters:
        return work()
    try:
        return await _WORKERS.run(work)
    except TimeoutError:
        message = f"the model's tokenizer takes longer than {ENCODE_SECONDS:g} s for these {characters:,} characters; send a shorter text"
        raise RequestError(message, param=param) from None


async def encode_bad_words(tokenizer: Tokenizer, words: Sequence[str]) -> tuple[tuple[int, ...], ...]:
    """The ids of `bad_words`, see `text.tokenizer`. Raises RequestError and OverloadedError."""
    if not words:
        return ()
    return await run_encoding(tokenizer, sum(map(len, words)), lambda: bad_word_ids(tokenizer, words))
