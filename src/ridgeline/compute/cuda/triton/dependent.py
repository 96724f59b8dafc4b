"""Programmatic dependent launch, of devices from capability 9.0 on: a kernel's programs are there before the kernel ahead of it has ended.

What a launch costs the device then passes while the kernel ahead still computes. A kernel that is launched so waits before it touches
memory: what one waits for has waited itself, so when a kernel goes on all those ahead of it have ended, whichever of them wait.
"""

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


@triton.jit
def after_previous(PDL: tl.constexpr):
    """Waits until the kernel ahead has ended and its writes can be read; then lets programs of the next one come, once all of this one's
    have: they take no multiprocessor from any that is still to start."""
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
