"""Copies of GGUF models with one fault each, made by changing bytes in place: whatever is not changed is the real model."""

import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from ridgeline.facts.files.formats import FORMATS
from ridgeline.facts.files.gguf import Header, read_header

CODES = {int: "<I", float: "<f"}


class Damaged:
    """A copy that is being damaged. `header_alone` leaves the weights out: they are a hole of zeros."""

    def __init__(self, source: Path, target: Path, *, header_alone: bool) -> None:
        self.header: Header = read_header(source)
        self.path = target
        first = min(tensor.offset for tensor in self.header.tensors.values())
        if header_alone:
            with source.open("rb") as whole, target.open("wb") as copy:
                copy.write(whole.read(first))
                copy.truncate(source.stat().st_size)
        else:
            shutil.copyfile(source, target)
        self.head = np.memmap(target, np.uint8, mode="r+", shape=(first,))
        self._all = np.memmap(target, np.uint8, mode="r+")

    def tensor(self, name: str) -> Any:
        """Its bytes, to be changed: uint8 [blocks, bytes of a block]."""
        found = self.header.tensors[name]
        return self._all[found.offset : found.offset + found.bytes].reshape(-1, FORMATS[found.kind].block_bytes)

    def number(self, key: str, value: int | float) -> None:
        """Changes the number at a key."""
        code = CODES[type(value)]
        at = self._after(key) + 4
        self.head[at : at + 4] = np.frombuffer(struct.pack(code, value), np.uint8)

    def element(self, key: str, index: int, value: int) -> None:
        """Changes an element of the array of 32-bit integers at a key."""
        at = self._after(key) + 4 + 4 + 8 + 4 * index
        self.head[at : at + 4] = np.frombuffer(struct.pack("<I", value), np.uint8)

    def text(self, old: str, new: str) -> None:
        """Changes the first occurrence of a text in the header; of a longer one the rest becomes spaces."""
        raw = old.encode()
        at = self.head.tobytes().index(raw)
        self.head[at : at + len(raw)] = np.frombuffer(new.encode().ljust(len(raw)), np.uint8)

    def template(self, text: str) -> None:
        """Another chat template, not longer than the model's own; a comment takes the place that is left."""
        old = self.header.text("tokenizer.chat_template")
        left = len(old.encode()) - len(text.encode()) - len("{##}")
        self.text(old, text + f"{{#{' ' * left}#}}")

    def rename(self, key: str) -> None:
        """Takes a key away: nobody knows its new name."""
        self.text(key, key[:-1] + "_")

    def flag(self, key: str, value: bool) -> None:
        """Changes the boolean at a key."""
        self.head[self._after(key) + 4] = value

    def _after(self, key: str) -> int:
        raw = struct.pack("<Q", len(key)) + key.encode()
        return self.head.tobytes().index(raw) + len(raw)


Damage = Callable[[Damaged], None]
