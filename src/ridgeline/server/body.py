"""Request bodies, from bytes to a typed value and on to `SamplingParams`: strict JSON, bounded depth, errors that name the field.

Owns how bodies are read, and what fields mean together: those that several clients spell differently too. Which fields exist is
`server.wire`'s, which of them are unsupported or unknown is `server.fields`'s, ranges are `engine.admit`'s.
"""

import re
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, fields
from typing import Any, Final, TypeVar

import msgspec

from ridgeline.config.groups import ServerConfig
from ridgeline.core.params import OPTIONS, SamplingParams, Vote
from ridgeline.engine.admit import BOUNDS, MAX_LOGIT_BIASES
from ridgeline.engine.beams import MAX_LENGTH_PENALTY
from ridgeline.errors import RequestError
from ridgeline.server import wire
from ridgeline.server.errors import ApiError
from ridgeline.server.notes import Notes

MAX_JSON_DEPTH: Final = 32
_NO_BRACKETS: Final = bytes(set(range(256)) - set(b"[]{}"))
_ROUND_TO_SQUARE: Final = bytes.maketrans(b"{}", b"[]")
_NAMES: Final = tuple(field.name for field in fields(SamplingParams))
_ECHO: Final = re.compile(r"Invalid (enum )?value .*", re.DOTALL)
"""The one kind of message that has what the client sent."""
_ID: Final = re.compile(r"0|[1-9][0-9]{0,9}")

Body = TypeVar("Body")


def parse(kind: type[Body], body: bytes) -> Body:
    """Decodes the body as `kind`, at most MAX_JSON_DEPTH levels deep. Raises as `decode`."""
    parsed = decode(kind, body)
    if is_deeper_than(body, MAX_JSON_DEPTH):
        raise ApiError("json_too_deep", f"the body nests deeper than {MAX_JSON_DEPTH} levels; flatten it")
    return parsed


def decode(kind: type[Body], data: bytes | msgspec.Raw) -> Body:
    """Decodes JSON as `kind`. Raises ApiError that names the field; its text has types and places, never what the client sent."""
    try:
        return msgspec.json.decode(data, type=kind)
    except RecursionError:
        raise ApiError("json_too_deep", f"the body nests deeper than {MAX_JSON_DEPTH} levels; flatten it") from None
    except msgspec.ValidationError as error:
        raise _type_error(str(error)) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        place = str(error) if isinstance(error, msgspec.DecodeError) else "it is not UTF-8"
        raise ApiError("invalid_json", f"the body is not valid JSON: {place}") from None


def is_deeper_than(body: bytes, levels: int) -> bool:
    """True if well-formed JSON nests deeper than `levels`. Strings are dropped first; each round then closes the innermost level."""
    if body.count(b"{") + body.count(b"[") <= levels:
        return False
    outside = b"".join(body.replace(rb"\\", b"").replace(rb"\"", b"").split(b'"')[::2])
    brackets = outside.translate(_ROUND_TO_SQUARE, _NO_BRACKETS)
    while brackets and levels:
        brackets, levels = brackets.replace(b"[]", b""), levels - 1
    return bool(brackets)


def _type_error(message: str) -> ApiError:
    """`Expected X, got Y - at $.field[0]` → an answer that names the field."""
    text, at, path = message.rpartition(" - at `$")
    text, path = (_ECHO.sub("Invalid value", text), path) if at else (message, "")
    place = path.rstrip("`").lstrip(".")
    param = place.partition("[")[0].partition(".")[0] or None
    where = f"{place}: " if place else "the body: "
    return ApiError("invalid_type", f"{where}{text[:1].lower()}{text[1:].replace('`', '')}", param=param)


@dataclass(frozen=True, slots=True)
class StreamSettings:
    """Options of a stream.

    final_usage         usage in an event of its own, at its end
    continuous_usage    usage so far in every other event
    keep_alive_seconds  time without an event after which a comment is sent
    """

    final_usage: bool
    continuous_usage: bool
    keep_alive_seconds: float


