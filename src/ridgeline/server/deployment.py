"""A deployment: one model behind its own engine process, from its start through the check of answers and the drain to its end.

Owns the order of starting (model file, then engine and text side in parallel, then the canary) and of ending (no new request, the accepted
ones, the engine). Knows no HTTP, no key and no metric.
"""

import asyncio
import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ridgeline.config.env import cache_directory, model_stores
from ridgeline.config.groups import FAKE_PREFIX, EngineConfig, ServerConfig
from ridgeline.core.commands import Knob, Output, PinAdapter, SetKnob
from ridgeline.core.events import Event, Finish
from ridgeline.core.plan import TokenLogprobs
from ridgeline.engine.adapters import AdapterLibrary
from ridgeline.engine.canary import canary_request, judge
from ridgeline.engine.client import CRASH_LOOP_FAILURES, EngineClient, State
from ridgeline.engine.messages import Ready
from ridgeline.engine.seats import Seat, Seats
from ridgeline.errors import RETRY_AFTER_SECONDS, ConfigError, EngineDeadError, Finding, ModelFormatError
from ridgeline.facts.headers.read import RANDOM_PREFIX
from ridgeline.facts.hub.digests import resolve_checked
from ridgeline.observe.starts import last_start
from ridgeline.observe.verification import verify_engine
from ridgeline.server.loading import Model, load_text_assets, make_model, served_name
from ridgeline.server.promises import MAX_RETRY_AFTER_SECONDS
from ridgeline.server.startup import Startup
from ridgeline.text.chat import ChatTemplate

if TYPE_CHECKING:
    from ridgeline.planning.verify import Verification

_log: Final = logging.getLogger("ridgeline.server")
START_POLL_SECONDS: Final = 0.2
DRAIN_POLL_SECONDS: Final = 0.05


