"""Seconds of a request beside its steps, for `ridgeline plan MODEL --verify`: a server is started, and asked over HTTP.

Behind the steps that `plan_verify` has timed. Prompts come one by one, so that none waits for another: what is left of a time to first
token without the prompt's step is the front end's and the client's, in their processes, on this machine. How much the same prompt varies
is kept too: the slowest twentieth of a load is made of it.
"""

import asyncio
import sys
from collections.abc import Sequence
from math import log
from pathlib import Path
from statistics import median, pstdev
from typing import Final

from ridgeline.bench.servers import RIDGELINE_MAIN, Server, ServerSpec, free_port
from ridgeline.bench.session import Load, RequestOptions, Session
from ridgeline.errors import ConfigError
from ridgeline.planning.corrections import corrected, keep_front_end, read_correction
from ridgeline.planning.verify import Line, Verification, prompt_seconds
from ridgeline.sim.fleet.traffic import Arrival

PROMPT_TOKENS: Final = 128
ANSWER_TOKENS: Final = 4
PROMPTS: Final = 21
APART_SECONDS: Final = 0.75
"""And three times as long as a prompt's step at least."""
REST_SECONDS: Final = 2.0
"""Time for what a server does behind its start: it compares itself with the plan, and reads the vocabulary for grammars."""


def verify_front_end(found: Verification, runner: str, flags: Sequence[str], cache: Path) -> tuple[Verification, float]:
    """The verification with a line of the time to a lone prompt's first token, and the error of that line from now on.

    flags  of `serve`, its model first; cache: where corrections are kept
    Raises ConfigError where the server does not start or answer.
    """
    deployment = found.deployment
    step = prompt_seconds(deployment, PROMPT_TOKENS)
    seconds = asyncio.run(_first_tokens(flags, max(APART_SECONDS, 3 * step)))
    measured = median(seconds)
    spread = pstdev([log(each / measured) for each in seconds]) * measured / step
    line = Line(f"first token of {PROMPT_TOKENS}", "s", step + deployment.device.front_end_seconds, measured)
    keep_front_end(cache, deployment, runner, measured - step, spread)
    if (kept := read_correction(cache, deployment, runner)) is not None:
        deployment = corrected(deployment, kept)
    return Verification((*found.lines, line), deployment), (step + deployment.device.front_end_seconds) / measured - 1


async def _first_tokens(flags: Sequence[str], apart: float) -> list[float]:
    """Seconds of each from when a prompt is due until its first token, as `bench serve` counts them."""
    port, options = free_port(), RequestOptions(ignore_eos=True)
    command = [sys.executable, "-P", "-c", RIDGELINE_MAIN, "serve", *flags, "--port", str(port)]
    url = f"http://127.0.0.1:{port}"
    server = await Server.start(ServerSpec("ridgeline", url, command), options)
    try:
        session = await Session.open(url, options, seed=0)
        await asyncio.sleep(REST_SECONDS)
        prompts = [Arrival(number * apart, PROMPT_TOKENS, ANSWER_TOKENS) for number in range(PROMPTS)]
        outcomes = (await session.measure(Load("alone", prompts, None, is_open_loop=True))).outcomes
        session.close()
    finally:
        await server.stop()
    for outcome in outcomes:
        if outcome.error is not None:
            raise ConfigError(f"the server that was started does not answer: {outcome.error}: {outcome.message}")
    return [outcome.first - outcome.intended for outcome in outcomes]
