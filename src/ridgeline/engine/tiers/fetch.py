"""A prompt whose blocks are fetched: what it has, and what a tier is asked for."""

from collections.abc import Sequence as Items
from dataclasses import dataclass, field

from ridgeline.core.plan import KVShape
from ridgeline.core.prefix_cache import PrefixBlock, PrefixIndex
from ridgeline.core.sequence import Sequence
from ridgeline.engine.tiers.tier import Tier
from ridgeline.engine.tiers.units import Layout

Wanted = tuple[int, int]
"""(block of the prompt, KV group)"""


@dataclass(slots=True)
class Fetch:
    """A prompt whose blocks are being fetched.

    here      what the engine had of it when it came
    wait      seconds that it is worth, of which its deadline has those before it too
    found     (block, group, number of the content) that has been brought
    keys      of its units
    is_whole  there is nothing more to bring
    is_mixed  some of what has been brought lately was converted
    """

    request_id: str
    sequence: Sequence
    shape: KVShape
    here: dict[bytes, tuple[int, ...]]
    wait: float
    deadline: float
    tier: str = ""
    found: list[tuple[int, int, int]] = field(default_factory=list)
    keys: list[bytes] = field(default_factory=list)
    is_done: bool = False
    is_whole: bool = False
    is_mixed: bool = False

    def ids(self, block: int) -> tuple[int, ...]:
        """The token ids of a block."""
        size = self.shape.block_tokens
        return tuple(self.sequence.known[block * size : (block + 1) * size])

    def likely(self, tier: Tier, layouts: Items[Layout]) -> list[Layout]:
        """The layouts in which the tier has the first value that is missing: few engines have other layouts than this one, and the names of
        a whole prompt are many. Raises OSError."""
        group = next((number for number, each in enumerate(self.shape.groups) if not each.window), 0)
        block = next((block for block, places in enumerate(self._places()) if not places[group]), None)
        if block is None:
            return list(layouts)
        found = tier.has([self._names(layout, block, group)[0] for layout in layouts])
        return [layout for layout, there in zip(layouts, found, strict=True) if there]

    def wanted(self, tier: Tier, layout: Layout) -> tuple[list[Wanted], int]:
        """Returns what makes the longest hit of what is here, what has been brought, and what the tier says that it has; and its blocks.
        Raises OSError."""
        sequence, size, values = self.sequence, self.shape.block_tokens, layout[0].units * len(layout)
        places = self._places()
        missing = [(block, group) for block, each in enumerate(places) for group, place in enumerate(each) if not place]
        stored = tier.has([name for block, group in missing for name in self._names(layout, block, group)])
        for at, (block, group) in enumerate(missing):
            places[block][group] = int(all(stored[at * values : (at + 1) * values]))
        index = PrefixIndex(self.shape, shared=True)
        for block, key in enumerate(sequence.keys):
            index.blocks[key] = PrefixBlock(key, self.ids(block), index.identity(sequence), places[block])
        hit = index.find_longest_hit(sequence, 0, sequence.reusable // size)
        seen = [index.first_visible_block(group.window, hit * size) for group in self.shape.groups]
        return [(block, group) for block, group in missing if seen[group] <= block < hit], hit

    def _names(self, layout: Layout, block: int, group: int) -> list[bytes]:
        """The names of a block's values: of each unit those that it is put together from."""
        units = layout[0].units
        return [seal.name(key, group) for key in self.keys[block * units : (block + 1) * units] for seal in layout]

    def _places(self) -> list[list[int]]:
        """Per block and group: 0 where it is neither here nor has been brought."""
        brought = {(block, group) for block, group, _ in self.found}
        here = (self.here.get(key, (0,) * len(self.shape.groups)) for key in self.sequence.keys)
        return [[place or int((block, group) in brought) for group, place in enumerate(each)] for block, each in enumerate(here)]
