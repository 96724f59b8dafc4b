"""The service that all endpoints share: the loaded model, the engine, the metrics; their start and their end.

Owns the order of starting (model file, then engine and tokenizer in parallel), the order of ending (no new request, the accepted ones, the
engine) and the bound on waiting requests. Knows no HTTP.
"""

import asyncio
import hashlib
import logging
import secrets
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from typing import Final

from ridgeline.config.env import model_stores
from ridgeline.config.groups import FAKE_PREFIX, EngineConfig, ServerConfig
from ridgeline.core.commands import Output
from ridgeline.core.events import Closed, Event, Finish, StepLate
from ridgeline.core.params import Admitted, Grammar, SamplingParams
from ridgeline.core.plan import TokenLogprobs
from ridgeline.engine.admit import ModelLimits, admit, make_seed_source, tenant_domain
from ridgeline.engine.answer import ChoiceEnd
from ridgeline.engine.canary import canary_request, judge
from ridgeline.engine.client import EngineClient
from ridgeline.engine.messages import Ready
from ridgeline.errors import ConfigError, EngineDeadError, Finding, OverloadedError, RequestError
from ridgeline.facts.headers.read import RANDOM_PREFIX
from ridgeline.facts.hub.digests import resolve_checked
from ridgeline.observe.ends import repeats
from ridgeline.observe.late_steps import LateSteps
from ridgeline.observe.metrics import Metrics
from ridgeline.server.callers import current_caller, private_salt
from ridgeline.server.keys import ApiKeys, read_cache_secret
from ridgeline.server.loading import TextAssets, load_text_assets, served_name
from ridgeline.server.structured import Asked
from ridgeline.server.turns import Turns
from ridgeline.server.waiting_room import WaitingRoom
from ridgeline.text.chat import ChatTemplate
from ridgeline.text.fim import Fim, find_fim
from ridgeline.text.prompt_cache import Encoder, PromptCache
from ridgeline.text.statements import ModelKind
from ridgeline.text.structured import QUEUE_SECONDS, StructuredOutputCompiler
from ridgeline.text.tokenizer import Tokenizer
from ridgeline.text.tokenizer_check import check_vocabulary
from ridgeline.text.tools.marks import begins_reasoning

_LOG = logging.getLogger("ridgeline.server")
_LEVELS: Final = {"error": logging.ERROR, "warning": logging.WARNING, "note": logging.INFO}


@dataclass(frozen=True, slots=True)
class Model:
    """A loaded model.

    created   seconds since 1970
    kind      base or instruct, and why
    chat      None: the model has no template
    findings  problems that checks found before the first request
    defaults  values that its authors recommend for fields that a client leaves out, by the names of `SamplingParams`
    fim       how it is asked for a text between two; None: it cannot be. The first call may read a file
    """

    name: str
    tokenizer: Tokenizer
    limits: ModelLimits
    engine: Ready
    created: int
    prompts: PromptCache
    kind: ModelKind
    chat: ChatTemplate | None = None
    findings: tuple[Finding, ...] = ()
    defaults: Mapping[str, int | float] = field(default_factory=dict)
    fim: Callable[[], Fim | None] = lambda: None

    def check_name(self, name: str | None) -> None:
        """Raises RequestError unless `name` is this model's. None means the only model there is."""
        if name is not None and name != self.name:
            message = f"there is no model of that name here; this server has {self.name!r}"
            raise RequestError(message, param="model", code="model_not_found", status=404)

    def prompt_encoder(self, salt: str | None) -> Encoder:
        """Encoder of prompts, which reuses the ids of prefixes that the caller's requests with the same salt had before. Not for a thread
        to ask: see `server.callers`."""
        return self.prompts.encoder(private_salt(salt).encode())

    @property
    def turn_end_ids(self) -> frozenset[int]:
        """Ids that end an answer to a chat beside those that end any."""
        stop_ids = frozenset[int]() if self.chat is None else self.chat.stop_ids
        return frozenset(token for token in stop_ids if token < self.limits.vocab)

    @property
    def fingerprint(self) -> str:
        """OpenAI's `system_fingerprint`: changes with weights and KV layout."""
        return "fp_" + hashlib.sha256(self.limits.kv.fingerprint).hexdigest()[:12]


