"""Which parts of a step are replayed as graphs, and which are launched one by one.

A step of single tokens is one graph, sampling included. Of a small mixed step everything between two attentions is a graph, as it depends
on the number of tokens alone; attention, the head and sampling are launched. A large mixed step is launched op by op: it computes for
longer than that takes. Graphs are captured while starting, over addresses that never change; a step whose bucket has none is launched.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from ridgeline.compute.cuda.buckets import Bucket
from ridgeline.compute.cuda.device import Graph
from ridgeline.compute.cuda.plan import Call

Capture = Callable[[Callable[[], None], Any], Graph]
"""(what launches, memory pool) → the graph of it."""


def run_all(calls: Sequence[Call]) -> None:
    """Launches calls one by one."""
    for call in calls:
        call.run()


def segments(calls: Sequence[Call]) -> Iterator[tuple[list[Call], Call | None]]:
    """Calls between attentions, each with the attention behind it; None behind the last."""
    part: list[Call] = []
    for call in calls:
        if call.attention:
            yield part, call
            part = []
        else:
            part.append(call)
    yield part, None


class Graphs:
    """Graphs of single steps by bucket, and of segments by number of tokens. `body` is what comes before the selection, `tail` the rest.

    capture  makes a graph; None where there are none     pool  memory that all graphs share: one of them runs at a time
    """

    def __init__(self, capture: Capture | None, pool: Any = None) -> None:
        self.capture, self._pool = capture, pool
        self._whole: dict[Bucket, Graph] = {}
        self._pieces: dict[int, list[Graph]] = {}

    def __len__(self) -> int:
        return len(self._whole) + sum(len(pieces) for pieces in self._pieces.values())

    def clear(self) -> None:
        """Drops all graphs: the addresses that they know are going."""
        self._whole.clear()
        self._pieces.clear()

    def add_single(self, bucket: Bucket, body: Sequence[Call], tail: Sequence[Call]) -> None:
        """Captures a whole step. Everything is launched once before: kernels are compiled and libraries prepared outside of captures."""
        calls = [*body, *tail]
        run_all(calls)
        self._whole[bucket] = self._captured(calls)

    def add_segments(self, tokens: int, body: Sequence[Call], tail: Sequence[Call]) -> None:
        """Captures what stands between attentions in a mixed step of so many tokens."""
        run_all([*body, *tail])
        self._pieces[tokens] = [self._captured(part) for part, _ in segments(body)]

    def _captured(self, calls: Sequence[Call]) -> Graph:
        assert self.capture is not None, "there are no graphs on this device"
        return self.capture(lambda: run_all(calls), self._pool)

    def run(self, bucket: Bucket, body: Sequence[Call], tail: Sequence[Call]) -> None:
        """Starts a step: replays what there are graphs of, launches the rest."""
        whole = self._whole.get(bucket)
        if whole is not None:
            whole.replay()
            return
        pieces = None if bucket.single else self._pieces.get(bucket.tokens)
        if pieces is None:
            run_all(body)
        else:
            attentions = (call for call in body if call.attention)
            for number, piece in enumerate(pieces):
                if number:
                    next(attentions).run()
                piece.replay()
        run_all(tail)
