"""Admission: turns a client's request into the value that the engine accepts, or raises an error that says what is wrong with it.

Owns every bound on a number that comes from outside. Never tokenises, never makes a request id, never looks at the engine's load.
"""

import hashlib
import hmac
import random
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from ridgeline.core.admission import blocks_needed
from ridgeline.core.params import (
    MAX_BAD_WORD_CHARACTERS,
    MAX_BAD_WORDS,
    OPTIONS,
    Adapter,
    Admitted,
    Bound,
    Grammar,
    Pooling,
    Sampling,
    SamplingParams,
)
from ridgeline.core.plan import KVShape
from ridgeline.core.thinking import Thinking
from ridgeline.engine.voting import check_vote
from ridgeline.errors import RequestError

INT64_MAX: Final = 2**63 - 1
MAX_CHOICES: Final = 8
MAX_LOGPROBS: Final = 20
MIN_TEMPERATURE: Final = 0.01
"""A positive temperature below this counts as this (as in vLLM): logits divided by less may overflow. 0 is greedy."""


BOUNDS: Final = MappingProxyType({
    "n": Bound(1, MAX_CHOICES),
    "best_of": Bound(1, MAX_CHOICES),
    **{name: option.bound for name, option in OPTIONS.items()},
    "seed": Bound(-(2**63), INT64_MAX),
    "max_tokens": Bound(0, 2**31 - 1),
    "min_tokens": Bound(0, 2**31 - 1),
    "logprobs": Bound(0, MAX_LOGPROBS),
    "prompt_logprobs": Bound(0, MAX_LOGPROBS),
    "thinking_token_budget": Bound(0, 2**31 - 1),
    "priority": Bound(-(2**31), 2**31 - 1),
})  # fmt: skip
OPTIONAL: Final = frozenset({"seed", "max_tokens", "logprobs", "prompt_logprobs", "best_of", "thinking_token_budget"})
TARGET_BOUND: Final = Bound(1, 86_400_000)
"""Bound on targets for latencies, in milliseconds."""
FLAGS: Final = ("include_stop_str_in_output", "ignore_eos", "skip_special_tokens")
MAX_STOP_STRINGS, MAX_STOP_CHARACTERS, MAX_STOP_IDS = 64, 64, 64
MAX_LOGIT_BIASES, MAX_ALLOWED_IDS = 300, 1024
LOGIT_BIAS_BOUND: Final = Bound(-100, 100, whole=False)
MAX_BAD_WORD_SEQUENCES, MAX_BAD_WORD_IDS = 2 * MAX_BAD_WORDS, 4 * MAX_BAD_WORD_CHARACTERS + 4
"""Bad words as ids: each with and without a space before it, of at most four ids per character."""
MAX_CLOSE_IDS: Final = 4_096
"""Ids that end a reasoning whose budget is spent: a message of the operator and the mark."""


