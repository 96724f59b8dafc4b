"""Keys of a config.json, by the names and with the defaults of its architecture, and the bounds of what headers may say."""

from collections.abc import Mapping
from typing import Any, Final

from ridgeline.errors import ModelFormatError
from ridgeline.facts.files.values import bounded_integer, bounded_number
from ridgeline.models.declare import Architecture

MAX_LAYERS: Final = 1_024
MAX_WIDTH: Final = 1 << 20
MAX_CONTEXT: Final = 1 << 27
MAX_EXPERTS: Final = 1_024
"""Experts that the native kernels can choose from (csrc/runtime/experts.h)."""
MAX_VOCAB: Final = 4 << 20


class Fields:
    """The keys of one config. Every number is bounded where it is read."""

    def __init__(self, values: Mapping[str, Any], architecture: Architecture) -> None:
        self.values = {**architecture.defaults, **values}
        self.architecture = architecture

    def _name(self, key: str) -> str:
        return self.architecture.keys.get(key, key)

    def integer(self, key: str, low: int, high: int, default: int | None = None) -> int:
        """The integer at `key`; `default` where it is absent or null, an error where there is none."""
        return bounded_integer(self.values.get(self._name(key)), f"config.json: {self._name(key)}", low, high, default)

    def number(self, key: str, low: float, high: float, default: float | None = None) -> float:
        """The number at `key`, as `integer`."""
        return bounded_number(self.values.get(self._name(key)), f"config.json: {self._name(key)}", low, high, default)

    def own_number(self, key: str, low: float, high: float, default: float) -> float:
        """The number at a key that only some architectures have; `default` for the others, whatever the file says, and for null."""
        return self.number(key, low, high, default) if key in self.architecture.defaults else default

    def flag(self, key: str) -> bool:
        """The boolean at `key`; absent or null is false."""
        value = self.values.get(self._name(key))
        if value is not None and not isinstance(value, bool):
            raise ModelFormatError(f"config.json: {key} is {value!r:.40}, true or false was expected")
        return bool(value)

    def is_absent(self, key: str) -> bool:
        """True where `key` has no value."""
        return self.values.get(self._name(key)) is None
