"""Detectors of answers that end at once, in a loop, or never: what they count, and when they say so."""

import pytest

from ridgeline.core.events import Finish
from ridgeline.observe.ends import LEAST_ANSWERS, WINDOW, AnswerEnds, repeats


@pytest.mark.parametrize(
    ("ids", "loop"),
    [
        ([7] * 24, True),
        ([7] * 23, False),
        ([*range(100), *([1, 2, 3, 4, 5] * 5)], True),
        ([*range(100), *([1, 2, 3, 4, 5] * 4)], False),
        ([*range(16)] * 4, True),
        ([*range(17)] * 4, False),
        ([*range(64)], False),
        ([], False),
        ([*([5, 6] * 20), 9], False),
    ],
)
def test_a_loop_is_an_n_gram_over_and_over_at_the_end(ids: list[int], loop: bool) -> None:
    assert repeats(ids) == loop


def end(ends: AnswerEnds, kind: str) -> str | None:
    tokens, by_itself = {"immediate": (1, True), "sound": (40, True), "cut": (200, False), "loop": (200, False)}[kind]
    return ends.add(Finish.STOP if by_itself else Finish.LENGTH, tokens, by_itself=by_itself, loops=kind == "loop")


@pytest.mark.parametrize(("kind", "words"), [("immediate", "ended at their first token"), ("loop", "repeat themselves")])
def test_a_suspicious_share_is_told_once(kind: str, words: str) -> None:
    ends = AnswerEnds()
    assert not any(end(ends, "sound") for _ in range(LEAST_ANSWERS // 2))
    told = [end(ends, kind) for _ in range(3 * WINDOW)]
    (sentence,) = filter(None, told)
    assert told.index(sentence) == LEAST_ANSWERS // 2 - 1 and sentence.startswith("10 of the last 20 answers") and words in sentence
    assert (ends.immediate, ends.runaway) == ((150, 0) if kind == "immediate" else (0, 150))


def test_a_few_are_nothing() -> None:
    ends = AnswerEnds()
    assert not any(end(ends, kind) for _ in range(200) for kind in ("immediate", "sound", "loop", "sound", "cut"))
    assert (ends.immediate, ends.runaway) == (200, 200)


def test_a_chat_model_that_never_ends_is_told_and_a_base_model_is_not() -> None:
    ends = AnswerEnds()
    told = [end(ends, "cut") for _ in range(2 * WINDOW)]
    assert [index for index, sentence in enumerate(told) if sentence] == [WINDOW - 1]
    base = AnswerEnds()
    base.chats = False
    assert not any(end(base, kind) for _ in range(2 * WINDOW) for kind in ("cut", "loop"))
    assert base.runaway == 2 * WINDOW
