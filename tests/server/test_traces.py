"""Traces: spans as a collector of OpenTelemetry gets them, decoded by OpenTelemetry's own messages."""

import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from gzip import decompress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from ridgeline.config.groups import EngineConfig, ServerConfig
from ridgeline.errors import ConfigError
from ridgeline.observe import tracing

SECRET = "zanzibar"
TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


class Collector:
    """An OTLP receiver: the spans that came, and the resource that they came from."""

    def __init__(self) -> None:
        message = pytest.importorskip("opentelemetry.proto.collector.trace.v1.trace_service_pb2").ExportTraceServiceRequest
        self.spans: list[Any] = []
        self.bodies: list[bytes] = []
        self.resource: dict[str, str] = {}
        found = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                body = decompress(body) if self.headers["Content-Encoding"] == "gzip" else body
                assert self.path == tracing.PATH and self.headers["Content-Type"] == "application/x-protobuf"
                found.bodies.append(body)
                for resource in message.FromString(body).resource_spans:
                    found.resource = {each.key: each.value.string_value for each in resource.resource.attributes}
                    found.spans += [span for scope in resource.scope_spans for span in scope.spans]
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: object) -> None: ...

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    found = Collector()
    yield found
    found.close()


@pytest.fixture(scope="module")
def traced(site: Any, collector: Collector) -> Iterator[Any]:
    """A server that sends traces."""
    model = "fake:" + json.dumps({"vocab": 258, "script": [["?", SECRET]], "step_seconds": 0.002})
    traced = type(site)(EngineConfig(model), ServerConfig(otlp_traces_endpoint=collector.url))
    traced.wait(traced.service.start())
    yield traced
    traced.close()


def post(site: Any, path: str = "/v1/completions", headers: Any = (), **body: Any) -> Any:
    return site.request("POST", path, json={"prompt": f"{SECRET}?", "max_tokens": 8, "temperature": 0} | body, headers=dict(headers))


def spans(site: Any, collector: Collector, trace: str, count: int) -> list[Any]:
    """The spans of a trace, once there are so many."""
    end = time.monotonic() + 10
    while True:
        site.service.tracer._provider.force_flush()
        found = [span for span in collector.spans if span.trace_id.hex() == trace]
        if len(found) >= count:
            return sorted(found, key=lambda span: span.start_time_unix_nano)
        assert time.monotonic() < end, [span.name for span in found]
        time.sleep(0.02)


def attributes(span: Any) -> dict[str, Any]:
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in span.attributes}


def test_a_request_and_its_phases(traced: Any, collector: Collector) -> None:
    before = time.time_ns()
    answer = post(traced, headers={"traceparent": f"00-{TRACE}-{PARENT}-01", "tracestate": "a=b"})
    assert answer.status_code == 200 and answer.json()["choices"][0]["text"] == SECRET
    found = spans(traced, collector, TRACE, 4)
    (server,) = (span for span in found if span.parent_span_id.hex() == PARENT)
    assert answer.headers["traceparent"] == f"00-{TRACE}-{server.span_id.hex()}-01" and server.trace_state == "a=b"
    assert server.name == "text_completion fake" and server.kind == server.SPAN_KIND_SERVER
    told, usage = attributes(server), answer.json()["usage"]
    assert told["http.response.status_code"] == 200 and told["http.route"] == "/v1/completions"
    assert (told["gen_ai.usage.input_tokens"], told["gen_ai.usage.output_tokens"]) == (usage["prompt_tokens"], usage["completion_tokens"])
    assert told["gen_ai.operation.name"] == "text_completion" and told["gen_ai.request.model"] == "fake"
    assert told["gen_ai.request.max_tokens"] == 8 and told["gen_ai.request.temperature"] == 0.0
    assert [each.string_value for each in told["gen_ai.response.finish_reasons"].values] == [answer.json()["choices"][0]["finish_reason"]]
    phases = {span.name: span for span in found if span.parent_span_id == server.span_id}
    assert phases.keys() == {"queue", "prefill", "decode"}
    edges = [(phases[name].start_time_unix_nano, phases[name].end_time_unix_nano) for name in ("queue", "prefill", "decode")]
    assert before < edges[0][0] < edges[0][1] == edges[1][0] < edges[1][1] == edges[2][0] < edges[2][1] <= time.time_ns()
    assert server.start_time_unix_nano <= edges[0][0]
    assert told["ridgeline.seconds.decode"] > 0 and told["ridgeline.seconds.detokenise"] > 0
    assert attributes(phases["decode"])["gen_ai.usage.output_tokens"] == usage["completion_tokens"]
    assert collector.resource["service.name"] == "ridgeline" and collector.resource["service.version"]


