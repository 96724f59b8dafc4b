"""Log-probabilities in answers, in the forms of OpenAI's completions, OpenAI's chat and vLLM's `prompt_logprobs`.

Owns the names of tokens in answers.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from ridgeline.core.plan import TokenLogprobs
from ridgeline.server import replies
from ridgeline.text.token_text import token_text
from ridgeline.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class TokenNames:
    """Names of tokens in log-probabilities. `as_ids`: `token_id:123` instead of text, which two tokens may share."""

    tokenizer: Tokenizer
    as_ids: bool

    def name(self, token: int) -> str:
        """The name of one token."""
        return f"token_id:{token}" if self.as_ids else token_text(self.tokenizer, token)


def completion_logprobs(
    names: TokenNames, ids: Sequence[int], found: Sequence[TokenLogprobs | None], offsets: Sequence[int], start: int, top: int
) -> replies.Logprobs:
    """OpenAI's completions form: columns over `ids`, with the `top` likeliest ids of each position and the token itself.

    offsets  characters before each token; those in the answer count from `start` characters on
    """

    def top_logprobs(token: int, each: TokenLogprobs) -> dict[str, float]:
        return {names.name(other): value for other, value in (*each.top[:top], (token, each.logprob))}

    return replies.Logprobs(
        tokens=[names.name(token) for token in ids],
        token_logprobs=[None if each is None else each.logprob for each in found],
        top_logprobs=[None if each is None else top_logprobs(token, each) for token, each in zip(ids, found, strict=True)],
        text_offset=[start + offset for offset in offsets],
    )


def joined(first: replies.Logprobs, second: replies.Logprobs) -> replies.Logprobs:
    """The columns of both, one after the other."""
    return replies.Logprobs(
        first.tokens + second.tokens,
        first.token_logprobs + second.token_logprobs,
        first.top_logprobs + second.top_logprobs,
        first.text_offset + second.text_offset,
    )


def chat_logprobs(names: TokenNames, ids: Sequence[int], found: Sequence[TokenLogprobs]) -> replies.ChatLogprobs:
    """OpenAI's chat form: one object per token, with the bytes of each."""

    def piece(token: int) -> list[int]:
        return list(names.tokenizer.piece(token))

    def entry(token: int, each: TokenLogprobs) -> replies.ChatLogprob:
        top = [replies.TopLogprob(names.name(other), value, piece(other)) for other, value in each.top]
        return replies.ChatLogprob(names.name(token), each.logprob, piece(token), top)

    return replies.ChatLogprobs([entry(token, each) for token, each in zip(ids, found, strict=True)])


def prompt_logprobs(names: TokenNames, ids: Sequence[int], found: Sequence[TokenLogprobs | None], top: int) -> replies.PromptLogprobs:
    """vLLM's form: for each token of a prompt the `top` likeliest ids and its own, by id; null for the first."""

    def by_id(token: int, each: TokenLogprobs) -> dict[int, replies.PromptLogprob]:
        own = {token: replies.PromptLogprob(each.logprob, each.rank, names.name(token))}
        likeliest = enumerate(each.top[:top], 1)
        return own | {other: replies.PromptLogprob(value, place, names.name(other)) for place, (other, value) in likeliest}

    return [None if each is None else by_id(token, each) for token, each in zip(ids, found, strict=True)]
