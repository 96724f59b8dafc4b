"""The GPU's benchmark without a GPU: parts in processes, their limits and errors; what the driver says of a GPU."""

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import grimp
import pytest
import typer

from ridgeline.bench import gpu, gpu_part
from ridgeline.bench.gpu import MAX_TOTAL_SECONDS, ON_REQUEST, PARTS, SETTINGS, Job, Report, format_row, make_jobs, run_jobs
from ridgeline.bench.gpu_bounds import Ceilings, decode_seconds, prefill_seconds
from ridgeline.bench.gpu_targets import TARGETS, batch_invariant_costs, compare_with_targets, headline_target
from ridgeline.cli import bench_gpu
from ridgeline.errors import ConfigError, ModelNotFoundError
from ridgeline.facts.headers.checkpoint import read_config_facts
from ridgeline.facts.headers.read import find_config
from ridgeline.models.table import MEASURED

FINE = 'print("{\\"batch\\": 1}", flush=True)'
SCRIPTS = {
    "fine": FINE,
    "noisy": f'print("a library says"); {FINE}',
    "hangs": f"{FINE}; import time; time.sleep(60)",
    "dies": f"{FINE}; import sys; sys.exit('illegal memory access')",
    "leaves": f"{FINE}; import subprocess; subprocess.Popen(['sleep', '20'], start_new_session=True)",
    "tells": f'{FINE}; print("{{\\"error\\": \\"no room\\"}}")',
}


def run(monkeypatch: pytest.MonkeyPatch, *names: str, most: float = 60.0, share: float = 20.0) -> tuple[Report, list[dict[str, Any]]]:
    monkeypatch.setattr(gpu, "command", lambda settings: [sys.executable, "-S", "-c", SCRIPTS[settings["script"]]])
    monkeypatch.setattr(gpu, "read_gpus", lambda: ())
    seen: list[dict[str, Any]] = []
    asked = [Job("decode", "bf16", share, {"script": name}) for name in names]
    return run_jobs("m", asked, lambda job, row: seen.append(row), lambda report: None, most), seen


def test_a_part_that_fails_loses_neither_its_rows_nor_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    report, seen = run(monkeypatch, "dies", "tells", "noisy", "fine")
    dies, tells, noisy, fine = report.results
    assert dies.rows == tells.rows == fine.rows == [{"batch": 1}]
    assert dies.error is not None and "status 1" in dies.error and "illegal memory access" in dies.error
    assert tells.error == "no room"
    assert noisy.rows == [{"note": "a library says"}, {"batch": 1}] and noisy.error is fine.error is None
    assert len(seen) == 6 and len(report.failures) == 2
    assert json.loads(json.dumps(report.as_dict()))["parts"][1]["error"] == "no room"


def test_a_part_whose_children_live_on_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    began = time.monotonic()
    report, _ = run(monkeypatch, "leaves", "fine")
    assert [done.rows for done in report.results] == [[{"batch": 1}]] * 2 and not report.failures
    assert time.monotonic() - began < 15


def test_a_part_that_hangs_is_ended_at_its_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    report, _ = run(monkeypatch, "hangs", most=4.0, share=4.0)
    (hangs,) = report.results
    assert hangs.rows == [{"batch": 1}] and hangs.seconds < 20
    assert hangs.error is not None and "limit of 4 s" in hangs.error


