"""Names and checksums of stored blocks, unit by unit: what a tier returns is used only if this engine, or one with the same secret, has
written it so.

The checksum is HMAC-SHA256 over what the reader asks for (format, layout and numerics, prefix key, token ids, prefix domain, group, length,
KV heads) and the bytes. The header is made by the reader and never read from a value: nothing in a value is parsed.
"""

import hmac
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from struct import Struct
from typing import Final

from ridgeline import __version__
from ridgeline.core.plan import HeadShare, KVShape

TAG_BYTES: Final = 32
NAME_BYTES: Final = 32
LABEL_CHARACTERS: Final = 16
FORMAT: Final = b"ridgeline kv block 3\n"
VERSION: Final = __version__.encode()
"""Version of what has computed a block: another version's may have other last bits, and is not found."""
_NUMBERS: Final = Struct("<II")
_HEADS: Final = Struct("<III")


@dataclass(frozen=True, slots=True)
class Content:
    """Content of a unit of a block. `key` is chained over all ids to its end; `scope`: tenant and adapter, see `PrefixIndex.identity`."""

    key: bytes
    group: int
    ids: tuple[int, ...]
    scope: bytes


class Seal:
    """Seals and opens values of one layout: units of blocks, with all heads of the model or some.

    secret  of all engines that share a tier
    runs    of a block's content, which has them in each of its units too; 0: a block is one unit
    type    KV type of its numbers, where engines of several share blocks (`KVShape.shared`), and the bytes of a block; "": the cache's own
    heads   of a value; None: those of the cache's blocks
    """

    def __init__(
        self, secret: bytes, shape: KVShape, runs: int = 0, type: str = "", block_bytes: int = 0, heads: HeadShare | None = None
    ) -> None:  # fmt: skip
        self.type = type
        self.heads = shape.heads if heads is None else heads
        self.unit_tokens = shape.unit_tokens if runs else shape.block_tokens
        self.units = shape.block_tokens // self.unit_tokens
        """Units of a block."""
        self._planes = runs // shape.heads.count
        """Parts of a content that have the heads in order: K and V of each layer."""
        self._secret = hmac.digest(secret, b"kv blocks " + VERSION, "sha256")
        layout = shape.shared + type.encode() if shape.shared else shape.fingerprint
        self._named, self._layout = b"name" + type.encode(), FORMAT + layout
        self.label = sha256(layout).hexdigest()[:LABEL_CHARACTERS]
        """Name of the layout between engines, whatever heads they have."""
        first, count, total = self.heads.first, self.heads.count, self.heads.total
        self.file_label = self.label if count == total else f"{self.label}-{first}-{count}"
        """Name of the file that has such values alone."""
        share = "" if count == total else f", KV heads {first} to {first + count - 1} of {total}"
        self.words = (f"{shape.layout}, KV type {type}" if type else shape.layout) + share
        """Text that this label stands for."""
        self._heads = _HEADS.pack(first, count, total)
        self._bytes = (block_bytes or shape.block_bytes) // self.units // shape.heads.count * count
        self._pack_ids = Struct(f"<{self.unit_tokens}I").pack

    @property
    def value_bytes(self) -> int:
        """Length of every value."""
        return TAG_BYTES + self._bytes

    def cut(self, data: bytes) -> list[bytes]:
        """The units of a block's content, each with the heads that it has."""
        if self.units == 1:
            return [data]
        step = self._bytes // self._planes // self.heads.count
        run = step * self.units
        return [b"".join([data[at : at + step] for at in range(unit * step, len(data), run)]) for unit in range(self.units)]

    def join(self, parts: Sequence["Seal"], opened: Sequence[bytes]) -> bytes:
        """A block's content of what values hold. `parts`: seals of the values of each unit, whose heads follow each other and have all of
        this one's."""
        if len(opened) == 1 and parts[0].heads == self.heads:
            return opened[0]
        counts, first = [part.heads.count for part in parts], self.heads.first - parts[0].heads.first
        step = parts[0]._bytes // self._planes // counts[0]
        places = [(part, at, count) for part, count in enumerate(counts) for at in range(count)][first : first + self.heads.count]
        return b"".join([
            opened[unit + part][(plane * count + at) * step : (plane * count + at + 1) * step]
            for plane in range(self._planes) for part, at, count in places for unit in range(0, len(opened), len(parts))
        ])  # fmt: skip

    def name(self, key: bytes, group: int) -> bytes:
        """Returns the name of a group's block in tiers: nobody without the secret can tell what it stands for."""
        return hmac.digest(self._secret, self._named + key + group.to_bytes(4, "little") + self._heads, "sha256")

    def close(self, content: Content, data: bytes) -> bytes:
        """Returns the value of a block: its tag, then its bytes."""
        return self._tag(content, data) + data

    def open(self, content: Content, value: bytes) -> bytes | None:
        """Returns the bytes of a value, None where it is anything but this content."""
        if len(value) != self.value_bytes:
            return None
        data = value[TAG_BYTES:]
        return data if hmac.compare_digest(value[:TAG_BYTES], self._tag(content, data)) else None

    def _tag(self, content: Content, data: bytes) -> bytes:
        parts = (self._layout, content.key, self._pack_ids(*content.ids), content.scope)
        header = b"".join(len(part).to_bytes(4, "little") + part for part in parts) + _NUMBERS.pack(content.group, self._bytes)
        tag = hmac.new(self._secret, header + self._heads, sha256)
        tag.update(data)
        return tag.digest()
