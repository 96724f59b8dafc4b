"""An answer as Anthropic's blocks: what was said becomes texts, thinking and calls, whole or as events of a stream.

Owns where a block begins and ends. How an answer is read is `server.spoken`'s.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby
from typing import Final

import msgspec

from ridgeline.server import anthropic
from ridgeline.server.spoken import wrapped
from ridgeline.text.tools.parser import CallArguments, CallBegin, CallEnd, Event, Text, Thought

CALL_ID: Final = "toolu_"
_OWN_ID: Final = "call_"
"""Beginning of ids that `server.spoken` makes. Ids that a model or its template knows stay as they are."""


def call_id(call: CallBegin) -> str:
    """The id of a call in this dialect."""
    made = call.id or ""
    return CALL_ID + made.removeprefix(_OWN_ID) if made.startswith(_OWN_ID) else made


@dataclass(frozen=True, slots=True)
class ThinkingForm:
    """The form in which reasoning is told. is_omitted: in the signature alone, which is passed back and shown to nobody; else that is
    `signature`."""

    signature: str
    is_omitted: bool = False

    def block(self, thought: str) -> anthropic.ThinkingBlock:
        """The whole block."""
        return anthropic.ThinkingBlock("" if self.is_omitted else thought, self.sign(thought))

    def sign(self, thought: str) -> str:
        """The signature of a block."""
        return wrapped(thought) if self.is_omitted else self.signature


class BlockEvents:
    """The events of one stream's blocks."""

    def __init__(self, form: ThinkingForm) -> None:
        self._form = form
        self._omitted: list[str] = []
        self._index = -1
        self._open: type[Event] | None = None
        """Content of the open block."""

    @property
    def has_begun(self) -> bool:
        """True if there is a block."""
        return self._index >= 0

    def tell(self, said: Iterable[Event]) -> list[anthropic.Event]:
        """The events of what was said next."""
        found: list[anthropic.Event] = []
        for each in said:
            match each:
                case Text():
                    self._begin(Text, anthropic.TextBlock(""), found)
                    found.append(anthropic.ContentBlockDelta(self._index, anthropic.NewText(each.text)))
                case Thought():
                    self._begin(Thought, anthropic.ThinkingBlock("", ""), found)
                    if self._form.is_omitted:
                        self._omitted.append(each.text)
                    else:
                        found.append(anthropic.ContentBlockDelta(self._index, anthropic.NewThinking(each.text)))
                case CallBegin():
                    self._end(found)
                    self._begin(CallBegin, anthropic.ToolUseBlock(call_id(each), each.name, msgspec.Raw(b"{}")), found)
                case CallArguments():
                    found.append(anthropic.ContentBlockDelta(self._index, anthropic.NewInput(each.text)))
                case CallEnd():
                    self._end(found)
        return found

    def finish(self) -> list[anthropic.Event]:
        """The events at the end of the answer, which has one block at least."""
        found: list[anthropic.Event] = []
        if not self.has_begun:
            self._begin(Text, anthropic.TextBlock(""), found)
        self._end(found)
        return found

    def _begin(self, kind: type[Event], block: anthropic.Block, found: list[anthropic.Event]) -> None:
        if self._open is kind:
            return
        self._end(found)
        self._open, self._index = kind, self._index + 1
        found.append(anthropic.ContentBlockStart(self._index, block))

    def _end(self, found: list[anthropic.Event]) -> None:
        if self._open is Thought:
            signature = self._form.sign("".join(self._omitted))
            found.append(anthropic.ContentBlockDelta(self._index, anthropic.NewSignature(signature)))
            self._omitted = []
        if self._open is not None:
            found.append(anthropic.ContentBlockStop(self._index))
        self._open = None


def whole_blocks(said: Iterable[Event], form: ThinkingForm) -> list[anthropic.Block]:
    """The blocks of a whole answer, one at least. A call that the end has cut off is left out: nobody may run it."""
    found: list[anthropic.Block] = []
    begun, arguments = CallBegin("", None), ""
    for _, same in groupby(said, type):
        last, text = None, ""
        for last in same:
            text += last.text if isinstance(last, (Text, Thought, CallArguments)) else ""
        match last:
            case Text():
                found.append(anthropic.TextBlock(text))
            case Thought():
                found.append(form.block(text))
            case CallBegin():
                begun, arguments = last, ""
            case CallArguments():
                arguments = text
            case CallEnd():
                found.append(anthropic.ToolUseBlock(call_id(begun), begun.name, written_object(arguments)))
    return found or [anthropic.TextBlock("")]


def written_object(arguments: str) -> msgspec.Raw:
    """A call's arguments as they were written; those that are no object in the form in which Anthropic's API has such told to a model."""
    written = arguments.encode() or b"{}"
    try:
        msgspec.json.decode(written, type=dict[str, msgspec.Raw])
    except (RecursionError, msgspec.MsgspecError):
        return msgspec.Raw(msgspec.json.encode({"INVALID_JSON": arguments}))
    return msgspec.Raw(written)
