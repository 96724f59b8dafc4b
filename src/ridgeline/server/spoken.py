"""An assistant's part in a chat: its text split into content, reasoning and tool calls, as a stream's deltas or a whole message.

Owns the shapes. What is heard of an answer is `text.tools.hearing`'s.
"""

from base64 import b64decode, b64encode
from collections.abc import Sequence
from typing import Final

from ridgeline.server import replies
from ridgeline.text.stream import TextDelta
from ridgeline.text.tools.hearing import Listener, Reading
from ridgeline.text.tools.parser import CallArguments, CallBegin, Event, Text, Thought

THOUGHT: Final = "thought_"
"""Beginning of a text that has a thought, in a field that clients pass back as they got it, and show to nobody."""


def wrapped(thought: str) -> str:
    """A thought for such a field. It hides nothing."""
    return THOUGHT + b64encode(thought.encode("utf-8", "replace")).decode()


def unwrapped(field: str) -> str:
    """The thought in such a field; empty for any other text."""
    if not field.startswith(THOUGHT):
        return ""
    try:
        return b64decode(field.removeprefix(THOUGHT), validate=True).decode()
    except ValueError:
        return ""


class Speaker(Listener):
    """One choice: its tokens in, deltas out."""

    def __init__(self, reading: Reading, choice: int = 0) -> None:
        super().__init__(reading, choice)
        self._told = -1
        """Index of the call that was told last."""

    def take(self, new: TextDelta | None, is_last: bool) -> replies.Delta | None:
        """The part that has become final with these tokens; None for nothing."""
        return self._delta(self.hear(new, is_last))

    def whole(self, deltas: Sequence[TextDelta]) -> replies.AssistantMessage:
        """The message of all deltas."""
        found = [self.take(each, False) for each in deltas]
        said = [each for each in (*found, self.take(None, True)) if each is not None]
        thought = "".join(each.reasoning_content or "" for each in said) or None
        content = "".join(each.content or "" for each in said)
        names: list[replies.CallDelta] = [call for each in said for call in each.tool_calls or () if call.id is not None]
        calls = [
            replies.ToolCall(
                str(begin.id), "function",
                replies.CalledFunction(begin.function.name or "", "".join(
                    call.function.arguments for each in said for call in each.tool_calls or () if call.index == begin.index
                )),
            )
            for begin in names
        ]  # fmt: skip
        return replies.AssistantMessage(
            "assistant", content if content or not calls else None, reasoning=thought, reasoning_content=thought, tool_calls=calls or None
        )

    def _delta(self, events: Sequence[Event]) -> replies.Delta | None:
        content, thought = "", ""
        calls: dict[int, replies.CallDelta] = {}
        for event in events:
            if isinstance(event, Text):
                content += event.text
            elif isinstance(event, Thought):
                thought += event.text
            elif isinstance(event, CallBegin):
                self._told += 1
                calls[self._told] = replies.CallDelta(self._told, replies.FunctionDelta("", event.name), event.id, "function")
            elif isinstance(event, CallArguments):
                begun = calls.get(self._told, replies.CallDelta(self._told, replies.FunctionDelta("")))
                function = replies.FunctionDelta(begun.function.arguments + event.text, begun.function.name)
                calls[self._told] = replies.CallDelta(self._told, function, begun.id, begun.type)
        if not (content or thought or calls):
            return None
        return replies.Delta(
            content=content or None, reasoning=thought or None, reasoning_content=thought or None,
            tool_calls=list(calls.values()) or None,
        )  # fmt: skip
