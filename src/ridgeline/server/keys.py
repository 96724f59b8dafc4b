"""API keys: from a setting and from a file of several, kept as SHA-256, read again on SIGHUP.

A line of the file is KEY, NAME KEY, or NAME KEY OPTION=VALUE …; empty lines and those that begin with # do not count. A key may be
written as `sha256:` and its digest in hex. Keys are never printed, names may be.
"""

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from ridgeline.config.file import check_private, read_bounded
from ridgeline.errors import ConfigError
from ridgeline.server.quotas import MAX_RATE, RATES, Quota
from ridgeline.server.targets import MAX_MS, NAMES, NO_TARGETS, Targets

if TYPE_CHECKING:
    from ridgeline.server.relay import Relay

FLAG: Final = "--api-key-file"
MAX_KEYS: Final = 4_096
MAX_FILE_BYTES: Final = 1 << 20
MAX_TENANTS: Final = 1_024
MAX_WEIGHT: Final = 1_000
NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}")
HASHED: Final = re.compile(r"sha256:([0-9A-Fa-f]{64})")
SCOPES: Final = ("client", "admin")
ADAPTER: Final = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,63}|\*")
MAX_ADAPTERS: Final = 256
OPTIONS: Final = ("tenant", "weight", "scope", *RATES, "adapters", "sheddable", "brown_out_tokens", *NAMES)


@dataclass(frozen=True, slots=True)
class Key:
    """A key as a line of the file describes it.

    tenant  whose prefixes and places in the queue it shares; "": the one of all keys that name none
    weight  of the tenant: its share of the engine against others; 0: other lines say it
    rates   limits by the names of `quotas.RATES`
    is_sheddable      in a brown-out its requests are the first that are not taken
    brown_out_tokens  in a brown-out its answers have at most so many tokens; None: as many as ever
    targets of its requests that name none
    adapters  that its tenant may use, by name; `*`: all
    """

    digest: bytes
    tenant: str = ""
    weight: int = 1
    is_admin: bool = False
    rates: tuple[tuple[str, int], ...] = ()
    is_sheddable: bool = False
    brown_out_tokens: int | None = None
    targets: Targets = NO_TARGETS
    adapters: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Caller:
    """The sender of a request, as its key says. `quota` is None where the key has no limits; `owner` stands for the holder of the key,
    always the same and no secret, and is empty where no key is needed; `targets` are those of the request's headers, or the key's;
    `adapters` names those that there are for it, None: all; `relay` is there where a router asks for the holder."""

    tenant: str = ""
    weight: int = 1
    is_admin: bool = False
    quota: Quota | None = None
    owner: bytes = b""
    is_sheddable: bool = False
    brown_out_tokens: int | None = None
    targets: Targets = NO_TARGETS
    adapters: frozenset[str] | None = None
    relay: "Relay | None" = None

    def may_use(self, adapter: str) -> bool:
        """True if there is an adapter of this name for it."""
        return self.adapters is None or adapter in self.adapters


class ApiKeys:
    """The keys that this server accepts. Raises ConfigError where a key cannot be sent in a header, or the file is not private."""

    def __init__(self, api_key: str | None = None, file: str | None = None) -> None:
        if api_key is not None and not _can_be_sent(api_key):
            raise ConfigError("--api-key must be printable ASCII without spaces at its ends, at least 1 character", fix={"--api-key": None})
        self._own = None if api_key is None else _digest(api_key)
        self._file = file
        self._keys: dict[bytes, tuple[Key, Caller]] = {}
        self.reload()

    @property
    def needed(self) -> bool:
        """True if a request must have a key, now and after `reload`."""
        return bool(self._keys)

    @property
    def has_admins(self) -> bool:
        """True if the file has a key of an admin."""
        return any(key.is_admin and key.digest != self._own for key, _ in self._keys.values())

    def reload(self) -> int:
        """Reads the file again, and returns the number of keys; a key whose limits are the same keeps what is left of them. Raises
        ConfigError and keeps the old ones where the file is wrong."""
        found = [] if self._file is None else read_keys(self._file)
        if self._own is not None and all(key.digest != self._own for key in found):
            found.append(Key(self._own, is_admin=True))
        owned = adapters_of_tenants(found)
        self._keys = {key.digest: (key, self._caller(key, None if key.is_admin else owned[key.tenant])) for key in found}
        return len(self._keys)

    def find(self, key: str) -> Caller | None:
        """The holder of a key; None for a key that is none of these. The time of a look-up by digest tells nothing: nobody can choose
        texts by the first bytes of their SHA-256 and learn those of another from it."""
        found = self._keys.get(hashlib.sha256(key.encode("latin-1")).digest())
        return None if found is None else found[1]

    def _caller(self, key: Key, adapters: frozenset[str] | None) -> Caller:
        old, caller = self._keys.get(key.digest, (None, None))
        quota = caller.quota if caller is not None and old is not None and old.rates == key.rates else Quota.of(key.rates)
        owner = hashlib.sha256(b"owner" + key.digest).digest()
        return Caller(key.tenant, key.weight, key.is_admin, quota, owner, key.is_sheddable, key.brown_out_tokens, key.targets, adapters)


