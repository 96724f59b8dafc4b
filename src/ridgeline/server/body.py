"""Request bodies, from bytes to a typed value and on to `SamplingParams`: strict JSON, bounded depth, errors that name the field.

Owns how bodies are read, the rejection of known fields that are not supported (`server.unsupported`; unknown fields are ignored), and what
fields mean together. Which fields exist is `server.wire`'s, ranges are `engine.admit`'s.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Final, TypeVar

import msgspec

from ridgeline.config.groups import ServerConfig
from ridgeline.core.params import OPTIONS, SamplingParams
from ridgeline.engine.admit import MAX_LOGIT_BIASES
from ridgeline.engine.beams import MAX_LENGTH_PENALTY
from ridgeline.server import unsupported, wire
from ridgeline.server.errors import ApiError

MAX_JSON_DEPTH: Final = 32
_NO_BRACKETS: Final = bytes(set(range(256)) - set(b"[]{}"))
_ROUND_TO_SQUARE: Final = bytes.maketrans(b"{}", b"[]")
_NAMES: Final = tuple(field.name for field in fields(SamplingParams))
_ID: Final = re.compile(r"0|[1-9][0-9]{0,9}")

Body = TypeVar("Body")


def parse(kind: type[Body], body: bytes) -> Body:
    """Decodes the body as `kind`. Raises ApiError that names the field; its text has types and places, never what the client sent."""
    try:
        parsed = msgspec.json.decode(body, type=kind)
        if is_deeper_than(body, MAX_JSON_DEPTH):
            raise ApiError("json_too_deep", f"the body nests deeper than {MAX_JSON_DEPTH} levels; flatten it")
        return parsed
    except RecursionError:
        raise ApiError("json_too_deep", f"the body nests deeper than {MAX_JSON_DEPTH} levels; flatten it") from None
    except msgspec.ValidationError as error:
        raise _type_error(str(error)) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        place = str(error) if isinstance(error, msgspec.DecodeError) else "it is not UTF-8"
        raise ApiError("invalid_json", f"the body is not valid JSON: {place}") from None


def is_deeper_than(body: bytes, levels: int) -> bool:
    """True if well-formed JSON nests deeper than `levels`. Strings are dropped first; each round then closes the innermost level."""
    outside = b"".join(body.replace(rb"\\", b"").replace(rb"\"", b"").split(b'"')[::2])
    brackets = outside.translate(_ROUND_TO_SQUARE, _NO_BRACKETS)
    for _ in range(levels):
        brackets = brackets.replace(b"[]", b"")
    return bool(brackets)


def _type_error(message: str) -> ApiError:
    """`Expected X, got Y - at $.field[0]` → an answer that names the field."""
    text, _, path = message.partition(" - at `$")
    place = path.rstrip("`").lstrip(".")
    param = place.partition("[")[0].partition(".")[0] or None
    where = f"{place}: " if place else "the body: "
    return ApiError("invalid_type", f"{where}{text[:1].lower()}{text[1:].replace('`', '')}", param=param)


# ── fields that are not supported ───────────────────────────────────────────────────────────────────────────────────


class UnsupportedFields:
    """The unsupported fields of one endpoint. `fields`: name → values beside null that ask for nothing."""

    def __init__(self, fields: unsupported.Fields) -> None:
        self.fields = fields
        self._kind = msgspec.defstruct("_Unsupported", [(name, Any, None) for name in fields], frozen=True)

    def check(self, body: bytes) -> None:
        """Raises ApiError naming the first field that asks for something."""
        values = parse(self._kind, body)
        for name, neutral in self.fields.items():
            value = getattr(values, name)
            if value is not None and value not in neutral:
                reason = unsupported.REASONS.get(name, f"{name} is not supported by this server; leave it out")
                raise ApiError("unsupported_parameter", reason, param=name)


COMPLETION: Final = UnsupportedFields(unsupported.COMPLETION)
CHAT: Final = UnsupportedFields(unsupported.CHAT)
TOKENIZE: Final = UnsupportedFields(unsupported.TOKENIZE)


# ── what fields mean ────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class StreamSettings:
    """Options of a stream.

    final_usage         usage in an event at its end
    continuous_usage    usage in every event
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


def check_generation(payload: wire.GenerationRequest) -> None:
    """Raises ApiError for fields that exclude each other."""
    _check_stream(payload)
    _check_beams(payload)


def _check_stream(payload: wire.GenerationRequest) -> None:
    options = payload.stream_options
    if options is not None and not payload.stream:
        raise ApiError("invalid_value", "stream_options is allowed only with stream: true", param="stream_options")
    if options is not None and options.continuous_usage_stats and not options.include_usage:
        raise ApiError("invalid_value", "continuous_usage_stats works only with include_usage: true", param="stream_options")
    if not payload.stream:
        return
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
    if payload.max_tokens == 0:
        raise ApiError("invalid_value", "max_tokens is 0; a beam search needs at least 1", param="max_tokens")


def stream_settings(payload: wire.GenerationRequest, config: ServerConfig) -> StreamSettings | None:
    """Options of the stream; None where a whole answer is asked for."""
    if not payload.stream:
        return None
    options = payload.stream_options or wire.StreamOptions()
    with_usage = bool(options.include_usage)
    return StreamSettings(with_usage, with_usage and bool(options.continuous_usage_stats), config.sse_keep_alive_interval)


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
    return (stop,) if isinstance(stop, str) else tuple(stop)


_CONVERT: Final[Mapping[str, Any]] = {
    "stop": _stop, "stop_token_ids": tuple, "allowed_token_ids": tuple, "bad_words": tuple, "logit_bias": _logit_bias
}  # fmt: skip
_NO_EFFECT_ON_BEAMS: Final[Mapping[str, tuple[object, ...]]] = {
    **{name: (getattr(SamplingParams(), name),) for name in OPTIONS}, "temperature": (0, 1), "top_k": (0, -1),
    "logit_bias": ({},), "allowed_token_ids": (), "bad_words": ([],), "stop": ([],), "min_tokens": (0,),
    "include_stop_str_in_output": (), "logprobs": (), "prompt_logprobs": (),
}  # fmt: skip
"""Fields without effect on a beam search, which samples nothing; with the values, beside null and false, that ask for nothing."""
