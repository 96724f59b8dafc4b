"""The service that all endpoints share: the deployment that answers, keys, metrics, grammars.

Owns what a request passes before the engine has it: admission, its grammar, the bound on waiting requests. Knows no HTTP.
"""

import asyncio
import logging
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from typing import Final

from ridgeline import __version__
from ridgeline.config.env import cache_directory, state_directory, visible_gpu
from ridgeline.config.groups import EngineConfig, ServerConfig
from ridgeline.config.secret import read_cache_secret, read_router_key
from ridgeline.core.commands import Knob
from ridgeline.core.events import Closed, Event, Finish, StepLate
from ridgeline.core.params import Admitted, Grammar, Pooling, SamplingParams
from ridgeline.engine.admit import admit, admit_text, make_seed_source, tenant_domain
from ridgeline.engine.answer import ChoiceEnd
from ridgeline.engine.client import EngineClient
from ridgeline.engine.seats import Seats
from ridgeline.errors import OverloadedError, RequestError
from ridgeline.facts.hardware.energy import EnergyMeter, gpu_energy
from ridgeline.facts.hardware.gpu import gpu_missing
from ridgeline.observe.alone import Counterfactuals
from ridgeline.observe.cost import Spending
from ridgeline.observe.ends import repeats
from ridgeline.observe.intake import Intake
from ridgeline.observe.late_steps import LateSteps
from ridgeline.observe.ledger import Ledger
from ridgeline.observe.live import Live
from ridgeline.observe.metrics import Metrics
from ridgeline.observe.outcomes import Outcomes
from ridgeline.observe.prefixes import PromptLog
from ridgeline.observe.recorder import Recorder
from ridgeline.observe.requests import ChoiceTimes, OnChoice, parse_goodput
from ridgeline.observe.served import keep_lone_prompts
from ridgeline.observe.starts import keep_start
from ridgeline.observe.tracing import Tracer
from ridgeline.server.blocks import HeldBlocks
from ridgeline.server.brown_out import BrownOut
from ridgeline.server.callers import current_caller, private_salt
from ridgeline.server.deployment import Deployment, verification
from ridgeline.server.deployments import Deployments, renumbered
from ridgeline.server.keys import ApiKeys
from ridgeline.server.loading import Model, served_name
from ridgeline.server.notes import Notes
from ridgeline.server.response_store import open_store
from ridgeline.server.shelf import Shelf
from ridgeline.server.targets import Targets
from ridgeline.server.turns import Turns
from ridgeline.server.waiting_room import WaitingRoom
from ridgeline.text.structured import QUEUE_SECONDS, Asked, StructuredOutputCompiler
from ridgeline.text.tools.marks import begins_reasoning

_LOG = logging.getLogger("ridgeline.server")
_LEVELS: Final = {"error": logging.ERROR, "warning": logging.WARNING, "note": logging.INFO}

Admitter = Callable[[Sequence[int]], Admitted]
"""Makes an admitted request of the ids of a prompt."""

MAX_DOMAINS: Final = 256
"""Domains of the prefix cache that are remembered: most requests have one of a few."""
MAX_WAITING_GRAMMARS: Final = 16
"""New grammars of one client that wait to be compiled."""


