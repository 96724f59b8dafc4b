"""Generation for every endpoint: admits and submits prompts, reads the engine's streams, answers provisional ends, aborts.

Nothing is awaited between admission and submission, so that the next client's request finds this one in the queue. How outputs become
parts of answers is `engine.answer`'s.
"""

import time
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from functools import partial
from typing import Final

from ridgeline.core.commands import Close, Output
from ridgeline.core.commit import NOT_FINITE
from ridgeline.core.events import Finish
from ridgeline.core.params import Admitted, Grammar, SamplingParams
from ridgeline.engine.answer import AnswerBuilder, ChoiceDelta, ChoiceEnd, ChoiceStart
from ridgeline.engine.beams import step_params
from ridgeline.engine.client import EngineClient
from ridgeline.engine.streams import Behind, RequestStream, Wakeup
from ridgeline.errors import OverloadedError, RequestError
from ridgeline.observe.charges import MAX_STEPS_IN_LOOP, charge, slowest_choice
from ridgeline.observe.ledger import FrontEnd, Ledger
from ridgeline.server import replies, wire
from ridgeline.server.answer import AnswerSource, Idle, Part, UsageCounter
from ridgeline.server.beams import MAX_CONCURRENT_SEARCHES, BeamGeneration
from ridgeline.server.callers import current_caller
from ridgeline.server.encoding import encode_bad_words
from ridgeline.server.errors import ApiError
from ridgeline.server.notes import Notes
from ridgeline.server.relay import Relay, close_of
from ridgeline.server.routers import is_continued, tell_prefix
from ridgeline.server.service import Service
from ridgeline.server.shortcut import Shortcut
from ridgeline.server.targets import Deadline, LastStart, Targets, too_late
from ridgeline.text.tokenizer import Tokenizer

MAX_PROMPT_LOGPROBS: Final = 400_000
"""Log-probabilities of prompt tokens in one answer: some 25 MB of JSON."""


async def start_generation(
    service: Service, payload: wire.GenerationRequest, prompts: Sequence[Sequence[int]], params: SamplingParams, notes: Notes,
    stop_ids: frozenset[int] = frozenset(), grammar: Grammar | None = None,
) -> AnswerSource:  # fmt: skip
    """Admits and submits the prompts. `stop_ids` end a sequence as EOS does; `grammar` is `params.structured_outputs` compiled.

    Raises RequestError, OverloadedError or EngineDeadError; then nothing has been submitted.
    """
    if notes.tokenised is not None:
        service.metrics.tokenizer.observe(notes.tokenised - notes.arrived)
    model = service.model
    bad_words = await encode_bad_words(model.tokenizer, params.bad_words)
    # From here on nothing is awaited: the next client's request finds this one in the queue.
    priority, salt = payload.priority or 0, payload.cache_salt or ""
    relay = current_caller().relay
    params = _limited(service, params, priority) if relay is None or not relay.goes_on else relay.params(params)
    if priority and not service.has_priorities:
        notes.ignore("priority", "requests are served in order of arrival, --scheduling-policy priority was not given")
    targets = current_caller().targets.with_body(payload).or_target(service.config.ttft_target)
    if payload.ttft_ms is not None and not service.has_targets:
        notes.ignore("ttft_ms", "requests are served in order of arrival, neither --scheduling-policy slo nor --ttft-target was given")
    until = Deadline(notes.arrived, targets.deadline_ms) if targets.deadline_ms else None
    admit = service.admitter(
        params, priority=priority, salt=salt, targets=targets, stop_ids=stop_ids, bad_words=bad_words, arrived=notes.arrived,
        grammar=grammar,
    )  # fmt: skip
    requests = [admit(prompt) for prompt in prompts]
    if relay is not None and len(requests) == 1:
        notes.headers.update(tell_prefix(requests[0], model.limits.kv.root))
    _check_prompt_logprobs(requests, params, "logprobs" if payload.prompt_logprobs is None else "prompt_logprobs")
    tokenizer = model.tokenizer
    if not payload.use_beam_search:
        on_end = None if params.ignore_eos else service.answer_ended
        follows = None if params.prompt_logprobs is not None else relay
        if follows is not None:
            follows.begin(requests, model.limits)
        engine = service.engine if is_continued() else _enter(service, requests, requests, targets)
        if service.tracer is not None:
            service.tracer.admitted(requests)
        for request in requests:
            service.ledger.submitted(request.request_id, _front(notes), current_caller().owner)
            service.prefixes.add(request, model.engine.info.kv.block_tokens)
        last_start = None if is_continued() else _last_start(service, requests, targets, notes.arrived)
        generation = Generation(engine, tokenizer, requests, params, on_end, until, follows, last_start)
        if payload.explain:
            generation.usage.time_spent = partial(_time_spent, service.ledger, generation.id)
        return generation
    engine = _enter(service, requests, requests[:MAX_CONCURRENT_SEARCHES], targets)
    admit_step = service.admitter(step_params(requests[0].choices), priority=priority, salt=salt, targets=targets)

    def submit_step(ids: Sequence[int]) -> AnswerSource:
        return Generation(engine, tokenizer, [admit_step(ids)], SamplingParams(), until=until)

    length_penalty = 1.0 if payload.length_penalty is None else payload.length_penalty
    return BeamGeneration(tokenizer, requests, params, submit_step, length_penalty)