def test_time_is_kept_for_parts_that_follow(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first may have three times its share where nobody needs it; the last one's share is left, whatever the first does."""
    limits: list[float] = []
    monkeypatch.setattr(gpu, "_run", lambda done, limit, on_row: limits.append(limit))
    run(monkeypatch, "fine", "fine", most=100.0, share=20.0)
    run(monkeypatch, "fine", "fine", most=40.0, share=20.0)
    run(monkeypatch, "fine", most=10.0, share=20.0)
    assert [round(limit) for limit in limits] == [60, 60, 20, 40, 20]


def test_what_is_run() -> None:
    config = find_config(MEASURED)
    every = make_jobs([], ["bf16", "fp8"], config)
    assert [job.name for job in every] == [
        "ceilings", "decode bf16", "decode fp8", "prefill bf16", "prefill fp8", "serving bf16", "serving fp8", "ttft bf16",
        "transformers bf16",
        "invariant bf16", "kernels",
    ]  # fmt: skip
    assert all(job.settings["part"] in PARTS and json.dumps(job.settings) for job in every)
    assert [job.settings["invariant"] for job in every].count(True) == 1
    assert [job.name for job in make_jobs(["serving"], ["fp8"], config)] == ["ceilings", "serving fp8"]
    assert [job.name for job in make_jobs(["host"], ["fp8"], config)] == ["host fp8"]
    with pytest.raises(ConfigError, match="--only has 'decoding'; ceilings, decode, prefill"):
        make_jobs(["decoding"], ["bf16"], config)
    with pytest.raises(ConfigError, match="--dtype has 'int8'"):
        make_jobs([], ["int8"], config)
    with pytest.raises(ConfigError, match="--minutes is 0; more than 0"):
        make_jobs(["soak"], ["bf16"], config, 0.0)
    with pytest.raises(ModelNotFoundError, match=r"is not a config\.json"):
        find_config("nothing")


def test_everything_fits_ten_minutes() -> None:
    config = find_config(MEASURED)
    assert sum(job.budget_seconds for job in make_jobs([], ["bf16", "fp8"], config)) <= MAX_TOTAL_SECONDS <= 600
    assert not {job.part for job in make_jobs([], ["bf16", "fp8"], config)} & set(ON_REQUEST)
    (soak,) = make_jobs(["soak"], ["bf16", "fp8"], config, 8.0)
    assert soak.settings["seconds"] == 480 < soak.budget_seconds


def test_transformers_stands_beside_our_decoding() -> None:
    alone = make_jobs(["transformers"], ["fp8"], find_config(MEASURED))
    assert [job.name for job in alone] == ["decode bf16", "transformers bf16"]
    assert alone[1].settings["modes"] == ["reduce-overhead", "max-autotune"]
    with_all = [job for job in make_jobs([], ["bf16"], find_config(MEASURED)) if job.part == "transformers"]
    assert with_all[0].settings["modes"] == ["reduce-overhead"]


def test_targets_stand_beside_their_rows() -> None:
    def target(part: str, dtype: str, row: dict[str, Any]) -> float | None:
        found = headline_target(part, dtype, row)
        return None if found is None else found.target

    speed = {"graphs": True, "tokens_per_second": 1.0, "host_seconds": 1.0}
    assert target("decode", "bf16", {"batch": 32, **speed}) == 0.74 and target("decode", "bf16", {"batch": 7, **speed}) is None
    assert target("decode", "bf16", {"batch": 32, **speed, "graphs": False}) is None
    assert target("prefill", "bf16", {"tokens": 2048, "seconds": 1.0}) == 0.72
    assert target("serving", "fp8", {"rows": 256, **speed}) == 0.46
    row = {"batch": 1, "step_seconds": 0.004, "tokens_per_second": 225.0, "share_of_ceiling": 0.5, "ratio": 1.625}
    assert format_row(row) == "batch 1, step_seconds 4.000 ms, tokens_per_second 225, share_of_ceiling 50%, ratio 1.62"


def test_every_target_can_be_measured() -> None:
    """By a row of a part that runs, with settings that make it."""
    sizes = {"batch": "batches", "tokens": "prompts", "rows": "phases"}
    for target in TARGETS:
        settings = SETTINGS[target.part]
        for name, value in target.where.items():
            if name in sizes:
                made = [each[0] if name == "rows" else each for each in settings[sizes[name]]]
                assert value in made, target
    assert {target.part for target in TARGETS} == set(PARTS) - {"ceilings", "experts", "kernels", "invariant", "host"}


def test_verdicts() -> None:
    def decoded(batch: int, speed: float, **more: Any) -> dict[str, Any]:
        return {"batch": batch, "graphs": True, "tokens_per_second": speed, **more}

    ceilings = {"copy": 4.3e12, "bf16": 790e12, "fp8": 1.58e15}
    facts = read_config_facts(find_config(MEASURED))
    sampled = [decoded(batch, 1.0, top_p=0.9) for batch in (1, 32)]  # beside the targets
    parts = {
        ("ceilings", "bf16"): [{"ceiling": name, "per_second": value} for name, value in ceilings.items()],
        ("decode", "bf16"): [
            decoded(1, 240.0, idle_seconds=60e-6),
            decoded(32, 6_100.0, host_seconds=0.2e-3),
            decoded(64, 8_000.0),
            *sampled,
        ],
        ("transformers", "bf16"): [{"batch": 1, "tokens_per_second": 100.0}, {"batch": 1, "tokens_per_second": 120.0}],
        ("invariant", "bf16"): [decoded(1, 216.0)],
        ("ttft", "bf16"): [{"through": "LLM, without HTTP", "seconds": 0.04}],
        ("soak", "bf16"): [{"requests": 2_500, "grown_bytes": 0}],
    }
    found = {verdict.what: (verdict.measured, verdict.result) for verdict in compare_with_targets(parts, facts)}
    assert len(found) == len(TARGETS)
    assert found["decode bf16, batch 1"] == (pytest.approx(240 / 284, rel=0.01), "met")
    assert found["decode bf16, batch 32"] == (pytest.approx(6_100 / 7_130, rel=0.01), "stretch met")
    assert found["decode bf16, batch 64"] == (pytest.approx(8_000 / 11_660, rel=0.01), "missed")
    assert found["decode fp8, batch 1"] == (None, "not measured")
    (raw,) = (verdict for verdict in compare_with_targets(parts, facts) if verdict.what == "decode bf16, batch 1")
    assert (raw.key, raw.value, raw.unit) == ("tokens_per_second", 240.0, "share_of_bound")
    del parts["ceilings", "bf16"]
    (raw,) = (verdict for verdict in compare_with_targets(parts, facts) if verdict.what == "decode bf16, batch 1")
    assert (raw.value, raw.measured, raw.result) == (240.0, None, "not measured")
    assert found["GPU idle between steps, runner, bf16, batch 1"] == (60e-6, "missed")
    assert found["host time per step, runner, bf16, batch 32"] == (0.2e-3, "met")
    assert found["against transformers, batch 1, times as fast"] == (2.0, "met")
    assert found["against transformers, batch 32, times as fast"] == (None, "not measured")
    assert found["TTFT idle, 2k tokens, over HTTP"] == (None, "not measured")
    assert found["soak, growth of device memory"] == (0.0, "met")
    (cost,) = batch_invariant_costs(parts)
    assert cost == {"dtype": "bf16", "batch": 1, "tokens_per_second": 216.0, "share_lost": pytest.approx(0.1)}


def test_bounds_are_of_the_ceilings() -> None:
    """Worked out by hand for the ceilings that were seen of an H200 and of an H100."""
    facts = read_config_facts(find_config(MEASURED))
    for copy, single, many, prompt in ((4.3e12, 284, 19_900, 0.0376), (3.0e12, 198, 15_700, 0.0376)):
        ceilings = Ceilings(copy, 790e12, 1.58e15)
        assert 1 / decode_seconds(facts, ceilings, "bf16", 1, 1024) == pytest.approx(single, rel=0.01)
        assert 256 / decode_seconds(facts, ceilings, "bf16", 256, 1024) == pytest.approx(many, rel=0.02)
        assert prefill_seconds(facts, ceilings, "bf16", 2048) == pytest.approx(prompt, rel=0.01)
    fp8 = Ceilings(4.3e12, 790e12, 1.58e15)
    assert 1 / decode_seconds(facts, fp8, "fp8", 1, 1024) == pytest.approx(568, rel=0.01)
    assert 256 / decode_seconds(facts, fp8, "fp8", 256, 1024) == pytest.approx(39_800, rel=0.01)


def test_without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "gpu_missing", lambda: 'torch cannot be imported; pip install "ridgeline[gpu]"')
    with pytest.raises(ConfigError, match=r"none can be used: torch cannot .* pip install .*doctor"):
        gpu.check_gpu(make_jobs(["decode", "host"], ["bf16"], find_config(MEASURED)))
    gpu.check_gpu(make_jobs(["host"], ["bf16"], find_config(MEASURED)))


