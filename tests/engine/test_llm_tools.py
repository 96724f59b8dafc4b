"""`LLM.chat` with tools: calls and reasoning are read from answers, and calls are held to their schemas, as a server does."""

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from gold import TEMPLATES
from ridgeline.core.params import SamplingParams, StructuredOutputs
from ridgeline.engine.answer import ChoiceDelta
from ridgeline.engine.llm import LLM
from ridgeline.errors import RequestError
from ridgeline.text.chat_content import Conversation
from ridgeline.text.stream import TextDelta
from ridgeline.text.tools.calling import read_offer, read_tools

CITY = {"type": "object", "properties": {"city": {"enum": ["Bern", "Zürich"]}}, "required": ["city"], "additionalProperties": False}
TOOLS = [{"type": "function", "function": {"name": name, "parameters": CITY, "strict": True}} for name in ("weather", "clock")]
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Bern"}}\n</tool_call>'
WRONG = '<tool_call>\n{"name": "whether", "arguments": {"town": 3}}\n</tool_call>'
SCRIPT = [
    ["both?", f"<think>\nHm.\n</think>\n\nLet me see.\n{CALL}\n{CALL}"], ["wrong?", WRONG], ["free?", "It is so."],
    ["json?", '<think>\nHm.\n</think>\n\n{"city": "Bern"}'],
]  # fmt: skip
PARAMS = SamplingParams(max_tokens=900)


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM(f"fake:{json.dumps({'script': SCRIPT, 'vocab': 258})}", chat_template=TEMPLATES / "Qwen-Qwen3-0.6B.jinja") as made:
        yield made


def answer(llm: LLM, question: str, params: SamplingParams = PARAMS, **more: Any) -> Any:
    (output,) = llm.chat([{"role": "user", "content": question}], params, **more)
    (choice,) = output.outputs
    return choice


def test_calls_and_reasoning_are_read(llm: LLM) -> None:
    found = answer(llm, "both?", tools=TOOLS)
    assert found.text == SCRIPT[0][1] and (found.content, found.reasoning) == ("Let me see.", "\nHm.")
    assert [(call.name, call.arguments) for call in found.tool_calls] == [("weather", '{"city": "Bern"}')] * 2
    assert len({call.id for call in found.tool_calls}) == 2
    one = answer(llm, "both?", tools=TOOLS, parallel_tool_calls=False)
    assert len(one.tool_calls) == 1
    for more in ({}, {"tools": TOOLS, "tool_choice": "none"}):
        text = answer(llm, "both?", **more)
        assert not text.tool_calls and text.reasoning == "\nHm." and CALL in text.content


def test_calls_are_held_to_their_schemas(llm: LLM) -> None:
    named = {"type": "function", "function": {"name": "clock"}}
    for question, more in (("wrong?", {}), ("free?", {"tool_choice": "required"}), ("free?", {"tool_choice": named})):
        calls = answer(llm, question, tools=TOOLS, chat_template_kwargs={"enable_thinking": False}, **more).tool_calls
        assert calls and all(json.loads(call.arguments)["city"] in ("Bern", "Zürich") for call in calls)
        assert {call.name for call in calls} <= ({"clock"} if isinstance(more.get("tool_choice"), dict) else {"weather", "clock"})
    assert answer(llm, "free?", tools=TOOLS).content == "It is so."


def test_a_form_comes_behind_reasoning(llm: LLM) -> None:
    found = answer(llm, "json?", SamplingParams(max_tokens=400, structured_outputs=StructuredOutputs(json=CITY)))
    assert (found.content, found.reasoning) == ('{"city": "Bern"}', "\nHm.")


@pytest.mark.parametrize("more", [
    {"tool_choice": "required"}, {"tools": TOOLS, "tool_choice": "always"}, {"tools": [{"type": "function"}]}, {"tools": TOOLS * 2},
    {"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "other"}}},
])  # fmt: skip
def test_choices_that_cannot_be(llm: LLM, more: dict[str, Any]) -> None:
    with pytest.raises(RequestError, match="tool"):
        answer(llm, "free?", **more)


def test_marks_that_are_control_tokens_reach_the_reader_and_not_the_text(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    template = llm.chat_template
    assert template is not None and template.family is not None
    monkeypatch.setattr(template, "family", replace(template.family, begin="<bos>"))
    offer = read_offer(read_tools(TOOLS), "auto", True)
    request = llm.prepare(Conversation([{"role": "user", "content": "free?"}], TOOLS), PARAMS, offer=offer)
    assert not request._params.skip_special_tokens
    said = ("Hm.", "<bos>", '{"name": "clock", "arguments": {}}', "<eos>")
    request.choices[0].add(ChoiceDelta(0, TextDelta(0, (65, 256, 66, 257), said)))
    (found,) = request.output().outputs
    assert found.text == said[0] + said[2] and found.content == "Hm."
    assert [(call.name, call.arguments) for call in found.tool_calls] == [("clock", "{}")]
