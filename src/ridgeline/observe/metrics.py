"""Metrics of a running engine, computed from its events alone: counters, gauges and histograms as plain numbers.

Owns the definition of each metric. Reads no clock (events carry the engine's time) and knows no exposition format (`observe.prometheus`).
"""

from collections import Counter
from operator import add
from typing import Final

from ridgeline.core import events
from ridgeline.core.events import Event, Finish
from ridgeline.core.plan import ExpertReads
from ridgeline.observe.ends import AnswerEnds
from ridgeline.observe.histogram import Histograms
from ridgeline.observe.requests import COMPLETE, Choice, ChoiceTimes, OnChoice, OpenRequest, Result, Tenants, objective_of
from ridgeline.planning.objectives import Objective

REJECTIONS: Final = ("overloaded", "rate_limit_exceeded", "too_many_connections")
"""Codes of errors by which a request is told to come back later."""
NO_OBJECTIVE: Final = Objective()


class Metrics(Histograms):
    """`apply` each event once, in order; read the attributes at any time. Times are seconds, those of requests since their arrival at the
    front end; sizes are tokens or blocks."""

    brown_out = 0
    """Level of `server.brown_out`; 0: none."""
    expected_wait = 0.0
    """Seconds for which a new request should wait for a row."""

    def __init__(self, objective: Objective = NO_OBJECTIVE, on_choice: OnChoice | None = None) -> None:
        """`objective`: what a good request keeps; `on_choice` is called with the end of each choice."""
        super().__init__()
        self.objective = objective
        self.tenants = Tenants()
        self.prompt_tokens = 0
        self.generation_tokens = 0
        self.prefix_queries = 0
        self.prefix_hits = 0
        self.cached_tokens = 0
        """Prompt tokens taken from the prefix cache, of requests whose first choice has ended; `prefix_hits` counts resumptions too."""
        self.preemptions = 0
        self.experts: ExpertReads | None = None
        self.draft_tokens = 0
        self.accepted_tokens = 0
        """Drafted ids that were accepted."""
        self.drafting: events.Drafting | None = None
        """The newest outlook of speculation; None where nothing drafts, or has been told yet."""
        self.evicted_blocks = 0
        self.blocks_to_host = 0
        self.blocks_from_host = 0
        self.host_blocks = 0
        """Blocks of the host that hold something, as of the last plan."""
        self.host_hits = 0
        """Tokens taken from the prefix cache, prompts' or not, of which blocks were copied back from the host."""
        self.tiers: dict[str, Counter[str]] = {}
        """Totals by tier: tokens that prompts had of it, and the blocks of `events.TierUsed`."""
        self.engine_starts = 0
        """Starts of the engine's process, the first included."""
        self.steps = 0
        self.late_steps = 0
        self.swaps = dict.fromkeys(("kept", "rolled_back", "failed"), 0)
        """Swaps of the model, by what became of them; one that is still watched is none of these yet."""
        self.continued = 0
        """Requests that went on in another engine, once for each."""
        self.answers: Counter[tuple[int, str]] = Counter()
        """Answers to HTTP requests by status and code of the error, "" without one; probes apart."""
        self.results = dict.fromkeys(Result, 0)
        self.useful_tokens = 0
        """Generated tokens of answers that came to their end."""
        self.good_tokens = 0
        """Generated tokens of requests within the objective."""
        self.finished: dict[Finish, int] = dict.fromkeys(Finish, 0)
        self.free_blocks: int | None = None
        """Blocks without holder or content, as of the last plan, or now where the engine is idle; None before either."""
        self.cached_blocks = 0
        self.ends = AnswerEnds()
        """Ends of answers, as the front end sees them: events hold no ids."""
        self._on_choice = on_choice
        self._open: dict[str, OpenRequest] = {}
        self._rows: dict[int, Choice] = {}
        """Choices that have a row, by sequence number."""
        self._ended_rows: dict[int, Choice] = {}
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
                self._expert_reads(event.timings.experts)
            case events.Idle():
                self.free_blocks, self.cached_blocks, self.host_blocks = event.free_blocks, event.cached_blocks, event.host_blocks
            case events.Drafting():
                self.drafting = event
            case events.StepLate():
                self.late_steps += 1
            case events.Admitted() if event.request_id in self._open:
                self.continued += 1
            case events.Admitted():
                self._admitted(event)
            case events.Started():
                self._started(event)
            case events.PrefixHit():
                self.prefix_hits += event.tokens
                self.host_hits += event.from_host
                if event.from_tier:
                    self._tier(event.tier)["hits"] += event.from_tier
            case events.TierUsed():
                self._tier(event.tier).update(
                    fetched=event.fetched, kept=event.kept, bad=event.bad, dropped=event.dropped, failures=event.failures,
                    converted=event.converted, refused=event.refused,
                )  # fmt: skip
            case events.Preempted():
                self.preemptions += 1
                self._count_preemption(event)
                self._free_row(event.request_id, event.choice)
            case events.Closed():
                self._closed(event)
            case _:
                pass

    def _tier(self, name: str) -> Counter[str]:
        return self.tiers.setdefault(name, Counter())

    def engine_lost(self) -> None:
        """Takes all choices from their rows: the engine has ended. Those that are open go on in another one, or are closed by an event."""
        self._rows.clear()
        self._ended_rows.clear()
        self.free_blocks, self.cached_blocks, self.host_blocks = None, 0, 0
        self.drafting = None

    def engine_replaced(self) -> None:
        """Gives choices in rows numbers that no sequence has: the engine of another model counts its own, and this one's go on beside."""
        for rows in (self._rows, self._ended_rows):
            kept = {-1 - number: choice for number, choice in rows.items()}
            for number, choice in kept.items():
                choice.sequence = number
            rows.clear()
            rows.update(kept)

    def http_ended(self, status: int, error: str | None, tenant: str) -> None:
        """Counts the answer to an HTTP request. One that is rejected, at the door or in a stream, is the tenant's."""
        self.answers[status, error or ""] += 1
        if error in REJECTIONS:
            self.tenants.find(tenant).rejected += 1

    @property
    def rejected(self) -> dict[str, int]:
        """Requests that were rejected as there was no room, or no quota left, by code."""
        return {code: sum(count for (_, error), count in self.answers.items() if error == code) for code in REJECTIONS}

    def _admitted(self, event: events.Admitted) -> None:
        tenant = self.tenants.find(event.tenant)
        objective = objective_of(event, self.objective)
        self._open[event.request_id] = OpenRequest(event.arrived, event.prompt_tokens, event.choices, tenant, objective)
        self.prompt_tokens += event.prompt_tokens
        tenant.prompt_tokens += event.prompt_tokens
        tenant.open_choices += event.choices
        self.request_choices.observe(event.choices)
        self.request_max_tokens.observe(event.max_tokens)

    def _started(self, event: events.Started) -> None:
        request = self._open.get(event.request_id)
        if request is None:
            return
        choice = request.choices.get(event.choice)
        if choice is None:
            choice = request.choices[event.choice] = Choice(request, event.sequence, event.time)
            self.prefix_queries += request.prompt_tokens
            self.queue.observe(event.time - request.arrived)
        choice.sequence = event.sequence
        self._rows[event.sequence] = choice

    def _expert_reads(self, read: ExpertReads | None) -> None:
        """Adds what a step read of experts; None where all are in memory."""
        if read is not None:
            self.experts = ExpertReads(*map(add, self.experts or ExpertReads(), read))

    def _computed(self, event: events.Computed) -> None:
        self.draft_tokens += event.drafted
        self.accepted_tokens += event.accepted
        rows, ended, now = self._rows, self._ended_rows, event.time
        gap, equal = -1.0, 0
        for sequence, sampled in zip(event.sequences, event.sampled, strict=True):
            if not sampled:
                continue
            self.generation_tokens += sampled
            choice = rows.get(sequence) or ended.get(sequence)
            if choice is None:
                continue
            choice.tokens += sampled
            last, choice.last_token_at = choice.last_token_at, now
            if last is None:
                choice.first_token_at = now
                self.time_to_first_token.observe(now - choice.request.arrived)
                choice.request.tenant.time_to_first_token.observe(now - choice.request.arrived)
                continue
            mine = (now - last) / sampled
            if mine != gap and equal:  # rows of a batch mostly have had their last token together
                self.inter_token.observe(gap, equal)
                equal = 0
            gap = mine
            equal += 1
        if equal:
            self.inter_token.observe(gap, equal)
        ended.clear()

    def _closed(self, event: events.Closed) -> None:
        self.finished[event.reason] += 1
        request = self._open.get(event.request_id)
        if request is None:
            return
        self._free_row(event.request_id, event.choice)
        choice = request.choices.get(event.choice)
        times = ChoiceTimes(request.arrived, None, None, None, event.time) if choice is None else choice.end(event)
        self.request_preemptions.observe(0 if choice is None else choice.preemptions)
        self._observe_end(event, times)
        request.close(event, times)
        if request.open_choices == 0:
            del self._open[event.request_id]
            self._count_result(request, request.result)
        if self._on_choice is not None:
            self._on_choice(event, times)

    def _observe_end(self, event: events.Closed, times: ChoiceTimes) -> None:
        usage = event.usage
        self.cached_tokens += usage.cached_tokens if event.choice == 0 else 0
        self.request_computed.observe(usage.prompt_tokens - usage.cached_tokens)
        self.end_to_end.observe(event.time - times.arrived)
        self.request_prompt.observe(usage.prompt_tokens)
        self.request_generation.observe(usage.completion_tokens)
        if times.started is None or times.first_token_at is None or times.last_token_at is None:
            return
        self.prefill.observe(times.first_token_at - times.started)
        self.decode.observe(times.last_token_at - times.first_token_at)
        self.inference.observe(times.last_token_at - times.started)
        tpot = times.tpot(usage.completion_tokens)
        if tpot is not None:
            self.time_per_output_token.observe(tpot)

    def _count_result(self, request: OpenRequest, result: Result) -> None:
        self.results[result] += 1
        request.tenant.results[result] += 1
        request.tenant.generation_tokens += request.tokens
        self.useful_tokens += request.tokens if result in COMPLETE else 0
        self.good_tokens += request.tokens if result is Result.GOOD else 0

    def _count_preemption(self, event: events.Preempted) -> None:
        request = self._open.get(event.request_id)
        choice = request.choices.get(event.choice) if request else None
        if choice is not None:
            choice.preemptions += 1

    def _free_row(self, request_id: str, number: int) -> None:
        request = self._open.get(request_id)
        choice = request.choices.get(number) if request else None
        if choice is not None and self._rows.pop(choice.sequence, None) is not None:
            self._ended_rows[choice.sequence] = choice
