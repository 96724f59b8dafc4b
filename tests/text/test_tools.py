"""Parsers of calls against the real templates: what a template makes of calls is read back as the same calls, however it is split."""

import gc
import json
import random
import time
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from chat_cases import NAMES, Corpus, NamedTokenizer, corpus

from gold import TEMPLATES
from ridgeline.text.chat_content import Conversation
from ridgeline.text.tools.families import FAMILIES, REASONING
from ridgeline.text.tools.forms import Head, Objects
from ridgeline.text.tools.parser import AnswerParser, CallArguments, CallBegin, CallEnd, Event, Text, Thought

EXPECTED = {
    "Apertus-8B-Instruct": "apertus", "Apriel-1.6-15b-Thinker-fixed": "apriel", "Bielik-11B-v3.0-Instruct": "hermes",
    "GLM-4.7-Flash": "glm", "GigaChat3.1-10B-A1.8B": "gigachat", "LFM2.5-8B-A1B": "lfm2", "MiMo-VL": "hermes", "MiniMax-M2": "minimax",
    "Mistral-Small-3.2-24B-Instruct-2506": "mistral", "NVIDIA-Nemotron-Nano-v2": "nemotron",
    "NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use": "hermes", "NousResearch-Hermes-3-Llama-3.1-8B-tool_use": "hermes",
    "Qwen-Qwen2.5-7B-Instruct": "hermes", "Qwen-Qwen3-0.6B": "hermes", "Qwen3-Coder": "qwen3-coder", "Reka-Edge": "hermes",
    "Spark2.5": "glm", "StepFun3.5-Flash": "qwen3-coder", "deepseek-ai-DeepSeek-R1-Distill-Qwen-32B": "deepseek",
    "deepseek-ai-DeepSeek-V3.1": "deepseek", "deepseek-ai-DeepSeek-V3.2": "deepseek-dsml",
    "deepseek-ai-DeepSeek-V4": "deepseek-dsml-tools", "google-gemma-4-31B-it": "gemma", "ibm-granite-granite-4.0": "hermes",
    "inclusionai-ling-3.0-flash": "glm", "meetkai-functionary-medium-v3.1": "functionary", "meta-llama-Llama-3.1-8B-Instruct": "llama",
    "meta-llama-Llama-3.3-70B-Instruct": "llama", "mistralai-Ministral-3-14B-Reasoning-2512": "mistral", "moonshotai-Kimi-K2": "kimi",
    "poolside-Laguna-S-2.1": "glm", "poolside-Laguna-XS-2.1": "glm", "poolside-Laguna-XS.2": "glm", "unsloth-Apriel-1.5": "apriel",
    "unsloth-mistral-Devstral-Small-2507": "mistral", "upstage-Solar-Open-100B": "solar",
    "ibm-granite-granite-3.3-2B-Instruct": "granite-3", "Kimi-K2-Instruct": "kimi", "Kimi-K2-Thinking": "kimi",
    "LFM2.5-Instruct": "lfm2", "llama-cpp-deepseek-r1": "deepseek",
}  # fmt: skip
"""Template → family. The last five refuse or leave out calls of an assistant, so that only their marks tell."""
TELLS_NOTHING = frozenset({
    "ibm-granite-granite-3.3-2B-Instruct", "Kimi-K2-Instruct", "Kimi-K2-Thinking", "LFM2.5-Instruct", "llama-cpp-deepseek-r1"
})  # fmt: skip
ONLY_TOKENS = {"LFM2.5-Instruct": ("<|tool_call_start|>",)}
"""Marks that the vocabulary alone names."""
ONE_CALL = frozenset({"GigaChat3.1-10B-A1.8B", "meta-llama-Llama-3.1-8B-Instruct", "meta-llama-Llama-3.3-70B-Instruct"})
REORDERS = frozenset({"google-gemma-4-31B-it", "Reka-Edge"})
"""Their templates write the arguments as other JSON."""
PROPERTIES = {
    "place": {"type": "string"}, "days": {"type": "integer"}, "where": {"type": "object"}, "sure": {"type": "boolean"}
}  # fmt: skip
TOOLS = [{"type": "function", "function": {
    "name": "get_weather", "description": "Weather.", "parameters": {"type": "object", "properties": PROPERTIES}
}}]  # fmt: skip
USER = {"role": "user", "content": "Weather?"}
CALLS: list[dict[str, Any]] = [
    {"place": 'Zürich & "Bern" \\ {[<b>', "days": 2},
    {"place": "你好, 2", "days": None, "where": {"at": [1, 2.5, True], "near": "x y"}, "sure": False},
]
SPLITS = 200


