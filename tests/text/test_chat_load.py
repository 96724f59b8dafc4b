"""Sources of templates, results of the check at load for good and for damaged ones, and the answer of a model without one."""

import json
import struct
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from chat_cases import NAMES, NOW, NamedTokenizer, corpus, found

from gold import TEMPLATES
from ridgeline.errors import ConfigError, ModelFormatError, RequestError
from ridgeline.text.chat import ChatTemplate, TemplateFiles, find_template, load_chat_template, no_template
from ridgeline.text.chat_content import Conversation, MessageFormat
from ridgeline.text.chat_roles import ALL_ROLES
from ridgeline.text.files import load_tokenizer

TOKENIZER = NamedTokenizer(["<s>", "</s>", "<|im_start|>", "<|im_end|>"], bos="<s>", eos=["</s>"])
BOS, EOS, _, END = range(256, 260)
TURNS = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
PROMPT = "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
GOOD = "{{ bos_token }}" + TURNS + PROMPT
HI = Conversation([{"role": "user", "content": "Hi"}])


def gguf(path: Path, **pairs: str | int) -> Path:
    """A GGUF file of metadata alone; `__` in a name stands for a dot."""
    data = b"GGUF" + struct.pack("<IQQ", 3, 0, len(pairs))

    def text(value: str) -> bytes:
        return struct.pack("<Q", len(value.encode())) + value.encode()

    for name, value in pairs.items():
        kind = struct.pack("<I", 8) + text(value) if isinstance(value, str) else struct.pack("<II", 4, value)
        data += text(name.replace("__", ".")) + kind
    path.write_bytes(data + bytes(-len(data) % 32))
    return path


def directory(path: Path, **files: Any) -> Path:
    """A model directory; `__` in a file's name stands for a dot."""
    for name, value in files.items():
        file = path / name.replace("__", ".")
        file.parent.mkdir(exist_ok=True, parents=True)
        file.write_text(value if isinstance(value, str) else json.dumps(value))
    return path


@contextmanager
def loaded(text: str, tokenizer: NamedTokenizer = TOKENIZER, tokens: Mapping[str, str] | None = None) -> Iterator[ChatTemplate]:
    template = ChatTemplate(found(text, tokens or {"bos_token": "<s>", "eos_token": "</s>"}), tokenizer, lambda: NOW)
    try:
        yield template
    finally:
        template.close()


def test_of_a_gguf_header(tmp_path: Path) -> None:
    one = gguf(tmp_path / "one.gguf", tokenizer__chat_template="A", tokenizer__ggml__bos_token_id=BOS, tokenizer__ggml__eos_token_id=END)
    assert find_template(one, "m", TOKENIZER, None) == found("A", {"bos_token": "<s>", "eos_token": "<|im_end|>"})
    pairs = {"tokenizer.chat_template.default": "A", "tokenizer.chat_template.tool_use": "B", "tokenizer.chat_template.rag": "C"}
    named = find_template(gguf(tmp_path / "named.gguf", **pairs), "m", TOKENIZER, None)
    assert named is not None and named.texts == {"default": "A", "tool_use": "B"}
    assert find_template(gguf(tmp_path / "none.gguf", tokenizer__ggml__eos_token_id=EOS), "m", TOKENIZER, None) is None
    outside = gguf(tmp_path / "outside.gguf", tokenizer__chat_template="A", tokenizer__ggml__eos_token_id=TOKENIZER.vocab_size)
    with pytest.raises(ModelFormatError, match="eos_token_id is 260"):
        find_template(outside, "m", TOKENIZER, None)


@pytest.mark.parametrize(
    ("files", "texts"),
    [
        ({"chat_template__jinja": "A", "tokenizer_config__json": {"chat_template": "B"}}, {"default": "A"}),
        ({"tokenizer_config__json": {"chat_template": "B"}, "chat_template__json": {"chat_template": "C"}}, {"default": "B"}),
        ({"chat_template__json": {"chat_template": "C"}}, {"default": "C"}),
        (
            {"tokenizer_config__json": {"chat_template": [{"name": n, "template": n} for n in ("default", "rag", "tool_use")]}},
            {"default": "default", "tool_use": "tool_use"},
        ),
        ({"chat_template__jinja": "A", "additional_chat_templates/tool_use__jinja": "T"}, {"default": "A", "tool_use": "T"}),
        ({"tokenizer_config__json": {"chat_template": [{"name": "rag", "template": "R"}]}}, None),
        ({"tokenizer_config__json": {}}, None),
        ({}, None),
    ],
)
def test_of_a_directory(tmp_path: Path, files: dict[str, Any], texts: dict[str, str] | None) -> None:
    template = find_template(directory(tmp_path, **files), "m", TOKENIZER, None)
    assert (template and template.texts) == texts
    assert template is None or template.source == "model"


