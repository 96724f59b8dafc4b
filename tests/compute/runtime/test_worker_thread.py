"""The thread that computes steps: order, errors, its end."""

import gc
import threading
from threading import Event

import pytest

from ridgeline.compute.runtime.queue import WorkerThread


class Halver:
    """Halves even numbers; waits before each until it may go on."""

    def __init__(self) -> None:
        self.go, self.begun, self.seen = Event(), Event(), list[int]()
        self.worker: WorkerThread[int, int] = WorkerThread("halver", self.halve)

    def halve(self, number: int) -> int:
        self.begun.set()
        assert self.go.wait(10)
        self.seen.append(number)
        if number % 2:
            raise ValueError(f"{number} is odd")
        return number // 2


def threads() -> int:
    return sum(thread.name == "halver" for thread in threading.enumerate())


def test_results_come_in_the_order_of_the_work_and_an_error_takes_only_its_own_place() -> None:
    halver = Halver()
    halver.go.set()
    for number in (8, 3, 6):
        halver.worker.put(number)
    assert halver.worker.take() == 4
    with pytest.raises(ValueError, match="3 is odd"):
        halver.worker.take()
    assert halver.worker.take() == 3
    halver.worker.close()


def test_close_waits_for_what_has_begun_and_drops_the_rest() -> None:
    halver = Halver()
    halver.worker.put(2)
    halver.worker.put(4)
    assert halver.begun.wait(10)
    threading.Timer(0.05, halver.go.set).start()
    halver.worker.close()
    halver.worker.close()
    assert halver.seen == [2] and not threads()


def test_a_forgotten_owner_is_freed_and_its_thread_ends() -> None:
    halver = Halver()
    thread = halver.worker._thread
    del halver
    gc.collect()
    thread.join(10)
    assert not thread.is_alive()
