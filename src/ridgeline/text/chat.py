"""Chat: a conversation to a prompt, by the template that belongs to the model.

Owns the life of one model's template: found, compiled and tried once at load, then rendered within a budget by a process of its own
(`chat_process`). A template never comes from a request.
"""

from collections.abc import Callable, Collection
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

from ridgeline.errors import ConfigError, ModelFormatError, OverloadedError, RequestError
from ridgeline.text.chat_check import Findings, check, find_shape
from ridgeline.text.chat_content import AS_SENT, Reader, cut_at_tag
from ridgeline.text.chat_conversation import Conversation
from ridgeline.text.chat_mask import ControlNames, unmasked
from ridgeline.text.chat_process import Renderer
from ridgeline.text.chat_source import DEFAULT, TOOL_USE, Found, Source, find_template
from ridgeline.text.tokenizer import Tokenizer

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
        """Whether it renders anything; else every conversation is refused with the reason."""
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
