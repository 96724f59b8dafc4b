"""One thread that does one piece of work after the other, for one other thread that waits for what comes of them.

Owns the thread, and nobody who uses it: an owner that is forgotten unclosed is freed, and its thread ends. An executor of
`concurrent.futures` does the same in several times as much Python, which here runs between two steps.
"""

from collections.abc import Callable
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Generic, TypeVar
from weakref import WeakMethod, finalize

Work = TypeVar("Work")
Done = TypeVar("Done")

Waiting = SimpleQueue[Work | None]
Finished = SimpleQueue[tuple[Done | None, BaseException | None]]


class Line(Generic[Work, Done]):
    """Calls the bound method `do` for what is put in, in its order; `take` gives what came of it, in the same order."""

    def __init__(self, name: str, do: Callable[[Work], Done]) -> None:
        self._waiting: Waiting[Work] = SimpleQueue()
        self._finished: Finished[Done] = SimpleQueue()
        self._thread = Thread(target=_serve, args=(self._waiting, self._finished, WeakMethod(do)), name=name, daemon=True)
        self._thread.start()
        self._end = finalize(self, self._waiting.put, None)

    def put(self, work: Work) -> None:
        """Returns at once."""
        self._waiting.put(work)

    def take(self) -> Done:
        """Waits for the oldest work that was put in and not taken; raises what doing it raised."""
        done, error = self._finished.get()
        if error is not None:
            raise error
        return done  # type: ignore[return-value]

    def close(self) -> None:
        """Drops work that has not begun, and waits for the one that has. Safe to call twice."""
        try:
            while self._end.alive:
                self._waiting.get_nowait()
        except Empty:
            self._end()
        self._thread.join()


def _serve(waiting: Waiting[Work], finished: Finished[Done], do: "WeakMethod[Callable[[Work], Done]]") -> None:
    while (work := waiting.get()) is not None and (call := do()) is not None:
        try:
            finished.put((call(work), None))
        except BaseException as error:
            finished.put((None, error))
        del call, work
