"""Parsers of calls against the real templates: what a template makes of calls is read back as the same calls, however it is split."""

import gc
import json
import random
import time
from dataclasses import replace
from typing import Any

import pytest
from chat_cases import NAMES, Corpus, NamedTokenizer
from tool_cases import CALLS, EXPECTED, ONLY_TOKENS, OWN, PROPERTIES, REORDERS, TELLS_NOTHING, calls_of, parsed, rendered

from gold import TEMPLATES
from ridgeline.text.tools.families import FAMILIES, REASONING
from ridgeline.text.tools.forms import Head, Objects, Recipients
from ridgeline.text.tools.parser import AnswerParser
from ridgeline.text.tools.values import from_text

SPLITS = 200


def test_families_are_found_by_their_templates(real: Corpus) -> None:
    for name in sorted([*OWN, *(path.stem for path in TEMPLATES.glob("*.jinja"))]):
        template = real.load(name, NamedTokenizer([*NAMES.findall(real.texts[name]), *ONLY_TOKENS.get(name, ())]))
        found = template.family and template.family.name
        assert found == EXPECTED.get(name), name


@pytest.mark.parametrize("splits", [SPLITS, pytest.param(5 * SPLITS, marks=pytest.mark.night)])
def test_calls_that_templates_write_are_read_back(real: Corpus, splits: int) -> None:
    random.seed(splits)
    for name in EXPECTED.keys() - TELLS_NOTHING:
        template = real.load(name, NamedTokenizer(NAMES.findall(real.texts[name])))
        family = template.family
        calls = calls_of(name)
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
        assert "get_weather" not in expected[0] and ("Let me see." in "".join(expected[:2]) or "Let me see." not in text), name
        for _ in range(splits):
            cuts = random.sample(range(len(text)), min(len(text), random.choice((1, 3, 20, 400))))
            assert parsed(AnswerParser(family, None, {"get_weather": PROPERTIES}), text, cuts) == expected, (name, sorted(cuts))


@pytest.mark.parametrize("splits", [50, pytest.param(1000, marks=pytest.mark.night)])
def test_calls_that_python_writes_are_read_back(splits: int) -> None:
    """Values as `repr` writes them, which is what models write that were shown a list of calls."""
    random.seed(splits)
    family = next(each for each in FAMILIES if each.name == "pythonic")
    calls = [*CALLS, {"a": 'it\'s "so" \\ \x00\x7f\u2028\U0010ffff 🙂)]', "b": {"c": ["]", {"d": ")"}]}}, {}]
    listed = ", ".join(f"get_weather({', '.join(f'{key}={value!r}' for key, value in each.items())})" for each in calls)
    expected = [("get_weather", json.dumps(each, ensure_ascii=False)) for each in calls]
    for before, behind in (("", ""), (" \n", "\n"), ("<|python_start|>", "<|python_end|>"), ("<|python_tag|>", "")):
        text = f"{before}[{listed}]{behind}"
        for _ in range(splits):
            cuts = random.sample(range(len(text)), min(len(text), random.choice((0, 1, 3, 20, 400))))
            assert parsed(AnswerParser(family, None), text, cuts) == ("", "", expected), sorted(cuts)


def test_nested_elements_have_the_types_of_their_schema() -> None:
    family, ns = next(each for each in FAMILIES if each.name == "minimax-m3"), "]<]minimax[>["
    tree = {"type": "object", "properties": {"id": {"type": "string"}, "more": {"type": "array", "items": {"type": "string"}}}}
    schemas = {"tree": tree, "n": {"anyOf": [{"type": "null"}, {"type": "number"}]}, "trees": {"type": "array", "items": tree}}

    def element(name: str, value: str) -> str:
        return f"{ns}<{name}>{value}{ns}</{name}>"

    inner = element("id", "7") + element("more", element("item", "true") + element("item", " </more> "))
    for written, meant in (
        (element("tree", inner), {"tree": {"id": "7", "more": ["true", " </more> "]}}), (element("tree", ""), {"tree": {}}),
        (element("trees", element("item", inner) + element("item", "")), {"trees": [{"id": "7", "more": ["true", " </more> "]}, {}]}),
        (element("n", "1e3") + element("other", "x"), {"n": 1000.0, "other": "x"}), ("", {}), (element("n", "null"), {"n": None}),
        (element("free", element("item", "1") + element("item", element("a", "b"))), {"free": [1, {"a": "b"}]}),
    ):  # fmt: skip
        text = f'Hm.{ns}<tool_call>\n{ns}<invoke name="f">{written}{ns}</invoke>\n{ns}</tool_call>'
        for cuts in ((), range(len(text)), random.sample(range(len(text)), 20)):
            content, _, calls = parsed(AnswerParser(family, None, {"f": schemas}), text, cuts)
            assert content == "Hm." and [(name, json.loads(given)) for name, given in calls] == [("f", meant)]


