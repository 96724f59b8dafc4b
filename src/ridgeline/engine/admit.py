"""The one door in: turns what a client asks for into the value that the engine accepts, or says what is wrong with it.

Owns every bound on a number that comes from outside. Never tokenises, never makes up a request id, never looks at the engine's load.
"""

import hashlib
import hmac
import random
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from ridgeline.core.fit import pages_needed
from ridgeline.core.params import Admitted, SamplingParams
from ridgeline.core.plan import KVShape
from ridgeline.errors import RequestError

INT64_MAX: Final = 2**63 - 1
COLDEST: Final = 0.01
"""A positive temperature below this counts as this (as in vLLM): logits divided by less may overflow. 0 is greedy."""


@dataclass(frozen=True, slots=True)
class Bound:
    """A number's range, both ends included. `whole`: integers only. `above`: the lower end itself is not allowed."""

    low: float
    high: float
    whole: bool = True
    above: bool = False


BOUNDS: Final = MappingProxyType({
    "n": Bound(1, 8),
    "temperature": Bound(0, 10, whole=False),
    "top_p": Bound(0, 1, whole=False, above=True),
    "top_k": Bound(-1, 2**31 - 1),
    "seed": Bound(-(2**63), INT64_MAX),
    "max_tokens": Bound(1, 2**31 - 1),
    "min_tokens": Bound(0, 2**31 - 1),
    "logprobs": Bound(0, 20),
    "priority": Bound(-(2**31), 2**31 - 1),
})
OPTIONAL: Final = frozenset({"seed", "max_tokens", "logprobs"})
FLAGS: Final = ("include_stop_str_in_output", "ignore_eos", "skip_special_tokens")
STOP_STRINGS, STOP_CHARACTERS, STOP_IDS = 4, 64, 64


@dataclass(frozen=True, slots=True)
class ModelLimits:
    """What the loaded model can take.

    vocab          width of the logits; every id is below it
    max_model_len  prompt and outputs together
    eos_ids        ids that end a sequence unless `ignore_eos`
    kv             for the proof that a request fits when it is alone
    """

    vocab: int
    max_model_len: int
    eos_ids: frozenset[int]
    kv: KVShape


def admit(
    prompt: Sequence[int],
    params: SamplingParams,
    limits: ModelLimits,
    *,
    request_id: str,
    draw_seed: Callable[[], int],
    domain: bytes = b"",
    priority: int = 0,
) -> Admitted:
    """The accepted request. `draw_seed` gives 63 random bits when the client sent no seed; `domain` is the tenant's.

    Raises `RequestError` that names the field, the number, the bound and the fix.
    """
    for name in BOUNDS:
        check_number(name, priority if name == "priority" else getattr(params, name))
    for name in FLAGS:
        if not isinstance(getattr(params, name), bool):
            raise _wrong(name, getattr(params, name), "it must be true or false", "invalid_type")
    _check_stop(params.stop)
    _check_ids("stop_token_ids", params.stop_token_ids, limits.vocab, most=STOP_IDS)
    _check_prompt(prompt, limits)
    max_tokens = _max_tokens(len(prompt), params, limits)
    _check_fit(len(prompt), max_tokens, limits.kv)
    seed = draw_seed() if params.seed is None else params.seed
    return Admitted(
        request_id=request_id,
        prompt=tuple(prompt),
        max_tokens=max_tokens,
        seed=seed & INT64_MAX,
        choices=params.n,
        temperature=max(float(params.temperature), COLDEST) if params.temperature else 0.0,
        top_k=params.top_k if 0 < params.top_k < limits.vocab else 0,
        top_p=float(params.top_p),
        logprobs=params.logprobs,
        min_tokens=params.min_tokens,
        stop_ids=frozenset(params.stop_token_ids) | (frozenset() if params.ignore_eos else limits.eos_ids),
        has_stop_strings=bool(params.stop),
        domain=domain,
        priority=priority,
    )


def seed_source(seed: int | None) -> Callable[[], int]:
    """Draws 63-bit seeds for requests without one: unpredictable, or with `seed` the same sequence every time."""
    draw = random.SystemRandom() if seed is None else random.Random(seed)
    return lambda: draw.getrandbits(63)


def tenant_domain(secret: bytes, tenant: str) -> bytes:
    """Prefix-cache domain of a tenant: 32 bytes that only who has `secret` can make, the same after a restart with the same secret."""
    return hmac.new(secret, tenant.encode(), hashlib.sha256).digest()