Admitter = Callable[[Sequence[int]], Admitted]
"""Makes an admitted request of the ids of a prompt."""

START_POLL_SECONDS: Final = 0.2
DRAIN_POLL_SECONDS: Final = 0.05
MAX_WAITING_GRAMMARS: Final = 16
"""New grammars of one client that wait to be compiled."""


class Service:
    """One model behind one engine. `on_progress` is called while it loads."""

    def __init__(
        self, engine_config: EngineConfig, config: ServerConfig, on_progress: Callable[[str, float], None] = lambda stage, fraction: None
    ) -> None:
        self.config = config
        self.name = served_name(engine_config.model, config)
        """By which clients call the model."""
        self.keys = ApiKeys(config.api_key, config.api_key_file)
        self.metrics = Metrics()
        self.waiting_room = WaitingRoom(config.max_waiting)
        self._late_steps = LateSteps(engine_config.step_ms)
        self.stage = "starting"
        self._engine_config = engine_config
        self._on_progress = on_progress
        self._engine: EngineClient | None = None
        self._engine_starts = 0
        self._model: Model | None = None
        self._template: ChatTemplate | None = None
        self._draining = False
        self._grammars = StructuredOutputCompiler()
        self._grammar_turns = Turns("the compiler of grammars", MAX_WAITING_GRAMMARS, QUEUE_SECONDS)
        self._secret = read_cache_secret(config.cache_secret_file)
        self._draw_seed = make_seed_source(engine_config.seed)

    # ── start and end ───────────────────────────────────────────────────────────────────────────────────────────

    async def start(self) -> Model:
        """Loads; returns when requests are taken. Raises a RidgelineError that says what to change."""
        name = self._engine_config.model
        path = None
        if not name.startswith((FAKE_PREFIX, RANDOM_PREFIX)):
            expected = self._engine_config.expect_sha256
            path = await _in_daemon(partial(resolve_checked, name, model_stores(), expected, self._progress))
        config = self._engine_config if path is None else replace(self._engine_config, model=str(path))
        self._engine = engine = EngineClient(config, self._apply_events, self._progress)
        if self.config.chat_template is None:
            await engine.start()  # reads weights meanwhile; the user's own template is checked first
        assets = await asyncio.to_thread(load_text_assets, name, path, self.config)
        self._template = assets.chat
        if self.config.chat_template is not None:
            await engine.start()
        model = _model(self.name, assets, await _ready(engine))
        if path is not None:
            self._progress("checking answers", 0.0)
            model = replace(model, findings=(*model.findings, *await _check_answers(engine, model)))
        for finding in model.findings:
            _LOG.log(_LEVELS[finding.severity], "%s", finding)
        self.metrics.ends.chats = model.kind.kind == "instruct"
        self._model = model
        self.stage = "ready"
        return model

    async def wait_failed(self) -> None:
        """Waits until no engine will ever run again; raises ConfigError with the reason. Call it after `start`."""
        if self._engine is not None:
            await self._engine.wait_failed()

    async def stop(self) -> None:
        """Ends the engine and all open requests."""
        self._draining = True
        if self._engine is not None:
            await self._engine.shutdown()
        if self._template is not None:
            await asyncio.to_thread(self._template.close)
        await asyncio.to_thread(self._grammars.close)

    async def drain(self, seconds: float) -> bool:
        """Takes no new request from now on, and waits until those that were accepted have ended in the engine, at most `seconds`.
        True if all have ended."""
        self._draining = True
        end = time.monotonic() + seconds
        while self.open_requests:
            if time.monotonic() >= end:
                return False
            await asyncio.sleep(DRAIN_POLL_SECONDS)
        return True

    def _progress(self, stage: str, fraction: float) -> None:
        self.stage = f"{stage} {fraction:.0%}"
        if not self._draining:
            self._on_progress(stage, fraction)

    def _apply_events(self, events: Sequence[Event]) -> None:
        if self._model is None:
            return  # of the check of answers
        self._detect_restart()
        ended = 0
        for event in events:
            self.metrics.apply(event)
            if type(event) is Closed:
                ended += 1
            elif type(event) is StepLate:
                self._late_steps.apply(event)
        if ended and self._engine is not None:
            open_choices = sum(self._engine.open_choices.values())
            self.waiting_room.on_ended(ended, self._model.engine.info.rows, open_choices, time.monotonic())

    def _detect_restart(self) -> None:
        """Closes, in the metrics, the requests of an engine that died: no event will."""
        if self._engine is not None and (self._engine.starts != self._engine_starts or not self._engine.is_ready):
            self._engine_starts = self._engine.starts
            self.metrics.engine_lost()

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
        return not self._draining and self._model is not None and self._engine is not None and self._engine.is_ready

    @property
    def model(self) -> Model:
        """The loaded model, even while its engine restarts. Raises EngineDeadError before it is loaded."""
        if self._model is None:
            raise EngineDeadError(f"the model is still loading ({self.stage}); try again in a few seconds")
        return self._model

    @property
    def engine(self) -> EngineClient:
        """The engine's client. Raises EngineDeadError while no engine takes requests."""
        if self._engine is None or not self.is_ready:
            raise EngineDeadError(f"the engine is not ready ({self.not_ready_reason()}); try again in a few seconds")
        return self._engine

    def not_ready_reason(self) -> str:
        """Reason in words for clients and load balancers; never the text of an exception."""
        if self._draining:
            return "the server is shutting down"
        return self.stage if self._model is None or self._engine is None else f"the engine is {self._engine.state}"

    @property
    def open_requests(self) -> int:
        """Requests that the engine has not ended yet."""
        return 0 if self._engine is None else self._engine.open_requests

    @property
    def has_priorities(self) -> bool:
        """True if a request's priority counts."""
        return self._engine_config.scheduling_policy == "priority"

    def by_tenant(self) -> Mapping[str, tuple[int, int]]:
        """Open choices and rejected requests of each tenant that has, or had, some."""
        open_choices = {} if self._engine is None else self._engine.open_choices
        refused = self.waiting_room.refused
        return {tenant: (open_choices.get(tenant, 0), refused[tenant]) for tenant in {*open_choices, *refused}}

    def current_metrics(self) -> Metrics:
        """Metrics without requests of an engine that has died."""
        self._detect_restart()
        return self.metrics

    def admitter(
        self,
        params: SamplingParams,
        *,
        priority: int,
        salt: str,
        stop_ids: frozenset[int] = frozenset(),
        bad_words: tuple[tuple[int, ...], ...] = (),
        arrived: float | None = None,
        grammar: Grammar | None = None,
    ) -> Admitter:
        """Returns a function that admits prompts with these parameters. `stop_ids` end a sequence as EOS does; `bad_words` are those of
        `params` as ids; `arrived`: see `Admitted`.

        It raises RequestError, and never looks at the load: that is `check_capacity`'s.
        """
        model = self.model
        limits = replace(model.limits, eos_ids=model.limits.eos_ids | stop_ids)
        domain, caller = tenant_domain(self._secret, private_salt(salt)), current_caller()
        tokens, text = params.thinking_token_budget, self.config.reasoning_budget_message
        ids = None if tokens is None or model.chat is None else model.chat.reasoning_ids
        message = model.tokenizer.encode(text, add_bos=False) if ids is not None and text else ()

        def admit_prompt(prompt: Sequence[int]) -> Admitted:
            return admit(
                prompt, params, limits, request_id=secrets.token_hex(16), draw_seed=self._draw_seed, bad_words=bad_words, domain=domain,
                tenant=caller.tenant, weight=caller.weight, priority=priority, arrived=arrived, grammar=grammar,
                thinking=None if ids is None else ids.thinking(begins_reasoning(prompt, ids.texts, model.tokenizer), tokens, message),
            )  # fmt: skip

        return admit_prompt

    async def compile_grammar(self, asked: Asked | None, client: bytes) -> Grammar | None:
        """The grammar of a structured output; None where none is asked for. Clients have new ones compiled by turns.

        Raises RequestError, OverloadedError.
        """
        if asked is None:
            return None
        try:
            if not self.model.engine.info.has_grammars:
                raise RequestError(f"{asked.field} cannot be followed by this model; leave it out.", param=asked.field)
            found = await asyncio.to_thread(self._grammars.known, asked.outputs, asked.field)
            if found is None:
                async with self._grammar_turns.turn(client):
                    found = await asyncio.to_thread(self._grammars.compile, asked.outputs, asked.field)
            return replace(found, is_optional=asked.is_optional)
        except (RequestError, OverloadedError):
            if asked.is_optional:
                return None
            raise

    def check_capacity(self, choices: int) -> EngineClient:
        """The engine's client, if the caller may submit that many more choices. Raises OverloadedError where too many wait already,
        RequestError where so many never may, EngineDeadError while no engine takes requests."""
        engine, rows = self.engine, self.model.engine.info.rows
        try:
            self.waiting_room.check(current_caller(), choices, rows, engine.open_choices, time.monotonic())
        except OverloadedError:
            self.metrics.rejected += 1
            raise
        return engine


