"""Alerts about how requests end: the count that is greatest says which kind, and the ledger or the engine's end says why.
`tests/speed/investigate.py` plants them live."""

import pytest

from ridgeline.observe.absence import ENDS, investigate_end, investigate_process
from ridgeline.observe.failures import EngineTold, investigate_counts
from ridgeline.observe.metrics import Metrics
from ridgeline.observe.outcomes import READ_SECONDS, READINGS, Outcomes
from ridgeline.observe.requests import Result
from ridgeline.observe.shares import Distribution

ENDED = EngineTold(3, "the engine process ended with status -9", None)


def slow(cause: str) -> Distribution:
    return Distribution(40, 0.1, 2.0, {cause: (0.05, 1.8), "decode": (0.05, 0.05)})


@pytest.mark.parametrize(
    ("alert", "counts", "engine", "cause", "said"),
    [
        ("Errors", {"503 engine_unavailable": 9, "500 internal_error": 2}, ENDED, "restart", "status -9"),
        ("Errors", {"503 engine_unavailable": 9}, EngineTold(1, None, "loading weights 40%"), "start", "40%"),
        ("Errors", {"503 engine_unavailable": 1, "500 internal_error": 2}, ENDED, "bug", "2 × 500 internal_error"),
        ("EngineRestarts", {}, ENDED, "restart", "engines so far: 3"),
        ("Rejections", {"429 overloaded": 7, "429 rate_limit_exceeded": 2}, EngineTold(), "rows", "7 × overloaded"),
        ("Rejections", {"429 rate_limit_exceeded": 2}, EngineTold(), "quota", "2 × rate_limit_exceeded"),
        ("Rejections", {"200 too_many_connections": 2}, EngineTold(), "connections", "2 × too_many_connections"),
        ("GoodputLow", {"good": 10, "late_first_token": 9, "slow_tokens": 2}, EngineTold(), "rows", "11 of 21"),
        ("GoodputLow", {"good": 10, "late_first_token": 1, "slow_tokens": 2}, EngineTold(), "others_prefill", "2 slow tokens"),
        ("GoodputLow", {"failed": 4, "slow_tokens": 2}, ENDED, "restart", "6 of 6"),
        ("GoodputLow", {"aborted": 4, "good": 2}, EngineTold(), "rows", "4 aborted"),
    ],
)
def test_the_kind_of_most_comes_first(alert: str, counts: dict[str, int], engine: EngineTold, cause: str, said: str) -> None:
    found = investigate_counts(alert, counts, engine, slow("rows"), slow("others_prefill"))
    assert found is not None and (found.alert, found.cause) == (alert, cause) and found.lever
    assert said in " ".join(found.evidence)


@pytest.mark.parametrize("alert", ["Errors", "EngineRestarts", "Rejections", "GoodputLow"])
def test_where_nothing_of_the_kind_has_happened_nothing_is_said(alert: str) -> None:
    assert investigate_counts(alert, {"good": 9, "steps": 40, "504 deadline_exceeded": 3}, EngineTold(), slow("rows"), slow("rows")) is None


def test_refusals_of_a_full_queue_are_what_the_queue_lacks() -> None:
    lacks = investigate_counts("Rejections", {"429 overloaded": 7}, EngineTold(), slow("blocks"), slow("blocks"))
    assert lacks is not None and (lacks.phase, lacks.cause) == ("KV cache", "blocks") and "--kv-cache-memory-bytes" in lacks.lever
    unknown = investigate_counts("Rejections", {"429 overloaded": 7}, EngineTold(), None, None)
    assert unknown is not None and unknown.cause == "rows"
    gone = investigate_counts("GoodputLow", {"aborted": 4}, EngineTold(), None, None)
    assert gone is not None and gone.cause == "aborted"


def test_how_an_engine_ended_chooses_the_lever() -> None:
    words = {
        "the engine process ended with status -9": "dmesg", "the engine hung: its executor has not moved for 30 s": "--step-timeout",
        "the engine process ended with status 1": "log",
    }  # fmt: skip
    for reason, word in words.items():
        found = investigate_counts("EngineRestarts", {}, EngineTold(2, reason), None, None)
        assert found is not None and word in found.lever


def test_outcomes_are_of_a_window() -> None:
    metrics = Metrics()
    outcomes = Outcomes(metrics)
    for second in range(0, 3_000, 5):
        outcomes.look(float(second))
        metrics.results[Result.GOOD] += 1
        if second >= 2_900:
            metrics.http_ended(503, "engine_unavailable", "")
            metrics.http_ended(200, None, "")
    found = outcomes.since(2_900.0)
    assert found == {"good": 20, "503 engine_unavailable": 20}
    assert outcomes.since(2_999.0)["good"] == 2, "the last reading is ten seconds old"
    oldest = outcomes.since(0.0)["good"]
    assert oldest == metrics.results[Result.GOOD], "of a moment before the first reading that is kept: all"
    assert len(outcomes._readings) == READINGS and READ_SECONDS * READINGS > 900


STATUS = {
    "not_ready": None, "draining": False, "last_failure": None, "engine_starts": 1, "usual_start_seconds": 25.0,
    "startup": {"stage": "loading weights", "progress": 0.4, "eta_seconds": 9.0, "elapsed_seconds": 14.0},
}  # fmt: skip


@pytest.mark.parametrize(
    ("state", "status", "cause", "said"),
    [
        ("T", None, "suspended", "kill -CONT 7"),
        ("S", None, "hung", "kill -9 7"),
        ("S", STATUS, "network", "--host"),
        ("R", STATUS | {"not_ready": "loading weights 40%"}, "start", "25 s are usual"),
        ("R", STATUS | {"not_ready": "the server is shutting down", "draining": True}, "stopped", "shutting down"),
        ("S", STATUS | {"not_ready": "the engine is dead", "last_failure": "ended with status -9"}, "restart", "dmesg"),
    ],
)
def test_a_process_that_lives_and_does_not_answer(state: str, status: dict[str, object] | None, cause: str, said: str) -> None:
    found = investigate_process(7, state, status, ("m, process 7",))
    assert (found.alert, found.cause) == ("Down", cause) and said in " ".join((*found.evidence, found.lever))


def test_each_end_has_a_cause_of_its_own() -> None:
    assert len({investigate_end(end, ("it",)).cause for end in ENDS}) == 3
