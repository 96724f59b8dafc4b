"""The choice of a replica by a policy of `core.routing`, and what is learned from it: which replica was sent which parts of prompts.

It knows loads and prompts alone, so that every front of several engines decides alike.
"""

import random
import time
from collections.abc import Sequence
from typing import Final

from ridgeline.core.routing import PrefixMap, ReplicaLoad, RoutedRequest, RoutingPolicy, with_affinity
from ridgeline.router.holdings import Holdings
from ridgeline.router.prompts import BYTES_PER_TOKEN, PART_BYTES, Prompt

MOST_PARTS: Final = 1 << 17
"""Parts of prompts that are remembered, some 20 MB."""


OUTPUT_TOKENS: Final = 256
"""Tokens that an answer is expected to hold besides its prompt's."""


class LoadShare:
    """A request's share of its replica's load.

    Nothing is called between reading a number and writing it, so that another thread may have the share of another request.
    """

    __slots__ = ("_held", "_load", "_waiting")

    def __init__(self) -> None:
        self._load: ReplicaLoad | None = None
        self._waiting = self._held = 0

    def begin(self, load: ReplicaLoad, tokens: int, cached: int) -> None:
        """A replica has the request; `cached` of its prompt's tokens need no prefill."""
        self._load, self._waiting, self._held = load, max(0, tokens - cached), tokens + OUTPUT_TOKENS
        load.requests += 1
        load.waiting_tokens += self._waiting
        load.held_tokens += self._held

    def first_byte(self) -> None:
        """The answer begins: the prompt waits no longer."""
        if self._load is not None:
            self._load.waiting_tokens -= self._waiting
            self._waiting = 0

    def end(self) -> None:
        """The request is over, or another replica has it. Safe to call twice."""
        load, self._load = self._load, None
        if load is not None:
            load.requests -= 1
            load.waiting_tokens -= self._waiting
            load.held_tokens -= self._held


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
        self.held: Holdings | None = None
        """Blocks that replicas have told of; None: they are not asked."""

    def draw(self) -> float:
        """A random number in [0, 1)."""
        return self._random.random()

    def choose(self, loads: Sequence[ReplicaLoad], prompt: Prompt) -> tuple[int, int]:
        """(number of the replica that gets a request, tokens of its prompt that it was sent before). `loads`: of those that may, at least
        one."""
        self._requests += 1
        tokens = PART_BYTES // BYTES_PER_TOKEN
        cached = {number: parts * tokens for number, parts in self._prefixes.match(prompt.chain).items()}
        if self.held is not None and prompt.ids:
            cached = self.held.refine(prompt, cached, time.monotonic())
        key = prompt.chain[0] if prompt.chain else self._requests.to_bytes(8, "big")
        request = RoutedRequest(self._requests, prompt.tokens, key, cached, prompt.session, prompt.model)
        number = self._policy(loads, request, self.draw()).number
        self._prefixes.learn(prompt.chain, number)
        if self.held is not None and prompt.ids:
            self.held.expect(prompt, number, time.monotonic())
        matched = cached.get(number, 0)
        self.matched_tokens += matched
        self.prompt_tokens += prompt.tokens
        return number, matched

    def note(self, prompt: Prompt, number: int) -> None:
        """Learns of a request that a replica was sent without a choice."""
        self.matched_tokens += self._prefixes.match(prompt.chain).get(number, 0) * PART_BYTES // BYTES_PER_TOKEN
        self.prompt_tokens += prompt.tokens
        self._prefixes.learn(prompt.chain, number)

    def forget(self, number: int) -> None:
        """Notes that a replica has lost its cache."""
        self._prefixes.forget(number)
        if self.held is not None:
            self.held.forget(number)
