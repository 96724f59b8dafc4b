"""What is rendered: the messages of a chat and what their template is told beside them. A value; knows no template."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Conversation:
    """A chat as a client states it; nothing in it is trusted.

    messages                objects as in OpenAI's API: role, content (a string, or a list of parts of type text), tool_calls …
    tools                   tool definitions as in OpenAI's API; None: the chat has none
    documents               what templates for retrieval read; None: none
    add_generation_prompt   end with the header of the assistant's turn
    continue_final_message  end with the content of the last message, which the model then continues; excludes the above
    arguments               other variables that the template reads (`enable_thinking`, …), never names that Ridgeline sets
    """

    messages: Sequence[Mapping[str, object]]
    tools: Sequence[Mapping[str, object]] | None = None
    documents: Sequence[Mapping[str, object]] | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    arguments: Mapping[str, object] = field(default_factory=dict)
