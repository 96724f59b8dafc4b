"""Where reasoning begins and ends, told by ids: marks however they are divided into ids, and budgets, against a search in the text."""

import random

import pytest

from ridgeline.core.thinking import Thinking, ThinkingState
from ridgeline.text.tokenizer import ByteTokenizer
from ridgeline.text.tools.families import REASONING, Reasoning
from ridgeline.text.tools.marks import ReasoningIds


class Pieces(ByteTokenizer):
    """Bytes, and pieces of several."""

    def __init__(self, pieces: list[bytes]) -> None:
        self.pieces, self.vocab_size = pieces, 256 + len(pieces)

    def piece(self, token: int) -> bytes:
        return bytes((token,)) if token < 256 else self.pieces[token - 256]

    def id_of(self, piece: str) -> int | None:
        return 256 + self.pieces.index(piece.encode()) if piece.encode() in self.pieces else None


THINK = REASONING[0]
PIECES = [
    b"</", b"think", b">\n\n", b" </", b"\n", b"<think", b">x", b"a</th", b"ink>b", b" ", b"<", b"x<th", b"ink", b"</think>", b"<think>"
]  # fmt: skip


@pytest.mark.parametrize("texts", [each for each in REASONING if not each.in_channels])
def test_ends_are_found_in_texts_made_of_their_parts(texts: Reasoning) -> None:
    mark, rng = texts.end.encode(), random.Random(3)
    cuts = [mark[first:last] for first in range(len(mark)) for last in range(first + 1, len(mark) + 1)]
    tokenizer = Pieces([each for each in rng.choices(cuts, k=60) if len(each) < len(mark)] + [b"x"])
    thinking = ReasoningIds.read(texts, tokenizer).thinking(True, None)
    ended = 0
    for _ in range(3000):
        whole = rng.choice([mark, mark[: rng.randrange(len(mark))] + mark])
        cut = rng.randrange(len(whole))
        outputs = [*rng.choices(range(256, tokenizer.vocab_size), k=rng.randint(0, 4)), *whole[:cut], *whole[cut : rng.choice([cut, 99])]]
        text = b"".join(map(tokenizer.piece, outputs))
        assert ThinkingState(thinking, outputs).has_ended == (mark in text), text
        ended += mark in text
    assert 500 < ended < 2500


@pytest.mark.parametrize("begun", [True, False])
def test_marks_are_found_however_texts_are_divided(begun: bool) -> None:
    tokenizer, rng = Pieces(PIECES[:-2]), random.Random(7)
    ids = ReasoningIds.read(THINK, tokenizer)
    thinking = ids.thinking(begun, None)
    ended = 0
    for _ in range(4000):
        begin = [] if begun or rng.random() < 0.3 else [261, 262]
        outputs = [*begin, *rng.choices(range(256, tokenizer.vocab_size), k=rng.randint(0, 9))]
        text = b"".join(map(tokenizer.piece, outputs))
        reasons = begun or text.lstrip().startswith(b"<think>")
        body = text if begun else text.lstrip().removeprefix(b"<think>")
        state = ThinkingState(thinking, outputs)
        assert state.has_ended == (b"</think>" in body or not (reasons or b"<think>".startswith(text.lstrip()))), text
        assert reasons or state.tokens == 0
        ended += reasons and state.has_ended
    assert ended > 50


def close(tokenizer: Pieces, tokens: int, message: bytes = b"") -> Thinking:
    return ReasoningIds.read(THINK, tokenizer).thinking(True, tokens, tuple(message))


def run(thinking: Thinking, outputs: list[int], drafts: bool = False) -> tuple[list[int], int]:
    """What comes where `outputs` would, forced ids in between; and the tokens of reasoning."""
    state, found, rest = ThinkingState(thinking), list[int](), outputs[::-1]
    while rest or state.forced is not None:
        token = rest.pop() if state.forced is None else state.forced
        if drafts:
            ahead = [*found, token, *outputs[:3]]
            single = [ThinkingState(thinking, ahead[:at]).forced for at in range(len(found), len(ahead) + 1)]
            assert state.walk(ahead[len(found) :]) == single
        found.append(token)
        state.push(token)
        assert ThinkingState(thinking, found).forced == state.forced
    return found, state.tokens


@pytest.mark.parametrize("tokens", range(5))
def test_a_mark_of_one_id(tokens: int) -> None:
    tokenizer = Pieces(PIECES)
    mark = tokenizer.id_of("</think>")
    assert mark is not None
    for message in (b"", b"ok"):
        thinking = close(tokenizer, tokens, message)
        expected = [*b"abcdefgh"[:tokens], *message, mark, *b"abcdefgh"[tokens:]]
        assert run(thinking, [*b"abcdefgh"], drafts=True) == (expected, tokens + len(message))
    assert run(close(tokenizer, 4), [97, mark, 98, 99, 100, 101]) == ([97, mark, 98, 99, 100, 101], 1), "behind its end nothing is counted"


def test_a_mark_that_has_begun_is_finished() -> None:
    """Where the budget is spent within it, only its rest is forced, and no message."""
    tokenizer = Pieces(PIECES[:3])
    mark = [*b"</think>"]
    for inside in range(1, 8):
        assert run(close(tokenizer, 3 + inside, b"hm"), [*b"abc", *mark[:inside], *b"z"]) == ([*b"abc", *mark, *b"z"], 3)
    assert run(close(tokenizer, 3), [*b"abc", *mark[:4]])[0] == [*b"abc", *mark, *mark[:4]]
    assert run(close(tokenizer, 20), [*b"abc</thinks", *mark, 97]) == ([*b"abc</thinks", *mark, 97], 11)


def test_reasoning_in_channels_may_come_again() -> None:
    """All of it together has one budget, behind which every further part ends at once."""
    texts = next(each for each in REASONING if each.in_channels)
    tokenizer = Pieces([b"<|start|>", b"<|channel|>", b"<|message|>", b"<|end|>", b"assistant", b"analysis", b"final"])
    start, channel, message, end, assistant, analysis, final = range(256, 263)
    head, again = [channel, analysis, message], [start, assistant, channel, analysis, message]
    answer = [start, assistant, channel, final, message, *b"ok"]
    ids = ReasoningIds.read(texts, tokenizer)
    said = [*head, *b"abc", end, *again, *b"def", end, *answer]
    assert run(ids.thinking(False, None), said) == (said, 6)
    assert run(ids.thinking(False, 4), [*head, *b"abc", end, *again, 100, *answer])[0] == [*head, *b"abc", end, *again, 100, end, *answer]
    once_more = [*head, *b"ab", *again, *again, *answer]
    assert run(ids.thinking(False, 2), once_more) == ([*head, *b"ab", end, *again, end, *again, end, *answer], 2)
    assert run(ids.thinking(False, 0), answer) == (answer, 0)
