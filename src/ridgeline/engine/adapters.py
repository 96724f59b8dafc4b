"""Adapters by the names that callers use: registered by an operator, checked against the model by their headers alone.

Owns names, digests and ranks. The engine reads the matrices when the first request names an adapter.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final

from ridgeline.config.env import ModelStores
from ridgeline.core.commands import PinAdapter
from ridgeline.core.params import Adapter
from ridgeline.errors import ConfigError, ModelFormatError, ModelNotFoundError, RequestError
from ridgeline.facts.headers.adapter import digest_of, file_contents, read_adapter
from ridgeline.facts.headers.read import read_model_facts
from ridgeline.facts.hub.source import resolve_adapter
from ridgeline.facts.model import ModelFacts

MAX_ADAPTERS: Final = 4_096
NAME: Final = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,63}")


@dataclass(frozen=True, slots=True)
class LoRARequest:
    """vLLM's way to name an adapter beside a prompt: it is registered when it is first seen, and read again where its id, at least 1, is
    another than before: what has been saved to the same path since is taken then."""

    lora_name: str
    lora_int_id: int
    lora_path: str


@dataclass(frozen=True, slots=True)
class KnownAdapter:
    """An adapter, its largest rank, and its bytes in memory at most. `number`: the id that vLLM's request gave it; 0: none.
    `is_pinned`: it keeps its slot once it has one. `asked`: the path or the name that it was registered with."""

    adapter: Adapter
    rank: int
    bytes: int
    number: int = 0
    is_pinned: bool = False
    asked: str = ""


class AdapterLibrary:
    """Adapters of one model.

    path      of the model's files, whose facts are read when the first adapter is added; None: it has none
    max_rank  that is taken; 0: no adapters are
    stores    where names of the hub are looked for
    """

    def __init__(self, path: Path | None, max_rank: int, stores: ModelStores) -> None:
        self._path, self._max_rank, self._stores = path, max_rank, stores
        self._known: dict[str, KnownAdapter] = {}
        self._told: set[bytes] = set()

    @property
    def takes_any(self) -> bool:
        """True if adapters are taken."""
        return self._max_rank > 0

    @property
    def known(self) -> tuple[KnownAdapter, ...]:
        """All of them, in the order of registration."""
        return tuple(self._known.values())

    @property
    def pins(self) -> set[bytes]:
        """Digests of those that keep their slots."""
        return {each.adapter.digest for each in self._known.values() if each.is_pinned}

    def changed_pins(self) -> list[PinAdapter]:
        """Changes that an engine is to be told: those that keep their slots since the last call, and those that no longer do."""
        before, self._told = self._told, self.pins
        return [PinAdapter(digest, digest in self._told) for digest in sorted(before ^ self._told)]

    @property
    def only(self) -> str | None:
        """The name of the only adapter, which a command line means; None where there are several, or none."""
        return next(iter(self._known)) if len(self._known) == 1 else None

    def find(self, name: str) -> KnownAdapter | None:
        """The adapter of a name."""
        return self._known.get(name)

    def add(self, name: str, path: str | Path, *, is_pinned: bool = False, number: int = 0) -> KnownAdapter:
        """Registers an adapter, in the place of one that has the name. `path`: a text may also be a name of the hub.

        Raises ConfigError for a name that cannot be one, ModelFormatError and ModelNotFoundError for the adapter.
        """
        if not NAME.fullmatch(name):
            raise ConfigError(f"an adapter cannot be named {name!r:.80}; use up to 64 letters, digits, points, hyphens and underscores")
        if len(self._known) >= MAX_ADAPTERS and name not in self._known:
            raise ConfigError(f"{MAX_ADAPTERS} adapters are known, which is the most; unload one")
        place = resolve_adapter(path, self._stores) if isinstance(path, str) else path
        found = read_adapter(place, self._facts, self._max_rank)
        adapter = Adapter(name, digest_of(file_contents(found)), str(place.resolve()))
        self._known[name] = known = KnownAdapter(adapter, found.rank, found.bytes, number, is_pinned, str(path))
        return known

    def add_all(self, named: Sequence[str]) -> None:
        """Registers adapters given as NAME=PATH, or as a path whose last part is the name; names of the hub count as paths. Raises
        ConfigError."""
        for each in named:
            name, equals, path = each.partition("=")
            try:
                self.add(*(name, path) if equals else (Path(each).stem, each))
            except (ConfigError, ModelFormatError, ModelNotFoundError) as error:
                raise ConfigError(f"--lora {each!r:.200}: {error}", fix={"--lora": None}) from None

    def remove(self, name: str) -> bool:
        """Forgets a name; requests that are under way go on. False where there is none."""
        return self._known.pop(name, None) is not None

    def named(self, asked: str | LoRARequest) -> Adapter:
        """The adapter that a caller of `LLM` names. Raises RequestError."""
        if not self._max_rank:
            raise RequestError("this LLM takes no adapters; make it with enable_lora=True", param="lora")
        if isinstance(asked, str):
            found = self.find(asked)
            if found is None:
                names = ", ".join(self._known) or "none"
                raise RequestError(f"there is no adapter {asked!r:.80}; known: {names:.400}", param="lora")
            return found.adapter
        if asked.lora_int_id < 1:
            raise RequestError(f"lora_int_id is {asked.lora_int_id}; it must be at least 1", param="lora_request")
        found = self.find(asked.lora_name)
        if found is None or (found.number, found.asked) != (asked.lora_int_id, str(asked.lora_path)):
            try:
                found = self.add(asked.lora_name, asked.lora_path, number=asked.lora_int_id)
            except (ConfigError, ModelFormatError, ModelNotFoundError) as error:
                raise RequestError(f"the adapter {asked.lora_name!r:.80} cannot be used: {error}", param="lora_request") from None
        return found.adapter

    @cached_property
    def _facts(self) -> ModelFacts:
        if self._path is None:
            raise ConfigError("the model has no files that an adapter could belong to")
        return read_model_facts(self._path)