@dataclass(frozen=True, slots=True)
class ModelLimits:
    """Limits of the loaded model.

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
    bad_words: Sequence[Sequence[int]] = (),
    grammar: Grammar | None = None,
    thinking: Thinking | None = None,
    domain: bytes = b"",
    tenant: str = "",
    weight: int = 1,
    priority: int = 0,
    arrived: float | None = None,
    adapter: Adapter | None = None,
    ttft_ms: int = 0,
    itl_ms: int = 0,
) -> Admitted:
    """The accepted request.

    draw_seed  gives 63 random bits when the client sent no seed
    bad_words  `params.bad_words` as ids (`text.tokenizer.bad_word_ids`)
    grammar    `params.structured_outputs` compiled (`text.structured`), or one that the caller adds
    thinking   `params.thinking_token_budget` for this prompt and model (`text.tools.marks`); None where the model knows no reasoning
    domain     of the prefix cache: the tenant's, with a salt
    arrived, adapter, ttft_ms, itl_ms  see `Admitted`
    Raises `RequestError` that names the field, the number, the bound and the fix.
    """
    for name in BOUNDS:
        check_number(name, priority if name == "priority" else getattr(params, name))
    for name in FLAGS:
        if not isinstance(getattr(params, name), bool):
            raise _invalid(name, getattr(params, name), "it must be true or false", "invalid_type")
    check_strings("stop", params.stop, MAX_STOP_STRINGS, MAX_STOP_CHARACTERS)
    _check_ids("stop_token_ids", params.stop_token_ids, limits.vocab, limit=MAX_STOP_IDS)
    _check_prompt(prompt, limits)
    _check_grammar(params, grammar)
    _check_thinking(params, thinking, limits.vocab)
    sampling = _sampling(params, bad_words, grammar, thinking, limits.vocab)
    max_tokens = _max_tokens(len(prompt), params, limits)
    _check_fit(len(prompt), max_tokens, limits.kv)
    seed = draw_seed() if params.seed is None else params.seed
    stop_ids = frozenset(params.stop_token_ids) | (frozenset() if params.ignore_eos else limits.eos_ids)
    _check_any_id_allowed(sampling, stop_ids if params.min_tokens else frozenset())
    return Admitted(
        request_id=request_id,
        prompt=tuple(prompt),
        max_tokens=max_tokens,
        seed=seed & INT64_MAX, choices=_choices(params),
        sampling=sampling,
        prompt_logprobs=params.prompt_logprobs,
        min_tokens=params.min_tokens,
        stop_ids=stop_ids,
        two_phase=bool(params.stop) or params.max_tokens == 0,
        domain=domain,
        tenant=tenant,
        weight=weight, priority=priority,
        arrived=arrived, adapter=adapter, ttft_ms=ttft_ms, itl_ms=itl_ms,
    )  # fmt: skip


def admit_text(
    text: Sequence[int],
    pooling: Pooling,
    limits: ModelLimits,
    width: int,
    *,
    request_id: str,
    domain: bytes = b"",
    tenant: str = "",
    weight: int = 1,
    priority: int = 0,
    arrived: float | None = None,
) -> Admitted:
    """The accepted request for a vector of a text. `width`: numbers of the model's vectors. Other arguments and errors as of `admit`."""
    check_number("priority", priority)
    if not 0 <= pooling.dimensions <= width:
        raise _invalid("dimensions", pooling.dimensions, f"at most {width}, as many as this model's vectors have")
    _check_text(text, limits, "input")
    _check_fit(len(text), 1, limits.kv)
    return Admitted(
        request_id=request_id,
        prompt=tuple(text),
        max_tokens=0,
        seed=0,
        domain=domain,
        tenant=tenant,
        weight=weight,
        priority=priority,
        arrived=arrived,
        pooling=pooling,
    )


def cut_text(ids: Sequence[int], longest: int, limit: int | None, end: int | None) -> Sequence[int]:
    """The first `limit` ids of a text (-1: the first `longest`; None: all), the `end` of texts among them where it had one.

    Raises RequestError for a limit out of range.
    """
    if limit is None:
        return ids
    if limit != -1 and not 1 <= limit <= longest:
        raise _invalid("truncate_prompt_tokens", limit, f"it must be 1 to {longest}, or -1 for that")
    count = longest if limit == -1 else limit
    if len(ids) <= count:
        return ids
    return (*ids[: count - 1], end) if end is not None and ids[-1] == end else tuple(ids[:count])


def _check_text(text: object, limits: ModelLimits, name: str) -> None:
    if not isinstance(text, (tuple, list)):
        raise _invalid(name, text, "it must be a list of integers", "invalid_type")
    if not text:
        raise RequestError(f"{name} has a text of 0 tokens; send at least one.", param=name, code="empty_prompt")
    if len(text) > limits.max_model_len:
        message = f"{name} has a text of {len(text)} tokens; this model takes {limits.max_model_len}"
        raise RequestError(f"{message}. Shorten it, or send truncate_prompt_tokens.", param=name, code="context_length_exceeded")
    _check_ids(name, text, limits.vocab, limit=limits.max_model_len)