def test_messages_to_recipients() -> None:
    family = next(each for each in FAMILIES if each.name == "functionary-3.2")
    call, other = 'get_weather\n{"place": ">>>all\\n"}', "python\nprint(1)"
    one = [("get_weather", '{"place": ">>>all\\n"}')]
    for text, expected in (
        (call, ("", "", one)), (f"all\nLet me see.>>>{call}>>>{call}", ("Let me see.", "", one * 2)), (f">>>{call}", ("", "", one)),
        ("all\n>>> print(1)\n1\n", (">>> print(1)\n1\n", "", [])), (other, (other, "", [])), ("all", ("all", "", [])),
        (f"{call}>>>all\nSo.", ("So.", "", one)), ("It is so.", ("It is so.", "", [])), ("It\nis", ("It\nis", "", [])),
    ):  # fmt: skip
        for cuts in ((), range(len(text))):
            assert parsed(AnswerParser(family, None), text, cuts) == expected, (text, cuts)
    without = replace(family, form=Recipients(calls=False))
    assert parsed(AnswerParser(without, None), f"all\nSo.>>>{call}") == (f"So.>>>{call}", "", [])


def test_what_is_no_call_stays_text() -> None:
    by_name = {family.name: family for family in FAMILIES}
    for name, text in (
        ("hermes", "<tool_call> is a mark"), ("hermes", '<tool_call>{"nam'), ("hermes", '<tool_call>{"x": {"y": 1}} <tool_'),
        ("hermes", "a < b"),
        ("mistral", "[TOOL_CALLS] no"), ("llama", '{"answer": {"a": 1}}'), ("llama", "{}"), ("glm", "<tool_call>" * 3),
        ("lfm2", "<|tool_call_start|>[f("), ("pythonic", "[1] as (2)"), ("pythonic", "[f(a"), ("pythonic", "[f(x)](y)"),
        ("pythonic", "[f('\\"),
        ("minimax-m3", "]<]minimax[>[<tool_call>]<]minimax[>[<"), ("cohere", '<|START_ACTION|>[{"name": "f"}]'), ("llama", "["),
        ("gemma", "<|tool_call>call:f{"), ("qwen3-coder", "<tool_call>\n<function>"), ("hermes", " two  lines \n\n"),
    ):  # fmt: skip
        for cuts in ((), range(len(text))):
            assert parsed(AnswerParser(by_name[name], None), text, cuts) == (text, "", []), (name, text)


def test_behind_a_call_what_is_none_stays_text() -> None:
    family = next(each for each in FAMILIES if each.name == "pythonic")
    for rest in (", g(b=x+1)] So.", ", g(b='"):
        text = f"[f(a=1){rest}"
        for cuts in ((), range(len(text))):
            assert parsed(AnswerParser(family, None), text, cuts) == (rest, "", [("f", '{"a": 1}')]), text


def test_an_open_quote_takes_linear_time() -> None:
    lfm2 = next(each for each in FAMILIES if each.name == "lfm2")
    for end in ("", "\\"):
        text = "<|tool_call_start|>[f(a='" + "\\'" * (1 << 14) + end + "<|tool_call_end|>"
        began = time.process_time()
        assert parsed(AnswerParser(lfm2, None), text) == (text, "", [])
        assert time.process_time() - began < 0.5


def test_half_a_letter_of_a_literal_can_be_sent() -> None:
    assert from_text("['\\ud83d', '\\ud83d\\ude42']", frozenset({"array"})) == '["\ufffd", "🙂"]'


def test_keys_in_any_order_and_arguments_as_text() -> None:
    hermes = next(family for family in FAMILIES if family.name == "hermes")
    for text, arguments in (
        ('{"arguments": {"a": 1}, "name": "f"}', '{"a": 1}'), ('{"name":"f"}', "{}"),
        ('{"name": "f", "arguments": "{\\"a\\": 1}"}', '{"a": 1}'),
        ('{"name": "f", "arguments": "{\\"a\\": \\"\\ud83d\\"}"}', '{"a": "\ufffd"}'),
        ('{"id": "7", "type": "function", "name": "f", "parameters": {"a":"}"}}', '{"a":"}"}'),
    ):  # fmt: skip
        for cuts in ((), range(len(text))):
            assert parsed(AnswerParser(hermes, None), f"<tool_call>{text}</tool_call>\n", cuts) == ("", "", [("f", arguments)])


