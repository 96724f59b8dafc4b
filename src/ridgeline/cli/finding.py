"""What `ridgeline doctor` says of one thing that it looked at."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing looked at. `fix` is None where nothing is wrong."""

    name: str
    text: str
    fix: str | None = None
