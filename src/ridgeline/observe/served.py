"""Lessons of a server's own requests about this machine, kept at its end for the simulations that follow.

Where nobody has run `plan --verify`, estimates are those of a start's three steps, in a hot loop and in processor time. Served steps are
longer: threads wake up, and the front end and its clients use the same cores. Prompts that were computed alone, and steps of one stream,
tell by how much.
"""

import logging
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Final

from ridgeline.observe.logs import with_fields
from ridgeline.observe.steps import StepLog
from ridgeline.planning.corrections import keep_served
from ridgeline.planning.deployment import Deployment
from ridgeline.planning.step import RowGroup, pass_seconds, step_work
from ridgeline.planning.verify import Verification

LEAST_TOKENS: Final = 32
"""Tokens of a prompt's step from which on it is computing that makes its time."""
LEAST_PROMPTS: Final = 16
"""Fewer tell nothing of the slowest."""
MOST_OVER: Final = 3.0
"""Prompts that take so many times their estimate in the median have shared the cores with other programs, which may be gone later."""
MOST_STEPS: Final = 20_000
MOST_DECODES: Final = 1_000
"""The last steps, which are looked at, and of them those of one stream that are estimated."""
_log: Final = logging.getLogger("ridgeline.server")


def keep_lone_prompts(log: StepLog, since: int, started: Verification, cache: Path) -> bool:
    """Keeps how long lone prompts and steps of one stream took beside their estimates.

    since    index of the first step that counts          cache  where corrections are kept
    started  what is served, on this machine as its start has it
    False where too little was served, or beside too much else, or `plan --verify` has told more.
    """
    found = lone_prompts(log, since, started.deployment)
    if found is None or median(found[1]) > MOST_OVER or not keep_served(cache, started.deployment, started.runner, *found):
        return False
    host, factors = found
    figures = {"prompts": len(factors), "over_estimate": f"{median(factors):.2f}", "host_ms_per_step": f"{1e3 * host:.2f}"}
    _log.info("served steps kept for `sim --device this`", extra=with_fields(**figures))
    return True


def lone_prompts(log: StepLog, since: int, deployment: Deployment) -> tuple[float, list[float]] | None:
    """Seconds of a step beside its computing, the median of those that decode one row; and of each lone prompt its computing over the
    estimate. None where there are few."""
    alone = [*_alone(log, since)]
    decodes, prompts = [each for each in alone if each[1] == 1], [each for each in alone if each[1] >= LEAST_TOKENS]
    if not decodes or len(prompts) < LEAST_PROMPTS:
        return None
    beside = median(seconds - _estimate(deployment, start, tokens) for start, tokens, seconds in decodes[-MOST_DECODES:])
    host = max(0.0, beside)
    return host, [max(0.0, seconds - host) / _estimate(deployment, start, tokens) for start, tokens, seconds in prompts]


def _alone(log: StepLog, since: int) -> Iterator[tuple[int, int, float]]:
    """Position, tokens and seconds of steps with one row."""
    for index in range(max(since, log.first, log.end - MOST_STEPS), log.end):
        step = log[index]
        if step.prefill + step.decode and min(step.prefill, step.decode) == 0 and step.ended < float("inf"):
            tokens, _, seconds, rows = log.sizes(index)
            if rows == 1 and seconds > 0:
                yield step.positions, tokens, seconds


def _estimate(deployment: Deployment, start: int, tokens: int) -> float:
    return pass_seconds(deployment, step_work(deployment, [RowGroup(start, tokens)]))
