"""Environment variables, read here and nowhere else. None changes a result, the ISA override of tests apart."""

import os


def isa_override() -> str | None:
    """`RIDGELINE_ISA`: run the native kernels at this ISA level instead of the fastest. For tests."""
    return os.environ.get("RIDGELINE_ISA") or None
