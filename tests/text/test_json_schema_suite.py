"""The JSON-Schema-Test-Suite against grammars: a schema is refused by name, or its grammar takes every valid instance, token by token, and
no invalid one. docs/json-schema.md has what is followed and what is refused, per keyword."""

import itertools
import json
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from byte_grammars import takes

from ridgeline.compute.decoding.grammar import GrammarCompiler
from ridgeline.core.params import StructuredOutputs
from ridgeline.errors import RequestError
from ridgeline.text.structured import StructuredOutputCompiler

TESTS = Path(__file__).resolve().parents[1]
DRAFTS = {"draft7": "http://json-schema.org/draft-07/schema#", "draft2020-12": "https://json-schema.org/draft/2020-12/schema"}
SUITE = {draft: json.loads((TESTS / "gold" / "jsonschema" / f"{draft}.json").read_text()) for draft in DRAFTS}
DOCUMENT = TESTS.parent / "docs" / "json-schema.md"
MOST_ORDERS = 60
ANNOTATIONS = ("is only an annotation by default", "optional/content")
"""Instances that a validator may refuse: formats are always followed here, contents of strings never."""
NEVER_WRITTEN = {
    "leap second": "seconds are never 60",
    "quoted string": "addresses without a quoted name",
    "IPv6-address-literal": "addresses with a name of a host",
    "ipv4 section": "eight groups or ::, without an IPv4 address at the end",
    "ipv4-mapped": "the same",
    "mixed format": "the same",
    "a long valid ipv6": "the same",
    "zero-width whitespace matches": r"\s is not U+FEFF",
    "overflow": "integers are written in digits",
    "Line tabulation matches": "control characters only where a value or a pattern names one",
    "Non-whitespace control matches": "the same",
    "maxItems ignored": "keywords beside $ref count, in draft 7 too",
}
"""Words of descriptions: valid instances that are never written, which narrows an answer and leaves it valid."""
OTHER_DIALECT = ("zero-width whitespace does not match",)
"""Invalid instances that are taken: patterns are of Rust's dialect, in which \\S is U+FEFF."""


class Matcher:
    """A schema's grammar over bytes."""

    def __init__(self, schema: Any, compiler: StructuredOutputCompiler, matching: GrammarCompiler) -> None:
        self.grammar, self._matching = compiler.compile(StructuredOutputs(json=schema)), matching

    def takes(self, text: str) -> bool:
        return takes(self._matching, self.grammar, text)


def forms(instance: Any) -> list[str]:
    """An instance as JSON: without spaces, with one, and on lines with an indentation."""
    spacing: list[dict[str, Any]] = [{"separators": (",", ":")}, {}, {"indent": 2}]
    return [json.dumps(instance, ensure_ascii=False, **each) for each in spacing]


def orders(value: Any) -> Iterator[Any]:
    """A value with the names of its objects in every order. Numbers as grammars write them: 1.0 is 1."""
    if isinstance(value, float) and value.is_integer():
        yield int(value)
    elif isinstance(value, list):
        yield from (list(each) for each in itertools.product(*([*itertools.islice(orders(each), MOST_ORDERS)] for each in value)))
    elif isinstance(value, dict):
        for names in itertools.permutations(value):
            parts = [[*itertools.islice(orders(value[name]), MOST_ORDERS)] for name in names]
            yield from (dict(zip(names, each, strict=True)) for each in itertools.product(*parts))
    else:
        yield value


def groups(draft: str) -> Iterator[tuple[str, dict[str, Any]]]:
    for file, found in SUITE[draft].items():
        for group in found:
            schema = group["schema"]
            if isinstance(schema, dict) and "$schema" not in schema:
                schema = {"$schema": DRAFTS[draft], **schema}
            yield file, {**group, "schema": schema}


def check(matcher: Matcher, file: str, test: dict[str, Any]) -> str | None:
    """What is wrong with a grammar's answer to an instance."""
    if any(word in test["description"] or file == word for word in ANNOTATIONS):
        return None
    if test["valid"]:
        several = itertools.islice(itertools.chain([test["data"]], orders(test["data"])), MOST_ORDERS)
        if any(all(matcher.takes(text) for text in forms(each)) for each in several):
            return None
        return None if any(word in test["description"] for word in NEVER_WRITTEN) else "a valid instance is refused"
    if not any(matcher.takes(text) for text in forms(test["data"])):
        return None
    return None if test["description"] in OTHER_DIALECT else "an invalid instance is taken"


@pytest.mark.parametrize("draft", DRAFTS)
def test_followed_or_refused_by_name(compiler: StructuredOutputCompiler, matching: GrammarCompiler, draft: str) -> None:
    wrong, all_of, followed = [], Counter[str](), Counter[str]()
    for file, group in groups(draft):
        all_of[file] += 1
        try:
            matcher = Matcher(group["schema"], compiler, matching)
        except RequestError:
            continue
        followed[file] += 1
        for test in group["tests"]:
            if reason := check(matcher, file, test):
                wrong.append((file, group["description"], test["description"], test["data"], reason))
    assert not wrong, "\n".join(map(str, wrong))
    assert published(draft) == {file: f"{followed[file]} of {count}" for file, count in all_of.items()}


def published(draft: str) -> dict[str, str]:
    """The table of docs/json-schema.md: cells of a draft, by file of the suite."""
    rows = re.findall(r"^\| `([\w/-]+)` \| (\d+ of \d+|–) \| (\d+ of \d+|–) \|$", DOCUMENT.read_text(), re.MULTILINE)
    column = 1 + [*DRAFTS].index(draft)
    return {row[0]: row[column] for row in rows if row[column] != "–"}
