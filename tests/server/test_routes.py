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
    monkeypatch.setattr(status, "routes", lambda *given: [*own(*given), route])
    if isinstance(route, Route) and route.path == "/livez":
        app.build_app(Service(EngineConfig("fake:{}"), ServerConfig()))
        return
    with pytest.raises(LookupError, match=r"without a row.*/(new|v1/models|all)"):
        app.build_app(Service(EngineConfig("fake:{}"), ServerConfig()))


def test_a_row_without_a_route_fails_at_build(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(status, "routes", lambda *given: [])
    found = "without a route: GET /health, GET /livez, GET /metrics, GET /ping, GET /readyz, GET /startupz, GET /version"
    with pytest.raises(LookupError, match=found):
        app.build_app(Service(EngineConfig("fake:{}"), ServerConfig()))


def scope(method: str, path: str, *headers: str) -> dict[str, Any]:
    return {"method": method, "path": path, "headers": [(name.encode(), b"1") for name in headers]}


def test_every_row_is_found_by_its_method_path_and_header() -> None:
    for row in ROWS:
        headers = [row.header.decode()] if row.header else []
        path = row.path.replace("{name:path}", "some/model")
        fields = [row.body_field] if row.body_field else []
        assert find_row(scope(row.method, path, *headers), fields) is row and dialect_of(scope("PUT", path, *headers)) == row.dialect
    assert find_row(scope("PUT", "/v1/models")) is None and find_row(scope("GET", "/nowhere")) is None


def test_models_in_both_shapes(site: Any) -> None:
    whole, one = site.get("/v1/models").json(), site.get("/v1/models/fake").json()
    assert whole["object"] == "list" and whole["data"] == [one] and one["object"] == "model"
    page, info = site.get("/v1/models", headers=ANTHROPIC).json(), site.get("/v1/models/fake/", headers=ANTHROPIC).json()
    assert page == {"data": [info], "first_id": "fake", "last_id": "fake", "has_more": False}
    assert (info["type"], info["id"], info["max_input_tokens"]) == ("model", "fake", one["max_model_len"])


@pytest.mark.parametrize(("query", "ids"), [
    ("?limit=5", ["fake"]), ("?after_id=fake", []), ("?before_id=fake&limit=1000", []), ("?limit=0", None), ("?limit=1001", None),
    ("?limit=x", None), ("?after_id=other", None),
])  # fmt: skip
def test_pages_of_models(site: Any, query: str, ids: list[str] | None) -> None:
    answer = site.get(f"/v1/models{query}", headers=ANTHROPIC)
    assert answer.status_code == (400 if ids is None else 200)
    if ids is None:
        assert answer.json()["error"]["type"] == "invalid_request_error"
    else:
        assert [each["id"] for each in answer.json()["data"]] == ids and answer.json()["first_id"] == (ids[0] if ids else None)
    assert site.get(f"/v1/models{query}").json()["object"] == "list", "OpenAI's has no pages"


def test_tokens_in_both_shapes(site: Any) -> None:
    """vLLM's body has a prompt or messages, llama.cpp's a content; the ids are the same, with a BOS where each puts one."""
    text = "a 媽 b"
    ids = list(text.encode())

    def post(path: str, **body: Any) -> Any:
        answer = site.request("POST", path, json=body)
        assert answer.status_code == 200, answer.text
        return answer.json()

    assert post("/tokenize", prompt=text) == {"count": len(ids) + 1, "max_model_len": 4096, "tokens": [256, *ids], "token_strs": None}
    assert post("/tokenize", content=text) == {"tokens": ids} and post("/tokenize", content="") == {"tokens": []}
    assert post("/tokenize", content=text, add_special=True) == {"tokens": [256, *ids]}
    pieces = post("/tokenize", content="a媽", with_pieces=True, parse_special=False)["tokens"]
    assert pieces == [{"id": 97, "piece": "a"}, *({"id": byte, "piece": [byte]} for byte in "媽".encode())]
    assert post("/detokenize", tokens=ids) == {"prompt": text, "content": text}
    for body in ({"content": 3}, {"content": "a", "add_special": 1}, {"content": "a", "model": "other"}):
        assert site.request("POST", "/tokenize", json=body).status_code in (400, 404)


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
        "api_error", "overloaded_error", "timeout_error",
    }  # fmt: skip
    for code in CATALOGUE:
        body = ApiError(code, "why").body("anthropic")
        assert any(b'"type":"%s","message":' % each.encode() in body for each in known), body
    assert b"prompt is too long: why" in ApiError("context_length_exceeded", "why").body("anthropic")