def check_number(name: str, value: object) -> None:
    """Raises `RequestError` unless `value` has the type and range of `BOUNDS[name]`. A bool is not a number, NaN is in no range."""
    if value is None and name in OPTIONAL:
        return
    bound = BOUNDS[name]
    if isinstance(value, bool) or not isinstance(value, int if bound.whole else (int, float)):
        raise _wrong(name, value, f"it must be {'an integer' if bound.whole else 'a number'}", "invalid_type")
    if not bound.low <= value <= bound.high or (bound.above and value == bound.low):
        least = "above" if bound.above else "at least"
        raise _wrong(name, value, f"it must be {least} {bound.low} and at most {bound.high}")


def _check_stop(stop: object) -> None:
    if not isinstance(stop, (tuple, list)) or not all(isinstance(each, str) for each in stop):
        raise _wrong("stop", stop, "it must be a list of strings", "invalid_type")
    if len(stop) > STOP_STRINGS:
        raise RequestError(f"stop has {len(stop)} strings; at most {STOP_STRINGS} are allowed.", param="stop")
    for each in stop:
        if not 0 < len(each) <= STOP_CHARACTERS:
            raise RequestError(f"a stop string has {len(each)} characters; send 1 to {STOP_CHARACTERS}.", param="stop")


def _check_ids(name: str, ids: object, vocab: int, most: int) -> None:
    if not isinstance(ids, (tuple, list)) or not all(type(each) is int for each in ids):
        raise _wrong(name, ids, "it must be a list of integers", "invalid_type")
    if len(ids) > most:
        raise RequestError(f"{name} has {len(ids)} ids; at most {most} are allowed.", param=name)
    for each in ids:
        if not 0 <= each < vocab:
            raise RequestError(f"{name} contains {_show(each)}; this model's ids are 0 to {vocab - 1}.", param=name)


def _check_prompt(prompt: object, limits: ModelLimits) -> None:
    if not isinstance(prompt, (tuple, list)):
        raise _wrong("prompt", prompt, "it must be a list of integers", "invalid_type")
    if len(prompt) == 0:
        raise RequestError("prompt has 0 tokens; send at least one.", param="prompt", code="empty_prompt")
    if len(prompt) >= limits.max_model_len:
        raise RequestError(
            f"prompt has {len(prompt)} tokens; this model takes {limits.max_model_len} with the answer. Shorten it.",
            param="prompt", code="context_length_exceeded",
        )
    _check_ids("prompt", prompt, limits.vocab, most=limits.max_model_len)


def _max_tokens(prompt_tokens: int, params: SamplingParams, limits: ModelLimits) -> int:
    """Outputs of one choice at most. None means what the context leaves, shared among the choices."""
    context, choices = limits.max_model_len, params.n
    if params.max_tokens is None:
        most = min(context - prompt_tokens, context // choices)
    else:
        most = params.max_tokens
        if prompt_tokens + most > context:
            raise RequestError(
                f"prompt has {prompt_tokens} tokens and max_tokens is {most}, together {prompt_tokens + most}; this model takes {context}. "
                f"Lower max_tokens to {context - prompt_tokens} or shorten the prompt.",
                param="max_tokens", code="context_length_exceeded",
            )
        if choices * most > context:
            raise RequestError(
                f"n is {choices} and max_tokens is {most}, together {choices * most} tokens; at most {context} are allowed. "
                f"Lower max_tokens to {context // choices}.",
                param="n",
            )
    if params.min_tokens > most:
        raise RequestError(f"min_tokens is {params.min_tokens}; at most {most} tokens can be generated. Lower it.", param="min_tokens")
    return most


def _check_fit(prompt_tokens: int, max_tokens: int, kv: KVShape) -> None:
    """The last output is never an input, so it needs no place in the cache."""
    needed = pages_needed(kv, prompt_tokens + max_tokens - 1)
    if needed > kv.pages:
        raise RequestError(
            f"{prompt_tokens} prompt tokens and max_tokens {max_tokens} need {needed} KV pages; there are {kv.pages}. "
            "Lower max_tokens, shorten the prompt, or raise --kv-cache-memory-bytes.",
            param="max_tokens", code="context_length_exceeded",
        )


def _wrong(name: str, value: object, need: str, code: str = "invalid_value") -> RequestError:
    return RequestError(f"{name} is {_show(value)}; {need}.", param=name, code=code)


def _show(value: object) -> str:
    """A client's value, short and safe to print: an integer of a million digits is not worth printing."""
    if value is None or isinstance(value, (bool, float)):
        return str(value).lower() if isinstance(value, bool) else str(value)
    if isinstance(value, int):
        return str(value) if value.bit_length() <= 64 else f"an integer of {value.bit_length()} bits"
    if isinstance(value, str):
        return repr(value[:32])
    return f"a {type(value).__name__} of {len(value)}" if isinstance(value, Collection) else f"a {type(value).__name__}"
