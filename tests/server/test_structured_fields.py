"""The spellings of a structured output, and answers of a real model that follow it."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import msgspec
import pytest

from ridgeline.core.params import StructuredOutputs
from ridgeline.server.errors import ApiError
from ridgeline.server.structured import structured_outputs
from ridgeline.server.wire import CompletionRequest

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"enum": ["Paris", "Rome"]}, "people": {"type": "integer", "minimum": 0, "maximum": 9}},
    "required": ["city", "people"],
    "additionalProperties": False,
}
NAMED = {"type": "json_schema", "json_schema": {"name": "city", "schema": SCHEMA, "strict": True}}


@pytest.fixture(scope="module")
def http(demo_server: Any) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=demo_server.url, timeout=60) as client:
        yield client


def asked(**body: Any) -> Any:
    return structured_outputs(msgspec.convert(body, CompletionRequest))


@pytest.mark.parametrize(
    ("body", "outputs", "field"),
    [
        ({"response_format": NAMED}, StructuredOutputs(json=SCHEMA), "response_format"),
        ({"response_format": {"type": "json_object"}}, StructuredOutputs(json_object=True), "response_format"),
        ({"structured_outputs": {"choice": ["a"]}}, StructuredOutputs(choice=["a"]), "structured_outputs"),
        ({"guided_json": SCHEMA}, StructuredOutputs(json=SCHEMA), "guided_json"),
        ({"guided_json": "{}", "guided_whitespace_pattern": " "}, StructuredOutputs(json="{}", whitespace_pattern=" "), "guided_json"),
        ({"guided_regex": "a+"}, StructuredOutputs(regex="a+"), "guided_regex"),
        ({"guided_choice": ["a", "b"]}, StructuredOutputs(choice=["a", "b"]), "guided_choice"),
        ({"guided_grammar": "start: /a/"}, StructuredOutputs(grammar="start: /a/"), "guided_grammar"),
        ({"json_schema": SCHEMA}, StructuredOutputs(json=SCHEMA), "json_schema"),
        ({"grammar": 'root ::= "a"'}, StructuredOutputs(grammar='root ::= "a"'), "grammar"),
        ({"regex": "a"}, StructuredOutputs(regex="a"), "regex"),
        ({"ebnf": 'root ::= "a"'}, StructuredOutputs(grammar='root ::= "a"'), "ebnf"),
    ],
)
def test_spellings(body: dict[str, Any], outputs: StructuredOutputs, field: str) -> None:
    assert asked(**body)[:2] == (outputs, field)


@pytest.mark.parametrize("body", [{}, {"response_format": {"type": "text"}}, {"grammar": ""}, {"regex": None}, {"guided_choice": []}])
def test_nothing_is_asked_for(body: dict[str, Any]) -> None:
    assert asked(**body) is None


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"regex": "a", "grammar": "start: /a/"}, "regex"),
        ({"response_format": NAMED, "guided_json": {}}, "guided_json"),
        ({"response_format": {"type": "json_schema"}}, "response_format"),
        ({"response_format": {"type": "xml"}}, "response_format"),
        ({"structured_outputs": {"json": 3}}, "structured_outputs"),
        ({"regex": "a", "use_beam_search": True}, "regex"),
    ],
)
def test_what_is_refused(body: dict[str, Any], field: str) -> None:
    with pytest.raises(ApiError) as caught:
        asked(**body)
    assert caught.value.param == field


def test_answers_follow_it(http: httpx.Client) -> None:
    messages = [{"role": "user", "content": "?"}]
    for path, prompt in (("/v1/completions", {"prompt": "A city: "}), ("/v1/chat/completions", {"messages": messages})):
        answer = http.post(path, json={**prompt, "response_format": NAMED, "temperature": 1.5, "max_tokens": 64, "n": 3, "seed": 1}).json()
        for choice in answer["choices"]:
            found = json.loads(choice["text"] if "text" in choice else choice["message"]["content"])
            assert found["city"] in ("Paris", "Rome") and 0 <= found["people"] <= 9 and choice["finish_reason"] == "stop"


def test_errors_name_the_field_and_the_keyword(http: httpx.Client) -> None:
    schema = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "array", "uniqueItems": True}}}
    error = http.post("/v1/completions", json={"prompt": "x", "response_format": schema}).json()["error"]
    assert error["param"] == "response_format" and "uniqueItems" in error["message"]
    answer = http.post("/v1/completions", json={"prompt": "x", "regex": "a", "ignore_eos": True})
    assert answer.status_code == 400 and answer.json()["error"]["param"] == "ignore_eos"


def test_a_stream_follows_it(http: httpx.Client) -> None:
    body = {"prompt": "Is it? ", "guided_choice": ["certainly", "never"], "stream": True, "max_tokens": 32}
    with http.stream("POST", "/v1/completions", json=body) as answer:
        events = [line.removeprefix("data: ") for line in answer.iter_lines() if line.startswith("data: ") and line != "data: [DONE]"]
    assert "".join(json.loads(event)["choices"][0]["text"] for event in events) in ("certainly", "never")
