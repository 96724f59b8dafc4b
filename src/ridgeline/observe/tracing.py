"""Traces: a span per request with its queue, prefill and decode below it, sent by OTLP over HTTP. The only place that knows OpenTelemetry.

Spans are made at the end of requests, of times that metrics have anyway: a token costs nothing. They say sizes, times and parameters, by
the semantic conventions for generative AI, and never what a client wrote. Nothing is imported, and nothing sent, without the setting.
The SDK reads its own variables (`OTEL_SERVICE_NAME`, `OTEL_TRACES_SAMPLER`, `OTEL_EXPORTER_OTLP_HEADERS`).
"""

import threading
import time
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from ridgeline.core.events import Closed
from ridgeline.core.params import Admitted
from ridgeline.errors import ConfigError
from ridgeline.observe.requests import ChoiceTimes

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Span

FLAG: Final = "--otlp-traces-endpoint"
PATH: Final = "/v1/traces"
PROVIDER: Final = "ridgeline"
EXPORT_SECONDS: Final = 5.0
"""Time for a batch to be sent, and at the end of the process for what is left."""
MAX_OPEN: Final = 8_192
"""Requests of the engine whose spans are open; beyond it the oldest has none: its engine died."""
CONTEXT_HEADERS: Final = (b"traceparent", b"tracestate")
NANOSECONDS: Final = 1_000_000_000

_SPAN: Final[ContextVar["RequestSpan | None"]] = ContextVar("span", default=None)


def check_endpoint(endpoint: str) -> str:
    """The URL that spans are sent to, with OTLP's path where it has none. Raises ConfigError."""
    try:
        found = urlsplit(endpoint)
        is_url = found.scheme in ("http", "https") and bool(found.hostname) and found.port != 0
    except ValueError:
        is_url = False
    if not is_url:
        message = f"{FLAG} {endpoint!r:.80} is no URL of an OTLP collector over HTTP; write http://HOST:4318{PATH}"
        raise ConfigError(message, fix={FLAG: f"http://127.0.0.1:4318{PATH}"})
    return found._replace(path=PATH).geturl() if found.path in ("", "/") else endpoint


@dataclass(slots=True)
class RequestSpan:
    """The span of one HTTP request. `traceparent`: the header for a client that sent one, else None."""

    span: "Span"
    context: "Context"
    traceparent: bytes | None

    @property
    def trace_id(self) -> str:
        """The number of a trace as W3C writes it."""
        return f"{self.span.get_span_context().trace_id:032x}"


