"""Hearing of one answer: its tokens in, events of content, reasoning and calls out, the calls with ids.

Owns the ids of calls, and what of an answer is told. How a model writes calls is `families`'.
"""

import secrets
from dataclasses import dataclass, field
from functools import partial
from hashlib import blake2b
from typing import Final

from ridgeline.core.thinking import ReasoningMarks, Thinking, ThinkingState
from ridgeline.text.stream import TextDelta
from ridgeline.text.tokenizer import Tokenizer
from ridgeline.text.tools.families import Family, Reasoning
from ridgeline.text.tools.forms import Parameters
from ridgeline.text.tools.parser import AnswerParser, CallBegin, CallEnd, Event, Text, Thought

SHORT_ID: Final = 9
"""Letters of an id where templates refuse any other number, as Mistral's do."""


@dataclass(frozen=True, slots=True)
class Reading:
    """The reading of answers to a request.

    thinks      the prompt has begun the reasoning
    parallel    more than one call is given
    has_thought  the prompt has ended the reasoning
    kept        control tokens that are marks; None: the client asked for all of them
    marks       the reasoning's, in the model's vocabulary
    is_told     the reasoning is given; it is counted even where it is not
    key         of the ids of calls: the same ones for the same key
    """

    family: Family | None
    reasoning: Reasoning | None
    parameters: Parameters
    tokenizer: Tokenizer
    thinks: bool
    parallel: bool
    kept: frozenset[int] | None
    has_thought: bool = False
    marks: ReasoningMarks | None = None
    is_told: bool = True
    key: bytes = field(default_factory=partial(secrets.token_bytes, 16))


class Listener:
    """One choice: its tokens in, events out. `reasoning_tokens`, those between the marks, and `has_called` are known so far."""

    def __init__(self, reading: Reading, choice: int = 0) -> None:
        self._reading = reading
        self._choice = choice
        self._parser = AnswerParser(reading.family, reading.reasoning, reading.parameters, thinks=reading.thinks)
        self._calls = 0
        self._is_whole = True
        self._thought = None if reading.marks is None else ThinkingState(Thinking(reading.marks, reading.thinks))

    @property
    def reasoning_tokens(self) -> int:
        """Ids of the reasoning, without its marks."""
        return 0 if self._thought is None else self._thought.tokens

    @property
    def can_reason(self) -> bool:
        """True if reasoning is split off."""
        return self._reading.reasoning is not None

    @property
    def has_called(self) -> bool:
        """True if there are calls, all of them whole."""
        return self._calls > 0 and self._is_whole

    def hear(self, new: TextDelta | None, is_last: bool) -> list[Event]:
        """Events that have become final with these tokens, in the order in which it was said. Every call has an id; those beyond the first
        are left out where only one is given."""
        events: list[Event] = []
        for token, text in zip(new.ids, new.texts, strict=True) if new is not None else ():
            events += self._parser.push("" if self.is_hidden(token) else text)
            if self._thought is not None:
                self._thought.push(token)
        if is_last:
            events += self._parser.finish()
        return [given for each in events if (given := self._given(each)) is not None]

    def is_hidden(self, token: int) -> bool:
        """True for a control token that is no mark, in a text that has all of them."""
        kept = self._reading.kept
        return kept is not None and token not in kept and self._reading.tokenizer.is_control(token)

    def _given(self, event: Event) -> Event | None:
        """The event as it is told; None for one that is not."""
        if isinstance(event, Text):
            return event
        if isinstance(event, Thought):
            return event if self._reading.is_told else None
        if isinstance(event, CallBegin):
            self._calls, self._is_whole = self._calls + 1, False
            event = CallBegin(event.name, event.id or self._new_id())
        elif isinstance(event, CallEnd):
            self._is_whole = True
        return event if self._calls == 1 or self._reading.parallel else None

    def _new_id(self) -> str:
        family = self._reading.family
        drawn = blake2b(b"%d %d" % (self._choice, self._calls), key=self._reading.key, digest_size=12).hexdigest()
        return drawn[:SHORT_ID] if family is not None and family.begin == "[TOOL_CALLS]" else f"call_{drawn}"
