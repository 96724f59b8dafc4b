"""An assistant's text as it comes, split into answer, reasoning and calls of tools.

Owns what surrounds the forms: where reasoning ends, white space between an answer and its calls, what is given out as text after all.
"""

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Final

from ridgeline.text.tools.channels import read_channels
from ridgeline.text.tools.families import Family, Reasoning
from ridgeline.text.tools.forms import Addressed, Parameters, Recipients
from ridgeline.text.tools.scan import Marks, Scanner


@dataclass(frozen=True, slots=True)
class Text:
    """More of the answer."""

    text: str


@dataclass(frozen=True, slots=True)
class Thought:
    """More of the reasoning."""

    text: str


@dataclass(frozen=True, slots=True)
class CallBegin:
    """A call begins. `id` None: the model gave it none."""

    name: str
    id: str | None


@dataclass(frozen=True, slots=True)
class CallArguments:
    """More of the arguments of the call, a text of JSON."""

    text: str


@dataclass(frozen=True, slots=True)
class CallEnd:
    """The call is complete."""


Event = Text | Thought | CallBegin | CallArguments | CallEnd
_NOTHING: Final = Marks([])


class _Recorder(Scanner):
    """A scanner that keeps what was taken since `record`, until a call begins."""

    def __init__(self) -> None:
        super().__init__()
        self._taken: list[str] | None = None
        self._from = 0

    def record(self, mark: str) -> None:
        """Keeps what is taken from now on, behind `mark`."""
        self._taken, self._from = [mark], self.at

    def forget(self) -> None:
        """Keeps nothing any more."""
        self._taken = None

    def taken(self) -> str:
        """Text that was taken, the mark first; empty where that was forgotten."""
        return "" if self._taken is None else "".join(self._taken) + self.text[self._from : self.at]

    def feed(self, piece: str) -> None:
        if self._taken is not None:
            self._taken.append(self.text[self._from : self.at])
            self._from = 0
        super().feed(piece)


class AnswerParser:
    """Splits one answer. `push` its text in pieces of any size, then `finish`; both return what has become final."""

    def __init__(
        self, family: Family | None, reasoning: Reasoning | None, parameters: Parameters | None = None, *, thinks: bool = False
    ) -> None:
        """family: None: calls are text. thinks: the prompt has begun the reasoning."""
        self._family, self._reasoning, self._thinks = family, reasoning, thinks
        self._parameters: Parameters = parameters or {}
        self._scanner = _Recorder()
        self._events: list[Event] = []
        self._spaces: list[str] = []
        self._kind: Callable[[str], Event] = Text
        self._has_called = False
        is_addressed = family is not None and isinstance(family.form, Addressed)
        self._has_channels = is_addressed or (reasoning is not None and reasoning.in_channels)
        self._steps = self._run()

    def push(self, text: str) -> list[Event]:
        """Takes more text."""
        if text:
            self._scanner.feed(text)
            next(self._steps, None)
        return self._given()

    def finish(self) -> list[Event]:
        """Takes the end of the text."""
        self._scanner.is_closed = True
        next(self._steps, None)
        return self._given()

    def _given(self) -> list[Event]:
        events, self._events = self._events, []
        return events

    # ── what a form calls ───────────────────────────────────────────────────────────────────────────────────────

    def begin(self, name: str, call_id: str | None = None) -> None:
        """A call begins; white space before it is dropped."""
        self._scanner.forget()
        self._spaces, self._has_called = [], True
        self._events.append(CallBegin(name, call_id))

    def add(self, arguments: str) -> None:
        """More of its arguments."""
        if arguments:
            self._events.append(CallArguments(arguments))

    def end(self) -> None:
        """Ends the answer: it is complete."""
        self._events.append(CallEnd())

    def think(self, piece: str) -> None:
        """More of the reasoning."""
        self._pass(piece, Thought)

    def say(self, piece: str) -> None:
        """More of the answer."""
        self._pass(piece, Text)

    # ── the text around calls ───────────────────────────────────────────────────────────────────────────────────

    def _run(self) -> Generator[None, None, None]:
        scanner, family = self._scanner, self._family
        if self._has_channels:
            yield from read_channels(scanner, self, family is not None)
            self._flush()
            return
        yield from self._reason()
        if family is None:
            yield from scanner.through(_NOTHING, self.say)
            self._flush()
            return
        if isinstance(family.form, Recipients):
            yield from family.form.read(scanner, self, self._parameters)
            self._flush()
            return
        marks = Marks(family.marks)
        if not family.begin and (yield from self._starts_call(family)):
            yield from self._call("")
        while (mark := (yield from scanner.through(marks, self.say))) is not None:
            if mark == family.begin:
                yield from self._call(mark)
        self._flush()

    def _call(self, mark: str) -> Generator[None, None, None]:
        assert self._family is not None
        self._scanner.record(mark)
        yield from self._family.form.read(self._scanner, self, self._parameters)
        self.say(self._scanner.taken())
        self._scanner.forget()

    def _starts_call(self, family: Family) -> Generator[None, None, bool]:
        """True if the answer begins as calls without a mark do, perhaps behind white space, or behind a mark that says nothing."""
        yield from self._blanks()
        scanner, starts = self._scanner, {f"{mark}{family.opener}": len(mark) for mark in ("", *family.drop)}
        while True:
            text = scanner.text[scanner.at : scanner.at + max(map(len, starts))]
            start = next((each for each in starts if text.startswith(each)), None)
            if start is not None:
                scanner.at += starts[start]
                return True
            if scanner.is_closed or not any(each.startswith(text) for each in starts):
                return False
            yield

    def _blanks(self) -> Generator[None, None, None]:
        """Takes white space, which belongs to the text that follows it."""
        scanner = self._scanner
        while True:
            rest = scanner.text[scanner.at :].lstrip()
            blank = len(scanner.text) - len(rest)
            self.say(scanner.text[scanner.at : blank])
            scanner.at = blank
            if rest or scanner.is_closed:
                return
            yield

    def _reason(self) -> Generator[None, None, None]:
        """Reads reasoning, where the answer begins with it."""
        if self._reasoning is None:
            return
        scanner, mark = self._scanner, self._reasoning.begin
        if not self._thinks:
            yield from self._blanks()
            marks = (mark, self._reasoning.end)  # the second alone: the model has nothing to think about
            while not scanner.text.startswith(marks, scanner.at):
                begun = scanner.text[scanner.at : scanner.at + max(map(len, marks))]
                if scanner.is_closed or not any(each.startswith(begun) for each in marks):
                    return
                yield
            if scanner.text.startswith(mark, scanner.at):
                scanner.at += len(mark)
        yield from scanner.through(Marks([self._reasoning.end]), self.think)
        self._spaces = []
        text = ""
        while not scanner.is_closed and not (text := scanner.text[scanner.at :].lstrip()):
            scanner.at = len(scanner.text)
            yield
        scanner.at = len(scanner.text) - len(text) if text else scanner.at

    def _pass(self, piece: str, kind: Callable[[str], Event]) -> None:
        """Gives out text without the white space at its end, which is held until more text follows."""
        if kind is not self._kind:
            self._spaces, self._kind = [], kind
        text = piece.rstrip()
        if text:
            self._events.append(kind("".join(self._spaces) + text))
            self._spaces = []
        if len(piece) > len(text):
            self._spaces.append(piece[len(text) :])

    def _flush(self) -> None:
        """White space at the very end belongs to the answer, unless that ends with calls."""
        if self._spaces and not self._has_called and self._kind is Text:
            self._events.append(Text("".join(self._spaces)))
        self._spaces = []
