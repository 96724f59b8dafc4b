"""Dialogues with tools: a question, calls as the real template of each family writes them, results, an answer; streamed as whole."""

import json
import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from chat_cases import Corpus, NamedTokenizer, corpus
from tool_cases import NO_LITERALS, NO_NULLS, ONE_CALL, REORDERS

from ridgeline.config.groups import EngineConfig, ServerConfig
from ridgeline.text.chat_content import Conversation, unmasked

TEMPLATES = (
    "Qwen-Qwen3-0.6B", "meta-llama-Llama-3.1-8B-Instruct", "Qwen3-Coder", "openai-gpt-oss-120b", "unsloth-mistral-Devstral-Small-2507",
    "deepseek-ai-DeepSeek-V3.1", "inclusionai-ling-3.0-flash", "moonshotai-Kimi-K2", "google-gemma-4-31B-it", "deepseek-ai-DeepSeek-V4",
    "meetkai-functionary-medium-v3.1", "upstage-Solar-Open-100B", "Apertus-8B-Instruct", "unsloth-Apriel-1.5", "LFM2.5-8B-A1B",
    "MiniMax-M3", "meetkai-functionary-medium-v3.2", "cohere", "olmo", "pythonic-quoted",
)  # fmt: skip
"""Of as many families."""
BEFORE_ANSWER = {
    "openai-gpt-oss-120b": "<|channel|>final<|message|>", "inclusionai-ling-3.0-flash": "</think>", "MiniMax-M3": "</mm:think>",
    "meetkai-functionary-medium-v3.2": "all\n", "cohere": "<|START_RESPONSE|>",
}  # fmt: skip
BY_DAY = (*TEMPLATES[:3], "MiniMax-M3", "pythonic-quoted")
DIALOGUES = 20
PROPERTIES = {
    "place": {"type": "string"}, "days": {"type": ["integer", "null"]}, "ratio": {"type": "number"}, "where": {"type": "object"},
    "list": {"type": "array", "items": {"type": "string"}}, "sure": {"type": "boolean"},
}  # fmt: skip
TOOLS = [
    {"type": "function", "function": {"name": name, "description": "Does.", "parameters": {"type": "object", "properties": PROPERTIES}}}
    for name in ("get_weather", "set_clock")
]
LETTERS = "aB7 ,.:;\"\\\\\n\t'{}[]()é你🙂&%$#@!?-_/=+*^~|`"


def text(chance: random.Random, plain: bool) -> str:
    return "x" + "".join(chance.choices("abc de" if plain else LETTERS, k=chance.randrange(12))) + "y"


def arguments(chance: random.Random, plain: bool) -> dict[str, Any]:
    """Some arguments, in the order of the schema."""
    values = {
        "place": text(chance, plain), "days": chance.choice([None, 0, -3, 12345678901]), "ratio": chance.choice([0.5, -12.25, 7, 1e20]),
        "where": {"at": [1, 2.5, True, None], chance.choice("abc"): {"deep": text(chance, plain)}}, "list": [text(chance, plain)] * 2,
        "sure": chance.random() < 0.5,
    }  # fmt: skip
    return {name: value for name, value in values.items() if chance.random() < 0.6}


def without_nulls(value: Any) -> Any:
    """The value without members and items that are null."""
    if isinstance(value, dict):
        return {key: without_nulls(each) for key, each in value.items() if each is not None}
    return [without_nulls(each) for each in value if each is not None] if isinstance(value, list) else value


def told(name: str, chance: random.Random) -> dict[str, Any]:
    """Arguments as far as a template can tell them."""
    if name in NO_LITERALS:
        return {"place": text(chance, True)}
    found = arguments(chance, name == "LFM2.5-8B-A1B")  # its template does not escape texts
    return without_nulls(found) if name in NO_NULLS else found


def answer(template: Any, question: str, calls: Sequence[dict[str, Any]]) -> str | None:
    """What the template writes for an answer with these calls, without what ends the turn; None where it leaves them out."""
    asked = [{"role": "user", "content": question}]
    prompt = unmasked(template.render(Conversation(asked, TOOLS)))
    said = {"role": "assistant", "content": "Let me see.", "tool_calls": calls}
    whole = unmasked(template.render(Conversation([*asked, said], TOOLS, add_generation_prompt=False)))
    found = whole[len(prompt) :] if whole.startswith(prompt) else whole.rpartition(question)[2]
    if not whole.startswith(prompt):  # the header of the answer is the prompt's
        header = prompt.rpartition(question)[2]
        while not (found.startswith(header) and header.endswith((">", "\n"))):
            header = header[:-1]
        found = found[len(header) :]
    family = template.family
    marks = [mark for mark in (*family.written.marks, "}", ")", ")]") if mark in found and mark not in ("<|call|>", "<|return|>")]
    return found[: max(found.rfind(mark) + len(mark) for mark in marks)]