def test_choices_errors_and_streams(traced: Any, collector: Collector) -> None:
    """A trace begins here where a client has none; each choice has its phases; an error says its code. A search has one span."""
    count = len(collector.spans)
    assert "traceparent" not in post(traced, n=2, stream=True).headers
    assert post(traced, max_tokens=-7).status_code == 400 and post(traced, path=f"/{SECRET}").status_code == 404
    assert post(traced, use_beam_search=True, n=2, max_tokens=2).status_code == 200
    end = time.monotonic() + 10
    while len(collector.spans) < count + 10:
        assert time.monotonic() < end
        traced.service.tracer._provider.force_flush()
    new = collector.spans[count:]
    errors = sorted((attributes(span).get("error.type"), span.name) for span in new if "error.type" in attributes(span))
    assert errors == [("invalid_value", "text_completion fake"), ("not_found", "POST /")]
    assert len({span.trace_id for span in new}) == 4 and not any(span.parent_span_id for span in new if span.kind == span.SPAN_KIND_SERVER)
    decodes = [attributes(span)["ridgeline.choice"] for span in new if span.name == "decode"]
    assert sorted(decodes) == [0, 1] and not traced.service.tracer._open


def test_a_trace_that_is_not_sampled_is_not_sent(traced: Any, collector: Collector) -> None:
    count = len(collector.spans)
    answer = post(traced, headers={"traceparent": f"00-{TRACE}-{PARENT}-00"})
    assert answer.headers["traceparent"].startswith(f"00-{TRACE}-") and answer.headers["traceparent"].endswith("-00")
    traced.service.tracer._provider.force_flush()
    assert len(collector.spans) == count


def test_no_text_of_a_client_is_sent(traced: Any, collector: Collector) -> None:
    post(traced, stop=[SECRET], user=SECRET, headers={"x-request-id": SECRET})
    traced.service.tracer._provider.force_flush()
    assert collector.bodies and not any(SECRET.encode() in body for body in collector.bodies)


def test_nobody_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither requests nor the end wait for a collector that takes connections and says nothing."""
    monkeypatch.setattr(tracing, "EXPORT_SECONDS", 0.4)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        tracer = tracing.Tracer(f"http://127.0.0.1:{silent.getsockname()[1]}", "m", "0")
        for _ in range(1_100):  # three batches
            tracer.end(tracer.begin([], "/v1/completions", True), 200, None, {})
        began = time.monotonic()
        tracer.close()
        assert time.monotonic() - began < 1


@pytest.mark.parametrize("endpoint", ["collector", "ftp://a", "http://", "http://a:0", "http://[", "grpc://a:4317"])
def test_endpoints_that_are_none(endpoint: str) -> None:
    with pytest.raises(ConfigError, match="is no URL of an OTLP collector"):
        tracing.check_endpoint(endpoint)


def test_it_is_imported_where_it_is_asked_for() -> None:
    """And where it is missing, the message says what to install."""
    script = (
        "import sys; sys.modules['opentelemetry.sdk'] = None\n"
        "import ridgeline.server.app, ridgeline.observe.tracing as t\n"
        "assert not any(name.startswith('opentelemetry') for name in sys.modules if sys.modules[name]), 'imported'\n"
        "try: t.Tracer('http://127.0.0.1:9', 'm', '0')\n"
        "except Exception as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert 'pip install "ridgeline[otel]"' in done.stdout, done.stdout + done.stderr
    assert tracing.check_endpoint("http://a:4318") == tracing.check_endpoint("http://a:4318/") == "http://a:4318/v1/traces"
    assert tracing.check_endpoint("https://a/own/path") == "https://a/own/path"
