"""A start beside its plan: memory and speed that were predicted, and what was measured, a field each of a line of the log. What is
learned is kept.

Runs behind the start, in a thread: no request waits for it.
"""

import asyncio
import logging
from pathlib import Path
from typing import Final

from ridgeline.config.env import cache_directory
from ridgeline.engine.messages import Ready
from ridgeline.facts.hardware.machine import anonymous_bytes
from ridgeline.facts.headers.read import describe_files
from ridgeline.observe.logs import with_fields
from ridgeline.planning.verify import Verification, verify_start

_log: Final = logging.getLogger("ridgeline.server")


FIRST_REQUESTS_SECONDS: Final = 0.25
"""Time for requests that have waited for the start, before the comparison takes the interpreter from them."""


async def verify_engine(path: Path, ready: Ready, pid: int | None) -> Verification | None:
    """Compares the engine of process `pid` with the plan of the model at `path`. None where nothing can be compared."""
    await asyncio.sleep(FIRST_REQUESTS_SECONDS)
    found = await asyncio.to_thread(_verify, path, ready, pid)
    if found is not None:
        told = {line.name.replace(" ", "_"): "predicted {}, measured {}, {}".format(*line.told) for line in found.lines}
        _log.info("predicted and measured", extra=with_fields(**told, next="`ridgeline plan MODEL --verify` times more steps"))
    return found


def _verify(path: Path, ready: Ready, pid: int | None) -> Verification | None:
    process = None if pid is None else anonymous_bytes(pid)
    return verify_start(describe_files(path), ready.decisions, ready.info, process, cache_directory())