DECODED = {
    "batch": 32, "graphs": True, "tokens_per_second": 5000.0, "step_seconds": 0.0064, "device_seconds": 0.006, "idle_seconds": 0.0004,
    "host_seconds": 0.0002,
}  # fmt: skip


def test_the_command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"ceiling": name, "per_second": value} for name, value in (("copy", 3e12), ("bf16", 790e12), ("fp8", 1.58e15))]
    script = "".join(f"print({json.dumps(row)!r});" for row in rows)
    script += f"print({json.dumps(DECODED)!r}); print({json.dumps({'batch': 64, 'error': 'misaligned address'})!r})"
    monkeypatch.setattr(gpu, "check_gpu", lambda asked: None)
    monkeypatch.setattr(gpu, "read_gpus", lambda: ())
    monkeypatch.setattr(gpu, "command", lambda settings: [sys.executable, "-S", "-c", script])
    with pytest.raises(typer.Exit) as ended:  # a case failed
        bench_gpu.gpu("decode", "bf16", MEASURED, as_json=tmp_path / "report.json")
    assert ended.value.exit_code == 1
    said = capsys.readouterr()
    assert "decode bf16: batch 32" in said.err and "(target 74%)" in said.err and "decode bf16: done" in said.err
    assert "5,000" in said.out and "6.40" in said.out and "FAILED  decode bf16: batch 64, error misaligned address" in said.out
    lines = [" ".join(line.split()) for line in said.out.splitlines()]
    assert "decode bf16, batch 32 5,000 101% 74% 84% stretch met" in lines
    assert "not measured: 1 target, by ridgeline bench gpu --only ttft --dtype bf16" in lines
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["model"] == MEASURED and report["parts"][0]["rows"][3] == DECODED and len(report["failures"]) == 2
    assert [row["result"] for row in report["summary"] if row["what"] == "decode bf16, batch 32"] == ["stretch met"]


