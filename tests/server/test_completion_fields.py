"""The boundary table: every field at, below and above its bounds, of the wrong type, null, absent. All errors have the same form."""

import json
from typing import Any

import pytest

from ridgeline.server.body import MAX_JSON_DEPTH
from ridgeline.server.errors import CATALOGUE
from ridgeline.server.fields import COMPLETION

UNBUILT = COMPLETION.unsupported

CONTEXT = 4096
GOOD: dict[str, list[Any]] = {
    "max_tokens": [-1, 0, 1, 2, None],
    "max_completion_tokens": [-1, 1, None],
    "n_predict": [-1, 1, None],
    "temperature": [0, 0.0, 0.5, 10, None],
    "top_p": [0.0001, 1, 1.0, None],
    "top_k": [-1, 0, 1, 2**31 - 1, None],
    "n": [1, 8, None],
    "seed": [-(2**63), 0, 2**63 - 1, None],
    "stop": ["x", "", ["a"] * 64, ["", "a"], ["a" * 64], [], None],
    "stop_token_ids": [[], [0, 257], [1] * 64, None],
    "min_tokens": [0, 2, None],
    "logprobs": [0, 1, 20, False, True, None],
    "top_logprobs": [0, None],
    "ignore_eos": [True, False, None],
    "include_stop_str_in_output": [True, False, None],
    "skip_special_tokens": [True, False, None],
    "add_special_tokens": [True, False, None],
    "priority": [-(2**31), 2**31 - 1, None],
    "ttft_ms": [1, 86_400_000, None],
    "itl_ms": [1, 86_400_000, None],
    "deadline_ms": [60_000, 86_400_000, None],
    "explain": [True, False, None],
    "cache_salt": ["", "salt", None],
    "stream": [False, None],
    "stream_options": [None],
    "model": ["fake", None],
    "prompt": ["a", "", "\u0000", "🦊", ["a", "b"], [0], [1, 2, 257], [[1], [2, 3]], ["a"] * 64],
    "user": ["me", 5, None],
    "min_p": [0, 0.5, 1, None],
    "presence_penalty": [-2, 0, 2, None],
    "frequency_penalty": [-2, 0.5, 2.0, None],
    "repetition_penalty": [0.001, 1, 10, None],
    "logit_bias": [{}, {"0": -100, "257": 100}, {str(token): 1 for token in range(258)}, None],
    "allowed_token_ids": [[0], list(range(258)), [5, 5], None],
    "bad_words": [[], ["a"], ["é🦊" * 32], ["a"] * 64, None],
    "best_of": [1, 8, None],
    "use_beam_search": [True, False, None],
    "length_penalty": [1, 1.0, None],
    "prompt_logprobs": [0, 20, None],
    "echo": [True, False, None],
    "return_token_ids": [True, False, None],
    "return_tokens_as_token_ids": [True, False, None],
    "truncate_prompt_tokens": [-1, 1, CONTEXT, None],
    "no_such_field": [[[{}]]],
}
BAD: dict[str, list[Any]] = {
    "max_tokens": [-2, CONTEXT, 2**31, 2**63, 10**400, 1.0, 1.5, "1", True, [], {}],
    "temperature": [-0.1, 10.1, "1", True, [], {}],
    "top_p": [0, -0.1, 1.1, "1", True, []],
    "top_k": [-2, 2**31, 2**63, 1.0, "1", True],
    "n": [0, -1, 9, 2**63, 1.0, "1", True],
    "seed": [2**63, -(2**63) - 1, 1.0, "1", True],
    "stop": [["a"] * 65, "a" * 65, [1], 1, {}, True],
    "stop_token_ids": [[-1], [258], [2**63], [1] * 65, ["1"], [1.0], [True], "1", 1],
    "min_tokens": [-1, 3, 2**63, 1.0, "1", True],
    "logprobs": [-1, 21, 2**63, 1.0, "1"],
    "top_logprobs": [1, -1, 21, 1.0, "1", True],
    "ignore_eos": [0, 1, "true", []],
    "include_stop_str_in_output": [0, "true"],
    "skip_special_tokens": [1, "false"],
    "add_special_tokens": [1, "false"],
    "priority": [2**31, -(2**31) - 1, 1.0, "1", True],
    "ttft_ms": [0, 86_400_001, 1.0, "1", True],
    "itl_ms": [0, 86_400_001, 1.0, "1", True],
    "deadline_ms": [0, 86_400_001, 1.0, "1", True],
    "explain": [1, "true", []],
    "cache_salt": [1, True, []],
    "min_p": [-0.1, 1.1, "1", True, []],
    "presence_penalty": [-2.1, 2.1, "1", True],
    "frequency_penalty": [-2.1, 2.1, "1", True],
    "repetition_penalty": [0, -1, 10.1, "1", True],
    "logit_bias": [
        {"258": 1},
        {"-1": 1},
        {"1": 101},
        {"1": -100.5},
        {"1": "x"},
        {"1": True},
        {"x": 1},
        {"01": 1},
        {"+1": 1},
        {"1.0": 1},
        {"": 1},
        {"9" * 30: 1},
        {str(token): 1 for token in range(301)},
        [],
        1,
    ],
    "allowed_token_ids": [[], [-1], [258], [1] * 1025, ["1"], [True], 1],
    "bad_words": [[""], [" "], ["a" * 65], ["a"] * 65, [1], "a", {}],
    "best_of": [0, 9, 1.0, "1", True],
    "use_beam_search": [1, "true"],
    "length_penalty": [2, "1", True],
    "prompt_logprobs": [-1, 21, 1.0, "1", True],
    "echo": [1, "true"],
    "return_token_ids": [1, "true"],
    "return_tokens_as_token_ids": [1, "true"],
    "truncate_prompt_tokens": [0, -2, CONTEXT + 1, 2**63, 1.0, "1", True],
    "stream": [1, "true", []],
    "stream_options": [{"include_usage": True}, {"include_usage": 1}, [], 1],
    "model": ["gpt-9", "", 1, True],
    "prompt": [None, [], [[]], ["a", 1], [1, [1]], [["a"]], [[[1]]], [-1], [258], [2**63], [1.0], [True], 1, {}, ["a"] * 65, [0] * CONTEXT],
}


