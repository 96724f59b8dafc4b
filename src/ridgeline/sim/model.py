"""The fake model: its next token is a hash of the whole context, so that one wrong token anywhere shows in the next one.

Owns what a stamp (the identity of a KV slot's content) and a sampled id are; knows nothing of pages, rows or plans.
Hashes are of tuples of integers, which Python does not randomise between processes.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate

from ridgeline.core.params import RowParams
from ridgeline.core.plan import TokenLogprobs

NOT_FINITE = 0x4E614E
PRINTABLE = tuple(range(32, 127))


def next_stamp(stamp: int, token: int) -> int:
    """The stamp of a token, given that of the token before it."""
    return hash((stamp, token))


def extend(stamp: int, ids: Iterable[int]) -> list[int]:
    """Stamps after each of `ids`, continuing from `stamp`: one stands for its token, its position and all before it."""
    return list(accumulate(ids, next_stamp, initial=stamp))[1:]


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

    def sample(self, stamp: int, params: RowParams, position: int) -> int:
        """The id at `position`, given the stamp of the token before it. Seed and choice matter unless greedy."""
        draw = hash((stamp, position)) if params.sampling.temperature == 0 else hash((stamp, position, params.seed, params.choice))
        banned = params.banned_until if position - params.prompt_tokens < params.min_tokens else ()
        while True:
            if self.stop_ids and (draw >> 16) % 1000 < self.stop_permille:
                token = self.stop_ids[draw % len(self.stop_ids)]
            else:
                token = self.alphabet[draw % len(self.alphabet)]
            if token not in banned:
                return token
            draw = hash((draw, 7))

    def logprobs(self, stamp: int, token: int, best: int) -> TokenLogprobs:
        """Made-up log-probabilities, a function of the context: the sampled id's, then the `best` best."""
        value = -((hash((stamp, token)) & 0xFFFF) + 1) / 4096
        others = [other for other in self.alphabet[: best + 1] if other != token][: max(best - 1, 0)]
        top = ((token, value), *((other, value - 1 - rank) for rank, other in enumerate(others)))
        return TokenLogprobs(value, top[:best])
