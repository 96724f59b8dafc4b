"""What real clients stumbled over (trials C, A, N22): each label of the HTTP protocol has a test here, against the real demo server."""

import json
import logging
import time
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest

IGNORED, FOLDED = "x-ridgeline-ignored-fields", "x-ridgeline-folded-roles"
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
USER = {"role": "user", "content": "Name a colour."}
GREEDY: dict[str, Any] = {"max_tokens": 4, "temperature": 0}


@pytest.fixture(scope="module")
def http(demo_server: Any) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=demo_server.url, timeout=60) as client:
        yield client


@pytest.fixture(scope="module")
def client(demo_server: Any) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{demo_server.url}/v1", api_key="none", max_retries=0, timeout=60) as client:
        yield client


def chat(http: httpx.Client, *messages: Any, **more: Any) -> httpx.Response:
    return http.post(CHAT, json={"messages": messages or [USER], **GREEDY, **more})


def complete(http: httpx.Client, **more: Any) -> httpx.Response:
    return http.post(COMPLETIONS, json={"prompt": "One, two, three,", **GREEDY, **more})


def events(http: httpx.Client, path: str, **more: Any) -> list[dict[str, Any]]:
    subject = {"messages": [USER]} if path == CHAT else {"prompt": "One, two, three,"}
    answer = http.post(path, json={**subject, **GREEDY, "stream": True, **more})
    assert answer.status_code == 200, answer.text
    *lines, done, _ = answer.text.split("\n\n")
    assert done == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: ")]


def ok(answer: httpx.Response, ignored: str | None = None) -> dict[str, Any]:
    assert answer.status_code == 200, answer.text
    assert answer.headers.get(IGNORED) == ignored
    return answer.json()  # type: ignore[no-any-return]


def refused(answer: httpx.Response, param: str) -> str:
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, param), answer.text
    return str(error["message"])


def test_c1_vllms_null_fields_are_there(http: httpx.Client, client: openai.OpenAI) -> None:
    whole, text = ok(chat(http)), ok(complete(http))
    for body in (whole, text):
        assert body["service_tier"] is None and body["kv_transfer_params"] is None and body["system_fingerprint"].startswith("fp_")
        assert body["choices"][0]["stop_reason"] is None and body["choices"][0]["token_ids"] is None
    assert whole["prompt_logprobs"] is None and whole["prompt_token_ids"] is None
    assert text["choices"][0]["prompt_logprobs"] is None and text["choices"][0]["prompt_token_ids"] is None
    message = whole["choices"][0]["message"]
    assert all(message[name] is None for name in ("refusal", "annotations", "audio", "function_call", "reasoning", "reasoning_content"))
    answer = client.chat.completions.create(model="demo", messages=[USER], max_tokens=2)  # type: ignore[list-item]
    assert answer.prompt_logprobs is None and answer.kv_transfer_params is None  # type: ignore[attr-defined]
    assert answer.choices[0].message.reasoning_content is None and answer.choices[0].token_ids is None  # type: ignore[attr-defined]
    first, *rest = events(http, CHAT)
    assert first["prompt_token_ids"] is None and all(event["choices"][0]["token_ids"] is None for event in rest)


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_c2_the_last_chunk_has_text_and_usage_grows_with_every_chunk(http: httpx.Client, path: str) -> None:
    found = events(http, path, stream_options={"include_usage": True, "continuous_usage_stats": True})
    *chunks, final = found
    last = chunks[-1]["choices"][0]
    assert last["finish_reason"] == "length" and (last["text"] if path == COMPLETIONS else last["delta"]["content"])
    counts = [chunk["usage"]["completion_tokens"] for chunk in chunks]
    assert counts == sorted(set(counts)), "no two chunks have the same usage"
    assert final["choices"] == [] and final["usage"]["completion_tokens"] == counts[-1] == 4
    assert "prompt_tokens_details" in final["usage"]


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_c3_every_combination_of_stream_options(http: httpx.Client, path: str) -> None:
    for include in (None, False, True):
        for continuous in (None, False, True):
            *chunks, last = events(http, path, stream_options={"include_usage": include, "continuous_usage_stats": continuous})
            assert bool(last["choices"]) != bool(include), "include_usage adds a chunk of its own, once"
            assert all(("usage" in chunk) == bool(continuous) and chunk["choices"] for chunk in chunks)