@pytest.fixture(scope="module")
def real() -> Iterator[Corpus]:
    with corpus() as found:
        yield found


def whole(events: Sequence[Event]) -> tuple[str, str, list[tuple[str, str]]]:
    """Content, reasoning, and the calls that are complete."""
    content, thought, calls, names, arguments = "", "", [], list[str](), ""
    for event in events:
        match event:
            case Text():
                content += event.text
            case Thought():
                thought += event.text
            case CallBegin():
                names.append(event.name)
                arguments = ""
            case CallArguments():
                arguments += event.text
            case CallEnd():
                calls.append((names[-1], arguments))
    assert len(names) == len(calls)
    return content, thought, calls


def parsed(parser: AnswerParser, text: str, cuts: Sequence[int] = ()) -> tuple[str, str, list[tuple[str, str]]]:
    ends = [*sorted(cuts), len(text)]
    events = [event for start, end in zip([0, *ends], ends, strict=False) for event in parser.push(text[start:end])]
    return whole([*events, *parser.finish()])


def rendered(template: Any, calls: Sequence[dict[str, Any]], content: str) -> str:
    """What the template makes of an answer with these calls."""
    made = [
        {"id": f"abcdef12{at}", "type": "function", "function": {"name": "get_weather", "arguments": json.dumps(each, ensure_ascii=False)}}
        for at, each in enumerate(calls)
    ]
    prompt = template.render(Conversation([USER], TOOLS))
    answer = {"role": "assistant", "content": content, "tool_calls": made}
    text = template.render(Conversation([USER, answer], TOOLS, add_generation_prompt=False))
    return text[len(prompt) :] if text.startswith(prompt) else text.rpartition("Weather?")[2]


def test_families_are_found_by_their_templates(real: Corpus) -> None:
    for name in sorted(path.stem for path in TEMPLATES.glob("*.jinja")):
        template = real.load(name, NamedTokenizer([*NAMES.findall(real.texts[name]), *ONLY_TOKENS.get(name, ())]))
        found = template.family and template.family.name
        assert found == EXPECTED.get(name), name


@pytest.mark.parametrize("splits", [SPLITS, pytest.param(5 * SPLITS, marks=pytest.mark.night)])
def test_calls_that_templates_write_are_read_back(real: Corpus, splits: int) -> None:
    random.seed(splits)
    for name in EXPECTED.keys() - TELLS_NOTHING:
        template = real.load(name, NamedTokenizer(NAMES.findall(real.texts[name])))
        family = template.family
        calls = CALLS[:1] if name in ONE_CALL else CALLS
        if family.name == "lfm2":  # its template writes texts without escaping what is in them
            calls = [{"place": "Bern", "days": 2}, {"place": "Chur", "days": None, "sure": False}]
        text = rendered(template, calls, "Let me see.")
        expected = parsed(AnswerParser(family, None, {"get_weather": PROPERTIES}), text)
        assert [each for each, _ in expected[2]] == ["get_weather"] * len(calls), name
        assert [json.loads(arguments) for _, arguments in expected[2]] == calls, name
        if name not in REORDERS:
            assert [arguments for _, arguments in expected[2]] == [json.dumps(each, ensure_ascii=False) for each in calls], name
        if isinstance(family.form, (Objects, Head)):
            assert all(arguments in text for _, arguments in expected[2]), name
        assert "get_weather" not in expected[0] and ("Let me see." in expected[0] or "Let me see." not in text), name
        for _ in range(splits):
            cuts = random.sample(range(len(text)), min(len(text), random.choice((1, 3, 20, 400))))
            assert parsed(AnswerParser(family, None, {"get_weather": PROPERTIES}), text, cuts) == expected, (name, sorted(cuts))


