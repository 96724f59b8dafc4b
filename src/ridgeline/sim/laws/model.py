"""The fake model: its next token is a hash of the whole context, so that one wrong token anywhere shows in the next one.

Owns what a stamp (the identity of a KV slot's content) and a sampled id are; knows nothing of blocks, rows or plans.
Hashes are of tuples of integers, which Python does not randomise between processes.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from ridgeline.core.params import RowParams, Sampling
from ridgeline.core.plan import Plan, TokenLogprobs

NOT_FINITE = 0x4E614E
PRINTABLE = tuple(range(32, 127))


def next_stamp(stamp: int, token: int) -> int:
    """The stamp of a token, given that of the token before it."""
    return hash((stamp, token))


def extend(stamp: int, ids: Iterable[int]) -> list[int]:
    """Stamps after each of `ids`, continuing from `stamp`: one stands for its token, its position and all before it."""
    return list(accumulate(ids, next_stamp, initial=stamp))[1:]


def looks_back(asked: Sampling) -> bool:
    """True if any parameter but temperature and log-probabilities is set."""
    return replace(asked, temperature=1.0, logprobs=None) != Sampling()


@dataclass(frozen=True, slots=True)
class FakeModel:
    """A language model of arithmetic.

    alphabet       ids that it samples
    stop_ids       ids that it samples at `stop_permille` of the positions, beside the alphabet
    identities     KV content differs between seeds that differ modulo this number: stands for tenant domain, adapter and media
    nan_permille   so many of 1,000 choices have one position (below `nan_positions`) whose hidden state is not finite
    """

    alphabet: tuple[int, ...] = PRINTABLE
    stop_ids: tuple[int, ...] = ()
    stop_permille: int = 0
    identities: int = 1
    nan_permille: int = 0
    nan_positions: int = 32

    def origin(self, params: RowParams) -> int:
        """The stamp before the first token: who this context belongs to."""
        return hash((params.seed % self.identities, 1))

    def nan_position(self, params: RowParams) -> int:
        """The position of this choice that computes to NaN; -1 for none."""
        draw = hash((params.seed, params.choice, NOT_FINITE)) >> 8
        if draw % 1000 >= self.nan_permille:
            return -1
        return (draw // 1000) % self.nan_positions

    def sample(self, stamp: int, params: RowParams, position: int, past: Sequence[int] | None = None) -> int:
        """The id at `position`, given the stamp of the token before it. Seed and choice matter unless greedy.

        past  all ids before, where `looks_back`: every parameter then matters, and what is biased or completes a bad word is avoided
        """
        draw = hash((stamp, position)) if params.sampling.temperature == 0 else hash((stamp, position, params.seed, params.choice))
        banned: Collection[int] = params.banned_until if position - params.prompt_tokens < params.min_tokens else ()
        alphabet = self.alphabet
        if past is not None:
            early = banned
            draw, banned = self._edited(draw, params, past, banned)
            if banned.issuperset(alphabet):  # ids that it does not sample by itself are allowed, or all are biased
                alphabet, banned = params.sampling.allowed_ids or alphabet, early
        while True:
            if self.stop_ids and (draw >> 16) % 1000 < self.stop_permille:
                token = self.stop_ids[draw % len(self.stop_ids)]
            else:
                token = alphabet[draw % len(alphabet)]
            if token not in banned:
                return token
            draw = hash((draw, 7))

    def _edited(self, draw: int, params: RowParams, past: Sequence[int], banned: Collection[int]) -> tuple[int, set[int]]:
        """Stands for every feature that changes logits: other parameters or other counts of ids, other draws; further ids are banned."""
        asked = params.sampling
        outputs = past[params.prompt_tokens :]
        counts = asked.repetition_penalty, len(set(past)), asked.presence_penalty, len(set(outputs)), asked.frequency_penalty, len(outputs)
        found = {*banned, *(token for token, _ in asked.logit_bias)}
        found.update(word[-1] for word in asked.bad_words if list(word[:-1]) == list(past[len(past) - len(word) + 1 :]))
        if asked.allowed_ids is not None:
            found.update({*self.alphabet, *self.stop_ids} - set(asked.allowed_ids))
        return hash((draw, asked.top_k, asked.top_p, asked.min_p, *counts)), found

    def logprobs(self, stamp: int, token: int, best: int) -> TokenLogprobs:
        """Made-up log-probabilities, a function of the context: the sampled id's, then the `best` best."""
        value = -((hash((stamp, token)) & 0xFFFF) + 1) / 4096
        others = [other for other in self.alphabet[: best + 1] if other != token][: max(best - 1, 0)]
        top = ((token, value), *((other, value - 1 - rank) for rank, other in enumerate(others)))
        return TokenLogprobs(value, top[:best])


@dataclass(frozen=True, slots=True)
class Latency:
    """`step_seconds` for every step and `token_seconds` for every token that it computes."""

    step_seconds: float = 0.0
    token_seconds: float = 0.0

    def seconds(self, plan: Plan) -> float:
        """Modelled duration of the plan."""
        return self.step_seconds + self.token_seconds * len(plan.tokens)
