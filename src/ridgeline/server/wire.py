"""The shapes of request and response bodies: typed structs, decoded strictly.

Owns which fields exist. A field that is known and not built yet is refused by name unless its value changes nothing; an unknown field
is ignored. Ranges are `engine.admit`'s business, never this file's.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final, TypeVar

import msgspec
from msgspec import Struct

from ridgeline.server.errors import ApiError

JSON_DEPTH: Final = 32
MAX_PROMPTS: Final = 64

UNBUILT: Final[Mapping[str, tuple[object, ...]]] = MappingProxyType({
    "allowed_token_ids": (),
    "bad_words": ([],),
    "best_of": (1,),
    "echo": (False,),
    "frequency_penalty": (0,),
    "guided_choice": (),
    "guided_grammar": (),
    "guided_json": (),
    "guided_regex": (),
    "kv_transfer_params": (),
    "length_penalty": (1,),
    "logit_bias": ({},),
    "logprob_token_ids": ([],),
    "min_p": (0,),
    "presence_penalty": (0,),
    "prompt_embeds": (),
    "prompt_logprobs": (),
    "repetition_detection": (),
    "repetition_penalty": (1,),
    "request_id": (),
    "response_format": ({"type": "text"},),
    "return_prompt_text": (False,),
    "return_token_ids": (False,),
    "return_tokens_as_token_ids": (False,),
    "session_id": (),
    "spaces_between_special_tokens": (True,),
    "stream_interval": (1,),
    "structured_outputs": (),
    "suffix": ("",),
    "thinking_token_budget": (),
    "truncate_prompt_tokens": (),
    "use_beam_search": (False,),
    "vllm_xargs": ({},),
})
"""Fields of OpenAI's and vLLM's completions that are not built yet → values beside null that ask for nothing."""


class StreamOptions(Struct, frozen=True):
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class CompletionRequest(Struct, frozen=True):
    """Null means absent everywhere: clients send it for what they leave open."""

    model: str | None = None
    prompt: str | list[str | int | list[int]] | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    n: int | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    include_stop_str_in_output: bool | None = None
    ignore_eos: bool | None = None
    min_tokens: int | None = None
    logprobs: int | None = None
    skip_special_tokens: bool | None = None
    add_special_tokens: bool | None = None
    priority: int | None = None
    cache_salt: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None


class TokenizeRequest(Struct, frozen=True):
    model: str | None = None
    prompt: str | None = None
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None


class DetokenizeRequest(Struct, frozen=True):
    model: str | None = None
    tokens: list[int] | None = None


class Logprobs(Struct, frozen=True):
    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]]
    text_offset: list[int]


class Choice(Struct, frozen=True):
    index: int
    text: str
    logprobs: Logprobs | None
    finish_reason: str | None
    stop_reason: str | int | None = None


class PromptTokensDetails(Struct, frozen=True):
    cached_tokens: int


class Usage(Struct, frozen=True):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails


class Completion(Struct, frozen=True, omit_defaults=True):
    """A whole answer, or one event of a stream."""

    id: str
    object: str
    created: int
    model: str
    choices: list[Choice]
    usage: Usage | None = None


class ModelCard(Struct, frozen=True):
    id: str
    object: str
    created: int
    owned_by: str
    root: str
    parent: str | None
    max_model_len: int


class ModelList(Struct, frozen=True):
    object: str
    data: list[ModelCard]


class TokenizeResponse(Struct, frozen=True):
    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None


class DetokenizeResponse(Struct, frozen=True):
    prompt: str


_Unbuilt = msgspec.defstruct("_Unbuilt", [(name, Any, None) for name in UNBUILT], frozen=True)
_NO_BRACKETS: Final = bytes(set(range(256)) - set(b"[]{}"))
_ROUND_TO_SQUARE: Final = bytes.maketrans(b"{}", b"[]")

Body = TypeVar("Body")


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


def refuse_unbuilt(body: bytes) -> None:
    """Raises ApiError naming the first known field that is not built yet and asks for something."""
    sent = parse(_Unbuilt, body)
    for name, neutral in UNBUILT.items():
        value = getattr(sent, name)
        if value is not None and value not in neutral:
            raise ApiError("unsupported_parameter", f"{name} is not supported by this server yet; leave it out", param=name)


def deeper_than(body: bytes, levels: int) -> bool:
    """Whether well-formed JSON nests deeper than `levels`. Strings are dropped first; each round then closes the innermost level."""
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
