"""Boundaries of every field of every route that takes a body: values below, at and above each bound, and of wrong types."""

import json
from collections.abc import Iterator
from typing import Any

from ridgeline.engine.admit import BOUNDS, TARGET_BOUND
from ridgeline.server.body import LENGTHS
from ridgeline.server.reasoning import BUDGETS
from ridgeline.text.structured import MAX_CHARACTERS

CONTEXT, VOCAB = 512, 258
COMPLETIONS, CHAT, TOKENIZE, DETOKENIZE = "/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize"
ANTHROPIC, COUNT, RESPONSES = "/v1/messages", "/v1/messages/count_tokens", "/v1/responses"
INPUT_TOKENS = "/v1/responses/input_tokens"
EMBEDDINGS, SCORES = ("/v1/embeddings", "/pooling"), ("/score", "/v1/score")
RANKS = ("/rerank", "/v1/rerank", "/v2/rerank", "/reranking", "/v1/reranking")
MESSAGES = [{"role": "user", "content": "a"}]
GOOD: dict[str, dict[str, Any]] = {
    COMPLETIONS: {"prompt": "a", "max_tokens": 2},
    CHAT: {"messages": MESSAGES, "max_tokens": 2},
    TOKENIZE: {"prompt": "a"},
    DETOKENIZE: {"tokens": [97]},
    ANTHROPIC: {"messages": MESSAGES, "max_tokens": 2},
    COUNT: {"messages": MESSAGES},
    RESPONSES: {"input": "a", "max_output_tokens": 2},
    INPUT_TOKENS: {"input": "a"},
    **{path: {"input": "a"} for path in EMBEDDINGS},
    **{path: {"text_1": "a", "text_2": ["b"]} for path in SCORES},
    **{path: {"query": "a", "documents": ["b"]} for path in RANKS},
}
BESIDE: dict[str, dict[str, Any]] = {"length_penalty": {"use_beam_search": True}, "top_logprobs": {"logprobs": True},
                                     "guided_whitespace_pattern": {"guided_json": {}}}  # fmt: skip
"""Other fields that a field needs."""
GENERATION = (COMPLETIONS, CHAT)
NO_GRAMMAR = "cannot be followed by this model"
"""What the fake model says of a request that asks for a form and has been admitted."""

Case = tuple[str, str, bool]
"""A label, JSON, and True if it is accepted."""


def literal(value: Any) -> str:
    return json.dumps(value)


def integers(low: int, high: int) -> list[Case]:
    wrong = [("wrong type", each, False) for each in ('"1"', "true", "1.0", "[1]", "{}")]
    below_and_above: list[Case] = [("min-1", str(low - 1), False), ("max+1", str(high + 1), False)]
    inside: list[Case] = [("min", str(low), True), ("max", str(high), True)]
    return [
        *below_and_above,
        *inside,
        *wrong,
        ("2^63", str(2**63), False),
        ("2^64", str(2**64), False),
        *NOWHERE,
        *NULL,
        ("empty", '""', False),
    ]


def numbers(low: float, high: float, above: bool = False) -> list[Case]:
    lowest = 1e-9 if above else low
    wrong = [("wrong type", each, False) for each in ('"1"', "true", "[1]", "{}")]
    below_and_above: list[Case] = [("min-1", str(low if above else low - 0.001), False), ("max+1", str(high + 0.001), False)]
    inside: list[Case] = [("min", str(lowest), True), ("max", str(high), True)]
    return [*below_and_above, *inside, *wrong, ("2^63", str(2**63), False), *NOWHERE, *NULL, ("empty", '""', False)]


def booleans() -> list[Case]:
    wrong = [("wrong type", each, False) for each in ("0", "1", '"true"', "[]", "{}")]
    return [("min", "false", True), ("max", "true", True), *wrong, *NOWHERE, *NULL, ("empty", '""', False)]


def lists(good: Any, most: int, least: int = 0, bad: tuple[Any, ...] = (), string: bool = False) -> list[Case]:
    """`good` is an element, repeated; `string`: a string is taken too."""
    inside: list[Case] = [("min", literal([good] * least), True), ("max", literal([good] * most), True)]
    below: list[Case] = [("min-1", literal([good] * (least - 1)), False)] if least else []
    elements: list[Case] = [("bad element", literal([each]), False) for each in bad]
    wrong: list[Case] = [("wrong type", each, False) for each in ("1", "true", "{}", "[[[1]]]", *(() if string else ('"1"',)))]
    return [*inside, *below, ("max+1", literal([good] * (most + 1)), False), *elements, *wrong, *NOWHERE, *NULL]


