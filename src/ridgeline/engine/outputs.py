"""What `LLM` gives back: plain values, with vLLM's names where the meaning coincides. Owns no logic."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Logprob:
    """`rank` 1 is the most likely id; None: not among those asked for."""

    logprob: float
    rank: int | None
    decoded_token: str


PromptLogprobs = tuple[dict[int, Logprob] | None, ...]
"""One a token of the prompt; None for the first, which nothing precedes."""


@dataclass(frozen=True, slots=True)
class CompletionOutput:
    """One choice, or in a stream what is new of it. `logprobs` and `cumulative_logprob` are None unless asked for.

    cumulative_logprob  of all tokens so far
    finish_reason       "stop", "length", "abort", or "error" where the model's numbers were not finite; None while it goes on
    stop_reason         the client's stop string or id
    """

    index: int
    text: str
    token_ids: tuple[int, ...]
    cumulative_logprob: float | None
    logprobs: tuple[dict[int, Logprob], ...] | None
    finish_reason: str | None
    stop_reason: str | int | None


@dataclass(frozen=True, slots=True)
class RequestOutput:
    """The answer to one prompt, or in a stream what is new of it.

    prompt             None where ids or messages were given
    prompt_logprobs    None unless asked for; in a stream they come with the first output
    num_cached_tokens  of the prompt, taken from the prefix cache; None while a choice is under way
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: tuple[int, ...]
    prompt_logprobs: PromptLogprobs | None
    outputs: tuple[CompletionOutput, ...]
    finished: bool
    num_cached_tokens: int | None