def turn(role: str, content: Any, **more: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **more}


def same_prompt(http: httpx.Client, sent: list[Any], folded: str, by_hand: list[Any]) -> None:
    """The demo's template refuses what is `sent`; its ids are those of the messages as they would be written by hand."""
    tokens = []
    for messages, header in ((sent, folded), (by_hand, None)):
        answer = http.post("/tokenize", json={"messages": messages})
        assert answer.status_code == 200 and answer.headers.get(FOLDED) == header, answer.text
        tokens.append(answer.json()["tokens"])
        answer = chat(http, *messages, max_tokens=1)
        assert answer.status_code == 200 and answer.headers.get(FOLDED) == header, answer.text
    assert tokens[0] == tokens[1]


def test_c4_developers_speak_as_system(http: httpx.Client, client: openai.OpenAI) -> None:
    same_prompt(http, [turn("developer", "Be terse."), USER], "developer", [turn("system", "Be terse."), USER])
    messages: Any = [turn("developer", "Be terse."), USER]
    assert client.chat.completions.create(model="demo", messages=messages, max_tokens=1).choices
    stream = http.post(CHAT, json={"messages": messages, "stream": True, **GREEDY})
    assert stream.headers[FOLDED] == "developer"


def test_c5_histories_that_the_demos_template_refuses(http: httpx.Client) -> None:
    reply, again = turn("assistant", "Blue."), turn("user", "Another?")
    same_prompt(http, [USER, again], "user", [turn("user", "Name a colour.\n\nAnother?")])
    same_prompt(http, [USER, reply, turn("system", "In French."), again], "system", [USER, reply, turn("user", "In French.\n\nAnother?")])
    same_prompt(http, [turn("system", "A"), turn("system", "B"), USER], "system", [turn("system", "A\n\nB"), USER])
    call = turn("assistant", None, tool_calls=[{"id": "x", "type": "function", "function": {"name": "look", "arguments": '{"at": 1}'}}])
    by_hand = [USER, turn("assistant", '[tool call: look]\n{"at": 1}'), turn("user", "[tool result: look]\n42")]
    same_prompt(http, [USER, call, turn("tool", "42", tool_call_id="x")], "assistant, tool", by_hand)
    assert chat(http, turn("assistant", "I begin"), USER).status_code == 400, "what no rule folds is still refused"


def test_c7_up_to_64_stop_strings_and_empty_ones(http: httpx.Client) -> None:
    plain = ok(complete(http, max_tokens=8))["choices"][0]["text"]
    for nothing in ("", None, [], [""], ["", ""]):
        assert ok(complete(http, max_tokens=8, stop=nothing))["choices"][0]["text"] == plain
    stops = [f"never {number}" for number in range(63)] + [plain.strip()[:4]]
    cut = ok(complete(http, max_tokens=8, stop=stops))["choices"][0]
    assert cut["stop_reason"] == stops[-1] and stops[-1] not in cut["text"]
    assert "64" in refused(complete(http, stop=[*stops, "x"]), "stop")


def test_c8_of_two_lengths_the_smaller_counts_and_the_other_is_named(http: httpx.Client) -> None:
    for path_of in (chat, complete):
        assert ok(path_of(http, max_tokens=9, max_completion_tokens=2), "max_tokens")["usage"]["completion_tokens"] == 2
        assert ok(path_of(http, max_tokens=2, max_completion_tokens=9), "max_completion_tokens")["usage"]["completion_tokens"] == 2
        assert ok(path_of(http, max_tokens=3, max_completion_tokens=3))["usage"]["completion_tokens"] == 3
        assert ok(path_of(http, max_tokens=3, n_predict=-1), "n_predict")["usage"]["completion_tokens"] == 3