class Deployment:
    """A model behind an engine.

    on_events    called with the events of each frame once the deployment has been checked
    on_progress  called with stage and fraction while it loads
    seats        of the engines that share the cores; None: there are no others
    """

    def __init__(
        self,
        engine_config: EngineConfig,
        config: ServerConfig,
        on_events: Callable[[Sequence[Event]], None],
        on_progress: Callable[[str, float], None],
        seats: Seats | None = None,
    ) -> None:
        self.startup = Startup()
        self._seats = seats
        self._seat: Seat | None = None
        self.adapters = AdapterLibrary(None, 0, model_stores())
        self.engine_config = engine_config
        self.users = 0
        """HTTP requests that have begun with it."""
        self.knobs: dict[Knob, int] = {}
        """Settings of the engine that were changed while it ran."""
        self._config = config
        self._on_events = on_events
        self._on_progress = on_progress
        self._client: EngineClient | None = None
        self._model: Model | None = None
        self._template: ChatTemplate | None = None
        self._draining = False
        self._checked_start = 0
        """Number of the engine's start whose answers have been checked."""
        self._recheck: asyncio.Task[None] | None = None
        self.verifying: asyncio.Task[Verification | None] | None = None
        """Sets the start beside its plan."""

    async def start(self) -> Model:
        """Loads; returns when requests are taken. Raises a RidgelineError that says what to change."""
        name, path = self.engine_config.model, None
        self.startup.before = last_start(cache_directory(), served_name(name, self._config))
        if not name.startswith((FAKE_PREFIX, RANDOM_PREFIX)):
            expected = self.engine_config.expect_sha256
            path = await _in_daemon(partial(resolve_checked, name, model_stores(), expected, self.note))
        config = self.engine_config if path is None else replace(self.engine_config, model=str(path))
        self._seat = None if self._seats is None else self._seats.sit()
        self._client = client = EngineClient(config, self._pass_events, self.note, seat=self._seat)
        if self._config.chat_template is None:
            await client.start()  # reads weights meanwhile; the user's own template is checked first
        assets = await asyncio.to_thread(load_text_assets, name, path, self._config)
        self._template = assets.chat
        if config.adapter_slots and not self.adapters.takes_any:  # a model that was put away has its adapters
            self.adapters = AdapterLibrary(path, config.max_lora_rank, model_stores())
            await asyncio.to_thread(self.adapters.add_all, config.lora)
        if self._config.chat_template is not None:
            await client.start()
        model = make_model(served_name(name, self._config), assets, await _ready(client))
        if path is not None:
            self.note("first token", 0.0)
            model = replace(model, findings=(*model.findings, *await _check_answers(client, model)))
        _tell_pins(client, self.adapters)
        self._model = model
        self._checked_start = client.starts
        client.is_checked = True
        self.startup.end()
        self._recheck = asyncio.create_task(self._check_restarts(client, model, has_answers=path is not None))
        if path is not None:
            self.verifying = asyncio.create_task(verify_engine(path, model.engine, client.pid))
        return model

    async def wait_failed(self) -> None:
        """Waits until no engine will ever run again; raises ConfigError with the reason. Call it after `start`."""
        if self._client is not None:
            await self._client.wait_failed()

    async def stop(self) -> None:
        """Ends the engine and all open requests."""
        self._draining = True
        for task in (self._recheck, self.verifying):
            if task is not None:
                task.cancel()
        if self._client is not None:
            await self._client.shutdown()
        if self._seats is not None and self._seat is not None:
            self._seats.leave(self._seat)
            self._seat = None
        if self._template is not None:
            await asyncio.to_thread(self._template.close)

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

    def set_knob(self, name: Knob, value: int) -> None:
        """Changes a setting of the engine, and of those that follow it."""
        self.knobs[name] = value
        if self._client is not None:
            self._client.send(SetKnob(name, value))

    async def _check_restarts(self, client: EngineClient, model: Model, *, has_answers: bool) -> None:
        """Lets each engine that follows the first one go on with open requests, and take new ones, when its answer to the canary is the
        first one's, and ends it where it is worse: an engine that answers nonsense has failed like one that ends early."""
        known = {finding.cause for finding in model.findings}
        while True:
            try:
                await client.ready(self._checked_start)
            except ConfigError:
                return  # `wait_failed` tells of it
            for name, value in self.knobs.items():
                client.send(SetKnob(name, value))
            _tell_pins(client, self.adapters)
            starts, cause = client.starts, ""
            try:
                found = await _check_answers(client, model) if has_answers else ()
                cause = next((each.cause for each in found if each.severity == "error" and each.cause not in known), "")
            except ModelFormatError as error:
                cause = str(error)
            except EngineDeadError:
                continue
            if client.starts != starts or not client.is_ready:
                continue
            if not cause:
                self._checked_start = starts
                client.go_on()
                continue
            _log.error("engine answers wrongly behind its restart, and is ended", extra={"fields": {"reason": cause, "starts": starts}})
            if client.pid is not None:
                os.kill(client.pid, signal.SIGKILL)
            await asyncio.sleep(START_POLL_SECONDS)

    @property
    def is_draining(self) -> bool:
        """True once it takes no new request for good."""
        return self._draining

    @property
    def has_started(self) -> bool:
        """True from the end of the first start on."""
        return self._model is not None

    @property
    def is_ready(self) -> bool:
        """True if a request would be taken now."""
        return not self._draining and self.is_checked

    @property
    def is_checked(self) -> bool:
        """True while there is an engine whose answers have been checked."""
        client = self._client
        return client is not None and client.is_ready and client.starts == self._checked_start

    @property
    def model(self) -> Model:
        """The loaded model, even while its engine restarts. Raises EngineDeadError before it is loaded."""
        if self._model is None:
            raise EngineDeadError(f"the model is still loading ({self.startup.summary}); try again in a few seconds", self.retry_after())
        return self._model

    @property
    def client(self) -> EngineClient | None:
        """The engine's client; None before there is one."""
        return self._client

    @property
    def engine(self) -> EngineClient:
        """The engine's client. Raises EngineDeadError while no engine takes requests."""
        if self._client is None or not self.is_ready:
            message = f"the engine is not ready ({self.not_ready_reason()}); try again in a few seconds"
            raise EngineDeadError(message, self.retry_after())
        return self._client

    def not_ready_reason(self) -> str:
        """Reason in words for clients and load balancers; never the text of an exception."""
        client = self._client
        if self._draining:
            return "the server is shutting down"
        if self._model is None or client is None:
            return self.startup.summary
        if client.is_ready:
            return "the engine has started again, and its answers are being checked"
        if client.failures < CRASH_LOOP_FAILURES:
            return f"the engine is {client.state}"
        when = f"; the next start is in {self.seconds_to_restart():.0f} s" if client.state is State.DEAD else ""
        return f"the engine is {client.state}: it ended early {client.failures} times in a row, and the log says why{when}"

    def seconds_to_restart(self) -> float:
        """Seconds until the next engine is started; 0 where none waits for that."""
        if self._client is None or self._client.state is not State.DEAD:
            return 0.0
        return max(0.0, self._client.next_start - asyncio.get_running_loop().time())

    def retry_after(self) -> int:
        """Whole seconds until an engine should take requests: what the start has left, or the pause before the next. Where neither is
        known, as while an engine loads again, a few."""
        left = self.seconds_to_restart() if self.has_started else self.startup.snapshot().eta_seconds or 0.0
        return min(MAX_RETRY_AFTER_SECONDS, max(RETRY_AFTER_SECONDS, ceil(left)))

    @property
    def open_requests(self) -> int:
        """Requests that the engine has not ended yet."""
        return 0 if self._client is None else self._client.open_requests

    def note(self, stage: str, fraction: float) -> None:
        """Takes a report of the start."""
        self.startup.note(stage, fraction)
        if not self._draining:
            self._on_progress(stage, fraction)

    def _pass_events(self, events: Sequence[Event]) -> None:
        if self._model is not None:  # else they are of the check of answers
            self._on_events(events)


def _tell_pins(client: EngineClient, adapters: AdapterLibrary) -> None:
    """Tells an engine that has just started of the adapters that keep their slots."""
    for digest in sorted(adapters.pins):
        client.send(PinAdapter(digest, is_pinned=True))


async def resolve_files(deployment: Deployment) -> None:
    """Finds the files of its model, from a hub if need be, so that a later `start` asks none."""
    config = deployment.engine_config
    if not config.model.startswith((FAKE_PREFIX, RANDOM_PREFIX)):
        path = await _in_daemon(partial(resolve_checked, config.model, model_stores(), config.expect_sha256, deployment.note))
        deployment.engine_config = replace(config, model=str(path))


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


def verification(deployment: Deployment) -> "Verification | None":
    """The start beside its plan, once it has been set there."""
    task = deployment.verifying
    return task.result() if task is not None and task.done() and not task.cancelled() and task.exception() is None else None


async def _check_answers(engine: EngineClient, model: Model) -> tuple[Finding, ...]:
    """Problems that show in a first answer. Raises ModelFormatError where there is none, as its numbers are not finite."""
    if not model.engine.info.generates:
        return ()
    request, scores, end = canary_request(model.tokenizer, model.limits), list[TokenLogprobs](), Finish.LENGTH
    if request is not None:
        async for item in engine.submit(request, goes_on=False):
            if isinstance(item, Output):
                scores += item.prompt_logprobs or ()
            else:
                end = item.reason
    return judge(scores, end, model.limits.vocab)
