"""The pipeline from the engine's outputs to answers, for the server and for `LLM` alike. Pure: knows no clock, no socket, no JSON.

    Output, Closed → `Answer` (a `Choice` each) → Begun · Shown · Ended → `Collected`

Owns the two-phase end (stop strings, answers without a token) and the order of a choice's pieces. Usage is the engine's, from `keep`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import fsum, isnan

from ridgeline.core.commands import Close, Output
from ridgeline.core.events import Closed, Finish, Usage
from ridgeline.core.params import Admitted, SamplingParams
from ridgeline.core.plan import TokenLogprobs
from ridgeline.text.stream import OutputStream, Release, StopAutomaton
from ridgeline.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Begun:
    """The first of one choice, when its prompt is computed. `index` counts choices over all prompts.

    prompt_logprobs  one per token of the prompt, None for the first; empty unless asked for
    """

    index: int
    prompt: Sequence[int]
    prompt_logprobs: Sequence[TokenLogprobs | None] = ()


@dataclass(frozen=True, slots=True)
class Shown:
    """Text, ids and log-probabilities of one choice that may be shown now."""

    index: int
    release: Release


@dataclass(frozen=True, slots=True)
class Ended:
    """The last of one choice.

    stop_reason         the stop string or the client's stop id; None for EOS and for other ends
    cumulative_logprob  of its outputs; None where log-probabilities were not made
    message             of the engine, where `reason` is ERROR
    """

    index: int
    reason: Finish
    stop_reason: str | int | None
    usage: Usage
    cumulative_logprob: float | None = None
    message: str | None = None


Piece = Begun | Shown | Ended


class Choice:
    """One choice: outputs of the engine in, what may be shown out, and the close that the engine waits for.

    Feed it every `Output` of its choice, in order. Done when the engine's `Closed` arrives; `stop_reason` is then final.

    prompt_logprobs  of prompt tokens from the second on, so far; complete when the first id comes, empty where they were not asked for
    stop_reason      the stop string, or the client's stop id, that ended the choice; None for EOS and all other ends
    """

    def __init__(self, request: Admitted, choice: int, params: SamplingParams, tokenizer: Tokenizer) -> None:
        self._request_id = request.request_id
        self._choice = choice
        self._two_phase = request.two_phase
        self._shows = params.max_tokens != 0
        self._client_stop_ids = frozenset(params.stop_token_ids)
        self._count = 0
        self._over = False
        self._logprobs: list[float] = []
        self.prompt_logprobs: list[TokenLogprobs] = []
        self.stop_reason: str | int | None = None
        self._stream = OutputStream(
            tokenizer,
            StopAutomaton(params.stop),
            prompt=request.prompt,
            min_tokens=params.min_tokens,
            include_stop=params.include_stop_str_in_output,
            skip_special=params.skip_special_tokens,
        )

    @property
    def cumulative_logprob(self) -> float | None:
        """Sum of the log-probabilities of all outputs that count; None where none were made."""
        return fsum(self._logprobs) if self._logprobs else None

    def take(self, output: Output) -> tuple[list[Release], Close | None]:
        """Releases that may be shown now, and the close to send, at most once. Outputs after that close are nobody's."""
        if self._over:
            return [], None
        if output.prompt_logprobs:
            self.prompt_logprobs += output.prompt_logprobs
        if not self._shows:
            return self._drop(output)
        self._count += len(output.ids)
        if output.logprobs:
            self._logprobs += [each.logprob for each in output.logprobs]
        releases = [self._stream.push(output.ids, output.logprobs, ends_with_stop_id=output.end is Finish.STOP)]
        if output.end is not None and self._stream.stopped is None:
            releases.append(self._stream.finish())
        stopped = self._stream.stopped
        if stopped is not None:
            self._over, self.stop_reason = True, stopped.stop
            del self._logprobs[stopped.keep :]
            return releases, Close(self._request_id, self._choice, stopped.keep, Finish.STOP)
        if output.end is None:
            return releases, None
        self._over = True
        if output.end is Finish.STOP and output.ids[-1] in self._client_stop_ids:
            self.stop_reason = output.ids[-1]
        return releases, Close(self._request_id, self._choice, self._count, output.end) if self._two_phase else None

    def _drop(self, output: Output) -> tuple[list[Release], Close | None]:
        """Drops the one output of a request whose prompt alone was to be computed: it counts for nothing."""
        if output.end is None:
            return [], None
        self._over = True
        return [], Close(self._request_id, self._choice, 0, output.end if output.end is Finish.ERROR else Finish.LENGTH)


