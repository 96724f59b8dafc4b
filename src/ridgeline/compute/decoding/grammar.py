"""Grammars that outputs follow, by llguidance: compiled on a thread of low priority, and matched by rows.

A matcher is a function of the ids that its row has sampled. The masks of a step are made while the step computes: they depend on ids that
are known before it, so that a grammar costs time only where its mask takes longer than the step. A row whose masks take long ends with an
error: the others of its steps wait for it.
"""

import atexit
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import count
from queue import PriorityQueue, SimpleQueue
from time import monotonic, thread_time
from typing import Final, NamedTuple, NoReturn

import numpy as np
from numpy.typing import NDArray

from ridgeline.compute.decoding.edits import Mask
from ridgeline.compute.decoding.forced import ForcedGrammars, ForcedText, Pieces
from ridgeline.compute.decoding.llguidance import Matcher, Tokenizer, allocated_bytes
from ridgeline.core.params import Grammar

MAX_COMPILED: Final = 256
MAX_COMPILED_BYTES: Final = 512 << 20
"""Grammars that are kept, and the memory of all; the least recently used one goes first."""
MIN_KEPT: Final = 8
"""Grammars that are kept however large they are: rows are about to follow them."""
TRIM_SECONDS: Final = 1.0
"""Least time between two looks at the memory, which take some milliseconds."""
MASK_BLOCK: Final = 256
"""Ids that a mask is padded to, as the native sampler looks at so many logits together."""
READING_PRIORITY, LOW_PRIORITY = 10, 19
"""Niceness of the thread while it reads the vocabulary ahead, and while it compiles. Where a request waits for the vocabulary, one or two
seconds of work, it is read at the process's own: at 19 that took minutes beside programs that keep all cores busy."""
DEAR_SECONDS: Final = 0.0002
"""CPU time of a row's last mask from which on it is better to ask the grammar about a token first: one that is drawn again costs about as
much. Such masks are of free text, as in an e-mail address, and nine in ten tokens are of the grammar there."""
SPARE_SECONDS, TOKEN_SECONDS = 0.15, 0.004
"""CPU time that a row may spend on its grammar beyond what each token earns it, and that."""


LOST, MASKED = -1, 1
"""Flags of a row in a step: its grammar cannot go on, and its mask has all ids; it has a mask, where others needed none."""
_NONE: Final = Grammar(b"", "")
"""Asks the thread for nothing but a look at the memory."""


