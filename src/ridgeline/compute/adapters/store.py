"""Adapters in host memory: read, checked and packed on a thread of low priority, and forgotten when others need their place.

The engine's loop asks for adapters of requests and hears when they are there; the thread that computes takes them into slots.
"""

import os
import sys
import threading
from collections import OrderedDict
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ridgeline.compute.adapters.rests import Rest, Rests, no_rest
from ridgeline.compute.adapters.slots import AdapterSlots, LoadedAdapter
from ridgeline.compute.load.views import halves_order
from ridgeline.compute.lowering.adapters import pairs_of
from ridgeline.compute.ops.lora import Pair, widened
from ridgeline.core.params import Adapter
from ridgeline.errors import ModelFormatError, RidgelineError
from ridgeline.facts.headers.adapter import LowRank, digest_of, read_adapter
from ridgeline.facts.model import ModelFacts, TensorFacts

LOW_PRIORITY: Final = 19
SWITCH_SECONDS: Final = 0.0005
"""After which a thread gives up the interpreter's lock to one that waits for it, while an adapter is read: steps would wait ten times as
long."""
_TYPES: Final = {"F32": np.dtype("<f4"), "F16": np.dtype("<f2"), "BF16": np.dtype("<u2")}


class AdapterStore:
    """Adapters of a model, at most `most`; implements `engine.executor.Adapters`.

    most_bytes  of the matrices that are held, as far as adapters in use and those that are being read allow
    max_rank  that is taken
    slots     of the runner, whose order of matrices is packed
    """

    def __init__(self, facts: ModelFacts, *, most: int, most_bytes: int, max_rank: int, slots: AdapterSlots) -> None:
        self._facts, self._max_rank, self._slots = facts, max_rank, slots
        self._most, self._most_bytes = most, most_bytes
        self._held: OrderedDict[bytes, LoadedAdapter] = OrderedDict()
        self._asked: OrderedDict[bytes, Adapter] = OrderedDict()
        """Adapters that wait for a place."""
        self._loading: set[bytes] = set()
        self._ready: list[tuple[bytes, str | None]] = []
        self._work: SimpleQueue[Adapter | None] = SimpleQueue()
        self._done: SimpleQueue[tuple[bytes, LoadedAdapter | str]] = SimpleQueue()
        self._signal, self._wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._thread: threading.Thread | None = None
        self._switch_seconds: float | None = None
        """The process's own, where `SWITCH_SECONDS` stands in for it."""

    def load(self, adapter: Adapter) -> None:
        """See `engine.executor.Adapters.load`."""
        if adapter.digest in self._held:
            self._held.move_to_end(adapter.digest)
            self._ready.append((adapter.digest, None))
        elif adapter.digest not in self._loading:
            self._asked[adapter.digest] = adapter

    def take(self) -> list[tuple[bytes, str | None]]:
        """See `engine.executor.Adapters.take`."""
        found, self._ready = self._ready, []
        if not self._loading:
            return found
        with suppress(BlockingIOError):  # the thread writes a byte behind each
            while os.read(self._signal, 1):
                digest, loaded = self._done.get()
                self._loading.discard(digest)
                if isinstance(loaded, str):
                    found.append((digest, loaded))
                else:
                    self._held[digest] = loaded
                    found.append((digest, None))
        if not self._loading:
            self._put_switch_back()
        return found

    def begin(self, in_use: Collection[bytes]) -> None:
        """See `engine.executor.Adapters.begin`."""
        while self._asked and self._make_room(in_use):
            digest, adapter = self._asked.popitem(last=False)
            self._loading.add(digest)
            if self._switch_seconds is None:
                self._switch_seconds = sys.getswitchinterval()
                sys.setswitchinterval(SWITCH_SECONDS)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="ridgeline-adapters", daemon=True)
                self._thread.start()
            self._work.put(adapter)

    @property
    def pending(self) -> bool:
        """See `engine.executor.Adapters.pending`."""
        return bool(self._loading)

    def fileno(self) -> int:
        """See `engine.executor.Adapters.fileno`."""
        return self._signal

    def get(self, digest: bytes) -> LoadedAdapter:
        """An adapter that has been loaded and that an open request names."""
        return self._held[digest]

    def close(self) -> None:
        """Ends the thread. Safe to call twice."""
        if self._signal >= 0:
            self._work.put(None)
            if self._thread is not None:
                self._thread.join()
            os.close(self._signal)
            os.close(self._wake)
            self._signal = -1
        self._put_switch_back()

    def _put_switch_back(self) -> None:
        if self._switch_seconds is not None:
            sys.setswitchinterval(self._switch_seconds)
            self._switch_seconds = None

    def _make_room(self, in_use: Collection[bytes]) -> bool:
        """Forgets those that nobody has used for longest, until there is room for one as large as the largest. False where all are in
        use."""
        while self._held or self._loading:
            sizes = [loaded.nbytes for loaded in self._held.values()]
            reserved = max(sizes, default=0) * (len(self._loading) + 1)
            if len(sizes) + len(self._loading) < self._most and sum(sizes) + reserved <= self._most_bytes:
                return True
            unused = next((digest for digest in self._held if digest not in in_use), None)
            if unused is None:
                return False
            del self._held[unused]
        return True

    def _run(self) -> None:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), LOW_PRIORITY)
        while (adapter := self._work.get()) is not None:
            loaded: LoadedAdapter | str
            try:
                rest = Rests()
                pairs = read_pairs(adapter, self._facts, self._max_rank, rest)
                if strange := pairs.keys() - self._slots.pairs.keys():
                    raise ModelFormatError(f"the runner adds no change to {min(strange).removesuffix('.pairs')}; merge it into the model")
                loaded = self._slots.pack(pairs, rest)
            except Exception as error:  # whatever it is, the requests that wait for the adapter are told, and others load theirs
                cause = str(error) if isinstance(error, (RidgelineError, OSError, ValueError)) else f"{type(error).__name__}: {error}"
                loaded = f"the adapter {adapter.name!r} cannot be loaded: {cause}"
            self._done.put((adapter.digest, loaded))
            os.write(self._wake, b".")


def read_pairs(adapter: Adapter, facts: ModelFacts, max_rank: int, rest: Rest = no_rest) -> dict[str, Pair]:
    """Reads an adapter: views of its files' bytes, by the names of pairs. `rest` is called between pieces of the work.

    Raises ModelFormatError, ModelNotFoundError where it does not fit the model, ValueError where its files are others than those that the
    digest is of.
    """
    found = read_adapter(Path(adapter.path), facts, max_rank)
    rest()
    contents = {path: path.read_bytes() for path in found.files}
    if digest_of((contents[path] for path in found.files), rest) != adapter.digest:
        raise ValueError("its files have changed; load it again")
    return {pairs_of(part.name): _pair(part, contents, facts.head_dim) for part in found.parts}


def _pair(part: LowRank, contents: dict[Path, bytes], head_dim: int) -> Pair:
    a, b = (_array(tensor, contents[tensor.file]) for tensor in (part.a, part.b))
    b = b[part.first : part.first + part.shape[0]]
    if part.transform == "interleaved":
        b = b[halves_order(len(b), head_dim)]
    kind = part.a.kind
    if part.b.kind != kind:
        kind, a, b = "F32", widened(part.a.kind, a), widened(part.b.kind, b)
    return Pair(kind, a, b.T, part.scale)


def _array(tensor: TensorFacts, content: bytes) -> NDArray[Any]:
    rows, columns = tensor.shape
    return np.frombuffer(content, _TYPES[tensor.kind], rows * columns, tensor.offset).reshape(rows, columns)