def _limited(service: Service, params: SamplingParams, priority: int) -> SamplingParams:
    """The parameters that a brown-out leaves of them. Raises ApiError where it takes no such request."""
    if service.brown_out is None:
        return params
    service.brown_out.check(current_caller(), priority if service.has_priorities else 0)
    return service.brown_out.limit(params, current_caller())


def _enter(service: Service, requests: Sequence[Admitted], at_once: Sequence[Admitted], targets: Targets) -> EngineClient:
    """The engine's client, if it can take `at_once`, and the caller's key has tokens for the prompts of all. Raises ApiError,
    OverloadedError, EngineDeadError."""
    engine = service.check_capacity(sum(request.choices for request in at_once), targets)
    quota = current_caller().quota
    if quota is not None:
        quota.take_tokens(sum(len(request.prompt) for request in requests), time.monotonic())
    return engine


def _last_start(service: Service, requests: Sequence[Admitted], targets: Targets, arrived: float) -> LastStart | None:
    """The moment by which one of these requests must have a row, and its refusal behind it, with --ttft-target; None: there is none."""
    if service.config.ttft_target is None:
        return None
    caller, deployment, choices = current_caller(), service.deployment, sum(request.choices for request in requests)
    info = deployment.model.engine.info
    milliseconds = targets.last_start_ms(max(len(request.prompt) for request in requests), info.rows, info.seconds)

    def refusal() -> OverloadedError:
        open_ = {} if deployment.client is None else deployment.client.open_choices
        return service.waiting_room.late(caller, choices, info.rows, open_, time.monotonic())

    return LastStart(Deadline(arrived, milliseconds), refusal)


def _front(notes: Notes) -> FrontEnd:
    """Times of a request up to here, for the ledger."""
    began = notes.arrived if notes.encoding is None else notes.encoding
    rendered = began if notes.rendered is None else notes.rendered
    tokenised = rendered if notes.tokenised is None else notes.tokenised
    return FrontEnd(notes.arrived, notes.arrived, time.monotonic(), rendered - began, max(0.0, tokenised - rendered), notes.grammar_seconds)


def _time_spent(ledger: Ledger, request_id: str) -> replies.TimeSpent | None:
    """The time by cause of a request that has had its last token; None for one of so many steps that this would hold up others."""
    record = ledger.find(request_id)
    if record is None or ledger.steps.end - record.first_step > MAX_STEPS_IN_LOOP:
        return None
    number = slowest_choice(record)
    ttft, total = (charge(ledger, record, number, to_first=to_first, named=False) for to_first in (True, False))
    in_ms = ({cause: round(1e3 * seconds, 3) for cause, seconds in each.seconds.items()} for each in (ttft, total))
    return replies.TimeSpent(total.first, *in_ms)


