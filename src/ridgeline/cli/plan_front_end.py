"""Seconds of a request beside its steps, for `ridgeline plan MODEL --verify`: a server is started, and asked over HTTP.

Behind the steps that `plan_verify` has timed, in processor time. Prompts come one by one, so that none waits for another: what is left of
the time between tokens without the decode step's computing is the host's, in every step; what is left of a time to first token without the
prompt's step is the front end's and the client's, in their processes, on this machine. How much the same prompt varies is kept too: the
slowest twentieth of a load is made of it.
"""

import asyncio
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Final

from ridgeline.bench.client import RequestOutcome
from ridgeline.bench.servers import RIDGELINE_MAIN, Server, ServerSpec, free_port
from ridgeline.bench.session import Load, RequestOptions, Session
from ridgeline.errors import ConfigError
from ridgeline.planning.corrections import corrected, keep_front_end, read_correction
from ridgeline.planning.deployment import Deployment
from ridgeline.planning.verify import Line, Verification, prompt_seconds, token_seconds
from ridgeline.sim.fleet.traffic import Arrival

PROMPT_TOKENS: Final = 128
ANSWER_TOKENS: Final = 24
PROMPTS: Final = 31
LEAST_PROMPTS: Final = 9
"""Fewer prompts than `PROMPTS` are asked of models that are slow, …"""
LOAD_SECONDS: Final = 20.0
"""… so that they take no longer than this where they can."""
PAUSE_SECONDS: Final = 0.25
"""Every prompt comes so long behind the answer to the one before."""
REST_SECONDS: Final = 2.0
"""Time for what a server does behind its start: it compares itself with the plan, and reads the vocabulary for grammars."""


def verify_front_end(found: Verification, flags: Sequence[str], cache: Path) -> tuple[Verification, list[float]]:
    """The verification with lines of the time to a lone prompt's first token and between its tokens, and the errors of these from now on.

    flags  of `serve`, its model first; cache: where corrections are kept
    Raises ConfigError where the server does not start or answer.
    """
    prompt, token = _steps(found.deployment)
    count = int(LOAD_SECONDS / (PAUSE_SECONDS + prompt + ANSWER_TOKENS * token))
    outcomes = asyncio.run(_answers(flags, min(PROMPTS, max(LEAST_PROMPTS, count))))
    firsts = [outcome.first - outcome.intended for outcome in outcomes]
    first, gap = median(firsts), median([gap for outcome in outcomes for gap in outcome.gaps] or [token])
    measured = (f"first token of {PROMPT_TOKENS}", first), ("token of one stream", gap)
    lines = [Line(name, "s", told, each) for (name, each), told in zip(measured, _told(found.deployment), strict=True)]
    host = max(0.0, gap - token)
    beside = max(0.0, first - prompt - host)
    spread = [1.0 + (each - first) / (first - beside) for each in firsts]
    keep_front_end(cache, found.deployment, found.runner, beside, host, spread)
    kept = read_correction(cache, found.deployment, found.runner)
    deployment = found.deployment if kept is None else corrected(found.deployment, kept)
    errors = [told / each - 1 for (_, each), told in zip(measured, _told(deployment), strict=True)]
    return replace(found, lines=(*found.lines, *lines), deployment=deployment), errors


def _steps(deployment: Deployment) -> tuple[float, float]:
    """Predicted seconds of computing: of the prompt's step, and of a decode step in the middle of its answer."""
    return prompt_seconds(deployment, PROMPT_TOKENS), token_seconds(deployment, PROMPT_TOKENS + ANSWER_TOKENS // 2)


def _told(deployment: Deployment) -> tuple[float, float]:
    """Predicted seconds to the first token of a lone prompt, and between its tokens."""
    device, (prompt, token) = deployment.device, _steps(deployment)
    return prompt + device.host_seconds + device.front_end_seconds, token + device.host_seconds


async def _answers(flags: Sequence[str], count: int) -> Sequence[RequestOutcome]:
    """Outcomes of so many prompts, one after the other. Latency counts from when one is due, as `bench serve` has it."""
    port, options = free_port(), RequestOptions(ignore_eos=True)
    command = [sys.executable, "-P", "-c", RIDGELINE_MAIN, "serve", *flags, "--port", str(port)]
    url = f"http://127.0.0.1:{port}"
    server = await Server.start(ServerSpec("ridgeline", url, command), options)
    try:
        session = await Session.open(url, options, seed=0)
        await asyncio.sleep(REST_SECONDS)
        alone = Load("alone", [Arrival(PAUSE_SECONDS, PROMPT_TOKENS, ANSWER_TOKENS)], None, is_open_loop=True)
        outcomes = [outcome for number in range(count) for outcome in (await session.measure(alone, number)).outcomes]
        session.close()
    finally:
        await server.stop()
    for outcome in outcomes:
        if outcome.error is not None:
            raise ConfigError(f"the server that was started does not answer: {outcome.error}: {outcome.message}")
    return outcomes
