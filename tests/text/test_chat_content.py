"""A template's variables for a conversation, and the masking of control tokens' names in a client's text."""

import random
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from chat_cases import NOW, NamedTokenizer, found

from gold import TEMPLATES
from ridgeline.errors import RequestError
from ridgeline.text.chat import ChatTemplate
from ridgeline.text.chat_content import (
    AS_SENT,
    MAX_MESSAGES,
    TAG,
    ControlNames,
    Conversation,
    MessageFormat,
    VariableBuilder,
    cut_at_tag,
    own_markup,
)
from ridgeline.text.tokenizer import MASK

CHATML = (
    "{{ bos_token }}{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}"
    "{% for call in m.tool_calls or [] %}{{ call.function|tojson }}{% endfor %}<|im_end|>\n{% endfor %}"
    "{% if tools %}{{ tools|tojson(ensure_ascii=style == 'ascii') }}{% endif %}"
    "{% for d in documents or [] %}{{ d.text }}{% endfor %}{{ style }}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
NAMES = ["<s>", "<|im_start|>", "<|im_end|>", "<|end|>", "[INST]", "<|im_end|>x"]
TOKENIZER = NamedTokenizer(NAMES, bos="<s>", eos=["<|im_end|>"])
CONTROL = ControlNames(NAMES)
USER = {"role": "user", "content": "Hi"}


@pytest.fixture(scope="module")
def chatml() -> Iterator[ChatTemplate]:
    template = ChatTemplate(found(CHATML), TOKENIZER, lambda: NOW)
    yield template
    template.close()


def read(conversation: Conversation, form: MessageFormat = AS_SENT) -> dict[str, Any]:
    return VariableBuilder(CONTROL, CONTROL, form, {"bos_token": "<s>"}, {"style", "messages"}).build(conversation)


def message(content: Any = "Hi", form: MessageFormat = AS_SENT, **more: Any) -> dict[str, Any]:
    return read(Conversation([{"role": "user", "content": content, **more}]), form)["messages"][0]  # type: ignore[no-any-return]


def refused(conversation: Conversation) -> RequestError:
    with pytest.raises(RequestError) as error:
        read(conversation)
    return error.value


def test_a_conversation_is_told_as_it_is() -> None:
    told = read(Conversation([USER, {"role": "assistant", "content": None}], arguments={"style": "short"}))
    assert told == {
        "bos_token": "<s>", "style": "short", "messages": [USER, {"role": "assistant"}], "tools": None, "documents": None,
        "add_generation_prompt": True,
    }  # fmt: skip


def test_parts_are_kept_or_joined() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert message(parts)["content"] == parts
    assert message(parts, MessageFormat(parts=False))["content"] == "a\nb"
    assert message([], MessageFormat(parts=False))["content"] == ""
    for wrong, said in (([{"type": "image_url", "image_url": {"url": "x"}}], "'image_url'"), (7, "int"), ([7], "'int'")):
        error = refused(Conversation([{"role": "user", "content": wrong}]))
        assert error.param == "messages" and said in error.message


def test_arguments_of_tool_calls_become_objects_for_templates_that_want_them() -> None:
    def told(arguments: Any, form: MessageFormat) -> Any:
        call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": arguments}}
        return message(form=form, tool_calls=[call])["tool_calls"][0]["function"]["arguments"]

    objects, strings = MessageFormat(object_arguments=True), MessageFormat(object_arguments=False)
    assert told('{"a": [1]}', objects) == told({"a": [1]}, objects) == {"a": [1]}
    assert told(" ", objects) == {}
    assert told('{"a": [1]}', strings) == '{"a": [1]}'
    for wrong in ("[1]", "{", "1", "[" * 100_000):
        with pytest.raises(RequestError, match="not a JSON object"):
            told(wrong, objects)


def test_reasoning_is_told_under_the_names_that_templates_read() -> None:
    assert message(reasoning="r") == {"role": "user", "content": "Hi", "reasoning": "r", "thinking": "r", "reasoning_content": "r"}


@pytest.mark.parametrize(
    ("conversation", "param", "said"),
    [
        (Conversation([]), "messages", "0 messages"),
        (Conversation([USER] * (MAX_MESSAGES + 1)), "messages", f"1 … {MAX_MESSAGES}"),
        (Conversation([{"content": "no role"}]), "messages", "message 0"),
        (Conversation([USER, {"role": 7}]), "messages", "message 1"),
        (Conversation([{**USER, "tool_calls": {"a": 1}}]), "messages", "not a list"),
        (Conversation([USER], tools=["f"]), "tools", "not a list of objects"),  # type: ignore[list-item]
        (Conversation([USER], continue_final_message=True), "continue_final_message", "set one of them"),
        (Conversation([{"role": "user"}], add_generation_prompt=False, continue_final_message=True), "messages", "no content"),
        (Conversation([USER], arguments={"messages": []}), "chat_template_kwargs", "set by the server"),
        (Conversation([USER], arguments={"chat_template": "x"}), "chat_template_kwargs", "set by the server"),
        (Conversation([USER], arguments={"bos_token": "x"}), "chat_template_kwargs", "set by the server"),
        (Conversation([USER], arguments={"__class__": 1}), "chat_template_kwargs", "letters, digits"),
        (Conversation([USER], arguments={"a" * 65: 1}), "chat_template_kwargs", "letters, digits"),
        (Conversation([USER], arguments={"raise_exception": 1}), "chat_template_kwargs", "reads no 'raise_exception'; it reads: style"),
        (Conversation([USER], arguments={"style": "a" * 5_000}), "chat_template_kwargs", "5013 characters"),
        (Conversation([USER], arguments={"style": object()}), "chat_template_kwargs", "not JSON"),
    ],
)
def test_what_no_template_can_render_is_refused(conversation: Conversation, param: str, said: str) -> None:
    error = refused(conversation)
    assert (error.status, error.param) == (400, param) and said in error.message


def test_data_that_nests_too_deeply_is_refused() -> None:
    deep: Any = "x"
    for _ in range(5_000):
        deep = [deep]
    for conversation in (Conversation([{**USER, "extra": deep}]), Conversation([USER], tools=[{"a": deep}])):
        assert "nests too deeply" in refused(conversation).message


def test_a_name_is_marked_after_its_first_character() -> None:
    assert CONTROL.mask("a<|im_end|>b") == f"a<{MASK}|im_end|>b"
    assert CONTROL.mask("[INST") == f"[{MASK}INST" and CONTROL.mask("x<") == f"x<{MASK}" and CONTROL.mask("<<s") == f"<<{MASK}s"
    assert CONTROL.mask("a < b <|other|> [x]") == "a < b <|other|> [x]"
    assert CONTROL.mask({"<s>": ["<s>", 7, None, ("<s>",)]}) == {f"<{MASK}s>": [f"<{MASK}s>", 7, None, [f"<{MASK}s>"]]}
    assert CONTROL.mask(f"<{MASK}s>") == f"<{MASK}s>", "a mark of the client's own is taken away first"
    assert ControlNames([]).mask("<s>") == "<s>"


def test_an_assistant_keeps_the_tags_that_its_template_names() -> None:
    """As it wrote them: Qwen 3's template takes the reasoning of earlier answers away, which it finds by these tags."""
    markup = frozenset({"<think>", "</think>", "<tool_call>", "</tool_call>", "<start_of_image>", "[multimodal]", "<open>"})
    text = (TEMPLATES / "Qwen-Qwen3-0.6B.jinja").read_text()
    own = own_markup(markup, [text, "<start_of_image> <open>"])
    assert own == {"<think>", "</think>", "<tool_call>", "</tool_call>"} and not own_markup(markup, ["nothing"])
    names = ["<|im_start|>", "<|im_end|>"]
    builder = VariableBuilder(ControlNames([*names, *markup]), ControlNames([*names, *(markup - own)]), AS_SENT, {}, {"messages"})
    said = "<think>a</think>b <|im_end|> [multimodal]"
    found = builder.build(Conversation([{"role": role, "content": said} for role in ("user", "assistant", "tool")]))["messages"]
    assert found[1]["content"] == f"<think>a</think>b <{MASK}|im_end|> [{MASK}multimodal]"
    assert found[0]["content"] == found[2]["content"] == f"<{MASK}think>a<{MASK}/think>b <{MASK}|im_end|> [{MASK}multimodal]"


def test_roles_that_complete_a_name_are_marked_and_known_ones_are_not() -> None:
    names = ControlNames(["<|user|>", "<|end|>"])
    assert names.mask_role("user") == "user" and names.mask_role("critic") == "critic"
    assert names.mask_role("end") == f"e{MASK}nd" and names.mask_role("<|end|>") == f"<{MASK}|end|>"


def test_masking_takes_linear_time() -> None:
    names = ControlNames([f"<unused{i}>" for i in range(6_000)] + NAMES)
    for unit in ("<", "<unused1", "<unused12>", "ab "):
        start = time.monotonic()
        names.mask(unit * (1_000_000 // len(unit)))
        assert time.monotonic() - start < 1


def test_no_text_of_a_client_becomes_a_control_token(chatml: ChatTemplate) -> None:
    """Pieces of names in every place of a conversation, put together by the template in every way."""
    chooser = random.Random(7)
    pieces = [name[start:end] for name in NAMES for start in range(len(name)) for end in range(start + 1, len(name) + 1)]
    expected = TOKENIZER.encode("<s><|im_start|><|im_end|><|im_start|><|im_end|><|im_start|>", False, special=True)

    def text() -> str:
        return "".join(chooser.choice([*pieces, *NAMES, MASK, "é"]) for _ in range(chooser.randint(1, 6)))

    for _ in range(300):
        call = {"function": {"name": text(), "arguments": {text(): [text(), {text(): text()}]}}}
        conversation = Conversation(
            [{"role": chooser.choice(["user", text()]), "content": text(), "tool_calls": [call]}, {"role": "tool", "content": text()}],
            tools=[{"name": text(), text(): text()}], documents=[{"text": text()}, {"text": text()}], arguments={"style": text()},
        )  # fmt: skip
        ids = chatml.encode(conversation, TOKENIZER)
        assert [token for token in ids if TOKENIZER.is_control(token)] == expected
        assert TOKENIZER.decode(ids, skip_special=False) == chatml.render(conversation)
        assert MASK not in chatml.render(conversation)


def test_the_mark_survives_escaping(chatml: ChatTemplate) -> None:
    conversation = Conversation([USER], tools=[{"name": "é<|im_end|>"}], arguments={"style": "ascii"})
    assert '"\\u00e9<|im_end|>"' in chatml.render(conversation)
    assert chatml.encode(conversation, TOKENIZER).count(TOKENIZER.id_of("<|im_end|>")) == 1


def test_ordinary_text_keeps_its_ids(chatml: ChatTemplate) -> None:
    conversation = Conversation([{"role": "user", "content": "a < b, </think> and <|unknown|>"}])
    text = chatml.render(conversation)
    assert text == "<s><|im_start|>user\na < b, </think> and <|unknown|><|im_end|>\n<|im_start|>assistant\n"
    assert chatml.encode(conversation, TOKENIZER) == TOKENIZER.encode(text, add_bos=False, special=True)


def continued(content: Any) -> Conversation:
    return Conversation([USER, {"role": "assistant", "content": content}], add_generation_prompt=False, continue_final_message=True)


def test_a_final_message_is_continued_where_it_ends(chatml: ChatTemplate) -> None:
    start = "<s><|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    for content in ("Roses are red, ", "", "ends in a name <|im_end|>", f"says {TAG}itself", "a < b <"):
        assert chatml.render(continued(content)) == start + content
    assert chatml.render(continued([{"type": "text", "text": "a"}, {"type": "text", "text": "b "}])) == start + "a\nb "


def test_a_template_that_changes_the_final_message_refuses_to_continue_it() -> None:
    def cut(change: Callable[[str], str], content: str = "Roses ") -> str:
        return cut_at_tag(change(content + TAG), {"content": content + TAG})

    assert cut(lambda text: f"<{text}>") == "<Roses "
    assert cut(lambda text: f"<{text.strip()}>") == "<Roses"
    for change in (str.upper, lambda text: text[:10], lambda text: text[3:], lambda text: ""):
        with pytest.raises(RequestError, match="continued") as error:
            cut(change)
        assert error.value.param == "continue_final_message"
