"""Answers made of the engine's outputs, for the server and for `LLM` alike. Pure: knows no clock, no socket, no JSON.

    Output, Closed → `AnswerBuilder` (one `ChoiceBuilder` per choice) → ChoiceStart · ChoiceDelta · ChoiceEnd → `CollectedChoice`

Owns the two-phase end (stop strings, answers without a token) and the order of a choice's parts. Usage is counted by the engine.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import fsum, isnan
from typing import Final

from ridgeline.core.commands import Close, Output
from ridgeline.core.events import Closed, Finish, Usage
from ridgeline.core.params import Admitted, SamplingParams
from ridgeline.core.plan import TokenLogprobs
from ridgeline.text.stream import NO_STOPS, OutputStream, StopAutomaton, Stopped, TextDelta
from ridgeline.text.tokenizer import Tokenizer

LAST_IDS: Final = 64


@dataclass(frozen=True, slots=True)
class ChoiceStart:
    """First part of a choice, when its prompt is computed. `index` counts choices over all prompts.

    prompt_logprobs  one per token of the prompt, None for the first; empty unless asked for
    """

    index: int
    prompt: Sequence[int]
    prompt_logprobs: Sequence[TokenLogprobs | None] = ()


@dataclass(slots=True)
class ChoiceDelta:
    """New text, ids and log-probabilities of a choice. `is_last`: its end follows, at once or when the engine has confirmed it. Not frozen:
    one is made per token, and that takes a third of the time."""

    index: int
    delta: TextDelta
    is_last: bool = False


@dataclass(frozen=True, slots=True)
class ChoiceEnd:
    """Last part of a choice.

    stop_reason         the stop string or the client's stop id; None for EOS and for other ends
    cumulative_logprob  of its outputs; None where log-probabilities were not computed
    message             the engine's, where `reason` is ERROR
    last_ids            its last outputs, at most `LAST_IDS`
    """

    index: int
    reason: Finish
    stop_reason: str | int | None
    usage: Usage
    cumulative_logprob: float | None = None
    message: str | None = None
    last_ids: Sequence[int] = ()


AnswerPart = ChoiceStart | ChoiceDelta | ChoiceEnd


class ChoiceBuilder:
    """One choice: outputs of the engine in, text deltas out, and the close that the engine waits for.

    Process every `Output` of its choice, in order. Done when the engine's `Closed` arrives; `stop_reason` is then final.

    has_ended        no delta will follow
    prompt_logprobs  of prompt tokens from the second on, so far; complete when the first id comes, empty where they were not asked for
    stop_reason      the stop string, or the client's stop id, that ended the choice; None for EOS and all other ends
    """

    def __init__(self, request: Admitted, choice: int, params: SamplingParams, tokenizer: Tokenizer) -> None:
        self._request_id = request.request_id
        self._choice = choice
        self._two_phase = request.two_phase
        self._prompt_only = params.max_tokens == 0
        self._client_stop_ids = frozenset(params.stop_token_ids)
        self._count = 0
        self.has_ended = False
        self._logprobs: list[float] = []
        self.last_ids: deque[int] = deque(maxlen=LAST_IDS)
        self.prompt_logprobs: list[TokenLogprobs] = []
        self.stop_reason: str | int | None = None
        self._stream = OutputStream(
            tokenizer,
            StopAutomaton(params.stop) if params.stop else NO_STOPS,
            prompt=request.prompt,
            min_tokens=params.min_tokens,
            include_stop=params.include_stop_str_in_output,
            skip_special=params.skip_special_tokens,
        )

    @property
    def cumulative_logprob(self) -> float | None:
        """Sum of the log-probabilities of all outputs that count; None where none were computed."""
        return fsum(self._logprobs) if self._logprobs else None

    def push(self, ids: Sequence[int], logprobs: Sequence[TokenLogprobs] | None) -> tuple[TextDelta, Close | None]:
        """The delta that `process` gives for new ids that do not end the choice in the engine, and the close where their text does: what
        most outputs are, on the shortest path."""
        self._count += len(ids)
        self.last_ids.extend(ids)
        if logprobs:
            self._logprobs += [each.logprob for each in logprobs]
        delta = self._stream.push(ids, logprobs)
        return delta, None if delta.stopped is None else self._stop(delta.stopped)

    def _stop(self, stopped: Stopped) -> Close:
        """Ends the choice at a stop string."""
        self.has_ended, self.stop_reason = True, stopped.stop
        del self._logprobs[stopped.keep :]
        return Close(self._request_id, self._choice, stopped.keep, Finish.STOP)

    def process(self, output: Output) -> tuple[list[TextDelta], Close | None]:
        """Deltas that are final now, and the close to send, at most once. Outputs after that close are ignored."""
        if self.has_ended:
            return [], None
        if output.prompt_logprobs:
            self.prompt_logprobs += output.prompt_logprobs
        if self._prompt_only:
            return self._discard(output)
        self._count += len(output.ids)
        self.last_ids.extend(output.ids)
        if output.logprobs:
            self._logprobs += [each.logprob for each in output.logprobs]
        deltas = [self._stream.push(output.ids, output.logprobs, ends_with_stop_id=output.end is Finish.STOP)]
        if output.end is not None and self._stream.stopped is None:
            deltas.append(self._stream.finish())
        stopped = self._stream.stopped
        if stopped is not None:
            return deltas, self._stop(stopped)
        if output.end is None:
            return deltas, None
        self.has_ended = True
        if output.end is Finish.STOP and output.ids[-1] in self._client_stop_ids:
            self.stop_reason = output.ids[-1]
        return deltas, Close(self._request_id, self._choice, self._count, output.end) if self._two_phase else None

    def _discard(self, output: Output) -> tuple[list[TextDelta], Close | None]:
        """Discards the one output of a request whose prompt alone was to be computed: usage does not count it."""
        if output.end is None:
            return [], None
        self.has_ended = True
        return [], Close(self._request_id, self._choice, 0, output.end if output.end is Finish.ERROR else Finish.LENGTH)


class AnswerBuilder:
    """All choices of one request: the engine's outputs in, parts out; of each choice `ChoiceStart` first, `ChoiceEnd` last.

    open_choices  number of choices that have not ended
    flowing       choices that have begun and not ended: each brings deltas alone, by `ChoiceBuilder.push`
    """

    def __init__(self, request: Admitted, params: SamplingParams, tokenizer: Tokenizer, first_index: int = 0) -> None:
        """`first_index`: the index of choice 0 in the parts."""
        self.open_choices = request.choices
        self.flowing: dict[int, ChoiceBuilder] = {}
        self._prompt = request.prompt
        self._choices = [ChoiceBuilder(request, index, params, tokenizer) for index in range(request.choices)]
        self._first_index = first_index
        self._started: set[int] = set()
        self._prompt_logprobs: Sequence[TokenLogprobs | None] | None = None if request.prompt_logprobs is not None else ()
        self._held: list[AnswerPart] = []
        """Parts of other choices, until choice 0 has scored the prompt for all."""

    def cumulative_logprob(self, choice: int) -> float | None:
        """Sum over a choice's outputs so far; None where log-probabilities were not computed."""
        return self._choices[choice].cumulative_logprob

    def process(self, item: Output | Closed) -> tuple[list[AnswerPart], Close | None]:
        """Parts that result from the item, and the close to send to the engine, if it waits for one."""
        number, close = item.choice, None
        choice, index = self._choices[number], self._first_index + number
        parts: list[AnswerPart] = []
        if isinstance(item, Output):
            deltas, close = choice.process(item)
            if number not in self._started and item.ids:
                parts.append(self._start(number))
            for delta in deltas:
                if delta.ids:
                    parts.append(ChoiceDelta(index, delta))
            if choice.has_ended:
                self.flowing.pop(number, None)
            if choice.has_ended and parts and isinstance(last := parts[-1], ChoiceDelta):
                parts[-1] = ChoiceDelta(index, last.delta, is_last=True)
        else:
            if number not in self._started:
                parts.append(self._start(number))
            self.open_choices -= 1
            end = ChoiceEnd(
                index, item.reason, choice.stop_reason, item.usage, choice.cumulative_logprob, item.message, tuple(choice.last_ids)
            )
            parts.append(end)
        if self._prompt_logprobs is None:
            self._held += parts
            return [], close
        if self._held:
            scores = self._prompt_logprobs
            parts += [replace(each, prompt_logprobs=scores) if isinstance(each, ChoiceStart) else each for each in self._held]
            self._held = []
        return parts, close

    def _start(self, number: int) -> ChoiceStart:
        self._started.add(number)
        if self._prompt_logprobs is None and number == 0:
            self._prompt_logprobs = (None, *self._choices[0].prompt_logprobs)
        if self._prompt_logprobs is not None and not self._held and not self._choices[number].has_ended:
            self.flowing[number] = self._choices[number]
        return ChoiceStart(self._first_index + number, self._prompt, self._prompt_logprobs or ())


