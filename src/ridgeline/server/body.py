"""Request bodies, from bytes to a typed value and on to `SamplingParams`: strict JSON, bounded depth, errors that name the field.

Owns how bodies are read, the tables of fields that are known and not built (rejected by name unless their value asks for nothing; a field
nobody knows is ignored), and what fields mean together. Which fields exist is `server.wire`'s, ranges are `engine.admit`'s.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from types import MappingProxyType
from typing import Any, Final, TypeVar

import msgspec

from ridgeline.config.groups import ServerConfig
from ridgeline.core.params import OPTIONS, SamplingParams
from ridgeline.engine.beams import LENGTH_PENALTY
from ridgeline.server import wire
from ridgeline.server.errors import ApiError

JSON_DEPTH: Final = 32
LOGIT_BIASES: Final = 300
_NO_BRACKETS: Final = bytes(set(range(256)) - set(b"[]{}"))
_ROUND_TO_SQUARE: Final = bytes.maketrans(b"{}", b"[]")
_NAMES: Final = tuple(field.name for field in fields(SamplingParams))
_ID: Final = re.compile(r"0|[1-9][0-9]{0,9}")

Body = TypeVar("Body")
Neutral = tuple[object, ...]


def parse(shape: type[Body], body: bytes) -> Body:
    """The body as `shape`. Raises ApiError that names the field; its text holds types and places, never what the client sent."""
    try:
        parsed = msgspec.json.decode(body, type=shape)
        if deeper_than(body, JSON_DEPTH):
            raise ApiError("json_too_deep", f"the body nests deeper than {JSON_DEPTH} levels; flatten it")
        return parsed
    except RecursionError:
        raise ApiError("json_too_deep", f"the body nests deeper than {JSON_DEPTH} levels; flatten it") from None
    except msgspec.ValidationError as error:
        raise _wrong_type(str(error)) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        place = str(error) if isinstance(error, msgspec.DecodeError) else "it is not UTF-8"
        raise ApiError("invalid_json", f"the body is not valid JSON: {place}") from None


def deeper_than(body: bytes, levels: int) -> bool:
    """True if well-formed JSON nests deeper than `levels`. Strings are dropped first; each round then closes the innermost level."""
    outside = b"".join(body.replace(rb"\\", b"").replace(rb"\"", b"").split(b'"')[::2])
    brackets = outside.translate(_ROUND_TO_SQUARE, _NO_BRACKETS)
    for _ in range(levels):
        brackets = brackets.replace(b"[]", b"")
    return bool(brackets)


def _wrong_type(message: str) -> ApiError:
    """`Expected X, got Y - at $.field[0]` → an answer that names the field."""
    text, _, path = message.partition(" - at `$")
    place = path.rstrip("`").lstrip(".")
    param = place.partition("[")[0].partition(".")[0] or None
    where = f"{place}: " if place else "the body: "
    return ApiError("invalid_type", f"{where}{text[:1].lower()}{text[1:].replace('`', '')}", param=param)


# ── fields that are not built ───────────────────────────────────────────────────────────────────────────────────────


class Unbuilt:
    """The unbuilt fields of one endpoint. `fields`: name → values beside null that ask for nothing."""

    def __init__(self, fields: Mapping[str, Neutral]) -> None:
        self.fields = MappingProxyType(dict(fields))
        self._shape = msgspec.defstruct("_Sent", [(name, Any, None) for name in fields], frozen=True)

    def check(self, body: bytes) -> None:
        """Raises ApiError naming the first field that asks for something."""
        sent = parse(self._shape, body)
        for name, neutral in self.fields.items():
            value = getattr(sent, name)
            if value is not None and value not in neutral:
                raise ApiError("unsupported_parameter", _WHY.get(name, f"{name} is not supported by this server; leave it out"), param=name)


_EVERYWHERE: Final[Mapping[str, Neutral]] = {
    "guided_choice": (),
    "guided_grammar": (),
    "guided_json": (),
    "guided_regex": (),
    "kv_transfer_params": (),
    "logprob_token_ids": ([],),
    "repetition_detection": (),
    "request_id": (),
    "response_format": ({"type": "text"},),
    "return_prompt_text": (False,),
    "session_id": (),
    "spaces_between_special_tokens": (True,),
    "stream_interval": (1,),
    "structured_outputs": (),
    "thinking_token_budget": (),
    "vllm_xargs": ({},),
}
_WHY: Final[Mapping[str, str]] = {
    "chat_template": "chat_template is never taken from a request; start the server with --chat-template FILE",
    "response_format": "response_format is not supported by this server; leave it out, or send type text",
}

COMPLETION: Final = Unbuilt({**_EVERYWHERE, "prompt_embeds": (), "suffix": ("",), "truncation_side": ("left",)})
CHAT: Final = Unbuilt({
    **_EVERYWHERE,
    "add_special_tokens": (False,),
    "audio": (),
    "chat_template": (),
    "echo": (False,),
    "function_call": ("none",),
    "functions": ([],),
    "include_reasoning": (),
    "mm_processor_kwargs": ({},),
    "modalities": (["text"],),
    "prediction": (),
    "reasoning_effort": (),
    "truncate_prompt_tokens": (),
    "verbosity": (),
    "web_search_options": (),
})
TOKENIZE: Final = Unbuilt({"chat_template": (), "mm_processor_kwargs": ({},)})


# ── what fields mean ────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Streaming:
    """Options of a stream: `usage` at its end, also `continuous` in every event; a comment after so many `quiet_seconds`."""

    usage: bool
    continuous: bool
    quiet_seconds: float


def sampling_params(asked: wire.GenerationRequest, defaults: Mapping[str, int | float], **own: Any) -> SamplingParams:
    """The body's fields by their names. What is absent or null has the model's default, else the one of `SamplingParams`, which is vLLM's.

    defaults  by the names of `SamplingParams`; `max_tokens` among them is the endpoint's business
    own       fields that the endpoint reads itself
    """
    given: dict[str, Any] = {name: value for name, value in defaults.items() if name != "max_tokens"}
    for name in _NAMES:
        value = getattr(asked, name, None)
        if value is not None and name not in own:
            given[name] = _CONVERT.get(name, _same)(value)
    return SamplingParams(**given | own)


def check_generation(asked: wire.GenerationRequest) -> None:
    """Raises ApiError for fields that exclude each other."""
    _check_stream(asked)
    _check_beams(asked)


def _check_stream(asked: wire.GenerationRequest) -> None:
    options = asked.stream_options
    if options is not None and not asked.stream:
        raise ApiError("invalid_value", "stream_options is allowed only with stream: true", param="stream_options")
    if options is not None and options.continuous_usage_stats and not options.include_usage:
        raise ApiError("invalid_value", "continuous_usage_stats works only with include_usage: true", param="stream_options")
    if not asked.stream:
        return
    if asked.best_of is not None and asked.best_of != (asked.n or 1):
        raise _whole_only("best_of", "which answers are best is known at their end")
    if asked.use_beam_search:
        raise _whole_only("use_beam_search", "the best beam is known at its end")
    if asked.prompt_logprobs is not None:
        raise _whole_only("prompt_logprobs", "they come with a whole answer")


def _check_beams(asked: wire.GenerationRequest) -> None:
    if not asked.use_beam_search:
        if asked.length_penalty not in (None, 1):
            raise ApiError("invalid_value", "length_penalty works only with use_beam_search: true", param="length_penalty")
        return
    for name, neutral in _NOT_FOR_BEAMS.items():
        value = getattr(asked, name, None)
        if value is not None and value is not False and value not in neutral:
            raise ApiError("invalid_value", f"{name} has no effect on a beam search; leave it out", param=name)
    if asked.length_penalty is not None and abs(asked.length_penalty) > LENGTH_PENALTY:
        message = f"length_penalty is out of range; it must be at least -{LENGTH_PENALTY} and at most {LENGTH_PENALTY}"
        raise ApiError("invalid_value", message, param="length_penalty")
    if asked.max_tokens == 0:
        raise ApiError("invalid_value", "max_tokens is 0; a beam search needs at least 1", param="max_tokens")


def streaming(asked: wire.GenerationRequest, config: ServerConfig) -> Streaming | None:
    """Options of the stream; None where a whole answer is asked for."""
    if not asked.stream:
        return None
    options = asked.stream_options or wire.StreamOptions()
    with_usage = bool(options.include_usage)
    return Streaming(with_usage, with_usage and bool(options.continuous_usage_stats), config.sse_keep_alive_interval)


def _whole_only(name: str, why: str) -> ApiError:
    return ApiError("invalid_value", f"{name} cannot be streamed ({why}); send stream: false", param=name)


def _logit_bias(biases: dict[str, float]) -> tuple[tuple[int, float], ...]:
    """JSON has no integer keys: an id is written as a string of digits, without sign, spaces and leading zeros."""
    if len(biases) > LOGIT_BIASES:
        raise ApiError("invalid_value", f"logit_bias has {len(biases)} ids; at most {LOGIT_BIASES} are allowed", param="logit_bias")
    for key in biases:
        if not _ID.fullmatch(key):
            message = 'a key of logit_bias is no token id; write ids as strings of digits, like "262"'
            raise ApiError("invalid_value", message, param="logit_bias")
    return tuple((int(key), bias) for key, bias in biases.items())


def _same(value: Any) -> Any:
    return value


def _stop(stop: str | list[str]) -> tuple[str, ...]:
    return (stop,) if isinstance(stop, str) else tuple(stop)


_CONVERT: Final[Mapping[str, Any]] = {
    "stop": _stop, "stop_token_ids": tuple, "allowed_token_ids": tuple, "bad_words": tuple, "logit_bias": _logit_bias
}  # fmt: skip
_NOT_FOR_BEAMS: Final[Mapping[str, tuple[object, ...]]] = {
    **{name: (getattr(SamplingParams(), name),) for name in OPTIONS}, "temperature": (0, 1), "top_k": (0, -1),
    "logit_bias": ({},), "allowed_token_ids": (), "bad_words": ([],), "stop": ([],), "min_tokens": (0,),
    "include_stop_str_in_output": (), "logprobs": (), "prompt_logprobs": (),
}  # fmt: skip
"""Beams are the likeliest sequences by the model alone, whatever these say. With the values, beside null and false, that ask for naught."""