class Answer:
    """All choices of one request: what the engine says in, pieces out; of each choice `Begun` first, `Ended` last.

    open  choices that have not ended
    """

    def __init__(self, request: Admitted, params: SamplingParams, tokenizer: Tokenizer, first_index: int = 0) -> None:
        """`first_index`: the index of choice 0 in the pieces."""
        self.open = request.choices
        self._ids = request.prompt
        self._choices = [Choice(request, index, params, tokenizer) for index in range(request.choices)]
        self._first_index = first_index
        self._begun: set[int] = set()
        self._scores: Sequence[TokenLogprobs | None] | None = None if request.prompt_logprobs is not None else ()
        self._early: list[Piece] = []
        """Of other choices, before choice 0 has scored the prompt for all."""

    def cumulative_logprob(self, choice: int) -> float | None:
        """Sum over a choice's outputs so far; None where log-probabilities were not made."""
        return self._choices[choice].cumulative_logprob

    def take(self, item: Output | Closed) -> tuple[list[Piece], Close | None]:
        """Pieces that came of it, and the close to send to the engine."""
        number, close = item.choice, None
        choice, index = self._choices[number], self._first_index + number
        pieces: list[Piece] = []
        if isinstance(item, Output):
            releases, close = choice.take(item)
            if number not in self._begun and item.ids:
                pieces.append(self._begin(number))
            for release in releases:
                if release.ids:
                    pieces.append(Shown(index, release))
        else:
            if number not in self._begun:
                pieces.append(self._begin(number))
            self.open -= 1
            pieces.append(Ended(index, item.reason, choice.stop_reason, item.usage, choice.cumulative_logprob, item.message))
        if self._scores is None:
            self._early += pieces
            return [], close
        if self._early:
            pieces += [replace(each, prompt_logprobs=self._scores) if isinstance(each, Begun) else each for each in self._early]
            self._early = []
        return pieces, close

    def _begin(self, number: int) -> Begun:
        self._begun.add(number)
        if self._scores is None and number == 0:
            self._scores = (None, *self._choices[0].prompt_logprobs)
        return Begun(self._first_index + number, self._ids, self._scores or ())


class Collected:
    """One choice as far as its pieces have come. `begun` and `ended` are there when their pieces are; `over`: the last is."""

    begun: Begun
    ended: Ended

    def __init__(self) -> None:
        self.releases: list[Release] = []
        self.over = False

    def add(self, piece: Piece) -> None:
        """Pieces come in order."""
        match piece:
            case Begun():
                self.begun = piece
            case Shown():
                self.releases.append(piece.release)
            case Ended():
                self.ended, self.over = piece, True

    def renumber(self, index: int) -> None:
        """Gives a choice that is over its index among those that are answered."""
        self.begun, self.ended = replace(self.begun, index=index), replace(self.ended, index=index)

    @property
    def text(self) -> str:
        """The outputs' text."""
        return "".join(release.text for release in self.releases)

    @property
    def ids(self) -> list[int]:
        """The outputs' ids."""
        return [token for release in self.releases for token in release.ids]

    @property
    def offsets(self) -> list[int]:
        """Characters of the outputs' text before each id."""
        return [offset for release in self.releases for offset in release.offsets]

    @property
    def logprobs(self) -> list[TokenLogprobs]:
        """One per id where they were asked for."""
        return [each for release in self.releases for each in release.logprobs]


def best(cumulative: Sequence[float], n: int) -> list[int]:
    """`best_of`: indices of the n answers with the highest summed log-probability, likeliest first, of equals the first; NaN last."""
    return sorted(range(len(cumulative)), key=lambda index: (isnan(cumulative[index]), -cumulative[index], index))[:n]
