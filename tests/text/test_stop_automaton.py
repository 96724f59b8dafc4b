"""The automaton against reading every prefix of the text."""

import random

from ridgeline.text.stream import StopAutomaton, StopMatch


def brute(text: str, stops: list[str], start: int) -> StopMatch | None:
    for end in range(start + 1, len(text) + 1):
        ending = [stop for stop in stops if text[:end].endswith(stop)]
        if ending:
            return StopMatch(max(ending, key=len), end)
    return None


def test_finds_and_holds_as_a_plain_search_does() -> None:
    rng = random.Random(4)
    for _ in range(50_000):
        alphabet = rng.choice(("ab", "abc", "aé€😀"))
        stops = ["".join(rng.choices(alphabet, k=rng.randrange(1, 6))) for _ in range(rng.randrange(1, 5))]
        text = "".join(rng.choices(alphabet, k=rng.randrange(12)))
        unarmed = rng.choice((0, 0, rng.randrange(len(text) + 1)))
        automaton = StopAutomaton(stops)
        state, found = automaton.advance(automaton.start, text[:unarmed], armed=False)
        assert found is None
        cut = rng.randrange(unarmed, len(text) + 1)
        read = unarmed
        for part in (text[unarmed:cut], text[cut:]):
            state, found = automaton.advance(state, part, armed=True)
            read += found.end if found else len(part)
            if found:
                break
        expected = brute(text, stops, unarmed)
        assert (found.stop, read) == (expected.stop, expected.end) if found and expected else found is expected is None
        seen = text[:read]
        held = max((size for stop in stops for size in range(1, len(stop)) if seen.endswith(stop[:size])), default=0)
        assert automaton.held(state) == held


def test_the_first_complete_string_wins_and_of_equals_the_longest() -> None:
    automaton = StopAutomaton(["abcd", "bc", "xabc"])
    assert automaton.advance(automaton.start, "abcd", armed=True)[1] == StopMatch("bc", 3)
    assert automaton.advance(automaton.start, "xabcd", armed=True)[1] == StopMatch("xabc", 4)
