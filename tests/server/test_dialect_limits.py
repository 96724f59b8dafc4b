"""Boundaries of the fields of dialects that have words of their own: what is refused is named, and nothing is a 5xx."""

import json
from typing import Any

import pytest

from ridgeline.server.routes import ROWS

HI = [{"role": "user", "content": "a"}]
SHORT = {"options": {"num_predict": 2}}
GOOD: dict[str, dict[str, Any]] = {
    "/api/chat": {"model": "fake", "messages": HI, **SHORT},
    "/api/generate": {"model": "fake", "prompt": "a", **SHORT},
    "/api/show": {"model": "fake"},
    "/api/pull": {"model": "org/name"},
    "/api/delete": {"model": "org/name"},
    "/api/copy": {"source": "fake", "destination": "b"},
    "/api/embed": {"model": "fake", "input": "a"},
    "/api/embeddings": {"model": "fake", "prompt": "a"},
    "/completion": {"prompt": "a", "n_predict": 2},
    "/completions": {"prompt": "a", "n_predict": 2},
    "/infill": {"input_prefix": "a", "input_suffix": "b", "n_predict": 2},
    "/apply-template": {"messages": HI},
    "/embedding": {"content": "a"},
    "/embeddings": {"input": "a"},
}
WRONG: tuple[Any, ...] = (1, -1, 2**63, 2**64, "x", True, [], {}, [1], {"a": 1}, [[[]]])
NAMES = {"n_probs": "logprobs", "logprobs": "n_probs", "repetition_penalty": "repeat_penalty", "input": "content"}
COMPANIONS = {"/infill": ("suffix",), "/apply-template": ("template",)}
"""What is wrong with every request of a route to a model that cannot follow it."""
OPTIONS: dict[str, tuple[tuple[Any, ...], tuple[Any, ...]]] = {
    "num_predict": ((-2, -1, 0, 1, 400, 2**31 - 1), (2**31, 1.5, "1", True)),
    "temperature": ((0, 0.5, 10), (-0.1, 10.1, "1", True)),
    "top_k": ((-1, 0, 5), (-2, 2**31, 1.5)),
    "top_p": ((0.1, 1), (0, 1.1, -1)),
    "min_p": ((0, 1), (-0.1, 1.1)),
    "seed": ((-1, 0, 2**62), (2**64, "x")),
    "repeat_penalty": ((0.5, 1, 2), (0, -1)),
    "presence_penalty": ((-2, 2), (-2.1, 2.1)),
    "frequency_penalty": ((-2, 2), (-2.1, 2.1)),
    "stop": (("a", "", ["a"] * 64, []), (["a"] * 65, ["a" * 65], 1)),
    "num_ctx": ((1, 2**31), ("x", 1.5)),
    "mirostat": ((0, None), (1, "x")),
}
"""Option → values that are taken, and that are not."""


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("path", ["/api/chat", "/api/generate"])
def test_options(chat_site: Any, path: str, name: str) -> None:
    for taken, values in zip((True, False), OPTIONS[name], strict=True):
        for value in values:
            options = {"num_predict": 2, name: value}
            answer = chat_site.request("POST", path, json={**GOOD[path], "stream": False, "options": options})
            assert answer.status_code == (200 if taken else 400), (value, answer.text)
            assert taken or f"options.{name}" in answer.json()["error"], (value, answer.text)


@pytest.mark.parametrize("path", GOOD)
def test_wrong_types(chat_site: Any, path: str) -> None:
    """Each field with values of wrong types, which are refused by its name, or taken where they are right."""
    (row,) = (row for row in ROWS if row.path == path and row.request is not None)
    for name in row.request.__struct_fields__:
        for value in WRONG:
            answer = chat_site.request(row.method, path, json={**GOOD[path], name: value})
            assert answer.status_code < 500 or name == "deadline_ms", (name, value, answer.text)
            if answer.status_code not in (200, 403, 504):
                error = answer.json()["error"]
                message = error if isinstance(error, str) else error["message"]
                told = (name, NAMES.get(name, name), *COMPANIONS.get(path, ()))
                assert any(each in message for each in told) or answer.status_code == 404, (name, value, answer.text)
    for body in (b"", b"[]", b"1", b"{", b"\xff", b'{"a": NaN}', json.dumps({"messages": [[[[]] * 40]]}).encode()):
        assert chat_site.request(row.method, path, content=body).status_code in (400, 403), body


def test_every_route_with_a_body_is_here() -> None:
    assert {row.path for row in ROWS if row.dialect in ("ollama", "ggml") and row.request is not None} == set(GOOD)
