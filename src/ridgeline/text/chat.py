"""Chat: a conversation to a prompt, by the template that belongs to the model."""

from pathlib import Path
from typing import Literal

from ridgeline.errors import RequestError
from ridgeline.text.chat_conversation import Conversation
from ridgeline.text.tokenizer import Tokenizer

Source = Literal["model", "file", "built in"]


class ChatTemplate:
    """A model's template, in a process of its own. `close` ends that process.

    source    where it comes from: the model's files, the file that `--chat-template` names, or Ridgeline itself
    stop_ids  ids that end an assistant's turn, found at load; an answer to a chat ends at them as at EOS
    warnings  what the check at load found, each with what to do
    """

    source: Source
    stop_ids: frozenset[int]
    warnings: tuple[str, ...]

    def render(self, conversation: Conversation) -> str:
        """The prompt as text. Raises `RequestError` where the template refuses the conversation or exceeds its budget."""
        raise NotImplementedError

    def encode(self, conversation: Conversation, tokenizer: Tokenizer) -> list[int]:
        """The prompt as ids. Contents of messages never become control tokens. Blocks; raises as `render`."""
        raise NotImplementedError

    def close(self) -> None:
        """Ends the template's process. Safe to call twice."""
        raise NotImplementedError


def load_chat_template(path: Path, model: str, tokenizer: Tokenizer, file: Path | None) -> ChatTemplate | None:
    """The template of the model at `path` (a GGUF file or a directory) that the user calls `model`; `file` replaces it.

    None where there is no template: `no_template` is then the answer to a chat.
    """
    return None


def no_template(model: str) -> RequestError:
    """The answer to a chat with a model that has no template."""
    return RequestError(
        f"the model {model!r} has no chat template, so chat is not possible: start with --chat-template FILE, or use /v1/completions",
        param="messages",
        code="no_chat_template",
    )