def test_the_command_says_what_it_would_do(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(gpu, "check_gpu", lambda asked: pytest.fail("nothing is to be measured"))
    bench_gpu.gpu(None, "bf16,fp8", MEASURED, dry_run=True)
    said = capsys.readouterr().out
    assert "transformers bf16" in said and "590 s at most for all" in said


BLOCKED = """
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {"msgspec", "starlette", "uvicorn", "torch", "triton"}:
            raise ImportError(name)

sys.meta_path.insert(0, Absent())
import ridgeline.bench.gpu_part, ridgeline.cli.bench_gpu, ridgeline.bench.gpu, ridgeline.cli.main, ridgeline.engine.llm
"""


def test_needs_no_package_of_a_server() -> None:
    source = Path(gpu.__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", BLOCKED], env={"PYTHONPATH": str(source)}, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_no_import_leads_to_a_package_of_a_server() -> None:
    """Nor transformers, which is loaded by name in the process of its part. What measures over HTTP loads its client when it does."""
    imports = grimp.build_graph("ridgeline", include_external_packages=True, exclude_type_checking_imports=True, cache_dir=None)
    for loaded_on_use in ("ridgeline.engine.record", "ridgeline.text.files"):
        imports.remove_import(importer="ridgeline.engine.compose", imported=loaded_on_use)
    roots = ("compute.cuda.bench.parts", "compute.cuda.bench.timing", "compute.runtime.worker", "compute.cuda.backend", "engine.llm")
    for root in (*roots, "bench.gpu", "bench.gpu_serving", "bench.gpu_part", "cli.bench_gpu"):
        for package in (*gpu_part.SERVER_PACKAGES, "transformers"):
            chain = imports.find_shortest_chain(f"ridgeline.{root}", package)
            assert chain is None or (root == "bench.gpu_part" and chain[1].startswith("ridgeline.bench.")), chain
