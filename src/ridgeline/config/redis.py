"""Redis and Valkey servers that settings name: where they may be, with which password, and calls to one.

Over a Unix socket, TLS or loopback, so that nothing of a prompt crosses a network in the clear, or to a server that nobody has certified.
"""

from collections.abc import Callable
from typing import Any, Final, TypeVar
from urllib.parse import parse_qs, urlsplit

from ridgeline.config.file import read_private
from ridgeline.errors import ConfigError

SCHEMES: Final = ("unix", "rediss", "redis")
MAX_PASSWORD_BYTES: Final = 4_096
LOOPBACK: Final = frozenset({"127.0.0.1", "::1", "localhost"})
OPTIONS: Final = ("db", "ssl_ca_certs", "ssl_certfile", "ssl_keyfile")
"""Options behind an address. The package takes others there: to trust any certificate, and to wait longer than a call may take."""
T = TypeVar("T")


def check_address(url: str, flag: str, password_flag: str) -> None:
    """Raises ConfigError for an address that would send data in the clear or to anybody, or with a password in it, which others see in
    `ps`."""
    try:
        parts = urlsplit(url)
        host, password = parts.hostname, parts.password
    except ValueError:
        parts, host, password = urlsplit(""), None, None
    if parts.scheme not in SCHEMES:
        known = "unix:///path, rediss://host:port or redis://127.0.0.1:port"
        raise ConfigError(f"{flag} {url!r:.200} is no address; give {known}", fix={flag: None})
    options = parse_qs(parts.query, keep_blank_values=True)
    if password is not None or "password" in options:
        raise ConfigError(f"{flag} has a password, which others see; put it into a file: {password_flag}", fix={flag: None})
    if unknown := next((name for name in options if name not in OPTIONS), None):
        raise ConfigError(f"{flag}: option {unknown!r:.60} is not taken; {', '.join(OPTIONS)} are", fix={flag: None})
    if parts.scheme == "redis" and host not in LOOPBACK:
        raise ConfigError(f"{flag} {url!r:.200} leaves this machine unencrypted; use rediss:// (TLS)", fix={flag: None})


def read_password(path: str | None, flag: str) -> str | None:
    """The password in a private file; None without a file. Raises ConfigError."""
    return None if path is None else read_private(path, flag, MAX_PASSWORD_BYTES).strip()


class RedisServer:
    """Connections to a server, made with the first call; each call may take `seconds`, and is never asked again by itself."""

    def __init__(self, url: str, flag: str, password_flag: str, password: str | None, seconds: float) -> None:
        """Raises ConfigError for an address that is not taken, or without the package."""
        check_address(url, flag, password_flag)
        try:
            import redis
        except ModuleNotFoundError:
            raise ConfigError(f"{flag} needs a package: pip install 'ridgeline[redis]'", fix={flag: None}) from None
        self._failure: type[Exception] = redis.RedisError
        retry = redis.retry.Retry(redis.backoff.NoBackoff(), 0)
        timeouts: dict[str, Any] = {"socket_timeout": seconds}
        if not url.startswith("unix:"):
            timeouts["socket_connect_timeout"] = seconds
        try:
            self._client: Any = redis.Redis.from_url(url, password=password, retry=retry, decode_responses=False, **timeouts)
        except (ValueError, TypeError) as error:
            raise ConfigError(f"{flag} {url!r:.200} is no address: {error}", fix={flag: None}) from None

    def call(self, work: Callable[[Any], T]) -> T:
        """Returns the result of `work` with the client. Raises OSError where the server does not answer, or refuses."""
        try:
            return work(self._client)
        except self._failure as error:
            raise OSError(str(error)) from None

    def close(self) -> None:
        """Closes all connections."""
        self._client.close()
