"""One streamed request to an OpenAI-compatible server, with the times at which its tokens arrived at the socket.

Owns the definition of a token's arrival. Tokens are counted by the server's usage: an event may hold several of them, or none.
"""

import asyncio
import time
from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta, Struct

from ridgeline.bench.http import HttpClient, HttpError, error_text

Api = Literal["completions", "chat"]
PATHS: Final[Mapping[Api, str]] = {"completions": "/completions", "chat": "/chat/completions"}
"""Paths after the API's version."""
MAX_TEXT_CHARACTERS: Final = 4_000
"""Characters of an answer's text that are kept."""
MAX_LINE_BYTES: Final = 4 << 20

_Count = Annotated[int, Meta(ge=0, le=1 << 31)]


class _Details(Struct):
    cached_tokens: _Count | None = None


class _Usage(Struct):
    prompt_tokens: _Count = 0
    completion_tokens: _Count = 0
    prompt_tokens_details: _Details | None = None


class _Delta(Struct):
    role: str | None = None
    content: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None


class _Choice(Struct):
    text: str | None = None
    delta: _Delta | None = None
    finish_reason: str | None = None


class _Event(Struct):
    choices: list[_Choice] | None = None
    usage: _Usage | None = None
    error: Any = None


_DECODER: Final = msgspec.json.Decoder(_Event)


@dataclass(frozen=True, slots=True)
class PreparedRequest:
    """A request that is ready to be sent. prompt, output: requested tokens; due: seconds after the start of an open loop."""

    number: int
    body: bytes
    prompt: int
    output: int
    due: float = 0.0


@dataclass(slots=True)
class RequestOutcome:
    """Outcome of a request. Times are seconds of `time.perf_counter`.

    intended  when it should have been sent: latency counts from here        sent  when it was sent
    first, ended  arrival of the first and the last token                    gaps  seconds between events that brought tokens
    counted   the tokens are the server's count, not a count of events       error  its kind, None on success
    """

    request: PreparedRequest
    intended: float
    sent: float = 0.0
    first: float = 0.0
    ended: float = 0.0
    prompt: int = 0
    output: int = 0
    cached: int = 0
    events: int = 0
    gaps: "array[float]" = field(default_factory=lambda: array("d"))
    counted: bool = False
    text: str = ""
    error: str | None = None
    message: str = ""


class StreamReader:
    """Reads the events of one stream into an outcome."""

    def __init__(self, outcome: RequestOutcome) -> None:
        self._outcome = outcome
        self._rest = b""
        self._texts: list[str] = []
        self._characters = 0
        self._is_finished = False

    def receive(self, data: bytes, now: float) -> None:
        """Processes the next bytes of the body, received at `now`. Raises HttpError."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > MAX_LINE_BYTES:
            raise HttpError("no stream", f"an event has more than {MAX_LINE_BYTES >> 20} MB")
        for line in lines:
            if line.startswith(b"data:"):
                self._event(line[5:].strip(), now)

    def finish(self) -> None:
        """Checks the stream after the last byte. Raises HttpError where it is not a complete answer."""
        outcome = self._outcome
        outcome.text = "".join(self._texts)
        if not self._is_finished:
            raise HttpError("unfinished", f"the stream ended after {outcome.events} events without a reason")
        if not outcome.events:
            raise HttpError("no tokens", "the stream brought no token")
        if not outcome.counted:
            outcome.prompt, outcome.output = outcome.request.prompt, outcome.events

    def _event(self, data: bytes, now: float) -> None:
        if data == b"[DONE]":
            self._is_finished = True
            return
        try:
            event = _DECODER.decode(data)
        except msgspec.DecodeError as error:
            raise HttpError("no stream", f"an event is not what OpenAI's API has: {error}") from None
        if event.error is not None:
            raise HttpError("error in stream", error_text(data))
        if event.choices:
            self._choice(event.choices[0], now)
        if event.usage is not None:
            self._usage(event.usage)

    def _choice(self, choice: _Choice, now: float) -> None:
        text, has_tokens = _event_text(choice)
        self._is_finished = self._is_finished or choice.finish_reason is not None
        if not has_tokens:
            return
        outcome = self._outcome
        if outcome.events:
            outcome.gaps.append(now - outcome.ended)
        else:
            outcome.first = now
        outcome.ended = now
        outcome.events += 1
        if self._characters < MAX_TEXT_CHARACTERS:
            self._characters += len(text)
            self._texts.append(text)

    def _usage(self, usage: _Usage) -> None:
        if usage.completion_tokens:
            outcome, details = self._outcome, usage.prompt_tokens_details
            outcome.prompt, outcome.output, outcome.counted = usage.prompt_tokens, usage.completion_tokens, True
            outcome.cached = (details.cached_tokens or 0) if details is not None else 0


def _event_text(choice: _Choice) -> tuple[str, bool]:
    """(text, has tokens) of a choice's event. Events with only a role, or an end without text, have no tokens; one whose text is empty
    because a character is incomplete has."""
    delta = choice.delta
    if delta is None:
        return choice.text or "", bool(choice.text) or (choice.text is not None and choice.finish_reason is None)
    text = delta.content or delta.reasoning_content or delta.reasoning or ""
    return text, bool(text) or (delta.role is None and choice.finish_reason is None)


class Client:
    """Sends requests to one API of one server."""

    def __init__(self, http: HttpClient, api: Api, seconds: float) -> None:
        self._http, self._path, self._seconds = http, http.version + PATHS[api], seconds

    async def run(self, request: PreparedRequest, intended: float) -> RequestOutcome:
        """Sends the request now and reads its answer to the end. Failures are in the outcome; nothing is raised."""
        outcome = RequestOutcome(request, intended, sent=time.perf_counter())
        reader = StreamReader(outcome)
        try:
            async with asyncio.timeout(self._seconds):
                response = await self._http.stream(self._path, request.body, reader.receive)
            if response.status != 200:
                raise HttpError(f"HTTP {response.status}", error_text(bytes(response.body)))
            reader.finish()
        except TimeoutError:
            outcome.error, outcome.message = "timeout", f"no end of the answer after {self._seconds:g} s"
        except HttpError as error:
            outcome.error, outcome.message = error.kind, str(error)
        return outcome


def make_body(api: Api, model: str, prompt: str, output: int, ignore_eos: bool, extra: Mapping[str, Any]) -> bytes:
    """The JSON of a request: greedy and streamed with usage, unless `extra` says otherwise."""
    request = {"prompt": prompt} if api == "completions" else {"messages": [{"role": "user", "content": prompt}]}
    body = {
        "model": model, **request, "max_tokens": output, "temperature": 0, "stream": True, "stream_options": {"include_usage": True},
        **({"ignore_eos": True} if ignore_eos else {}), **extra,
    }  # fmt: skip
    return msgspec.json.encode(body)
