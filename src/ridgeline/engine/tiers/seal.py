"""Names and checksums of stored blocks, unit by unit: what a tier returns is used only if this engine, or one with the same secret, has
written it so.

The checksum is HMAC-SHA256 over what the reader asks for (format, layout and numerics, prefix key, token ids, prefix domain, group, length)
and the bytes. The header is made by the reader and never read from a value: nothing in a value is parsed.
"""

import hmac
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from struct import Struct
from typing import Final

from ridgeline import __version__
from ridgeline.core.plan import KVShape

TAG_BYTES: Final = 32
NAME_BYTES: Final = 32
LABEL_CHARACTERS: Final = 16
FORMAT: Final = b"ridgeline kv block 2\n"
VERSION: Final = __version__.encode()
"""Version of what has computed a block: another version's may have other last bits, and is not found."""
_NUMBERS: Final = Struct("<II")


@dataclass(frozen=True, slots=True)
class Content:
    """Content of a unit of a block. `key` is chained over all ids to its end; `scope`: tenant and adapter, see `PrefixIndex.identity`."""

    key: bytes
    group: int
    ids: tuple[int, ...]
    scope: bytes


class Seal:
    """Seals and opens the units of the blocks of one layout.

    secret  of all engines that share a tier
    runs    of a block's content, which has them in each of its units too; 0: a block is one unit
    type    KV type of its numbers, where engines of several share blocks (`KVShape.shared`), and the bytes of a block; "": the cache's own
    """

    def __init__(self, secret: bytes, shape: KVShape, runs: int = 0, type: str = "", block_bytes: int = 0) -> None:
        self.type = type
        self.unit_tokens = shape.unit_tokens if runs else shape.block_tokens
        self.units = shape.block_tokens // self.unit_tokens
        """Units of a block."""
        self._runs = runs
        self._secret = hmac.digest(secret, b"kv blocks " + VERSION, "sha256")
        layout = shape.shared + type.encode() if shape.shared else shape.fingerprint
        self._named, self._layout = b"name" + type.encode(), FORMAT + layout
        self.label = sha256(layout).hexdigest()[:LABEL_CHARACTERS]
        """Name of such values: of the file that has them alone, and between engines."""
        self.words = f"{shape.layout}, KV type {type}" if type else shape.layout
        """Text that the label stands for."""
        self._bytes = (block_bytes or shape.block_bytes) // self.units
        self._pack_ids = Struct(f"<{self.unit_tokens}I").pack

    @property
    def value_bytes(self) -> int:
        """Length of every value."""
        return TAG_BYTES + self._bytes

    def cut(self, data: bytes) -> list[bytes]:
        """The units of a block's content."""
        if self.units == 1:
            return [data]
        run, step = len(data) // self._runs, self._bytes // self._runs
        return [b"".join([data[at : at + step] for at in range(unit * step, len(data), run)]) for unit in range(self.units)]

    def join(self, units: Sequence[bytes]) -> bytes:
        """A block's content of its units."""
        if self.units == 1:
            return units[0]
        step = self._bytes // self._runs
        return b"".join([unit[at : at + step] for at in range(0, self._bytes, step) for unit in units])

    def name(self, key: bytes, group: int) -> bytes:
        """Returns the name of a group's block in tiers: nobody without the secret can tell what it stands for."""
        return hmac.digest(self._secret, self._named + key + group.to_bytes(4, "little"), "sha256")

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
        tag = hmac.new(self._secret, header, sha256)
        tag.update(data)
        return tag.digest()