def check_refusal(answer: Any, status: int | None = None) -> dict[str, Any]:
    """The shape of every refusal; returns the error."""
    assert 400 <= answer.status_code < 500 if status is None else answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["x-request-id"]
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert CATALOGUE[error["code"]] == (answer.status_code, error["type"])
    assert error["message"] and "Traceback" not in error["message"]
    return error


@pytest.mark.parametrize("field", sorted(GOOD))
def test_values_inside_their_bounds(site: Any, field: str) -> None:
    for value in GOOD[field]:
        answer = site.complete(**{"prompt": "a", "max_tokens": 2, field: value})
        assert answer.status_code == 200, (value, answer.text)


@pytest.mark.parametrize("field", sorted(BAD))
def test_values_outside_their_bounds(site: Any, field: str) -> None:
    for value in BAD[field]:
        status = 404 if field == "model" and type(value) is str else 400
        error = check_refusal(site.complete(**{"prompt": "a", "max_tokens": 2, field: value}), status)
        assert error["param"] == field, (value, error)


@pytest.mark.parametrize("name", sorted(UNBUILT))
def test_known_fields_that_are_not_built(site: Any, name: str) -> None:
    error = check_refusal(site.complete(prompt="a", max_tokens=1, **{name: "something"}), 400)
    assert (error["param"], error["code"]) == (name, "unsupported_parameter")
    for neutral in (None, *UNBUILT[name]):
        assert site.complete(prompt="a", max_tokens=1, **{name: neutral}).status_code == 200


def test_the_context_bounds_prompt_and_output_together(site: Any) -> None:
    assert site.complete(prompt=[1] * (CONTEXT - 1), max_tokens=1).status_code == 200
    error = check_refusal(site.complete(prompt=[1] * (CONTEXT - 1), max_tokens=2), 400)
    assert error["code"] == "context_length_exceeded"
    assert str(CONTEXT) in error["message"]
    check_refusal(site.complete(prompt=[1], max_tokens=2048, n=3), 400)


MALFORMED = [
    b"",
    b"{",
    b"[]",
    b"null",
    b"1",
    b'"text"',
    b"{'prompt': 'a'}",
    b'{"prompt": "a",}',
    b'{"prompt": "\xff"}',
    b'{"prompt": "\\ud800"}',
    b"\xef\xbb\xbf{}",
    b'{"prompt": "a", "temperature": NaN}',
    b'{"prompt": "a", "temperature": Infinity}',
    b'{"prompt": "a"} x',
    b"\x00" * 100,
    b"prompt=a",
]


@pytest.mark.parametrize("body", MALFORMED, ids=range(len(MALFORMED)))
def test_malformed_json(site: Any, body: bytes) -> None:
    for path in ("/v1/completions", "/tokenize", "/detokenize"):
        check_refusal(site.request("POST", path, content=body), 400)


@pytest.mark.parametrize("number", ["1e400", "-1e400", "9" * 5000, "1e-400", "0x10", "01", "+1", ".5"])
@pytest.mark.parametrize("field", ["temperature", "max_tokens", "seed", "top_p"])
def test_numbers_that_no_type_holds(site: Any, field: str, number: str) -> None:
    answer = site.request("POST", "/v1/completions", content=f'{{"prompt": "a", "{field}": {number}}}'.encode())
    if (field, number) == ("temperature", "1e-400"):
        assert answer.status_code == 200, "so small a number is 0"
    else:
        check_refusal(answer, 400)


def test_bytes_that_are_not_utf_8_in_a_field_that_is_not_built(site: Any) -> None:
    answer = site.request("POST", "/v1/completions", content=b'{"prompt": "a", "suffix": "\xff"}')
    check_refusal(answer, 400)


