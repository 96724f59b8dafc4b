"""Streams that outlive their replica: what a router is told of one, so that another replica can go on with it.

A router that has the key (`--router-key-file`) finds a line in front of each event: a comment with records of what the engine has put out
since the event before. It keeps the records, counts the events that it has passed on, and sends both in front of the request's body to
another replica when this one dies. There the answer is made again from its records, without the events that the client has; the engine
goes on behind the ids, as it does behind an engine that has ended. Nothing of this reaches clients, and none can ask for it: routers are
known by `server.routers`.
"""

import secrets
import time
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import replace
from hashlib import blake2b
from math import inf
from typing import Final

import msgspec

from ridgeline.core.commands import Close, Output
from ridgeline.core.events import Closed, Finish, Usage
from ridgeline.core.params import Admitted, SamplingParams
from ridgeline.core.plan import TokenLogprobs
from ridgeline.engine.admit import MAX_CHOICES, ModelLimits
from ridgeline.server.errors import ApiError

MARK: Final = b":r "
"""Beginning of the line in front of an event; records follow it, with commas between them."""
MAX_JOURNAL_BYTES: Final = 4 << 20
"""Bytes of the records of one answer; a longer one is not continued."""
_ENCODE: Final = msgspec.json.Encoder().encode


class Prompt(msgspec.Struct, frozen=True, array_like=True):
    """A request of the engine. `digest`: of weights and prompt, without which an answer cannot be the same."""

    request_id: str
    seed: int
    max_tokens: int
    digest: str


class Begun(msgspec.Struct, frozen=True, array_like=True, tag="b"):
    """Facts of an answer that do not follow from its request."""

    created: int
    key: str
    prompts: list[Prompt]


Score = tuple[float | None, list[tuple[int, float | None]], int]
"""Fields of `TokenLogprobs`; None stands for -infinity, which JSON has not."""


class Wrote(msgspec.Struct, frozen=True, array_like=True, tag="w"):
    """An output of a choice. `cached`: tokens of its prompt that came from the prefix cache; `scores`: log-probabilities, as the event of a
    token may come behind its record: text waits for the rest of a character, or of what may be a stop string."""

    prompt: int
    choice: int
    ids: list[int]
    end: Finish | None
    cached: int
    scores: list[Score] | None = None


class Ended(msgspec.Struct, frozen=True, array_like=True, tag="e"):
    """The end of a choice."""

    prompt: int
    choice: int
    reason: Finish
    completion_tokens: int
    cached: int


Record = Begun | Wrote | Ended
_decode: Final = msgspec.json.Decoder(list[Record]).decode


def read_relay(records: bytes, events: int) -> "Relay":
    """An answer that has begun elsewhere, of which the client has so many events. Raises ApiError for what are no records."""
    try:
        found = _decode(records)
    except (msgspec.DecodeError, UnicodeDecodeError):
        found = []
    if not found:
        raise _refused("what stands in front of the body are no records")
    return Relay(found, events)