def sampling_params(payload: wire.GenerationRequest, defaults: Mapping[str, int | float], **overrides: Any) -> SamplingParams:
    """Parameters from the body's fields, by name. What is absent or null has the model's default, else that of `SamplingParams` (vLLM's).

    defaults   by the names of `SamplingParams`; `max_tokens` among them is the endpoint's business
    overrides  fields that the endpoint reads itself
    """
    given: dict[str, Any] = {name: value for name, value in defaults.items() if name != "max_tokens"}
    for name in _NAMES:
        value = getattr(payload, name, None)
        if value is not None and name not in overrides:
            convert = _CONVERT.get(name)
            given[name] = convert(value) if convert else value
    return SamplingParams(**given | overrides)


LENGTHS: Final = ("max_tokens", "max_completion_tokens", "n_predict")
"""Names of the same number: OpenAI's old and new one, and llama.cpp's."""


@dataclass(frozen=True, slots=True)
class OutputLimit:
    """The length of an answer as a client states it, under the name `field`. tokens None: as many as fit."""

    field: str
    tokens: int | None


def output_limit(payload: wire.GenerationRequest, notes: Notes) -> OutputLimit | None:
    """The smallest of the lengths that the client states; names of larger ones are noted. -1 is as many as fit. None: it states none."""
    bound = BOUNDS["max_tokens"]
    given: dict[str, int] = {}
    for name in LENGTHS:
        value = getattr(payload, name)
        if isinstance(value, int):
            if value != -1 and not bound.low <= value <= bound.high:
                message = f"{name} is out of range; it must be at least {bound.low} and at most {bound.high}, or -1 for as many as fit"
                raise ApiError("invalid_value", message, param=name)
            given[name] = int(bound.high) + 1 if value == -1 else value
    if not given:
        return None
    field = min(given, key=lambda name: given[name])
    for name, value in given.items():
        if value != given[field]:
            notes.ignore(name, f"{field} is smaller")
    return OutputLimit(field, None if given[field] > bound.high else given[field])


def num_logprobs(payload: wire.GenerationRequest) -> int | None:
    """Number of likeliest ids beside each token, from chat's form (true, and `top_logprobs`) or completions' (their number). None: no
    log-probabilities."""
    asked, top = payload.logprobs, payload.top_logprobs
    if asked is None or asked is False:
        if top:
            raise ApiError("invalid_value", "top_logprobs works only with logprobs: true", param="top_logprobs")
        return None
    numbers = [0 if asked is True else asked, *([] if top is None else [top])]
    return min(numbers) if min(numbers) < 0 else max(numbers)


def client_field_names(payload: wire.GenerationRequest, limit: OutputLimit | None) -> AbstractContextManager[None]:
    """Makes a RequestError name the field that the client sent."""
    names = {"logprobs": "logprobs" if payload.top_logprobs is None else "top_logprobs"}
    return told_as(names if limit is None else {**names, "max_tokens": limit.field})


@contextmanager
def told_as(names: Mapping[str, str]) -> Iterator[None]:
    """Makes errors name the fields that the client sent. names: field here → field there."""
    try:
        yield
    except (RequestError, ApiError) as error:
        name = names.get(error.param or "")
        if name is None or name == error.param:
            raise
        message = re.sub(rf"\b{re.escape(error.param or '')}\b", name, error.message)
        if isinstance(error, ApiError):
            raise ApiError(error.code, message, param=name, headers=error.headers) from None
        raise RequestError(message, param=name, code=error.code, status=error.status) from None


def check_generation(payload: wire.GenerationRequest) -> None:
    """Raises ApiError for fields that exclude each other."""
    _check_stream(payload)
    _check_beams(payload)