def test_names_of_tokens_in_a_directory(tmp_path: Path) -> None:
    path = directory(
        tmp_path,
        chat_template__jinja="A",
        special_tokens_map__json={"bos_token": "old", "unk_token": {"content": "<unk>"}},
        tokenizer_config__json={"bos_token": {"content": "<s>"}, "eos_token": "</s>", "add_bos_token": True, "pad_token": None},
    )
    template = find_template(path, "m", TOKENIZER, None)
    assert template is not None and template.tokens == {"bos_token": "<s>", "unk_token": "<unk>", "eos_token": "</s>"}


@pytest.mark.parametrize(
    "stated", [7, {"default": "A"}, [{"name": "default"}], [7], [{"name": "default", "template": "x" * ((1 << 20) + 1)}]]
)
def test_what_is_no_template_is_refused(tmp_path: Path, stated: Any) -> None:
    with pytest.raises(ModelFormatError, match="chat"):
        find_template(directory(tmp_path, tokenizer_config__json={"chat_template": stated}), "m", TOKENIZER, None)


def test_a_file_that_the_user_names_wins(tmp_path: Path) -> None:
    path = gguf(tmp_path / "m.gguf", tokenizer__chat_template="A", tokenizer__ggml__bos_token_id=BOS)
    mine = tmp_path / "mine.jinja"
    mine.write_text(GOOD)
    template = load_chat_template(path, "m", TOKENIZER, mine)
    assert template is not None
    with closing(template):
        assert (template.source, template.stop_ids, template.findings) == ("file", {END}, ())
        assert template.encode(HI, TOKENIZER)[0] == BOS


def test_a_file_that_is_of_no_use_is_an_error_at_the_start(tmp_path: Path) -> None:
    path = gguf(tmp_path / "m.gguf", tokenizer__chat_template="A")
    for content, said in (("{% if %}", "does not compile"), ("x" * ((1 << 20) + 1), "1048577 bytes"), (None, "no file")):
        mine = tmp_path / "mine.jinja"
        mine.unlink(missing_ok=True)
        if content is not None:
            mine.write_text(content)
        with pytest.raises(ConfigError, match=f"--chat-template.*{said}"):
            load_chat_template(path, "m", TOKENIZER, mine)


def test_a_model_without_a_template_names_the_flag(tmp_path: Path) -> None:
    assert load_chat_template(gguf(tmp_path / "m.gguf"), "m", TOKENIZER, None) is None
    assert load_chat_template(None, "fake", TOKENIZER, None) is None
    error = no_template("m")
    assert error.status == 400 and "--chat-template FILE" in error.message


def test_tools_choose_the_variant_for_tools() -> None:
    texts = {"default": GOOD, "tool_use": "tools: {{ tools|length }}"}
    with closing(ChatTemplate(TemplateFiles(texts, {"bos_token": "<s>"}, "model"), TOKENIZER)) as template:
        assert template.render(Conversation(HI.messages, tools=[{}, {}])) == "tools: 2"
        assert template.render(HI) == "<s><|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"


def test_the_demo_gets_turns_that_are_built_in(demo_file: Path) -> None:
    tokenizer = load_tokenizer(demo_file)
    template = load_chat_template(demo_file, "demo", tokenizer, None)
    assert template is not None
    with closing(template):
        assert (template.source, template.stop_ids, template.findings) == ("built in", {106}, ())
        text = template.render(Conversation([{"role": "system", "content": " Be brief. "}, *HI.messages]))
        assert text == "<bos><start_of_turn>user\nBe brief.\n\nHi<end_of_turn>\n<start_of_turn>model\n"
        for roles in (["system"], ["assistant"], ["assistant", "user"]):
            with pytest.raises(RequestError) as refused:
                template.render(Conversation([{"role": role, "content": "x"} for role in roles]))
            assert refused.value.code == "template_refused"
    assert load_chat_template(demo_file, "other", tokenizer, None) is None


def test_the_demo_s_turns_are_those_of_its_family(demo_file: Path) -> None:
    tokenizer = load_tokenizer(demo_file)
    template = load_chat_template(demo_file, "demo", tokenizer, None)
    assert template is not None
    text = (TEMPLATES / "google-gemma-2-2b-it.jinja").read_text()
    with closing(template), closing(ChatTemplate(found(text, {"bos_token": "<bos>"}), tokenizer)) as reference:
        for count in range(1, 6):
            messages = [{"role": ("user", "assistant")[i % 2], "content": f" text {i}\n"} for i in range(count)]
            for prompt in (True, False):
                conversation = Conversation(messages, add_generation_prompt=prompt)
                assert template.render(conversation) == reference.render(conversation)
                assert template.encode(conversation, tokenizer) == reference.encode(conversation, tokenizer)


