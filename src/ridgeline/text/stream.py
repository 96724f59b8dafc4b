"""Detokenization of a sequence's outputs as a stream: text, ids and log-probabilities together, by whole tokens.

Owns the bytes of a character that is not complete yet (each character belongs to the token that completes it), the hold-back of text that
may begin a stop string, the cut at one, and the automaton that finds them in time linear in the text (Aho and Corasick 1975). The result
depends on the ids alone, not on the steps they came in. Never talks to the engine.
"""

from codecs import utf_8_decode
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Final, NamedTuple

from ridgeline.core.plan import TokenLogprobs
from ridgeline.text.tokenizer import Tokenizer

_CHARACTER_BYTES = 4
_REPLACEMENT = "\ufffd"


class Detokenizer:
    """Text of a sequence's outputs. The texts of all ids and of `finish`, joined, are the whole text: bytes that are not
    UTF-8 become one U+FFFD per invalid part (Unicode 15, §3.9, maximal subparts)."""

    def __init__(self, tokenizer: Tokenizer, skip_special: bool, prompt: Sequence[int] = ()) -> None:
        """`prompt` matters where it ends inside a character that the outputs complete (a continuation by ids)."""
        self._tokenizer = tokenizer
        self._skip_special = skip_special
        self._inside_prompt = False
        self._incomplete_bytes = b""
        """Bytes of the character that is not complete."""
        self._decode(self._last_bytes(prompt))
        self._inside_prompt = self.is_incomplete

    def push(self, token: int) -> str:
        """The text that is complete with this token and was not before it; often a word, "" inside a character."""
        piece = self._bytes(token)
        if self._incomplete_bytes or self._inside_prompt:
            return self._decode(piece)
        try:
            return piece.decode()
        except UnicodeDecodeError:
            return self._decode(piece)

    def finish(self) -> str:
        """The text of an incomplete character at the end: "" or U+FFFD."""
        return self._decode(b"", final=True)

    @property
    def is_incomplete(self) -> bool:
        """True if the last bytes are the start of a character."""
        return bool(self._incomplete_bytes)

    def _decode(self, new: bytes, final: bool = False) -> str:
        """The prompt's text ended in U+FFFD where it ended inside a character; if the outputs don't complete it, that stands."""
        data = self._incomplete_bytes + new
        text, read = utf_8_decode(data, "replace", final)
        self._incomplete_bytes = data[read:]
        if self._inside_prompt and text:
            self._inside_prompt = False
            return text.removeprefix(_REPLACEMENT)
        return text

    def _bytes(self, token: int) -> bytes:
        if self._skip_special and self._tokenizer.is_control(token):
            return b""
        return self._tokenizer.piece(token)

    def _last_bytes(self, prompt: Sequence[int]) -> bytes:
        tail = b""
        for token in reversed(prompt):
            tail = self._bytes(token) + tail
            if len(tail) >= _CHARACTER_BYTES:
                break
        return tail


_ROOT = 0


@dataclass(frozen=True, slots=True)
class StopMatch:
    """A stop string whose last character is the one before index `end` of the text that was passed in."""

    stop: str
    end: int