def make_seed_source(seed: int | None) -> Callable[[], int]:
    """Returns a function that draws 63-bit seeds: unpredictable ones, or with `seed` the same sequence every time."""
    draw = random.SystemRandom() if seed is None else random.Random(seed)
    return lambda: draw.getrandbits(63)


def tenant_domain(secret: bytes, tenant: str) -> bytes:
    """Prefix-cache domain of a tenant, or of a salt within it: 32 bytes that cannot be made without `secret`, the same for the same."""
    return hmac.new(secret, tenant.encode(), hashlib.sha256).digest()


def check_number(name: str, value: object) -> None:
    """Raises `RequestError` unless `value` has the type and range of `BOUNDS[name]`. A bool is not a number, NaN is in no range."""
    if value is not None or name not in OPTIONAL:
        check_bound(name, value, BOUNDS[name])


def check_bound(name: str, value: object, bound: Bound) -> None:
    """Raises `RequestError` unless `value` is a number of the bound's type within it."""
    if isinstance(value, bool) or not isinstance(value, int if bound.whole else (int, float)):
        raise _invalid(name, value, f"it must be {'an integer' if bound.whole else 'a number'}", "invalid_type")
    if not bound.low <= value <= bound.high or (bound.above and value == bound.low):
        above = "above" if bound.above else "at least"
        raise _invalid(name, value, f"it must be {above} {bound.low} and at most {bound.high}")


def _sampling(
    params: SamplingParams, bad_words: Sequence[Sequence[int]], grammar: Grammar | None, thinking: Thinking | None, vocab: int
) -> Sampling:
    """The sampler's parameters. With `best_of` above `n`, log-probabilities are computed even where they are not asked for."""
    allowed = params.allowed_token_ids
    if allowed is not None:
        _check_ids("allowed_token_ids", allowed, vocab, limit=MAX_ALLOWED_IDS)
        if not allowed:
            raise RequestError("allowed_token_ids has 0 ids; send at least one, or leave it out.", param="allowed_token_ids")
    _check_bias(params.logit_bias, vocab)
    check_strings("bad_words", params.bad_words, MAX_BAD_WORDS, MAX_BAD_WORD_CHARACTERS)
    _check_words(params, bad_words, vocab)
    numbers: dict[str, Any] = {name: (int if option.bound.whole else float)(getattr(params, name)) for name, option in OPTIONS.items()}
    numbers["temperature"] = max(numbers["temperature"], MIN_TEMPERATURE) if params.temperature else 0.0
    numbers["top_k"] = params.top_k if 0 < params.top_k < vocab else 0
    return Sampling(
        **numbers,
        logit_bias=tuple(sorted((token, float(bias)) for token, bias in params.logit_bias)),
        allowed_ids=None if allowed is None else tuple(sorted(set(allowed))),
        bad_words=tuple(sorted({tuple(word) for word in bad_words})),
        logprobs=0 if params.logprobs is None and _choices(params) > params.n else params.logprobs,
        grammar=grammar,
        thinking=thinking,
    )


def _check_thinking(params: SamplingParams, thinking: Thinking | None, vocab: int) -> None:
    """Raises RequestError for wishes that a budget of reasoning leaves no room for."""
    if thinking is None or thinking.tokens is None:
        return
    if thinking.tokens != params.thinking_token_budget or not 0 < thinking.mark <= len(thinking.close):
        raise RequestError("the budget of reasoning has no end that can be forced; leave it out.", param="thinking_token_budget")
    _check_ids("thinking_token_budget", thinking.close, vocab, limit=MAX_CLOSE_IDS)
    if params.allowed_token_ids is not None:
        message = "allowed_token_ids and thinking_token_budget exclude each other; leave one of them out."
        raise RequestError(message, param="allowed_token_ids")


