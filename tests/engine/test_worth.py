"""Eviction from a tier: what nobody asks for goes first, and of a prompt its end."""

from collections import OrderedDict
from math import log
from pathlib import Path

import pytest
from evictions import chain, hits, name
from tiers import SECRET, file_tier, shape

from ridgeline.config.env import ModelStores
from ridgeline.engine.tiers.seal import Seal
from ridgeline.engine.tiers.worth import FORGETTING, LEAST_VALUES, Place, Worth
from ridgeline.facts.headers.read import describe_model
from ridgeline.planning.arguments import PlanOptions, deployment_of
from ridgeline.planning.step import RowGroup, step_work


def test_a_prompt_loses_its_end_first() -> None:
    worth = Worth()
    for each in chain(1, 5):
        worth.enter(*each)
    assert [worth.evict() for _ in range(5)] == [name(number) for number in (5, 4, 3, 2, 1)]


def test_a_beginning_stays_while_something_hangs_on_it() -> None:
    """Its own uses are not seen where an engine has it in memory."""
    worth = Worth()
    for each in (*chain(1, 2), *chain(10, 3, before=2), *chain(20, 3, before=2), *chain(30, 2)):
        worth.enter(*each)
    for _ in range(4):
        for number in (10, 11, 12):
            worth.use(name(number))
    gone = [worth.evict() for _ in range(10)]
    assert set(gone[:5]) == {name(number) for number in (20, 21, 22, 30, 31)}
    assert gone[5:] == [name(number) for number in (12, 11, 10, 2, 1)]


def test_what_is_dear_to_compute_is_worth_more() -> None:
    assert outlives([Place(b"", 1_000)], attention_tokens=1_000) == HALF, "twice the cost, until others have come since that count twice"
    assert outlives([Place(b"", 0)], attention_tokens=1_000) == outlives([Place(b"", 1_000)], attention_tokens=0) == 0


def test_uses_count_less_the_longer_ago_they_are() -> None:
    assert outlives([Place()] * 2) == pytest.approx(HALF, abs=1), "two uses count as much as a later one"
    assert outlives([Place()] * 4) == pytest.approx(2 * HALF, abs=2)


HALF = int(LEAST_VALUES * FORGETTING * log(2))
"""Uses of others behind which one counts half."""


def outlives(uses: list[Place], attention_tokens: float = 0.0) -> int:
    """How many values that are each used once behind the uses of another one go before it."""
    worth, later = Worth(attention_tokens), range(10, 10 + 3 * HALF)
    worth.enter(name(1), uses[0])
    for _ in uses[1:]:
        worth.use(name(1))
    for number in later:
        worth.enter(name(number), Place())
    gone = [worth.evict() for _ in (1, *later)]
    assert [each for each in gone if each != name(1)] == [name(number) for number in later]
    return gone.index(name(1))


def test_the_price_of_a_position_is_the_models() -> None:
    """A token behind so many costs twice what a first one does, by the planner's own count of operations."""
    for model in ("llama-3.1-8b", "gemma-3-4b", "qwen3-30b-a3b"):
        facts = describe_model(model, ModelStores(Path("/nonexistent")))
        far = int(facts.attention_tokens)
        asked = deployment_of(facts, PlanOptions("a100", 1))
        first, twice = (step_work(asked, [RowGroup(at, 512, sampled=0)]) for at in (2 * facts.window, far + 2 * facts.window))
        whole = (twice.linear_flops + twice.attention_flops) / (first.linear_flops + first.attention_flops)
        print(f"{model}: {far:,} tokens, {whole:.2f} times")
        assert whole == pytest.approx(2, rel=0.15)


def test_values_in_a_ring_can_be_evicted() -> None:
    worth = Worth()
    worth.load([(name(1), Place(name(2)), 1.0), (name(2), Place(name(1)), 2.0), (name(3), Place(name(3)), 3.0)])
    assert sorted(worth.evict() for _ in range(3)) == [name(1), name(2), name(3)]


def test_places_survive_a_restart(tmp_path: Path) -> None:
    value = Seal(SECRET, shape()).value_bytes
    most = 4_096 + 4 * (value + 76)
    tier = file_tier(tmp_path / "kv", most)
    for each, place in chain(1, 4):
        tier.put(each, bytes(value), place)
    tier.close()
    again = file_tier(tmp_path / "kv", most)
    for each, place in chain(50, 2):
        again.put(each, bytes(value), place)
    assert again.has([name(number) for number in (1, 2, 3, 4, 50, 51)]) == [True, True, False, False, True, True]
    again.close()


class Recent:
    """What was used last stays: the usual rule, for comparison."""

    def __init__(self) -> None:
        self.order: OrderedDict[bytes, None] = OrderedDict()

    def enter(self, key: bytes, place: Place) -> None:
        self.order[key] = None

    def use(self, key: bytes) -> None:
        self.order.move_to_end(key)

    def evict(self) -> bytes:
        return self.order.popitem(last=False)[0]


@pytest.mark.parametrize("attention_tokens", [3_000.0, 24_000.0])
@pytest.mark.parametrize("capacity", [400, 1_000, 2_000, 4_000])
def test_worth_finds_more_than_what_was_used_last(capacity: int, attention_tokens: float) -> None:
    """And no less where a tier holds nearly all that is asked again."""
    by_worth, by_use = (hits(rule, capacity, 200, attention_tokens) for rule in (Worth(attention_tokens), Recent()))
    told = ", ".join(f"{share:.4f} of the prompts' blocks, {cost:.4f} of their cost by {rule}" for (share, cost), rule in zip(
        (by_worth, by_use), ("worth", "last use"), strict=True))  # fmt: skip
    print(f"{capacity} blocks, attention as dear at {attention_tokens:,.0f} tokens: {told}")
    assert all(ours > theirs or (capacity == 4_000 and ours >= 0.999 * theirs) for ours, theirs in zip(by_worth, by_use, strict=True))
