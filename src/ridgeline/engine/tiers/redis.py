"""The tier of a Redis or Valkey server, which engines share. Over a Unix socket, TLS or loopback; its password comes from a file.

Values are read by range, so that one that somebody made longer is not taken into memory. The server evicts by its own policy
(`maxmemory-policy allkeys-lru`), and what nobody has written again for a week goes.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any, Final

from ridgeline.config.redis import RedisServer
from ridgeline.engine.tiers.worth import NOWHERE, Place

FLAG: Final = "--kv-cache-redis"
PASSWORD_FLAG: Final = "--kv-cache-redis-password-file"
PREFIX: Final = b"ridgeline:kv:"
KEPT_SECONDS: Final = 7 * 86_400
CALL_SECONDS: Final = 1.0
"""Seconds that a reply may take. Requests wait less: their fetch has a deadline of its own."""
WRITE_SECONDS: Final = 2.0
NAMES_PER_CALL: Final = 512


class RedisTier:
    """Implements `Tier`. Connects with the first call; a connection for reading and one for writing."""

    name = "redis"
    takes = True
    refused = 0

    def __init__(self, url: str, password: str | None) -> None:
        """Raises ConfigError for an address that is not taken, or without the package."""
        self._reader, self._writer = (RedisServer(url, FLAG, PASSWORD_FLAG, password, seconds) for seconds in (CALL_SECONDS, WRITE_SECONDS))

    def might_have(self, name: bytes) -> bool:
        return True

    def has(self, names: Sequence[bytes]) -> list[bool]:
        def ask(some: Sequence[bytes], client: Any) -> list[int]:
            calls = client.pipeline(transaction=False)
            for name in some:
                calls.exists(PREFIX + name)
            return list(calls.execute())

        parts = (names[first : first + NAMES_PER_CALL] for first in range(0, len(names), NAMES_PER_CALL))
        return [reply == 1 for part in parts for reply in self._reader.call(partial(ask, part))]

    def get(self, names: Sequence[bytes], seconds: float, value_bytes: int) -> list[bytes | None]:
        def ask(client: Any) -> list[Any]:
            calls = client.pipeline(transaction=False)
            for name in names:
                calls.getrange(PREFIX + name, 0, value_bytes)  # both ends included: one byte more shows that it is too long
            return list(calls.execute())

        return [reply if isinstance(reply, bytes) and reply else None for reply in self._reader.call(ask)]

    def put(self, name: bytes, value: bytes, place: Place = NOWHERE) -> None:
        self._writer.call(lambda client: client.set(PREFIX + name, value, ex=KEPT_SECONDS))

    def forget(self, name: bytes) -> None:
        self._reader.call(lambda client: client.unlink(PREFIX + name))

    def close(self) -> None:
        for server in (self._reader, self._writer):
            server.close()
