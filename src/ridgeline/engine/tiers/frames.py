"""The protocol of engines about blocks: who they are, and frames whose length follows from what was asked.

Both sides prove that they have the secret of the tier before anything else is said: the one that listens sends a challenge, the other one
answers it with its own. What they say from then on is tagged with a key of this connection and the number of the frame. Values are not
encrypted, and are sealed by themselves (`seal`).

    request   kind (1 byte), names (2), bytes of a value (4; of HAS 0), label of its layout (16), the names, tag
    answer    one byte for each name: 1 where the value is there, 2 for all where values here have another layout; tag; to GET the
              values, in order
"""

import hmac
from collections.abc import Sequence
from struct import Struct
from typing import Final

from ridgeline.engine.tiers.seal import LABEL_CHARACTERS, NAME_BYTES

MAGIC: Final = b"ridgeline kv 2\n\0"
NONCE_BYTES: Final = 32
PROOF_BYTES: Final = 32
CHALLENGE_BYTES: Final = len(MAGIC) + NONCE_BYTES
HELLO_BYTES: Final = NONCE_BYTES + PROOF_BYTES
TAG_BYTES: Final = 32
HEAD: Final = Struct(f"<BHI{LABEL_CHARACTERS}s")
HAS, GET = 1, 2
THERE, REFUSED = 1, 2
MOST_NAMES: Final = {HAS: 4_096, GET: 64}
"""Names in a frame of each kind."""


class BadFrame(OSError):
    """A frame that no engine with the secret would send."""


class OtherLayout(OSError):
    """An answer of an engine whose values have another layout than those that were asked for."""


class Session:
    """The keys of one connection: each direction counts its frames."""

    def __init__(self, secret: bytes, challenge: bytes, nonce: bytes) -> None:
        """`challenge`, `nonce`: of the engine that listens, and of the other one."""
        key = hmac.digest(secret, b"kv peers" + challenge + nonce, "sha256")
        self.hello = hmac.digest(key, b"asks", "sha256")
        self.welcome = hmac.digest(key, b"answers", "sha256")
        self._key = hmac.digest(key, b"frames", "sha256")
        self._count = 0

    def request(self, kind: int, names: Sequence[bytes], value_bytes: int, label: bytes) -> bytes:
        """A frame that asks for values of a length and a layout."""
        said = HEAD.pack(kind, len(names), value_bytes, label) + b"".join(names)
        self._count += 1
        return said + self._tag(b"asks", said)

    def read_request(self, head: bytes, rest: bytes) -> tuple[int, list[bytes], int, bytes]:
        """(kind, names, bytes of a value, label) of what follows `rest_bytes`. Raises BadFrame."""
        kind, _, value_bytes, label = HEAD.unpack(head)
        said = rest[:-TAG_BYTES]
        self._count += 1
        if not hmac.compare_digest(rest[-TAG_BYTES:], self._tag(b"asks", head + said)):
            raise BadFrame("the tag is wrong")
        return kind, [said[at : at + NAME_BYTES] for at in range(0, len(said), NAME_BYTES)], value_bytes, label

    def answer(self, flags: bytes) -> bytes:
        """The head of an answer, in front of the values."""
        return flags + self._tag(b"answers", flags)

    def read_answer(self, data: bytes) -> list[bool]:
        """Reads which values are there. Raises BadFrame, and OtherLayout where it has none of the layout that was asked for."""
        flags = data[:-TAG_BYTES]
        if not hmac.compare_digest(data[-TAG_BYTES:], self._tag(b"answers", flags)):
            raise BadFrame("the tag is wrong")
        if REFUSED in flags:
            raise OtherLayout
        return [flag == THERE for flag in flags]

    def _tag(self, direction: bytes, said: bytes) -> bytes:
        return hmac.digest(self._key, direction + self._count.to_bytes(8, "little") + said, "sha256")


def rest_bytes(head: bytes) -> int:
    """Bytes of a request behind its head. Raises BadFrame for one of no kind, or with more names than are taken."""
    kind, count, *_ = HEAD.unpack(head)
    if not 0 < count <= MOST_NAMES.get(kind, 0):
        raise BadFrame(f"a frame of kind {kind} with {count} names")
    return int(count) * NAME_BYTES + TAG_BYTES
