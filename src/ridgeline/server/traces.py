"""The layer that makes a span of each POST request, outermost and only where traces are sent (`observe.tracing`)."""

from typing import Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ridgeline.observe.charges import MAX_STEPS_IN_LOOP, charge, slowest_choice
from ridgeline.observe.ledger import Ledger
from ridgeline.observe.tracing import Tracer, tracing
from ridgeline.server import routes
from ridgeline.server.access import ACCESS_KEY, DISCONNECTED_STATUS, TRACE_KEY, Access

UNKNOWN_PATH: Final = "/"
"""Name in spans of a path that is not in the table: the client's text is not told."""


class TraceLayer:
    """Begins a span before the request, and ends it behind the answer, which has the span as `traceparent` where the request had one."""

    def __init__(self, app: ASGIApp, tracer: Tracer, ledger: Ledger) -> None:
        self._app = app
        self._tracer = tracer
        self._ledger = ledger

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "POST":
            await self._app(scope, receive, send)
            return
        row = routes.find_row(scope)
        path = UNKNOWN_PATH if row is None else row.written_path
        span = self._tracer.begin(scope["headers"], path, row is not None and row.is_queued)
        scope[TRACE_KEY] = span.trace_id

        async def send_with_context(message: Message) -> None:
            if message["type"] == "http.response.start" and span.traceparent is not None:
                message["headers"] = [*message["headers"], (b"traceparent", span.traceparent)]
            await send(message)

        try:
            with tracing(span):
                await self._app(scope, receive, send_with_context)
        finally:
            access: Access = scope[ACCESS_KEY]
            attributes = _attributes(access) | _causes(access, self._ledger)
            self._tracer.end(span, access.status or DISCONNECTED_STATUS, access.error, attributes)


def _causes(access: Access, ledger: Ledger) -> dict[str, int | float | tuple[str, ...]]:
    """Seconds of each cause of the first engine's request, but for those of very many steps, whose arithmetic would hold up others."""
    record = None if access.usage is None or not access.usage.request_ids else ledger.find(access.usage.request_ids[0])
    if record is None or ledger.steps.end - record.first_step > MAX_STEPS_IN_LOOP:
        return {}
    charges = charge(ledger, record, slowest_choice(record), named=False)
    return {f"ridgeline.seconds.{cause}": seconds for cause, seconds in charges.seconds.items()}


def _attributes(access: Access) -> dict[str, int | float | tuple[str, ...]]:
    """Attributes of a request that generates."""
    usage = access.usage
    if usage is None:
        return {}
    found: dict[str, int | float | tuple[str, ...]] = {
        "gen_ai.usage.input_tokens": usage.prompt_tokens, "gen_ai.usage.output_tokens": usage.completion_tokens,
        "gen_ai.usage.cache_read.input_tokens": usage.cached_tokens, "gen_ai.response.finish_reasons": tuple(usage.finish_reasons),
    }  # fmt: skip
    if usage.first_token_at is not None:
        found["gen_ai.response.time_to_first_chunk"] = usage.first_token_at - access.began
    return found