def test_c9_lengths_and_logprobs_of_either_dialect(http: httpx.Client) -> None:
    for unlimited in (-1, None):
        for path_of in (chat, complete):
            found = ok(path_of(http, max_tokens=unlimited, stop=[*" \nabcdefghijklmnopqrstuvwxyz.,0123456789"], min_tokens=20))
            assert found["usage"]["completion_tokens"] >= 20, "more than the default of 16"
    refused(complete(http, max_tokens=-2), "max_tokens")
    for nothing in (False, None):
        for path_of in (chat, complete):
            assert ok(path_of(http, logprobs=nothing))["choices"][0]["logprobs"] is None
    for fields, count in (({"logprobs": 3}, 3), ({"logprobs": True, "top_logprobs": 3}, 3), ({"logprobs": True}, 0), ({"logprobs": 0}, 0)):
        of_chat = ok(chat(http, **fields))["choices"][0]["logprobs"]["content"]
        assert all(len(each["top_logprobs"]) == count for each in of_chat)
        of_text = ok(complete(http, **fields))["choices"][0]["logprobs"]
        assert all(len(each) == max(1, count) for each in of_text["top_logprobs"])


def test_c10_reasoning_that_is_not_asked_for(http: httpx.Client) -> None:
    plain = ok(chat(http))["choices"]
    for asked in ({"include_reasoning": False}, {"include_reasoning": True}, {"reasoning_effort": "none"}, {"reasoning_effort": None}):
        assert ok(chat(http, **asked))["choices"] == plain
    assert '"none"' in refused(chat(http, reasoning_effort="high"), "reasoning_effort")


def test_c11_template_arguments(http: httpx.Client) -> None:
    """The demo's template reads none: they are told. tests/server shows one that reads."""
    ok(chat(http, chat_template_kwargs={"enable_thinking": False}), "chat_template_kwargs.enable_thinking")
    refused(chat(http, chat_template_kwargs={"messages": []}), "chat_template_kwargs")


def test_c12_ranks_of_prompt_tokens_are_right_outside_the_likeliest(http: httpx.Client) -> None:
    """Those of a few likeliest agree with those of many; a token among none of them has a rank beyond."""
    prompt = "The capital of zebra Paris"
    few, many = (ok(complete(http, prompt=prompt, prompt_logprobs=count))["choices"][0]["prompt_logprobs"][1:] for count in (0, 20))
    unlikely = 0
    for alone, found in zip(few, many, strict=True):
        ((token, own),) = alone.items()
        assert own["rank"] == found[token]["rank"] and own["rank"] >= 1
        likelier = [each for each in found.values() if each["logprob"] > own["logprob"]]
        assert own["rank"] == len(likelier) + 1 if own["rank"] <= 20 else len(likelier) == 20
        assert sorted(each["rank"] for each in found.values())[:20] == list(range(1, 21))
        unlikely += own["rank"] > 20
    assert unlikely


def test_c15_and_a1_what_would_change_the_answer_is_refused_by_name(http: httpx.Client) -> None:
    for name, value in {
        "mirostat": 2, "typical_p": 0.5, "typ_p": 0.5, "dry_multiplier": 0.8, "xtc_probability": 0.5, "dynatemp_range": 0.3,
        "top_n_sigma": 1, "grammar": "root ::= a", "json_schema": {"not": {}}, "repeat_penalty": 1.1, "regex": "(?=a)", "ebnf": "x",
        "n_probs": 3, "guided_json": {"uniqueItems": True}, "structured_outputs": {"regex": "a", "json": {}}, "samplers": ["top_k"],
        "response_format": {"type": "json_schema"}, "format": "json",
    }.items():  # fmt: skip
        for path_of in (chat, complete):
            assert name in refused(path_of(http, **{name: value}), name)
    neutral = {
        "mirostat": 0, "mirostat_tau": 5.0, "mirostat_eta": 0.1, "typical_p": 1.0, "dry_multiplier": 0.0, "dry_base": 1.75,
        "xtc_threshold": 0.1, "xtc_probability": 0, "dynatemp_range": 0, "top_n_sigma": -1, "grammar": "", "json_schema": None,
        "repeat_penalty": 1.0, "repeat_last_n": 64, "n_probs": 0, "cache_prompt": True, "user": "me", "response_format": {"type": "text"},
        "tfs_z": 1.0,
    }  # fmt: skip
    plain = ok(complete(http))["choices"]
    assert ok(complete(http, **neutral))["choices"] == plain
    assert ok(http.post(COMPLETIONS, json={"prompt": "One, two, three,", "temperature": 0, "n_predict": 4}))["choices"] == plain


