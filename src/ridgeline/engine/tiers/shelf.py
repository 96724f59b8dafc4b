"""The shelf of an engine that others ask: sealed values in host memory, bounded, where what is worth least makes room."""

from collections.abc import Sequence
from threading import Lock

from ridgeline.engine.tiers.worth import NOWHERE, Place, Worth


class Shelf:
    """Implements `Tier`. Used by the threads of its own engine and by the one that answers others."""

    name = "shelf"
    takes = True
    refused = 0

    def __init__(self, value_bytes: int, most_bytes: int, attention_tokens: float = 0.0) -> None:
        """`attention_tokens`: see `Worth`. Raises ValueError where not one value fits."""
        self.capacity = most_bytes // value_bytes
        if not self.capacity:
            raise ValueError(f"{most_bytes} bytes hold no block of {value_bytes}")
        self._values: dict[bytes, bytes] = {}
        self._worth = Worth(attention_tokens)
        self._lock = Lock()

    def might_have(self, name: bytes) -> bool:
        return name in self._values

    def has(self, names: Sequence[bytes]) -> list[bool]:
        return [name in self._values for name in names]

    def get(self, names: Sequence[bytes], seconds: float, value_bytes: int) -> list[bytes | None]:
        with self._lock:
            found = [self._values.get(name) for name in names]
            for name, value in zip(names, found, strict=True):
                if value is not None:
                    self._worth.use(name)
        return found

    def put(self, name: bytes, value: bytes, place: Place = NOWHERE) -> None:
        with self._lock:
            if name in self._values:
                return
            if len(self._values) >= self.capacity:
                del self._values[self._worth.evict()]
            self._values[name] = value
            self._worth.enter(name, place)

    def forget(self, name: bytes) -> None:
        with self._lock:
            if self._values.pop(name, None) is not None:
                self._worth.forget(name)

    def close(self) -> None:
        with self._lock:
            self._values.clear()
