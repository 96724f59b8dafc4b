"""The visit to a GPU without one: its plan, the walk through it, its pages. By night all of it, on the interpreter with tiny sizes."""

import json
import os
import re
import subprocess
import sys
import time
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, packages_distributions, requires
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent))
sys.path.append(str(Path(__file__).parents[1] / "compute/cuda"))

from steps import PARTS, make_steps
from table import table
from walk import Step, Visit, walk
from wheels import LIST, name_of

from ridgeline.bench import gpu
from ridgeline.bench.gpu_part import SERVER_PACKAGES

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
MINUTES = 9
ON_MACHINE = {"torch", "triton", "numpy", "transformers", "typer", "rich", "tokenizers", "sentencepiece"}
FINE = 'print("{\\"size\\": 1}")'


def step(name: str, script: str, limit: float = 30.0, *, beside: bool = False) -> Step:
    return Step(name, (sys.executable, "-S", "-c", script), limit, beside)


def run(visit: Visit, *steps: Step, seconds: float = 60.0) -> dict[str, str | None]:
    """The error of each step that is done."""
    walk(visit, 1, steps, seconds, lambda visit: None)
    return {name: each["error"] for (_, name), each in visit.done.items()}


def test_a_step_that_fails_costs_no_other(tmp_path: Path) -> None:
    visit = Visit(tmp_path)
    error = json.dumps({"size": 2, "error": "misaligned address"})
    found = run(
        visit, step("hangs", f"{FINE}; import sys, time; sys.stdout.flush(); time.sleep(60)", 3.0), step("dies", "import os; os.abort()"),
        step("tells", f"print({error!r})"), step("noisy", f"print('a word'); {FINE}", beside=True), step("fine", FINE, beside=True),
    )  # fmt: skip
    assert found["fine"] is found["noisy"] is None
    assert found["hangs"] is not None and "limit of 3 s" in found["hangs"] and "misaligned" in str(found["tells"])
    assert found["dies"] is not None and "status -6" in found["dies"]
    assert [row["step"] for row in visit.rows if row.get("size") == 1] == ["hangs", "noisy", "fine"] or len(visit.rows) == 4
    assert "misaligned" in (tmp_path / "log.txt").read_text() and len(visit.failures) == 3


def test_it_goes_on_where_it_ended(tmp_path: Path) -> None:
    """In the same folder, or behind the files of an earlier one; a step that had no time left is done then."""
    first = Visit(tmp_path / "a")
    assert run(first, step("one", FINE)) == {"one": None}
    assert run(first, step("two", FINE), seconds=0.0) == {"one": None}
    with (tmp_path / "a/rows.jsonl").open("a") as file:
        file.write('{"part": 1, "st')
    for again in (Visit(tmp_path / "a"), Visit(tmp_path / "b", tmp_path / "a")):
        assert [row["step"] for row in again.rows] == ["one"]
        assert run(again, step("one", "import os; os.abort()"), step("two", FINE)) == {"one": None, "two": None}


@pytest.mark.parametrize("dry", [False, True])
@pytest.mark.parametrize("part", PARTS)
def test_every_command_can_be_run(part: int, dry: bool) -> None:
    steps = make_steps(part, [{"part": 1, "test": "tests/compute/cuda/test_cuda_ops.py::test_x"}], dry=dry)
    assert len({each.name for each in steps}) == len(steps)
    apart = sum(each.limit for each in steps if not each.beside)
    assert apart + max((each.limit for each in steps if each.beside), default=0.0) <= 60 * MINUTES
    for each in steps:
        words = list(each.command)
        if "pytest" in words:
            assert (ROOT / words[-1].partition("::")[0]).is_file() and words[words.index("-p") + 1] == "rows_plugin"
        else:
            assert words[0] == sys.executable and Path(words[1]).is_file() and Path(words[1]).parent == HERE
        if words[1].endswith("bench_part.py"):
            settings = json.loads(words[2])
            assert settings["part"] in gpu.PARTS and Path(settings["model"]).is_file()
            assert settings["device"] == ("cpu" if dry else "cuda")


def test_what_failed_is_run_again() -> None:
    failed = [{"part": 1, "test": f"tests/compute/cuda/test_cuda_ops.py::test_{number}"} for number in range(40)]
    again = [each for each in make_steps(2, [*failed, *failed], dry=False) if each.name.startswith("again")]
    assert len(again) == 24 and all("CUDA_LAUNCH_BLOCKING=1" in each.command and each.beside for each in again)


