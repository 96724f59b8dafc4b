"""docs/physics.md says what the code does: its examples are run, and its table of claims against floors is recomputed."""

import doctest
from pathlib import Path

import pytest

from ridgeline.config.env import ModelStores
from ridgeline.facts.headers.read import describe_model
from ridgeline.planning import speed
from ridgeline.planning.arguments import PlanOptions, deployment_of
from ridgeline.planning.deployment import Deployment

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "physics.md"


def test_examples() -> None:
    failed, attempted = doctest.testfile(str(DOCUMENT), module_relative=False)
    assert attempted > 30 and failed == 0


def asked(model: str, device: str, count: int = 1, dtype: str | None = None, context: int = 2, workload: str | None = None) -> Deployment:
    question = PlanOptions(device, count, dtype, context=None if workload else context, workload=workload)
    return deployment_of(describe_model(model, ModelStores(Path())), question)


def rate(device: str) -> str:
    """Most tokens/s of 256 sequences of 2,048 tokens."""
    return f"{256 / speed.decode_floor(asked('llama-3-8b', device, context=2048), 256):,.0f} tok/s at most"


@pytest.mark.parametrize(
    ("claim", "floor"),
    [
        ("45 ms for 2,048", f"{speed.prefill_floor(asked('llama-3-8b', 'a100', workload='in=2048,out=512')) * 1e3:.0f} ms"),
        ("7,800 tok/s", rate("a100")),
        ("16,500 tok/s", rate("h100")),
        ("70B, 2 × A100", f"{speed.decode_floor(asked('llama-3-70b', 'a100', 2)) * 1e3:.0f} ms"),
        ("70B, 2 × H100", f"{speed.decode_floor(asked('llama-3-70b', 'h100', 2)) * 1e3:.0f} ms"),
        ("70B, 4 × H100", f"{speed.decode_floor(asked('llama-3-70b', 'h100', 4, 'fp8')) * 1e3:.1f} ms"),
        ("70B, 8 × H100", f"{speed.decode_floor(asked('llama-3-70b', 'h100', 8, 'fp8')) * 1e3:.1f} ms"),
        ("405B, 16 × H100", f"{speed.decode_floor(asked('llama-3.1-405b', 'h100', 16, 'fp8')) * 1e3:.0f} ms on both"),
    ],
)
def test_claims_and_floors(claim: str, floor: str) -> None:
    row = next(line for line in DOCUMENT.read_text().splitlines() if line.startswith("| ") and claim in line)
    assert f"| {floor}" in row