def mask_words(vocab: int) -> int:
    """Words of 32 ids of a mask of so many ids."""
    return -(-vocab // MASK_BLOCK) * (MASK_BLOCK // 32)


class Vocabulary(NamedTuple):
    """The vocabulary that grammars are matched in.

    pieces   bytes of each id
    control  ids that stand for no text
    ends     ids that may end an output, where its grammar is complete
    """

    pieces: Sequence[bytes]
    control: Sequence[int]
    ends: Sequence[int]


class GrammarError(Exception):
    """A grammar that cannot go on: too complex for its limits. The message is the library's."""


class RowGrammar:
    """A row's place in its grammar. Who makes its masks moves it, a thread or the runner's step: what the row samples waits until then."""

    def __init__(
        self,
        matcher: Matcher,
        ends: Mask,
        ids: Sequence[int],
        lost: Callable[[], None],
        is_optional: bool,
        forced: ForcedText | None = None,
    ) -> None:
        """ends: mask of the ids that end an output. ids: outputs of the row so far. lost: called where the grammar cannot go on.
        is_optional: as of `Grammar`. forced: tells drafts; None where nobody asks."""
        self._matcher, self._ends, self._lost = matcher, ends, lost
        self._ids = list(ids)
        self._forced = forced
        self.is_optional = is_optional
        self.masks_are_dear = self.masks_leave_most = False
        """Properties of the last mask that a step made: it took long; it left more than half of all ids, as inside a string: nearly all or
        nearly none are left."""
        self._spare = SPARE_SECONDS
        self._left = 0

    def masks(self, drafts: Sequence[int], found: NDArray[np.uint32]) -> None:
        """Writes a mask for the next position, and one behind each draft as far as the grammar takes them, to `found` [1 + drafts, W].

        found: zeros. Raises GrammarError.
        """
        began = thread_time()
        ids, self._ids = self._ids, []
        self._make(drafts, found, ids)
        self._charge(len(ids), thread_time() - began)

    def peek(self, drafts: Sequence[int], found: NDArray[np.uint32]) -> None:
        """The result of `masks`, in time that the row is not charged for: its answer must not depend on who drafts."""
        ids, self._ids = self._ids, []
        self._make(drafts, found, ids)
        self._charge(len(ids), 0.0)

    @property
    def waiting(self) -> int:
        """Number of ids that it has yet to move by."""
        return len(self._ids)

    def leave(self) -> tuple[int, int]:
        """Address of the library's matcher, and the one id at most that it has yet to move by, -1: none. A step moves it; see `moved`."""
        ids, self._ids = self._ids, []
        self._left = len(ids)
        return self._matcher.address, ids[0] if ids else -1

    def moved(self, state: int, seconds: float, ids: int) -> None:
        """A step has moved it in so much CPU time. state: LOST, MASKED, which left so many ids, or neither. Raises GrammarError."""
        if state == LOST:
            self._raise()
        if state == MASKED:
            self.masks_are_dear, self.masks_leave_most = seconds > DEAR_SECONDS, ids > 16 * len(self._ends)
        self._charge(self._left, seconds)

    def _charge(self, ids: int, seconds: float) -> None:
        self._spare = min(SPARE_SECONDS, self._spare + TOKEN_SECONDS * ids) - seconds
        if self._spare < 0:
            raise GrammarError(f"it takes more than {TOKEN_SECONDS * 1e3:g} ms per token; simplify it")

    def _raise(self) -> NoReturn:
        self._lost()
        raise GrammarError(_reason(self._matcher.error or "it cannot go on"))

    def _make(self, drafts: Sequence[int], found: NDArray[np.uint32], ids: Sequence[int]) -> None:
        """ids: new ones of the row, which its place moves by first."""
        matcher, taken = self._matcher, 0
        if ids and not matcher.stopped:
            matcher.consume(ids)
        for place in range(len(drafts) + 1):
            if not matcher.mask(found[place]):
                self._raise()
            if place == len(drafts) or not _has(found[place], drafts[place]) or _has(self._ends, drafts[place]):
                break  # behind an end nothing counts
            matcher.consume(drafts[place : place + 1])
            taken += 1
        if taken:
            matcher.rollback(taken)

    def allowed(self) -> list[int]:
        """Ids that may come next, ascending; for executors without arrays. Raises GrammarError."""
        found = np.zeros((1, len(self._ends)), np.uint32)
        self.masks((), found)
        ids: list[int] = np.flatnonzero(np.unpackbits(found.view(np.uint8), bitorder="little")).tolist()
        return ids

    def advance(self, ids: Sequence[int]) -> None:
        """Takes ids that the row has sampled."""
        self._ids += ids
        if self._forced is not None:
            self._forced.advance(ids)

    def forced(self) -> tuple[int, ...]:
        """Ids of the text that its grammar forces behind what it has sampled; none where there is a choice, or nobody asks."""
        return () if self._forced is None else self._forced.next()


def _reason(message: str) -> str:
    """The library's message, in plainer words where clients meet it often."""
    known = next((plainer for begin, plainer in _PLAINER.items() if message.startswith(begin)), None)
    return known or message.partition("\n")[0]


_PLAINER: Final[Mapping[str, str]] = {
    "NoExtension": "no text goes on as this grammar asks; change it",
    "lexer precomputation failed": "its regular expressions have too many states together; simplify them",
    "lexer error: too many expressions": "its regular expressions have too many states together; simplify them",
}
"""Plain words by the beginning of a message."""


def _has(mask: Mask, token: int) -> bool:
    return bool(mask[token // 32] >> np.uint32(token % 32) & 1)


class GrammarCompiler:
    """Implements `engine.executor.Grammars`. Its thread reads the vocabulary first, then compiles one grammar after the other."""

    def __init__(self, load: Callable[[], Vocabulary], vocab: int, *, tells_forced: bool = False) -> None:
        """load: reads the vocabulary, of at most `vocab` ids; called by the thread. tells_forced: rows tell what their grammars force."""
        self._load, self._vocab, self.tells_forced = load, vocab, tells_forced
        self.words = mask_words(vocab)
        """Width of masks."""
        self._ends = np.zeros(self.words, np.uint32)
        self._tokenizer: Tokenizer | None = None
        self.calls = np.zeros(0, np.int64)
        """`Tokenizer.calls` once there are grammars."""
        self._compiled: OrderedDict[bytes, Matcher] = OrderedDict()
        self._forced: ForcedGrammars | None = None
        self._waiting: PriorityQueue[tuple[float, int, Grammar | None]] = PriorityQueue()
        """(seconds to compile, number, grammar): the cheapest is next, so that costly ones keep nobody else waiting."""
        self._numbers = count()
        self._memory = self._looked_at = 0.0
        """Bytes of this process before there were grammars, and when it was looked how many it has."""
        self._ready: SimpleQueue[tuple[bytes, str | None]] = SimpleQueue()
        self._open = 0
        self._closing = False
        self._signal, self._wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._thread: threading.Thread | None = None

    def warm_up(self) -> None:
        """See `engine.executor.Grammars.warm_up`."""
        self._start_thread(READING_PRIORITY)

    def _start_thread(self, niceness: int | None) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, args=(niceness,), name="ridgeline-grammars", daemon=True)
            self._thread.start()

    def compile(self, grammar: Grammar) -> None:
        """See `engine.executor.Grammars.compile`."""
        self._start_thread(None)
        self._open += 1
        if grammar.digest in self._compiled:
            self._report(grammar.digest, None)
            self._put(_NONE)
        else:
            self._put(grammar)

    def take(self) -> list[tuple[bytes, str | None]]:
        """See `engine.executor.Grammars.take`."""
        found = []
        with suppress(BlockingIOError):  # the thread writes a byte behind each
            while os.read(self._signal, 1):
                found.append(self._ready.get())
        self._open -= len(found)
        return found

    @property
    def pending(self) -> bool:
        """See `engine.executor.Grammars.pending`."""
        return self._open > 0

    def fileno(self) -> int:
        """See `engine.executor.Grammars.fileno`."""
        return self._signal

    def start(self, grammar: Grammar, ids: Sequence[int]) -> RowGrammar:
        """A row's place behind `ids`, its outputs so far. The grammar has been compiled."""
        matcher = self._kept(grammar) or self._make(grammar)
        lost = partial(self._compiled.pop, grammar.digest, None)
        forced = None if self._forced is None else self._forced.start(grammar.digest, ids)
        return RowGrammar(matcher.copy(), self._ends, ids, lost, grammar.is_optional, forced)

    def close(self) -> None:
        """Ends the thread as soon as it leaves the library; Python does not end before. Safe to call twice."""
        if self._closing:
            return
        self._closing = True
        if self._thread is None:
            self._close_signal()
        else:
            self._waiting.put((-1.0, 0, None))
            atexit.register(self._thread.join)

    def _close_signal(self) -> None:
        os.close(self._signal)
        os.close(self._wake)

    def _put(self, grammar: Grammar) -> None:
        self._waiting.put((grammar.seconds, next(self._numbers), grammar))

    def _report(self, digest: bytes, error: str | None) -> None:
        self._ready.put((digest, error))
        os.write(self._wake, b".")

    def _run(self, niceness: int | None) -> None:
        thread, lost = threading.get_native_id(), None
        if niceness is not None:
            os.setpriority(os.PRIO_PROCESS, thread, niceness)
        try:
            self._tokenizer = self._read_vocabulary()
        except Exception as error:  # a library's, or of the model's files: no grammar can be followed, and all else goes on
            lost = f"no grammar can be followed: {type(error).__name__}: {error}"
        os.setpriority(os.PRIO_PROCESS, thread, LOW_PRIORITY)
        self._memory = allocated_bytes()
        while not self._closing and (grammar := self._waiting.get()[2]) is not None:
            if grammar is not _NONE:
                problem = lost or (self._kept(grammar) or self._make(grammar)).error
                self._report(grammar.digest, problem and _reason(problem))
                if not problem and self._forced is not None:
                    self._forced.compile(grammar)
            self._trim()
        self._close_signal()

    def _kept(self, grammar: Grammar) -> Matcher | None:
        """The compiled grammar, if it is still there."""
        with suppress(KeyError):
            self._compiled.move_to_end(grammar.digest)
        return self._compiled.get(grammar.digest)

    def _make(self, grammar: Grammar) -> Matcher:
        """Compiles a grammar; one without errors is kept."""
        assert self._tokenizer is not None, "nothing is compiled before the vocabulary is there"
        matcher = Matcher.of(self._tokenizer, grammar.text)
        if matcher.error is None:
            self._compiled[grammar.digest] = matcher
        return matcher

    def _trim(self) -> None:
        """Forgets grammars until the others are few and small enough: rows that follow them make them grow."""
        while len(self._compiled) > MAX_COMPILED:
            self._compiled.popitem(last=False)
        if monotonic() - self._looked_at >= TRIM_SECONDS:
            self._looked_at = monotonic()
            while len(self._compiled) > MIN_KEPT and allocated_bytes() - self._memory > MAX_COMPILED_BYTES:
                self._compiled.popitem(last=False)
        if self._forced is not None:
            self._forced.keep(self._compiled.keys())

    def _read_vocabulary(self) -> Tokenizer | None:
        vocabulary = self._load()
        if self._closing:  # what follows takes about a second
            return None
        for token in vocabulary.ends:
            self._ends[token // 32] |= np.uint32(1 << token % 32)
        tokenizer = Tokenizer(vocabulary.pieces, vocabulary.control, vocabulary.ends)
        self.calls = tokenizer.calls(self._ends.nbytes)
        if self.tells_forced:
            self._forced = ForcedGrammars(Pieces(vocabulary.pieces, vocabulary.control))
        return tokenizer
