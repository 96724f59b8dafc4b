"""Work beside steps rests while these compute, and only then."""

import hashlib
import threading
import time

from ridgeline.compute.adapters.rests import PIECE_SECONDS, SHARE, Rests


def worked(pieces: int) -> tuple[float, float]:
    """Processor seconds of so many pieces of work on this thread, and the seconds of their rests."""
    rested: list[float] = []
    rest, own = Rests(rested.append), time.thread_time()
    for _ in range(pieces):
        end = time.thread_time() + 1.5 * PIECE_SECONDS
        while time.thread_time() < end:
            pass
        rest()
    return time.thread_time() - own, sum(rested)


def test_it_rests_beside_threads_that_compute() -> None:
    stop, text = threading.Event(), bytes(1 << 26)

    def compute() -> None:
        while not stop.is_set():
            hashlib.sha256(text)  # without the interpreter's lock

    other = threading.Thread(target=compute)
    other.start()
    try:
        own, rested = worked(40)
    finally:
        stop.set()
        other.join()
    assert rested > 0.2 * own * (1 / SHARE - 1)


def test_it_works_on_in_a_process_that_is_idle() -> None:
    own, rested = worked(40)
    assert own >= 40 * PIECE_SECONDS and rested < own


def test_short_pieces_are_taken_together() -> None:
    rested: list[float] = []
    rest = Rests(rested.append)
    for _ in range(10):
        rest()
    assert not rested
