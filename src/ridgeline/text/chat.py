"""Chat: a conversation to a prompt, by the template that belongs to the model.

Owns the life of one model's template: found (a GGUF header, the files of a directory, a file that the user names, or Ridgeline's own),
compiled and tried once at load (the shapes that it takes, where an assistant's turn ends, what looks wrong), then rendered within a budget
by a process of its own (`chat_process`). A template never comes from a request.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import takewhile
from pathlib import Path
from typing import Any, Final, Literal

from ridgeline.errors import ConfigError, ModelFormatError, ModelNotFoundError, OverloadedError, RequestError
from ridgeline.facts.files.gguf import Header, read_header
from ridgeline.facts.files.json_file import read_object, read_text
from ridgeline.text.chat_content import AS_SENT, ControlNames, Conversation, Reader, Shape, cut_at_tag, unmasked
from ridgeline.text.chat_process import Renderer
from ridgeline.text.tokenizer import Tokenizer

Source = Literal["model", "file", "built in"]

MAX_TEMPLATE_BYTES: Final = 1 << 20
MAX_JSON_BYTES: Final = 16 << 20
"""Gemma 3's tokenizer_config.json has 1.2 MB."""
MAX_NAMES: Final = 64

DEFAULT, TOOL_USE = "default", "tool_use"
"""The variants of a template that are ever used: the second for conversations with tools, where a model has it."""

_BUILT_IN = frozenset({"demo"})
"""Packaged models without a template, for which one lies in `templates/`."""

_GGUF_TOKENS = {
    "bos": "bos_token", "eos": "eos_token", "unknown": "unk_token", "padding": "pad_token", "seperator": "sep_token", "mask": "mask_token",
    "cls": "cls_token",
}  # fmt: skip
"""`tokenizer.ggml.*_token_id` (spelt as in GGUF) → the variable that templates read."""


@dataclass(frozen=True, slots=True)
class Found:
    """texts: variant → template, the default among them. tokens: variable → name of a token, as templates read them (`bos_token`)."""

    texts: Mapping[str, str]
    tokens: Mapping[str, str]
    source: Source


def find_template(path: Path | None, model: str, tokenizer: Tokenizer, file: Path | None) -> Found | None:
    """The template of the model at `path` (None: a fake model, without files), which the user calls `model`; None where there is none.

    Raises ConfigError where `file` cannot be read, ModelFormatError where the model's files are malformed.
    """
    if path is None:
        texts, tokens = dict[str, str](), dict[str, str]()
    elif path.is_dir():
        config = _object(path / "tokenizer_config.json")
        texts, tokens = _of_directory(path, config), _tokens_of_directory(path, config)
    else:
        header = read_header(path)
        texts, tokens = _of_header(header), _tokens_of_header(header, tokenizer)
    if file is not None:
        return Found({DEFAULT: _named_file(file)}, tokens, "file")
    if DEFAULT in texts:
        return Found(texts, tokens, "model")
    if model in _BUILT_IN:
        return Found({DEFAULT: read_text(Path(__file__).with_name("templates") / f"{model}.jinja")}, tokens, "built in")
    return None


def _named_file(file: Path) -> str:
    try:
        return read_text(file, MAX_TEMPLATE_BYTES)
    except (ModelFormatError, ModelNotFoundError) as error:
        raise ConfigError(f"--chat-template: {error}", fix={"--chat-template": None}) from None


def _of_header(header: Header) -> dict[str, str]:
    keys = {DEFAULT: "tokenizer.chat_template", TOOL_USE: f"tokenizer.chat_template.{TOOL_USE}"}
    if keys[DEFAULT] not in header.metadata:
        keys[DEFAULT] += f".{DEFAULT}"
    return {name: header.text(key) for name, key in keys.items() if key in header.metadata}


def _tokens_of_header(header: Header, tokenizer: Tokenizer) -> dict[str, str]:
    tokens = {}
    for key, name in _GGUF_TOKENS.items():
        if f"tokenizer.ggml.{key}_token_id" in header.metadata:
            token = header.integer(f"tokenizer.ggml.{key}_token_id", 0, tokenizer.vocab_size - 1)
            tokens[name] = tokenizer.piece(token).decode("utf-8", "replace")
    return tokens


