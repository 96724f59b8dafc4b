"""Cores that several engines of one machine share: each has a seat, a byte of shared memory that is 1 while the engine has work.

An engine that works alone has all threads of its steps; of several each has its part, so that their threads never wait for each other's
cores. Who rests has none. Nobody waits for anybody: a seat is only looked at, in front of every step. The memory has no name, and a process
has it by inheritance alone.
"""

import mmap
import os
from typing import Final

SEATS: Final = 64
"""Seats of one machine; each is one byte."""
_WORKS, _RESTS = b"\1", b"\0"


class Seat:
    """One engine's seat. descriptor: of the shared memory; number: which byte of it is this engine's."""

    def __init__(self, descriptor: int, number: int) -> None:
        assert 0 <= number < SEATS, "there are so many seats"
        self.descriptor = descriptor
        self.number = number
        self._seats = mmap.mmap(descriptor, SEATS)

    def take(self, *, works: bool) -> None:
        """Says whether the engine has work. The end of an engine is its parent's to tell."""
        self._seats[self.number : self.number + 1] = _WORKS if works else _RESTS

    def threads(self, most: int) -> int:
        """Number of threads of `most` that a step of this engine has now: its part of them beside others that have work, and at least one.
        What does not divide goes to the first seats."""
        seats = self._seats[:]
        before, behind = seats[: self.number].count(_WORKS), seats[self.number + 1 :].count(_WORKS)
        workers = 1 + before + behind
        return max(1, most // workers + (before < most % workers))


class Seats:
    """The seats of the engines that a server starts. Their memory ends with the last process that has it."""

    def __init__(self) -> None:
        self._descriptor = os.memfd_create("ridgeline-seats") if hasattr(os, "memfd_create") else _unnamed_file()
        os.truncate(self._descriptor, SEATS)
        self._free = set(range(SEATS))

    def sit(self) -> Seat | None:
        """A free seat; None where all are taken: that engine uses all of its threads."""
        if not self._free:
            return None
        number = min(self._free)
        self._free.remove(number)
        return Seat(self._descriptor, number)

    def leave(self, seat: Seat) -> None:
        """The seat of an engine that has ended is free again."""
        seat.take(works=False)
        self._free.add(seat.number)

    def close(self) -> None:
        """No engine is started any more."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def _unnamed_file() -> int:
    """A file of the temporary folder that has no name, for systems without memory files."""
    import tempfile  # needed where there are no memory files alone

    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())
