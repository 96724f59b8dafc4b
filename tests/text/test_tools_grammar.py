"""Grammars of calls against templates and parsers: what templates write follows them, what follows them is read back as valid calls."""

import json
import random
import select
from collections.abc import Iterator, Sequence
from typing import Any

import jsonschema
import numpy as np
import pytest
from chat_cases import NAMES, Corpus, NamedTokenizer
from tool_cases import EXPECTED, PROPERTIES, TELLS_NOTHING, calls_of, parsed, rendered

from ridgeline.compute.decoding.grammar import GrammarCompiler, Vocabulary
from ridgeline.core.params import Grammar
from ridgeline.errors import RequestError
from ridgeline.text.chat_content import unmasked
from ridgeline.text.structured import StructuredOutputCompiler
from ridgeline.text.tools.families import FAMILIES, Family
from ridgeline.text.tools.forms import Addressed, Recipients
from ridgeline.text.tools.grammar import CallForm
from ridgeline.text.tools.parser import AnswerParser
from ridgeline.text.tools.written import PLACE

OPTIONAL = {**PROPERTIES, "days": {"type": ["integer", "null"]}}
WEATHER = {"name": "get_weather", "parameters": {"type": "object", "properties": OPTIONAL}, "strict": False}
EXACT = {
    "type": "object",
    "properties": {
        "mode": {"type": "string", "enum": ["fast", "very slow"]}, "count": {"type": "integer", "minimum": 1, "maximum": 12},
        "note": {"type": "string"}, "sure": {"type": "boolean"}, "list": {"type": "array", "items": {"type": "integer"}},
        "where": {"$ref": "#/$defs/place"}, "more": {"type": ["number", "null"]},
    },
    "required": ["mode", "note", "where"],
    "additionalProperties": False,
    "$defs": {"place": {
        "type": "object", "properties": {"at": {"const": "x y"}, "near": {"anyOf": [{"type": "boolean"}, {"$ref": "#/$defs/place"}]}},
        "required": ["at"], "additionalProperties": False,
    }},
}  # fmt: skip
NOTHING = {"type": "object", "properties": {}, "additionalProperties": False}
TOOLS = [{"name": "do-it.now", "parameters": EXACT, "strict": True}, {"name": "stop", "parameters": NOTHING, "strict": True}]

IN_CHANNELS = ("openai-gpt-oss-120b",)