def _of_directory(path: Path, config: Mapping[str, Any]) -> dict[str, str]:
    """Templates by name, as in transformers: files of their own before tokenizer_config.json; chat_template.json is older."""
    texts = {}
    for name, file in ((DEFAULT, path / "chat_template.jinja"), (TOOL_USE, path / "additional_chat_templates" / f"{TOOL_USE}.jinja")):
        if file.is_file():
            texts[name] = read_text(file, MAX_TEMPLATE_BYTES)
    return texts or _stated(config, "tokenizer_config.json") or _stated(_object(path / "chat_template.json"), "chat_template.json")


def _stated(values: Mapping[str, Any], name: str) -> dict[str, str]:
    """`chat_template`: a string, or a list of objects with name and template."""
    stated = values.get("chat_template")
    if stated is None:
        return {}
    if isinstance(stated, str):
        stated = [{"name": DEFAULT, "template": stated}]
    if not isinstance(stated, list) or not all(isinstance(one, dict) and isinstance(one.get("template"), str) for one in stated):
        raise ModelFormatError(f"{name}: chat_template is neither a string nor a list of objects with name and template")
    texts: dict[str, str] = {one["name"]: one["template"] for one in stated if one.get("name") in (DEFAULT, TOOL_USE)}
    if longest := max((len(text) for text in texts.values() if len(text) > MAX_TEMPLATE_BYTES), default=0):
        raise ModelFormatError(f"{name}: a chat template has {longest} characters, at most {MAX_TEMPLATE_BYTES} are possible")
    return texts


def _tokens_of_directory(path: Path, config: Mapping[str, Any]) -> dict[str, str]:
    tokens: dict[str, str] = {}
    for values in (_object(path / "special_tokens_map.json"), config):
        for name, value in values.items():
            text = value.get("content") if isinstance(value, dict) else value
            if name.endswith("_token") and isinstance(text, str) and len(tokens) < MAX_NAMES:
                tokens[name] = text
    return tokens


def _object(path: Path) -> dict[str, Any]:
    return read_object(path, MAX_JSON_BYTES) if path.is_file() else {}


Render = Callable[[Conversation], str]
"""Raises `RequestError`."""

_USER, _ANSWER, _SYSTEM, _AGAIN = "Zebra crossing", "Quiet harbour", "Amber lantern", "Velvet orbit"
"""Contents that no template writes by itself."""
_PARAMETERS: Final = {"type": "object", "properties": {"place": {"type": "string", "description": "Where."}}, "required": ["place"]}
_TOOLS: Final = ({"type": "function", "function": {"name": "find", "description": "Finds.", "parameters": _PARAMETERS}},)
_FIX: Final = "give the template that belongs to this model with --chat-template FILE"
_SHOWN: Final = 40


@dataclass(frozen=True, slots=True)
class Findings:
    """stop_ids: what ends an assistant's turn. warnings: what looks wrong, with what to do. usable: whether it is worth asking it."""

    stop_ids: frozenset[int]
    warnings: tuple[str, ...]
    usable: bool = True


def find_shape(render: Render) -> Shape:
    """The shape that a template takes: parts of a content, a tool call's arguments. `render` passes on both as they are."""
    as_text = _tried(render, _turn("user", _USER))
    as_parts = _tried(render, _turn("user", [{"type": "text", "text": _USER}]))
    written_out = any(as_parts.count(key) > as_text.count(key) for key in ("'text'", '"text"'))
    as_object = _tried(render, _turn("user", _USER), _call({"place": _ANSWER}))
    as_string = _tried(render, _turn("user", _USER), _call(f'{{"place": "{_ANSWER}"}}'))
    return Shape(_USER in as_parts and not written_out, object_arguments=_ANSWER in as_object or _ANSWER not in as_string)


