"""Ids of prompts that begin like an earlier one: a growing conversation is not tokenised anew from its first word each time.

Owns the cache. It cuts only before names of control tokens, where every tokenizer starts afresh, so that the ids are the whole text's.
What one tenant's prompts left is never used for another's: even the time that a prompt takes says nothing about them.
"""

import re
from array import array
from collections import OrderedDict
from functools import cached_property
from hashlib import blake2b
from threading import Lock

from ridgeline.text.tokenizer import MASK, Tokenizer, longest_of

LEAST_CHARACTERS = 2_048
"""Shorter texts are tokenised faster than looked up."""
MOST_IDS = 4 << 20
"""Ids kept in all, 16 MiB; those unused for longest go first."""


class PromptCache:
    """Shared by threads. `view` gives the tokenizer that one tenant's requests use."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self._kept: OrderedDict[bytes, array[int]] = OrderedDict()
        self._size = 0
        self._lock = Lock()
        self.hits = 0
        """Texts of which a beginning was there."""

    @cached_property
    def _names(self) -> re.Pattern[str] | None:
        """Names before which a text may be cut; looked for when the first long text comes."""
        names = cutting_names(self.tokenizer)
        return re.compile(longest_of(names)) if names else None

    def view(self, domain: bytes) -> "View":
        """A `Tokenizer` whose encoding reuses what this domain has encoded before."""
        return View(self, domain)

    def encode(self, text: str, add_bos: bool, domain: bytes) -> list[int]:
        """`tokenizer.encode(text, add_bos, special=True)`."""
        cuts = self._cuts(text)
        if not cuts:
            return self.tokenizer.encode(text, add_bos, special=True)
        keys = _keys(text, cuts, domain + bytes((add_bos,)))
        known, at = self._longest(keys, cuts)
        known += self._middle(text[at : cuts[-1]]) if at else self.tokenizer.encode(text[: cuts[-1]], add_bos, special=True)
        self._keep(keys[-1], known)
        return known + self._middle(text[cuts[-1] :])

    def _middle(self, text: str) -> list[int]:
        """Ids of text that begins with a control token's name and is not the beginning of its prompt."""
        return self.tokenizer.encode(text, False, special=True) if text else []

    def _cuts(self, text: str) -> list[int]:
        """Places where names stand, but the very beginning. A masked text is read by other rules and never cut."""
        if len(text) < LEAST_CHARACTERS or MASK in text or self._names is None:
            return []
        return [found.start() for found in self._names.finditer(text) if found.start()]

    def _longest(self, keys: list[bytes], cuts: list[int]) -> tuple[list[int], int]:
        with self._lock:
            for key, cut in zip(reversed(keys), reversed(cuts), strict=True):
                if key in self._kept:
                    self._kept.move_to_end(key)
                    self.hits += 1
                    return self._kept[key].tolist(), cut
        return [], 0

    def _keep(self, key: bytes, ids: list[int]) -> None:
        with self._lock:
            if key not in self._kept and len(ids) <= MOST_IDS:
                self._kept[key] = array("i", ids)
                self._size += len(ids)
                while self._size > MOST_IDS:
                    self._size -= len(self._kept.popitem(last=False)[1])


class View:
    """A `Tokenizer` (see `text.tokenizer`) over a cache, for one domain."""

    def __init__(self, cache: PromptCache, domain: bytes) -> None:
        self._cache = cache
        self._domain = domain
        self._whole = cache.tokenizer
        self.bos = self._whole.bos
        self.eos_ids = self._whole.eos_ids
        self.vocab_size = self._whole.vocab_size
        self.id_of = self._whole.id_of
        self.piece = self._whole.piece
        self.is_control = self._whole.is_control
        self.decode = self._whole.decode

    def encode(self, text: str, add_bos: bool, special: bool = False) -> list[int]:
        """See `Tokenizer.encode`."""
        return self._cache.encode(text, add_bos, self._domain) if special else self._whole.encode(text, add_bos)


def cutting_names(tokenizer: Tokenizer) -> list[str]:
    """Names of a tokenizer's control tokens before which a text may be cut."""
    tokens = filter(tokenizer.is_control, range(tokenizer.vocab_size))
    names = (tokenizer.piece(token).decode("utf-8", "replace") for token in tokens)
    return [name for name in names if len(name) > 2 and _stands_alone(tokenizer, name)]


def _stands_alone(tokenizer: Tokenizer, name: str) -> bool:
    """True if a name is found inside words too, and leaves the space before it alone."""
    token = tokenizer.id_of(name)
    spaced = tokenizer.encode(f" {name}", False, special=True)
    return token in tokenizer.encode(f"x{name}x", False, special=True) and len(spaced) > 1 and spaced[-1] == token


def _keys(text: str, cuts: list[int], domain: bytes) -> list[bytes]:
    """A digest of the text up to each cut. The domain's length stands first, so that no text can reach into another's keys."""
    digest = blake2b(len(domain).to_bytes(8, "big") + domain, digest_size=16)
    keys, begin = [], 0
    for cut in cuts:
        digest.update(text[begin:cut].encode("utf-8", "surrogatepass"))
        keys.append(digest.digest())
        begin = cut
    return keys
