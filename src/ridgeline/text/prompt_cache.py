"""Cache of prompts' ids: a growing conversation is not tokenised again from its first word each time.

Owns the cache. It splits texts only before names of control tokens, where every tokenizer starts afresh, so that the ids are those of the
whole text. No tenant's prompts are used for another's: not even the time that a prompt takes tells of them.
"""

import re
from array import array
from collections import OrderedDict
from functools import cached_property
from hashlib import blake2b
from threading import Lock
from typing import Final, Protocol

from ridgeline.text.tokenizer import MASK, Tokenizer, longest_match_pattern

MIN_CHARACTERS: Final = 2_048
"""Shorter texts are tokenised faster than looked up."""
MAX_IDS: Final = 4 << 20
"""Ids kept in all, 16 MiB; the least recently used are evicted first."""


class Encoder(Protocol):
    """Text to ids; a `Tokenizer` is one."""

    def encode(self, text: str, add_bos: bool, special: bool = False) -> list[int]:
        """See `Tokenizer.encode`."""
        ...


class PromptCache:
    """Ids of texts by tenant; shared by threads."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self._entries: OrderedDict[bytes, array[int]] = OrderedDict()
        self._size = 0
        self._lock = Lock()

    @cached_property
    def _names(self) -> re.Pattern[str] | None:
        """Pattern of names before which a text may be split; made when the first long text comes."""
        names = split_names(self.tokenizer)
        return re.compile(longest_match_pattern(names)) if names else None

    def encoder(self, domain: bytes) -> Encoder:
        """An encoder that reuses what this domain has encoded before."""
        return _DomainEncoder(self, domain)

    def encode(self, text: str, add_bos: bool, domain: bytes) -> list[int]:
        """The ids that `tokenizer.encode(text, add_bos, special=True)` gives."""
        splits = self._splits(text)
        if not splits:
            return self.tokenizer.encode(text, add_bos, special=True)
        keys = _keys(text, splits, domain + bytes((add_bos,)))
        ids, length = self._longest_prefix(keys, splits)
        last = splits[-1]
        ids += self._encode_rest(text[length:last]) if length else self.tokenizer.encode(text[:last], add_bos, special=True)
        self._insert(keys[-1], ids)
        return ids + self._encode_rest(text[last:])

    def _encode_rest(self, text: str) -> list[int]:
        """Ids of text that begins with a control token's name and is not the start of its prompt."""
        return self.tokenizer.encode(text, False, special=True) if text else []

    def _splits(self, text: str) -> list[int]:
        """Positions of names, but for position 0. A masked text is encoded by other rules and never split."""
        if len(text) < MIN_CHARACTERS or MASK in text or self._names is None:
            return []
        return [found.start() for found in self._names.finditer(text) if found.start()]

    def _longest_prefix(self, keys: list[bytes], splits: list[int]) -> tuple[list[int], int]:
        """Ids and characters of the longest prefix that is cached; none and 0 where none is."""
        with self._lock:
            for key, split in zip(reversed(keys), reversed(splits), strict=True):
                if key in self._entries:
                    self._entries.move_to_end(key)
                    return self._entries[key].tolist(), split
        return [], 0

    def _insert(self, key: bytes, ids: list[int]) -> None:
        with self._lock:
            if key not in self._entries and len(ids) <= MAX_IDS:
                self._entries[key] = array("i", ids)
                self._size += len(ids)
                while self._size > MAX_IDS:
                    self._size -= len(self._entries.popitem(last=False)[1])


class _DomainEncoder:
    """An `Encoder` over a cache, for one domain."""

    def __init__(self, cache: PromptCache, domain: bytes) -> None:
        self._cache = cache
        self._domain = domain

    def encode(self, text: str, add_bos: bool, special: bool = False) -> list[int]:
        """See `Tokenizer.encode`."""
        return self._cache.encode(text, add_bos, self._domain) if special else self._cache.tokenizer.encode(text, add_bos)


def split_names(tokenizer: Tokenizer) -> list[str]:
    """Names of a tokenizer's control tokens before which a text may be split."""
    names = (tokenizer.piece(token).decode("utf-8", "replace") for token in tokenizer.control)
    return [name for name in names if len(name) > 2 and _is_always_split(tokenizer, name)]


def _is_always_split(tokenizer: Tokenizer, name: str) -> bool:
    """True if a name is found inside words too, and leaves the space before it unchanged."""
    token = tokenizer.id_of(name)
    spaced = tokenizer.encode(f" {name}", False, special=True)
    return token in tokenizer.encode(f"x{name}x", False, special=True) and len(spaced) > 1 and spaced[-1] == token


def _keys(text: str, splits: list[int], domain: bytes) -> list[bytes]:
    """A digest of the text up to each cut. The domain's length stands first, so that no text can reach into another's keys."""
    digest = blake2b(len(domain).to_bytes(8, "big") + domain, digest_size=16)
    keys, start = [], 0
    for split in splits:
        digest.update(text[start:split].encode("utf-8", "surrogatepass"))
        keys.append(digest.digest())
        start = split
    return keys