def check(render: Render, tokenizer: Tokenizer) -> Findings:
    """Renders a user's, an assistant's and a system's turn and looks for what real files get wrong."""
    try:
        asked = render(Conversation((_turn("user", _USER),), add_generation_prompt=False))
        prompted = render(Conversation((_turn("user", _USER),)))
        answered = render(Conversation((_turn("user", _USER), _turn("assistant", _ANSWER)), add_generation_prompt=False))
    except RequestError as error:
        return _unrendered(render, error)
    warnings = []
    for who, content, text in (("user", _USER, asked), ("assistant", _ANSWER, answered)):
        if content not in text:
            warnings.append(f"the chat template leaves out what the {who} says: {_FIX}")
    system = _tried(render, _turn("system", _SYSTEM), _turn("user", _USER))
    if system and _SYSTEM not in system:
        warnings.append(f"the chat template leaves out system messages without refusing them: {_FIX}, or send none")
    if prompted == asked and not asked.rpartition(_USER)[2].strip():
        warnings.append(f"the chat template writes nothing between a user's turn and the answer, so roles run together: {_FIX}")
    if tokenizer.bos is not None and _ids(prompted, tokenizer).count(tokenizer.bos) > 1:
        warnings.append(f"the chat template begins a prompt with BOS more than once, which models are not trained on: {_FIX}")
    if _ANSWER not in answered:
        return Findings(frozenset(), tuple(warnings))
    followed = _tried(render, _turn("user", _USER), _turn("assistant", _ANSWER), _turn("user", _AGAIN))
    end, between = answered.rpartition(_ANSWER)[2], followed.rpartition(_ANSWER)[2].partition(_AGAIN)[0]
    stop_ids = _turn_end(end, between, tokenizer)
    if not stop_ids and tokenizer.eos_ids.isdisjoint(_ids(end, tokenizer)):
        warnings.append(_no_end(end or between))
    return Findings(stop_ids, tuple(warnings))


def _unrendered(render: Render, error: RequestError) -> Findings:
    """Some templates are for conversations with tools only. One that ran away from a single message is not tried again."""
    if error.code == "template_budget":
        return Findings(frozenset(), (f"a single message cannot be rendered ({error.message}): {_FIX}",), usable=False)
    try:
        render(Conversation((_turn("user", _USER),), tools=_TOOLS))
    except RequestError:
        return Findings(frozenset(), (f"a plain conversation cannot be rendered ({error.message}): {_FIX}",))
    return Findings(frozenset(), (f"only conversations with tools can be rendered ({error.message}): {_FIX}, or send tools",))


def _turn_end(end: str, between: str, tokenizer: Tokenizer) -> frozenset[int]:
    """The token that ends an assistant's turn, given what stands after its content: at the end, and before the next turn.

    What both begin with is the turn's end; where that is nothing, it is what the next turn begins with. EOS goes before other tokens in it.
    """
    at_end, at_next = _ids(end.lstrip(), tokenizer), _ids(between.lstrip(), tokenizer)
    shared = [one for one, other in takewhile(lambda pair: pair[0] == pair[1], zip(at_end, at_next, strict=False))]
    ids = shared or at_end or at_next
    for token in ids:
        if token in tokenizer.eos_ids:
            return frozenset({token})
    for token in ids[:2]:  # some tokenizers put a space first
        name = tokenizer.piece(token).decode("utf-8", "replace")
        tag = len(name) > 2 and name[0] in "<[" and name[-1] in ">]"
        if tag or tokenizer.is_control(token):
            return frozenset({token})
        if name.strip(" ▁"):
            break
    return frozenset()


def _no_end(tail: str) -> str:
    shown = tail.strip()[:_SHOWN]
    what = f"what ends an assistant's turn, {shown!r}, is no single token of this model" if shown else "nothing ends an assistant's turn"
    return f"{what}, so answers may run on: {_FIX}, or send stop strings"


def _ids(text: str, tokenizer: Tokenizer) -> list[int]:
    return tokenizer.encode(text, add_bos=False, special=True)


def _tried(render: Render, *messages: dict[str, Any]) -> str:
    """The text, or nothing where the template refuses."""
    try:
        return render(Conversation(messages, add_generation_prompt=False))
    except RequestError:
        return ""


def _turn(role: str, content: object) -> dict[str, Any]:
    return {"role": role, "content": content}


def _call(arguments: object) -> dict[str, Any]:
    function = {"name": "find", "arguments": arguments}
    return {"role": "assistant", "content": "", "tool_calls": [{"id": "call00001", "type": "function", "function": function}]}


Clock = Callable[[], datetime]