def _check_stream(payload: wire.GenerationRequest) -> None:
    options = payload.stream_options
    if not payload.stream:
        if options is not None and (options.include_usage or options.continuous_usage_stats):
            raise ApiError("invalid_value", "stream_options is allowed only with stream: true", param="stream_options")
        return
    if payload.vote is not None:
        raise _not_streamable("vote", "which answer is elected is known at their end")
    if payload.best_of is not None and payload.best_of != (payload.n or 1):
        raise _not_streamable("best_of", "which answers are best is known at their end")
    if payload.use_beam_search:
        raise _not_streamable("use_beam_search", "the best beam is known at its end")
    if payload.prompt_logprobs is not None:
        raise _not_streamable("prompt_logprobs", "they come with a whole answer")


def _check_beams(payload: wire.GenerationRequest) -> None:
    if not payload.use_beam_search:
        if payload.length_penalty not in (None, 1):
            raise ApiError("invalid_value", "length_penalty works only with use_beam_search: true", param="length_penalty")
        return
    for name, neutral in _NO_EFFECT_ON_BEAMS.items():
        value = getattr(payload, name, None)
        if value is not None and value is not False and value not in neutral:
            raise ApiError("invalid_value", f"{name} has no effect on a beam search; leave it out", param=name)
    if payload.length_penalty is not None and abs(payload.length_penalty) > MAX_LENGTH_PENALTY:
        message = f"length_penalty is out of range; it must be at least -{MAX_LENGTH_PENALTY} and at most {MAX_LENGTH_PENALTY}"
        raise ApiError("invalid_value", message, param="length_penalty")
    for name in LENGTHS:
        if getattr(payload, name) == 0:
            raise ApiError("invalid_value", f"{name} is 0; a beam search needs at least 1", param=name)


def stream_settings(payload: wire.GenerationRequest, config: ServerConfig) -> StreamSettings | None:
    """Options of the stream; None where a whole answer is asked for."""
    if not payload.stream:
        return None
    options = payload.stream_options or wire.StreamOptions()
    return StreamSettings(bool(options.include_usage), bool(options.continuous_usage_stats), config.sse_keep_alive_interval)


def _not_streamable(name: str, reason: str) -> ApiError:
    return ApiError("invalid_value", f"{name} cannot be streamed ({reason}); send stream: false", param=name)


def _logit_bias(biases: dict[str, float]) -> tuple[tuple[int, float], ...]:
    """JSON has no integer keys: an id is written as a string of digits, without sign, spaces and leading zeros."""
    if len(biases) > MAX_LOGIT_BIASES:
        raise ApiError("invalid_value", f"logit_bias has {len(biases)} ids; at most {MAX_LOGIT_BIASES} are allowed", param="logit_bias")
    for key in biases:
        if not _ID.fullmatch(key):
            message = 'a key of logit_bias is no token id; write ids as strings of digits, like "262"'
            raise ApiError("invalid_value", message, param="logit_bias")
    return tuple((int(key), bias) for key, bias in biases.items())


def _stop(stop: str | list[str]) -> tuple[str, ...]:
    """An empty string stops nothing: clients send it for what they leave open."""
    return tuple(each for each in ([stop] if isinstance(stop, str) else stop) if each)


_CONVERT: Final[Mapping[str, Any]] = {
    "stop": _stop, "stop_token_ids": tuple, "allowed_token_ids": tuple, "bad_words": tuple, "logit_bias": _logit_bias,
    "vote": lambda vote: Vote(vote.marker, vote.json_pointer),
}  # fmt: skip
_NO_EFFECT_ON_BEAMS: Final[Mapping[str, tuple[object, ...]]] = {
    **{name: (getattr(SamplingParams(), name),) for name in OPTIONS}, "temperature": (0, 1), "top_k": (0, -1),
    "logit_bias": ({},), "allowed_token_ids": (), "bad_words": ([],), "stop": ([],), "min_tokens": (0,),
    "include_stop_str_in_output": (), "thinking_token_budget": (-1,), "logprobs": (), "top_logprobs": (0,), "prompt_logprobs": (),
    "vote": (),
}  # fmt: skip
"""Fields without effect on a beam search, which samples nothing; with the values, beside null and false, that ask for nothing."""
