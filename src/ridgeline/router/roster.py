"""The servers that a router has: those of its flags, or of a file that is read again when it changes.

The file has a server per line, as `--replica` takes it, or `canary` and one as `--canary` does; what follows `#` is a remark. So servers
come and go, and one set takes the place of another (blue-green), while the router runs. A file that is wrong is said, and not followed.
"""

import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from ridgeline.errors import ConfigError
from ridgeline.observe.logs import with_fields

log = logging.getLogger("ridgeline.router")

MAX_REPLICAS: Final = 1_024
MAX_WEIGHT: Final = 1_000.0
USUAL_SHARE: Final = 0.05
MAX_SHARE: Final = 0.5
"""Largest share of a canary."""
MAX_FILE_BYTES: Final = 1 << 20
FILE_FLAG: Final = "--replicas-file"


@dataclass(frozen=True, slots=True)
class Named:
    """A server as it is named. `share`: the part of all requests that it gets as a canary; 0: it is none."""

    url: str
    weight: float = 1.0
    share: float = 0.0


class Roster:
    """The servers of flags, which stay, or of `path`. Two at the same address, or a weight out of range, are a ConfigError."""

    def __init__(self, replicas: Sequence[str], canaries: Sequence[str] = (), path: str | None = None) -> None:
        """Raises ConfigError."""
        self._path = path
        self._seen: tuple[int, int, int] | None = None
        if path is None:
            self.named = _checked([*(_replica("--replica", each) for each in replicas), *(_canary("--canary", each) for each in canaries)])
            if not replicas:
                raise ConfigError(f"no server is named; name each with --replica http://host:port, or all in {FILE_FLAG} FILE")
        elif replicas or canaries:
            raise ConfigError(f"{FILE_FLAG} has all servers; leave out --replica and --canary", fix={FILE_FLAG: None})
        else:
            self._seen = self._state(path)
            self.named = _read(path)

    def look(self) -> bool:
        """True if the file names other servers than before. Logs what is wrong with it, once per change."""
        if self._path is None:
            return False
        try:
            state = self._state(self._path)
            if state == self._seen:
                return False
            self._seen, before = state, self.named
            self.named = _read(self._path)
        except ConfigError as error:
            if self._seen is not None:
                log.warning("the file of replicas is not followed", extra=with_fields(reason=str(error)))
            self._seen = self._state_or_none()
            return False
        log.info("other replicas", extra=with_fields(named=len(self.named), file=self._path))
        return self.named != before

    def _state_or_none(self) -> tuple[int, int, int] | None:
        assert self._path is not None
        try:
            return self._state(self._path)
        except ConfigError:
            return None

    @staticmethod
    def _state(path: str) -> tuple[int, int, int]:
        try:
            found = os.stat(path)
        except OSError as error:
            raise ConfigError(f"{FILE_FLAG} {path}: {error.strerror}") from None
        return found.st_mtime_ns, found.st_size, found.st_ino


def _read(path: str) -> list[Named]:
    try:
        with open(path, "rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
        lines = data.decode().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{FILE_FLAG} {path}: {error}") from None
    if len(data) > MAX_FILE_BYTES:
        raise ConfigError(f"{FILE_FLAG} {path} has more than {MAX_FILE_BYTES} bytes")
    found = []
    for number, line in enumerate(lines, 1):
        words, place = line.partition("#")[0].split(), f"{path} line {number}:"
        if len(words) == 2 and words[0] == "canary":
            found.append(_canary(place, words[1]))
        elif len(words) == 1:
            found.append(_replica(place, words[0]))
        elif words:
            raise ConfigError(f"{place} {line.strip()!r:.200} is neither http://host:port[=WEIGHT] nor canary http://host:port[=SHARE]")
    return _checked(found)


def _checked(found: list[Named]) -> list[Named]:
    urls = [each.url for each in found]
    if len(found) > MAX_REPLICAS:
        raise ConfigError(f"there are {len(found)} replicas; name at most {MAX_REPLICAS}")
    if double := next((url for url in set(urls) if urls.count(url) > 1), None):
        raise ConfigError(f"{double} is named more than once")
    return found


def _replica(place: str, text: str) -> Named:
    url, weight = _parse(place, text, MAX_WEIGHT)
    return Named(url, weight)


def _canary(place: str, text: str) -> Named:
    url, share = _parse(place, text if "=" in text else f"{text}={USUAL_SHARE}", MAX_SHARE)
    return Named(url, share=share)


def _parse(place: str, text: str, most: float) -> tuple[str, float]:
    url, _, weight = text.partition("=")
    try:
        parts = urlsplit(url)
        is_address = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.path in ("", "/") and not parts.query
        is_address = is_address and "@" not in parts.netloc and (parts.port or 1) > 0
        share = float(weight) if weight else 1.0
    except ValueError:
        is_address, share = False, 0.0
    if not is_address:
        raise ConfigError(f"{place} {text!r:.200} is no address of a server; write http://host:port, or http://host:port=WEIGHT")
    if weight and not 0 < share <= most:
        raise ConfigError(f"{place} {text!r:.200}: {weight!r:.20} is outside 0 … {most:g}")
    return url.rstrip("/"), share
