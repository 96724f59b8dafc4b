"""Every kernel compiles for every kind of GPU, as it is launched there: shared memory, spills, instructions. Nothing is run."""

import ast
import json
import os
import subprocess
import sys
from fcntl import LOCK_EX, flock
from pathlib import Path

import pytest
from compile_only import SHARED, Compiled

from ridgeline.compute.cuda.triton.launch import PROGRAMMATIC_FROM

REDUCING = {"rotation_kernel"}
"""Sines of large angles: what the reduction by π multiplies with lies on the stack. Nothing spilled."""

SPILLS = {100: 40, 120: 24}
"""Bytes that a thread may spill on a Blackwell, whose tiles are those of others."""

BETWEEN_STEPS = {"copy_blocks_kernel"}
"""Kernels that no step has."""

LEAST_REGISTERS = 10
"""Of a kernel that does anything. The compiler makes a trap of one that needs more tensor memory than there is, and reports nothing."""

HERE = Path(__file__).parent
KERNELS = HERE.parents[2] / "src/ridgeline/compute/cuda/triton"


pytestmark = pytest.mark.timeout(600)


ALL = [*(pytest.param((capability,), marks=pytest.mark.night) for capability in SHARED), (90, "once")]


@pytest.fixture(scope="module", params=ALL, ids=lambda words: " ".join(map(str, words)))
def words(request: pytest.FixtureRequest) -> tuple[int | str, ...]:
    """By day one launch of every kernel, on the machine that launches all of them."""
    return tuple(request.param)


@pytest.fixture(scope="module")
def compiled(words: tuple[int | str, ...], tmp_path_factory: pytest.TempPathFactory) -> list[Compiled]:
    """What the cases became, in a process of its own: the first process of pytest that asks compiles, for all others too."""
    root = tmp_path_factory.getbasetemp()
    folder = (root.parent if "PYTEST_XDIST_WORKER" in os.environ else root) / "compiled"
    folder.mkdir(exist_ok=True)
    found = folder / f"{'-'.join(map(str, words))}.jsonl"
    with found.with_suffix(".lock").open("w") as lock:
        flock(lock, LOCK_EX)
        if not found.exists():
            found.write_text(compile_cases(words, folder / "triton"))
    return [Compiled(**json.loads(line)) for line in found.read_text().splitlines()]


def compile_cases(words: tuple[int | str, ...], cache: Path) -> str:
    """What `compile_only.py` says. cache: what other words have compiled is not compiled again."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["TRITON_CACHE_DIR"] = str(cache)
    environment["PYTHONPATH"] = os.pathsep.join([str(HERE), *(path for path in sys.path if path)])
    command = [sys.executable, str(HERE / "compile_only.py"), *map(str, words)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return done.stdout


def test_every_kernel_is_compiled(compiled: list[Compiled]) -> None:
    """A kernel is a jitted function whose name ends with `_kernel`; each is launched by a case on every machine."""
    there = {
        (path.stem, node.name)
        for path in KERNELS.glob("*.py")
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.FunctionDef) and node.name.endswith("_kernel")
    }
    assert there == {(made.module.rsplit(".", 1)[1], made.kernel) for made in compiled}


def test_shared_memory(compiled: list[Compiled]) -> None:
    assert not [made for made in compiled if made.shared > SHARED[made.capability]]


def test_nothing_spills(compiled: list[Compiled]) -> None:
    assert not [made for made in compiled if made.stack > SPILLS.get(made.capability, 0) and made.kernel not in REDUCING]


def test_kernels_that_come_early_wait(compiled: list[Compiled]) -> None:
    """From capability 9.0 on every kernel of a step is launched before the one ahead of it has ended, and touches nothing until then."""
    early = [made for made in compiled if made.capability >= PROGRAMMATIC_FROM and made.kernel not in BETWEEN_STEPS]
    assert [made for made in compiled if made.overlaps] == early
    assert [made for made in compiled if made.waits] == early


def test_kernels_are_no_traps(compiled: list[Compiled]) -> None:
    assert not [made for made in compiled if made.registers < LEAST_REGISTERS]


def test_expected_instructions(compiled: list[Compiled]) -> None:
    assert not [made for made in compiled if made.missing]
