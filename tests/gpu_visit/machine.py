"""The device of a step: the first GPU, or with `--tiny` the interpreter, made to round as a GPU does."""

import sys
from pathlib import Path

from ridgeline.compute.cuda.bench.parts import device_of
from ridgeline.compute.cuda.device import Device

TINY = "--tiny" in sys.argv[1:]


def open_machine() -> Device:
    """Raises ConfigError where there is no GPU and nobody asked for the interpreter."""
    if TINY:
        install()
    return device_of("cpu" if TINY else "cuda")


def install() -> None:
    """Makes the interpreter round, as the tests of kernels do."""
    sys.path.append(str(Path(__file__).parents[1] / "compute/cuda"))
    import interpreter

    interpreter.install()
