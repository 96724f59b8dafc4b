"""The table of routes: nothing without a row, and the words of each dialect."""

from typing import Any

import pytest
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount, Route

from ridgeline.config.groups import EngineConfig, ServerConfig
from ridgeline.server import app, status
from ridgeline.server.errors import CATALOGUE, ApiError
from ridgeline.server.routes import ROWS, dialect_of, find_row
from ridgeline.server.service import Service

ANTHROPIC = {"anthropic-version": "2023-06-01"}


async def nothing(request: Request) -> Response:
    return Response()


@pytest.mark.parametrize(
    "route",
    [
        Route("/new", nothing, methods=["GET"]),
        Route("/v1/models", nothing, methods=["POST"]),
        Route("/livez", nothing),
        Mount("/all", nothing),
    ],
)
def test_a_route_without_a_row_fails_at_build(route: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    own = status.routes
    monkeypatch.setattr(status, "routes", lambda service: [*own(service), route])
    if isinstance(route, Route) and route.path == "/livez":
        app.build_app(Service(EngineConfig("fake:{}"), ServerConfig()))
        return
    with pytest.raises(LookupError, match=r"without a row.*/(new|v1/models|all)"):
        app.build_app(Service(EngineConfig("fake:{}"), ServerConfig()))


def test_a_row_without_a_route_fails_at_build(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(status, "routes", lambda service: [])
    with pytest.raises(LookupError, match="without a route: GET /health, GET /livez, GET /metrics, GET /readyz, GET /version"):
        app.build_app(Service(EngineConfig("fake:{}"), ServerConfig()))


def scope(method: str, path: str, *headers: str) -> dict[str, Any]:
    return {"method": method, "path": path, "headers": [(name.encode(), b"1") for name in headers]}


def test_every_row_is_found_by_its_method_path_and_header() -> None:
    for row in ROWS:
        headers = [row.header.decode()] if row.header else []
        path = row.path.replace("{name:path}", "some/model")
        assert find_row(scope(row.method, path, *headers)) is row and dialect_of(scope("PUT", path, *headers)) == row.dialect
    assert find_row(scope("PUT", "/v1/models")) is None and find_row(scope("GET", "/nowhere")) is None


def test_models_in_both_shapes(site: Any) -> None:
    whole, one = site.get("/v1/models").json(), site.get("/v1/models/fake").json()
    assert whole["object"] == "list" and whole["data"] == [one] and one["object"] == "model"
    page, info = site.get("/v1/models", headers=ANTHROPIC).json(), site.get("/v1/models/fake/", headers=ANTHROPIC).json()
    assert page == {"data": [info], "first_id": "fake", "last_id": "fake", "has_more": False}
    assert (info["type"], info["id"], info["max_input_tokens"]) == ("model", "fake", one["max_model_len"])


@pytest.mark.parametrize(("method", "path", "expected"), [
    ("GET", "/v1/models/other", (404, "not_found_error")),
    ("GET", "/v1/nowhere", (404, "not_found_error")),
    ("DELETE", "/v1/models", (405, "invalid_request_error")),
])  # fmt: skip
def test_errors_in_both_dialects(site: Any, method: str, path: str, expected: tuple[int, str]) -> None:
    plain, other = site.request(method, path), site.request(method, path, headers=ANTHROPIC)
    assert (plain.status_code, other.status_code) == (expected[0], expected[0])
    assert plain.json()["error"]["type"] == expected[1] and "request-id" not in plain.headers
    assert other.json() == {"type": "error", "error": {"type": expected[1], "message": plain.json()["error"]["message"]}}
    assert other.headers["request-id"] == other.headers["x-request-id"]


def test_a_missing_key_in_both_dialects(new_site: Any) -> None:
    locked = new_site(EngineConfig("fake:{}"), ServerConfig(api_key="k"), start=False)
    assert locked.get("/v1/models").json()["error"]["code"] == "invalid_api_key"
    refused = locked.get("/v1/models", headers=ANTHROPIC)
    assert (refused.status_code, refused.json()["error"]["type"]) == (401, "authentication_error")
    loading = locked.get("/v1/models", headers={**ANTHROPIC, "x-api-key": "k"})
    assert (loading.status_code, loading.json()["error"]["type"], loading.headers["retry-after"]) == (503, "overloaded_error", "2")


def test_types_of_anthropic_errors() -> None:
    """Those that its clients know, of each status that there is."""
    known = {
        "invalid_request_error", "authentication_error", "permission_error", "not_found_error", "request_too_large", "rate_limit_error",
        "api_error", "overloaded_error",
    }  # fmt: skip
    for code in CATALOGUE:
        body = ApiError(code, "why").body("anthropic")
        assert any(b'"type":"%s","message":' % each.encode() in body for each in known), body
    assert b"prompt is too long: why" in ApiError("context_length_exceeded", "why").body("anthropic")