def _check_grammar(params: SamplingParams, grammar: Grammar | None) -> None:
    """Raises RequestError for wishes that a structured output leaves no room for."""
    if params.structured_outputs is not None and grammar is None:
        raise RequestError("structured_outputs have no compiled grammar; send them without one.", param="structured_outputs")
    if grammar is not None:
        for name, is_asked in (("ignore_eos", params.ignore_eos), ("allowed_token_ids", params.allowed_token_ids is not None)):
            if is_asked:
                raise RequestError(f"{name} and a structured output exclude each other; leave one of them out.", param=name)


def _choices(params: SamplingParams) -> int:
    """Number of sequences that are computed; `n` of them are answered. Raises RequestError where it is below `n`."""
    if params.vote is not None:
        check_vote(params, params.vote)
    if params.best_of is not None and params.best_of < params.n:
        raise RequestError(f"best_of is {params.best_of} and n is {params.n}; raise best_of or lower n.", param="best_of")
    return params.best_of or params.n


def _check_bias(biases: object, vocab: int) -> None:
    pairs = isinstance(biases, (tuple, list)) and all(isinstance(each, (tuple, list)) and len(each) == 2 for each in biases)
    if not isinstance(biases, (tuple, list)) or not pairs:
        raise _invalid("logit_bias", biases, "it must be pairs of an id and a number", "invalid_type")
    if len(biases) > MAX_LOGIT_BIASES:
        raise RequestError(f"logit_bias has {len(biases)} ids; at most {MAX_LOGIT_BIASES} are allowed.", param="logit_bias")
    _check_ids("logit_bias", [token for token, _ in biases], vocab, limit=MAX_LOGIT_BIASES)
    if len({token for token, _ in biases}) != len(biases):
        raise RequestError("logit_bias names an id twice; name each once.", param="logit_bias")
    for _, bias in biases:
        check_bound("logit_bias", bias, LOGIT_BIAS_BOUND)


def _check_words(params: SamplingParams, words: Sequence[Sequence[int]], vocab: int) -> None:
    if bool(params.bad_words) != bool(words) or len(words) > MAX_BAD_WORD_SEQUENCES:
        raise RequestError(f"bad_words has {len(params.bad_words)} texts that became {len(words)} sequences of ids.", param="bad_words")
    for word in words:
        if not word:
            raise RequestError("a bad word has 0 ids; leave it out.", param="bad_words")
        _check_ids("bad_words", word, vocab, limit=MAX_BAD_WORD_IDS)


def _check_any_id_allowed(sampling: Sampling, banned: frozenset[int]) -> None:
    """Raises `RequestError` unless at least one allowed id may be sampled at the first position, whatever came before."""
    if sampling.allowed_ids is None:
        return
    allowed = set(sampling.allowed_ids) - {word[0] for word in sampling.bad_words if len(word) == 1}
    if not allowed:
        raise RequestError("every id of allowed_token_ids is a bad word; allow more ids.", param="allowed_token_ids")
    if not allowed - banned:
        raise RequestError("allowed_token_ids has stop ids only, and min_tokens forbids them; allow more ids.", param="allowed_token_ids")


def check_strings(name: str, strings: object, limit: int, characters: int) -> None:
    """Raises `RequestError` unless `strings` are at most `limit` strings of 1 to `characters` characters."""
    if not isinstance(strings, (tuple, list)) or not all(isinstance(each, str) for each in strings):
        raise _invalid(name, strings, "it must be a list of strings", "invalid_type")
    if len(strings) > limit:
        raise RequestError(f"{name} has {len(strings)} strings; at most {limit} are allowed.", param=name)
    for each in strings:
        if not 0 < len(each) <= characters:
            raise RequestError(f"a string of {name} has {len(each)} characters; send 1 to {characters}.", param=name)


