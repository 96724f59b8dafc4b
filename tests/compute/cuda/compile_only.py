"""Compiles kernels for GPUs that are not there, as their launchers would launch them, and says what came of it.

Each module `compiled_*.py` beside this one has CASES. A case calls launchers on CPU tensors; every launch in it is compiled, with the
launcher's own tiles, types and alignments, and not run. Started as a process of its own, in which Triton does not interpret:
`compile_only.py CAPABILITY …` writes one JSON object a compiled kernel and line; with `once` of a kernel's launches the first alone.
"""

import importlib
import json
import os
import pkgutil
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

SHARED = {80: 163 << 10, 86: 99 << 10, 89: 99 << 10, 90: 227 << 10, 100: 227 << 10, 120: 99 << 10}
"""Bytes of shared memory that a program may have, by capability."""


MEMORY = re.compile(r"\b(?:ld|st|atom|red|prefetch|cp\.async)\S*\.global")

TESTED = (86, 90)
"""Where launches are compiled that only tests have, or that differ from others in nothing a machine knows: on one with the least shared
memory, and on the one that is aimed at."""

TWIN = 89
"""An sm_86 that has fp8: of cases without it, one launch of each kernel says all that is new."""


@dataclass(frozen=True)
class Case:
    """expected: by kernel and capability, what the PTX of its launches must contain."""

    name: str
    run: Callable[[], object]
    expected: Mapping[str, Mapping[int, tuple[str, ...]]] = field(default_factory=dict)
    capabilities: tuple[int, ...] = (80, 86, 89, 90, 100, 120)


@dataclass(frozen=True)
class Compiled:
    """What a launch became.

    stack     bytes of local memory a thread, which only spills and arrays take
    overlaps  it may be launched before the kernel ahead of it has ended
    waits     what first touches the device's memory stands behind the wait for that kernel
    """

    case: str
    kernel: str
    module: str
    capability: int
    shared: int
    registers: int
    stack: int
    overlaps: bool
    waits: bool
    missing: tuple[str, ...]


def cases() -> list[Case]:
    """All cases, in the order of modules."""
    names = sorted(found.name for found in pkgutil.iter_modules([str(Path(__file__).parent)]) if found.name.startswith("compiled_"))
    return [case for name in names for case in importlib.import_module(name).CASES]


class Absent:
    """A driver for a device that is not there."""

    def __init__(self, capability: int) -> None:
        self.capability = capability

    def get_current_device(self) -> int:
        return self.capability

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_current_target(self) -> Any:
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cuda", self.capability, 32)


def compiled(case: Case, capability: int, done: set[str]) -> Iterator[Compiled]:
    """What a case launches, compiled for a capability, but for kernels that are `done`."""
    from triton.runtime import driver
    from triton.runtime.jit import JITFunction

    from ridgeline.compute.cuda.triton import launch

    found: list[tuple[Any, Any]] = []
    original = JITFunction.run

    def run(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> None:
        assert all(isinstance(size, int) and 0 < size < limit for size, limit in zip(grid, (2**31, 2**16, 2**16), strict=False)), grid
        if self.__name__ in done:
            return
        found.append((self, original(self, *args, grid=grid, warmup=True, **kwargs)))

    driver.set_active(Absent(capability))
    launch.INTERPRETER_CAPABILITY = capability  # type: ignore[misc]
    launch.capability.cache_clear()
    JITFunction.run = run
    try:
        case.run()
    finally:
        JITFunction.run = original
    made = {id(kernel): (function, kernel) for function, kernel in found}.values()
    for function, kernel in made:
        ptx = "".join(other.asm["ptx"] for same, other in made if same is function)
        missing = tuple(text for text in case.expected.get(function.__name__, {}).get(capability, ()) if text not in ptx)
        registers, stack = resources(kernel.asm["cubin"])
        overlaps, waits = bool(kernel.metadata.launch_pdl), waits_first(kernel.asm["ptx"])
        yield Compiled(
            case.name, function.__name__, function.__module__, capability, kernel.metadata.shared, registers, stack, overlaps, waits,
            missing,
        )  # fmt: skip


def waits_first(ptx: str) -> bool:
    """True where `griddepcontrol.wait` stands before every instruction that reads or writes global memory."""
    wait, touched = ptx.find("griddepcontrol.wait"), MEMORY.search(ptx)
    return wait >= 0 and (touched is None or wait < touched.start())


def resources(cubin: bytes) -> tuple[int, int]:
    """Registers and bytes of local memory of a thread."""
    from triton import knobs

    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [knobs.nvidia.cuobjdump.path, "--dump-resource-usage", file.name]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    registers, stack = re.search(r"REG:(\d+)", said), re.search(r"STACK:(\d+)", said)
    assert registers and stack, said
    return int(registers[1]), int(stack[1])


def main() -> None:
    """Compiles the cases for the capabilities of the command line; further words pick cases whose names contain one."""
    assert os.environ.get("TRITON_INTERPRET") != "1"
    capabilities = [int(word) for word in sys.argv[1:] if word.isdigit()]
    picked, once = [word for word in sys.argv[1:] if not word.isdigit() and word != "once"], "once" in sys.argv[1:]
    done: dict[int, set[str]] = {capability: set() for capability in capabilities}
    for case in cases():
        if not picked or any(word in case.name for word in picked):
            for capability in capabilities:
                if capability in case.capabilities:
                    is_new = capability == TWIN and "fp8" in case.name and not once
                    for made in compiled(case, capability, set() if is_new else done[capability]):
                        print(json.dumps(asdict(made)), flush=True)
                        if once or capability == TWIN:
                            done[capability].add(made.kernel)


if __name__ == "__main__":
    main()
