"""Chat: a conversation to a prompt, by the template that belongs to the model.

Owns one model's template: its source (a GGUF header, the files of a directory, a file that the user names, or Ridgeline's own), its
compilation, and its rendering within limits by a process of its own (`chat_process`). `chat_check` checks it at load. A template never
comes from a request.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any, Final, Literal

from ridgeline.errors import ConfigError, ModelFormatError, ModelNotFoundError, OverloadedError, RequestError
from ridgeline.facts.files.gguf import Header, read_header
from ridgeline.facts.files.json_file import read_object, read_text
from ridgeline.text.chat_check import TOOLS, TemplateCheck, check_template, detect_format, probe_roles, unusable
from ridgeline.text.chat_content import AS_SENT, ControlNames, Conversation, VariableBuilder, cut_at_tag, own_markup, unmasked
from ridgeline.text.chat_process import Renderer
from ridgeline.text.prompt_cache import Encoder
from ridgeline.text.tokenizer import QUICK_CHARACTERS, Tokenizer, control_ranges
from ridgeline.text.tools.detect import find_family
from ridgeline.text.tools.families import Family, Reasoning, reasoning_of
from ridgeline.text.tools.marks import ReasoningIds

Source = Literal["model", "file", "built in"]

MAX_TEMPLATE_BYTES: Final = 1 << 20
MAX_JSON_BYTES: Final = 16 << 20
"""Gemma 3's tokenizer_config.json has 1.2 MB."""
MAX_NAMES: Final = 64
QUICK_MESSAGES: Final = 64
"""Messages up to which a conversation of `QUICK_CHARACTERS` is made ready for its template within a millisecond or so."""

DEFAULT, TOOL_USE = "default", "tool_use"
"""The variants of a template that are used: the second for conversations with tools, where a model has it."""

_BUILT_IN = frozenset({"demo"})
"""Packaged models without a template, for which one lies in `templates/`."""

_GGUF_TOKENS = {
    "bos": "bos_token", "eos": "eos_token", "unknown": "unk_token", "padding": "pad_token", "seperator": "sep_token", "mask": "mask_token",
    "cls": "cls_token",
}  # fmt: skip
"""`tokenizer.ggml.*_token_id` (spelt as in GGUF) → the variable that templates read."""


@dataclass(frozen=True, slots=True)
class TemplateFiles:
    """Templates of a model.

    texts   variant → template, the default among them
    tokens  variable → name of a token, as templates read them (`bos_token`)
    """

    texts: Mapping[str, str]
    tokens: Mapping[str, str]
    source: Source


def find_template(path: Path | None, model: str, tokenizer: Tokenizer, file: Path | None) -> TemplateFiles | None:
    """The template of the model at `path` (None: a fake model, without files), which the user calls `model`; None where there is none.

    Raises ConfigError where `file` cannot be read, ModelFormatError where the model's files are malformed.
    """
    if path is None:
        texts, tokens = dict[str, str](), dict[str, str]()
    elif path.is_dir():
        config = _object(path / "tokenizer_config.json")
        texts, tokens = _directory_templates(path, config), _tokens_of_directory(path, config)
    else:
        header = read_header(path)
        texts, tokens = _header_templates(header), _tokens_of_header(header, tokenizer)
    if file is not None:
        return TemplateFiles({DEFAULT: _read_user_template(file)}, tokens, "file")
    if DEFAULT in texts:
        return TemplateFiles(texts, tokens, "model")
    if model in _BUILT_IN:
        return TemplateFiles({DEFAULT: read_text(Path(__file__).with_name("templates") / f"{model}.jinja")}, tokens, "built in")
    return None


def _read_user_template(file: Path) -> str:
    try:
        return read_text(file, MAX_TEMPLATE_BYTES)
    except (ModelFormatError, ModelNotFoundError) as error:
        raise ConfigError(f"--chat-template: {error}", fix={"--chat-template": None}) from None


def _header_templates(header: Header) -> dict[str, str]:
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


def _directory_templates(path: Path, config: Mapping[str, Any]) -> dict[str, str]:
    """Templates by name, as in transformers: files of their own before tokenizer_config.json; chat_template.json is older."""
    texts = {}
    for name, file in ((DEFAULT, path / "chat_template.jinja"), (TOOL_USE, path / "additional_chat_templates" / f"{TOOL_USE}.jinja")):
        if file.is_file():
            texts[name] = read_text(file, MAX_TEMPLATE_BYTES)
    older = "chat_template.json"
    return texts or _config_templates(config, "tokenizer_config.json") or _config_templates(_object(path / older), older)