class StopAutomaton:
    """Finds any of several stop strings (not empty): the one that is complete first, the longest of those that end together."""

    start = _ROOT

    def __init__(self, stops: Sequence[str]) -> None:
        self._next: list[dict[str, int]] = [{}]
        self._stop_at: list[str | None] = [None]
        self._depth = [0]
        for stop in stops:
            self._stop_at[self._insert(stop)] = stop
        self._suffix = [_ROOT] * len(self._next)
        """Per state that of its longest proper suffix (suffix link)."""
        self._held = [depth if branches else 0 for depth, branches in zip(self._depth, self._next, strict=True)]
        self._link()

    def advance(self, state: int, text: str, armed: bool) -> tuple[int, StopMatch | None]:
        """Reads `text` up to its end or to the end of the first stop string in it; returns the new state and the match, if any.

        Where not `armed`, a stop string that is complete in this text is passed over, but one that begins in it may be found later.
        """
        if len(self._next) == 1:
            return _ROOT, None
        for index, character in enumerate(text):
            while state and character not in self._next[state]:
                state = self._suffix[state]
            state = self._next[state].get(character, _ROOT)
            stop = self._stop_at[state]
            if armed and stop is not None:
                return state, StopMatch(stop, index + 1)
        return state, None

    @property
    def has_stops(self) -> bool:
        """True if there is any string to find."""
        return len(self._next) > 1

    def held(self, state: int) -> int:
        """Characters at the end of the text read so far that may be the beginning of a stop string."""
        return self._held[state]

    def _insert(self, stop: str) -> int:
        state = _ROOT
        for character in stop:
            if character not in self._next[state]:
                self._next[state][character] = len(self._next)
                self._next.append({})
                self._stop_at.append(None)
                self._depth.append(self._depth[state] + 1)
            state = self._next[state][character]
        return state

    def _link(self) -> None:
        """Sets suffix links, stops that end inside longer strings, and held lengths; breadth first, as they follow from shorter states."""
        queue = deque(self._next[_ROOT].values())
        while queue:
            state = queue.popleft()
            suffix_state = self._suffix[state]
            if self._stop_at[state] is None:
                self._stop_at[state] = self._stop_at[suffix_state]
            self._held[state] = self._held[state] or self._held[suffix_state]
            for character, longer in self._next[state].items():
                queue.append(longer)
                suffix = suffix_state
                while suffix and character not in self._next[suffix]:
                    suffix = self._suffix[suffix]
                self._suffix[longer] = self._next[suffix].get(character, _ROOT)


NO_STOPS: Final = StopAutomaton(())


@dataclass(frozen=True, slots=True)
class Stopped:
    """A stop string was found; the first `keep` ids count, the one that completes the string included."""

    stop: str
    keep: int


class TextDelta(NamedTuple):
    """Tokens whose text is final, in order, each once: columns of the same length.

    offset    characters of the outputs' text before these
    texts     text that each id adds; shorter than its own text where a stop string cuts it off
    logprobs  empty where none were given
    stopped   set in the last delta of a sequence that a stop string ends
    """

    offset: int
    ids: tuple[int, ...] = ()
    texts: tuple[str, ...] = ()
    logprobs: tuple[TokenLogprobs, ...] = ()
    stopped: Stopped | None = None

    @property
    def text(self) -> str:
        """The text of all these tokens."""
        return "".join(self.texts)

    @property
    def offsets(self) -> tuple[int, ...]:
        """Characters of the outputs' text before each id."""
        return tuple(accumulate(map(len, self.texts[:-1]), initial=self.offset)) if self.ids else ()


class _Token(NamedTuple):
    id: int
    logprobs: TokenLogprobs | None
    text: str
    end: int
    """Characters of the outputs' text up to the end of this token's."""


