"""Access control: API key, hosts, origins. Default deny; an ASGI layer around the router, so that no endpoint can forget it.

Owns the demand for a key (`server.routes` says where), the headers that may have one, the allow-list of hosts (DNS rebinding), the check of
origins and the size of headers. The decision rests on the path that the router will match, never on a rebuilt URL. Never looks at a body.
"""

from dataclasses import replace
from ipaddress import ip_address
from typing import Final

from starlette.types import ASGIApp, Receive, Scope, Send

from ridgeline.config.groups import ServerConfig
from ridgeline.errors import ConfigError
from ridgeline.server.callers import NOBODY, serving
from ridgeline.server.errors import ApiError
from ridgeline.server.keys import ApiKeys, Caller
from ridgeline.server.origins import allows, parse_origins
from ridgeline.server.routes import PUBLIC, dialect_of
from ridgeline.server.tls import Certificate

KEY_HEADERS: Final = (b"x-api-key", b"api-key")
"""Headers whose whole value is a key: Anthropic's and Azure's, beside `Authorization: Bearer`."""
MAX_HEADER_BYTES: Final = 16 * 1024
CLOSE_HEADERS: Final = {"Connection": "close"}


def is_loopback(host: str) -> bool:
    """True if binding to `host` keeps the server on this machine."""
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def check_exposure(config: ServerConfig) -> None:
    """Raises ConfigError for an address that others can reach without a key, and for keys, origins or a certificate that cannot work."""
    Certificate(config)
    parse_origins(config.allowed_origins)
    if not ApiKeys(config.api_key, config.api_key_file).needed and not is_loopback(config.host):
        message = f"--host {config.host} can be reached from other machines; add --api-key-file FILE, or serve on 127.0.0.1"
        raise ConfigError(message, fix={"--host": "127.0.0.1"})


class AccessGuard:
    """Answers 401, 403 and 431 itself and passes everything else on.

    origins  of pages, besides the server's own, that may use it
    """

    def __init__(self, app: ASGIApp, host: str, keys: ApiKeys, origins: frozenset[str]) -> None:
        self._app = app
        self._keys = keys if keys.needed else None
        self._origins = origins
        self._hosts = {"localhost", "127.0.0.1", "[::1]", host, f"[{host}]"} if is_loopback(host) else None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
        elif scope["type"] == "http":
            found = self.caller(scope)
            if isinstance(found, ApiError):
                await found.response(dialect_of(scope))(scope, receive, send)
                return
            targets = found.targets.with_headers(scope["headers"])
            with serving(found if targets is found.targets else replace(found, targets=targets)):
                await self._app(scope, receive, send)

    def caller(self, scope: Scope) -> Caller | ApiError:
        """The sender of a request, or the reason why it is not taken."""
        headers: list[tuple[bytes, bytes]] = scope["headers"]
        size = sum(len(name) + len(value) + 4 for name, value in headers)
        if size > MAX_HEADER_BYTES:
            message = f"the headers have {size} bytes; at most {MAX_HEADER_BYTES} are accepted"
            return ApiError("headers_too_large", message, headers=CLOSE_HEADERS)
        return self._host_error(headers) or self._origin_error(headers) or self._holder(scope, headers)

    def _host_error(self, headers: list[tuple[bytes, bytes]]) -> ApiError | None:
        if self._hosts is None:
            return None
        hosts = _values(headers, b"host")
        if len(hosts) == 1 and _host_name(hosts[0]) in self._hosts:
            return None
        return ApiError(
            "host_not_allowed",
            "this server listens on the loopback address and answers to localhost and 127.0.0.1 only; "
            "serve with --host and --api-key to be reached by another name",
            headers=CLOSE_HEADERS,
        )

    def _origin_error(self, headers: list[tuple[bytes, bytes]]) -> ApiError | None:
        origins, hosts = _values(headers, b"origin"), _values(headers, b"host")
        if not origins or (len(origins) == len(hosts) == 1 and origins[0].partition("://")[2] == hosts[0]):
            return None
        if len(origins) == 1 and allows(self._origins, origins[0]):
            return None
        message = "pages of another origin may not use this server, unless --allowed-origins names theirs"
        return ApiError("origin_not_allowed", message, headers=CLOSE_HEADERS)

    def _holder(self, scope: Scope, headers: list[tuple[bytes, bytes]]) -> Caller | ApiError:
        """The holder of the request's key."""
        if self._keys is None or (scope["method"], scope["path"]) in PUBLIC:
            return NOBODY
        bearer = _values(headers, b"authorization")
        plain = [_values(headers, name) for name in KEY_HEADERS]
        keys = [values[0] for values in plain if len(values) == 1]
        scheme, _, key = bearer[0].partition(" ") if len(bearer) == 1 else ("", "", "")
        if scheme.lower() == "bearer":
            keys.append(key.strip())
        for each in keys:
            if (caller := self._keys.find(each)) is not None:
                return caller
        return ApiError(
            "invalid_api_key",
            "the API key is wrong" if bearer or any(plain) else "an API key is needed: send Authorization: Bearer KEY, or x-api-key: KEY",
            headers={"WWW-Authenticate": "Bearer", **CLOSE_HEADERS},
        )


def _values(headers: list[tuple[bytes, bytes]], name: bytes) -> list[str]:
    return [value.decode("latin-1") for key, value in headers if key == name]


def _host_name(host: str) -> str:
    """The name without its port, lower case: `[::1]:8000` → `[::1]`."""
    name, colon, port = host.rpartition(":")
    return (name if colon and port.isdigit() else host).lower()