@pytest.mark.parametrize(
    ("text", "form"),
    [
        (GOOD, MessageFormat(parts=False, object_arguments=True)),
        ("{% for m in messages %}{% for part in m.content %}{{ part.text }}{% endfor %}{% endfor %}", MessageFormat(parts=True)),
        (
            "{% for m in messages %}{{ m.content }}{% for c in m.tool_calls %}{{ '=' + c.function.arguments }}{% endfor %}{% endfor %}",
            MessageFormat(parts=False, object_arguments=False),
        ),
    ],
)
def test_the_format_that_a_template_takes(text: str, form: MessageFormat) -> None:
    with loaded(text) as template:
        assert replace(template._builder.format, roles=ALL_ROLES, roles_with_tools=ALL_ROLES) == form


def test_what_is_no_user_s_is_not_told_as_the_assistant_s() -> None:
    """Some templates know users and assistants alone. One that tells nobody apart is told everything as it is."""
    roles = ("system", "user", "assistant", "tool", "assistant", "developer", "user")
    messages = [{"role": role, "content": role.upper()} for role in roles]
    with loaded("{% for m in messages %}{{ 'U' if m.role == 'user' else 'A' }}:{{ m.content }}|{% endfor %}") as template:
        text = template.render(Conversation(messages))
        assert text == "U:SYSTEM\n\nUSER|A:ASSISTANT|U:[tool result]\nTOOL|A:ASSISTANT|U:DEVELOPER\n\nUSER|"
        assert template.folded_roles(Conversation(messages)) == ["tool", "developer", "system"]
    with loaded("{% for m in messages %}{{ m.content }}|{% endfor %}") as template:
        assert template.render(Conversation(messages)) == "".join(f"{message['content']}|" for message in messages)


def test_a_good_template_passes_in_silence() -> None:
    with loaded(GOOD) as template:
        assert (template.stop_ids, template.findings) == ({END}, ())


END_BY_NEXT_TURN = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}{% endfor %}" + PROMPT
EOS_AFTER_END = GOOD + "{% if not add_generation_prompt %}{{ eos_token }}{% endif %}"
SEVERAL = GOOD.replace("<|im_end|>", "<|im_end|></s>")


@pytest.mark.parametrize(("text", "end"), [(END_BY_NEXT_TURN, END - 1), (EOS_AFTER_END, END), (SEVERAL, EOS)])
def test_the_token_that_ends_a_turn(text: str, end: int) -> None:
    with loaded(text) as template:
        assert (template.stop_ids, template.findings) == ({end}, ())


DAMAGED: dict[str, tuple[str, str]] = {
    "turn end misspelt": (GOOD.replace("<|im_end|>", "<|im-end|>"), "'<|im-end|>', is no single token"),
    "turn end of another family": (GOOD.replace("<|im_end|>", "<end_of_turn>"), "'<end_of_turn>', is no single token"),
    "turn end in plain words": (GOOD.replace("<|im_end|>", "### User:"), "'### User:', is no single token"),
    "only new lines": ("{% for m in messages %}{{ m.content }}\n{% endfor %}", "so roles run together"),
    "BOS twice": ("<s>" + GOOD, "BOS 2 times"),
    "BOS in every turn": (GOOD.replace("<|im_start|>", "<s><|im_start|>"), "BOS 3 times"),
    "content misspelt": (GOOD.replace("m.content", "m.contnet"), "leaves out what the user says"),
    "content under another name": (GOOD.replace("m.content", "m.value"), "leaves out what the user says"),
    "cut short": (GOOD[:30], "does not compile"),
    "cut at a word": (GOOD[: GOOD.index("m.role") + 4], "does not compile"),
    "a loop left open": (GOOD.replace("{% endfor %}", "", 1), "does not compile"),
    "a brace too few": (GOOD.replace("{{ m.role }}", "{{ m.role }"), "does not compile"),
    "an unknown filter": (GOOD.replace("m.role", "m.role|shout"), "does not compile"),
    "a tag of another engine": (GOOD.replace("{% for m in messages %}", "{% foreach m in messages %}"), "does not compile"),
    "an undefined function": (GOOD.replace("m.role", "render(m)"), "cannot be rendered"),
    "an undefined list": (GOOD.replace("in messages", "in chat.messages"), "cannot be rendered"),
    "a wrong type": (GOOD.replace("m.role", "m.role + 1"), "cannot be rendered"),
    "the assistant left out": (
        GOOD.replace("{{ m.content }}", "{{ m.content if m.role != 'assistant' }}"),
        "leaves out what the assistant said",
    ),
    "the user left out": (GOOD.replace("{{ m.content }}", "{{ m.content if m.role != 'user' }}"), "leaves out what the user says"),
    "the system left out": (GOOD.replace("{{ m.content }}", "{{ m.content if m.role != 'system' }}"), "leaves out system messages"),
    "everything refused": ("{{ raise_exception('no') }}", "cannot be rendered (no)"),
    "for tools only": ("{{ tools|length }}" + GOOD, "only conversations with tools"),
    "no header for the answer": (GOOD.removesuffix(PROMPT), "no generation prompt"),
    "one role for all": (GOOD.replace("{{ m.role }}", "user"), "begins every turn with '<|im_end|>"),
    "turns backwards": (GOOD.replace("in messages", "in messages|reverse"), "another order"),
    "everything twice": (GOOD.replace("{{ m.content }}", "{{ m.content }} {{ m.content }}"), "what the user says 2 times"),
    "the last turn alone": (GOOD.replace("in messages", "in messages[:2]"), "leaves out a user's second turn"),
    "a start misspelt": (GOOD.replace("<|im_start|>", "<|im_strat|>"), "'<|im_strat|>', which is no token of this model"),
    "empty": ("", "leaves out what the user says"),
    "an error page": ("<!DOCTYPE html><html>404: not found</html>", "leaves out what the user says"),
}


