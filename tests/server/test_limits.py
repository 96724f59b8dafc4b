"""One table of boundaries, replayed on every route that takes a body: below, at and above each bound, wrong types, numbers that no type
holds, nothing, the same key twice, null. Every answer comes quickly; every refusal names the field; nothing is a 5xx."""

import ast
import time
from pathlib import Path
from typing import Any

import pytest
from limit_cases import GENERATION, GOOD, NO_GRAMMAR, bodies, table

from ridgeline.engine.admit import BOUNDS
from ridgeline.server.errors import CATALOGUE, anthropic_type
from ridgeline.server.routes import DOCUMENTED

SOURCE = Path(__file__).resolve().parents[2] / "src" / "ridgeline"
SLOWEST_SECONDS = 5.0

EVERYTHING = [(path, field) for path in GOOD for field in table(path)]


@pytest.mark.parametrize(("path", "field"), EVERYTHING)
def test_boundaries(chat_site: Any, path: str, field: str) -> None:
    for label, body, taken in bodies(path, field):
        began = time.monotonic()
        answer = chat_site.request("POST", path, content=body)
        assert time.monotonic() - began < SLOWEST_SECONDS, (label, body[:200])
        if taken and NO_GRAMMAR in answer.text:
            continue
        assert answer.status_code == 200 if taken else 400 <= answer.status_code < 500, (label, body[:200], answer.text[:300])
        if not taken:
            check_refusal(answer, field, label)


def check_refusal(answer: Any, field: str, label: str) -> None:
    """The whole shape; the field's name, where the body is JSON at all."""
    error = answer.json()["error"]
    if answer.json().get("type") == "error":
        assert set(error) == {"type", "message"} and error["type"] == anthropic_type(answer.status_code)
        assert field in error["message"] or label in ("NaN", "Infinity", "1e400"), (label, error)
        return
    assert set(error) == {"message", "type", "param", "code"}
    assert CATALOGUE[error["code"]] == (answer.status_code, error["type"])
    if error["code"] == "invalid_json":
        assert label in ("NaN", "Infinity", "1e400") and error["param"] is None and "byte" in error["message"], (label, error)
    else:
        assert error["param"] == field, (label, error)


def test_the_table_has_every_route_with_a_body_and_every_number() -> None:
    elsewhere = ("ollama", "ggml")  # in tests/server/test_dialect_limits.py
    same = {"/chat/completions", "/v1/chat/completions/render"}  # as CHAT
    same |= {"/v1/load_lora_adapter", "/v1/unload_lora_adapter"}  # in tests/compute/adapters
    same |= {"/models/load", "/models/unload"}  # in tests/server/test_several.py
    assert {each.path for each in DOCUMENTED if each.request is not None and each.dialect not in elsewhere} == {*GOOD, *same}
    assert all(set(BOUNDS) <= set(table(path)) for path in GENERATION)
    untested = {"documents", "chat_template_kwargs", "continue_final_message", "parallel_tool_calls", "vote"}
    for endpoint in DOCUMENTED:
        if endpoint.path in GENERATION and endpoint.request is not None:
            assert set(endpoint.request.__struct_fields__) - untested <= set(table(endpoint.path)) | untested


def test_only_admission_builds_what_the_engine_accepts() -> None:
    builders = set()
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in ("Admitted", "params.Admitted"):
                builders.add(path.relative_to(SOURCE).as_posix())
    assert builders == {"engine/admit.py"}