def adapters_of_tenants(keys: Sequence[Key]) -> dict[str, frozenset[str] | None]:
    """Adapters that the lines of each tenant name; None, all: with `*`, and for everybody where no line names any."""
    named: dict[str, frozenset[str]] = {}
    for key in keys:
        named[key.tenant] = named.get(key.tenant, frozenset()) | key.adapters
    are_owned = any(named.values())
    return {tenant: names if are_owned and "*" not in names else None for tenant, names in named.items()}


def read_keys(path: str) -> list[Key]:
    """The keys of a file. Raises ConfigError, which never has a part of a key."""
    check_private(path, FLAG)
    found: dict[str, Key] = {}
    weights: dict[str, int] = {}
    digests: set[bytes] = set()
    for number, line in enumerate(read_bounded(path, FLAG, MAX_FILE_BYTES).splitlines(), 1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        where = f"{FLAG} {path!r:.200}, line {number}:"
        name = words[0] if len(words) > 1 else f"line {number}"
        if len(words) > 1 and NAME.fullmatch(name) is None:
            raise ConfigError(f"{where} write KEY, or NAME KEY and options, with a name of at most 64 letters, digits, and _ . -")
        key = _parse_options(_key_digest(words[min(1, len(words) - 1)], where), words[2:], where)
        if name in found or key.digest in digests:
            raise ConfigError(f"{where} this name or key stands in a line above; remove one")
        if key.weight and weights.setdefault(key.tenant, key.weight) != key.weight:
            raise ConfigError(f"{where} the tenant has the weight {weights[key.tenant]} in a line above, here {key.weight}; write it once")
        found[name] = key
        digests.add(key.digest)
    if not found:
        raise ConfigError(f"{FLAG} {path!r:.200} has 0 keys; write one per line")
    tenants = len({key.tenant for key in found.values()})
    if len(found) > MAX_KEYS or tenants > MAX_TENANTS:
        message = f"has {len(found)} keys of {tenants} tenants; at most {MAX_KEYS} of {MAX_TENANTS} are possible"
        raise ConfigError(f"{FLAG} {path!r:.200} {message}")
    return [replace(key, weight=weights.get(key.tenant, 1)) for key in found.values()]


def _key_digest(word: str, where: str) -> bytes:
    if word.startswith("sha256:"):
        hashed = HASHED.fullmatch(word)
        if hashed is None:
            raise ConfigError(f"{where} sha256: is followed by the 64 hex digits of a key's SHA-256 (printf %s KEY | sha256sum)")
        return bytes.fromhex(hashed[1])
    if not _can_be_sent(word):
        raise ConfigError(f"{where} a key must be printable ASCII")
    return _digest(word)


def _parse_options(digest: bytes, words: list[str], where: str) -> Key:
    options: dict[str, str] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or name in options or name not in OPTIONS:
            raise ConfigError(f"{where} write KEY, or NAME KEY and options as NAME=VALUE, each once: {', '.join(OPTIONS)}")
        options[name] = value
    tenant, scope = options.pop("tenant", ""), options.pop("scope", "client")
    if tenant and NAME.fullmatch(tenant) is None:
        raise ConfigError(f"{where} a tenant is at most 64 letters, digits, and _ . -")
    if scope not in SCOPES:
        raise ConfigError(f"{where} scope is one of {', '.join(SCOPES)}")
    weight = _number("weight", options.pop("weight"), MAX_WEIGHT, where) if "weight" in options else 0
    sheddable = options.pop("sheddable", "no")
    if sheddable not in ("yes", "no"):
        raise ConfigError(f"{where} sheddable is yes or no")
    tokens = options.pop("brown_out_tokens", None)
    limit = None if tokens is None else _number("brown_out_tokens", tokens, MAX_RATE, where)
    targets = Targets(**{name: _number(name, options.pop(name), MAX_MS, where) for name in NAMES if name in options})
    adapters = frozenset(options.pop("adapters").split(",")) if "adapters" in options else frozenset[str]()
    if len(adapters) > MAX_ADAPTERS or not all(ADAPTER.fullmatch(name) for name in adapters):
        raise ConfigError(f"{where} adapters is *, or up to {MAX_ADAPTERS} names with commas between them")
    rates = tuple((name, _number(name, value, MAX_RATE, where)) for name, value in sorted(options.items()))
    return Key(digest, tenant, weight, scope == "admin", rates, sheddable == "yes", limit, targets, adapters)


def _number(name: str, value: str, most: int, where: str) -> int:
    if not value.isascii() or not value.isdecimal() or not 1 <= int(value[:20]) <= most:
        raise ConfigError(f"{where} {name} is a whole number from 1 to {most:,}")
    return int(value)


def _can_be_sent(key: str) -> bool:
    return bool(key) and key.isascii() and key.isprintable() and key.strip() == key


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode()).digest()
