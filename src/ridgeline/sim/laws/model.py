"""The fake model: its next token is a hash of the whole context, so that one wrong token changes all later ones. And its step times.

Defines stamps (the identity of a KV slot's content) and sampled ids; knows nothing of blocks, rows or plans.
Hashes are of tuples of integers, which Python does not randomise between processes.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from math import fsum, sqrt
from struct import pack
from threading import Event
from typing import ClassVar

from ridgeline.core.params import Pooling, RowParams, Sampling
from ridgeline.core.plan import Plan, TokenLogprobs
from ridgeline.core.thinking import ThinkingState

NOT_FINITE = 0x4E614E
VECTOR_WIDTH = 8
HANG_POSITION = 12
PRINTABLE = tuple(range(32, 127))


def next_stamp(stamp: int, token: int) -> int:
    """The stamp of a token, given that of the token before it."""
    return hash((stamp, token))


def chain_stamps(stamp: int, ids: Iterable[int]) -> list[int]:
    """Stamps after each of `ids`, continuing from `stamp`. A stamp identifies its token, its position and all tokens before it."""
    return list(accumulate(ids, next_stamp, initial=stamp))[1:]


def depends_on_history(sampling: Sampling) -> bool:
    """True if any parameter besides temperature and log-probabilities is set."""
    return replace(sampling, temperature=1.0, logprobs=None) != Sampling()


@dataclass(frozen=True, slots=True)
class FakeModel:
    """A language model of arithmetic.

    alphabet       ids that it samples
    stop_ids       ids that it samples at `stop_permille` of the positions, beside the alphabet
    identities     KV content differs between seeds that differ modulo this number: models tenant domain, adapter and media
    nan_permille   so many of 1,000 choices have one position (below `nan_positions`) whose hidden state is not finite
    reads_ids      `sample` is told all ids before, whatever the request's parameters
    """

    reads_ids: ClassVar[bool] = False

    alphabet: tuple[int, ...] = PRINTABLE
    stop_ids: tuple[int, ...] = ()
    stop_permille: int = 0
    identities: int = 1
    nan_permille: int = 0
    nan_positions: int = 32

    def origin(self, params: RowParams, adapter: bytes = b"") -> int:
        """The stamp before the first token: the identity that this context belongs to, with the digest of the adapter that computes it."""
        return hash((params.seed % self.identities, 1 + int.from_bytes(adapter, "little")))

    def nan_position(self, params: RowParams) -> int:
        """The position of this choice that computes to NaN; -1 for none."""
        draw = hash((params.seed, params.choice, NOT_FINITE)) >> 8
        if draw % 1000 >= self.nan_permille:
            return -1
        return (draw // 1000) % self.nan_positions

    def sample(self, stamp: int, params: RowParams, position: int, past: Sequence[int] | None = None) -> int:
        """The id at `position`, given the stamp of the token before it. Seed and choice matter unless greedy.

        past  all ids before, where `depends_on_history` or `reads_ids`: every parameter then matters; biased ids and ends of bad words
              are avoided
        """
        if past is not None and params.sampling.thinking is not None:
            forced = ThinkingState(params.sampling.thinking, past[params.prompt_tokens :]).forced
            if forced is not None:
                return forced
        draw = hash((stamp, position)) if params.sampling.temperature == 0 else hash((stamp, position, params.seed, params.choice))
        banned: Collection[int] = params.banned_until if position - params.prompt_tokens < params.min_tokens else ()
        alphabet = self.alphabet
        if past is not None:
            early = banned
            draw, banned = self._apply_edits(draw, params, past, banned)
            if banned.issuperset(alphabet):  # only ids outside the alphabet are allowed, or all are biased
                alphabet, banned = params.sampling.allowed_ids or alphabet, early
        while True:
            if self.stop_ids and (draw >> 16) % 1000 < self.stop_permille:
                token = self.stop_ids[draw % len(self.stop_ids)]
            else:
                token = alphabet[draw % len(alphabet)]
            if token not in banned:
                return token
            draw = hash((draw, 7))

    def vector(self, stamp: int, params: RowParams) -> bytes:
        """The vector of a text, given its last token's stamp."""
        asked = params.pooling or Pooling()
        numbers = [hash((stamp, asked.kind, place)) % 2001 / 1000 - 1 for place in range(VECTOR_WIDTH)][: asked.dimensions or None]
        length = sqrt(fsum(each * each for each in numbers)) if asked.normalise else 1.0
        return pack(f"<{len(numbers)}f", *[each / (length or 1.0) for each in numbers])

    def _apply_edits(self, draw: int, params: RowParams, past: Sequence[int], banned: Collection[int]) -> tuple[int, set[int]]:
        """Models every feature that changes logits: the draw depends on parameters and id counts; further ids are banned."""
        sampling = params.sampling
        outputs = past[params.prompt_tokens :]
        penalties = sampling.repetition_penalty, sampling.presence_penalty, sampling.frequency_penalty
        counts = penalties[0], len(set(past)), penalties[1], len(set(outputs)), penalties[2], len(outputs)
        banned_ids = {*banned, *(token for token, _ in sampling.logit_bias)}
        banned_ids.update(word[-1] for word in sampling.bad_words if list(word[:-1]) == list(past[len(past) - len(word) + 1 :]))
        if sampling.allowed_ids is not None:
            banned_ids.update({*self.alphabet, *self.stop_ids} - set(sampling.allowed_ids))
        return hash((draw, sampling.top_k, sampling.top_p, sampling.min_p, *counts)), banned_ids

    def logprobs(self, stamp: int, token: int, best: int) -> TokenLogprobs:
        """Synthetic log-probabilities, a function of the context: the sampled id's, then the `best` highest."""
        value = -((hash((stamp, token)) & 0xFFFF) + 1) / 4096
        others = [other for other in self.alphabet[: best + 1] if other != token][: max(best - 1, 0)]
        top = ((token, value), *((other, value - 1 - rank) for rank, other in enumerate(others)))
        return TokenLogprobs(value, top[:best])


@dataclass(frozen=True, slots=True)
class HungModel(FakeModel):
    """A model that never answers at `HANG_POSITION`: it waits for a lock that nobody frees ("lock"), computes for ever ("spin"), or fails
    ("raise")."""

    hang: str = "lock"

    def sample(self, stamp: int, params: RowParams, position: int, past: Sequence[int] | None = None) -> int:
        """The id at `position`, before the one at which it hangs."""
        while position >= HANG_POSITION:
            if self.hang == "raise":
                raise RuntimeError(f"no answer at position {position}")
            if self.hang != "spin":
                Event().wait()
        return FakeModel.sample(self, stamp, params, position, past)


@dataclass(frozen=True, slots=True)
class Latency:
    """`step_seconds` for every step and `token_seconds` for every token that it computes."""

    step_seconds: float = 0.0
    token_seconds: float = 0.0

    def seconds(self, plan: Plan) -> float:
        """Modelled duration of the plan."""
        return self.step_seconds + self.token_seconds * len(plan.tokens)
