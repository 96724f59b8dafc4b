"""The tier of a Redis or Valkey server, which engines share. Over a Unix socket, TLS or loopback; its password comes from a file.

Values are read by range, so that one that somebody made longer is not taken into memory. The server evicts by its own policy
(`maxmemory-policy allkeys-lru`), and what nobody has written again for a week goes.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar
from urllib.parse import parse_qs, urlsplit

from ridgeline.errors import ConfigError

FLAG: Final = "--kv-cache-redis"
PREFIX: Final = b"ridgeline:kv:"
KEPT_SECONDS: Final = 7 * 86_400
CALL_SECONDS: Final = 1.0
"""That a reply may let wait. Requests wait less: their fetch has a deadline of its own."""
WRITE_SECONDS: Final = 2.0
NAMES_PER_CALL: Final = 512
LOOPBACK: Final = frozenset({"127.0.0.1", "::1", "localhost"})
T = TypeVar("T")


class RedisTier:
    """Implements `Tier`. Connects with the first call; a connection for reading and one for writing.

    value_bytes  of every value
    """

    name = "redis"

    def __init__(self, url: str, password: str | None, value_bytes: int) -> None:
        """Raises ConfigError for an address that is not taken, or without the package."""
        check_address(url)
        try:
            import redis
        except ModuleNotFoundError:
            raise ConfigError(f"{FLAG} needs a package: pip install 'ridgeline[redis]'", fix={FLAG: None}) from None
        self._failure: type[Exception] = redis.RedisError
        self._most = value_bytes
        try:
            self._reader, self._writer = (_connect(redis, url, password, seconds) for seconds in (CALL_SECONDS, WRITE_SECONDS))
        except (ValueError, TypeError) as error:
            raise ConfigError(f"{FLAG} {url!r:.200} is no address: {error}", fix={FLAG: None}) from None

    def might_have(self, name: bytes) -> bool:
        return True

    def has(self, names: Sequence[bytes]) -> list[bool]:
        found: list[bool] = []
        for first in range(0, len(names), NAMES_PER_CALL):
            calls = self._reader.pipeline(transaction=False)
            for name in names[first : first + NAMES_PER_CALL]:
                calls.exists(PREFIX + name)
            found += [reply == 1 for reply in self._call(calls.execute)]
        return found

    def get(self, names: Sequence[bytes], seconds: float) -> list[bytes | None]:
        calls = self._reader.pipeline(transaction=False)
        for name in names:
            calls.getrange(PREFIX + name, 0, self._most)  # both ends included: one byte more shows that it is too long
        return [reply if isinstance(reply, bytes) and reply else None for reply in self._call(calls.execute)]

    def put(self, name: bytes, value: bytes) -> None:
        self._call(lambda: self._writer.set(PREFIX + name, value, ex=KEPT_SECONDS))

    def forget(self, name: bytes) -> None:
        self._call(lambda: self._reader.unlink(PREFIX + name))

    def close(self) -> None:
        for client in (self._reader, self._writer):
            client.close()

    def _call(self, call: Callable[[], T]) -> T:
        try:
            return call()
        except self._failure as error:
            raise OSError(str(error)) from None


def check_address(url: str) -> None:
    """Raises ConfigError for an address that would send blocks in the clear, or with a password in it, which others see in `ps`."""
    parts = urlsplit(url)
    if parts.scheme not in ("unix", "rediss", "redis"):
        known = "unix:///path, rediss://host:port or redis://127.0.0.1:port"
        raise ConfigError(f"{FLAG} {url!r:.200} is no address; give {known}", fix={FLAG: None})
    if parts.password is not None or "password" in parse_qs(parts.query):
        raise ConfigError(f"{FLAG} has a password, which others see; put it into a file: --kv-cache-redis-password-file", fix={FLAG: None})
    if parts.scheme == "redis" and parts.hostname not in LOOPBACK:
        raise ConfigError(f"{FLAG} {url!r:.200} leaves this machine unencrypted; use rediss:// (TLS)", fix={FLAG: None})


def _connect(redis: Any, url: str, password: str | None, seconds: float) -> Any:
    retry = redis.retry.Retry(redis.backoff.NoBackoff(), 0)
    timeouts: dict[str, Any] = {"socket_timeout": seconds}
    if not url.startswith("unix:"):
        timeouts["socket_connect_timeout"] = seconds
    return redis.Redis.from_url(url, password=password, retry=retry, decode_responses=False, **timeouts)