NOWHERE: list[Case] = [("NaN", "NaN", False), ("Infinity", "-Infinity", False), ("1e400", "1e400", False)]
NULL: list[Case] = [("null", "null", True)]
IDS = (-1, VOCAB, 2**63, "1", 1.0, True, None)
WHOLE_CONTEXT = [0] * (CONTEXT - 2)


def generation(path: str) -> dict[str, list[Case]]:
    """Cases of both routes that generate. The context, less the prompt, bounds `max_tokens`; that bounds `min_tokens`."""
    prompt_tokens = 2 if path == COMPLETIONS else len("<user>a</>\n<assistant>")
    targets = integers(int(TARGET_BOUND.low), int(TARGET_BOUND.high))
    fields = {name: integers(int(bound.low), int(bound.high)) for name, bound in BOUNDS.items() if bound.whole}
    fields |= {name: numbers(bound.low, bound.high, bound.above) for name, bound in BOUNDS.items() if not bound.whole}
    fields |= {
        **dict.fromkeys(LENGTHS, integers(-1, CONTEXT - prompt_tokens)),
        "thinking_token_budget": integers(-1, 2**31 - 1),
        **dict.fromkeys(("ttft_ms", "itl_ms"), targets),
        "deadline_ms": [case for case in targets if case[1] != "1"],  # no answer is that soon
        "logprobs": [case for case in integers(0, 20) if case[1] != "true"] + booleans()[:2],
        "top_logprobs": integers(0, 20),
        "min_tokens": integers(0, 2),
        "length_penalty": numbers(-10, 10),
        "stop": [
            *lists("x" * 64, 64, bad=("x" * 65, 1, None), string=True),
            ("empty", '""', True),
            ("empty", '["", "x"]', True),
            ("max+1", literal("x" * 65), False),
        ],
        "stop_token_ids": lists(VOCAB - 1, 64, bad=IDS),
        "allowed_token_ids": lists(VOCAB - 1, 1024, least=1, bad=IDS),
        "bad_words": lists("é" * 64, 64, bad=("", "x" * 65, 1, None)),
        "logit_bias": biases(),
        "stream_options": [("wrong type", each, False) for each in ("1", "[]", '""', "true", '{"include_usage": true}')] + NULL,
        "cache_salt": [("empty", '""', True), ("wrong type", "1", False), *NULL, *NOWHERE],
        "model": [("empty", '""', False), ("wrong type", "1", False), ("unknown", '"other"', False), *NULL, *NOWHERE],
    }
    flags = ("use_beam_search", "include_stop_str_in_output", "ignore_eos", "skip_special_tokens", "return_token_ids",
             "return_tokens_as_token_ids", "explain")  # fmt: skip
    return fields | forms() | {name: booleans() for name in flags} | {"stream": [case for case in booleans() if case[1] != "true"]}


def forms() -> dict[str, list[Case]]:
    """Cases of the fields that ask for a structured output. Bytes are those of the question as it is sent to the compiler."""

    def texts(good: str, bad: str) -> list[Case]:
        inside: list[Case] = [("min", literal(good), True), ("empty", '""', True), *NULL]
        wrong = [("wrong type", each, False) for each in ("1", "true", "[]", "{}")]
        return [*inside, ("bad element", literal(bad), False), ("max+1", literal("a" * MAX_CHARACTERS), False), *wrong, *NOWHERE]

    def objects(good: Any, *bad: Any) -> list[Case]:
        wrong = [("wrong type", each, False) for each in ("1", "[]", "[{}]")]
        return [("min", literal(good), True), *(("bad element", literal(each), False) for each in bad), *wrong, *NULL, *NOWHERE]

    def nested(depth: int) -> Any:
        return {"items": nested(depth - 1)} if depth else {}

    tags = {"structures": [{"begin": "<a>", "schema": {}, "end": "</a>"}], "triggers": ["<a"]}
    schemas = [
        *objects({"type": "string"}, {"not": {}}, literal(nested(64)), {"const": "a" * MAX_CHARACTERS}),
        ("empty", "{}", True), ("empty", '""', True),
        ("max", literal(literal(nested(40))), True), ("min", "true", True), ("bad element", '"{"', False),
    ]  # fmt: skip
    grammars = texts('root ::= "a"', "start: nothing")
    choices = lists("a", 1_000, least=1, bad=("", 1, None))
    return {
        **dict.fromkeys(("guided_json", "json_schema"), schemas),
        **dict.fromkeys(("guided_grammar", "grammar", "ebnf"), grammars),
        **dict.fromkeys(("guided_regex", "regex"), texts("a+", "(?=a)")),
        "guided_choice": [*choices[:1], *choices[1:2], ("empty", "[]", True), *choices[3:]],
        "guided_whitespace_pattern": [case for case in texts(" ?", "") if case[0] not in ("bad element", "max+1")],
        "response_format": [
            *objects({"type": "json_object"}, {}, {"type": "xml"}, *({"type": kind} for kind in ("json_schema", "structural_tag"))),
            ("bad element", literal({"type": "json_schema", "json_schema": {"schema": {"not": {}}}}), False),
            ("max", literal({"type": "structural_tag", **tags}), True), ("empty", '{"type": "text"}', True),
        ],
        "structured_outputs": objects(
            {"json": {}}, {}, {"regex": "a", "json_object": True}, {"json": 3}, {"choice": []}, {"choice": ["a"] * 1_001}, {"regex": ""},
            {"other": 1},
        ),
    }  # fmt: skip