def test_the_last_of_two_equal_keys_counts(site: Any) -> None:
    answer = site.request("POST", "/v1/completions", content=b'{"prompt": "a", "max_tokens": 99999, "max_tokens": 3}')
    assert answer.json()["usage"]["completion_tokens"] == 3


@pytest.mark.parametrize("depth", [MAX_JSON_DEPTH, MAX_JSON_DEPTH + 1, 500, 100_000])
@pytest.mark.parametrize("brackets", ["[]", "{}"])
def test_depth(site: Any, depth: int, brackets: str) -> None:
    inner = "[" * (depth - 1) + "]" * (depth - 1) if brackets == "[]" else '{"a":' * (depth - 1) + "1" + "}" * (depth - 1)
    answer = site.request("POST", "/v1/completions", content=('{"prompt": "]]}}\\"[[{{", "max_tokens": 1, "x": ' + inner + "}").encode())
    if depth <= MAX_JSON_DEPTH:
        assert answer.status_code == 200
    else:
        assert check_refusal(answer, 400)["code"] == "json_too_deep"


def test_a_body_beyond_1_mib(site: Any) -> None:
    body = json.dumps({"prompt": "a", "max_tokens": 1, "x": ""}).encode()
    fits = body[:-2] + b"y" * ((1 << 20) - len(body)) + body[-2:]
    assert site.request("POST", "/v1/completions", content=fits).status_code == 200
    assert check_refusal(site.request("POST", "/v1/completions", content=fits + b" "), 413)["code"] == "body_too_large"

    async def endless() -> Any:
        while True:
            yield b" " * 65536

    check_refusal(site.request("POST", "/tokenize", content=endless()), 413)


def test_stream_options_need_a_stream(site: Any) -> None:
    options = {"include_usage": True}
    assert site.complete(prompt="a", stream=True, stream_options=options).status_code == 200
    error = check_refusal(site.complete(prompt="a", stream_options=options), 400)
    assert error["param"] == "stream_options"


def test_chat_says_why_not(site: Any) -> None:
    answer = site.request("POST", "/v1/chat/completions", json={"model": "fake", "messages": [{"role": "user", "content": "hi"}]})
    error = check_refusal(answer, 400)
    assert "no chat template" in error["message"] or "without a chat template" in error["message"]


@pytest.mark.parametrize(("path", "body"), [
    ("/tokenize", {}), ("/tokenize", {"prompt": 1}), ("/tokenize", {"prompt": "a", "add_special_tokens": "no"}),
    ("/tokenize", {"messages": []}), ("/tokenize", {"prompt": "a", "model": "other"}),
    ("/detokenize", {}), ("/detokenize", {"tokens": "a"}),
    ("/detokenize", {"tokens": [258]}), ("/detokenize", {"tokens": [-1]}), ("/detokenize", {"tokens": [True]}),
    ("/detokenize", {"tokens": [1], "model": "other"}),
])  # fmt: skip
def test_tokenizer_routes_refuse(site: Any, path: str, body: dict[str, Any]) -> None:
    check_refusal(site.request("POST", path, json=body), 404 if "model" in body else 400)


def test_tokenizer_routes_answer_in_vllms_shapes(site: Any) -> None:
    answer = site.request("POST", "/tokenize", json={"model": "fake", "prompt": "hé", "return_token_strs": True}).json()
    strings = ["<bos>", "h", "bytes:\\xc3", "bytes:\\xa9"]
    assert answer == {"count": 4, "max_model_len": CONTEXT, "tokens": [256, 104, 195, 169], "token_strs": strings}
    answer = site.request("POST", "/tokenize", json={"prompt": "h", "add_special_tokens": False}).json()
    assert answer == {"count": 1, "max_model_len": CONTEXT, "tokens": [104], "token_strs": None}
    assert site.request("POST", "/detokenize", json={"tokens": [104, 195, 169]}).json() == {"prompt": "hé", "content": "hé"}


@pytest.mark.parametrize(("method", "path", "status", "code"), [
    ("GET", "/nothing", 404, "not_found"), ("GET", "/v1/completions/", 405, "method_not_allowed"), ("GET", "/V1/models", 404, "not_found"),
    ("GET", "/v1/completions", 405, "method_not_allowed"), ("DELETE", "/v1/models", 405, "method_not_allowed"),
    ("POST", "/", 405, "method_not_allowed"), ("GET", "/v1/models/other", 404, "model_not_found"),
])  # fmt: skip
def test_wrong_paths_and_methods(site: Any, method: str, path: str, status: int, code: str) -> None:
    answer = site.request(method, path)
    assert check_refusal(answer, status)["code"] == code
    assert "allow" in answer.headers or status != 405


def test_request_ids(site: Any) -> None:
    assert site.get("/livez", headers={"X-Request-Id": "mine-1"}).headers["x-request-id"] == "mine-1"
    for unwelcome in ("a" * 65, "a b", "<script>", ""):
        given = site.get("/livez", headers={"X-Request-Id": unwelcome}).headers["x-request-id"]
        assert given != unwelcome and len(given) == 32
