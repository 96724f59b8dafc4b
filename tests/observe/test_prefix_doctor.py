"""The prefix doctor: planted causes of misses are found, and what they cost is what a hit would have saved."""

from random import Random

import pytest
from ledgers import Ask, serve

from ridgeline.core.events import PrefixMiss
from ridgeline.core.params import Adapter, Admitted
from ridgeline.observe.doctor import diagnose, found_in
from ridgeline.observe.ledger import ChoiceRecord, Ledger, RequestRecord
from ridgeline.observe.prefixes import MAX_PROMPTS, MAX_UNALIGNED, WIDTH, PromptLog, _find

CONTROL = 1
"""An id that is a control token; all others are characters."""
BLOCK = 16


def ids(text: str) -> tuple[int, ...]:
    return tuple(CONTROL if character == "\x01" else ord(character) for character in text)


def decode(tokens: object) -> str:
    return "".join(map(chr, tokens))  # type: ignore[call-overload]


def words(rng: Random, count: int) -> str:
    return " ".join("".join(rng.choice("bcdfghklmnprstvwz") for _ in range(rng.randint(3, 8))) for _ in range(count))


def planted(cause: str, rng: Random) -> tuple[str, str]:
    """An earlier prompt and the one that misses."""
    head, tail = words(rng, 6), words(rng, 60)
    digits = lambda count: "".join(rng.choice("0123456789") for _ in range(count))  # noqa: E731
    match cause:
        case "timestamp":
            first, second = rng.sample(range(10, 60), 2)
            return f"{head} Today is 2026-11-22 23:{first}. {tail}", f"{head} Today is 2026-11-22 23:{second}. {tail}"
        case "identifier":
            one, other = (f"session a{digits(3)}f{digits(6)}c{digits(2)}" for _ in range(2))
            return f"{head} {one} {tail}", f"{head} {other} {tail}"
        case "number":
            return f"{head} turn {rng.randint(1, 4)} {tail}", f"{head} turn {rng.randint(5, 9)} {tail}"
        case "order":
            tools = [f"tool {words(rng, 8)};" for _ in range(3)]
            return head + "".join(tools) + tail, head + "".join([tools[1], tools[0], tools[2]]) + tail
        case "whitespace":
            return f"{head} {tail}", f"{head}\n\n{tail}"
        case "template":
            return f"{head} \x01user {tail}", f"{head} human: {tail}"
        case "removed":
            return f"{head}. {words(rng, 20)}. {tail}", f"{head}. {tail}"
        case "inserted":
            return f"{head}. {tail}", f"{head}. {words(rng, 20)}. {tail}"
        case "edited":
            return f"{head} is {words(rng, 1)} so {tail}", f"{head} is {words(rng, 1)} so {tail}"
        case "new":
            return f"{head} {words(rng, 40)}", f"{head} {words(rng, 40)}"
        case "short":
            return "abcdefgh", "abcdefgh"
        case _:
            return f"{head} {tail}", f"{head} {tail}"


CAUSES = (
    "timestamp", "identifier", "number", "order", "whitespace", "template", "removed", "inserted", "edited", "new", "short", "first",
    "salt", "tenant", "adapter", "busy", "evicted",
)  # fmt: skip


def found_cause(cause: str, seed: int) -> str | None:
    """What the doctor says of a miss whose cause is planted."""
    rng = Random(seed)
    earlier, later = planted(cause, rng)
    prompts, ledger = PromptLog(), Ledger(lambda: 0.0)
    for number in range(20):
        prompts.add(Admitted(f"x{number}", ids(words(rng, 30)), 1, 1, tenant="c"), BLOCK)
    one = Admitted("one", ids(earlier), 1, 1, domain=b"d", tenant="b" if cause == "tenant" else "a")
    adapter = Adapter("poet", b"digest", "poet") if cause == "adapter" else None
    two = Admitted("two", ids(later), 1, 1, domain=b"s" if cause in ("salt", "tenant") else b"d", tenant="a", adapter=adapter)
    if cause != "first":
        prompts.add(one, BLOCK)
    prompts.add(two, BLOCK)
    record = RequestRecord("two", "a", len(two.prompt), 1, 0.0, 5.0, 0, choices={0: ChoiceRecord()})
    block = prompts.followed["two"].shared // BLOCK if cause not in ("salt", "tenant", "adapter", "busy", "evicted") else 1
    ledger._records["two"] = record
    if cause == "busy":
        ledger._records["one"] = RequestRecord("one", "a", 1, 1, 0.0, 0.0, 0)
    if cause != "short":
        ledger.apply([PrefixMiss("two", 0, block)])
    miss = diagnose(prompts, ledger, record, decode, lambda token: token == CONTROL)
    return None if miss is None else miss.cause


