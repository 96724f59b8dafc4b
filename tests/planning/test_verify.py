"""Predictions against measurements: the fit finds what a machine reaches, and what is kept changes the next plan, no other."""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ridgeline.facts.hardware.devices import DEVICES
from ridgeline.facts.headers.config_json import read_config
from ridgeline.models.table import KNOWN
from ridgeline.planning import corrections
from ridgeline.planning.arguments import PlanOptions, deployment_of
from ridgeline.planning.corrections import Correction, corrected, keep_correction, keep_front_end, read_correction
from ridgeline.planning.deployment import Deployment, rank_weights
from ridgeline.planning.step import RowGroup, pass_seconds, step_work
from ridgeline.planning.verify import _joined, fit_correction, speed_lines, verify_start

STEPS = ((1, 1), (2, 1), (8, 1), (16, 1), (32, 1), (1, 16), (1, 64), (1, 512))


@pytest.fixture
def plan() -> Deployment:
    """8 B parameters in four bits on a CPU of the table."""
    model = read_config(KNOWN / "llama-3-8b.json", "llama-3-8b").facts
    return deployment_of(model, PlanOptions("epyc-9654", dtype="q4_k", kv_dtype="bf16", users=32, chunk=512))


def timed(deployment: Deployment, compute: float, bandwidth: float, steps: tuple[tuple[int, int], ...]) -> list[tuple[int, int, float]]:
    """What a machine measures that reaches these shares."""
    device = replace(deployment.device, compute_share=compute, bandwidth_share=bandwidth)
    reached = replace(deployment, device=device)
    return [(rows, tokens, pass_seconds(reached, step_work(reached, [RowGroup(0, tokens, rows)]))) for rows, tokens in steps]


@pytest.mark.parametrize(("compute", "bandwidth"), [(0.5, 0.75), (0.11, 1.3), (0.9, 0.4)])
def test_three_steps_of_a_start_predict_all_others(plan: Deployment, compute: float, bandwidth: float) -> None:
    start = timed(plan, compute, bandwidth, ((1, 1), (16, 1), (1, 64)))
    found = corrected(plan, fit_correction(plan, start, 10**9, None))
    errors = [abs(line.error) for line in speed_lines(found, timed(plan, compute, bandwidth, STEPS))]
    assert max(errors) < 0.02
    before = [abs(line.error) for line in speed_lines(plan, timed(plan, compute, bandwidth, STEPS))]
    assert max(before) > 0.15 or (compute, bandwidth) == (0.5, 0.75)


def test_many_steps_tell_what_attention_reaches_and_what_overlaps(plan: Deployment) -> None:
    truth = replace(
        plan, device=replace(plan.device, compute_share=0.3, bandwidth_share=0.8, attention_share=0.07, head_share=0.5, overlap=0.4)
    )
    steps = (*STEPS, (1, 4096))
    measured = [(rows, count, pass_seconds(truth, step_work(truth, [RowGroup(0, count, rows)]))) for rows, count in steps]
    found = corrected(plan, fit_correction(plan, measured, 10**9, None))
    assert max(abs(line.error) for line in speed_lines(found, measured)) < 0.02
    assert found.device.overlap == pytest.approx(0.4, abs=0.05) and found.device.attention_share == pytest.approx(0.07, rel=0.15)
    assert found.device.head_share == pytest.approx(0.5, rel=0.15)


@pytest.mark.parametrize(("speed", "stays"), [(1.1, True), (0.5, False)])
def test_a_start_keeps_what_many_steps_have_told_unless_it_contradicts_them(
    plan: Deployment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, speed: float, stays: bool
) -> None:
    """Three steps tell neither attention nor overlap; a machine at half its speed tells enough."""
    monkeypatch.setattr("ridgeline.planning.verify.deployment_of", lambda facts, options: plan)
    monkeypatch.setattr("ridgeline.planning.verify.this_machine", lambda cache: plan.device)
    many = Correction(1e12, 4e10, 2e11, 1e12, 0.4, 10**8, 10)
    keep_correction(tmp_path, plan, "native", many)
    device = corrected(plan, many).device
    slower = replace(
        plan, device=replace(device, compute_share=device.compute_share * speed, bandwidth_share=device.bandwidth_share * speed)
    )
    steps = timed(slower, slower.device.compute_share, slower.device.bandwidth_share, ((1, 1), (16, 1), (1, 64)))
    decisions: Any = [SimpleNamespace(name="runner", value="native"), SimpleNamespace(name="kv_dtype", value="bf16")]
    info: Any = SimpleNamespace(
        timed=steps, max_model_len=4096, rows=32, tokens=512, weights_bytes=10**9, kv_bytes=10**9, kv=SimpleNamespace(blocks=100)
    )
    started = verify_start(plan.model, decisions, info, None, tmp_path)
    assert started is not None and started.runner == "native"
    kept = read_correction(tmp_path, plan, "native")
    assert kept is not None and (kept == many) is stays and kept.overhead_bytes == many.overhead_bytes
    assert corrected(plan, kept) == started.deployment