def _config_templates(values: Mapping[str, Any], name: str) -> dict[str, str]:
    """`chat_template`: a string, or a list of objects with name and template."""
    value = values.get("chat_template")
    if value is None:
        return {}
    if isinstance(value, str):
        value = [{"name": DEFAULT, "template": value}]
    if not isinstance(value, list) or not all(isinstance(one, dict) and isinstance(one.get("template"), str) for one in value):
        raise ModelFormatError(f"{name}: chat_template is neither a string nor a list of objects with name and template")
    texts: dict[str, str] = {one["name"]: one["template"] for one in value if one.get("name") in (DEFAULT, TOOL_USE)}
    if longest := max((len(text) for text in texts.values() if len(text) > MAX_TEMPLATE_BYTES), default=0):
        raise ModelFormatError(f"{name}: a chat template has {longest} characters, at most {MAX_TEMPLATE_BYTES} are supported")
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


Clock = Callable[[], datetime]


class ChatTemplate:
    """A model's template, in a process of its own. `close` ends that process.

    source    the model's files, the file that `--chat-template` names, or Ridgeline itself
    text      of the default variant
    stop_ids  ids that end an assistant's turn, found at load; an answer to a chat ends at them as at EOS
    findings  problems that the check at load found
    reasoning  the marks around reasoning that it knows; None: none
    reasoning_ids  the same in the model's vocabulary; None also where it is not usable
    family    how the model writes calls of tools; None: in no form that is known, or the template shows it no tools
    control_ids  where calls or reasoning can be read: the tokenizer's control tokens, as ranges [first, last]
    """

    def __init__(self, files: TemplateFiles, tokenizer: Tokenizer, clock: Clock = datetime.now) -> None:
        """Compiles and checks the template. `clock` gives the local time that it may read. Raises ConfigError where a template that the
        user names does not work; one that came with the model and does not work makes chat impossible, and nothing else."""
        self.source: Source = files.source
        self.text = files.texts[DEFAULT]
        self._clock = clock
        self._variants = frozenset(files.texts)
        self._renderer: Renderer | None = None
        self._reason = ""
        try:
            self._renderer = Renderer(files.texts)
            names = ControlNames.from_tokenizer(tokenizer)
            own = own_markup(tokenizer.markup, files.texts.values())
            assistant = ControlNames.from_tokenizer(tokenizer, own) if own else names
            self._builder = VariableBuilder(names, assistant, AS_SENT, files.tokens, self._renderer.variables)
            result = self._check(tokenizer)
        except (ModelFormatError, OverloadedError) as error:
            result = unusable(str(error))
        except BaseException:
            self.close()
            raise
        if not result.is_usable:
            self.close()
            problem = result.findings[0]
            self._reason = f"{problem.cause}: {problem.fix}"
            if self.source == "file":
                raise ConfigError(f"--chat-template: {self._reason}", fix={"--chat-template": None})
        self.stop_ids = result.stop_ids
        self.findings = result.findings
        self.reasoning: Reasoning | None = reasoning_of(files.texts.values())
        if self.reasoning is not None and self.reasoning.in_channels:  # there the end of a message is not the end of a turn
            self.stop_ids = frozenset(token for token in self.stop_ids if token != tokenizer.id_of(self.reasoning.end))
        self.reasoning_ids = ReasoningIds.read(self.reasoning, tokenizer) if self.reasoning is not None and self.is_usable else None
        self.family = self._find_family(files, tokenizer) if self.is_usable else None
        self.control_ids = control_ranges(tokenizer) if self.family is not None or self.reasoning is not None else ()

    @property
    def is_usable(self) -> bool:
        """False: every conversation is rejected with the reason."""
        return self._renderer is not None and not self._reason

    @property
    def variables(self) -> Collection[str]:
        """Names that it reads (`tools`, `enable_thinking` …)."""
        return frozenset() if self._renderer is None else self._renderer.variables

    def unread(self, arguments: Mapping[str, object]) -> frozenset[str]:
        """Names of a client's variables that it does not read, which rendering rejects. For a template that is usable."""
        return self._builder.unread(arguments)

    def folded_roles(self, conversation: Conversation) -> list[str]:
        """Roles whose messages it is told in another role or turn, since it refuses them or leaves them out. For one that is usable."""
        return self._builder.format.fold(conversation)[1]

    def render(self, conversation: Conversation) -> str:
        """The prompt as text, for display: encoded again, a client's text may become control tokens; `encode` prevents that.

        Blocks. Raises `RequestError` where the template raises an error or exceeds its limits, `OverloadedError` where many wait.
        """
        return unmasked(self._masked(conversation))

    async def masked_from_loop(self, conversation: Conversation) -> str | None:
        """The text that `encode` encodes, without a thread; None for what might hold up the event loop. Raises as `render`."""
        if not _is_quick(conversation) or self._renderer is None or self._reason:
            return None
        variables = self._builder.build(conversation)
        text = await self._renderer.render_from_loop(*self._asked(variables))
        return None if text is None else _cut(text, conversation, variables)

    def encode(self, conversation: Conversation, encoder: Encoder, on_rendered: Callable[[], None] = lambda: None) -> list[int]:
        """The prompt as ids. Contents of messages never become control tokens. Blocks; raises as `render`. `on_rendered` is called between
        the text and its ids."""
        text = self._masked(conversation)
        on_rendered()
        return encoder.encode(text, add_bos=False, special=True)

    def close(self) -> None:
        """Ends the template's process. Safe to call twice."""
        if self._renderer is not None:
            self._renderer.close()

    def _masked(self, conversation: Conversation) -> str:
        if self._renderer is None or self._reason:
            raise RequestError(f"chat is not possible: {self._reason}", param="messages", code="no_chat_template")
        variables = self._builder.build(conversation)
        return _cut(self._render(variables), conversation, variables)

    def _render(self, variables: dict[str, Any]) -> str:
        assert self._renderer is not None
        return self._renderer.render(*self._asked(variables))

    def _asked(self, variables: dict[str, Any]) -> tuple[str, dict[str, Any], tuple[int, ...]]:
        """The variant that is rendered, with its variables and the time."""
        variant = TOOL_USE if variables["tools"] is not None and TOOL_USE in self._variants else DEFAULT
        return variant, variables, self._clock().timetuple()[:6]

    def _attempt(self, conversation: Conversation) -> str:
        variables = self._builder.build(conversation)
        try:
            return self._render(variables)
        except OverloadedError:  # a busy moment of the machine is no fault of the template
            return self._render(variables)

    def _find_family(self, files: TemplateFiles, tokenizer: Tokenizer) -> Family | None:
        if "tools" not in self.variables and TOOL_USE not in self._variants:
            return None
        return find_family(self._attempt, TOOLS, files.texts.values(), tokenizer)

    def _check(self, tokenizer: Tokenizer) -> TemplateCheck:
        attempt = self._attempt
        self._builder = replace(self._builder, format=detect_format(attempt))
        roles = probe_roles(attempt)
        with_tools = probe_roles(attempt, TOOLS) if "tools" in self.variables or TOOL_USE in self._variants else roles
        form = replace(self._builder.format, roles=roles, roles_with_tools=with_tools)
        result = check_template(attempt, tokenizer, self._builder.unset)
        self._builder = replace(self._builder, format=form)
        return result


