"""Reasoning of chats: its budget, how clients ask for it, how it is counted and told; whole and streamed, over a model with a script."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ridgeline.config.groups import EngineConfig, ServerConfig

TEMPLATE = """{%- for message in messages -%}<{{ message.role }}>
{%- if message.reasoning_content %}<think>{{ message.reasoning_content }}</think>{% endif -%}{{ message.content }}</>
{%- endfor -%}
<assistant>{% if enable_thinking is defined and not enable_thinking %}<think></think>{% elif begun %}<think>{% endif %}
{%- if false %}</think>{% endif %}"""
THOUGHT, ANSWER = "Four legs, so a table.", "A table."
JSON = '{"legs": 4}'
SCRIPT = [
    ["go</><assistant>", f"<think>{THOUGHT}</think>\n\n{ANSWER}"],
    ["<think>", f"{THOUGHT}</think>\n\n{ANSWER}"],
    ["</think>", ANSWER],
    ["as JSON</><assistant>", f"<think>{THOUGHT}</think>\n\n{JSON}"],
    ["as JSON</><assistant><think>", f"{THOUGHT}</think>\n\n{JSON}"],
    ["as JSON</><assistant><think></think>", JSON],
    ["plainly</><assistant>", JSON],
]


@pytest.fixture(scope="module")
def site(chat_site: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    template = tmp_path_factory.mktemp("templates") / "thinks.jinja"
    Path(template).write_text(TEMPLATE)
    fake = f"fake:{json.dumps({'script': SCRIPT})}"
    made = type(chat_site)(EngineConfig(fake), ServerConfig(chat_template=str(template), reasoning_budget_message=" Enough."))
    made.wait(made.service.start())
    yield made
    made.close()


def said(site: Any, **body: Any) -> tuple[str | None, str | None, int]:
    """Reasoning, answer and tokens of reasoning of a whole answer, after comparing them with the streamed one's."""
    answer = site.chat("go", max_tokens=200, **body)
    assert answer.status_code == 200, answer.text
    (choice,), usage = answer.json()["choices"], answer.json()["usage"]
    message, details = choice["message"], usage["completion_tokens_details"]
    assert message["reasoning"] == message["reasoning_content"] and choice["finish_reason"] == "stop"
    asked = {"messages": [{"role": "user", "content": "go"}], "max_tokens": 200, "stream_options": {"include_usage": True}, **body}
    *chunks, last = site.events("/v1/chat/completions", **asked)
    deltas = [each["choices"][0]["delta"] for each in chunks]
    assert "".join(each.get("reasoning_content") or "" for each in deltas) == (message["reasoning_content"] or "")
    assert "".join(each.get("reasoning") or "" for each in deltas) == (message["reasoning"] or "")
    assert "".join(each.get("content") or "" for each in deltas) == (message["content"] or "")
    assert last["usage"]["completion_tokens"] == usage["completion_tokens"] and last["usage"]["completion_tokens_details"] == details
    return message["reasoning_content"], message["content"], details["reasoning_tokens"]


BEGUN = {"chat_template_kwargs": {"begun": True}}


@pytest.mark.parametrize("begun", [{}, BEGUN])
def test_reasoning_is_told_and_counted_by_its_ids(site: Any, begun: Any) -> None:
    assert said(site, **begun) == (THOUGHT, ANSWER, len(THOUGHT))
    assert said(site, **begun, include_reasoning=False) == (None, ANSWER, len(THOUGHT))
    assert said(site, **begun, reasoning={"exclude": True}) == (None, ANSWER, len(THOUGHT))


@pytest.mark.parametrize("begun", [{}, BEGUN])
@pytest.mark.parametrize("tokens", [0, 1, 4, len(THOUGHT) - 1])
def test_a_budget_ends_the_reasoning(site: Any, begun: Any, tokens: int) -> None:
    """The ids before are those without a budget; the server's message and the mark follow, then the answer."""
    expected = (f"{THOUGHT[:tokens]} Enough.".strip(), ANSWER, tokens + len(" Enough."))
    thought, *rest = said(site, **begun, thinking_token_budget=tokens)
    assert ((thought or "").strip(), *rest) == expected
    ids = site.chat("go", max_tokens=200, return_token_ids=True, logprobs=True, thinking_token_budget=tokens, **begun).json()["choices"][0]
    text = bytes(each for each in ids["token_ids"] if each < 256).decode()
    assert text == ("" if begun else "<think>") + f"{THOUGHT[:tokens]} Enough.</think>\n\n{ANSWER}"
    assert len(ids["logprobs"]["content"]) == len(ids["token_ids"])