class Service:
    """One model behind one engine. `on_progress` is called while it loads."""

    def __init__(
        self, engine_config: EngineConfig, config: ServerConfig, on_progress: Callable[[str, float], None] = lambda stage, fraction: None,
        *, beside: "Service | None" = None, seats: Seats | None = None,
    ) -> None:  # fmt: skip
        """`beside`: another model's of the same server, whose keys and stored answers are this one's too; `seats`: of all their engines."""
        self.config = config
        self.name = served_name(engine_config.model, config)
        """Name by which clients call the model."""
        self.keys: ApiKeys = ApiKeys(config.api_key, config.api_key_file) if beside is None else beside.keys
        self.shelf: Shelf = Shelf(open_store(config)) if beside is None else beside.shelf
        endpoint = config.otlp_traces_endpoint
        self.tracer = None if endpoint is None else Tracer(endpoint, self.name, __version__)
        self.ledger = Ledger()
        self.prefixes = PromptLog()
        self.metrics = Metrics(parse_goodput(config.goodput), _tell_both(self.ledger, self.tracer))
        self.outcomes = Outcomes(self.metrics)
        self.recorder = Recorder(self.ledger, self.prefixes, state_directory() / "incidents", self.outcomes.since)
        self.live = Live(
            self.metrics, Spending(self.metrics.tenants, config.price_per_hour, time.monotonic(), _meter(engine_config.runner))
        )
        self._intake = Intake(self.ledger, self.metrics, self.live)
        self.waiting_room = WaitingRoom(config.max_waiting)
        self.late_steps = LateSteps(engine_config.step_ms)
        self.deployments = Deployments(engine_config, config, self._apply_events, on_progress, seats)
        self._engine_starts = 0
        self._served_from = 0
        """Index of the first step of the model that answers."""
        self.brown_out: BrownOut | None = None
        self.set_brown_out(config.brown_out)
        self._grammars = StructuredOutputCompiler()
        self.counterfactuals = Counterfactuals()
        self._grammar_turns = Turns("the compiler of grammars", MAX_WAITING_GRAMMARS, QUEUE_SECONDS)
        self._secret: bytes = read_cache_secret(config.cache_secret_file, engine_config) if beside is None else beside._secret
        self._domain_of = lru_cache(MAX_DOMAINS)(partial(tenant_domain, self._secret))
        self.blocks = HeldBlocks(self._secret)
        self.router_key = read_router_key(config.router_key_file)
        self._draw_seed = make_seed_source(engine_config.seed)

    # ── start and end ───────────────────────────────────────────────────────────────────────────────────────────

    async def start(self) -> Model:
        """Loads; returns when requests are taken. Raises a RidgelineError that says what to change."""
        deployment = self.deployment
        model = await deployment.start()
        for name, value in deployment.knobs.items():  # of an engine that was put away
            deployment.set_knob(name, value)
        self.live.step_cost = model.engine.info.seconds
        self.recorder.serves(model.engine.info, deployment.engine_config, deployment.knobs)
        if deployment.verifying is not None:  # a model of files
            keep_start(cache_directory(), model.name, __version__, deployment.startup.phases)
        for finding in model.findings:
            _LOG.log(_LEVELS[finding.severity], "%s", finding)
        self.metrics.ends.chats = model.kind.kind == "instruct"
        return model

    async def stop(self) -> None:
        """Ends the engine and all open requests. What was served is kept as this machine's."""
        current = self.deployments.current
        await self.deployments.stop()
        if (started := verification(current)) is not None:
            await asyncio.to_thread(keep_lone_prompts, self.ledger.steps, self._served_from, started, cache_directory())
        await asyncio.to_thread(self._grammars.close)
        await asyncio.to_thread(self.counterfactuals.close)
        if self.tracer is not None:
            await asyncio.to_thread(self.tracer.close)

    @property
    def deployment(self) -> Deployment:
        """The deployment that answers: within a request, the one that it belongs to."""
        return self.deployments.mine

    def switch(self, new: Deployment | None) -> Deployment:
        """New requests go to `new`, which has started; None: to one that a later `start` loads. Returns the one before."""
        old = self.deployments.put_away() if new is None else self.deployments.switch(new)
        self._engine_starts = 0 if new is None or new.client is None else new.client.starts
        self._intake.catch_up()
        self._served_from = self.ledger.steps.end
        self.metrics.engine_replaced()
        self.ledger.steps.forget_floors()
        self.live.engine_lost()
        if new is not None:
            self.live.step_cost = new.model.engine.info.seconds
            self.recorder.serves(new.model.engine.info, new.engine_config, new.knobs)
            self.metrics.ends.chats = new.model.kind.kind == "instruct"
        if self.brown_out is not None:
            self.brown_out.forget()
        return old

    def _apply_events(self, source: Deployment, events: Sequence[Event]) -> None:
        if source is not self.deployments.current:
            for event in events:
                other = renumbered(event)
                if other is not None:
                    self.metrics.apply(other)  # which tells the ledger of ends
                if type(other) is Closed:
                    self.live.apply(other)
            return
        self._detect_restart()
        if self.blocks.asked:
            self.blocks.hear(source.client, events)
        if not self._intake.add(time.monotonic(), events):
            return
        ended = left = 0
        for event in events:
            if type(event) is Closed:
                if event.reason is Finish.ABORT and not event.usage.completion_tokens:
                    left += 1
                else:
                    ended += 1
            elif type(event) is StepLate:
                self.late_steps.apply(event)
        client = self.deployments.current.client
        if (ended or left) and client is not None:
            open_choices = sum(client.open_choices.values())
            self.waiting_room.on_ended(ended, self.model.engine.info.rows, open_choices, time.monotonic(), left)
            self.recorder.look(self.metrics, time.monotonic())
        self._update_brown_out()

    def set_brown_out(self, seconds: float | None) -> None:
        """The wait from which on less is done for each request; None: never."""
        if self.brown_out is not None:
            self.brown_out.end()
        self.brown_out = None
        if seconds is not None:
            self.brown_out = BrownOut(seconds, lambda: _knobs(self.deployments.current), self.deployments.send)
        self.metrics.brown_out = 0

    def _update_brown_out(self) -> None:
        """Called with what the engine tells of requests, and with every request, so that the level is that of now whenever it matters.
        An engine that has started again is told when its answers are checked: its own settings have been sent by then."""
        client = self.deployments.current.client
        if self.brown_out is not None and client is not None and self.deployments.current.is_checked:
            now = time.monotonic()
            self.brown_out.update(_expected_wait(self.waiting_room, self.deployments.current, now), now, client.starts)
            self.metrics.brown_out = self.brown_out.level

    def _detect_restart(self) -> None:
        """Tells the metrics of an engine that has ended."""
        client = self.deployments.current.client
        if client is not None and (client.starts != self._engine_starts or not client.is_ready):
            self._intake.catch_up()
            self.metrics.engine_starts += client.starts - self._engine_starts
            self._engine_starts = client.starts
            self.metrics.engine_lost()
            self.live.engine_lost()
            if client.last_failure is not None:
                self.recorder.record("engine", client.last_failure, time.monotonic())

    def answer_ended(self, end: ChoiceEnd) -> None:
        """Counts how an answer ended, and logs once where many end as no sound model's do."""
        by_itself = end.reason is Finish.STOP and end.stop_reason is None
        loops = end.reason is Finish.LENGTH and repeats(end.last_ids)
        suspicion = self.metrics.ends.add(end.reason, end.usage.completion_tokens, by_itself=by_itself, loops=loops)
        if suspicion is not None:
            _LOG.warning("%s", suspicion)

    # ── used by endpoints ───────────────────────────────────────────────────────────────────────────────────────

    @property
    def is_ready(self) -> bool:
        """True if a request would be taken now."""
        return self.deployment.is_ready

    @property
    def model(self) -> Model:
        """The loaded model, even while its engine restarts. Raises EngineDeadError before it is loaded."""
        return self.deployment.model

    @property
    def engine(self) -> EngineClient:
        """The engine's client. Raises EngineDeadError while no engine takes requests."""
        return self.deployment.engine

    @property
    def has_priorities(self) -> bool:
        """True if a request's priority counts."""
        return self.deployment.engine_config.scheduling_policy == "priority"

    @property
    def has_targets(self) -> bool:
        """True if requests' targets for their first tokens count."""
        return self.config.ttft_target is not None or _has_order(self.deployment)

    def current_metrics(self) -> Metrics:
        """Metrics without requests of an engine that has died."""
        self._detect_restart()
        self._intake.catch_up()
        self._update_brown_out()
        self.metrics.expected_wait = _expected_wait(self.waiting_room, self.deployments.current, time.monotonic())
        self.live.spending.sample(time.monotonic())
        self.outcomes.look(time.monotonic())
        return self.metrics

    def admitter(
        self,
        params: SamplingParams,
        *,
        priority: int,
        salt: str,
        targets: Targets,
        stop_ids: frozenset[int] = frozenset(),
        bad_words: tuple[tuple[int, ...], ...] = (),
        arrived: float | None = None,
        grammar: Grammar | None = None,
    ) -> Admitter:
        """Returns a function that admits prompts with these parameters. `stop_ids` end a sequence as EOS does; `bad_words` are those of
        `params` as ids; `arrived`: see `Admitted`.

        It raises RequestError, and never looks at the load: that is `check_capacity`'s.
        """
        model, targets = self.model, targets.or_target(self.metrics.objective.ttft)
        model.check_generates()
        limits = model.limits
        if not stop_ids <= limits.eos_ids:
            limits = replace(limits, eos_ids=limits.eos_ids | stop_ids)
        adapter = self.deployments.adapter
        domain, caller = self._domain_of(private_salt(salt)), current_caller()
        tokens, text = params.thinking_token_budget, self.config.reasoning_budget_message
        ids = None if tokens is None or model.chat is None else model.chat.reasoning_ids
        message = model.tokenizer.encode(text, add_bos=False) if ids is not None and text else ()

        def admit_prompt(prompt: Sequence[int]) -> Admitted:
            before, own = caller.relay and caller.relay.next_request(), secrets.token_hex(12) + self.shelf.tag
            request_id, draw_seed = (before.request_id, lambda: before.seed) if before else (own, self._draw_seed)
            return admit(
                prompt, params, limits, request_id=request_id, draw_seed=draw_seed, bad_words=bad_words, domain=domain,
                tenant=caller.tenant, weight=caller.weight, priority=priority, arrived=arrived, grammar=grammar,
                adapter=adapter, ttft_ms=targets.ttft_ms, itl_ms=targets.itl_ms,
                thinking=None if ids is None else ids.thinking(begins_reasoning(prompt, ids.texts, model.tokenizer), tokens, message),
            )  # fmt: skip

        return admit_prompt

    def admit_texts(self, texts: Sequence[Sequence[int]], pooling: Pooling, *, priority: int, salt: str, arrived: float) -> list[Admitted]:
        """Admits texts whose vectors are wanted. Raises RequestError, as `admitter`'s function does."""
        model, caller = self.model, current_caller()
        domain = self._domain_of(private_salt(salt))
        return [
            admit_text(
                text, pooling, model.limits, model.engine.info.width, request_id=secrets.token_hex(16), domain=domain,
                tenant=caller.tenant, weight=caller.weight, priority=priority, arrived=arrived,
            )
            for text in texts
        ]  # fmt: skip

    async def compile_grammar(self, asked: Asked | None, notes: Notes) -> Grammar | None:
        """The grammar of a structured output; None where none is asked for. Clients have new ones compiled by turns.

        Raises RequestError, OverloadedError.
        """
        if asked is None:
            return None
        began = time.monotonic()
        try:
            if not self.model.engine.info.has_grammars:
                raise RequestError(f"{asked.field} cannot be followed by this model; leave it out.", param=asked.field)
            found = await asyncio.to_thread(self._grammars.known, asked.outputs, asked.field)
            if found is None:
                async with self._grammar_turns.turn(notes.client):
                    found = await asyncio.to_thread(self._grammars.compile, asked.outputs, asked.field)
            return replace(found, is_optional=asked.is_optional)
        except (RequestError, OverloadedError):
            if asked.is_optional:
                return None
            raise
        finally:
            notes.grammar_seconds += time.monotonic() - began

    def check_capacity(self, choices: int, targets: Targets) -> EngineClient:
        """The engine's client, if the caller may submit that many more choices with these targets.

        Raises OverloadedError where too many wait already, or for too long, RequestError where so many never may, EngineDeadError while no
        engine takes requests.
        """
        deployment, caller, now, ahead = self.deployment, current_caller(), time.monotonic(), None
        engine, rows, has_order = deployment.engine, deployment.model.engine.info.rows, _has_order(deployment)
        self._update_brown_out()
        if targets.ttft_ms and has_order:
            ahead = engine.waiting_before(caller.tenant, now, now + targets.ttft_ms / 1e3)
        patience = targets.patience(has_targets=has_order or self.config.ttft_target is not None)
        self.waiting_room.check(caller, choices, rows, engine.open_choices, now, patience, ahead)
        return engine


