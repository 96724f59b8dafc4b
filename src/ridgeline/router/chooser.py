"""The choice of a replica by a policy of `core.routing`, and what is learned from it: which replica was sent which parts of prompts.

It knows loads and prompts alone, so that every front of several engines decides alike.
"""

import random
from collections.abc import Sequence
from typing import Final

from ridgeline.core.routing import PrefixMap, ReplicaLoad, RoutedRequest, RoutingPolicy, with_affinity
from ridgeline.router.prompts import BYTES_PER_TOKEN, PART_BYTES, Prompt

MOST_PARTS: Final = 1 << 17
"""Parts of prompts that are remembered, some 20 MB."""


class Chooser:
    """One policy with its memory.

    matched_tokens, prompt_tokens  prompt tokens whose replica was sent them before; of all requests
    """

    def __init__(self, policy: RoutingPolicy, seed: int | None = None) -> None:
        self.matched_tokens = self.prompt_tokens = 0
        self._policy = with_affinity(policy)
        self._random = random.Random(seed)
        self._prefixes = PrefixMap(MOST_PARTS)
        self._requests = 0

    def draw(self) -> float:
        """A random number in [0, 1)."""
        return self._random.random()

    def choose(self, loads: Sequence[ReplicaLoad], prompt: Prompt) -> tuple[int, int]:
        """(number of the replica that gets a request, tokens of its prompt that it was sent before). `loads`: of those that may, at least
        one."""
        self._requests += 1
        tokens = PART_BYTES // BYTES_PER_TOKEN
        cached = {number: parts * tokens for number, parts in self._prefixes.match(prompt.chain).items()}
        key = prompt.chain[0] if prompt.chain else self._requests.to_bytes(8, "big")
        request = RoutedRequest(self._requests, prompt.tokens, key, cached, prompt.session, prompt.model)
        number = self._policy(loads, request, self.draw()).number
        self._prefixes.learn(prompt.chain, number)
        matched = cached.get(number, 0)
        self.matched_tokens += matched
        self.prompt_tokens += prompt.tokens
        return number, matched

    def forget(self, number: int) -> None:
        """Notes that a replica has lost its cache."""
        self._prefixes.forget(number)