def _check_prompt_logprobs(requests: Sequence[Admitted], params: SamplingParams, param: str) -> None:
    """Raises RequestError where one answer would have too many log-probabilities of prompts."""
    if params.prompt_logprobs is None:
        return
    count = sum(len(request.prompt) for request in requests) * params.n * (1 + params.prompt_logprobs)
    if count > MAX_PROMPT_LOGPROBS:
        raise RequestError(
            f"{count} log-probabilities of prompts are asked for; at most {MAX_PROMPT_LOGPROBS} are given in one answer. Send fewer "
            f"prompts, or lower {param} or n.", param=param
        )  # fmt: skip


class Generation:
    """All choices of one HTTP request, submitted when it is made. `abort` it whatever happens."""

    def __init__(
        self,
        engine: EngineClient,
        tokenizer: Tokenizer,
        requests: Sequence[Admitted],
        params: SamplingParams,
        on_end: Callable[[ChoiceEnd], None] | None = None,
        until: Deadline | None = None,
        relay: Relay | None = None,
        last_start: LastStart | None = None,
    ) -> None:
        """`on_end` is called with the end of each choice; `relay` is told of all outputs, and has those of an answer that goes on. Raises
        EngineDeadError while no engine takes requests."""
        self._on_end = on_end
        self._until = until
        self._last_start = last_start
        self.may_be_refused = last_start is not None
        self._engine = engine
        self._requests = requests
        self._wakeup = Wakeup()
        self._quota = current_caller().quota
        self.id = requests[0].request_id
        self.relay = relay
        self.shortcut: Shortcut | None = None
        self._idle_seconds: float | None = None
        self._error: Exception | None = None
        """Failure of the short way, which the task raises."""
        names = tuple([request.request_id for request in requests])
        self.usage = UsageCounter(requests[0].choices, sum(len(request.prompt) for request in requests), request_ids=names)
        self._prompts: list[tuple[AnswerBuilder, RequestStream]] = []
        try:
            for number, request in enumerate(requests):
                builder = AnswerBuilder(request, params, tokenizer, number * request.choices)
                self._prompts.append((builder, self._submit(number, request)))
        except RequestError:  # one of them has not ended here yet, and belongs to another answer
            for _, stream in self._prompts:
                engine.abort(stream.request.request_id)
            raise

    def _submit(self, number: int, request: Admitted) -> RequestStream:
        """The stream of one prompt's request: of its beginning, or behind what another replica has put out of it."""
        items = self.relay.items(number, request) if self.relay is not None else []
        behind = Behind(items, self.relay.cached(number)) if self.relay is not None and items else None
        return self._engine.submit(request, self._wakeup, behind=behind)

    def _replayed(self) -> Iterator[Part]:
        """The parts that another replica has made of its outputs. Ends that it had not confirmed are confirmed here."""
        if self.relay is None:
            return
        counts: dict[tuple[int, int], int] = {}
        closes: dict[tuple[int, int], Close] = {}
        for number, item in self.relay.replay(self._requests):
            place = (number, item.choice)
            builder, stream = self._prompts[number]
            parts, close = builder.process(item)
            if isinstance(item, Output):
                counts[place] = counts.get(place, 0) + len(item.ids)
                if (close := close_of(item, close, counts[place])) is not None:
                    closes.setdefault(place, close)
            else:
                closes.pop(place, None)
            for part in parts:
                if isinstance(part, ChoiceStart) and part.index == 0:
                    self.usage.cached_at_start = stream.cached_of(0)
                self.usage.add(part)
                yield part
        for close in closes.values():
            self._engine.send(close)

    def abort(self) -> None:
        """Ends what is still open in the engine. Safe to call at any time, more than once."""
        for request in self._requests:
            self._engine.abort(request.request_id)

    def _failure(self, message: str | None) -> ApiError:
        """The error for a choice that the engine ended with one: mostly a grammar of the client's that cannot be followed to its end."""
        if message and message != NOT_FINITE and any(request.sampling.grammar for request in self._requests):
            return ApiError("grammar_failed", message)
        return ApiError("engine_failed", message or "the engine ended this request with an error")

    def _take(self, shortcut: Shortcut, number: int, output: Output) -> bool:
        """Tells of an output where it arrives. False: it needs the task. What goes wrong ends this stream alone."""
        _, choice, ids, logprobs, end, prompt_logprobs, _ = output
        builder, stream = self._prompts[number]
        flowing = builder.flowing.get(choice)
        if not self._wakeup.is_awaited or flowing is None or end is not None or prompt_logprobs is not None or not shortcut.is_open:
            return False
        try:
            if self.relay is not None:
                self.relay.note(number, output, stream.cached_of(choice))
            delta, close = flowing.push(ids, logprobs)
            if close is not None:
                del builder.flowing[choice]
                self._engine.send(close)
            if delta.ids:
                index = number * stream.request.choices + choice
                self.usage.count(index, len(delta.ids))
                shortcut.tell(ChoiceDelta(index, delta, is_last=close is not None))
        except Exception as error:
            self._error = error
            self._wakeup.set()
        self._wakeup.postpone(self._idle_seconds)
        return True

    def _check_moments(self) -> None:
        """Raises ApiError when the deadline has passed, OverloadedError where no choice has a row in time."""
        if self._until is not None and self._until.has_passed:
            raise too_late(self._until.milliseconds)
        if self._last_start is not None and self._last_start.by.has_passed:
            if not any(stream.has_begun for _, stream in self._prompts):
                raise self._last_start.refusal()
            self._last_start = None

    async def parts(self, idle_seconds: float | None = None, *, whole: bool = False) -> AsyncGenerator[Part, None]:
        """Parts of all choices as they come. Iterate it once. What is not read yet waits in the engine's streams, which have a bound.

        idle_seconds  after that long without a part comes an `Idle` one; None: never
        whole         parts are wanted at the end alone: those of a choice come together there, with one wake of this task
        Raises what the engine's client raises, ApiError where the engine ended a choice with an error, or when its deadline has passed, and
        OverloadedError where it has no row in time.
        """
        remaining = sum(request.choices for request in self._requests)
        self._idle_seconds = idle_seconds
        moments = (self._until, None if self._last_start is None else self._last_start.by)
        timers = [each.call(self._wakeup.set) for each in moments if each is not None]
        if whole and self.relay is None:
            for _, stream in self._prompts:
                stream.read_whole(self.usage.begin)
        try:
            for part in self._replayed():
                remaining -= isinstance(part, ChoiceEnd)
                yield part
            if self.shortcut is not None:
                for number, (_, stream) in enumerate(self._prompts):
                    stream.on_output = partial(self._take, self.shortcut, number)
            while remaining:
                if not await self._wakeup.wait(idle_seconds):
                    yield Idle()
                if self._error is not None:
                    raise self._error
                self._check_moments()
                for number, (builder, stream) in enumerate(self._prompts):
                    while (item := stream.pop()) is not None:
                        if self.relay is not None:
                            self.relay.note(number, item, stream.cached_of(item.choice))
                        parts, close = builder.process(item)
                        if close is not None:
                            self._engine.send(close)
                        for part in parts:
                            if isinstance(part, ChoiceStart) and part.index == 0:
                                self.usage.cached_at_start = stream.cached_tokens
                            if isinstance(part, ChoiceEnd):
                                remaining -= 1
                                if part.reason is Finish.ERROR:
                                    raise self._failure(part.message)
                                if self._on_end is not None:
                                    self._on_end(part)
                            self.usage.add(part)
                            yield part
        finally:
            self.shortcut = None  # which may know of this
            for _, stream in self._prompts:
                stream.on_output = None
            self._wakeup.close()
            for timer in timers:
                timer.cancel()
            self.usage.continued = max(stream.continued for _, stream in self._prompts)
            for number, (_, stream) in enumerate(self._prompts):  # of an answer that nobody waits for any more
                for choice, open_choice in stream.choices.items():
                    self.usage.count(number * stream.request.choices + choice, open_choice.kept)
            if self._quota is not None:
                self._quota.settle(self.usage.completion_tokens, time.monotonic())
