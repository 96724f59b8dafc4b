"""The tier of a Redis or Valkey server, which engines share. Over a Unix socket, TLS or loopback; its password comes from a file.

Values are read by range, so that one that somebody made longer is not taken into memory. Their expiries say what they are worth
(`Lifetimes`), which a server follows that evicts what expires next (`maxmemory-policy volatile-ttl`). Needs Redis 7 or Valkey.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any, Final

from ridgeline.config.redis import RedisServer
from ridgeline.engine.tiers.lifetimes import Expiry, Lifetimes
from ridgeline.engine.tiers.worth import NOWHERE, Place

FLAG: Final = "--kv-cache-redis"
PASSWORD_FLAG: Final = "--kv-cache-redis-password-file"
PREFIX: Final = b"ridgeline:kv:"
CALL_SECONDS: Final = 1.0
"""Seconds that a reply may take. Requests wait less: their fetch has a deadline of its own."""
WRITE_SECONDS: Final = 2.0
NAMES_PER_CALL: Final = 512
MOST_EXPIRY: Final = 1 << 48
"""Milliseconds since the epoch, which a server may say of a value."""


class RedisTier:
    """Implements `Tier`. Connects with the first call; a connection for reading and one for writing.

    attention_tokens  see `Worth`
    """

    name = "redis"
    takes = True
    refused = 0

    def __init__(self, url: str, password: str | None, attention_tokens: float = 0.0) -> None:
        """Raises ConfigError for an address that is not taken, or without the package."""
        self._reader, self._writer = (RedisServer(url, FLAG, PASSWORD_FLAG, password, seconds) for seconds in (CALL_SECONDS, WRITE_SECONDS))
        self._lifetimes = Lifetimes(attention_tokens)
        self._used: list[Expiry] = []
        """Expiries of values that have been read, told with the next call that reads, so that no request waits for it."""

    def might_have(self, name: bytes) -> bool:
        return True

    def has(self, names: Sequence[bytes]) -> list[bool]:
        def ask(some: Sequence[bytes], client: Any) -> list[int]:
            calls = client.pipeline(transaction=False)
            for name in some:
                calls.exists(PREFIX + name)
            self._tell_uses(calls)
            return list(calls.execute())[: len(some)]

        parts = (names[first : first + NAMES_PER_CALL] for first in range(0, len(names), NAMES_PER_CALL))
        return [reply == 1 for part in parts for reply in self._reader.call(partial(ask, part))]

    def get(self, names: Sequence[bytes], seconds: float, value_bytes: int) -> list[bytes | None]:
        def ask(client: Any) -> list[Any]:
            calls = client.pipeline(transaction=False)
            for name in names:
                calls.getrange(PREFIX + name, 0, value_bytes)  # both ends included: one byte more shows that it is too long
                calls.pexpiretime(PREFIX + name)
            self._tell_uses(calls)
            return list(calls.execute())

        replies = self._reader.call(ask)
        found = [reply if isinstance(reply, bytes) and reply else None for reply in replies[0 : 2 * len(names) : 2]]
        for name, value, expiry in zip(names, found, replies[1 : 2 * len(names) : 2], strict=True):
            if value is not None and isinstance(expiry, int) and 0 < expiry < MOST_EXPIRY:
                self._used.append((name, self._lifetimes.use(expiry)))
        return found

    def put(self, name: bytes, value: bytes, place: Place = NOWHERE) -> None:
        def ask(client: Any) -> None:
            calls = client.pipeline(transaction=False)
            expiries = self._lifetimes.enter(name, place)
            calls.set(PREFIX + name, value, pxat=expiries[0][1], nx=True)
            _prolong(calls, expiries)
            calls.execute()

        self._writer.call(ask)

    def forget(self, name: bytes) -> None:
        self._reader.call(lambda client: client.unlink(PREFIX + name))

    def close(self) -> None:
        for server in (self._reader, self._writer):
            server.close()

    def _tell_uses(self, calls: Any) -> None:
        used, self._used = self._used, []
        _prolong(calls, used)


def _prolong(calls: Any, expiries: Sequence[Expiry]) -> None:
    for name, expiry in expiries:
        calls.pexpireat(PREFIX + name, expiry, gt=True)