class ChatTemplate:
    """A model's template, in a process of its own. `close` ends that process.

    source    where it comes from: the model's files, the file that `--chat-template` names, or Ridgeline itself
    stop_ids  ids that end an assistant's turn, found at load; an answer to a chat ends at them as at EOS
    warnings  what the check at load found, each with what to do
    """

    def __init__(self, found: Found, tokenizer: Tokenizer, clock: Clock = datetime.now) -> None:
        """Compiles and tries the template. `clock` gives the local time that it may ask for. A template that the user names has to work:
        else ConfigError. One that came with the model and does not work makes chat impossible, and nothing else."""
        self.source: Source = found.source
        self._clock = clock
        self._variants = frozenset(found.texts)
        self._renderer: Renderer | None = None
        self._reason = ""
        try:
            self._renderer = Renderer(found.texts)
            self._reader = Reader(ControlNames.of(tokenizer), AS_SENT, found.tokens, self._renderer.variables)
            findings = self._try_out(tokenizer)
        except (ModelFormatError, OverloadedError) as error:
            self.close()
            fix = "" if self.source == "file" else ": give another with --chat-template FILE"
            findings = Findings(frozenset(), (f"{error}{fix}",), False)
        except BaseException:
            self.close()
            raise
        if not findings.usable:
            self._reason = findings.warnings[0]
            if self.source == "file":
                raise ConfigError(f"--chat-template: {self._reason}", fix={"--chat-template": None})
        self.stop_ids = findings.stop_ids
        self.warnings = findings.warnings

    @property
    def usable(self) -> bool:
        """True if it renders anything; else every conversation is rejected with the reason."""
        return self._renderer is not None and not self._reason

    @property
    def variables(self) -> Collection[str]:
        """Names that it reads (`tools`, `enable_thinking` …)."""
        return frozenset() if self._renderer is None else self._renderer.variables

    def render(self, conversation: Conversation) -> str:
        """The prompt as text, to read: encoded again, what a client wrote may become control tokens; `encode` knows them apart.

        Blocks. Raises `RequestError` where the template refuses the conversation or exceeds its budget, `OverloadedError` where many wait.
        """
        return unmasked(self._masked(conversation))

    def encode(self, conversation: Conversation, tokenizer: Tokenizer) -> list[int]:
        """The prompt as ids. Contents of messages never become control tokens. Blocks; raises as `render`."""
        return tokenizer.encode(self._masked(conversation), add_bos=False, special=True)

    def close(self) -> None:
        """Ends the template's process. Safe to call twice."""
        if self._renderer is not None:
            self._renderer.close()

    def _masked(self, conversation: Conversation) -> str:
        if self._renderer is None or self._reason:
            raise RequestError(f"chat is not possible: {self._reason}", param="messages", code="no_chat_template")
        variables = self._reader.variables_of(conversation)
        text = self._render(variables)
        return cut_at_tag(text, variables["messages"][-1]) if conversation.continue_final_message else text

    def _render(self, variables: dict[str, Any]) -> str:
        assert self._renderer is not None
        variant = TOOL_USE if variables["tools"] is not None and TOOL_USE in self._variants else DEFAULT
        return self._renderer.render(variant, variables, self._clock().timetuple()[:6])

    def _try_out(self, tokenizer: Tokenizer) -> Findings:
        def attempt(conversation: Conversation) -> str:
            return self._render(self._reader.variables_of(conversation))

        self._reader = replace(self._reader, shape=find_shape(attempt))
        return check(attempt, tokenizer)


def load_chat_template(path: Path | None, model: str, tokenizer: Tokenizer, file: Path | None) -> ChatTemplate | None:
    """The template of the model at `path` (a GGUF file or a directory; None: a fake model) that the user calls `model`; `file` replaces it.

    None where there is no template: `no_template` is then the answer to a chat. Raises ConfigError where `file` is of no use.
    """
    found = find_template(path, model, tokenizer, file)
    return ChatTemplate(found, tokenizer) if found else None


def no_template(model: str) -> RequestError:
    """The answer to a chat with a model that has no template."""
    return RequestError(
        f"the model {model!r} has no chat template, so chat is not possible: start with --chat-template FILE, or use /v1/completions",
        param="messages",
        code="no_chat_template",
    )
