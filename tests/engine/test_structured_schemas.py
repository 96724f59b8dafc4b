"""Generated JSON Schemas, followed by the demo model: answers that end are valid by the jsonschema package, and nearly all end."""

import json
import os
import random
from typing import Any

import jsonschema
import pytest

from ridgeline import LLM, SamplingParams, StructuredOutputs

SCHEMAS = int(os.environ.get("RIDGELINE_TEST_SCHEMAS", "300"))
MAX_TOKENS, LEAST_ENDED = 512, 0.98
NAMES = ("name", "age", "city", "tags", "id", "price", "kind", "items", "note", "é", "a b", 'q"')
PATTERNS = ("^[A-Z]{3}-[0-9]{4}$", "^(red|green|blue)$", "^[a-z]+@[a-z]+\\.org$", "^#[0-9a-f]{6}$")
FORMATS = ("date", "time", "date-time", "uuid", "ipv4", "email", "hostname")


def scalar(draw: random.Random) -> dict[str, Any]:
    low = draw.randint(-1000, 1000)
    return draw.choice([
        {"type": "string", "maxLength": draw.randint(1, 40)},
        {"type": "string", "pattern": draw.choice(PATTERNS), "maxLength": 40},
        {"type": "string", "format": draw.choice(FORMATS)},
        {"type": "integer", "minimum": low, "maximum": low + draw.randint(0, 500)},
        {"type": "number", "exclusiveMinimum": low, "maximum": low + 10, "multipleOf": 0.25},
        {"enum": draw.sample(["x", "y", 1, 2.5, None, True, "é\n", {"k": [1]}], draw.randint(1, 5))},
        {"type": ["boolean", "null"]},
        {"const": draw.choice(["fixed", 7, None, {"a": 1}])},
    ])  # fmt: skip


def schema(draw: random.Random, depth: int) -> dict[str, Any]:
    """A schema of at most `depth` levels whose texts and lists have an end."""
    if depth == 0 or draw.random() < 0.3:
        return scalar(draw)
    kind = draw.randrange(5)
    if kind == 0:
        fewest = draw.randint(0, 2)
        return {"type": "array", "items": schema(draw, depth - 1), "minItems": fewest, "maxItems": fewest + draw.randint(0, 2)}
    if kind == 1:
        return {"anyOf": [schema(draw, depth - 1) for _ in range(draw.randint(1, 3))]}
    if kind == 2:
        first = [scalar(draw) for _ in range(draw.randint(1, 3))]
        return {"type": "array", "prefixItems": first, "items": False, "minItems": draw.randint(0, len(first))}
    names = draw.sample(NAMES, draw.randint(1, 4))
    made = {"type": "object", "properties": {name: schema(draw, depth - 1) for name in names}}
    made["additionalProperties"] = False
    if draw.random() < 0.7:
        return {**made, "required": draw.sample(names, draw.randint(0, len(names)))}
    free = {"patternProperties": {"^[a-z]{1,8}_[a-z]$": {"type": "integer", "minimum": 0, "maximum": 9}}}
    return {**made, **free, "required": names, "maxProperties": len(names) + 2}


def drawn(seed: int) -> dict[str, Any]:
    draw = random.Random(seed)
    inner = schema(draw, 3)
    return inner if inner.get("type") == "object" else {"type": "object", "properties": {"answer": inner}, "required": ["answer"],
                                                        "additionalProperties": False}  # fmt: skip


@pytest.mark.night
@pytest.mark.timeout(7_200)
@pytest.mark.parametrize("temperature", [0.0, 1.5])
def test_answers_that_end_are_valid_and_nearly_all_end(demo_file: Any, temperature: float) -> None:
    schemas = [drawn(seed) for seed in range(SCHEMAS)]
    prompts = [f"A JSON object of the schema {json.dumps(each)[:300]}:\n" for each in schemas]
    params = [
        SamplingParams(temperature=temperature, seed=number, max_tokens=MAX_TOKENS, structured_outputs=StructuredOutputs(json=each))
        for number, each in enumerate(schemas)
    ]
    with LLM(str(demo_file), max_num_seqs=16, max_model_len=1024) as llm:
        answers = [output.outputs[0] for output in llm.generate(prompts, params)]
    ended = [(asked, answer) for asked, answer in zip(schemas, answers, strict=True) if answer.finish_reason == "stop"]
    wrong = [(asked, answer.text) for asked, answer in ended if not is_valid(asked, answer.text)]
    open_ones = [(asked, answer.text[-80:]) for asked, answer in zip(schemas, answers, strict=True) if answer.finish_reason != "stop"]
    print(f"temperature {temperature}: {len(ended)} of {len(answers)} ended, {len(wrong)} of them invalid")
    assert not wrong, wrong[:3]
    assert len(ended) >= LEAST_ENDED * len(answers), json.dumps(open_ones[:5])


def is_valid(asked: dict[str, Any], text: str) -> bool:
    checker = jsonschema.Draft202012Validator.FORMAT_CHECKER
    try:
        return jsonschema.Draft202012Validator(asked, format_checker=checker).is_valid(json.loads(text))
    except ValueError:
        return False


@pytest.mark.parametrize("seed", range(0, 300, 60))
def test_generated_schemas_are_schemas(seed: int) -> None:
    jsonschema.Draft202012Validator.check_schema(drawn(seed))