SPOILT = ("leaves out what the assistant said", "leaves out a user's second turn", "another order")
"""Errors with which single questions still work."""


@pytest.mark.parametrize("damage", DAMAGED)
def test_damaged_templates_are_flagged_at_load_with_what_to_do(damage: str) -> None:
    text, said = DAMAGED[damage]
    with loaded(text) as template:
        assert any(said in finding.cause for finding in template.findings), template.findings
        assert all("--chat-template FILE" in finding.fix for finding in template.findings)
        # Without the user's words, or where nothing is ever rendered, there is no chat: it does not begin with a warning.
        assert template.is_usable == (template.findings[0].severity != "error" or said in SPOILT)


def test_a_template_that_does_not_compile_answers_with_the_reason() -> None:
    with loaded("{% if %}") as template:
        assert template.stop_ids == frozenset()
        with pytest.raises(RequestError, match=r"chat is not possible: .*does not compile.*--chat-template FILE") as refused:
            template.encode(HI, TOKENIZER)
        assert (refused.value.status, refused.value.code) == (400, "no_chat_template")


ODD = {
    "NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use": "only conversations with tools",
    "NousResearch-Hermes-3-Llama-3.1-8B-tool_use": "only conversations with tools",
    "fireworks-ai-llama-3-firefunction-v2": "'functions' is undefined",
}
"""Exceptions in the corpus: variants for tools, and one that needs variables of its own."""
OWN_ENDS = {"llama-cpp-rwkv-world": "\n\n"}
"""EOS of families whose EOS is no name."""


def test_real_templates_give_no_false_alarm_and_their_turn_end() -> None:
    ends: dict[str, str] = {}
    with corpus() as real:
        for stem, text in real.texts.items():
            names = sorted(set(NAMES.findall(text)))
            template = real.load(stem, tokenizer := NamedTokenizer(names, bos="<s>", eos=[OWN_ENDS.get(stem, "</s>")]))
            assert template.is_usable, (stem, template.findings)
            assert all(ODD.get(stem, "nothing to say") in note.cause for note in template.findings), (stem, template.findings)
            assert bool(template.findings) == (stem in ODD)
            assert all(note.severity == "note" for note in template.findings)
            ends[stem] = "".join(tokenizer.piece(token).decode() for token in template.stop_ids)
    assert len(ends) >= 50
    assert {stem for stem, end in ends.items() if not end} == {*ODD, *OWN_ENDS}
    assert ends["Qwen-Qwen3-0.6B"] == "<|im_end|>" and ends["meta-llama-Llama-3.1-8B-Instruct"] == "<|eot_id|>"
    assert ends["microsoft-Phi-3.5-mini-instruct"] == "<|end|>" and ends["google-gemma-2-2b-it"] == "<end_of_turn>"
    assert ends["Mistral-Small-3.2-24B-Instruct-2506"] == "</s>" and ends["GLM-4.7-Flash"] == "<|user|>"


def test_the_clock_is_the_template_s_only_time() -> None:
    with loaded("{% for m in messages %}{{ strftime_now('%d %b %Y %H:%M:%S') }} {{ m.content }}</s>{% endfor %}") as template:
        assert template.render(HI) == "04 Mar 2026 05:06:07 Hi</s>"