@pytest.mark.parametrize("tokens", [len(THOUGHT), len(THOUGHT) + 1, 1000, -1])
def test_a_budget_that_is_not_spent_changes_nothing(site: Any, tokens: int) -> None:
    """With so many tokens as there are, the budget is spent in the position of the mark."""
    thought, answer, count = said(site, thinking_token_budget=tokens)
    assert (thought, answer, count) == ((THOUGHT, ANSWER, len(THOUGHT)) if tokens != len(THOUGHT) else (f"{THOUGHT} Enough.", ANSWER, 30))


@pytest.mark.parametrize("body", [
    {"thinking_budget": 4}, {"thinking_budget_tokens": 4}, {"reasoning_budget": 4}, {"reasoning_budget_tokens": 4},
    {"thinking": {"type": "enabled", "budget_tokens": 4}}, {"reasoning": {"max_tokens": 4}},
    {"thinking_budget": 9, "thinking_token_budget": 4}, {"thinking_budget": 4, "reasoning_budget": -1},
    {"thinking_token_budget": 4, "n": 3},
])  # fmt: skip
def test_other_names_of_a_budget(site: Any, body: Any) -> None:
    choices = site.chat("go", max_tokens=200, **body).json()["choices"]
    assert {each["message"]["reasoning_content"] for each in choices} == {"Four Enough."} and len(choices) == body.get("n", 1)


@pytest.mark.parametrize(("body", "thought"), [
    ({"enable_thinking": False}, None), ({"thinking": {"type": "disabled"}}, None), ({"think": False}, None), ({"think": "none"}, None),
    ({"reasoning": {"enabled": False}}, None), ({"reasoning": {"effort": "none"}}, None), ({"reasoning_effort": "none"}, None),
    ({"enable_thinking": True}, THOUGHT), ({"reasoning_effort": "high"}, THOUGHT), ({"think": "low"}, THOUGHT),
])  # fmt: skip
def test_ways_to_ask_for_reasoning(site: Any, body: Any, thought: str | None) -> None:
    assert said(site, **body)[:2] == (thought, ANSWER)


@pytest.mark.parametrize(("body", "param"), [
    ({"thinking_token_budget": -2}, "thinking_token_budget"), ({"thinking_budget": 2**31}, "thinking_budget"),
    ({"thinking": {"type": "enabled", "budget_tokens": -5}}, "thinking"), ({"reasoning": {"max_tokens": 2**40}}, "reasoning"),
    ({"thinking_token_budget": 1.5}, "thinking_token_budget"), ({"reasoning_effort": "deep"}, "reasoning_effort"),
    ({"think": "deep"}, "think"), ({"thinking": {"type": "sometimes"}}, "thinking"), ({"reasoning": {"effort": "deep"}}, "reasoning"),
    ({"thinking_token_budget": 4, "allowed_token_ids": [65]}, "allowed_token_ids"),
    ({"thinking_token_budget": 4, "use_beam_search": True, "n": 2}, "thinking_token_budget"),
])  # fmt: skip
def test_what_is_refused(site: Any, body: Any, param: str) -> None:
    answer = site.chat("go", **body)
    assert answer.status_code == 400 and answer.json()["error"]["param"] == param, answer.text


FORM = {"type": "json_schema", "json_schema": {"name": "n", "schema": {
    "type": "object", "properties": {"legs": {"type": "integer", "minimum": 0, "maximum": 99}}, "required": ["legs"],
    "additionalProperties": False,
}}}  # fmt: skip


