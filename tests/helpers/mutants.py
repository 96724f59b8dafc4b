"""Damaged files: what a reader is given that must refuse with a reason, and soon."""

import random

MOST_SECONDS = 0.1
"""Of processor time, for one file."""


def mutate(rng: random.Random, whole: bytes, reach: int) -> bytes:
    raw = bytearray(whole)
    for _ in range(rng.choice((1, 1, 1, 2, 5))):
        at = rng.randrange(max(1, min(reach, len(raw))))
        match rng.randrange(7):
            case 0:
                raw[at] = rng.randrange(256)
            case 1:
                raw[at : at + 8] = rng.choice((0, 1, 2**31, 2**32 - 1, 2**61, 2**63, 2**64 - 1)).to_bytes(8, "little")
            case 2:
                del raw[at : at + rng.randrange(1, 64)]
            case 3:
                raw[at:at] = raw[at : at + rng.randrange(1, 64)]
            case 4:
                del raw[1 + rng.randrange(len(raw)) :]
            case 5:
                raw[at : at + 1] = rng.choice((b"9", b"-", b"1e9", b"[", b"{", b'"', b"null", b"true", b"NaN", b"18446744073709551616"))
            case 6:
                numbers = [i for i in range(8, min(reach, len(raw))) if chr(raw[i]).isdigit()]
                raw[rng.choice(numbers or [at])] = ord(rng.choice("0123456789"))
    return bytes(raw)


def header_bytes(whole: bytes) -> int:
    return 8 + int.from_bytes(whole[:8], "little")
