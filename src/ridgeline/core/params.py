"""Requests as clients send them (`SamplingParams`) and as the engine accepts them (`Admitted`), and the scheduler's limits.

Plain values, validated once in `engine.admit`. The state of a request follows from its `Admitted` and its output ids alone.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import wraps
from types import MappingProxyType
from typing import Any, Final, Literal, TypeVar

from ridgeline.core.arguments import check_other
from ridgeline.core.step_time import UNBOUNDED
from ridgeline.core.thinking import Thinking
from ridgeline.errors import RequestError

MAX_BAD_WORDS: Final = 64
MAX_BAD_WORD_CHARACTERS: Final = 64
"""Limits of `bad_words`, which are tokenized before a request is admitted."""


@dataclass(frozen=True, slots=True)
class Bound:
    """The range of a number, both ends included. `whole`: integers only. `above`: the lower end is excluded."""

    low: float
    high: float
    whole: bool = True
    above: bool = False


@dataclass(frozen=True, slots=True)
class Option:
    """Bounds and help of a numeric sampling parameter, from which its flag, its request field and its error messages are made."""

    bound: Bound
    help: str


def _option(default: Any, bound: Bound, help: str) -> Any:
    return field(default=default, metadata={"option": Option(bound, help)})


Call = TypeVar("Call", bound=Callable[..., Any])


def with_known_arguments(call: Call) -> Call:
    """`call`, with a RequestError in place of a TypeError for keyword arguments that it does not have (`core.arguments`)."""
    code, owner = call.__code__, call.__qualname__.removesuffix(".__init__")
    known = code.co_varnames[1 : code.co_argcount + code.co_kwonlyargcount]
    names = frozenset(known)

    @wraps(call)
    def checked(*args: Any, **given: Any) -> Any:
        for name in given.keys() - names:
            check_other(name, given.pop(name), known, owner)
        return call(*args, **given)

    return checked  # type: ignore[return-value]


@dataclass(frozen=True, slots=True)
class Grammar:
    """A grammar that an output follows from its first token on. `text` is llguidance's; `digest` (SHA-256 of it) names it.

    seconds      what it took to compile, by which those that wait are ordered
    is_optional  an output that cannot follow it any further goes on without it
    """

    digest: bytes
    text: str
    seconds: float = field(default=0.0, compare=False)
    is_optional: bool = field(default=False, compare=False)


@dataclass(frozen=True, slots=True)
class Adapter:
    """A LoRA adapter that a request is answered with.

    name    for messages
    digest  SHA-256 of its files, which is part of every prefix key
    path    where the operator has put it: a directory of PEFT's, or a GGUF file
    """

    name: str
    digest: bytes
    path: str


@dataclass(frozen=True, slots=True)
class StructuredOutputs:
    """The form of an output; exactly one of the first six is set. Names are vLLM's.

    json            a JSON Schema, as an object or as text
    json_object     any JSON object
    regex           a regular expression that the whole output matches (Rust's syntax, without look-around)
    choice          one of these texts
    grammar         a context-free grammar: Lark's, or GBNF
    structural_tag  text in which a trigger begins a part with a schema of its own
    whitespace_pattern  of JSON: a regular expression for the space between its tokens; None: one space, or a new line and its indentation
    """

    json: Mapping[str, Any] | str | bool | None = None
    json_object: bool = False
    regex: str | None = None
    choice: Sequence[str] | None = None
    grammar: str | None = None
    structural_tag: Mapping[str, Any] | str | None = None
    whitespace_pattern: str | None = None


StructuredOutputs.__init__ = with_known_arguments(StructuredOutputs.__init__)  # type: ignore[method-assign]
StructuredOutputsParams = StructuredOutputs
"""vLLM's name."""


def structured_outputs(given: object) -> StructuredOutputs:
    """A form as callers write it: as it is, or a dict of its fields. Raises RequestError for anything else."""
    if isinstance(given, Mapping):
        return StructuredOutputs(**given)
    if not isinstance(given, StructuredOutputs):
        message = f"structured_outputs is of type {type(given).__name__}; give StructuredOutputs, or a dict of its fields."
        raise RequestError(message, param="structured_outputs")
    return given


@dataclass(frozen=True, slots=True)
class Vote:
    """Self-consistency: of `best_of` choices that one is returned whose answer most of them give. One of:

    marker        the answer stands behind the last of it, up to the line's end
    json_pointer  the answer stands there in the last object or array of the text (RFC 6901; "": all of it)
    regex         the answer is the last match, or its first group; for one's own programs, not for clients
    """

    marker: str | None = None
    json_pointer: str | None = None
    regex: str | None = None


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Sampling parameters of a request as clients send them. Names are vLLM's where the meaning is the same.

    n            choices                             best_of  choices computed, of which the n likeliest are returned; None: n
    options      see their help; presence and frequency penalties are OpenAI's, the repetition penalty is of Keskar et al. 2019
    logit_bias   (id, bias) pairs                    allowed_token_ids  None: all; else no others
    bad_words    texts that may not be completed, with or without a space before them, counting from the prompt on
    seed         None: drawn at admission
    stop         strings, found by the front end     stop_token_ids  ids, found by the engine
    max_tokens   None: up to the end of the context; 0: only the prompt is computed
    min_tokens   output tokens before which no stop counts
    logprobs     None: off; k: the sampled token's log-probability and the k best (after temperature 1, before filters)
    prompt_logprobs  None: off; k: the same for every prompt token but the first
    structured_outputs  the form of the output; None: any text
    thinking_token_budget  the most tokens of reasoning, after which it is ended; None: no limit
    vote         None: the likeliest of `best_of` choices are returned
    """

    n: int = 1
    best_of: int | None = None
    temperature: float = _option(1.0, Bound(0, 10, whole=False), "0 is greedy [the model's, else 1].")
    top_p: float = _option(1.0, Bound(0, 1, whole=False, above=True), "Nucleus mass [the model's, else 1].")
    top_k: int = _option(0, Bound(-1, 2**31 - 1), "Best tokens to choose from; 0 is all [the model's, else 0].")
    min_p: float = _option(0.0, Bound(0, 1, whole=False), "Least probability, as a share of the likeliest token's.")
    presence_penalty: float = _option(0.0, Bound(-2, 2, whole=False), "Subtracted from the logits of tokens that the output has.")
    frequency_penalty: float = _option(0.0, Bound(-2, 2, whole=False), "The same, once for each time.")
    repetition_penalty: float = _option(
        1.0, Bound(0, 10, whole=False, above=True), "Above 1: tokens of prompt and output become less likely."
    )
    logit_bias: tuple[tuple[int, float], ...] = ()
    allowed_token_ids: tuple[int, ...] | None = None
    bad_words: tuple[str, ...] = ()
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    max_tokens: int | None = 16
    min_tokens: int = 0
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    skip_special_tokens: bool = True
    structured_outputs: StructuredOutputs | None = None
    thinking_token_budget: int | None = None
    vote: Vote | None = None


SamplingParams.__init__ = with_known_arguments(SamplingParams.__init__)  # type: ignore[method-assign]

OPTIONS: Final[Mapping[str, Option]] = MappingProxyType({
    each.name: each.metadata["option"] for each in fields(SamplingParams) if each.metadata
})  # fmt: skip
"""The numeric sampling parameters: fields of `SamplingParams` with bounds."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """Sampling parameters that all choices of a request share. Names and meaning as in `SamplingParams`.

    allowed_ids  ascending; None: all
    bad_words    ids of each: the last one is banned where those before it are the newest ids of prompt and outputs
    logprobs     None: off; k: the sampled token's log-probability and the k best
    grammar      None: any text
    thinking     where reasoning has a budget; None: nowhere
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    allowed_ids: tuple[int, ...] | None = None
    bad_words: tuple[tuple[int, ...], ...] = ()
    logprobs: int | None = None
    grammar: Grammar | None = None
    thinking: Thinking | None = None


PoolingKind = Literal["last", "mean", "cls"]


@dataclass(frozen=True, slots=True)
class Pooling:
    """A vector of a text, which is computed in place of an answer.

    kind        of the final hidden states that of the last token ("last"), of the first ("cls"), or their mean
    normalise   its Euclidean length is 1
    dimensions  leading numbers that are kept, before it is normalised; 0: all
    whole       tokens see those behind them: the text is computed in one step, and nothing of it is shared
    """

    kind: PoolingKind = "last"
    normalise: bool = True
    dimensions: int = 0
    whole: bool = False

    @property
    def needs_all(self) -> bool:
        """True if every token has to be computed for this text: none may come from the prefix cache."""
        return self.whole or self.kind != "last"


@dataclass(frozen=True, slots=True)
class RowParams:
    """Sampling parameters of one row (a choice of a request).

    prompt_tokens    length of the prompt: later ids are outputs, also after a preemption
    banned_until     stop ids that are banned before `min_tokens` outputs exist
    prompt_logprobs  None: off; k: every prompt token but the first is scored, with the k best at its place
    pooling          None: it samples; else its result is a vector
    """

    seed: int
    choice: int
    prompt_tokens: int
    sampling: Sampling = Sampling()
    min_tokens: int = 0
    banned_until: tuple[int, ...] = ()
    prompt_logprobs: int | None = None
    pooling: Pooling | None = None


@dataclass(frozen=True, slots=True)
class Admitted:
    """A request that the engine has accepted; built by `engine.admit` alone.

    request_id    internal, unique (random 128 bits as hex)
    prompt        token ids, never empty
    max_tokens    limit of output tokens, at least 1, 0 with `pooling`; prompt + max_tokens ≤ max_model_len
    seed          always set (drawn at admission when the client gave none), 0 ≤ seed < 2**63
    choices       number of sequences (`best_of`, else `n`); choice c has the seed `(seed, c)`
    prompt_logprobs  None: off; k: choice 0 scores the prompt, with the k best at each place
    stop_ids      ids that end the sequence (EOS and the client's, unless ignore_eos), not before min_tokens outputs exist
    two_phase     an end is provisional until the front end closes the choice (it looks for stop strings, or wants the prompt alone)
    domain        tenant of the prefix cache (an HMAC made by the front end); blocks are shared within it
    tenant, weight  who shares the engine with others, and its share against them (1 to 1,000)
    priority      smaller runs first, under the priority policy
    arrived       when the front end had the request, seconds of the machine's monotonic clock; None: when the engine takes it
    ttft_ms       milliseconds from arrival in which its first token should come, under the slo policy; 0: none is named
    itl_ms        milliseconds that a step with it decoding may take; 0: as the engine's `step_ms`
    adapter       None: the model as it is
    pooling       None: it is answered with ids; else with a vector of its prompt
    """

    request_id: str
    prompt: tuple[int, ...]
    max_tokens: int
    seed: int
    choices: int = 1
    sampling: Sampling = Sampling()
    prompt_logprobs: int | None = None
    min_tokens: int = 0
    stop_ids: frozenset[int] = field(default_factory=frozenset)
    two_phase: bool = False
    domain: bytes = b""
    tenant: str = ""
    weight: int = 1
    priority: int = 0
    arrived: float | None = None
    ttft_ms: int = 0
    itl_ms: int = 0
    adapter: Adapter | None = None
    pooling: Pooling | None = None

    def row_params(self, choice: int) -> RowParams:
        """Returns the sampling parameters of one choice."""
        return RowParams(
            seed=self.seed,
            choice=choice,
            prompt_tokens=len(self.prompt),
            sampling=self.sampling,
            min_tokens=self.min_tokens,
            banned_until=tuple(sorted(self.stop_ids)) if self.min_tokens else (),
            prompt_logprobs=None if choice else self.prompt_logprobs,
            pooling=self.pooling,
        )


MAX_WAITING: Final = 1 << 20
"""Requests that may wait in an engine, whatever its front end lets through."""
MIN_PREFILL_SHARE: Final = 1 / 8
"""Share of `mixed_tokens` that prefill always gets: no first token waits for ever, however many rows decode."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The scheduler's limits.

    rows                 sequences resident at once (`--max-num-seqs`)
    token_budget         tokens in one step (`--max-num-batched-tokens`)
    samples              positions of one step that sample, drafts included, where that is more than `rows`
    mixed_tokens         cost limit of a step with decoding rows, in prefill tokens; a row decodes if one token brings it to its target
    row_tokens           cost of a decoding row, in prefill tokens
    depth                steps in flight, 1 … 4
    max_model_len        prompt and outputs together
    max_preemptions      a sequence preempted so often is never preempted again
    max_waiting          requests that may wait; further ones are rejected
    prefix_caching       False: blocks are shared only among the choices of one request
    adapter_slots        adapters that rows of one step may have
    """

    rows: int = 256
    token_budget: int = 2048
    samples: int = 0
    mixed_tokens: int = UNBOUNDED
    row_tokens: float = 1.0
    depth: int = 1
    max_model_len: int = 4096
    max_preemptions: int = 8
    max_waiting: int = 4096
    prefix_caching: bool = True
    adapter_slots: int = 0

    @property
    def max_samples(self) -> int:
        """Rows of logits of a step: its positions that sample, at most."""
        return max(self.rows, self.samples)

    def prefill_budget(self, decode_rows: int, mixed_tokens: int | None = None) -> int:
        """Returns the tokens that prefilling rows may have together in a step with `decode_rows` decoding rows, whose inter-token latency
        is the duration of the step: at least 1. Without decoding rows it is the whole token budget. `mixed_tokens`: of this step."""
        if not decode_rows:
            return self.token_budget
        mixed = self.mixed_tokens if mixed_tokens is None else mixed_tokens
        tokens = max(int(self.mixed_tokens * MIN_PREFILL_SHARE), int(mixed - decode_rows * self.row_tokens))
        return max(1, min(tokens, self.token_budget - decode_rows))
