"""The steps of each part, with their commands and limits: the most telling first."""

import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from left_out import STAND_INS
from tiny_sizes import TINY_CONFIG, TINY_SETTINGS, TINY_SPARSE
from walk import Row, Step

from ridgeline.bench.gpu import DTYPES, Job, make_jobs
from ridgeline.facts.headers.read import find_config
from ridgeline.models.table import MEASURED

PARTS = (1, 2, 3, 4)
HERE = Path(__file__).parent
ROOT = HERE.parents[1]
TESTS = ROOT / "tests/compute/cuda"

FIRST_DECODE: dict[str, Any] = {"batches": [1, 32, 256], "steps": 64}
"""Of part 1: enough to see whether it is fast."""
SOAK_MINUTES = 2.0
TEST_SECONDS, AGAIN_SECONDS, MOST_AGAIN = 270.0, 70.0, 24
EXPERTS_SECONDS, ADAPTERS_SECONDS = 50.0, 30.0
PYTEST = (sys.executable, "-m", "pytest", "-p", "rows_plugin", "-p", "no:cacheprovider", "-q", "-n", "0", "-W", "default")
"""Libraries of any version may warn. Kernels are compiled in tests: tests/compute/cuda/conftest.py gives them ten minutes."""


def make_steps(part: int, rows: Sequence[Row], *, dry: bool) -> list[Step]:
    """The steps of a part. rows: of the parts before it."""
    if part == 2:
        return _second(rows, dry)
    return _first(dry) if part == 1 else _third(dry) if part == 3 else _fourth(dry)


def _first(dry: bool) -> list[Step]:
    """Facts, ceilings, eager = graph, a first decode; tests one process a file, while the processor's engine is built."""
    return [
        _script("facts", 50, dry),
        _measured("ceilings", "bf16", dry),
        _script("smoke", 110, dry),
        _measured("decode", "bf16", dry, FIRST_DECODE),
        _script("cpu_build", TEST_SECONDS, dry, beside=True),
        *_tests(dry),
    ]


def _second(rows: Sequence[Row], dry: bool) -> list[Step]:
    """What failed again, each test in a process whose launches wait; kernels; decode in fp8, with experts, with adapters; profiles; the
    CPU."""
    blocking = ("env", "CUDA_LAUNCH_BLOCKING=1")
    failed = list(dict.fromkeys(row["test"] for row in rows if row.get("part") == 1 and "test" in row))[:MOST_AGAIN]
    again = [Step(f"again {test}", (*blocking, *PYTEST, str(ROOT / test)), AGAIN_SECONDS, beside=True) for test in failed]
    return [
        *again,
        _measured("kernels", "bf16", dry),
        _measured("decode", "fp8", dry),
        _script("profiles", 60, dry),
        _measured("experts", "bf16", dry, limit=EXPERTS_SECONDS),
        _measured("adapters", "bf16", dry, limit=ADAPTERS_SECONDS),
        _script("cpu_engine", 180, dry),
    ]


def _third(dry: bool) -> list[Step]:
    """The table, on the tree as it is now: ceilings, decode, prefill, serving, first token, invariance, transformers."""
    jobs = [job for job in make_jobs([], list(DTYPES), find_config(MEASURED)) if job.part != "kernels"]
    jobs.sort(key=lambda job: job.part == "transformers")
    return [_bench(job, dry) for job in jobs]


def _fourth(dry: bool) -> list[Step]:
    """For a visit with time left: random steps, the sanitizer, tiles that the tables do not have, minutes under load."""
    (soak,) = make_jobs(["soak"], ["bf16"], find_config(MEASURED), SOAK_MINUTES)
    return [
        _script("random_steps", 100, dry),
        _script("sanitizer", 120, dry),
        _script("sweep", 110, dry),
        _bench(replace(soak, budget_seconds=60 * SOAK_MINUTES + 90), dry),
    ]


def _script(name: str, limit: float, dry: bool, *, beside: bool = False) -> Step:
    tiny = ("--tiny",) if dry else ()
    return Step(name, (sys.executable, str(HERE / f"{name}.py"), *tiny), limit, beside)


def _measured(part: str, dtype: str, dry: bool, settings: dict[str, Any] | None = None, *, limit: float | None = None) -> Step:
    """A part of `bench gpu` by itself, within its budget or `limit`."""
    (job,) = (job for job in make_jobs([part], [dtype], find_config(MEASURED)) if job.part == part)
    made = replace(job, settings={**job.settings, **(settings or {})}, budget_seconds=limit or job.budget_seconds)
    return _bench(made, dry)


def _bench(job: Job, dry: bool) -> Step:
    settings = dict(job.settings)
    if dry:
        settings |= {"device": "cpu", "model": str(TINY_SPARSE if job.part == "experts" else TINY_CONFIG), **TINY_SETTINGS[job.part]}
    return Step(f"bench {job.part} {job.dtype}", (sys.executable, str(HERE / "bench_part.py"), json.dumps(settings)), job.budget_seconds)


def _tests(dry: bool) -> list[Step]:
    """A process a file: an illegal address poisons no other. Without a GPU one file runs, and the others are collected together."""
    found = sorted(path for path in TESTS.glob("test_*.py") if path.name not in STAND_INS)
    files = [TESTS / "test_cuda_devices.py"] if dry else found
    steps = [Step(f"tests {path.stem}", (*PYTEST, str(path)), TEST_SECONDS, beside=True) for path in files]
    collected = Step("tests, collected", (*PYTEST, "--collect-only", *map(str, found)), TEST_SECONDS, beside=True)
    return [*steps, collected] if dry else steps
