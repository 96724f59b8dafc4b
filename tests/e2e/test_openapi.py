"""The document against the application, and cases made from the document against a real server: no 5xx, no hang, answers as documented."""

import json
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import msgspec
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import content_type_conformance, response_schema_conformance, status_code_conformance

from ridgeline.config.groups import EngineConfig, ServerConfig
from ridgeline.engine.admit import BOUNDS, MAX_CHOICES, MAX_STOP_STRINGS
from ridgeline.server import wire
from ridgeline.server.app import build_app
from ridgeline.server.fields import UNSUPPORTED
from ridgeline.server.openapi import document
from ridgeline.server.routes import DOCUMENTED
from ridgeline.server.service import Service

CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
MODES = [schemathesis.GenerationMode.POSITIVE, schemathesis.GenerationMode.NEGATIVE]
FAKE = 'fake:{"rows": 4, "max_model_len": 256, "windows": [0, 32], "vocab": 258}'
TEMPLATE = """{% for m in messages %}<{{ m.role }}>{{ m.content }}</>{% endfor %}{{ tools }}{{ documents }}
{%- if add_generation_prompt %}<assistant>{% endif %}"""
SLOWEST_SECONDS = 5.0
WITH_BODY = [row.path for row in DOCUMENTED if row.request is not None]


def app_routes() -> set[tuple[str, str]]:
    """(method, path) of everything that the router answers but files of the page; HEAD comes with every GET."""
    app: Any = build_app(Service(EngineConfig("fake:{}"), ServerConfig()))
    while not hasattr(app, "routes"):
        app = app._app
    found = {(method, route.path.replace(":path}", "}")) for route in app.routes if route.include_in_schema for method in route.methods}
    return {(method, path) for method, path in found if method != "HEAD"}


def test_the_document_has_every_route_and_no_other() -> None:
    written = {(method.upper(), path) for path, item in document(locked=False)["paths"].items() for method in item}
    assert written == app_routes()


def test_every_reference_leads_somewhere_and_every_component_is_used() -> None:
    whole = document(locked=True)
    text = json.dumps(whole)
    for family in ("schemas", "responses"):
        for name in whole["components"][family]:
            assert f'"#/components/{family}/{name}"' in text, name
    for found in text.split('"$ref": "#/components/')[1:]:
        family, name = found.partition('"')[0].split("/")
        assert name in whole["components"][family]


def branch(schema: dict[str, Any], kind: str) -> dict[str, Any]:
    (found,) = [each for each in schema.get("anyOf", [schema]) if each.get("type") == kind]
    return found


@pytest.mark.parametrize("shape", [wire.CompletionRequest, wire.ChatCompletionRequest])
def test_bounds_are_in_the_document(shape: type) -> None:
    """Every number that admission bounds has its bounds; every field of the struct, and every unsupported one, is there."""
    properties = document(locked=False)["components"]["schemas"][shape.__name__]["properties"]
    refused = UNSUPPORTED[shape]
    assert set(properties) == {field.encode_name for field in msgspec.structs.fields(shape)} | set(refused)
    for name, bound in BOUNDS.items():
        found = branch(properties[name], "integer" if bound.whole else "number")
        low = -1 if name in ("max_tokens", "thinking_token_budget") else bound.low
        assert (found.get("minimum", found.get("exclusiveMinimum")), found["maximum"]) == (low, bound.high), name
        assert ("exclusiveMinimum" in found) == bound.above
    assert branch(properties["n"], "integer")["maximum"] == MAX_CHOICES
    assert branch(properties["stop"], "array")["maxItems"] == MAX_STOP_STRINGS
    assert properties["mirostat"]["enum"] == [None, 0]


def test_a_key_is_asked_for_where_the_server_asks() -> None:
    paths = document(locked=True)["paths"]
    assert paths["/livez"]["get"]["security"] == [] and "401" not in paths["/livez"]["get"]["responses"]
    assert paths["/v1/completions"]["post"]["security"] == [{"key": []}, {"x-api-key": []}, {"api-key": []}]
    assert "401" in paths["/openapi.json"]["get"]["responses"]
    assert "securitySchemes" not in document(locked=False)["components"]


@pytest.fixture(scope="module")
def server(serving: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    template = tmp_path_factory.mktemp("template") / "chat.jinja"
    template.write_text(TEMPLATE)
    with serving(FAKE, "--chat-template", str(template)) as server:
        yield server


def run_cases(server: Any, total: int, number: int) -> Counter[tuple[str, int]]:
    """So many cases made from the document that the server gives, positive and negative alike; returns statuses by path."""
    schema = schemathesis.openapi.from_url(f"{server.url}/openapi.json")
    operations = [found.ok() for found in schema.get_all_operations()]
    bodies = [each for each in operations if each.path in WITH_BODY]
    statuses: Counter[tuple[str, int]] = Counter()
    for operation in bodies:
        for mode in MODES:
            _fuzz(operation, mode, total // (len(bodies) * len(MODES)), number, statuses)
    for operation in operations:
        if operation not in bodies:
            _fuzz(operation, MODES[0], 5, number, statuses)
    return statuses


def _fuzz(operation: Any, mode: Any, count: int, number: int, statuses: Counter[tuple[str, int]]) -> None:
    @seed(number)
    @settings(max_examples=count, deadline=None, database=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
    @given(case=operation.as_strategy(generation_mode=mode))
    def one(case: Any) -> None:
        began = time.monotonic()
        answer = case.call(timeout=SLOWEST_SECONDS)
        assert time.monotonic() - began < SLOWEST_SECONDS
        case.validate_response(answer, checks=CHECKS)
        statuses[operation.path, answer.status_code] += 1

    one()


def check_cases(server: Any, total: int, number: int) -> None:
    engine = server.engine_pid()
    statuses = run_cases(server, total, number)
    print(f"{sum(statuses.values())} cases: {sorted(statuses.items())}")
    assert sum(statuses.values()) >= total
    for row in (row for row in DOCUMENTED if row.request is not None):
        # made cases know no name of a model, no id of its tokens and no width of its vectors
        reached = {403} if row.access == "admin" else {404} if row.dialect == "ollama" else {200}
        reached |= {400} if any(word in row.path for word in ("embedding", "pooling", "score", "rerank", "infill")) else set()
        assert any(statuses[row.path, each] for each in reached), (row.path, statuses)
        assert row.access == "admin" or statuses[row.path, 400], (row.path, statuses)
    assert not [status for _, status in statuses if status >= 500]
    assert server.engine_pid() == engine and server.metric("vllm:num_requests_running") == 0
    assert "Traceback" not in server.output() and "incident" not in server.output()


def test_cases_made_from_the_document(server: Any) -> None:
    check_cases(server, 240, 1)


@pytest.mark.night
@pytest.mark.timeout(1800)
def test_five_thousand_cases_made_from_the_document(server: Any) -> None:
    check_cases(server, 5_000, 2)


def test_the_server_gives_its_document(server: Any) -> None:
    answer = httpx.get(f"{server.url}/openapi.json")
    assert answer.headers["content-type"] == "application/json"
    assert answer.json() == json.loads(msgspec.json.encode(document(locked=False)))
