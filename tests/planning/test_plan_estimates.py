"""Estimates of speculation and of steps, against published throughput too; the price of tiers."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from ridgeline.cli.plan import physics_table
from ridgeline.config.env import ModelStores
from ridgeline.facts.headers.read import describe_model
from ridgeline.planning import speed
from ridgeline.planning.advice import flags
from ridgeline.planning.arguments import PlanOptions, deployment_of
from ridgeline.planning.deployment import Deployment
from ridgeline.planning.levers import levers
from ridgeline.planning.objectives import Objective
from ridgeline.planning.report import CHECKED_BYTES_PER_SECOND, RATES, make_report, tier_prices
from ridgeline.planning.speed import prefill_seconds
from ridgeline.planning.step import RowGroup, pass_seconds, step_work


def deployed(model: str, device: str = "a100", count: int = 1, **asked: object) -> Deployment:
    return deployment_of(describe_model(model, ModelStores(Path("/nonexistent"))), PlanOptions(device, count, **asked))  # type: ignore[arg-type]


def gains(note: str) -> list[float]:
    """The factors that a note names."""
    return [float(word) for word in re.findall(r"× (\d\.\d\d)", note)]


def test_speculation_brings_its_tokens_while_memory_binds_and_nothing_when_compute_does() -> None:
    tokens = (1 - 0.7**5) / 0.3
    asked = deployed("llama-3-8b", "h100", workload="in=16,out=2000")
    now = 1 / speed.mixed_itl(asked, 1)
    alone = next(lever.effect for lever in levers(asked, Objective(itl=1.0001 / now)) if lever.name == "speculation")
    assert alone.tokens_per_second / alone.batch == pytest.approx(now * tokens, rel=0.02)
    slow = replace(asked, device=replace(asked.device, flops_per_second={"f32": 2e12}))
    batch = speed.best_batch(slow, Objective(itl=1.0))[0]
    bound = next(lever for lever in levers(slow, Objective(itl=1.0)) if lever.name == "speculation")
    assert bound.effect.tokens_per_second < batch / speed.mixed_itl(slow, batch)
    assert all(gain < 1.0 for gain in gains(bound.note))
    waiting = replace(slow, device=replace(slow.device, flops_per_second={"f32": 2e13}))
    note = next(lever.note for lever in levers(waiting, Objective(itl=1.0)) if lever.name == "speculation")
    one, many = gains(note)
    assert one > 2.0 and many < 1.0


def test_step_size_is_the_largest_within_the_gap() -> None:
    asked = deployed("llama-3-8b", "h100")

    def seconds(chunk: int) -> float:
        rows = [RowGroup(speed.mean_context(asked), 1, 8), RowGroup(asked.workload.prompt // 2, chunk - 8)]
        return pass_seconds(asked, step_work(asked, rows))

    chosen = {flag.name: int(flag.value) for flag in flags(asked, Objective(itl=0.05), 8, "objective")}["--max-num-batched-tokens"]
    assert seconds(chosen) <= 0.05 < seconds(2 * chosen)


PUBLISHED = {
    "h200": {(128, 128): 27_911, (128, 2048): 26_221, (500, 2000): 20_770, (1000, 1000): 17_744, (1000, 2000): 16_828,
             (2048, 128): 3_538, (2048, 2048): 12_194, (5000, 500): 3_902, (20_000, 2000): 1_804},
    "h100": {(128, 128): 28_312, (128, 2048): 22_714, (500, 2000): 17_660, (1000, 1000): 15_220, (1000, 2000): 13_899,
             (2048, 128): 3_450, (2048, 2048): 9_305},
}  # fmt: skip
"""Output tokens/s by (prompt, output): TensorRT-LLM 1.0, performance overview, Llama 3.1 8B in fp8 on one device, at most load."""


@pytest.mark.parametrize(("device", "lengths"), [(device, lengths) for device, rows in PUBLISHED.items() for lengths in rows])
def test_estimates_against_published_throughput(device: str, lengths: tuple[int, int]) -> None:
    prompt, output = lengths
    load = f"in={prompt},out={output}"
    asked = deployed("llama-3.1-8b", device, dtype="fp8", kv_dtype="fp8", workload=load, chunk=8192)
    batch = min(1024, asked.memory.max_sequences)
    assert speed.batch_point(asked, batch).tokens_per_second == pytest.approx(PUBLISHED[device][lengths], rel=0.10)


def test_speculation_helps_by_acceptance_and_a_draft_model_takes_memory() -> None:
    plain = deployed("llama-3.1-70b", "h100", 4, acceptance=0.8)
    rich = replace(plain, draft=deployed("llama-3.2-1b").model)
    poor = replace(rich, acceptance=0.0)
    notes = [next(each.note for each in levers(each, Objective()) if each.name == "speculation") for each in (rich, poor)]
    assert "80% of drafts right" in notes[0] and "does not help" not in notes[0]
    assert notes[1].count("(0 drafts)") == 2 and "does not help" in notes[1]
    assert rich.memory.draft > 4 * 1.2e9 and plain.memory.draft == 0
    assert plain.memory.kv_budget - rich.memory.kv_budget == pytest.approx(rich.memory.draft, rel=1e-6)


def test_adapters_take_memory_and_are_read() -> None:
    """On a GPU slots of the largest rank; on a CPU the share that a server sets aside for them."""
    plain = deployed("llama-3.1-8b", "h100")
    with_them = replace(plain, adapters=4, adapter_rank=16)
    a_layer = 2 * (4096 + 4096) + 2 * (4096 + 1024) + 3 * (4096 + 14336)
    assert with_them.memory.adapters == 4 * 2 * 16 * 32 * a_layer == plain.memory.kv_budget - with_them.memory.kv_budget
    read = [
        step_work(with_them, [RowGroup(100, 1, rows)]).weight_bytes - step_work(plain, [RowGroup(100, 1, rows)]).weight_bytes
        for rows in (3, 9)
    ]
    assert read == [2 * 16 * 32 * a_layer * count for count in (3, 4)]
    here = deployed("llama-3.1-8b", "epyc-9654", adapters=4)
    assert here.memory.adapters == pytest.approx(0.2 * here.memory.total, abs=1) and here.adapter_rank == 64


def test_a_tier_pays_where_it_is_faster_than_computing() -> None:
    prices = {each.tier: each for each in tier_prices(prompt_bytes=6e9, computing_seconds=4.0)}
    assert list(prices) == ["host", "file", "redis", "peer"]
    assert prices["file"].seconds == pytest.approx(3.0 + 4.0) and prices["file"].of_computing == pytest.approx(7 / 4)
    assert prices["host"].of_computing < 1
    measured = {each.tier: each.seconds for each in tier_prices(6e9, 4.0, {"file": 6e9})}
    assert measured["file"] == pytest.approx(1.0 + 4.0) and measured["redis"] == prices["redis"].seconds


@pytest.mark.parametrize(("prompt", "device", "bytes_per_token"), [(2_000, "epyc-9654", 131_072), (8_000, "h100", 131_072)])
def test_a_plan_prices_the_blocks_of_a_prompt(prompt: int, device: str, bytes_per_token: int) -> None:
    """The rows that `ridgeline plan` prints: seconds by bytes and rate, and their part of computing the whole prompt."""
    asked = deployed("llama-3-8b", device, workload=f"in={prompt},out=100")
    report = make_report(asked, Objective(), False, None)
    rows = dict(physics_table(report)[2])
    computing = prefill_seconds(replace(asked, workload=replace(asked.workload, reused=0.0)))
    for tier, rate in RATES.items():
        seconds = bytes_per_token * prompt * (1 / rate + 1 / CHECKED_BYTES_PER_SECOND)
        told = re.fullmatch(r"([\d.,]+) ms, ([\d.]+)%", rows[f"a prompt's blocks from {tier}"])
        assert told and float(told[1].replace(",", "")) == pytest.approx(1e3 * seconds, rel=0.02)
        assert float(told[2]) / 100 == pytest.approx(seconds / computing, rel=0.02, abs=5e-4)
    assert [name for name in rows if name.startswith("a prompt's blocks from")] == [
        f"a prompt's blocks from {tier}" for tier in ("host", *RATES)
    ]
