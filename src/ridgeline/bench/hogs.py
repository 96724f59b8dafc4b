"""Foreign processes that want a processor each and give nothing back: what a machine looks like that is shared with others."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from time import sleep
from typing import Final

from ridgeline.bench.guard import Guard

WORK: Final = "while True: pass"
SETTLE_SECONDS: Final = 0.3
"""Until each of them computes."""


@contextmanager
def hogs(count: int) -> Iterator[None]:
    """So many of them run, each in a session of its own, as somebody else's would."""
    found = [subprocess.Popen([sys.executable, "-S", "-c", WORK], start_new_session=True) for _ in range(count)]
    guards = [Guard(each.pid) for each in found]
    try:
        sleep(SETTLE_SECONDS)
        yield
    finally:
        for each, guard in zip(found, guards, strict=True):
            each.kill()
            each.wait()
            guard.release()