@pytest.mark.parametrize("cause", CAUSES)
def test_a_planted_cause_is_found(cause: str) -> None:
    right = sum(found_cause(cause, seed) == cause for seed in range(20))
    assert right >= 19, [found_cause(cause, seed) for seed in range(20)]


def test_what_a_miss_cost() -> None:
    """A changed id in front of 2,000 shared tokens: what the doctor says is lost is what the same request takes less with a hit."""
    shared = tuple(range(100, 2_100))
    ttft, misses = {}, {}
    for name, first in (("hit", 7), ("miss", 8)):
        asks = [Ask(0.0, 2_020, 1, ids=(7, *shared, *range(30, 49))), Ask(5.0, 2_020, 1, ids=(first, *shared, *range(60, 79)))]
        ledger, prompts = serve(asks), PromptLog()
        for ask in asks:
            assert ask.ids is not None
            prompts.add(Admitted(ask.name, tuple(ask.ids), 1, 1), BLOCK)
        record = ledger.find(asks[1].name)
        assert record is not None
        ttft[name] = asks[1].ended - asks[1].at
        misses[name] = diagnose(prompts, ledger, record, decode, lambda token: False)
    miss = misses["miss"]
    assert miss is not None and miss.tokens == 2_000 and miss.at == 0
    assert miss.ms == pytest.approx(1e3 * (ttft["miss"] - ttft["hit"]), rel=0.15)


def test_the_tier_of_what_was_found_is_named() -> None:
    found = [{"file": 32, "peer": 16}, {}, {"peer": 48}]
    records = [RequestRecord(str(n), "a", 99, 1, 0.0, 0.0, 0, choices={0: ChoiceRecord(tier_tokens=each)}) for n, each in enumerate(found)]
    assert found_in([*records, RequestRecord("waits", "a", 99, 1, 0.0, 0.0, 0)]) == {"file": 32, "peer": 64}


def test_what_is_kept_is_bounded_and_no_text() -> None:
    log = PromptLog()
    for number in range(MAX_PROMPTS + 50):
        log.add(Admitted(f"r{number}", (number, *ids("the secret is zanzibar " * 4)), 1, 1), BLOCK)
    assert len(log._prompts) == MAX_PROMPTS and len(log._blocks) <= MAX_PROMPTS * 12
    found = log.followed[f"r{MAX_PROMPTS + 49}"].divergence
    assert found is not None and b"z\0\0\0a\0\0\0n" not in b"".join(each.data for each in log._prompts.values())
    assert len(found.mine) <= 40 * 4 and log.ids(found.mine)[0] == MAX_PROMPTS + 49


def test_ids_that_match_between_ids_are_not_searched_for_ever() -> None:
    """Bytes of `7 << 8` repeated have those of `7` repeated one byte further on, everywhere."""

    class Counted(bytes):
        searches = 0

        def find(self, *asked: object) -> int:  # type: ignore[override]
            Counted.searches += 1
            return super().find(*asked)  # type: ignore[arg-type]

    def packed(number: int, count: int) -> Counted:
        return Counted(number.to_bytes(WIDTH, "little") * count)

    assert _find(packed(7 << 8, 32_768), packed(7, 8)) == -1 and Counted.searches <= MAX_UNALIGNED + 1
    assert _find(Counted(packed(7 << 8, 4) + packed(7, 9)), packed(7, 8)) == 4
