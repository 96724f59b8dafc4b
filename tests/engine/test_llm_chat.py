"""`LLM.chat`: conversations become prompts by a template, turns end at its ids, and messages never become control tokens."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from ridgeline.core.params import SamplingParams
from ridgeline.engine.llm import LLM
from ridgeline.errors import ConfigError, RequestError
from ridgeline.text.chat_content import Conversation

TEMPLATE = (
    "{% for m in messages %}[{{ m.role }}] {{ m.content }}<eos>{% endfor %}"
    "{% if tools %}({{ tools | length }} tools){% endif %}{% if loud %}!{% endif %}{% if add_generation_prompt %}[assistant] {% endif %}"
)
MESSAGES = [{"role": "user", "content": "Hi"}]
PARAMS = SamplingParams(max_tokens=8, seed=1)


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    file = tmp_path_factory.mktemp("template") / "chat.jinja"
    file.write_text(TEMPLATE)
    with LLM("fake:{}", chat_template=file, seed=1) as made:
        yield made


def prompt_of(llm: LLM, *arguments: object, **more: object) -> str:
    (output,) = llm.chat(*arguments, PARAMS, **more)  # type: ignore[arg-type]
    return llm.tokenizer.decode(output.prompt_token_ids, skip_special=False)


def test_the_template_makes_the_prompt(llm: LLM) -> None:
    assert prompt_of(llm, MESSAGES) == "[user] Hi<eos>[assistant] "
    assert prompt_of(llm, MESSAGES, add_generation_prompt=False) == "[user] Hi<eos>"
    continued = [*MESSAGES, {"role": "assistant", "content": "Hello, I"}]
    assert prompt_of(llm, continued, continue_final_message=True).endswith("[assistant] Hello, I")
    tool = {"type": "function", "function": {"name": "look"}}
    assert "(1 tools)" in prompt_of(llm, MESSAGES, tools=[tool])
    assert "!" in prompt_of(llm, MESSAGES, chat_template_kwargs={"loud": True})


def test_several_conversations_are_answered_in_order(llm: LLM) -> None:
    other = [{"role": "user", "content": "Another"}]
    found = llm.chat([MESSAGES, other], [PARAMS, SamplingParams(max_tokens=3, seed=2)])
    assert [len(each.outputs[0].token_ids) for each in found] == [8, 3]
    assert found[0].outputs == llm.chat(MESSAGES, PARAMS)[0].outputs
    assert llm.chat([]) == []


def test_a_chat_streams(llm: LLM) -> None:
    (whole,) = llm.chat(MESSAGES, PARAMS)
    pieces = list(llm.stream(MESSAGES, PARAMS))
    assert "".join(piece.outputs[0].text for piece in pieces) == whole.outputs[0].text
    assert len(pieces) > 3 and pieces[-1].prompt_token_ids == whole.prompt_token_ids


def test_without_parameters_a_turn_may_fill_the_context(llm: LLM) -> None:
    (output,) = llm.chat(MESSAGES)
    assert len(output.prompt_token_ids) + len(output.outputs[0].token_ids) == llm.limits.max_model_len or (
        output.outputs[0].finish_reason == "stop"
    )


def test_what_cannot_be_rendered_is_refused(llm: LLM) -> None:
    for messages in ([{"content": "x"}], [{"role": "user", "content": 5}]):
        with pytest.raises(RequestError):
            llm.chat(messages, PARAMS)  # type: ignore[arg-type]
    with pytest.raises(RequestError, match="add_generation_prompt"):
        llm.chat(MESSAGES, PARAMS, add_generation_prompt=True, continue_final_message=True)


def test_a_model_without_a_template_names_the_flag() -> None:
    with LLM("fake:{}") as made, pytest.raises(RequestError, match="--chat-template"):
        made.chat(MESSAGES, PARAMS)


def test_a_template_of_no_use_is_told_at_once(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="chat-template"):
        LLM("fake:{}", chat_template=tmp_path / "missing.jinja")


def test_a_turn_ends_where_the_template_ends_it(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(llm.chat_template, "stop_ids", frozenset({65}))
    assert llm.prepare(Conversation(MESSAGES), PARAMS).request.stop_ids == {65, 257}
    assert llm.prepare("Hi", PARAMS).request.stop_ids == {257}