def joined(events: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The message that a stream says."""
    said: dict[str, Any] = {"content": "", "reasoning": "", "calls": []}
    for delta in (choice["delta"] for event in events for choice in event["choices"]):
        said["content"] += delta.get("content") or ""
        said["reasoning"] += delta.get("reasoning") or ""
        for piece in delta.get("tool_calls") or ():
            if piece.get("id"):
                assert piece["index"] == len(said["calls"]) and piece["type"] == "function"
                said["calls"].append([piece["function"]["name"], ""])
            assert piece["index"] == len(said["calls"]) - 1
            said["calls"][-1][1] += piece["function"].get("arguments") or ""
    return said


@pytest.mark.parametrize(("names", "dialogues"), [
    pytest.param(BY_DAY, 1, id="day"),
    *(pytest.param((name,), DIALOGUES, id=name, marks=pytest.mark.night) for name in TEMPLATES),
])  # fmt: skip
def test_dialogues_with_tools(new_site: Any, names: Sequence[str], dialogues: int) -> None:
    chance = random.Random(dialogues)
    with corpus({TEMPLATES[0], *names}) as real:  # DeepSeek's template shows no tools, so that another of the process must read them
        scripts = {name: [dialogue(real, name, f"Question {name} {at}?", chance) for at in range(dialogues)] for name in names}
        entries = [(question, said) for each in scripts.values() for question, _, said in each]
        entries += [
            (f"Result of {question}", f"{BEFORE_ANSWER.get(name, '')}Answered: {question}")
            for name, each in scripts.items() for question, _, _ in each
        ]  # fmt: skip
        site = new_site(EngineConfig(f"fake:{json.dumps({'script': entries, 'vocab': 258, 'max_model_len': 32768})}"), ServerConfig())
        for name, each in scripts.items():
            tokenizer = site.service.model.tokenizer
            site.service.deployment._model = replace(site.service.model, chat=real.load(name, tokenizer))
            for question, calls, said in each:
                check(site, name, question, calls, said)


def dialogue(real: Corpus, name: str, question: str, chance: random.Random) -> tuple[str, list[dict[str, Any]], str]:
    """Question, calls, and the answer that has them."""
    template = real.load(name, NamedTokenizer([]))
    calls = [
        {"id": f"abcdef12{at}", "type": "function", "function": {
            "name": chance.choice(["get_weather", "set_clock"]), "arguments": json.dumps(told(name, chance), ensure_ascii=False)
        }} for at in range(1 if name in ONE_CALL else chance.randrange(1, 4))
    ]  # fmt: skip
    made = answer(template, question, calls)
    assert made is not None
    return question, calls, made


def check(site: Any, name: str, question: str, calls: list[dict[str, Any]], said: str) -> None:
    """A dialogue: both forms of the answer have the calls, byte by byte, and the answer to their results has none."""
    expected = [[call["function"]["name"], call["function"]["arguments"]] for call in calls]
    body = {"messages": [{"role": "user", "content": question}], "tools": TOOLS, "max_tokens": 4000}
    whole = site.request("POST", "/v1/chat/completions", json=body).json()
    (choice,) = whole["choices"]
    message = choice["message"]
    found = [[call["function"]["name"], call["function"]["arguments"]] for call in message["tool_calls"] or ()]
    if name in REORDERS:
        assert [[each, json.loads(given)] for each, given in found] == [[each, json.loads(given)] for each, given in expected], said
    else:
        assert found == expected, said
    assert choice["finish_reason"] == "tool_calls", said
    streamed = joined(site.events("/v1/chat/completions", **body))
    assert streamed == {"content": message["content"] or "", "reasoning": message["reasoning"] or "", "calls": found}, said
    results = [
        {"role": "tool", "tool_call_id": call["id"], "name": call["function"]["name"], "content": f"Result of {question}"} for call in calls
    ]
    body["messages"] += [{"role": "assistant", "content": "", "tool_calls": message["tool_calls"]}, *results]
    end = site.request("POST", "/v1/chat/completions", json=body).json()["choices"][0]
    assert end["message"]["content"] == f"Answered: {question}" and end["finish_reason"] == "stop"


def test_a_call_that_begins_is_held_to_its_schema(new_site: Any) -> None:
    """The script writes a call of no tool, and one with arguments that the schema does not have: the grammar of `auto` mends both."""
    city = {"type": "object", "properties": {"city": {"enum": ["Bern", "Zürich"]}}, "required": ["city"], "additionalProperties": False}
    tools = [{"type": "function", "function": {"name": "clock", "parameters": city, "strict": True}}]
    script = [
        ["one?", 'I <b>see</b>. <tool_call>\n{"name": "weather", "arguments": {"city": "Basel"}}\n</tool_call>'],
        ["two?", '<tool_call>\n{"name": "clock", "arguments": {"town": 3}}\n</tool_call>\n' * 2], ["free?", "No <tool_cal> {}, <tool_"],
    ]  # fmt: skip
    site = new_site(EngineConfig(f"fake:{json.dumps({'script': script, 'vocab': 258, 'max_model_len': 8192})}"), ServerConfig())
    with corpus(["Qwen-Qwen2.5-7B-Instruct"]) as real:
        template = real.load("Qwen-Qwen2.5-7B-Instruct", site.service.model.tokenizer)
        site.service.deployment._model = replace(site.service.model, chat=template)
        for question, parallel in (("one?", True), ("two?", True), ("two?", False), ("free?", True)):
            body = {"messages": [{"role": "user", "content": question}], "tools": tools, "parallel_tool_calls": parallel, "max_tokens": 900}
            message = site.request("POST", "/v1/chat/completions", json=body).json()["choices"][0]["message"]
            calls = message["tool_calls"] or []
            assert bool(calls) == (question != "free?") and (parallel or len(calls) == 1)
            for call in calls:
                assert call["function"]["name"] == "clock" and json.loads(call["function"]["arguments"])["city"] in ("Bern", "Zürich")
            assert question != "one?" or message["content"].startswith("I <b>see</b>.")
            assert question != "free?" or message["content"] == "No <tool_cal> {}, <tool_"
