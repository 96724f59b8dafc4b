"""What all endpoints share: the engine, the loaded model, the metrics; how they come up and how they go down.

Owns the order of starting (model file, then engine and texts side by side), of ending (no new request, the accepted ones, the engine) and
the bound on requests that may wait. Knows no HTTP.
"""

import asyncio
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import ceil
from typing import Final

from ridgeline.config.env import cache_directory
from ridgeline.config.groups import FAKE_PREFIX, EngineConfig, ServerConfig
from ridgeline.core.events import Event
from ridgeline.core.params import Admitted, SamplingParams
from ridgeline.engine.admit import admit, seed_source, tenant_domain
from ridgeline.engine.client import EngineClient
from ridgeline.engine.messages import Ready
from ridgeline.errors import ConfigError, EngineDeadError, OverloadedError
from ridgeline.facts.headers.read import RANDOM_PREFIX
from ridgeline.facts.hub.source import resolve_model
from ridgeline.observe.metrics import Metrics
from ridgeline.server.served import Model, load_texts, served_name
from ridgeline.text.chat import ChatTemplate
from ridgeline.text.tokenizer import bad_word_ids

Door = Callable[[Sequence[int]], Admitted]
"""From the ids of a prompt to an admitted request."""

LOOK_SECONDS: Final = 0.2
DRAIN_LOOK_SECONDS: Final = 0.05
LONGEST_RETRY_SECONDS: Final = 60


class Service:
    """One model behind one engine. `on_progress` is called while it loads."""

    def __init__(
        self, engine_config: EngineConfig, config: ServerConfig, on_progress: Callable[[str, float], None] = lambda stage, fraction: None
    ) -> None:
        self.config = config
        self.metrics = Metrics()
        self.stage = "starting"
        self._engine_config = engine_config
        self._on_progress = on_progress
        self._engine: EngineClient | None = None
        self._engine_starts = 0
        self._model: Model | None = None
        self._template: ChatTemplate | None = None
        self._draining = False
        self._secret = secrets.token_bytes(32)
        self._draw_seed = seed_source(engine_config.seed)

    # ── life ────────────────────────────────────────────────────────────────────────────────────────────────────

    async def start(self) -> Model:
        """Loads; returns when requests are taken. Raises a RidgelineError that says what to change."""
        name = self._engine_config.model
        path = None
        if not name.startswith((FAKE_PREFIX, RANDOM_PREFIX)):
            path = await asyncio.to_thread(resolve_model, name, cache_directory(), self._progress)
        config = self._engine_config if path is None else replace(self._engine_config, model=str(path))
        self._engine = engine = EngineClient(config, self._take_events, self._progress)
        await engine.start()
        texts = await asyncio.to_thread(load_texts, name, path, self.config)
        self._template = texts.chat
        self._model = texts.model(served_name(name, self.config), await _ready(engine))
        self.stage = "ready"
        return self._model

    async def lost(self) -> None:
        """Waits until no engine will ever run again; raises why. Call it after `start`."""
        while True:
            if self._engine is not None:
                await self._engine.ready()
            await asyncio.sleep(LOOK_SECONDS)

    async def stop(self) -> None:
        """Ends the engine and all open requests."""
        self._draining = True
        if self._engine is not None:
            await self._engine.shutdown()
        if self._template is not None:
            await asyncio.to_thread(self._template.close)

    async def drain(self, seconds: float) -> bool:
        """Takes no new request from now on; returns when those that were accepted have ended in the engine, or after so many seconds.
        Returns whether all have ended."""
        self._draining = True
        end = time.monotonic() + seconds
        while self._engine is not None and self._engine.open_requests:
            if time.monotonic() >= end:
                return False
            await asyncio.sleep(DRAIN_LOOK_SECONDS)
        return True

    def _progress(self, stage: str, fraction: float) -> None:
        self.stage = f"{stage} {fraction:.0%}"
        self._on_progress(stage, fraction)

    def _take_events(self, events: Sequence[Event]) -> None:
        self._notice_restart()
        for event in events:
            self.metrics.apply(event)

    def _notice_restart(self) -> None:
        """Requests that were open in an engine that died never close: the fold has to be told."""
        if self._engine is not None and (self._engine.starts != self._engine_starts or not self._engine.is_ready):
            self._engine_starts = self._engine.starts
            self.metrics.engine_lost()

    # ── what endpoints ask for ──────────────────────────────────────────────────────────────────────────────────

    @property
    def is_ready(self) -> bool:
        """Whether a request would be taken now."""
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
            raise EngineDeadError(f"the engine is not ready ({self.why_not_ready()}); try again in a few seconds")
        return self._engine

    def why_not_ready(self) -> str:
        """In words, for those who wait; never the text of an exception."""
        if self._draining:
            return "the server is shutting down"
        return self.stage if self._model is None or self._engine is None else f"the engine is {self._engine.state}"

    def current_metrics(self) -> Metrics:
        """The fold, without requests of an engine that has died."""
        self._notice_restart()
        return self.metrics

    def door(self, params: SamplingParams, *, priority: int, salt: str, stop_ids: frozenset[int] = frozenset()) -> Door:
        """What makes admitted requests of prompts, all with these parameters. `stop_ids` end a sequence as EOS does.

        It raises RequestError, and never looks at the load: that is `check_room`'s."""
        model = self.model
        limits = replace(model.limits, eos_ids=model.limits.eos_ids | stop_ids)
        bad_words = bad_word_ids(model.tokenizer, params.bad_words)
        domain = tenant_domain(self._secret, salt)

        def door(prompt: Sequence[int]) -> Admitted:
            return admit(
                prompt, params, limits, request_id=secrets.token_hex(16), draw_seed=self._draw_seed, bad_words=bad_words, domain=domain,
                priority=priority,
            )  # fmt: skip

        return door

    def check_room(self, requests: int) -> EngineClient:
        """The engine's client, for who brings so many requests now. Raises OverloadedError where too many wait already, EngineDeadError
        while no engine takes requests."""
        engine, rows = self.engine, self.model.engine.info.rows
        waiting = engine.open_requests - rows
        if waiting + requests > self.config.max_waiting:
            raise OverloadedError(
                f"{max(0, waiting)} requests wait already and this one brings {requests}; at most {self.config.max_waiting} may wait",
                self._retry_after(waiting, rows),
            )
        return engine

    def _retry_after(self, waiting: int, rows: int) -> int:
        """Seconds until those who wait now have been served, by the mean time of a request so far."""
        return max(1, min(LONGEST_RETRY_SECONDS, ceil(self.metrics.mean_request_seconds * waiting / rows)))


async def _ready(engine: EngineClient) -> Ready:
    """Waits for the first engine. One that ends before it was ever ready is not worth a second start: the next would end likewise."""
    waiting = asyncio.ensure_future(engine.ready())
    try:
        while not waiting.done():
            await asyncio.wait({waiting}, timeout=LOOK_SECONDS)
            if engine.starts > 1:
                raise ConfigError(f"the engine ended while it started: {engine.last_failure}")
        return waiting.result()
    finally:
        waiting.cancel()
