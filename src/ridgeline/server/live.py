"""`GET /live`: what the server does now, for the dashboard and for `ridgeline top`: load, speed, verdict, tenants, two minutes.

The verdict is made when somebody asks, at most once per second.
"""

import time
from dataclasses import asdict
from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from ridgeline import __version__
from ridgeline.observe.charges import slowest_choice, wall
from ridgeline.observe.live import Second
from ridgeline.observe.requests import OTHER_TENANTS
from ridgeline.observe.shares import slowest
from ridgeline.observe.speculation import explain_drafts
from ridgeline.observe.verdict import WINDOW_SECONDS, Served, Verdict, judge
from ridgeline.server.callers import current_caller
from ridgeline.server.deployment import verification
from ridgeline.server.live_shapes import KV, History, Latency, Lever, Live, LiveTenant, LiveVerdict, Rates, SlowRequest
from ridgeline.server.service import Service
from ridgeline.server.transport import json_response

HISTORY_SECONDS: Final = 120
FRESH_SECONDS: Final = 1.0
SLOWEST_SECONDS: Final = 60.0
MOST_SLOW, MOST_COMPARED = 5, 512
"""Requests that are told of, and the last ones among which they are the slowest: it is asked every second."""


class Judge:
    """The verdict on a server, made anew where the last one is older than a second."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._made_at = 0.0
        self._verdict: Verdict | None = None

    def verdict(self) -> Verdict:
        """The verdict on the last seconds."""
        now = time.monotonic()
        if self._verdict is None or now - self._made_at > FRESH_SECONDS:
            self._made_at, self._verdict = now, self._judge(now)
        return self._verdict

    def _judge(self, now: float) -> Verdict:
        deployment, metrics = self._service.deployments.current, self._service.metrics
        found, ended = verification(deployment), max(1, metrics.request_prompt.count)
        served = Served(
            info=deployment.model.engine.info, config=deployment.engine_config, planned=None if found is None else found.deployment,
            prompt=metrics.request_prompt.sum / ended, output=metrics.request_generation.sum / ended,
            seen=self._service.ledger.steps.floors(), prompt_token=self._service.ledger.steps.prompt_token(),
        )  # fmt: skip
        return judge(self._service.live.window(now, WINDOW_SECONDS), served)


def describe_live(service: Service, verdict: Verdict) -> Live:
    """The present of the server, as the caller may see it."""
    model, metrics, now = service.model, service.current_metrics(), time.monotonic()
    info, window = model.engine.info, service.live.window(now, WINDOW_SECONDS)
    free = info.kv.blocks if metrics.free_blocks is None else metrics.free_blocks
    latencies = {name: values and Latency(*values) for name, values in service.live.latencies().items()}
    return Live(
        model=model.name, version=__version__, ready=service.is_ready, running=metrics.running, waiting=metrics.waiting, rows=info.rows,
        kv=KV(info.kv.blocks, max(0, info.kv.blocks - free - metrics.cached_blocks), metrics.cached_blocks, free, info.kv.block_tokens),
        rates=Rates(
            (window.tokens - window.decode) / window.at, window.sampled / window.at, window.steps / window.at,
        ),
        ttft=latencies["ttft"] or None, itl=latencies["itl"] or None,
        speculation=explain_drafts(metrics.drafting),
        verdict=LiveVerdict(**{**asdict(verdict), "levers": [Lever(**asdict(each)) for each in verdict.levers]}),
        tenants=_tenants(service),
        slowest=_slowest(service, now),
        history=_history(service.live.history(now, HISTORY_SECONDS), info.kv.blocks),
    )  # fmt: skip


def _tenants(service: Service) -> list[LiveTenant]:
    tenants, caller, spending = service.metrics.tenants, current_caller(), service.live.spending
    own = {tenants.label(caller.tenant)} - {OTHER_TENANTS} if caller.owner else set()
    labels = set(tenants.by_label) if caller.is_admin else own & set(tenants.by_label)
    found = []
    for label in sorted(labels):
        tenant, spent = tenants.by_label[label], spending.spent(label)
        found.append(LiveTenant(
            label, tenant.open_choices, tenant.prompt_tokens, tenant.generation_tokens, spent.seconds, spent.kv_token_seconds,
            spending.dollars(spent.seconds), spending.tenant_joules(label),
        ))  # fmt: skip
    return found


def _slowest(service: Service, now: float) -> list[SlowRequest]:
    caller, found = current_caller(), []
    ended = service.ledger.ended_since(now - SLOWEST_SECONDS)
    visible = [each for each in ended if caller.is_admin or each.owner == caller.owner]
    for record in slowest(visible[-MOST_COMPARED:], MOST_SLOW):
        number = slowest_choice(record)
        seconds, first = wall(record, number)
        output = sum(choice.output_tokens for choice in record.choices.values())
        found.append(SlowRequest(record.request_id, seconds, first, record.prompt_tokens, output))
    return found


def _history(seconds: list[Second], blocks: int) -> History:
    def mean(total: int, each: Second) -> float:
        return round(total / each.steps, 3) if each.steps else 0.0

    return History(
        prefill_tokens=[each.tokens - each.decode for each in seconds],
        decode_tokens=[each.sampled for each in seconds],
        running=[mean(each.rows, each) for each in seconds],
        waiting=[mean(each.waiting, each) for each in seconds],
        kv=[round(max(0.0, 1 - each.unheld / each.steps / max(1, blocks)), 4) if each.steps else 0.0 for each in seconds],
        busy=[round(min(1.0, each.busy), 4) for each in seconds],
    )


def routes(service: Service, judge: Judge) -> list[BaseRoute]:
    """The route."""

    async def live(request: Request) -> Response:
        return json_response(describe_live(service, judge.verdict()))

    return [Route("/live", live, methods=["GET"])]
