"""Requests as clients ask for them and as the engine accepts them: plain values, validated once in `engine.admit`.

A request is a value: `(Admitted, output token ids)`. Everything else about it is derived.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from types import MappingProxyType
from typing import Any, Final

from ridgeline.core.step_time import UNBOUNDED

MAX_BAD_WORDS: Final = 64
MAX_BAD_WORD_CHARACTERS: Final = 64
"""At most so many bad words of so many characters each: they become ids before a request is admitted."""


@dataclass(frozen=True, slots=True)
class Bound:
    """A number's range, both ends included. `whole`: integers only. `above`: the lower end itself is not allowed."""

    low: float
    high: float
    whole: bool = True
    above: bool = False


@dataclass(frozen=True, slots=True)
class Option:
    """A number of the sampler that clients may send: from this follow its flag, the field of its name in requests, and its refusals."""

    bound: Bound
    help: str


def _option(default: Any, bound: Bound, help: str) -> Any:
    return field(default=default, metadata={"option": Option(bound, help)})


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Choice of tokens and end of a sequence, as asked for. Names are vLLM's where the meaning coincides.

    n            answers                             best_of  None: n; else so many are computed, the n likeliest kept
    options      what their help says; presence and frequency penalties are OpenAI's, the repetition penalty is of Keskar et al. 2019
    logit_bias   (id, bias) pairs                    allowed_token_ids  None: all; else no others
    bad_words    texts that may not be completed, with or without a space before them, counting from the prompt on
    seed         None: one is drawn at admission
    stop         strings, found by the front end     stop_token_ids  ids, found by the engine
    max_tokens   None: up to the context's end; 0: only the prompt is computed
    min_tokens   no stop before so many tokens
    logprobs     None: off; k: the sampled token's log-probability and the k best (after temperature 1, before filters)
    prompt_logprobs  None: off; k: the same for every prompt token but the first
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


OPTIONS: Final[Mapping[str, Option]] = MappingProxyType({
    each.name: each.metadata["option"] for each in fields(SamplingParams) if each.metadata
})  # fmt: skip
"""Fields of `SamplingParams` that are numbers of the sampler."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """Choice of a token from logits: what every choice of a request has in common. Names and meaning as in `SamplingParams`.

    allowed_ids  ascending; None: all
    bad_words    ids of each: the last may not be sampled where all before it are the newest ids of prompt and outputs
    logprobs     None: off; k: the sampled token's log-probability and the k best
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


@dataclass(frozen=True, slots=True)
class RowParams:
    """The sampler's view of one sequence (a choice of a request).

    prompt_tokens    fixes the prompt boundary for ever
    banned_until     stop ids that may not be sampled before `min_tokens` outputs exist
    prompt_logprobs  None: off; k: every prompt token but the first is scored, with the k best at its place
    """

    seed: int
    choice: int
    prompt_tokens: int
    sampling: Sampling = Sampling()
    min_tokens: int = 0
    banned_until: tuple[int, ...] = ()
    prompt_logprobs: int | None = None


@dataclass(frozen=True, slots=True)
class Admitted:
    """A request that the engine accepts. Only `engine.admit` builds it; nothing in it changes afterwards.

    request_id    internal, unique (random 128 bits as hex)
    prompt        token ids, never empty
    max_tokens    outputs at most, at least 1; prompt + max_tokens ≤ max_model_len
    seed          always set (drawn at admission when the client gave none), 0 ≤ seed < 2**63
    choices       number of sequences (`best_of`, else `n`); choice c has the seed `(seed, c)`
    prompt_logprobs  None: off; k: choice 0 scores the prompt, with the k best at each place
    stop_ids      ids that end the sequence (EOS and the client's, unless ignore_eos), not before min_tokens outputs exist
    two_phase     the engine's end is provisional until the front end closes (stop strings, or nothing but the prompt is wanted)
    domain        tenant domain of the prefix cache (bytes; an HMAC made by the front end)
    priority      smaller runs first under the priority policy
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
    priority: int = 0

    def row_params(self, choice: int) -> RowParams:
        """The computing wing's view of one choice of this request."""
        return RowParams(
            seed=self.seed,
            choice=choice,
            prompt_tokens=len(self.prompt),
            sampling=self.sampling,
            min_tokens=self.min_tokens,
            banned_until=tuple(sorted(self.stop_ids)) if self.min_tokens else (),
            prompt_logprobs=None if choice else self.prompt_logprobs,
        )


MIN_PREFILL_SHARE: Final = 8
"""Rows that catch up may always have this part of `mixed_tokens`: however many keep up, nobody's first token waits for ever."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of what the scheduler may spend.

    rows                 sequences resident at once (`--max-num-seqs`)
    token_budget         tokens in one step (`--max-num-batched-tokens`)
    samples              positions of one step that sample, drafts among them, where that is more than `rows`
    mixed_tokens         what a step may cost in which rows keep up, in tokens; a row keeps up when one token brings it to its reach
    row_tokens           what each of these rows costs, in tokens
    depth                steps in flight, 1 … 4
    max_model_len        prompt and outputs together
    max_preemptions      a sequence preempted so often is never a victim again
    max_waiting          requests that may wait; beyond that admission is refused
    prefix_caching       off: blocks are shared only among the choices of one request
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

    @property
    def max_samples(self) -> int:
        """Positions of one step that sample at most: as many rows of logits there are."""
        return max(self.rows, self.samples)

    def prefill_budget(self, decode_rows: int) -> int:
        """Tokens that all rows which catch up may have together in a step beside so many rows that keep up: these wait for the step
        with every token. At least 1; without rows that keep up nobody waits between two tokens, and the whole budget may be had."""
        if not decode_rows:
            return self.token_budget
        tokens = max(self.mixed_tokens // MIN_PREFILL_SHARE, int(self.mixed_tokens - decode_rows * self.row_tokens))
        return max(1, min(tokens, self.token_budget - decode_rows))
