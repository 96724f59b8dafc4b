"""What is said of speculation: by a drafter, in metrics and in words."""

from types import SimpleNamespace
from typing import Any

import pytest

from ridgeline.core.drafts.model import DraftCache, ModelDrafter
from ridgeline.core.drafts.prompt_lookup import PromptLookupDrafter
from ridgeline.core.events import Drafting
from ridgeline.core.plan import KVGroup, KVShape
from ridgeline.observe.metrics import Metrics
from ridgeline.observe.prometheus import exposition
from ridgeline.observe.speculation import explain_drafts

STEEP = tuple((tokens, tokens, 0.01 * tokens) for tokens in (1, 2, 4, 8, 16))
FLAT = tuple((tokens, tokens, 0.01 + 0.001 * tokens) for tokens in (1, 2, 4, 8, 16))
KV = KVShape((KVGroup("full", (0,)),), 16, 16, b"")


class Row(SimpleNamespace):
    """What drafters see of a sequence."""

    __hash__ = object.__hash__


def row(chance: float | None) -> Any:
    state = None if chance is None else SimpleNamespace(match=0, acceptance=chance, reach=100)
    return Row(draft_state=state, known=[1, 2, 3], scheduled=3, drafted=0, in_flight=0, limit=50, preemptions=0)


def told(**fields: Any) -> Drafting:
    return Drafting(**{"step": 64, "time": 1.0, "rows": 2, "offers": 1, "chance": 0.8, "depth": 0.0, "token_cost": 0.25} | fields)


def test_a_drafter_says_what_is_worth_its_time() -> None:
    rows = [row(0.8)]
    cheap, dear = (PromptLookupDrafter(4, table, False).outlook(rows) for table in (FLAT, STEEP))
    assert (cheap.rows, cheap.offers, cheap.chance, cheap.depth) == (1, 1, pytest.approx(0.8), 4)
    assert dear.depth == 0 and dear.token_cost == pytest.approx(1.0)
    nothing = PromptLookupDrafter(4, FLAT, False).outlook([row(None), row(None)])
    assert (nothing.offers, nothing.depth, nothing.chance) == (0, 0, 0)


def test_a_draft_model_counts_its_own_time() -> None:
    cache = DraftCache(1, 16, 10, 100, ((1, 0.0055), (2, 0.006)))
    found = ModelDrafter(4, FLAT, False, cache).outlook([row(None)])
    assert found.offers == 1 and found.token_cost == pytest.approx((0.001 + 0.0055) / 0.011)


def test_metrics_have_it_until_the_engine_ends() -> None:
    metrics = Metrics()
    assert b"ridgeline_draft_depth" not in exposition(metrics, "m", KV)
    metrics.apply(told(depth=2.5))
    body = exposition(metrics, "m", KV).decode()
    for name, value in (("depth", 2.5), ("chance", 0.8), ("token_cost", 0.25)):
        assert f'ridgeline_draft_{name}{{model_name="m"}} {value}' in body
    metrics.engine_lost()
    assert b"ridgeline_draft_depth" not in exposition(metrics, "m", KV)


@pytest.mark.parametrize(
    ("now", "words"),
    [
        (None, ""),
        (told(offers=0), "no drafts: none of 2 decoding rows has anything to offer"),
        (told(rows=1), "no drafts, although 1 of 1 decoding row could offer some: a draft is right with 80%"),
        (told(depth=3.0), "3 drafts for each of 1 of 2 decoding rows: a draft is right with 80%, and one more token makes a step"),
    ],
)
def test_words(now: Drafting | None, words: str) -> None:
    assert explain_drafts(now).startswith(words) and (now is not None or not explain_drafts(now))