def biases() -> list[Case]:
    def many(count: int) -> str:
        return literal({str(token): 1 for token in range(count)})

    bad = ({"-1": 1}, {str(VOCAB): 1}, {"x": 1}, {"01": 1}, {"": 1}, {str(2**63): 1}, {"1": "1"}, {"1": True}, {"1": 100.1}, {"1": -100.1})
    inside: list[Case] = [("min", literal({"0": -100}), True), ("max", literal({str(VOCAB - 1): 100}), True), ("max", many(VOCAB), True)]
    return [
        *inside, ("empty", "{}", True), ("max+1", many(301), False), *(("bad element", literal(each), False) for each in bad),
        ("wrong type", "[]", False), ("wrong type", "1", False), ("NaN", '{"1": NaN}', False), ("1e400", '{"1": 1e400}', False), *NULL,
    ]  # fmt: skip


def own(path: str) -> dict[str, list[Case]]:
    """Cases of one route alone."""
    required: list[Case] = [("null", "null", False), *NOWHERE]
    if path == COMPLETIONS:
        ids: list[Case] = [("bad element", literal([each]), False) for each in IDS if each != "1"]
        return {
            "prompt": [
                *ids, ("min", "[0]", True), ("max", literal(WHOLE_CONTEXT), True), ("max+1", literal([0] * CONTEXT), False),
                ("empty", "[]", False), ("empty", "[[]]", False), ("empty", '""', True), ("max", literal(["a"] * 64), True),
                ("max+1", literal(["a"] * 65), False), ("wrong type", "1", False), ("wrong type", '[1, "a"]', False), *required,
            ],
            "suffix": [("empty", '""', True), ("no marks", '"a"', False), ("wrong type", "1", False), *NULL, *NOWHERE],
            "truncate_prompt_tokens": [*integers(1, CONTEXT)[1:], ("min", "-1", True), ("min-1", "0", False), ("min-1", "-2", False)],
            "add_special_tokens": booleans(),
            "echo": booleans(),
        }  # fmt: skip
    if path == CHAT:
        return {
            "messages": messages(),
            "reasoning_effort": [("min", '"none"', True), ("max", '"max"', False), ("unknown", '"deep"', False), *NULL],
            **{name: integers(-1, 2**31 - 1) for name in BUDGETS},
            "enable_thinking": booleans(),
            "include_reasoning": booleans(),
            "thinking": [("min", '{"budget_tokens": 0}', True), ("unknown", '{"type": "deep"}', False), ("wrong type", "1", False), *NULL],
            "reasoning": [("min", '{"max_tokens": -1}', True), ("unknown", '{"effort": "deep"}', False), ("wrong type", "1", False), *NULL],
            "think": [("min", '"none"', True), ("unknown", '"deep"', False), ("wrong type", "1", False), *NULL],
            "add_generation_prompt": booleans(),
            "tools": [
                ("empty", "[]", True),
                ("wrong type", "1", False),
                ("wrong type", "{}", False),
                ("bad element", "[{}]", False),
                *NULL,
            ],
            "tool_choice": [
                ("min", '"none"', True),
                ("max", '"required"', False),
                ("wrong type", "1", False),
                ("empty", '""', False),
                *NULL,
            ],
            "documents": [
                ("max", "[{}]", True),
                ("max+1", literal([{}] * 129), False),
                ("bad element", "[1]", False),
                ("wrong type", "1", False),
            ],
            "chat_template_kwargs": [("min", "{}", True), ("wrong type", "[]", False), ("bad element", '{"messages": 1}', False), *NULL],
        }
    if path in (ANTHROPIC, COUNT):
        return of_messages(path)
    if path in (RESPONSES, INPUT_TOKENS):
        return of_responses(path)
    if path in (*EMBEDDINGS, *SCORES, *RANKS):
        return of_texts(path)
    if path == TOKENIZE:
        texts: list[Case] = [("empty", '""', True), ("wrong type", "1", False), ("wrong type", "[]", False), *required]
        return {"prompt": texts, "add_special_tokens": booleans(), "return_token_strs": booleans()}
    whole = [("empty", "[]", True), ("max", literal([VOCAB - 1] * 100_000), True)]
    return {
        "tokens": [
            *whole,
            *((label, text, ok) for label, text, ok in lists(0, 1, bad=IDS) if label in ("bad element", "wrong type")),
            *required,
        ]
    }


