"""Addresses of engines that share KV blocks over TCP, as settings name them."""

from typing import Final

from ridgeline.errors import ConfigError

LISTEN_FLAG: Final = "--kv-cache-listen"
PEERS_FLAG: Final = "--kv-cache-peers"
SHELF_GIB: Final = 1.0
MOST_SHELF_GIB: Final = 4_096.0
MOST_PEERS: Final = 64


def parse_listen(text: str) -> tuple[str, int, int]:
    """(host, port, bytes of blocks that are kept for others) of HOST:PORT or HOST:PORT=GIB. Raises ConfigError."""
    address, has_size, size = text.partition("=")
    host, port = _parse(LISTEN_FLAG, address, 0)
    try:
        gib = float(size) if has_size else SHELF_GIB
    except ValueError:
        gib = 0.0
    if not 0 < gib <= MOST_SHELF_GIB:
        raise ConfigError(f"{LISTEN_FLAG} {text!r:.200}: {size!r:.20} is outside 0 … {MOST_SHELF_GIB:g} GiB", fix={LISTEN_FLAG: address})
    return host, port, int(gib * (1 << 30))


def parse_peers(texts: tuple[str, ...]) -> list[tuple[str, int]]:
    """(host, port) of each. Raises ConfigError."""
    if len(texts) > MOST_PEERS:
        raise ConfigError(f"{PEERS_FLAG} names {len(texts)} engines; at most {MOST_PEERS} are asked", fix={PEERS_FLAG: None})
    return [_parse(PEERS_FLAG, text, 1) for text in texts]


def _parse(flag: str, text: str, least_port: int) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host or "/" in host or not port.isascii() or not port.isdecimal() or not least_port <= int(port[:6]) < 1 << 16:
        raise ConfigError(f"{flag} {text!r:.200} is no address; write HOST:PORT, as 10.0.0.1:7000", fix={flag: None})
    return host, int(port)