def test_a_start_is_compared_with_the_start_of_the_engine_that_was_timed(
    plan: Deployment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The few steps of a start are the quickest of some: 40 % below what many in a row take says nothing, if it was so then."""
    monkeypatch.setattr("ridgeline.planning.verify.deployment_of", lambda facts, options: plan)
    monkeypatch.setattr("ridgeline.planning.verify.this_machine", lambda cache: plan.device)
    many = timed(plan, 0.5, 0.75, STEPS)
    quick = [(rows, tokens, 0.6 * seconds) for rows, tokens, seconds in timed(plan, 0.5, 0.75, ((1, 1), (16, 1), (1, 64)))]
    decisions: Any = [SimpleNamespace(name="runner", value="native"), SimpleNamespace(name="kv_dtype", value="bf16")]
    info: Any = SimpleNamespace(
        timed=quick, max_model_len=4096, rows=32, tokens=512, weights_bytes=10**9, kv_bytes=10**9, kv=SimpleNamespace(blocks=100)
    )
    assert verify_start(plan.model, decisions, info, None, tmp_path, many) is not None
    kept = read_correction(tmp_path, plan, "native")
    assert kept is not None and kept.start_ratio == pytest.approx(0.6, abs=0.05)
    assert verify_start(plan.model, decisions, info, None, tmp_path) is not None
    assert read_correction(tmp_path, plan, "native") == kept
    info.timed = [(rows, tokens, 2.0 * seconds) for rows, tokens, seconds in quick]
    assert verify_start(plan.model, decisions, info, None, tmp_path) is not None
    assert read_correction(tmp_path, plan, "native") != kept


def test_memory_beside_the_weights_is_learned(plan: Deployment) -> None:
    start = timed(plan, 0.5, 0.75, STEPS[:1])
    found = fit_correction(plan, start, 5 * 10**9, 6 * 10**9)
    assert 0 < 10**9 - found.overhead_bytes < 50 * 10**6  # less what the activations of one token take
    assert fit_correction(plan, start, 5 * 10**9, 4 * 10**9).overhead_bytes == 0


def test_a_correction_is_kept_by_machine_runner_and_format(plan: Deployment, tmp_path: Path) -> None:
    found = Correction(1e12, 4e10, 2e11, 1e12, 0.4, 10**8, 10)
    keep_correction(tmp_path, plan, "native", found)
    assert read_correction(tmp_path, plan, "native") == found
    assert read_correction(tmp_path, plan, "numpy") is None
    assert read_correction(tmp_path, replace(plan, dtype="q8_0"), "native") is None
    assert read_correction(tmp_path, replace(plan, device=DEVICES["h100-sxm"]), "native") is None
    assert read_correction(tmp_path, replace(plan, context=100), "native") == found


@pytest.mark.parametrize("change", [
    {"flops_per_second": "fast"}, {"bytes_per_second": -1.0}, {"overhead_bytes": True}, {"overlap": 1.5}, {"steps": 0},
    {"front_end_seconds": -1.0}, {"spread": [60.0]}, {"spread": 0.6}, {"spread": [1.0] * 65},
    {"host_seconds": 2.0}, {"own_bytes": -1}, {"start_ratio": 0.0}, {"flops_per_second": float("inf")}, {"more": 1},
])  # fmt: skip
def test_a_damaged_file_is_as_none(plan: Deployment, tmp_path: Path, change: dict[str, object]) -> None:
    keep_correction(tmp_path, plan, "native", Correction(1e12, 4e10, 2e11, 1e12, 0.4, 10**8, 10))
    file = tmp_path / corrections.FILE
    whole = json.loads(file.read_text())
    next(iter(whole["entries"].values()))["reached"] |= change
    file.write_text(json.dumps(whole))
    assert read_correction(tmp_path, plan, "native") is None
    for text in ("[]", "{", '{"version": 5, "entries": 3}', '{"version": 5, "entries": {"a": 3}}', "[" * 100_000, ""):
        file.write_text(text)
        assert read_correction(tmp_path, plan, "native") is None
        keep_correction(tmp_path, plan, "native", Correction(1e12, 4e10, 2e11, 1e12, 0.4, 1, 10))
        assert read_correction(tmp_path, plan, "native") == Correction(1e12, 4e10, 2e11, 1e12, 0.4, 1, 10)


def test_what_the_front_end_takes_stays_through_later_starts(plan: Deployment, tmp_path: Path) -> None:
    keep_front_end(tmp_path, plan, "native", 0.01, 0.001, (1.0,))
    assert read_correction(tmp_path, plan, "native") is None, "there is nothing to add it to"
    known = Correction(1e12, 4e10, 2e11, 1e12, 0.4, 10**8, 10)
    for seconds, kept in ((0.01, 0.01), (-0.002, 0.0), (1e9, corrections.MAX_SECONDS / 2)):
        keep_correction(tmp_path, plan, "native", known)
        keep_front_end(tmp_path, plan, "native", seconds, 0.001, (3.0, 1.0, 0.0))
        found = read_correction(tmp_path, plan, "native")
        assert found == replace(known, front_end_seconds=kept, host_seconds=0.001, spread=(0.05, 1.0, 3.0))
        device = corrected(plan, found).device
        assert (device.front_end_seconds, device.host_seconds, device.spread) == (kept, 0.001, found.spread)
    assert found is not None
    later = _joined(found, replace(known, steps=3, overlap=1.0), 1.0, knows_engine=False)
    assert (later.front_end_seconds, later.host_seconds, later.spread) == (kept, 0.001, found.spread)
    changed = _joined(found, replace(known, steps=3), 2.0, knows_engine=False)
    assert changed.spread == (), "factors of other estimates"
    verified = _joined(found, replace(known, steps=12), 2.0, knows_engine=False)
    assert verified.spread == found.spread, "of medians, as the next ones"
    assert _joined(replace(found, front_end_seconds=0.0), replace(known, steps=12), 1.0, knows_engine=False).spread == ()


def test_prompts_of_earlier_times_tell_of_the_slowest_too(plan: Deployment, tmp_path: Path) -> None:
    keep_correction(tmp_path, plan, "native", Correction(1e12, 4e10, 2e11, 1e12, 0.4, 10**8, 10))
    keep_front_end(tmp_path, plan, "native", 0.01, 0.001, [1.0] * 28 + [5.0] * 3)
    for _ in range(2):
        keep_front_end(tmp_path, plan, "native", 0.01, 0.001, [0.9] * 31)
        found = read_correction(tmp_path, plan, "native")
        assert found is not None and found.spread == tuple(sorted(found.spread)) and max(found.spread) == 5.0
    assert len(found.spread) == corrections.MAX_FACTORS and 30 <= found.spread.count(0.9) <= 50


def test_a_servers_engine_and_the_process_that_times_steps_each_keep_their_size(
    plan: Deployment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Plans count the engine's. Whichever was measured last, each is predicted from one of its kind."""
    monkeypatch.setattr("ridgeline.planning.verify.deployment_of", lambda facts, options: plan)
    monkeypatch.setattr("ridgeline.planning.verify.this_machine", lambda cache: plan.device)
    steps, weights = timed(plan, 0.5, 0.75, STEPS), round(rank_weights(plan))
    decisions: Any = [SimpleNamespace(name="runner", value="native"), SimpleNamespace(name="kv_dtype", value="bf16")]
    info: Any = SimpleNamespace(
        timed=steps[:3], max_model_len=4096, rows=32, tokens=512, weights_bytes=weights, kv_bytes=10**9, kv=SimpleNamespace(blocks=100)
    )
    for number in range(2):
        for size, timed_steps in ((weights + 3 * 10**8, steps), (weights + 9 * 10**8, None)):
            found = verify_start(plan.model, decisions, info, size, tmp_path, timed_steps)
            assert found is not None
            error = next(line.error for line in found.lines if line.name == "process without KV")
            assert not number or abs(error) < 1e-6
    assert found.deployment.device.overhead_bytes == pytest.approx(9 * 10**8, rel=0.1)


def test_the_oldest_entries_make_room(plan: Deployment, tmp_path: Path) -> None:
    for number in range(corrections.MAX_ENTRIES + 5):
        keep_correction(tmp_path, plan, f"runner {number}", Correction(1e12, 4e10, 2e11, 1e12, 0.4, number, 10))
    assert read_correction(tmp_path, plan, "runner 4") is None
    assert read_correction(tmp_path, plan, "runner 5") is not None
    assert not [file for file in tmp_path.iterdir() if file.name != corrections.FILE]
