"""A start beside its plan: memory and speed that were predicted, and what was measured. One line of the log; what is learned is kept.

Runs behind the start, in a thread: no request waits for it.
"""

import asyncio
import logging
from pathlib import Path
from statistics import median
from typing import Final

from ridgeline.config.env import cache_directory
from ridgeline.engine.messages import Ready
from ridgeline.facts.hardware.machine import anonymous_bytes
from ridgeline.facts.headers.read import describe_files
from ridgeline.observe.logs import with_fields
from ridgeline.planning.verify import Verification, verify_start

_log: Final = logging.getLogger("ridgeline.server")


async def verify_engine(path: Path, ready: Ready, pid: int | None) -> Verification | None:
    """Compares the engine of process `pid` with the plan of the model at `path`. None where nothing can be compared."""
    found = await asyncio.to_thread(_verify, path, ready, pid)
    if found is not None:
        errors = {kind: [line.error for line in found.lines if line.name.startswith(kind)] for kind in ("process", "decode", "prefill")}
        told = {f"{kind}_error": f"{median(values):+.0%}" for kind, values in errors.items() if values}
        _log.info("predicted and measured", extra=with_fields(**told, next="`ridgeline plan MODEL --verify` has each line"))
    return found


def _verify(path: Path, ready: Ready, pid: int | None) -> Verification | None:
    process = None if pid is None else anonymous_bytes(pid)
    return verify_start(describe_files(path), ready.decisions, ready.info, process, cache_directory())