class Relay:
    """One answer on its way to a router.

    created      seconds since 1970, when the answer began, here or elsewhere
    key          of the ids of its calls
    marks_lines  the router takes marks out of streams of lines too
    """

    def __init__(self, records: Sequence[Record] = (), events: int = 0) -> None:
        """`records`, `events`: of an answer that has begun elsewhere. Raises ApiError where they cannot be."""
        self._begun: Begun | None = None
        self._records: list[Wrote | Ended] = []
        self._pending: list[bytes] = []
        self._skip = events
        self.marks_lines = False
        self.created, self.key = int(time.time()), secrets.token_hex(16).encode()
        for number, each in enumerate(records):
            if isinstance(each, Begun) != (number == 0):
                raise _refused("its records are in no order that they can have")
            if isinstance(each, Begun):
                self._begun, self.created, self.key = each, each.created, each.key.encode()[:64]
            else:
                self._records.append(each)
        self._numbers = iter(self._begun.prompts if self._begun else ())

    @property
    def goes_on(self) -> bool:
        """True if the answer has begun at another replica."""
        return self._begun is not None

    # ── the requests ────────────────────────────────────────────────────────────────────────────────────────────────

    def next_request(self) -> Prompt | None:
        """The request of a prompt at the other replica; None where there was none."""
        return next(self._numbers, None)

    def params(self, params: SamplingParams) -> SamplingParams:
        """The parameters, with the length that the other replica has given the answer."""
        if self._begun is None or params.max_tokens == 0 or not self._begun.prompts:
            return params
        return replace(params, max_tokens=self._begun.prompts[0].max_tokens)

    def begin(self, requests: Sequence[Admitted], limits: ModelLimits) -> None:
        """Notes the requests of an answer; of one that goes on, checks that it can, and its records. Raises ApiError."""
        prompts = [Prompt(each.request_id, each.seed, each.max_tokens, _digest(each, limits)) for each in requests]
        if self._begun is None:
            self._pending.append(_ENCODE(Begun(self.created, self.key.decode(), prompts)))
        elif prompts != self._begun.prompts:
            raise _refused("the model, its template or its settings are not those of the replica that it began at")
        else:
            self._check(requests, limits)

    def _check(self, requests: Sequence[Admitted], limits: ModelLimits) -> None:
        counts: dict[tuple[int, int], int] = {}
        ended: set[tuple[int, int]] = set()
        closed: set[tuple[int, int]] = set()
        for each in self._records:
            place = (each.prompt, each.choice)
            if not (0 <= each.prompt < len(requests) and 0 <= each.choice < min(MAX_CHOICES, requests[each.prompt].choices)):
                raise _refused("a record is of a choice that it has not")
            most = requests[each.prompt].max_tokens
            is_bounded = 0 <= each.cached <= len(requests[each.prompt].prompt) and place not in closed
            if isinstance(each, Ended):
                closed.add(place)
                is_bounded = is_bounded and 0 <= each.completion_tokens <= most
            else:
                count = counts[place] = counts.get(place, 0) + len(each.ids)
                is_whole = place not in ended and (count <= most if each.end is not None else count < most)
                is_bounded = is_bounded and is_whole and all(0 <= token < limits.vocab for token in each.ids)
                is_bounded = is_bounded and _are_scores(each, requests[each.prompt], limits.vocab)
                if each.end is not None:
                    ended.add(place)
            if not is_bounded:
                raise _refused("a number of a record is out of range")

    # ── what has been put out ───────────────────────────────────────────────────────────────────────────────────────

    def note(self, prompt: int, item: Output | Closed, cached: int) -> None:
        """Notes an output or an end of a choice of a prompt."""
        if isinstance(item, Output):
            record: Record = Wrote(prompt, item.choice, list(item.ids), item.end, cached, _scores(item.logprobs))
        else:
            record = Ended(prompt, item.choice, item.reason, item.usage.completion_tokens, item.usage.cached_tokens)
        self._pending.append(_ENCODE(record))

    def items(self, prompt: int, request: Admitted) -> list[Output | Closed]:
        """Outputs elsewhere of one prompt's choices, in order."""
        return [_item(each, request) for each in self._records if each.prompt == prompt]

    def replay(self, requests: Sequence[Admitted]) -> Iterator[tuple[int, Output | Closed]]:
        """The numbers of prompts with what was put out elsewhere, in order."""
        for each in self._records:
            yield each.prompt, _item(each, requests[each.prompt])

    def cached(self, prompt: int) -> dict[int, int]:
        """Choice → tokens of the prompt that came from the other replica's prefix cache."""
        return {each.choice: each.cached for each in self._records if each.prompt == prompt}

    # ── the stream ──────────────────────────────────────────────────────────────────────────────────────────────────

    def mark(self, event: bytes) -> bytes:
        """The event with the line in front of it; b"" for one that the client has."""
        if self._skip > 0:
            self._skip -= 1
            return b""
        line = MARK + b",".join(self._pending) + b"\n"
        self._pending.clear()
        return line + event


def _item(record: Wrote | Ended, request: Admitted) -> Output | Closed:
    if isinstance(record, Ended):
        usage = Usage(len(request.prompt), record.completion_tokens, record.cached)
        return Closed(request.request_id, record.choice, record.reason, usage, time.monotonic())
    return Output(request.request_id, record.choice, tuple(record.ids), _logprobs(record.scores), record.end)


def _scores(logprobs: Sequence[TokenLogprobs] | None) -> list[Score] | None:
    def number(logprob: float) -> float | None:
        return None if logprob == -inf else logprob

    if logprobs is None:
        return None
    return [(number(each.logprob), [(token, number(logprob)) for token, logprob in each.top], each.rank) for each in logprobs]


def _logprobs(scores: Sequence[Score] | None) -> tuple[TokenLogprobs, ...] | None:
    def number(logprob: float | None) -> float:
        return -inf if logprob is None else logprob

    if scores is None:
        return None
    return tuple([TokenLogprobs(number(own), tuple([(token, number(each)) for token, each in top]), rank) for own, top, rank in scores])


def _are_scores(record: Wrote, request: Admitted, vocab: int) -> bool:
    """True for as many scores as ids, where the request asks for them."""
    scores = record.scores or []
    is_whole = len(scores) == (0 if request.sampling.logprobs is None else len(record.ids))
    return is_whole and all(0 <= token < vocab for _, top, _ in scores for token, _ in top)


def close_of(output: Output, close: Close | None, count: int) -> Close | None:
    """The close of a choice whose end was put out elsewhere and not confirmed: no engine has it. `count`: outputs of the choice."""
    if close is not None or output.end is None:
        return close
    return Close(output.request_id, output.choice, count, output.end)


def _digest(request: Admitted, limits: ModelLimits) -> str:
    adapter = b"" if request.adapter is None else request.adapter.digest
    return blake2b(limits.kv.fingerprint + b"\0" + adapter + array("i", request.prompt).tobytes(), digest_size=16).hexdigest()


def _refused(why: str) -> ApiError:
    return ApiError("cannot_continue", f"this answer cannot go on here: {why}")
