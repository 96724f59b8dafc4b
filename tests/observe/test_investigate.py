"""Questions that no alert asks: why the prefix cache does not help, why one prompt has two answers.
`tests/speed/investigate.py` plants them live."""

from typing import Any

import pytest

from ridgeline.observe.investigate import ALERTS, QUESTIONS, investigate_answers, investigate_odd, investigate_prefixes


def offender(cause: str, ms: float) -> dict[str, Any]:
    example = {"mine": "At 11:02.", "theirs": "At 11:01."}
    return {"cause": cause, "what": f"what {cause} is", "at": 16, "requests": 9, "tokens": 4_000, "ms": ms, "example": example}


def report(*offenders: dict[str, Any], requests: int = 20) -> dict[str, Any]:
    return {"requests": requests, "prompt_tokens": 10_000, "cached_tokens": 500, "offenders": offenders}


def test_what_makes_prompts_miss_is_the_dearest_cause_that_can_be_helped() -> None:
    found = investigate_prefixes(report(offender("first", 900.0), offender("timestamp", 700.0), offender("order", 10.0)))
    assert found is not None and (found.phase, found.cause, found.lever) == ("KV cache", "timestamp", "what timestamp is")
    assert "700 ms" in found.evidence[0] and "5% of 10,000" in found.evidence[1] and "11:01" in found.evidence[2]
    alike = investigate_prefixes(report(offender("new", 0.0)))
    assert alike is not None and alike.cause == "new" and alike.lever.startswith("nothing")
    assert investigate_prefixes(report(requests=0)) is None


@pytest.mark.parametrize(
    ("runner", "is_exact", "cause"), [("cuda", False, "batch"), ("native", True, "request"), ("cuda", True, "request")]
)
def test_two_answers_to_one_prompt(runner: str, is_exact: bool, cause: str) -> None:
    found = investigate_answers({"runner": runner, "is_exact": is_exact, "fingerprint": "fp_1"})
    assert found.cause == cause and runner in found.evidence[0]
    assert ("--batch-invariant" in found.lever) is not is_exact
    assert not ALERTS & QUESTIONS


@pytest.mark.parametrize(
    ("loops", "ends", "findings", "cause"),
    [(0, 0, [], "sound"), (9, 2, [], "endless"), (2, 9, [], "template"), (9, 0, ["chat template: it names no end of a turn"], "model")],
)
def test_answers_that_loop_or_end_at_once(loops: int, ends: int, findings: list[str], cause: str) -> None:
    found = investigate_odd({"runaway_answers": loops, "immediate_ends": ends, "findings": findings})
    assert found.cause == cause and str(loops) in found.evidence[0] and str(ends) in found.evidence[0] and found.lever
    assert findings == [*found.evidence[1:]] or not findings
