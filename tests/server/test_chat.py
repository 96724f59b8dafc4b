"""Chat completions: whole answers and streams of chunks, their log-probabilities, lengths and ends; rejected requests."""

from dataclasses import replace
from typing import Any

import pytest

CONTEXT = 512


def test_the_shape_of_a_whole_answer(chat_site: Any) -> None:
    answer = chat_site.chat("unlike others", max_tokens=7, seed=3, logprobs=True, top_logprobs=2).json()
    assert answer["id"].startswith("chatcmpl-") and answer["object"] == "chat.completion" and answer["model"] == "fake"
    assert answer["system_fingerprint"].startswith("fp_") and answer["created"] > 1_700_000_000
    (choice,) = answer["choices"]
    assert set(choice) == {"index", "message", "logprobs", "finish_reason", "stop_reason", "token_ids"}
    empty = dict.fromkeys(("refusal", "annotations", "audio", "function_call", "reasoning", "reasoning_content", "tool_calls"))
    assert choice["message"] == {"role": "assistant", "content": choice["message"]["content"], **empty}
    prompt = len("<user>unlike others</>\n<assistant>")
    assert answer["usage"] == {
        "prompt_tokens": prompt, "completion_tokens": 7, "total_tokens": prompt + 7, "prompt_tokens_details": {"cached_tokens": 0}
    }  # fmt: skip
    found = choice["logprobs"]["content"]
    assert "".join(each["token"] for each in found) == choice["message"]["content"]
    for each in found:
        assert bytes(each["bytes"]).decode() == each["token"] and each["logprob"] <= 0
        assert len(each["top_logprobs"]) == 2
        assert each["top_logprobs"][0]["logprob"] >= each["top_logprobs"][1]["logprob"]


def test_a_system_fingerprint_names_weights(chat_site: Any) -> None:
    completion = chat_site.complete(prompt="a", max_tokens=1).json()["system_fingerprint"]
    assert completion == chat_site.chat(max_tokens=1).json()["system_fingerprint"]


def test_lengths(chat_site: Any) -> None:
    prompt = chat_site.chat(max_tokens=1).json()["usage"]["prompt_tokens"]
    rest = chat_site.chat(ignore_eos=True).json()
    assert rest["usage"]["total_tokens"] == CONTEXT and rest["choices"][0]["finish_reason"] == "length"
    assert chat_site.chat(ignore_eos=True, max_tokens=CONTEXT - prompt).status_code == 200
    for name in ("max_tokens", "max_completion_tokens"):
        assert chat_site.chat(ignore_eos=True, **{name: 9}).json()["usage"]["completion_tokens"] == 9
        refused = chat_site.chat(**{name: CONTEXT - prompt + 1})
        error = refused.json()["error"]
        assert (refused.status_code, error["code"], error["param"]) == (400, "context_length_exceeded", name) and name in error["message"]
    assert chat_site.chat(max_tokens=3, max_completion_tokens=3).status_code == 200
    long = chat_site.chat("x" * CONTEXT)
    assert long.status_code == 400 and long.json()["error"]["code"] == "context_length_exceeded"


def test_token_ids_and_their_names(chat_site: Any) -> None:
    body = {"max_tokens": 6, "seed": 1, "logprobs": True, "return_token_ids": True, "return_tokens_as_token_ids": True}
    answer = chat_site.chat(**body).json()
    ids = answer["choices"][0]["token_ids"]
    assert bytes(ids).decode() == answer["choices"][0]["message"]["content"]
    assert bytes(answer["prompt_token_ids"]).decode() == "<user>hi</>\n<assistant>"
    assert [each["token"] for each in answer["choices"][0]["logprobs"]["content"]] == [f"token_id:{token}" for token in ids]
    found = chat_site.events("/v1/chat/completions", messages=[USER], **body)
    assert found[0]["prompt_token_ids"] == answer["prompt_token_ids"]
    assert [token for chunk in found for token in chunk["choices"][0]["token_ids"]] == ids


def with_model(site: Any, monkeypatch: pytest.MonkeyPatch, **changes: Any) -> None:
    monkeypatch.setattr(site.service.deployment, "_model", replace(site.service.model, **changes))