class Matching:
    """Grammars of calls, followed in a vocabulary of bytes and names of control tokens."""

    def __init__(self, names: Sequence[str]) -> None:
        self.tokenizer = NamedTokenizer(names)
        self.end = self.tokenizer.vocab_size
        pieces = [self.tokenizer.piece(token) for token in range(self.end)] + [b"<end>"]
        self.rows = GrammarCompiler(lambda: Vocabulary(pieces, range(256, self.end + 1), [self.end]), len(pieces))
        self.forms = StructuredOutputCompiler()

    def form(self, family: Family, tools: Sequence[dict[str, Any]], **more: Any) -> Grammar:
        """The grammar of calls in which all control tokens but the family's are free."""
        control = {mark: token for mark in family.all_marks if (token := self.tokenizer.id_of(mark)) is not None}
        free = [(token, token) for token in range(256, self.end) if token not in control.values()]
        arguments: dict[str, Any] = {"must": False, "several": True, **more}
        return self.forms.compile(CallForm(family.name, tools, control=control, free=free, **arguments), "tools")

    def start(self, grammar: Grammar) -> Any:
        self.rows.compile(grammar)
        while self.rows.pending:
            assert select.select([self.rows], [], [], 20)[0]
            assert all(error is None for _, error in self.rows.take())
        return self.rows.start(grammar, ())

    def allowed(self, row: Any, ids: Sequence[int]) -> int:
        """How many of the ids may follow."""
        masks = np.zeros((1 + len(ids), self.rows.words), np.uint32)
        row.masks(ids, masks)
        taken = [bool(masks[place, token // 32] >> np.uint32(token % 32) & 1) for place, token in enumerate(ids)]
        return taken.index(False) if False in taken else len(ids)

    def refused(self, grammar: Grammar, text: str, *, ends: bool = True) -> str | None:
        """Where a text stops to follow the grammar; None: nowhere."""
        ids = [*self.tokenizer.encode(text, False, special=True), *([self.end] if ends else [])]
        count = self.allowed(self.start(grammar), ids)
        return None if count == len(ids) else self.tokenizer.decode(ids[:count], False)

    def walk(self, grammar: Grammar, closers: Sequence[str], most: int = 3000) -> str | None:
        """A text that follows the grammar, by chance; `closers` come now and then where they may. None for one that does not end."""
        row, ids = self.start(grammar), list[int]()
        while len(ids) < most:
            close = self.tokenizer.encode(random.choice(closers), False, special=True)
            choices = row.allowed()
            if self.end in choices and (len(choices) == 1 or random.random() < 0.3):
                return self.tokenizer.decode(ids, False)
            if close[0] not in choices or random.random() < 0.6 or self.allowed(row, close) < len(close):
                close = [random.choice([each for each in choices if each != self.end and (each < 256 or random.random() < 0.1)] or choices)]
            if close == [self.end]:
                continue
            row.advance(close)
            ids += close
        return None

    def close(self) -> None:
        self.rows.close()
        self.forms.close()


@pytest.fixture(scope="module", params=["control", pytest.param("plain", marks=pytest.mark.night)])
def marked(request: pytest.FixtureRequest, real: Corpus) -> Iterator[Matching]:
    """Marks as control tokens, and as text."""
    marks = [mark for family in FAMILIES for mark in family.all_marks]
    names = sorted({*marks, *(name for text in real.texts.values() for name in NAMES.findall(text))})
    found = Matching([name for name in names if name not in ("<function=", "<item>", "</item>")] if request.param == "control" else [])
    yield found
    found.close()


def test_what_templates_write_follows_the_grammar(real: Corpus, marked: Matching) -> None:
    for name in sorted(EXPECTED.keys() - TELLS_NOTHING - {"Reka-Edge"}):  # Reka's writes letters as \uXXXX
        tokenizer = NamedTokenizer(NAMES.findall(real.texts[name]))
        family = real.load(name, tokenizer).family
        text = rendered(real.load(name, tokenizer), calls_of(name), "" if not family.begin else "Let me see.")
        if name == "LFM2.5-8B-A1B":  # its template does not escape texts
            text = text.replace("""'Zürich & "Bern" \\ {[<b>'""", '"Zürich"')
        text = unmasked(text[: max(text.rfind(mark) + len(mark) for mark in (*family.written.marks, "}") if mark in text)])
        for mark in ("<|close|>think<|sep|>", "</mm:think>"):  # these templates write the end of reasoning where there is none
            text = text.removeprefix(mark)
        text = text.removeprefix("<|START_THINKING|><|END_THINKING|>")
        grammar = marked.form(family, [WEATHER])
        assert marked.refused(grammar, text) is None, (name, marked.refused(grammar, text), text)
        other = text.replace("get_weather", "get_whether")
        refused = None if isinstance(family.form, Recipients) else text.partition("get_weather")[0] + "get_w"  # what others say is text
        assert marked.refused(grammar, other) == refused, name
        assert name in IN_CHANNELS or marked.refused(grammar, "Let me see. I < 2 {} [x] {") is None, name
        begin = text.index(family.begin)
        must = marked.form(family, [WEATHER], must=True)
        assert marked.refused(must, "") == "" and marked.refused(must, text[begin:-1]) is not None, name


@pytest.mark.parametrize("walks", [1, pytest.param(40, marks=pytest.mark.night)])
def test_what_follows_the_grammar_is_read_back_as_valid_calls(marked: Matching, walks: int) -> None:
    random.seed(walks)
    schemas = {tool["name"]: tool["parameters"] for tool in TOOLS}
    for family in FAMILIES:
        written = family.written
        texts = (*written.calls, written.open, written.close, written.parameter)
        closers = [*(part for text in texts for part in PLACE.split(text)[::2] if part), *family.all_marks, '"', "}", "]", ")"]
        if written.literal == "keywords":  # its end means the same in quotes, which control tokens cannot stand in
            closers = ['"', "]", ")"]
        for must in (True, False):
            grammar = marked.form(family, TOOLS, must=must)
            found = [text for text in (marked.walk(grammar, closers) for _ in range(walks)) if text is not None]
            assert found or walks == 1, family.name
            if isinstance(family.form, Addressed) and not marked.tokenizer.names:
                continue  # its marks mean the same everywhere
            for text in found:
                parameters = {name: schema["properties"] for name, schema in schemas.items()}
                cuts = random.sample(range(len(text) + 1), min(len(text), 20))
                content, _, calls = parsed(AnswerParser(family, None, parameters), text, cuts)
                assert not must or (calls and (not content.strip() or "commentary<" in text)), (family.name, text)
                for called, arguments in calls:
                    jsonschema.validate(json.loads(arguments), schemas[called])


def test_schemas_that_cannot_be_followed(marked: Matching) -> None:
    by_name = {family.name: family for family in FAMILIES}
    for name, schema, word in (
        ("hermes", {"properties": {"a": {"not": {}}}}, "not"),
        ("qwen3-coder", {"properties": {"a": {"type": "string", "pattern": "x"}}}, "pattern"),
        ("gemma", {"properties": {"a": {"type": "string", "maxLength": 3}}}, "maxLength"), ("lfm2", {"properties": {"a b": {}}}, "a b"),
        ("glm", {"properties": {"a<b": {}}}, "a<b"), ("minimax", {}, "additionalProperties"),
    ):  # fmt: skip
        closed = {"additionalProperties": False, **schema} if schema else schema
        tool = {"name": "f", "parameters": closed, "strict": True}
        with pytest.raises(RequestError, match=word):
            marked.form(by_name[name], [tool])
        assert marked.form(by_name[name], [{**tool, "strict": False}]), "any arguments"