def _cut(text: str, conversation: Conversation, variables: Mapping[str, Any]) -> str:
    """The rendered text, up to the end of the last message where that is continued."""
    return cut_at_tag(text, variables["messages"][-1]) if conversation.continue_final_message else text


def _is_quick(conversation: Conversation) -> bool:
    """True for a conversation of a few plain texts."""
    if conversation.tools or conversation.documents or len(conversation.messages) > QUICK_MESSAGES:
        return False
    values = [value for message in conversation.messages for value in message.values() if value is not None]
    return all(isinstance(each, str) for each in values) and sum(map(len, values)) <= QUICK_CHARACTERS  # type: ignore[arg-type]


def load_chat_template(path: Path | None, model: str, tokenizer: Tokenizer, file: Path | None) -> ChatTemplate | None:
    """The template of the model at `path` (a GGUF file or a directory; None: a fake model) that the user calls `model`; `file` replaces it.

    None where there is no template: chats then get the error `no_template`. Raises ConfigError where `file` does not work.
    """
    files = find_template(path, model, tokenizer, file)
    return ChatTemplate(files, tokenizer) if files else None


def no_template(model: str) -> RequestError:
    """The error of a chat with a model that has no template."""
    return RequestError(
        f"the model {model!r} has no chat template, so chat is not possible: start with --chat-template FILE, or use /v1/completions",
        param="messages",
        code="no_chat_template",
    )
