"""Stop strings with drafts: the text ends where it did without them, in the middle of what a step has verified too."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from heads import write_random
from speculating import AsMuchAsFits, count_accepted
from tiny import write_tiny

from ridgeline import LLM, SamplingParams
from ridgeline.core.drafts import prompt_lookup
from ridgeline.core.drafts.depth import StepCost
from ridgeline.core.drafts.model import ModelDrafter
from ridgeline.facts.headers.read import read_model_facts

FEW = tuple(260 + ord(letter) - ord("a") for letter in "abc")
"""Ids of three letters, of which answers repeat themselves."""
PROMPTS = [[*FEW, *FEW, 250 + number] for number in range(48)]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny(tmp_path_factory.mktemp("stop") / "tiny.gguf")


def params(number: int, stop: tuple[str, ...] = ()) -> SamplingParams:
    """Greedy and sampled, with the stop string in the text and without."""
    return SamplingParams(
        temperature=(0.0, 1.0, 2.0)[number % 3], seed=number, max_tokens=30, logprobs=2, ignore_eos=True,
        allowed_token_ids=FEW, stop=stop, include_stop_str_in_output=number % 2 == 0, min_tokens=12 if number % 4 == 3 else 0,
    )  # fmt: skip


@pytest.fixture(scope="module")
def expected(model: Path) -> tuple[list[SamplingParams], list[Any]]:
    """Parameters whose stop strings are cut from the answers without them, of two to four letters and so of as many ids, and the answers
    without drafts."""
    with LLM(model, max_model_len=64) as llm:
        free = llm.generate(PROMPTS, [params(number) for number in range(len(PROMPTS))])
        texts = [each.outputs[0].text for each in free]
        asked = [params(number, (text[9 + number % 12 : 11 + number % 12 + number % 3], "zz")) for number, text in enumerate(texts)]
        found = [each.outputs for each in llm.generate(PROMPTS, asked)]
    assert sum(each[0].finish_reason == "stop" for each in found) == len(PROMPTS)
    assert len({len(each[0].token_ids) for each in found}) > 3
    return asked, found


@pytest.mark.parametrize("drafter", ["ngram", "suffix", "draft", "auto", "medusa", "eagle3"])
def test_drafts_move_no_stop(
    model: Path, expected: tuple[list[SamplingParams], list[Any]], drafter: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    accepted = count_accepted(monkeypatch)
    monkeypatch.setattr(ModelDrafter, "_depths", AsMuchAsFits._depths)
    monkeypatch.setattr(prompt_lookup, "StepCost", lambda price: StepCost(()))  # the machine's prices may say none
    own: dict[str, Any] = {"speculative": drafter}
    if drafter in ("draft", "auto"):
        own["draft_model"] = str(model)
    elif drafter in ("medusa", "eagle3"):
        own = {"speculative": "draft", "draft_model": str(write_random(drafter, tmp_path / "heads", read_model_facts(model)))}
    asked, answers = expected
    with LLM(model, max_model_len=64, **own) as llm:
        found = [each.outputs for each in llm.generate(PROMPTS, asked)]
        alone = [llm.generate([prompt], [replace(each)])[0].outputs for prompt, each in zip(PROMPTS[:4], asked[:4], strict=True)]
    assert found == answers and alone == answers[:4]
    assert sum(accepted) > 10