def test_what_is_no_call_stays_text() -> None:
    by_name = {family.name: family for family in FAMILIES}
    for name, text in (
        ("hermes", "<tool_call> is a mark"), ("hermes", '<tool_call>{"nam'), ("hermes", '<tool_call>{"x": {"y": 1}} <tool_'),
        ("hermes", "a < b"),
        ("mistral", "[TOOL_CALLS] no"), ("llama", '{"answer": {"a": 1}}'), ("llama", "{}"), ("glm", "<tool_call>" * 3),
        ("lfm2", "<|tool_call_start|>[f("),
        ("gemma", "<|tool_call>call:f{"), ("qwen3-coder", "<tool_call>\n<function>"), ("hermes", " two  lines \n\n"),
    ):  # fmt: skip
        for cuts in ((), range(len(text))):
            assert parsed(AnswerParser(by_name[name], None), text, cuts) == (text, "", []), (name, text)


def test_keys_in_any_order_and_arguments_as_text() -> None:
    hermes = next(family for family in FAMILIES if family.name == "hermes")
    for text, arguments in (
        ('{"arguments": {"a": 1}, "name": "f"}', '{"a": 1}'), ('{"name":"f"}', "{}"),
        ('{"name": "f", "arguments": "{\\"a\\": 1}"}', '{"a": 1}'),
        ('{"id": "7", "type": "function", "name": "f", "parameters": {"a":"}"}}', '{"a":"}"}'),
    ):  # fmt: skip
        for cuts in ((), range(len(text))):
            assert parsed(AnswerParser(hermes, None), f"<tool_call>{text}</tool_call>\n", cuts) == ("", "", [("f", arguments)])


def test_reasoning_is_split_off() -> None:
    hermes, think = FAMILIES[0], REASONING[0]
    call = '<tool_call>{"name": "f", "arguments": {}}</tool_call>'
    for begin, thinks in (("<think>\n", False), ("\n <think>", False), ("", True)):
        text = f"{begin}Hm, <b>.\n</think>\n\nSo: it is.\n{call}"
        for cuts in ((), range(len(text))):
            content, thought, calls = parsed(AnswerParser(hermes, think, thinks=thinks), text, cuts)
            assert (content, thought.strip(), calls) == ("So: it is.", "Hm, <b>.", [("f", "{}")])
    assert parsed(AnswerParser(None, think), "No <think> here </think>", range(9)) == ("No <think> here </think>", "", [])
    assert parsed(AnswerParser(None, think), "<think>never done", range(9)) == ("", "never done", [])


BY_DAY = ("hermes", "mistral", "qwen3-coder")
"""Families of one form each; those of a form behave alike."""


@pytest.mark.parametrize(
    "family", [pytest.param(each, id=each.name, marks=() if each.name in BY_DAY else pytest.mark.night) for each in FAMILIES]
)
def test_near_marks_take_linear_time(family: Any) -> None:
    """The time for eight times the text is not many times eight times as long."""

    def seconds(piece: str, size: int, step: int) -> float:
        text, parser = (piece * (size // len(piece) + 1))[:size], AnswerParser(family, REASONING[0])
        gc.collect()
        gc.disable()
        began = time.process_time()
        for at in range(0, size, step):
            parser.push(text[at : at + step])
        parser.finish()
        taken = time.process_time() - began
        gc.enable()
        return taken

    mark = family.begin or '{"name'
    for piece in (mark, mark[:-1] + "x", mark + '{"name": "', mark + "[[{", mark + "\\"):
        for step in (16, 1 << 20):
            assert seconds(piece, 1 << 17, step) < 40 * max(seconds(piece, 1 << 14, step), 0.002), piece