def test_what_a_visit_lacks() -> None:
    """What its machine and the wheels do not have; not what those need."""
    found = {*lacking()}
    assert {"httpx", "openai", "ruff", "mypy"} <= found and not found & {"torch", "sympy", "yaml", "pytest", "ridgeline", "msgspec"}


def test_wheels_are_what_a_machine_may_lack() -> None:
    lines = [line for line in LIST.read_text().splitlines() if not line.startswith("#")]
    named = {line.partition("==")[0] for line in lines}
    assert all("==" in line for line in lines) and {*SERVER_PACKAGES, "gguf", "grimp", "llguidance", "pytest"} <= named
    assert not named & ON_MACHINE
    assert name_of(Path("prometheus_client-0.26.0-py3-none-any.whl")) == "prometheus-client"


def test_the_documents_table_is_the_visits() -> None:
    """Of a visit that has seen nothing: whoever fills a line does so with what a visit wrote."""
    lines = (ROOT / "docs/gpu.md").read_text().splitlines()
    for line in table([]):
        assert line in lines, line


def test_a_table_of_what_was_seen() -> None:
    where = {"part": 3, "step": "bench ceilings bf16"}
    ceilings = [{**where, "ceiling": name, "per_second": speed} for name, speed in (("copy", 3e12), ("bf16", 790e12), ("fp8", 1.58e15))]
    decoded = {"batch": 1, "graphs": True, "tokens_per_second": 160.0, "idle_seconds": 4e-5}
    rows = [
        *ceilings,
        *({"part": part, "step": "bench decode bf16", **decoded, "tokens_per_second": speed} for part, speed in ((3, 160.0), (1, 99.0))),
    ]
    lines = table(
        [*rows, {"part": 1, "step": "tests a", "tests": {"passed": 3, "failed": 1}}, {"part": 1, "smoke": "graph", "equal": True}]
    )
    (speed,) = (line for line in lines if "decode bf16, batch 1 |" in line and "bound" in line)
    assert "| 160 tok/s, 81% of the bound: met |" in speed
    assert any("1 failed, 3 passed" in line for line in lines) and any("| 1 of 1 |" in line for line in lines)
    assert sum("unmeasured" in line for line in lines) > 20


def lacking() -> list[str]:
    """Modules installed here that a visit has neither on its machine nor as wheels."""
    listed = [line.partition("==")[0] for line in LIST.read_text().splitlines() if not line.startswith("#")]
    there, left = set[str](), [*ON_MACHINE, *listed, "ridgeline"]
    while left:
        name = left.pop().lower().replace("_", "-")
        if name not in there:
            there.add(name)
            with suppress(PackageNotFoundError):
                left += [re.split(r"[ ;<>=!~\[(]", need)[0] for need in requires(name) or () if "extra ==" not in need]
    packages = packages_distributions().items()
    return sorted(module for module, names in packages if not {name.lower().replace("_", "-") for name in names} & there)


def dry_run(out: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """With no more packages than a visit has. accelerate stays: transformers believes its metadata."""
    command = [sys.executable, str(HERE / "visit.py"), "--dry-run", "--out", str(out), *words]
    hidden = ",".join(each for each in lacking() if each not in ("accelerate", "psutil"))
    found = {**os.environ, "OMP_NUM_THREADS": "1", "LACKING": hidden, "PYTHONPATH": str(HERE / "lacking")}
    return subprocess.run(command, capture_output=True, text=True, check=False, env=found)


def test_its_first_step(tmp_path: Path) -> None:
    done = dry_run(tmp_path, "1", "--only", "facts")
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()]
    assert [row["fact"] for row in rows][-2:] == ["index ops in a graph", "a pool after another"]
    assert "unmeasured" in (tmp_path / "table.md").read_text()


def test_a_part_that_there_is_not(tmp_path: Path) -> None:
    done = dry_run(tmp_path, "5")
    assert done.returncode == 2 and "the parts are 1, 2, 3, 4, got 5" in done.stderr


@pytest.mark.night
@pytest.mark.alone
@pytest.mark.timeout(400)
def test_all_of_it(tmp_path: Path) -> None:
    began = time.monotonic()
    done = dry_run(tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert time.monotonic() - began <= 180
    rows = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()]
    assert sum(row.get("smoke") == "graph" and row["equal"] for row in rows) == 8  # of two models
    assert {row["step"].split()[1] for row in rows if row["step"].startswith("bench")} == {*gpu.PARTS} - {"host"}
    assert all(row["equal"] for row in rows if "random steps" in row) and any("sweep" in row for row in rows)
    files = list(tmp_path.iterdir())
    assert len(files) <= 8 and sum(file.stat().st_size for file in files) < 1 << 20