@pytest.mark.parametrize(("question", "body", "thought"), [
    ("as JSON", {}, THOUGHT), ("as JSON", BEGUN, THOUGHT), ("as JSON", {"thinking_token_budget": 4}, "Four Enough."),
    ("as JSON", {**BEGUN, "thinking_token_budget": 0}, "Enough."), ("as JSON", {"enable_thinking": False}, None), ("plainly", {}, None),
])  # fmt: skip
def test_json_comes_behind_the_reasoning(site: Any, question: str, body: Any, thought: str | None) -> None:
    """And without, where the model does not reason; whatever the model says, the JSON follows its schema."""
    for asked in (FORM, {"type": "json_object"}):
        answer = site.chat(question, max_tokens=200, response_format=asked, **body)
        choice = answer.json()["choices"][0]
        assert (choice["message"]["reasoning_content"] or "").strip() == (thought or "") and choice["finish_reason"] == "stop"
        assert choice["message"]["content"] == JSON
    for seed in range(3):
        asked = {"thinking_token_budget": 20, **body}
        other = site.chat("anything", max_tokens=300, temperature=1, seed=seed, response_format=FORM, **asked)
        message = other.json()["choices"][0]["message"]
        assert 0 <= json.loads(message["content"])["legs"] <= 99


@pytest.mark.parametrize("form", [
    {"structured_outputs": {"choice": [JSON, "none"]}}, {"guided_regex": r"\{\"legs\": [0-9]{1,2}\}"},
    {"guided_json": FORM["json_schema"]["schema"]},
    {"structured_outputs": {"grammar": 'start: "{" WORD ": " /[0-9]{1,2}/ "}"\nWORD: "\\"legs\\""'}},
    {"grammar": 'root ::= "{\\"legs\\": " [0-9]+ "}"'}, {"structured_outputs": {"json_object": True}},
])  # fmt: skip
def test_every_form_comes_behind_reasoning_that_the_prompt_has_begun(site: Any, form: Any) -> None:
    choice = site.chat("as JSON", max_tokens=200, **form, **BEGUN).json()["choices"][0]
    assert choice["message"]["reasoning_content"] == THOUGHT and choice["message"]["content"] == JSON and choice["finish_reason"] == "stop"
    free = site.chat("as JSON", max_tokens=200, **form, enable_thinking=False).json()["choices"][0]
    assert free["message"]["reasoning_content"] is None and free["message"]["content"] == JSON
    wrong = site.chat("anything", max_tokens=100, thinking_token_budget=9, **form, **BEGUN).json()["choices"][0]["message"]
    assert wrong["content"].startswith(("{", "none")) or not wrong["content"]


def test_a_form_that_cannot_be_followed_is_refused_behind_reasoning_too(site: Any) -> None:
    for form in ({"guided_regex": "("}, {"structured_outputs": {"grammar": "start: nothing"}}, {"guided_json": {"not": {}}}):
        assert site.chat("as JSON", **form, **BEGUN).status_code == 400


def test_a_budget_in_a_completion(site: Any) -> None:
    """Of a prompt that has begun the reasoning, and of one that has not; each of several by itself."""
    choices = site.complete(prompt=["go</><assistant>", "<think>"], max_tokens=200, thinking_token_budget=4).json()["choices"]
    expected = f"Four Enough.</think>\n\n{ANSWER}"
    assert [each["text"] for each in choices] == [f"<think>{expected}", expected]
    assert site.complete(prompt="<think>", max_tokens=200).json()["choices"][0]["text"] == f"{THOUGHT}</think>\n\n{ANSWER}"


def test_a_model_that_cannot_be_told_has_its_reasoning_ended(site: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ridgeline.server.reasoning.SWITCHES", ())
    for body in ({"enable_thinking": False}, {"reasoning_effort": "none"}, {"think": False, "thinking_token_budget": 9}):
        assert said(site, **body, **BEGUN)[:2] == (" Enough.", ANSWER)


def test_the_reasoning_of_earlier_turns_reaches_the_template(site: Any) -> None:
    turns = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b", "reasoning": "why"}, {"role": "user", "content": "c"}]
    prompt = site.request("POST", "/tokenize", json={"messages": turns}).json()["tokens"]
    assert b"<think>why</think>b" in bytes(prompt)


def test_a_model_that_does_not_reason_needs_no_budget(chat_site: Any) -> None:
    answer = chat_site.chat(max_tokens=2, thinking_token_budget=1)
    assert answer.status_code == 200 and answer.headers["x-ridgeline-ignored-fields"] == "thinking_token_budget"
    assert chat_site.chat(max_tokens=2, thinking_token_budget=-1).headers.get("x-ridgeline-ignored-fields") is None