def _has_order(deployment: Deployment) -> bool:
    """True if requests are ordered by their targets."""
    return deployment.engine_config.scheduling_policy == "slo"


def _expected_wait(room: WaitingRoom, current: Deployment, now: float) -> float:
    """Seconds for which a request that comes now should wait for a row."""
    if current.client is None or not current.is_checked:
        return 0.0
    return room.wait_seconds(sum(current.client.open_choices.values()), current.model.engine.info.rows, now)


def _meter(runner: str) -> EnergyMeter:
    """Meter of the CPU's energy, and of the GPU's where one serves."""
    serves = runner == "cuda" or (runner == "auto" and gpu_missing() is None)
    return EnergyMeter(gpu=gpu_energy(visible_gpu()) if serves else None)


def _tell_both(ledger: Ledger, tracer: Tracer | None) -> OnChoice:
    """Tells the ledger, and where there is one the tracer, of ends of choices."""

    def choice_ended(event: Closed, times: ChoiceTimes) -> None:
        ledger.choice_ended(event, times)
        if tracer is not None:
            tracer.choice_ended(event, times)

    return choice_ended


def _knobs(deployment: Deployment) -> dict[Knob, int]:
    """Settings that a brown-out changes, as they are without it."""
    config, knobs = deployment.engine_config, deployment.knobs
    found: dict[Knob, int] = {"step_ms": knobs.get("step_ms", config.step_ms)}
    if config.speculative != "off":
        found["num_speculative_tokens"] = knobs.get("num_speculative_tokens", config.num_speculative_tokens)
    return found
