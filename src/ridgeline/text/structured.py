"""Structured output: what a client asks for becomes a grammar, by llguidance, within limits of time and memory.

Owns the ways to ask, the process that compiles, and the grammars that it has compiled. A schema is untrusted: it is compiled here to learn
whether it can be, before its request is admitted, and once more where rows follow it.
"""

import hashlib
import json
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import asdict, fields
from threading import Lock
from time import monotonic
from typing import Any, Final, NamedTuple

from ridgeline.core.params import Grammar, StructuredOutputs
from ridgeline.errors import ConfigError, OverloadedError, RequestError
from ridgeline.text.sandbox_frames import FrameError, frame
from ridgeline.text.sandbox_process import SandboxProcess
from ridgeline.text.tools.grammar import CallForm
from ridgeline.text.tools.thought import Reasoned

COMPILE_SECONDS: Final = 1.0
"""CPU time for one grammar; a schema of 10 kB takes some 10 ms."""
START_SECONDS: Final = 10.0
QUEUE_SECONDS: Final = 4.0
"""Time for which a grammar waits for those before it."""
MAX_CHARACTERS: Final = 256 << 10
MAX_CHOICES: Final = 1_000
MAX_DEPTH: Final = 64
MAX_KEPT: Final = 512
MAX_REASON: Final = 400


Form = StructuredOutputs | CallForm | Reasoned
KINDS: Final = tuple(each.name for each in fields(StructuredOutputs))[:6]


class Asked(NamedTuple):
    """A structured output, a form of calls, or an output behind reasoning, and the field that asks for it.

    is_optional  where it cannot be followed, the answer is free
    """

    outputs: Form
    field: str
    is_optional: bool = False

    @property
    def params(self) -> StructuredOutputs | None:
        """The form of it in sampling parameters."""
        return self.outputs if isinstance(self.outputs, StructuredOutputs) else None


class StructuredOutputCompiler:
    """Compiles in a process that starts with the first grammar. From any thread, one grammar at a time."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._process: SandboxProcess | None = None
        self._known: OrderedDict[bytes, Grammar | str] = OrderedDict()
        """Answers by digest of the question: the grammar, or why there is none."""

    def compile(self, asked: Form, param: str = "structured_outputs") -> Grammar:
        """The grammar of a structured output, of an answer with calls, or of one that reasons first.

        Raises RequestError that names what cannot be done, OverloadedError where many wait.

        param  the field that the client sent
        """
        question = _question(asked, param)
        key = hashlib.sha256(question).digest()
        if key in self._known:
            return self._told(self._known[key], param)
        if not self._lock.acquire(timeout=QUEUE_SECONDS):
            raise OverloadedError(f"other grammars have kept the compiler busy for {QUEUE_SECONDS:g} s: try again", 1)
        try:
            found = self._known.get(key)
            if found is None:
                found = self._ask(question)
                self._known[key] = found
                while len(self._known) > MAX_KEPT:
                    self._known.popitem(last=False)
        finally:
            self._lock.release()
        return self._told(found, param)

    def known(self, asked: Form, param: str = "structured_outputs") -> Grammar | None:
        """The grammar, if it has been compiled; without a wait. Raises RequestError."""
        found = self._known.get(hashlib.sha256(_question(asked, param)).digest())
        return None if found is None else self._told(found, param)

    def _told(self, found: Grammar | str, param: str) -> Grammar:
        if isinstance(found, str):
            raise RequestError(f"{param}: {found}", param=param)
        return found

    def close(self) -> None:
        """Ends the process. Safe to call twice."""
        with self._lock:
            self._end()

    def _end(self) -> None:
        if self._process is not None:
            self._process.end()
        self._process = None

    def _ask(self, question: bytes) -> Grammar | str:
        answer = None
        try:
            if self._process is None:
                self._process = SandboxProcess("ridgeline.text.grammar_sandbox", {}, START_SECONDS)
                ready = self._process.ready(START_SECONDS)
                if ready is None or "failed" in ready:
                    raise ConfigError(f"structured output needs the package llguidance: {(ready or {}).get('failed', 'it does not start')}")
            began = monotonic()
            answer = self._process.ask(question, COMPILE_SECONDS, COMPILE_SECONDS / 2)
            seconds = monotonic() - began
        except TimeoutError:
            return f"this grammar needs more than {COMPILE_SECONDS:g} s to compile; simplify it"
        finally:
            if answer is None:
                self._end()
        if answer is None:
            return "this grammar needs more memory or depth than one may have; simplify it"
        if "error" in answer:
            return _printable(str(answer["error"]))
        text = str(answer["grammar"])
        return Grammar(hashlib.sha256(text.encode()).digest(), text, seconds)


def _question(asked: Form, param: str) -> bytes:
    """The frame for the process: kind, value and options. Raises RequestError for what needs no compiler to be refused."""
    if isinstance(asked, CallForm):
        return _framed("calls", asdict(asked), None, param)
    if isinstance(asked, Reasoned):
        return _framed("reasoned", asdict(asked), None, param)
    kind, value = kind_of(asked, param)
    return _framed(kind, value, asked.whitespace_pattern, param)


def kind_of(asked: StructuredOutputs, param: str) -> tuple[str, Any]:
    """The one kind of output that is asked for, and its value. Raises RequestError."""
    nothing = StructuredOutputs()
    given = [name for name in KINDS if getattr(asked, name) is not getattr(nothing, name)]
    if len(given) != 1:
        raise RequestError(f"{param} has {len(given)} of {', '.join(KINDS)}; send exactly one.", param=param)
    value = getattr(asked, given[0])
    if value is True:
        value = {}
    if given[0] in ("json", "structural_tag") and isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            raise RequestError(f"{param}: the text of {given[0]} is no JSON; send an object.", param=param) from None
    if given[0] == "choice" and not (0 < len(value) <= MAX_CHOICES and all(isinstance(each, str) and each for each in value)):
        raise RequestError(f"{param}: choice needs 1 to {MAX_CHOICES} texts, none of them empty.", param=param)
    return given[0], value


def _framed(kind: str, value: Any, whitespace: str | None, param: str) -> bytes:
    if _depth(value) > MAX_DEPTH:
        raise RequestError(f"{param}: {kind} is nested more than {MAX_DEPTH} deep; make it flatter.", param=param)
    try:
        made = frame({"kind": kind, "value": value, "whitespace": whitespace})
    except FrameError as error:
        raise RequestError(f"{param}: {kind} {error}.", param=param) from None
    if len(made) > MAX_CHARACTERS:
        raise RequestError(f"{param}: {kind} has {len(made)} bytes; at most {MAX_CHARACTERS} are allowed.", param=param)
    return made


def _depth(value: Any) -> int:
    """Levels of objects and lists, counted up to one more than is allowed."""
    level, depth = [value], 0
    while level and depth <= MAX_DEPTH:
        inner: list[Any] = []
        for each in level:
            if isinstance(each, Mapping):
                inner += each.values()
            elif isinstance(each, (list, tuple)):
                inner += each
        level = inner
        depth += 1
    return depth


def _printable(text: str) -> str:
    """An error of the library for a client: one line, of bounded length."""
    line = " ".join("".join(letter if letter.isprintable() else " " for letter in text).split())
    return line if len(line) <= MAX_REASON else f"{line[: MAX_REASON - 1]}…"