@dataclass(frozen=True, slots=True)
class Election:
    """The result of a vote. answer: None where no text has one; votes of the `voters` texts for it."""

    answer: str | None
    votes: int
    voters: int


class CollectedChoice:
    """One choice as far as its parts have come. `start` and `end` are set when their parts have come; `has_ended`: the last has;
    `election`: the vote that it has won."""

    start: ChoiceStart
    end: ChoiceEnd

    def __init__(self) -> None:
        self.deltas: list[TextDelta] = []
        self.has_ended = False
        self.election: Election | None = None

    def add(self, part: AnswerPart) -> None:
        """Adds the next part."""
        match part:
            case ChoiceStart():
                self.start = part
            case ChoiceDelta():
                self.deltas.append(part.delta)
            case ChoiceEnd():
                self.end, self.has_ended = part, True

    def renumber(self, index: int) -> None:
        """Gives a choice that has ended its index among those that are answered."""
        self.start, self.end = replace(self.start, index=index), replace(self.end, index=index)

    @property
    def text(self) -> str:
        """The outputs' text."""
        return "".join(delta.text for delta in self.deltas)

    @property
    def ids(self) -> list[int]:
        """The outputs' ids."""
        return [token for delta in self.deltas for token in delta.ids]

    @property
    def offsets(self) -> list[int]:
        """Characters of the outputs' text before each id."""
        return [offset for delta in self.deltas for offset in delta.offsets]

    @property
    def logprobs(self) -> list[TokenLogprobs]:
        """One per id where they were asked for."""
        return [each for delta in self.deltas for each in delta.logprobs]


def best_indices(cumulative: Sequence[float], n: int) -> list[int]:
    """`best_of`: indices of the n answers with the highest summed log-probability, likeliest first, of equals the first; NaN last."""
    return sorted(range(len(cumulative)), key=lambda index: (isnan(cumulative[index]), -cumulative[index], index))[:n]
