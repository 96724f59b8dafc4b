"""What a request can supply beside texts (names, tools, calls, documents, variables of the template) never becomes a control token, and is
never evaluated by any real template."""

from collections.abc import Iterator
from typing import Any

import pytest
from chat_cases import NAMES, Corpus, NamedTokenizer, corpus

from ridgeline.errors import RequestError
from ridgeline.text.chat import ChatTemplate
from ridgeline.text.chat_content import Conversation
from ridgeline.text.prompt_cache import PromptCache

ODD: tuple[Any, ...] = (
    0, -1, 10**30, 1.5, True, None, "", [], {}, "x" * 3_000, ["a"] * 500, {"a": {"b": [1]}}, "__class__", "{{ 7 * 7 }}", "{% raw %}",
)  # fmt: skip
OWN = ("messages", "tools", "documents", "bos_token", "eos_token", "add_generation_prompt")


@pytest.fixture(scope="module")
def templates() -> Iterator[Corpus]:
    with corpus() as found:
        yield found


def everywhere(text: str, arguments: dict[str, Any]) -> Conversation:
    """The text in every place of a conversation that is the client's."""
    schema = {"type": "object", "properties": {text: {"type": "string", "description": text, "enum": [text, "b"]}}, "required": [text]}
    tool = {"type": "function", "function": {"name": text, "description": text, "parameters": schema, text: text}}
    call = {"id": text, "type": "function", "function": {"name": text, "arguments": {text: text, "list": [text, {text: text}]}}}
    return Conversation(
        messages=[
            {"role": "system", "content": text, "name": text},
            {"role": "user", "content": text, "name": text},
            {"role": "assistant", "content": text, "reasoning_content": text, "tool_calls": [call]},
            {"role": "tool", "content": text, "tool_call_id": text, "name": text},
            {"role": "user", "content": text},
        ],
        tools=[tool],
        documents=[{"title": text, "text": text, text: text}],
        arguments=arguments,
    )


def control_ids(template: ChatTemplate, tokenizer: NamedTokenizer, conversation: Conversation) -> int | None:
    """Control tokens of the prompt; None where the template refuses the conversation."""
    try:
        ids = template.encode(conversation, PromptCache(tokenizer).encoder(b""))
    except RequestError:
        return None
    assert "49" not in tokenizer.decode(ids, False), "7 * 7 was evaluated"
    return sum(map(tokenizer.is_control, ids))


def attack(templates: Corpus, name: str, most: int) -> int:
    """Tries a template with at most so many names and variables; returns the number of prompts that it wrote."""
    tokenizer = NamedTokenizer([*dict.fromkeys(NAMES.findall(templates.texts[name]))])
    template = templates.load(name, tokenizer)
    variables = [each for each in template.variables if each not in OWN]

    def count(text: str, arguments: dict[str, Any]) -> int | None:
        return control_ids(template, tokenizer, everywhere(text, arguments))

    written = 0
    for evil in (*tokenizer.names[:most], "{{ 7 * 7 }}"):
        given = count(evil, {}), count(evil, dict.fromkeys(variables, evil))
        plain = count("zqz", {}), count("zqz", dict.fromkeys(variables, "zqz"))
        assert given == plain or None in given, (name, evil, given, plain)
        written += sum(each is not None for each in given)
    for variable in variables[:most]:
        for value in ODD:
            written += count("hi", {variable: value}) is not None
    return written


def test_some_templates(templates: Corpus) -> None:
    assert sum(attack(templates, name, 2) for name in sorted(templates.texts)[::20]) > 10


@pytest.mark.night
@pytest.mark.timeout(900)
def test_all_templates(templates: Corpus) -> None:
    written = {name: attack(templates, name, 12) for name in templates.texts}
    assert sum(map(bool, written.values())) > len(written) / 2, written