class OutputStream:
    """Ids in as they are sampled, deltas out. The texts of all deltas, joined, are the text of the answer."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        stops: StopAutomaton,
        *,
        prompt: Sequence[int] = (),
        min_tokens: int = 0,
        include_stop: bool = False,
        skip_special: bool = True,
    ) -> None:
        """Stop strings count only where a token completes them before which at least `min_tokens` outputs exist. `include_stop`
        leaves the string in the text, and likewise the text of a stop id."""
        self._detokenizer = Detokenizer(tokenizer, skip_special, prompt)
        self._stops = stops
        self._has_stops = stops.has_stops
        """There is any string to find."""
        self._state = stops.start
        self._min_tokens = min_tokens
        self._include_stop = include_stop
        self._held: deque[_Token] = deque()
        self._count = 0
        self._end = 0
        self._num_whole = 0
        """Number of ids before the first that has bytes of an incomplete character."""
        self._offset = 0
        self.stopped: Stopped | None = None

    def push(self, ids: Sequence[int], logprobs: Sequence[TokenLogprobs] | None = None, *, ends_with_stop_id: bool = False) -> TextDelta:
        """Adds new ids and returns the tokens whose text can no longer change. Ids after a stop string are ignored.

        `ends_with_stop_id`: the last id ended the sequence in the engine; it counts but adds no text.
        """
        if len(ids) == 1 and not self._held and not self._has_stops and not ends_with_stop_id:
            return self._push_alone(ids[0], logprobs)
        for index, token in enumerate(ids if self.stopped is None else ()):
            hidden = ends_with_stop_id and index == len(ids) - 1 and not self._include_stop
            text = "" if hidden else self._next_text(token)
            self._held.append(_Token(token, logprobs[index] if logprobs else None, text, self._end + len(text)))
            self._count += 1
            if match := self._read(text):
                return self._cut(match)
        limit = self._end - self._stops.held(self._state)
        first = self._count - len(self._held)
        ready = 0
        while ready < len(self._held) and first + ready < self._num_whole and self._held[ready].end <= limit:
            ready += 1
        return self._release(ready)

    def _push_alone(self, token: int, logprobs: Sequence[TokenLogprobs] | None) -> TextDelta:
        """The usual case, on the shortest path: one new id behind ids that have been released, without stop strings."""
        text = self._detokenizer.push(token)
        self._count += 1
        offset = self._end
        self._end += len(text)
        if self._detokenizer.is_incomplete:
            self._held.append(_Token(token, logprobs[0] if logprobs else None, text, self._end))
            self._num_whole = self._count - 1
            return TextDelta(offset)
        self._num_whole = self._count
        self._offset = self._end
        return TextDelta(offset, (token,), (text,), tuple(logprobs) if logprobs else ())

    def finish(self) -> TextDelta:
        """Ends the stream: returns everything that was held, with U+FFFD for a character that is not complete."""
        if self.stopped is None and (text := self._detokenizer.finish()):
            last = self._held.pop()
            self._held.append(last._replace(text=last.text + text, end=last.end + len(text)))
            if match := self._read(text):
                return self._cut(match)
        return self._release(len(self._held))

    def _next_text(self, token: int) -> str:
        was_incomplete = self._detokenizer.is_incomplete
        text = self._detokenizer.push(token)
        if not self._detokenizer.is_incomplete:
            self._num_whole = self._count + 1
        elif text or not was_incomplete:
            self._num_whole = self._count
        return text

    def _read(self, text: str) -> StopMatch | None:
        """Passes the text of the newest token to the automaton; `end` of a match counts from the outputs' start."""
        self._state, match = self._stops.advance(self._state, text, armed=self._count > self._min_tokens)
        start, self._end = self._end, self._end + len(text)
        return StopMatch(match.stop, start + match.end) if match else None

    def _cut(self, match: StopMatch) -> TextDelta:
        end = match.end if self._include_stop else match.end - len(match.stop)
        self._held = deque(token._replace(text=token.text[: max(0, end - token.end + len(token.text))]) for token in self._held)
        self.stopped = Stopped(match.stop, self._count)
        return self._release(len(self._held))

    def _release(self, count: int) -> TextDelta:
        offset = self._offset
        if count == 1:  # the usual case, on the shortest path
            token, logprobs, text, _ = self._held.popleft()
            self._offset = offset + len(text)
            return TextDelta(offset, (token,), (text,), () if logprobs is None else (logprobs,), self.stopped)
        if not count:
            return TextDelta(offset, stopped=self.stopped)
        ids, scores, texts, _ = zip(*[self._held.popleft() for _ in range(count)], strict=True)
        self._offset = offset + sum(map(len, texts))
        return TextDelta(offset, ids, texts, tuple([each for each in scores if each is not None]), self.stopped)
