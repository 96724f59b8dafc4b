"""The interface of tiers: values by name, of sizes that the reader knows. They know nothing of blocks, and are trusted with nothing."""

from collections.abc import Sequence
from typing import Protocol

from ridgeline.engine.tiers.worth import NOWHERE, Place


class Tier(Protocol):
    """Keeps values by their names, each of 32 bytes, as long as it likes. Used by two threads, one that reads and one that writes; each
    call ends by itself. What fails is an OSError."""

    name: str
    """Name in metrics and in `explain`."""
    takes: bool
    """False: its values come from elsewhere, and it is given none."""

    @property
    def refused(self) -> int:
        """Calls whose answer was that values there are of another layout: of another model, runner, instruction set, KV type or unit."""
        ...

    def might_have(self, name: bytes) -> bool:
        """False if the value is surely not there. Returns at once: the engine's loop asks."""
        ...

    def has(self, names: Sequence[bytes]) -> list[bool]:
        """True for each value that was there. Raises OSError."""
        ...

    def get(self, names: Sequence[bytes], seconds: float, value_bytes: int) -> list[bytes | None]:
        """Returns values, little longer than so many bytes at most, within about so many seconds. Raises OSError."""
        ...

    def put(self, name: bytes, value: bytes, place: Place = NOWHERE) -> None:
        """Keeps a value, in the place of others where it must. `place`: in its prompt. Raises OSError."""
        ...

    def forget(self, name: bytes) -> None:
        """Drops a value, which was not what its name says. Raises OSError."""
        ...

    def close(self) -> None:
        """Frees what it holds. Safe to call twice."""
        ...