def of_messages(path: str) -> dict[str, list[Case]]:
    """Cases of Anthropic's fields. Answers end where the context does, so that no `max_tokens` is too large."""
    turn = {"role": "user", "content": "a"}
    bad = (1, {}, {"role": "user"}, {"role": "tool", "content": "a"}, {"role": "user", "content": 1}, {"role": "user", "content": [1]},
           {"role": "user", "content": None}, *({"role": "user", "content": [{"type": kind}]} for kind in ("image", "text")))  # fmt: skip
    required: list[Case] = [("null", "null", False), *NOWHERE]
    fields: dict[str, list[Case]] = {
        "messages": [
            ("min", literal([turn]), True), ("max", literal([{**turn, "content": ""}] * 400), True), ("empty", "[]", False),
            ("max+1", literal([turn] * 4097), False), *(("bad element", literal([each]), False) for each in bad),
            ("wrong type", "1", False), ("wrong type", '"a"', False), *required,
        ],
        "system": [
            ("empty", '""', True), ("empty", "[]", True), ("wrong type", "1", False), ("bad element", '[{"type": "x"}]', False), *NULL,
        ],
        "tools": [
            ("empty", "[]", True), ("bad element", "[{}]", False), ("bad element", '[{"name": "f"}]', False), ("wrong type", "{}", False),
            ("bad element", '[{"name": "bash", "type": "bash_20250124"}]', False), *NULL,
        ],
        "tool_choice": [
            ("min", '{"type": "none"}', True), ("min", '{"type": "auto", "disable_parallel_tool_use": true}', True),
            ("wrong type", '"auto"', False), ("bad element", '{"type": "tool"}', False), ("unknown", '{"type": "all"}', False), *NULL,
        ],
        "thinking": [
            ("min", '{"type": "disabled"}', True), ("min", '{"type": "adaptive"}', True), ("bad element", "{}", False),
            ("max", '{"type": "enabled", "budget_tokens": 1024, "display": "omitted"}', True), ("unknown", '{"type": "on"}', False), *NULL,
        ],
        "output_config": [
            ("empty", "{}", True), ("max", '{"effort": "max", "format": null}', True), ("unknown", '{"effort": "most"}', False),
            ("bad element", '{"format": {"type": "json_schema"}}', False), ("wrong type", "1", False), *NULL,
        ],
        "output_format": [("unknown", '{"type": "json", "schema": {}}', False), ("wrong type", "[]", False), *NULL],
        "compaction": [("bad element", '{"type": "summarize"}', False), *NULL],
        "context_management": [("empty", "{}", True), ("max", '{"edits": [1, {"type": "x"}]}', True), ("wrong type", "1", False), *NULL],
    }  # fmt: skip
    if path == ANTHROPIC:
        fields |= {
            "max_tokens": [*(case for case in integers(0, 2**31 - 1) if case[0] != "null"), *required],
            "temperature": numbers(0, BOUNDS["temperature"].high),
            "top_p": numbers(BOUNDS["top_p"].low, 1, BOUNDS["top_p"].above),
            "top_k": integers(int(BOUNDS["top_k"].low), int(BOUNDS["top_k"].high)),
            "stop_sequences": lists("x" * 64, 64, bad=("x" * 65, 1, None)),
            "stream": [case for case in booleans() if case[1] != "true"],
        }
    return fields


