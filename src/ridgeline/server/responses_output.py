"""An answer as items of the Responses API, and the events that tell of them as it comes.

Owns the order of events, and which item a token belongs to. Whole answers are the items of the same events.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from ridgeline.server import responses_shapes as shapes
from ridgeline.server.logprobs import TokenNames, chat_logprobs
from ridgeline.server.replies import ChatLogprob
from ridgeline.server.responses_input import Called, item_id
from ridgeline.server.responses_shapes import Event, ItemStatus, OutputItem
from ridgeline.server.spoken import Speaker, wrapped
from ridgeline.text.stream import TextDelta
from ridgeline.text.tools import parser
from ridgeline.text.tools.hearing import Reading
from ridgeline.text.tools.parser import CallArguments, CallBegin, CallEnd, Text, Thought

_NO_TOOL: Final = Called("function", "")


@dataclass(slots=True)
class _Open:
    """The item that is being written."""

    kind: str
    id: str
    index: int
    pieces: list[str] = field(default_factory=list)
    logprobs: list[ChatLogprob] = field(default_factory=list)
    called: Called = _NO_TOOL
    call_id: str = ""
    is_wrapped: bool = False

    @property
    def place(self) -> dict[str, Any]:
        """Fields of every event about it."""
        return {"item_id": self.id, "output_index": self.index}

    def item(self, status: ItemStatus, empty: bool = False) -> OutputItem:
        """The item so far; `empty`: as it begins."""
        said = "" if empty else "".join(self.pieces)
        if self.kind == "message":
            return shapes.OutputMessage(self.id, status, [] if empty else [shapes.OutputText(said, logprobs=self.logprobs)])
        if self.kind == "reasoning":
            again = wrapped(said) if self.is_wrapped and not empty else None
            return shapes.ReasoningItem(self.id, status, [] if empty else [shapes.ReasoningText(said)], encrypted_content=again)
        name, namespace = self.called.name, msgspec.UNSET if self.called.namespace is None else self.called.namespace
        if self.kind == "function_call":
            return shapes.FunctionCall(self.id, self.call_id, name, said, status, namespace)
        return shapes.CustomCall(self.id, self.call_id, name, _free_input(said), status, namespace)


def _free_input(arguments: str) -> str:
    """The text that a custom tool is called with; where the model wrote another form, that."""
    try:
        found = json.loads(arguments)
    except (ValueError, RecursionError):
        return arguments
    given = found.get("input") if isinstance(found, dict) else None
    return given if isinstance(given, str) else arguments


class Output:
    """One answer: its tokens in, events out. `items` has what is complete.

    answer  the part of the answer's id that stands in its items' too
    names   of tokens, where log-probabilities are asked for
    is_wrapped  items of reasoning have it once more in `encrypted_content`
    """

    def __init__(
        self, answer: str, reading: Reading | None, called: Mapping[str, Called], names: TokenNames | None, *, is_wrapped: bool = False
    ) -> None:
        self._answer, self._is_wrapped = answer, is_wrapped
        self._speaker = None if reading is None else Speaker(reading)
        self._called = called
        self._names = names
        self._open: _Open | None = None
        self._held: list[tuple[str, ChatLogprob]] = []
        """Texts and log-probabilities of tokens of which nothing has been told."""
        self._events = 0
        self._is_heard = False
        """The last token has come."""
        self.items: list[OutputItem] = []

    def number(self) -> int:
        """The number of the next event."""
        self._events += 1
        return self._events - 1

    @property
    def reasoning_tokens(self) -> int:
        """Tokens of reasoning so far."""
        return 0 if self._speaker is None else self._speaker.reasoning_tokens

    def hear(self, new: TextDelta, is_last: bool) -> Iterator[Event]:
        """Events of what these tokens make final."""
        self._is_heard = is_last
        if self._names is None:
            for event in self._heard(new, is_last):
                yield from self._take(event)
            return
        last = len(new.ids) - 1
        for at, (token, text, logprobs) in enumerate(zip(new.ids, new.texts, new.logprobs, strict=True)):
            self._held.append((text, chat_logprobs(self._names, (token,), (logprobs,)).content[0]))
            for event in self._heard(TextDelta(0, (token,), (text,)), is_last and at == last):
                yield from self._take(event)
        if last < 0 and is_last:
            for event in self._heard(new, is_last):
                yield from self._take(event)

    def end(self, is_whole: bool) -> Iterator[Event]:
        """The last events of items; an answer without any has an empty message. `is_whole`: the model ended it."""
        if not self._is_heard:
            yield from self.hear(TextDelta(0), True)
        if self._open is None and not self.items:
            yield from self._begin("message")
        yield from self._close("completed" if is_whole and (self._open is None or not self._open.call_id) else "incomplete")

    def _heard(self, new: TextDelta, is_last: bool) -> list[parser.Event]:
        if self._speaker is not None:
            return self._speaker.hear(new, is_last)
        return [Text(new.text)] if new.text else []

    def _take(self, event: parser.Event) -> Iterator[Event]:
        if isinstance(event, CallBegin):
            called = self._called.get(event.name, Called("function", event.name))
            yield from self._begin("function_call" if called.kind == "function" else "custom_tool_call", called, event.id or "")
        elif isinstance(event, CallEnd):
            yield from self._close("completed")
        elif event.text:
            kind = "message" if isinstance(event, Text) else "reasoning" if isinstance(event, Thought) else None
            if kind is not None and (self._open is None or self._open.kind != kind):
                yield from self._begin(kind)
            yield from self._add(event)

    def _begin(self, kind: str, called: Called | None = None, call_id: str = "") -> Iterator[Event]:
        yield from self._close("completed")
        new = _Open(kind, item_id(kind, self._answer, len(self.items)), len(self.items), called=called or _NO_TOOL, call_id=call_id)
        new.is_wrapped = self._is_wrapped
        self._open = new
        yield shapes.ItemAdded(sequence_number=self.number(), output_index=new.index, item=new.item("in_progress", empty=True))
        if kind == "message":
            yield shapes.PartAdded(sequence_number=self.number(), part=shapes.OutputText(""), **new.place)
        elif kind == "reasoning":
            yield shapes.PartAdded(sequence_number=self.number(), part=shapes.ReasoningText(""), **new.place)

    def _add(self, event: Text | Thought | CallArguments) -> Iterator[Event]:
        to, held = self._open, self._logprobs(len(event.text))
        if to is None:
            return
        to.pieces.append(event.text)
        if isinstance(event, Text):
            to.logprobs += held
            yield shapes.TextDelta(sequence_number=self.number(), delta=event.text, logprobs=held, **to.place)
        elif isinstance(event, Thought):
            yield shapes.ReasoningDelta(sequence_number=self.number(), delta=event.text, **to.place)
        elif to.kind == "function_call":
            yield shapes.ArgumentsDelta(sequence_number=self.number(), delta=event.text, **to.place)

    def _logprobs(self, characters: int) -> list[ChatLogprob]:
        """Those of the newest tokens, as many as have written so much text; those before them were marks."""
        found: list[ChatLogprob] = []
        while self._held and characters > 0:
            text, logprob = self._held.pop()
            found.append(logprob)
            characters -= len(text)
        self._held = []
        return found[::-1]

    def _close(self, status: ItemStatus) -> Iterator[Event]:
        """Events of the end of the item that is being written."""
        to, self._open = self._open, None
        if to is None:
            return
        item = to.item(status)
        if isinstance(item, shapes.OutputMessage):
            part = item.content[0]
            yield shapes.TextDone(sequence_number=self.number(), text=part.text, logprobs=part.logprobs, **to.place)
            yield shapes.PartDone(sequence_number=self.number(), part=part, **to.place)
        elif isinstance(item, shapes.ReasoningItem):
            yield shapes.ReasoningDone(sequence_number=self.number(), text=item.content[0].text, **to.place)
            yield shapes.PartDone(sequence_number=self.number(), part=item.content[0], **to.place)
        elif isinstance(item, shapes.FunctionCall):
            yield shapes.ArgumentsDone(sequence_number=self.number(), name=item.name, arguments=item.arguments, **to.place)
        else:
            yield shapes.InputDelta(sequence_number=self.number(), delta=item.input, **to.place)
            yield shapes.InputDone(sequence_number=self.number(), input=item.input, **to.place)
        self.items.append(item)
        yield shapes.ItemDone(sequence_number=self.number(), output_index=to.index, item=item)
