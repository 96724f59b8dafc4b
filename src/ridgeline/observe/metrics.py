"""Metrics of a running engine, computed from its events alone: counters, gauges and histograms as plain numbers.

Owns the definition of each metric. Reads no clock (events carry the engine's time) and knows no exposition format (`observe.prometheus`).
"""

from bisect import bisect_left
from dataclasses import dataclass, field

from ridgeline.core import events
from ridgeline.core.events import Event, Finish
from ridgeline.observe.ends import AnswerEnds

SECONDS = (
    0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 60.0, 120.0, 300.0, 600.0,
)
"""Bounds from 1 ms on: the queue of a healthy server is that short."""
TOKENS = tuple(float(1 << power) for power in range(21))


class Histogram:
    """Counts of observations in buckets; bucket i holds values ≤ `bounds[i]` that no earlier one holds, the last everything above."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        """Counts one value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    @property
    def count(self) -> int:
        """Observations so far."""
        return sum(self.counts)


@dataclass(slots=True)
class _OpenRequest:
    arrived: float
    prompt_tokens: int
    open_choices: int
    choices: dict[int, "_StartedChoice"] = field(default_factory=dict)


@dataclass(slots=True)
class _StartedChoice:
    """A choice that has had a row. `sequence` changes when it gets another row."""

    request: _OpenRequest
    sequence: int
    last_token_at: float | None = None


class Metrics:
    """`apply` each event once, in order; read the attributes at any time. Times are seconds, those of requests since their arrival at the
    front end; sizes are tokens or blocks."""

    def __init__(self) -> None:
        self.prompt_tokens = 0
        self.generation_tokens = 0
        self.prefix_queries = 0
        self.prefix_hits = 0
        self.preemptions = 0
        self.draft_tokens = 0
        self.accepted_tokens = 0
        """Drafted ids that were accepted."""
        self.evicted_blocks = 0
        self.blocks_to_host = 0
        self.blocks_from_host = 0
        self.host_blocks = 0
        """Blocks of the host that hold something, as of the last plan."""
        self.host_hits = 0
        """Tokens taken from the prefix cache, prompts' or not, of which blocks were copied back from the host."""
        self.steps = 0
        self.late_steps = 0
        self.rejected = 0
        self.restarts = 0
        """Engines that were started because the one before had ended."""
        self.continued = 0
        """Requests that went on in another engine, once for each."""
        self.finished: dict[Finish, int] = dict.fromkeys(Finish, 0)
        self.free_blocks: int | None = None
        """Blocks without holder or content, as of the last plan, or now where the engine is idle; None before either."""
        self.cached_blocks = 0
        self.ends = AnswerEnds()
        """Of answers, as the front end sees them: events hold no ids."""
        self.time_to_first_token = Histogram(SECONDS)
        self.inter_token = Histogram(SECONDS)
        self.end_to_end = Histogram(SECONDS)
        self.queue = Histogram(SECONDS)
        self.step_run = Histogram(SECONDS)
        self.step_tokens = Histogram(TOKENS)
        self.request_prompt = Histogram(TOKENS)
        self.request_generation = Histogram(TOKENS)
        self._open: dict[str, _OpenRequest] = {}
        self._rows: dict[int, _StartedChoice] = {}
        """Choices that have a row, by sequence number."""
        self._ended_rows: dict[int, _StartedChoice] = {}
        """Choices that lost their row since the last step: the step's own event comes after their end."""

    @property
    def running(self) -> int:
        """Choices that have a row."""
        return len(self._rows)

    @property
    def waiting(self) -> int:
        """Choices without a row: not started yet, or preempted."""
        return sum(request.open_choices for request in self._open.values()) - self.running

    def kv_cache_usage(self, blocks: int) -> float:
        """Share of so many KV blocks that somebody holds."""
        return 0.0 if not blocks or self.free_blocks is None else 1 - (self.free_blocks + self.cached_blocks) / blocks

    def apply(self, event: Event) -> None:
        """Updates the metrics by one event."""
        match event:
            case events.Computed():
                self._computed(event)
            case events.Scheduled():
                self.steps += 1
                self.step_tokens.observe(sum(event.count))
                self.free_blocks, self.cached_blocks = event.free_blocks, event.cached_blocks
                self.host_blocks = event.host_blocks
            case events.Evicted():
                self.evicted_blocks += 1
            case events.Moved():
                self.blocks_to_host += event.out
                self.blocks_from_host += not event.out
            case events.StepTimed():
                self.step_run.observe(event.timings.run)
            case events.Idle():
                self.free_blocks, self.cached_blocks, self.host_blocks = event.free_blocks, event.cached_blocks, event.host_blocks
            case events.StepLate():
                self.late_steps += 1
            case events.Admitted() if event.request_id in self._open:
                self.continued += 1
            case events.Admitted():
                self._open[event.request_id] = _OpenRequest(event.arrived, event.prompt_tokens, event.choices)
                self.prompt_tokens += event.prompt_tokens
            case events.Started():
                self._started(event)
            case events.PrefixHit():
                self.prefix_hits += event.tokens
                self.host_hits += event.from_host
            case events.Preempted():
                self.preemptions += 1
                self._free_row(event.request_id, event.choice)
            case events.Closed():
                self._closed(event)
            case events.Rejected():
                self.rejected += 1
            case _:
                pass

    def engine_lost(self, restarts: int) -> None:
        """Takes all choices from their rows: the engine has ended. Those that are open go on in another one, or are closed by an event."""
        self.restarts = restarts
        self._rows.clear()
        self._ended_rows.clear()
        self.free_blocks, self.cached_blocks, self.host_blocks = None, 0, 0

    def _started(self, event: events.Started) -> None:
        request = self._open.get(event.request_id)
        if request is None:
            return
        choice = request.choices.get(event.choice)
        if choice is None:
            choice = request.choices[event.choice] = _StartedChoice(request, event.sequence)
            self.prefix_queries += request.prompt_tokens
            self.queue.observe(event.time - request.arrived)
        choice.sequence = event.sequence
        self._rows[event.sequence] = choice

    def _computed(self, event: events.Computed) -> None:
        self.draft_tokens += event.drafted
        self.accepted_tokens += event.accepted
        for sequence, sampled in zip(event.sequences, event.sampled, strict=True):
            if not sampled:
                continue
            self.generation_tokens += sampled
            choice = self._rows.get(sequence) or self._ended_rows.get(sequence)
            if choice is None:
                continue
            if choice.last_token_at is None:
                self.time_to_first_token.observe(event.time - choice.request.arrived)
            else:
                self.inter_token.observe((event.time - choice.last_token_at) / sampled)
            choice.last_token_at = event.time
        self._ended_rows.clear()

    def _closed(self, event: events.Closed) -> None:
        self.finished[event.reason] += 1
        request = self._open.get(event.request_id)
        if request is None:
            return
        self._free_row(event.request_id, event.choice)
        self.end_to_end.observe(event.time - request.arrived)
        self.request_prompt.observe(event.usage.prompt_tokens)
        self.request_generation.observe(event.usage.completion_tokens)
        request.open_choices -= 1
        if request.open_choices == 0:
            del self._open[event.request_id]

    def _free_row(self, request_id: str, number: int) -> None:
        request = self._open.get(request_id)
        choice = request.choices.get(number) if request else None
        if choice is not None and self._rows.pop(choice.sequence, None) is not None:
            self._ended_rows[choice.sequence] = choice