def test_x7_user_defined_tokens_in_messages_are_text(http: httpx.Client) -> None:
    """In every role; a raw prompt still has them, and what is text stays as it was."""

    def ids(**body: Any) -> list[int]:
        return http.post("/tokenize", json=body).json()["tokens"]  # type: ignore[no-any-return]

    for name in ("<start_of_image>", "<end_of_image>", "[multimodal]", "<start_of_turn>", "<unused7>"):
        (token,) = ids(prompt=name, add_special_tokens=False)
        assert token in ids(prompt=f"a {name} b")
        for role in ("system", "developer", "user", "assistant", "tool"):
            found = ids(messages=[USER, turn("assistant", "x"), turn(role, f"a {name} b"), USER])
            plain = ids(messages=[USER, turn("assistant", "x"), turn(role, "a b"), USER])
            assert found.count(token) == plain.count(token), (name, role)
    text = "<table>\n\n\n\t\t<td>1</td>   <code>x</code>"
    assert ids(messages=[turn("user", text)])[4:-5] == ids(prompt=text, add_special_tokens=False)
    masked = ids(messages=[turn("user", f"{text} [multimodal]")])
    assert masked[4:][: len(ids(prompt=text, add_special_tokens=False))] == ids(prompt=text, add_special_tokens=False)


def test_a1_the_document_says_what_is_not_supported(http: httpx.Client) -> None:
    properties = http.get("/openapi.json").json()["components"]["schemas"]["CompletionRequest"]["properties"]
    assert properties["mirostat"]["enum"] == [None, 0] and "enum" not in properties["grammar"]


def test_a2_a_priority_without_effect_is_told(http: httpx.Client) -> None:
    ok(complete(http, priority=3), "priority")
    ok(complete(http, priority=0))


def test_n22_unknown_fields_are_told(http: httpx.Client, demo_server: Any) -> None:
    plain = ok(complete(http))["choices"]
    assert (
        ok(complete(http, temprature=2, stream_optoins={}, **{"x y": 1, "é": 1, "a" * 65: 1, "": 1}), "temprature, stream_optoins")[
            "choices"
        ]
        == plain
    )
    deadline = time.monotonic() + 10
    while not (lines := [line for line in demo_server.output().splitlines() if "temprature" in line]):
        assert time.monotonic() < deadline, "the log is written beside the answers"
        time.sleep(0.02)
    assert len(lines) == 1 and "did you mean temperature?" in lines[0]
    many = {f"field-{number}": number for number in range(40)}
    assert complete(http, **many).headers[IGNORED] == ", ".join(list(many)[:16])
    answer = http.post(COMPLETIONS, json={"prompt": "a", **GREEDY, "stream": True, "stream_options": {"include_usgae": True}, "x": 1})
    assert answer.headers[IGNORED] == "x, stream_options.include_usgae"
    ok(http.post("/tokenize", json={"prompt": "a", "add_special": True}), "add_special")
    ok(http.post("/detokenize", json={"tokens": [5], "skip": True}), "skip")


def test_n22_the_log_names_unknown_fields_once_and_what_they_resemble(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ridgeline.server.fields import COMPLETION

    monkeypatch.setattr("ridgeline.server.notes._logged", {})  # a fuzzed server in this process has logged names before
    with caplog.at_level(logging.INFO, "ridgeline.server"):
        for _ in range(2):
            _, notes = COMPLETION.read(b'{"prompt": "a", "temperatur": 0, "zzz": 1, "a\\nb": 1, "max_token": 1}')
            assert notes.tell() == {IGNORED: "temperatur, zzz, max_token"}
    (line,) = caplog.messages
    assert "temperatur (unknown, did you mean temperature?)" in line and "max_token (unknown, did you mean max_tokens?)" in line
    assert "zzz (unknown)" in line and "1 further names" in line and "\n" not in line


def test_hints_about_tools_lead_nowhere_wrong(http: httpx.Client) -> None:
    """The demo's template reads no tools, and every hint says so."""
    tool = {"type": "function", "function": {"name": "f"}}
    for choice in ({}, {"tool_choice": "auto"}, {"tool_choice": "none"}, {"tool_choice": "required"}):
        assert "leave them out" in refused(chat(http, tools=[tool], **choice), "tools")
    ok(chat(http, tools=[], tool_choice="none"))
    assert "leave tool_choice out" in refused(chat(http, tool_choice="required"), "tool_choice")
