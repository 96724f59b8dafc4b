"""Structured outputs of the demo model: valid, the same with drafts and in company, and free where the free answer is valid."""

import json
from collections.abc import Iterator
from dataclasses import replace

import pytest

from ridgeline import LLM, SamplingParams, StructuredOutputs
from ridgeline.compute.cpu.runner import NativeRunner
from ridgeline.compute.decoding import forced
from ridgeline.compute.decoding.grammar import RowGrammar
from ridgeline.core.drafts.prompt_lookup import PromptLookupDrafter
from ridgeline.errors import RequestError

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 20},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 3},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}
PROMPTS = ["A person as JSON: ", 'Data: {"name": "Ann", "age": 7, "tags": ["a"]}\nData: ', "List of people\n", "x"]


@pytest.fixture(scope="module")
def llm(demo_file) -> Iterator[LLM]:
    with LLM(str(demo_file), max_num_seqs=4, max_model_len=512, num_speculative_tokens=4, speculative="ngram") as made:
        yield made


def params(structured: StructuredOutputs | None, temperature: float = 0.0, **others) -> SamplingParams:
    return SamplingParams(temperature=temperature, seed=5, max_tokens=120, structured_outputs=structured, **others)


@pytest.mark.parametrize("temperature", [1.5, pytest.param(0.0, marks=pytest.mark.night)])
def test_answers_are_valid_and_those_without_drafts_and_company(llm: LLM, demo_file, temperature: float) -> None:
    asked = params(StructuredOutputs(json=PERSON), temperature)
    answers = [output.outputs[0] for output in llm.generate(PROMPTS, asked)]
    for answer in answers:
        assert answer.finish_reason == "stop"
        found = json.loads(answer.text)
        assert list(found) == ["name", "age", "tags"] and 0 <= found["age"] <= 120 and set(found["tags"]) <= {"a", "b"}
    with LLM(str(demo_file), max_num_seqs=1, max_model_len=512, depth=1, runner="native") as alone:
        assert [alone.generate(prompt, asked)[0].outputs[0].token_ids for prompt in PROMPTS[:2]] == [each.token_ids for each in answers[:2]]


def test_a_free_answer_that_is_valid_stays_as_it_is(llm: LLM) -> None:
    free, anything = replace(params(None), max_tokens=40), StructuredOutputs(regex=r"(.|\n)*")
    answers = [
        [output.outputs[0].token_ids for output in llm.generate(PROMPTS, asked)]
        for asked in (free, replace(free, structured_outputs=anything))
    ]
    assert answers[0] == answers[1]


def test_a_form_may_be_a_dict_of_its_fields(llm: LLM) -> None:
    asked = params({"choice": ["yes", "no"]})  # type: ignore[arg-type]
    assert llm.generate("Yes or no? ", asked)[0].outputs[0].text in ("yes", "no")
    with pytest.raises(RequestError, match="choices"):
        llm.generate("x", params({"choices": ["yes"]}))  # type: ignore[arg-type]
    with pytest.raises(RequestError, match="of type str; give StructuredOutputs"):
        llm.generate("x", params("yes|no"))  # type: ignore[arg-type]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_an_answer_ends_where_its_grammar_does_whatever_bans_its_end(llm: LLM, temperature: float) -> None:
    asked = params(StructuredOutputs(choice=["yes", "no"]), temperature, min_tokens=8, logit_bias=((1, -100.0), (106, -100.0)))
    answer = llm.generate("Yes or no? ", asked)[0].outputs[0]
    assert answer.text in ("yes", "no") and answer.finish_reason == "stop"


@pytest.mark.parametrize(("temperature", "dear"), [(0.0, 0.0002), (1.0, -1.0)])
def test_steps_that_ask_say_what_masks_do(llm: LLM, monkeypatch: pytest.MonkeyPatch, temperature: float, dear: float) -> None:
    """In company: greedy rows ask their grammar first, and few of them need a mask; so do sampled ones where masks are dear."""
    monkeypatch.setattr("ridgeline.compute.decoding.grammar.DEAR_SECONDS", dear)
    kinds = [StructuredOutputs(json=PERSON), StructuredOutputs(json_object=True), StructuredOutputs(regex="([A-Z][a-z]+ ){3,9}"), None]
    asked = [replace(params(kind, temperature), max_tokens=24) for kind in (*kinds, *kinds)]
    asked[5:7] = [replace(asked[5], top_p=0.9), replace(asked[6], min_tokens=9, logprobs=1)]
    answers, moved, move = [], [], RowGrammar.moved
    monkeypatch.setattr(RowGrammar, "moved", lambda self, *said: (moved.append(said), move(self, *said)))
    for moves in (True, False):
        monkeypatch.setattr(NativeRunner, "moves_grammars", moves)
        answers.append([output.outputs[0].token_ids for output in llm.generate(PROMPTS * 2, asked)])
        assert moves == (len(moved) > 40)
        moved.clear()
    assert answers[0] == answers[1]


@pytest.mark.parametrize(
    ("asked", "matches"),
    [
        (StructuredOutputs(choice=["yes", "no"]), lambda text: text in ("yes", "no")),
        (StructuredOutputs(regex="[0-9]{3}-[a-z]{2}"), lambda text: text[:3].isdigit() and text[3] == "-" and len(text) == 6),
        (StructuredOutputs(grammar='root ::= "(" [ab]{2} ")"'), lambda text: text.startswith("(") and text.endswith(")")),
        (StructuredOutputs(json_object=True), lambda text: True),
    ],
)
def test_other_forms(llm: LLM, asked: StructuredOutputs, matches) -> None:
    outputs = llm.generate("Answer: ", params(asked, 1.0, n=2))[0].outputs
    assert all(each.finish_reason in ("stop", "length") for each in outputs)
    assert all(matches(each.text) for each in outputs if each.finish_reason == "stop")


def test_log_probabilities_are_of_raw_logits(llm: LLM) -> None:
    output = llm.generate("Is it? ", params(StructuredOutputs(choice=["yes"]), logprobs=1))[0].outputs[0]
    assert output.text == "yes" and output.logprobs is not None and len(output.logprobs) == len(output.token_ids)


def test_what_excludes_it_is_refused(llm: LLM) -> None:
    with pytest.raises(RequestError, match="ignore_eos"):
        llm.generate("x", params(StructuredOutputs(json_object=True), ignore_eos=True))
    with pytest.raises(RequestError, match="uniqueItems"):
        llm.generate("x", params(StructuredOutputs(json={"type": "array", "uniqueItems": True})))


def test_forced_text_is_drafted(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys of an object are verified several ids at a time: the same ids in fewer steps than with drafts of repetition alone."""
    keys = ("first_name", "age_in_years", "is_customer_since")
    schema = PERSON | {"properties": {key: {"type": "boolean"} for key in keys}, "required": [*keys]}
    asked = params(StructuredOutputs(json=schema))
    engine, found = llm._engine._engine, []
    monkeypatch.setattr(forced, "DEAR_SECONDS", 1.0)  # a busy machine's time does not count
    llm.generate("Warm: ", asked)
    for tells in (True, False):
        if not tells:
            monkeypatch.setattr(RowGrammar, "forced", lambda self: ())
        drafter = PromptLookupDrafter(4, (), True)
        monkeypatch.setattr(engine.scheduler, "drafter", drafter)
        before = engine.scheduler.step
        found.append((llm.generate("Customer: ", asked)[0].outputs[0].token_ids, engine.scheduler.step - before))
    (ids, steps), (plain_ids, plain_steps) = found
    assert ids == plain_ids and steps <= 0.8 * plain_steps
