"""The decision on drafts: depths at the scheduler's own choice, by measured or by predicted prices, and the same sentence for both."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from heads import write_random
from tiny_checkpoints import model, write_gguf

from ridgeline.cli.main import main
from ridgeline.config.groups import EngineConfig
from ridgeline.core.drafts.depth import StepCost, choose_depths
from ridgeline.core.drafts.model import DraftCache
from ridgeline.engine.compose import start_engine
from ridgeline.engine.drafting import ASSUMED_ACCEPTANCE, DraftPrices, expected_depths, measured_prices, speculation_decision
from ridgeline.facts.headers.read import read_model_facts

STEEP = tuple((tokens, tokens, 0.01 * tokens) for tokens in (1, 2, 4, 8, 16, 32))
FLAT = tuple((tokens, tokens, 0.01 + 1e-6 * tokens) for tokens in (1, 2, 4, 8, 16, 32))
STAIRS = tuple((tokens, tokens, 0.01 if tokens <= 8 else 0.01 * tokens / 8) for tokens in (1, 2, 4, 8, 16, 32))
"""Steps that cost nothing more up to eight tokens, then in proportion."""


def decided(steps: tuple[tuple[int, int, float], ...], rows: int = 64, passes: float | None = None, most: int = 4) -> str:
    config = EngineConfig("m", speculative="ngram", num_speculative_tokens=most)
    prices = DraftPrices(steps, most, False, "measured", None if passes is None else lambda rows: passes)
    return speculation_decision(config, prices, rows).reason


def shown(reason: str) -> list[int]:
    return [int(depth) for depth in re.findall(r"(\d+) for \d+", reason)]


def test_depths_fall_with_the_number_of_sequences() -> None:
    assert shown(decided(STEEP)) == [0, 0, 0, 0] and decided(STEEP).endswith("; nothing is drafted")
    assert shown(decided(FLAT)) == [4, 4, 4, 2] and decided(FLAT).endswith("drafts pay up to all 64")
    assert shown(decided(STAIRS)) == [4, 1, 0, 0] and decided(STAIRS).endswith("nothing is drafted for more than 7")
    assert len(shown(decided(FLAT, rows=5))) == 2 and decided(FLAT, rows=5).endswith("drafts pay up to all 5")


@pytest.mark.parametrize("rows", [1, 4, 7, 8, 16])
def test_the_depth_is_the_schedulers(rows: int) -> None:
    offers = [(ASSUMED_ACCEPTANCE, ASSUMED_ACCEPTANCE, 4)] * rows
    for steps in (STEEP, FLAT, STAIRS):
        chosen = max(choose_depths(StepCost(steps), rows, offers, 0, 4 * rows, False, lambda rows: 0.002))
        assert expected_depths(DraftPrices(steps, 4, False, "measured", lambda rows: 0.002))(rows) == chosen


def test_the_reason_has_the_seconds_of_steps_and_of_drafts() -> None:
    reason = decided(STAIRS, passes=0.0005, most=8)
    assert (
        "a step that verifies 8 takes 1.1 times as long as one that verifies none (11.2 over 10 ms, an id of what drafts 0.5 ms" in reason
    )
    assert "ms, measured); where 80% are right, which is assumed" in reason
    assert shown(decided(FLAT, passes=0.02)) == [0, 0, 0, 0], "a draft costs more than the step"
    assert decided(()).endswith("their cost is measured as it runs")


def test_measured_prices_are_what_the_drafter_has() -> None:
    """Medusa drafts no more ids than it has heads; what runs ahead meets no barrier, but for auto."""
    info = start_engine(EngineConfig('fake:{"rows": 2}'), lambda stage, fraction: None)[0].executor.info
    cache = DraftCache(0, 16, 0, 64, ((1, 0.001), (4, 0.002)), most=2, ahead=8)
    for kind, barrier in (("draft", False), ("auto", True)):
        config = EngineConfig("m", speculative=kind, num_speculative_tokens=4)
        prices = measured_prices(config, replace(info, drafts=cache, price=FLAT))
        assert (prices.most, prices.barrier, prices.steps, prices.origin) == (2, barrier, FLAT, "measured")
        assert prices.passes is not None and prices.passes(2) == pytest.approx(0.001 + 0.001 / 3)
    assert measured_prices(EngineConfig("m", speculative="ngram"), replace(info, price=FLAT)).passes is None


def explained(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *words: str) -> str:
    monkeypatch.setattr("sys.argv", ["ridgeline", "config", "explain", *words, "--json"])
    with pytest.raises(SystemExit):
        main()
    return next(str(row["reason"]) for row in json.loads(capsys.readouterr().out) if row["name"] == "speculative")


def test_config_explain_predicts_what_a_start_measures(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    target = write_gguf(tmp_path / "model.gguf", model("llama"))
    small = (str(target), "--device", "epyc-9654", "--max-num-seqs", "20")
    assert "drafted for" not in explained(capsys, monkeypatch, *small)
    found = explained(capsys, monkeypatch, *small, "--speculative", "ngram")
    assert "ms, predicted); where 80%" in found and len(shown(found)) == 3 and re.search(r"nothing is drafted|all 20", found)
    start = start_engine(EngineConfig(str(target), speculative="ngram", max_num_seqs=20, max_model_len=128), lambda *_: None)
    start[0].executor.close()
    (told,) = [each.reason for each in start[1] if each.name == "speculative"]
    assert re.sub(r"[\d.]+", "#", told.replace("measured", "predicted").partition("right, ")[0]) in re.sub(r"[\d.]+", "#", found)
    draft = explained(capsys, monkeypatch, *small, "--speculative", "draft", "--draft-model", str(target))
    assert "an id of what drafts" in draft
    heads = write_random("medusa", tmp_path / "heads", read_model_facts(target))
    medusa = explained(capsys, monkeypatch, *small, "--speculative", "draft", "--draft-model", str(heads))
    assert "up to 3 ids" in medusa and "an id of what drafts" in medusa