class Tracer:
    """Makes spans; a thread of its own sends them. Raises ConfigError for what is no endpoint, and where OpenTelemetry is missing."""

    def __init__(self, endpoint: str, model_name: str, version: str) -> None:
        url = check_endpoint(endpoint)
        try:
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
            from opentelemetry.sdk.resources import OTELResourceDetector, Resource
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.sdk.trace.export import BatchSpanProcessor
        except ImportError:
            raise ConfigError(f'{FLAG} needs OpenTelemetry; run: pip install "ridgeline[otel]"', fix={FLAG: None}) from None
        resource = Resource.create({"service.name": PROVIDER, "service.version": version}).merge(OTELResourceDetector().detect())
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=url, timeout=EXPORT_SECONDS)))
        self._tracer = self._provider.get_tracer(PROVIDER, version)
        self._model_name = model_name
        self._open: OrderedDict[str, tuple[RequestSpan, int]] = OrderedDict()
        """Span and open choices of requests of the engine, by id."""

    def begin(self, headers: Sequence[tuple[bytes, bytes]], path: str, generates: bool) -> RequestSpan:
        """The span of a POST request to a path of the table of routes, within the client's trace where its headers name one."""
        from opentelemetry import trace
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        carrier = {name.decode(): value.decode("latin-1") for name, value in headers if name in CONTEXT_HEADERS}
        is_asked = sum(name == b"traceparent" for name, _ in headers) == 1
        parent = TraceContextTextMapPropagator().extract(carrier) if is_asked else None
        operation = "text_completion" if path == "/v1/completions" else "chat"
        attributes = {"http.request.method": "POST", "http.route": path}
        if generates:
            attributes |= {
                "gen_ai.operation.name": operation, "gen_ai.provider.name": PROVIDER, "gen_ai.request.model": self._model_name,
                "gen_ai.response.model": self._model_name,
            }  # fmt: skip
        name = f"{operation} {self._model_name}" if generates else f"POST {path}"
        span = self._tracer.start_span(name, parent, trace.SpanKind.SERVER, attributes)
        found = span.get_span_context()
        header = f"00-{found.trace_id:032x}-{found.span_id:016x}-{int(found.trace_flags):02x}".encode() if is_asked else None
        return RequestSpan(span, trace.set_span_in_context(span), header)

    def admitted(self, requests: Sequence[Admitted]) -> None:
        """Requests, alike but for their prompts, that go to the engine for the HTTP request that this task answers."""
        current, request = _SPAN.get(), requests[0]
        if current is None or not current.span.is_recording():
            return
        for each in requests:
            self._open[each.request_id] = current, each.choices
            if len(self._open) > MAX_OPEN:
                self._open.popitem(last=False)
        sampling = request.sampling
        current.span.set_attributes({
            "gen_ai.request.max_tokens": request.max_tokens, "gen_ai.request.choice.count": request.choices,
            "gen_ai.request.temperature": sampling.temperature, "gen_ai.request.top_p": sampling.top_p,
            "gen_ai.request.top_k": float(sampling.top_k), "gen_ai.request.frequency_penalty": sampling.frequency_penalty,
            "gen_ai.request.presence_penalty": sampling.presence_penalty,
        })  # fmt: skip

    def choice_ended(self, event: Closed, times: ChoiceTimes) -> None:
        """Makes the spans of a choice: queue from arrival, prefill to its first token, decode to its last."""
        found = self._open.get(event.request_id)
        if found is None:
            return
        current, open_choices = found
        if open_choices == 1:
            del self._open[event.request_id]
        else:
            self._open[event.request_id] = current, open_choices - 1
        usage, to_epoch = event.usage, time.time_ns() - time.monotonic_ns()
        common: dict[str, int | str] = {"ridgeline.choice": event.choice, "ridgeline.request": event.request_id}
        prefill: dict[str, int | str] = {
            "gen_ai.usage.input_tokens": usage.prompt_tokens, "gen_ai.usage.cache_read.input_tokens": usage.cached_tokens
        }  # fmt: skip
        decode: dict[str, int | str] = {"gen_ai.usage.output_tokens": usage.completion_tokens}
        for name, begin, end, attributes in (
            ("queue", times.arrived, times.started or times.ended, {}),
            ("prefill", times.started, times.first_token_at or times.ended, prefill),
            ("decode", times.first_token_at, times.last_token_at, decode),
        ):
            if begin is None or end is None:
                continue
            span = self._tracer.start_span(
                name, current.context, attributes=common | attributes, start_time=int(begin * NANOSECONDS) + to_epoch
            )
            span.end(int(end * NANOSECONDS) + to_epoch)

    def end(self, current: RequestSpan, status: int, error: str | None, usage: Mapping[str, int | float | tuple[str, ...]]) -> None:
        """Ends the span of an HTTP request. `usage`: attributes of what it generated."""
        from opentelemetry.trace import StatusCode

        current.span.set_attributes({"http.response.status_code": status, **usage})
        if error is not None:
            current.span.set_attribute("error.type", error)
        if status >= 500:
            current.span.set_status(StatusCode.ERROR)
        current.span.end()

    def close(self) -> None:
        """Sends what is left, for at most EXPORT_SECONDS: a collector that hangs does not hold up the end."""
        closing = threading.Thread(target=self._provider.shutdown, name="traces", daemon=True)
        closing.start()
        closing.join(EXPORT_SECONDS)


@contextmanager
def tracing(span: RequestSpan | None) -> Iterator[None]:
    """Within it, requests of the engine are parts of this one."""
    token = _SPAN.set(span)
    try:
        yield
    finally:
        _SPAN.reset(token)