def of_texts(path: str) -> dict[str, list[Case]]:
    """Cases of routes that make vectors."""
    required: list[Case] = [("null", "null", False), *NOWHERE]
    fields: dict[str, list[Case]] = {
        "truncate_prompt_tokens": [*integers(1, CONTEXT)[1:], ("min", "-1", True), ("min-1", "0", False), ("min-1", "-2", False)],
        "deadline_ms": [case for case in integers(int(TARGET_BOUND.low), int(TARGET_BOUND.high)) if case[1] != "1"],
        "priority": integers(-(2**31), 2**31 - 1),
    }
    if path in EMBEDDINGS:
        ids: list[Case] = [("bad element", literal([each]), False) for each in IDS if each != "1"]
        fields |= {
            "input": [
                *ids, ("max", literal([0] * CONTEXT), True), ("max+1", literal([0] * (CONTEXT + 1)), False), ("empty", "[]", False),
                ("empty", "[[]]", False), ("empty", '""', True), ("max", literal(["a"] * 2048), True), ("wrong type", '[1, "a"]', False),
                ("max+1", literal(["a"] * 2049), False), ("wrong type", "1", False), *required,
            ],
            "dimensions": integers(1, 8),
            "encoding_format": [("min", '"float"', True), ("max", '"base64"', True), ("unknown", '"hex"', False), *NULL],
            "add_special_tokens": booleans(),
        }  # fmt: skip
    elif path in SCORES:
        fields |= {"text_2": [("min", '"b"', True), ("empty", "[]", False), ("bad element", "[1]", False), *required]}
    else:
        fields |= {
            "query": [("min", '"b"', True), ("empty", '""', False), ("wrong type", "[]", False), *required],
            "documents": [("min", '[{"text": "b"}]', True), ("empty", "[]", False), ("bad element", "[{}]", False), *required],
            "top_n": [("min", "0", True), ("max", "99", True), ("min-1", "-1", False), ("wrong type", '"1"', False), *NULL],
            "return_documents": booleans(),
        }
    return fields


def of_responses(path: str) -> dict[str, list[Case]]:
    """Cases of the fields of OpenAI's newer route."""
    turn = {"role": "user", "content": "a"}
    bad = (1, {}, {"role": 1, "content": "a"}, {"role": "user"}, {"type": "item"})
    fields: dict[str, list[Case]] = {
        "input": [
            ("min", literal([turn]), True), ("empty", "[]", False), ("wrong type", "1", False),
            *(("bad element", literal([each]), False) for each in bad), ("null", "null", False), *NOWHERE,
        ],
        "tools": [("empty", "[]", True), ("bad element", "[1]", False), ("wrong type", "1", False), *NULL],
    }  # fmt: skip
    if path == RESPONSES:
        fields |= {
            "temperature": numbers(0, BOUNDS["temperature"].high),
            "top_p": numbers(BOUNDS["top_p"].low, 1, BOUNDS["top_p"].above),
            "stream": [case for case in booleans() if case[1] != "true"],
        }
    return fields


def messages() -> list[Case]:
    message = {"role": "user", "content": ""}
    bad = (1, {}, {"role": "user"}, {"role": 1, "content": "a"}, {"role": "user", "content": 1}, {"role": "user", "content": [1]},
           {"role": "user", "content": None}, {"role": "user", "content": [{"type": "image_url"}]})  # fmt: skip
    return [
        ("min", literal([message]), True), ("empty", "[]", False), ("max+1", literal([message] * 4097), False),
        *(("bad element", literal([each]), False) for each in bad), ("wrong type", "1", False), ("wrong type", '"a"', False),
        ("null", "null", False), *NOWHERE,
    ]  # fmt: skip


def table(path: str) -> dict[str, list[Case]]:
    return (generation(path) if path in GENERATION else {"model": generation(COMPLETIONS)["model"]}) | own(path)


def bodies(path: str, field: str) -> Iterator[tuple[str, bytes, bool]]:
    """The table's cases as bodies; of the first good and the first bad value also both as equal keys, of which the last counts."""
    cases = table(path)[field]
    rest = {name: value for name, value in GOOD[path].items() if name not in (field, "max_tokens" if field in LENGTHS else "")}
    start = literal(rest | BESIDE.get(field, {}))[:-1]
    start += ", " if start != "{" else ""
    for label, text, taken in cases:
        yield label, f'{start}"{field}": {text}}}'.encode(), taken
    good, bad = (next((text for _, text, taken in cases if taken is wanted), None) for wanted in (True, False))
    if good is not None:
        yield "duplicate key", f'{start}"{field}": {good}, "{field}": {good}}}'.encode(), True
    if good is not None and bad is not None:
        yield "duplicate key", f'{start}"{field}": {good}, "{field}": {bad}}}'.encode(), False