def test_a_mark_before_a_call_that_needs_none() -> None:
    llama = next(family for family in FAMILIES if family.name == "llama")
    for text, expected in (('<|python_tag|>{"name": "f", "parameters": {}}', ("", "", [("f", "{}")])), ("<|python_tag|>x", ("x", "", []))):
        for cuts in ((), range(len(text))):
            assert parsed(AnswerParser(llama, None), text, cuts) == expected


def test_reasoning_is_split_off() -> None:
    hermes, think = FAMILIES[0], REASONING[0]
    call = '<tool_call>{"name": "f", "arguments": {}}</tool_call>'
    for begin, thinks in (("<think>\n", False), ("\n <think>", False), ("", True)):
        text = f"{begin}Hm, <b>.\n</think>\n\nSo: it is.\n{call}"
        for cuts in ((), range(len(text))):
            content, thought, calls = parsed(AnswerParser(hermes, think, thinks=thinks), text, cuts)
            assert (content, thought.strip(), calls) == ("So: it is.", "Hm, <b>.", [("f", "{}")])
    assert parsed(AnswerParser(None, think), " </think>\n\nSo.", range(9)) == ("So.", "", []), "nothing to think about"
    assert parsed(AnswerParser(None, think), "No <think> here </think>", range(9)) == ("No <think> here </think>", "", [])
    assert parsed(AnswerParser(None, think), "<think>never done", range(9)) == ("", "never done", [])


def test_answers_in_channels() -> None:
    harmony, channels = next(each for each in FAMILIES if each.name == "harmony"), REASONING[-1]
    message = "<|channel|>{}<|message|>{}<|end|><|start|>assistant"
    call = '<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"a": "<|end|>"}<|call|>'
    thought = message.format("analysis", "Hm.\n")
    for text, expected in (
        (thought + "<|channel|>final<|message|>It is <b> so.\n", ("It is <b> so.\n", "Hm.", [])),
        (thought + message.format("commentary", "Let me see.") + thought + call, ("Let me see.", "Hm.Hm.", [("f", '{"a": "<|end|>"}')])),
        (' to=functions.f<|channel|>commentary json<|message|>{"a": 1}', ("", "", [("f", '{"a": 1}')])),
        ("No channel. to=functions.f", ("No channel. to=functions.f", "", [])), ("<|channel|>final", ("<|channel|>final", "", [])),
        ("<|start|>assistant, I see", ("<|start|>assistant, I see", "", [])), ("assistance", ("assistance", "", [])),
        ("<|channel|>commentary to=functions.f<|message|>no", ("no", "", [])),
    ):  # fmt: skip
        for cuts in ((), range(len(text))):
            assert parsed(AnswerParser(harmony, channels), text, cuts) == expected
    content, thought, calls = parsed(AnswerParser(None, channels), message.format("analysis", "Hm.") + call, range(40))
    assert "{" in content and thought == "Hm." and not calls, "without tools a call is text"


STARTS = {
    "pythonic": ("[f(", "[f(a='", "[f(a=[{"), "functionary-3.2": ("f\n{", "all\n"),
    "minimax-m3": (']<]minimax[>[<tool_call>]<]minimax[>[<invoke name="f">]<]minimax[>[<a>',),
}  # fmt: skip
"""Beginnings of calls, within which anything comes."""
BY_DAY = ("hermes", "mistral", "qwen3-coder")
"""Families of one form each; those of a form behave alike."""


@pytest.mark.parametrize(
    "family", [pytest.param(each, id=each.name, marks=() if each.name in BY_DAY else pytest.mark.night) for each in FAMILIES]
)
def test_near_marks_take_linear_time(family: Any) -> None:
    """The time for eight times the text is not many times eight times as long."""

    def seconds(start: str, piece: str, size: int, step: int) -> float:
        text, parser = start + (piece * (size // len(piece) + 1))[:size], AnswerParser(family, REASONING[0])
        gc.disable()
        began = time.process_time()
        for at in range(0, size, step):
            parser.push(text[at : at + step])
        parser.finish()
        taken = time.process_time() - began
        gc.enable()
        return taken

    mark = family.begin or {"pythonic": "[f(", "functionary-3.2": ">>>f\n"}.get(family.name, '{"name')
    pieces = [("", piece) for piece in (mark, mark[:-1] + "x", mark + '{"name": "', mark + "[[{", mark + "\\", " ", mark + " ")]
    inner = ("x", "'", "[(", "\\", "]<]minimax[>[<a>", ">>>")
    pieces += [(start, piece) for start in STARTS.get(family.name, ()) for piece in (*inner, start)]
    for start, piece in pieces:
        for step in (16, 1 << 20):
            assert seconds(start, piece, 1 << 16, step) < 40 * max(seconds(start, piece, 1 << 13, step), 0.001), (start, piece)
