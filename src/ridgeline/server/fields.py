"""From the fields of a body to `SamplingParams`, alike for every endpoint that generates: names, defaults of the model, JSON's spellings.

Owns what fields mean together (a stream and its options, log-probabilities of chat). Ranges are `engine.admit`'s business.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Final

from ridgeline.config.groups import ServerConfig
from ridgeline.core.params import SamplingParams
from ridgeline.server import wire
from ridgeline.server.errors import ApiError

LOGIT_BIASES: Final = 300
LENGTH_PENALTY: Final = 10
_NAMES: Final = tuple(field.name for field in fields(SamplingParams))
_ID: Final = re.compile(r"0|[1-9][0-9]{0,9}")


@dataclass(frozen=True, slots=True)
class Streaming:
    """What a stream has beside text: `usage` at its end, also `continuous` in every event; a comment after so many `quiet_seconds`."""

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
    """What the stream has; None where a whole answer is asked for."""
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
    "temperature": (0, 1), "top_p": (1,), "top_k": (0, -1), "min_p": (0,), "presence_penalty": (0,), "frequency_penalty": (0,),
    "repetition_penalty": (1,), "logit_bias": ({},), "allowed_token_ids": (), "bad_words": ([],), "stop": ([],), "min_tokens": (0,),
    "include_stop_str_in_output": (), "logprobs": (), "prompt_logprobs": (),
}  # fmt: skip
"""Beams are the likeliest sequences by the model alone, whatever these say. With the values, beside null and false, that ask for naught."""
