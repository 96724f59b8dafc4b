"""Blocks as tiers have them: the names, contents and values of their units."""

from collections.abc import Iterator
from collections.abc import Sequence as Items
from hashlib import sha256

from ridgeline.core.plan import HeadShare, KVShape
from ridgeline.core.prefix_cache import PrefixIndex, unit_keys
from ridgeline.core.sequence import Sequence
from ridgeline.engine.tiers.seal import Content, Seal
from ridgeline.engine.tiers.worth import Place

Layout = tuple[Seal, ...]
"""Seals of the values that a unit of a block is put together from: one, or several whose heads follow each other."""


def layouts_of(secret: bytes, shape: KVShape, runs: int, type: str = "", block_bytes: int = 0) -> list[Layout]:
    """Layouts in which a block is looked for: as this engine keeps it, then as engines do that have all heads, a half of them, a quarter …,
    as far as their number can be halved. Parameters are those of `Seal`."""
    own, size = shape.heads, shape.heads.total
    found: list[tuple[HeadShare, ...]] = [(own,)]
    while runs and size:
        shares = tuple(HeadShare(at, size, own.total) for at in range(own.first // size * size, own.first + own.count, size))
        found += [shares] if shares != found[0] else []
        size = 0 if size % 2 else size // 2
    return [tuple(Seal(secret, shape, runs, type, block_bytes, heads) for heads in shares) for shares in found]


def keys_of(seal: Seal, index: PrefixIndex, sequence: Sequence, blocks: int) -> list[bytes]:
    """The keys of the units of the first blocks of a sequence."""
    if seal.units == 1:
        return index.keys(sequence, blocks)[:blocks]
    root = sha256(index.shape.root + index.identity(sequence)).digest()
    return list(unit_keys(root, sequence.known[: blocks * index.shape.block_tokens], seal.unit_tokens))


def contents_of(seal: Seal, keys: Items[bytes], block: int, group: int, ids: tuple[int, ...], scope: bytes) -> list[Content]:
    """The units of a block. `keys`: of all units of the prompt."""
    units, size = seal.units, seal.unit_tokens
    return [Content(keys[block * units + at], group, ids[at * size : (at + 1) * size], scope) for at in range(units)]


def sealed(seal: Seal, shape: KVShape, content: Content, data: bytes, before: bytes, position: int) -> Iterator[tuple[bytes, bytes, Place]]:
    """(name, value, place) of each unit of a block. `before`: key of the block in front of it, b"" for none; `position`: of its first
    token."""
    size, hangs = seal.unit_tokens, not shape.groups[content.group].window  # a window sees its own last blocks alone
    parent = before or sha256(shape.root + content.scope).digest()
    keys = [content.key] if seal.units == 1 else list(unit_keys(parent, content.ids, size))
    for at, (key, part) in enumerate(zip(keys, seal.cut(data), strict=True)):
        unit = Content(key, content.group, content.ids[at * size : (at + 1) * size], content.scope)
        place = Place(seal.name(before, content.group) if hangs and before else b"", position + at * size)
        yield seal.name(key, content.group), seal.close(unit, part), place
        before = key
