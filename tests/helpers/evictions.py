"""What a rule of eviction keeps of the blocks of conversations, whose prompts each begin with all that was said before."""

from collections import OrderedDict
from collections.abc import Callable
from typing import Protocol

from conversations import conversations

from ridgeline.engine.tiers.worth import Place


class Rule(Protocol):
    """Of a tier: what it is told of values, and which it evicts."""

    def enter(self, name: bytes, place: Place, /) -> object: ...

    def use(self, name: bytes, /) -> object: ...

    def evict(self) -> bytes: ...


def name(number: int) -> bytes:
    return number.to_bytes(32, "big")


def chain(first: int, count: int, before: int = 0) -> list[tuple[bytes, Place]]:
    """Values that hang on each other, and the first of them on `before`."""
    return [(name(first + at), Place(name(first + at - 1) if at else name(before) if before else b"", 16 * at)) for at in range(count)]


def hits(
    rule: Rule, capacity: int, memory: int, attention_tokens: float, tick: Callable[[float], object] = float
) -> tuple[float, float]:  # fmt: skip
    """Share of prompt blocks that a tier brings to an engine whose own memory holds the last `memory` blocks, and of what they cost: those
    behind what the engine has, as far as there is no gap. `tick`: is told the time of each arrival."""
    held: set[bytes] = set()
    own: OrderedDict[int, None] = OrderedDict()
    brought, asked = [0.0, 0.0], [0.0, 0.0]
    for arrival in conversations(3, 1_500, rate=6.0, pause=40.0):
        tick(arrival.time)
        here = next((at for at, block in enumerate(arrival.blocks) if block not in own), len(arrival.blocks))
        there = next((at for at, block in enumerate(arrival.blocks[here:], here) if name(block) not in held), len(arrival.blocks))
        for sums, end in ((asked, len(arrival.blocks)), (brought, there)):
            sums[0] += end - here
            sums[1] += sum(1 + 512 * at / attention_tokens for at in range(here, end))
        for block in arrival.blocks[here:there]:
            rule.use(name(block))
        for at, block in enumerate(arrival.blocks[there:], there):
            if name(block) not in held:
                if len(held) >= capacity:
                    held.remove(rule.evict())
                held.add(name(block))
                rule.enter(name(block), Place(name(arrival.blocks[at - 1]) if at else b"", 512 * at))
        for block in reversed(arrival.blocks):
            own[block] = None
            own.move_to_end(block)
        while len(own) > memory:
            own.popitem(last=False)
    return brought[0] / asked[0], brought[1] / asked[1]
