"""Text that a grammar forces, as drafts: where every output goes on with the same bytes, nobody needs to draw them one by one.

A matcher over the model's ids leaves open how forced text is split into ids, as the model may split it in any way. So a second one reads
the row's text byte by byte, and what it is sure of is split here: pieces as long as possible, which models prefer. The drafts are verified
like any other, and nothing here reaches an answer.
"""

from collections.abc import Callable, Collection, Sequence
from functools import partial
from time import thread_time
from typing import Final

from ridgeline.compute.decoding.llguidance import Matcher, Tokenizer
from ridgeline.core.params import Grammar

MAX_IDS: Final = 9
"""Ids of forced text that are found at a time: no row drafts more than eight."""
LONGEST: Final = 32
"""Bytes of the longest piece that is looked for."""
DEAR_SECONDS: Final = 0.002
"""CPU time of one look behind which a row is not looked at any more: others of its steps wait for it."""


class Pieces:
    """The texts of ids, and the ids of texts."""

    def __init__(self, pieces: Sequence[bytes], control: Collection[int]) -> None:
        """pieces: bytes of each id. control: ids that stand for no text."""
        self._pieces, self._control = pieces, frozenset(control)
        self._ids = {piece: token for token, piece in enumerate(pieces) if 0 < len(piece) <= LONGEST and token not in self._control}
        # of ids with the same text the last counts: those of single bytes come first, and models use the others

    def text(self, ids: Sequence[int]) -> bytes | None:
        """The text of ids; None where one stands for none."""
        return None if not self._control.isdisjoint(ids) else b"".join([self._pieces[token] for token in ids])

    def split(self, text: bytes) -> tuple[int, ...]:
        """Ids of a text, the longest piece first, `MAX_IDS` at most."""
        found: list[int] = []
        while text and len(found) < MAX_IDS:
            token = next((self._ids[text[:size]] for size in range(min(LONGEST, len(text)), 0, -1) if text[:size] in self._ids), None)
            if token is None:
                break
            found.append(token)
            text = text[len(self._pieces[token]) :]
        return tuple(found)


class ForcedGrammars:
    """Grammars over bytes. Compiled on one thread; rows follow them on another."""

    def __init__(self, pieces: Pieces) -> None:
        self._pieces = pieces
        self._tokenizer = Tokenizer([*map(bytes, zip(range(256))), b"<end>"], [256], [256], are_bytes=True)
        self._compiled: dict[bytes, Matcher] = {}

    def compile(self, grammar: Grammar) -> None:
        """Compiles one, unless it has been."""
        if grammar.digest not in self._compiled:
            self._compiled[grammar.digest] = Matcher.of(self._tokenizer, grammar.text)

    def keep(self, digests: Collection[bytes]) -> None:
        """Forgets all others."""
        for digest in self._compiled.keys() - digests:
            del self._compiled[digest]

    def start(self, digest: bytes, ids: Sequence[int]) -> "ForcedText":
        """A row's place behind `ids`, its outputs so far; it tells nothing until the grammar has been compiled."""
        return ForcedText(partial(self._compiled.get, digest), self._pieces, ids)


class ForcedText:
    """Text that a row's grammar forces behind its outputs. Used by one thread at a time."""

    def __init__(self, find: Callable[[], Matcher | None], pieces: Pieces, ids: Sequence[int]) -> None:
        """find: returns the beginning of the grammar over bytes, None while there is none. ids: outputs of the row so far."""
        self._find: Callable[[], Matcher | None] | None = find
        self._pieces = pieces
        self._matcher: Matcher | None = None
        self._new = list(ids)

    def advance(self, ids: Sequence[int]) -> None:
        """Takes ids that the row has sampled."""
        self._new += ids

    def next(self) -> tuple[int, ...]:
        """Ids of the text that must come next; none where there is a choice. Of several the last is left out: the model may well take a
        longer one, of text that nobody forces yet."""
        if self._find is None:
            return ()
        if self._matcher is None:
            found = self._find()
            self._matcher = found and found.copy()
        if self._matcher is None:
            return ()
        began = thread_time()
        text, self._new = self._pieces.text(self._new), []
        if text is None or not self._matcher.consume(list(text)):
            self._find = None
            return ()
        forced = self._matcher.forced()
        if thread_time() - began > DEAR_SECONDS:
            self._find = None
        ids = self._pieces.split(forced)
        return ids if len(ids) == 1 else ids[:-1]