async def _in_daemon(call: Callable[[], Path]) -> Path:
    """The result of `call` in a thread that nobody waits for at the end: a stop does not wait for a hub that stands still."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Path] = loop.create_future()

    def settle(result: Path | None, error: BaseException | None) -> None:
        if future.done():
            return
        if error is not None:
            future.set_exception(error)
        elif result is not None:
            future.set_result(result)

    def work() -> None:
        result, error = None, None
        try:
            result = call()
        except BaseException as caught:
            error = caught
        with suppress(RuntimeError):  # the loop has ended meanwhile
            loop.call_soon_threadsafe(settle, result, error)

    threading.Thread(target=work, daemon=True, name="resolve").start()
    return await future


async def _ready(engine: EngineClient) -> Ready:
    """Waits for the first engine. One that ends before it was ever ready is an error at once: the next would end likewise."""
    waiting = asyncio.ensure_future(engine.ready())
    try:
        while not waiting.done():
            await asyncio.wait({waiting}, timeout=START_POLL_SECONDS)
            if engine.starts > 1:
                raise ConfigError(f"the engine ended while it started: {engine.last_failure}")
        return waiting.result()
    finally:
        waiting.cancel()


def _model(name: str, assets: TextAssets, ready: Ready) -> Model:
    files, info = assets.files, ready.info
    vocab = files.vocab(info.vocab)
    limits = ModelLimits(vocab, info.max_model_len, files.eos_ids(vocab), info.kv)
    findings = (*info.findings, *assets.findings)
    if files.path is not None:
        findings += tuple(check_vocabulary(files.tokenizer, info.vocab))
    now, defaults, fim = int(time.time()), files.generation.sampling, cache(partial(find_fim, files.tokenizer, files.path))
    return Model(name, files.tokenizer, limits, ready, now, assets.prompts, assets.kind, assets.chat, findings, defaults, fim)


async def _check_answers(engine: EngineClient, model: Model) -> tuple[Finding, ...]:
    """Problems that show in a first answer. Raises ModelFormatError where there is none, as its numbers are not finite."""
    request, scores, end = canary_request(model.tokenizer, model.limits), list[TokenLogprobs](), Finish.LENGTH
    if request is not None:
        async for item in engine.submit(request):
            if isinstance(item, Output):
                scores += item.prompt_logprobs or ()
            else:
                end = item.reason
    return judge(scores, end, model.limits.vocab)