def _check_ids(name: str, ids: object, vocab: int, limit: int) -> None:
    if not isinstance(ids, (tuple, list)) or not set(map(type, ids)) <= {int}:
        raise _invalid(name, ids, "it must be a list of integers", "invalid_type")
    if len(ids) > limit:
        raise RequestError(f"{name} has {len(ids)} ids; at most {limit} are allowed.", param=name)
    if ids and not 0 <= min(ids) <= max(ids) < vocab:
        wrong = next(each for each in ids if not 0 <= each < vocab)
        raise RequestError(f"{name} contains {_describe(wrong)}; this model's ids are 0 to {vocab - 1}.", param=name)


def _check_prompt(prompt: object, limits: ModelLimits) -> None:
    if not isinstance(prompt, (tuple, list)):
        raise _invalid("prompt", prompt, "it must be a list of integers", "invalid_type")
    if len(prompt) == 0:
        raise RequestError("prompt has 0 tokens; send at least one.", param="prompt", code="empty_prompt")
    if len(prompt) >= limits.max_model_len:
        raise RequestError(
            f"prompt has {len(prompt)} tokens; this model takes {limits.max_model_len} with the answer. Shorten it.",
            param="prompt", code="context_length_exceeded",
        )  # fmt: skip
    _check_ids("prompt", prompt, limits.vocab, limit=limits.max_model_len)


def _max_tokens(prompt_tokens: int, params: SamplingParams, limits: ModelLimits) -> int:
    """Largest number of outputs of one choice. Without `max_tokens`, what the context leaves, shared among the choices."""
    context, choices = limits.max_model_len, _choices(params)
    if params.max_tokens is None:
        limit = min(context - prompt_tokens, context // choices)
    else:
        limit = max(1, params.max_tokens)  # with max_tokens 0 one output is computed, and the front end discards it
        if prompt_tokens + limit > context:
            raise RequestError(
                f"prompt has {prompt_tokens} tokens and max_tokens is {limit}, together {prompt_tokens + limit}; this model takes "
                f"{context}. Lower max_tokens to {context - prompt_tokens} or shorten the prompt.",
                param="max_tokens", code="context_length_exceeded",
            )  # fmt: skip
        if choices * limit > context:
            raise RequestError(
                f"{choices} choices and max_tokens {limit} make {choices * limit} tokens; at most {context} are allowed. "
                f"Lower max_tokens to {context // choices}.",
                param="n" if params.best_of is None else "best_of",
            )
    answered = limit if params.max_tokens is None else params.max_tokens
    if params.min_tokens > answered:
        raise RequestError(f"min_tokens is {params.min_tokens}; at most {answered} tokens can be generated. Lower it.", param="min_tokens")
    return limit


def _check_fit(prompt_tokens: int, max_tokens: int, kv: KVShape) -> None:
    """Raises `RequestError` unless the request alone fits the KV cache. The last output is never an input and needs no slot."""
    needed = blocks_needed(kv, prompt_tokens + max_tokens - 1)
    if needed > kv.blocks:
        raise RequestError(
            f"{prompt_tokens} prompt tokens and max_tokens {max_tokens} need {needed} KV blocks; there are {kv.blocks}. "
            "Lower max_tokens, shorten the prompt, or raise --kv-cache-memory-bytes.",
            param="max_tokens", code="context_length_exceeded",
        )  # fmt: skip


def _invalid(name: str, value: object, requirement: str, code: str = "invalid_value") -> RequestError:
    return RequestError(f"{name} is {_describe(value)}; {requirement}.", param=name, code=code)


def _describe(value: object) -> str:
    """A client's value for a message, short and safe to print: an integer of a million digits is described by its size."""
    if value is None or isinstance(value, (bool, float)):
        return str(value).lower() if isinstance(value, bool) else str(value)
    if isinstance(value, int):
        return str(value) if value.bit_length() <= 64 else f"an integer of {value.bit_length()} bits"
    if isinstance(value, str):
        return repr(value[:32])
    return f"a {type(value).__name__} of {len(value)}" if isinstance(value, Collection) else f"a {type(value).__name__}"
