"""Plans of sparse models whose experts are read from disk: what is in memory, and what a token waits for."""

from pathlib import Path

import pytest

from ridgeline.config.env import ModelStores
from ridgeline.errors import ConfigError
from ridgeline.facts.headers.read import describe_model
from ridgeline.planning.arguments import PlanOptions, deployment_of
from ridgeline.planning.deployment import Deployment, weight_classes
from ridgeline.planning.objectives import Objective
from ridgeline.planning.report import RATES, make_report

GIB = 2**30
MODEL, CPU = "mixtral-8x7b", "epyc-9654"


def deployed(gib: float | None, model: str = MODEL, device: str = CPU) -> Deployment:
    return deployment_of(describe_model(model, ModelStores(Path("/nonexistent"))), PlanOptions(device, expert_memory=gib, dtype="int8"))


def test_experts_beyond_their_memory_are_no_weights_of_the_process() -> None:
    whole, half = deployed(None), deployed(20.0)
    experts = weight_classes(whole)["experts"]
    assert experts > 40e9
    assert whole.memory.weights - half.memory.weights == pytest.approx(experts - 20 * GIB, abs=2)
    assert half.memory.kv_budget - whole.memory.kv_budget == pytest.approx(experts - 20 * GIB, abs=2)


def test_a_token_reads_what_is_missing_of_its_experts() -> None:
    half = deployed(20.0)
    report = make_report(half, Objective(), False, None)
    token = weight_classes(half)["experts"] * 2 / 8
    by_rate = {each.hit_rate: each for each in report.expert_reads}
    assert by_rate[0.9].read_bytes_per_token == pytest.approx(0.1 * token)
    assert by_rate[0.9].itl - by_rate[0.99].itl == pytest.approx(0.09 * token / RATES["file"])
    assert make_report(deployed(None), Objective(), False, None).expert_reads == []


@pytest.mark.parametrize(
    ("gib", "model", "device", "cause"),
    [
        (0.5, MODEL, CPU, "--expert-memory"),
        (20.0, "llama-3-8b", CPU, "has none"),
        (20.0, MODEL, "h100", "keeps all of them"),
    ],
)
def test_what_cannot_be_read_from_disk_is_refused(gib: float, model: str, device: str, cause: str) -> None:
    with pytest.raises(ConfigError, match=cause):
        deployed(gib, model, device)