def test_defaults_of_the_model_fill_what_a_client_leaves_out(chat_site: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    greedy = chat_site.chat(max_tokens=12, temperature=0).json()["choices"]
    sampled = chat_site.chat(max_tokens=12, seed=5).json()["choices"]
    with_model(chat_site, monkeypatch, defaults={"temperature": 0.0, "max_tokens": 12})
    assert chat_site.chat().json()["choices"] == greedy != sampled
    completion = chat_site.complete(prompt="a", ignore_eos=True).json()
    assert completion["usage"]["completion_tokens"] == 16, "completions have a default of their own"
    assert chat_site.chat(temperature=1.0, seed=5).json()["choices"] == sampled
    with_model(chat_site, monkeypatch, defaults={"max_tokens": 10_000})
    assert chat_site.chat(ignore_eos=True).json()["usage"]["total_tokens"] == CONTEXT, "a default never exceeds the context"
    assert chat_site.chat(ignore_eos=True, n=8).status_code == 200


class Turns:
    """A template whose turns end at `!`."""

    stop_ids = frozenset({ord("!")})
    findings: tuple[Any, ...] = ()
    source = "model"
    is_usable = True
    variables: tuple[str, ...] = ()
    family = reasoning = reasoning_ids = None

    def folded_roles(self, conversation: Any) -> list[str]:
        return []

    def unread(self, arguments: Any) -> frozenset[str]:
        return frozenset(arguments)

    async def masked_from_loop(self, *asked: Any) -> None:
        """A thread's alone."""

    def encode(self, conversation: Any, tokenizer: Any, *more: Any) -> list[int]:
        return list(str(conversation.messages[-1]["content"]).encode())


class Thinking(Turns):
    """A template that reads how much is to be thought; notes what it is told."""

    variables = ("enable_thinking", "reasoning_effort")
    told: Any = None

    def unread(self, arguments: Any) -> frozenset[str]:
        return frozenset(arguments) - set(self.variables)

    def encode(self, conversation: Any, tokenizer: Any, *more: Any) -> list[int]:
        self.told = dict(conversation.arguments)
        return super().encode(conversation, tokenizer)


def test_how_much_is_thought_reaches_a_template_that_reads_it(chat_site: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    template = Thinking()
    with_model(chat_site, monkeypatch, chat=template)
    for fields, told, ignored in (
        ({}, {}, None),
        ({"chat_template_kwargs": {"enable_thinking": False}}, {"enable_thinking": False}, None),
        ({"reasoning_effort": "none"}, {"enable_thinking": False}, None),
        ({"reasoning_effort": "high"}, {"enable_thinking": True, "reasoning_effort": "high"}, None),
        ({"enable_thinking": False, "reasoning_effort": "low"}, {"enable_thinking": False, "reasoning_effort": "low"}, None),
        ({"reasoning_effort": "none", "chat_template_kwargs": {"enable_thinking": True}}, {"enable_thinking": True}, None),
        (
            {"reasoning_effort": "low", "chat_template_kwargs": {"reasoning_effort": "max"}},
            {"enable_thinking": True, "reasoning_effort": "max"},
            None,
        ),
        ({"chat_template_kwargs": {"thinking": True}}, {}, "chat_template_kwargs.thinking"),
    ):
        answer = chat_site.chat(max_tokens=1, **fields)
        assert answer.status_code == 200 and template.told == told, fields
        assert answer.headers.get("x-ridgeline-ignored-fields") == ignored


def test_the_end_of_a_turn_ends_an_answer(chat_site: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with_model(chat_site, monkeypatch, chat=Turns())
    ends = [chat_site.chat("go", seed=seed, max_tokens=400).json()["choices"][0] for seed in range(8)]
    stopped = [each for each in ends if each["finish_reason"] == "stop"]
    assert stopped and all("!" not in each["message"]["content"] and each["stop_reason"] is None for each in ends)
    texts = [chat_site.complete(prompt=list(b"go"), seed=seed, max_tokens=400).json()["choices"][0]["text"] for seed in range(8)]
    assert any("!" in text for text in texts), "completions do not end there"


def conversation(site: Any, *messages: Any, **more: Any) -> Any:
    return site.request("POST", "/v1/chat/completions", json={"messages": list(messages), "max_tokens": 1, **more})


def rendered(site: Any, *messages: Any, **more: Any) -> str:
    """The prompt as the model reads it."""
    answer = site.request("POST", "/tokenize", json={"messages": list(messages), **more})
    assert answer.status_code == 200, answer.text
    return bytes(answer.json()["tokens"]).decode()


USER = {"role": "user", "content": "hi"}
TOOL = {"type": "function", "function": {"name": "look", "description": "Looks.", "parameters": {"type": "object", "properties": {}}}}


def test_what_the_template_reads(chat_site: Any) -> None:
    assert rendered(chat_site, USER) == "<user>hi</>\n<assistant>"
    assert rendered(chat_site, USER, add_generation_prompt=False) == "<user>hi</>\n"
    begun = {"role": "assistant", "content": "I am"}
    assert rendered(chat_site, USER, begun, continue_final_message=True) == "<user>hi</>\n<assistant>I am"
    assert rendered(chat_site, USER, chat_template_kwargs={"mood": "glad"}) == "<user>hi</>\n(glad)<assistant>"
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert rendered(chat_site, {"role": "user", "content": parts}) == "<user>a\nb</>\n<assistant>"
    assert '"name": "look"' in rendered(chat_site, USER, tools=[TOOL])
    assert '"title": "t"' in rendered(chat_site, USER, documents=[{"title": "t", "text": "x"}])
    calls = [{"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}]
    call = {"role": "assistant", "content": "", "tool_calls": calls}
    result = {"role": "tool", "tool_call_id": "1", "content": "42"}
    told = "<user>hi</>\n<assistant>[tool call: f]\n{}</>\n<tool>42</>\n<assistant>"
    assert rendered(chat_site, USER, call, result) == told, "it would drop the arguments"


def test_tools_are_shown_to_the_model_where_no_calls_are_expected(chat_site: Any) -> None:
    plain = conversation(chat_site, USER).json()["usage"]["prompt_tokens"]
    assert conversation(chat_site, USER, tools=[TOOL], tool_choice="none").json()["usage"]["prompt_tokens"] > plain
    for more in ({"tools": [TOOL]}, {"tools": [TOOL], "tool_choice": "auto"}):
        refused = conversation(chat_site, USER, **more)
        assert refused.status_code == 400 and refused.json()["error"]["param"] == "tools"
    for choice in ("required", {"type": "function", "function": {"name": "look"}}):
        refused = conversation(chat_site, USER, tools=[TOOL], tool_choice=choice)
        assert refused.status_code == 400 and refused.json()["error"]["param"] == "tool_choice"
    for more in ({"tools": []}, {"tool_choice": "auto"}, {"tool_choice": "none", "parallel_tool_calls": False}, {"tools": None}):
        assert conversation(chat_site, USER, **more).json()["usage"]["prompt_tokens"] == plain


def test_what_the_template_does_not_read_is_refused(chat_site: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with_model(chat_site, monkeypatch, chat=Turns())
    for more in ({"tools": [TOOL], "tool_choice": "none"}, {"documents": [{"text": "d"}]}):
        refused = conversation(chat_site, USER, **more)
        assert refused.status_code == 400 and refused.json()["error"]["param"] == next(iter(more))


@pytest.mark.parametrize(("more", "param"), [
    ({"messages": None}, "messages"), ({"messages": []}, "messages"), ({"messages": "hi"}, "messages"), ({"messages": [1]}, "messages"),
    ({"messages": [{}]}, "messages"), ({"messages": [{"role": 1, "content": "x"}]}, "messages"),
    ({"messages": [{"role": "user"}]}, "messages"), ({"messages": [{"role": "user", "content": 1}]}, "messages"),
    ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:"}}]}]}, "messages"),
    ({"messages": [{"role": "user", "content": [{"text": "no type"}]}]}, "messages"),
    ({"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}] * 4097}]}, "messages"),
    ({"messages": [USER] * 4097}, "messages"),
    ({"messages": [{"role": "assistant", "content": "x", "function_call": {"name": "f"}}]}, "messages"),
    ({"messages": [{"role": "assistant", "content": "x", "audio": {"id": "a"}}]}, "messages"),
    ({"tools": [TOOL] * 513, "tool_choice": "none"}, "tools"), ({"tools": [{"type": "code"}], "tool_choice": "none"}, "tools"),
    ({"tools": [{**TOOL, "function": {"name": "f", "description": "d" * 262_144}}], "tool_choice": "none"}, "tools"),
    ({"documents": [{}] * 129}, "documents"), ({"documents": [{"text": "d" * 262_144}]}, "documents"), ({"documents": ["d"]}, "documents"),
    ({"chat_template_kwargs": []}, "chat_template_kwargs"),
    ({"chat_template_kwargs": {"mood": "x" * 5000}}, "chat_template_kwargs"),
    ({"chat_template_kwargs": {"chat_template": "{{ 1 }}"}}, "chat_template_kwargs"),
    ({"chat_template": "{{ 1 }}"}, "chat_template"),
    ({"continue_final_message": True, "add_generation_prompt": True}, "continue_final_message"),
    ({"chat_template_kwargs": {"__class__": 1}}, "chat_template_kwargs"),
    ({"top_logprobs": 2}, "top_logprobs"), ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"), ({"logprobs": 21}, "logprobs"),
    ({"logprobs": True, "top_logprobs": -1}, "top_logprobs"), ({"logprobs": 2, "top_logprobs": -1}, "top_logprobs"),
    ({"reasoning_effort": "low"}, "reasoning_effort"), ({"response_format": {"type": "json"}}, "response_format"),
    ({"modalities": ["audio"]}, "modalities"), ({"functions": [{"name": "f"}]}, "functions"), ({"echo": True}, "echo"),
    ({"add_special_tokens": True}, "add_special_tokens"), ({"stream_options": {"include_usage": True}}, "stream_options"),
    ({"stream_options": {"continuous_usage_stats": True}}, "stream_options"),
    ({"logit_bias": {"x": 1}}, "logit_bias"), ({"logit_bias": {"01": 1}}, "logit_bias"), ({"logit_bias": {" 1": 1}}, "logit_bias"),
    ({"logit_bias": {"-1": 1}}, "logit_bias"), ({"logit_bias": {"\u0661": 1}}, "logit_bias"), ({"logit_bias": {"1e1": 1}}, "logit_bias"),
    ({"logit_bias": {str(token): 1 for token in range(301)}}, "logit_bias"), ({"logit_bias": {"1": "x"}}, "logit_bias"),
    ({"length_penalty": 2}, "length_penalty"),
])  # fmt: skip
def test_what_is_refused(chat_site: Any, more: dict[str, Any], param: str) -> None:
    answer = chat_site.request("POST", "/v1/chat/completions", json={"messages": [USER], "max_tokens": 1, **more})
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == param, answer.text


@pytest.mark.parametrize("more", [
    {"messages": [USER] * 30}, {"messages": [{"role": "assistant", "content": None}, USER]}, {"messages": [{**USER, "name": "me"}]},
    {"messages": [{"role": "assistant", "content": "x", "refusal": None, "audio": None, "function_call": None, "annotations": []}]},
    {"response_format": {"type": "text"}}, {"reasoning_effort": None}, {"modalities": ["text"]}, {"user": "me"}, {"metadata": {"a": "b"}},
    {"store": False}, {"service_tier": "auto"}, {"logprobs": False, "top_logprobs": 0}, {"logprobs": True}, {"tools": []},
    {"logit_bias": {}}, {"documents": []}, {"chat_template_kwargs": {}}, {"chat_template": None}, {"no_such_field": 1},
    {"stream_options": {}}, {"stream_options": {"include_usage": False}}, {"chat_template_kwargs": {"unread": 1}}, {"logprobs": 1},
])  # fmt: skip
def test_what_is_taken(chat_site: Any, more: dict[str, Any]) -> None:
    answer = chat_site.request("POST", "/v1/chat/completions", json={"messages": [USER], "max_tokens": 1, **more})
    assert answer.status_code == 200, answer.text


def test_a_model_without_a_template_names_the_flag(site: Any, chat_site: Any) -> None:
    for path in ("/v1/chat/completions", "/tokenize"):
        refused = site.request("POST", path, json={"messages": [USER]})
        assert refused.status_code == 400
        assert refused.json()["error"]["code"] == "no_chat_template" and "--chat-template FILE" in refused.json()["error"]["message"]
    cards = [each.get("/v1/models/fake").json()["chat"] for each in (site, chat_site)]
    assert cards == [False, True]


def test_tokenize_takes_a_text_or_a_conversation(chat_site: Any) -> None:
    for more in ({"prompt": "a"}, {"add_special_tokens": True}, {"chat_template": "x"}):
        assert chat_site.request("POST", "/tokenize", json={"messages": [USER], **more}).status_code == 400
    answer = chat_site.request("POST", "/tokenize", json={"messages": [USER], "return_token_strs": True}).json()
    assert "".join(answer["token_strs"]) == "<user>hi</>\n<assistant>" and answer["count"] == len(answer["tokens"])
