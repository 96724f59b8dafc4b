"""API keys: from a setting and from a file of several, kept as SHA-256, compared in constant time, read again on SIGHUP.

A file has one key per line, as KEY or NAME KEY; empty lines and those that begin with # do not count. Keys are never printed, names may be.
"""

import hashlib
import hmac
import re
from collections.abc import Mapping
from typing import Final

from ridgeline.config.file import check_private, read_bounded
from ridgeline.errors import ConfigError

FLAG: Final = "--api-key-file"
MAX_KEYS: Final = 256
NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}")


class ApiKeys:
    """The keys that this server accepts. Raises ConfigError where a key cannot be sent in a header, or the file is not private."""

    def __init__(self, api_key: str | None = None, file: str | None = None) -> None:
        if api_key is not None and not _can_be_sent(api_key):
            raise ConfigError("--api-key must be printable ASCII without spaces at its ends, at least 1 character", fix={"--api-key": None})
        self._own = () if api_key is None else (_digest(api_key),)
        self._file = file
        self._digests: tuple[bytes, ...] = ()
        self.reload()

    @property
    def needed(self) -> bool:
        """True if a request must have a key, now and after `reload`."""
        return bool(self._digests)

    def reload(self) -> int:
        """Reads the file again, and returns the number of keys. Raises ConfigError and keeps the old ones where the file is wrong."""
        found = () if self._file is None else tuple(_read_keys(self._file).values())
        self._digests = (*self._own, *found)
        return len(self._digests)

    def owner(self, key: str) -> bytes | None:
        """What stands for the holder of a key, always the same and no secret; None for a key that is none of these. Compares with all of
        them, each in constant time."""
        digest = hashlib.sha256(key.encode("latin-1")).digest()
        is_known = sum(hmac.compare_digest(digest, each) for each in self._digests) > 0
        return hashlib.sha256(b"owner" + digest).digest() if is_known else None


def _read_keys(path: str) -> Mapping[str, bytes]:
    """Name, or number of the line, → digest of the key. Raises ConfigError, which never has a part of a key."""
    check_private(path, FLAG)
    found: dict[str, bytes] = {}
    for number, line in enumerate(read_bounded(path, FLAG).splitlines(), 1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        name, key = words[0] if len(words) == 2 else f"line {number}", words[-1]
        where = f"{FLAG} {path!r:.200}, line {number}:"
        if len(words) > 2 or (len(words) == 2 and NAME.fullmatch(name) is None):
            raise ConfigError(f"{where} write KEY, or NAME KEY with a name of at most 64 letters, digits, and _ . -")
        if not _can_be_sent(key):
            raise ConfigError(f"{where} a key must be printable ASCII")
        if name in found or _digest(key) in found.values():
            raise ConfigError(f"{where} this name or key stands in a line above; remove one")
        found[name] = _digest(key)
    if not found:
        raise ConfigError(f"{FLAG} {path!r:.200} has 0 keys; write one per line")
    if len(found) > MAX_KEYS:
        raise ConfigError(f"{FLAG} {path!r:.200} has {len(found)} keys; at most {MAX_KEYS} are possible")
    return found


def _can_be_sent(key: str) -> bool:
    return bool(key) and key.isascii() and key.isprintable() and key.strip() == key


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode()).digest()
