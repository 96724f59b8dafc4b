"""Answers in channels, as OpenAI's Harmony writes them: messages, each with a header that names its channel and perhaps whom it addresses.

    <|channel|>analysis<|message|>…<|end|><|start|>assistant<|channel|>commentary to=functions.NAME <|constrain|>json<|message|>{…}<|call|>

Analysis is reasoning, what addresses a function is a call of it, anything else is the answer.
"""

import re
from collections.abc import Generator
from typing import Final, Protocol

from ridgeline.text.tools.scan import Marks, Scanner

CONTROL: Final = ("<|start|>", "<|channel|>", "<|constrain|>", "<|message|>", "<|end|>", "<|call|>", "<|return|>")
"""Control tokens in such answers."""
_TO: Final = r"(?:\s{0,4}to=(?:functions\.(?P<%s>[\w.-]{1,128})|[\w.-]{1,128}))?"
_HEADER: Final = re.compile(
    r"(?:<\|start\|>)?(?:\s{0,4}assistant)?" + _TO % "before" + r"(?:\s{0,4}<\|channel\|>\s{0,4}(?P<channel>\w{0,32}))?" + _TO % "behind"
    + r"(?:\s{0,4}<\|constrain\|>)?(?:\s{0,4}\w{1,32})?\s{0,4}<\|message\|>"
)  # fmt: skip
_STARTS: Final = ("<|start|>", "<|channel|>", "assistant", "to=")
_NEXT: Final = ("<|start|>", "<|channel|>")
"""Beginning of a header."""
_OVER: Final = Marks(["<|end|>", "<|call|>", "<|return|>", *_NEXT])
_OBJECT: Final = re.compile(r"\s*(?=\{)")


class Answer(Protocol):
    """Receiver of an answer's parts."""

    def begin(self, name: str, call_id: str | None = None) -> None: ...

    def add(self, arguments: str) -> None: ...

    def end(self) -> None: ...

    def think(self, piece: str) -> None: ...

    def say(self, piece: str) -> None: ...


def read_channels(scanner: Scanner, answer: Answer, calls: bool) -> Generator[None, None, None]:
    """Reads a whole answer. calls: what addresses functions is given as calls; else as text."""
    while (yield from _has_more(scanner)):
        header = yield from _header(scanner)
        name = header and (header["before"] or header["behind"])
        if name and calls and (yield from scanner.take(_OBJECT)) is not None:
            answer.begin(name)
            if (yield from scanner.value(answer.add)):
                answer.end()
            mark = yield from scanner.through(_OVER, _nowhere)
        else:
            sink = answer.think if header and header["channel"] == "analysis" else answer.say
            if header is None:  # a mark that begins no header
                stray = next((mark for mark in _NEXT if scanner.text.startswith(mark, scanner.at)), "")
                sink(stray)
                scanner.at += len(stray)
            mark = yield from scanner.through(_OVER, sink)
        if mark in _NEXT:
            scanner.at -= len(mark)


def _header(scanner: Scanner) -> Generator[None, None, re.Match[str] | None]:
    """The header that begins here; None: there is none."""
    while True:
        text = scanner.text[scanner.at : scanner.at + max(map(len, _STARTS))]
        if scanner.is_closed or not any(start.startswith(text) for start in _STARTS):
            break
        yield
    return (yield from scanner.take(_HEADER)) if text.startswith(_STARTS) else None


def _has_more(scanner: Scanner) -> Generator[None, None, bool]:
    """Drops white space between messages; False at the end of all text."""
    while True:
        rest = scanner.text[scanner.at :].lstrip()
        scanner.at = len(scanner.text) - len(rest)
        if rest or scanner.is_closed:
            return bool(rest)
        yield


def _nowhere(piece: str) -> None:
    """Drops what nobody needs."""
