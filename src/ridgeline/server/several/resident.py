"""One of several models of a server: where it is between unloaded and loaded, who uses it, and what it takes."""

import os
import time
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from ridgeline.core.plan import KVShape
from ridgeline.facts.hardware.machine import anonymous_bytes
from ridgeline.observe.prometheus_models import ModelTotals
from ridgeline.server import anthropic, ollama_shapes, replies
from ridgeline.server.service import Service

FIRST_LOAD_SECONDS: Final = 5.0
"""Seconds that a load is taken to last before there was one."""


class Phase(StrEnum):
    """UNLOADING: new requests wait for the end of it, and then for the next load; those that have begun end first."""

    UNLOADED = "unloaded"
    LOADING = "loading"
    LOADED = "loaded"
    UNLOADING = "unloading"


@dataclass(frozen=True, slots=True)
class Listing:
    """Entries in lists of a model that has been loaded once, also while it is not."""

    kv: KVShape
    card: replies.ModelCard
    info: anthropic.ModelInfo
    listed: ollama_shapes.ListedModel
    shown: ollama_shapes.Shown


@dataclass(slots=True, eq=False)
class Resident:
    """A model and its service.

    users, waiting  HTTP requests that have it, and that wait for it to be loaded
    keep_alive      seconds behind the last request after which it is unloaded; None: never
    last_used, loaded_at  of `time.monotonic`
    measured        bytes that engine and front end had more than before when it had been loaded, with its whole KV cache; None before
    failed_at       when a load failed last
    """

    service: Service
    keep_alive: float | None
    phase: Phase = Phase.UNLOADED
    users: int = 0
    waiting: int = 0
    last_used: float = field(default_factory=time.monotonic)
    loaded_at: float = 0.0
    measured: int | None = None
    failed_at: float | None = None
    listing: Listing | None = None
    totals: ModelTotals = field(default_factory=ModelTotals)

    @property
    def name(self) -> str:
        """Name by which clients call it."""
        return self.service.name

    @property
    def is_idle(self) -> bool:
        """True while nobody uses it or waits for it, and its engine has no request, as of an answer in the background."""
        return not (self.users or self.waiting or self.service.deployments.open_requests)

    @property
    def untouched_bytes(self) -> int:
        """Bytes that it will take yet of what it may: blocks of its KV cache that have not been written."""
        if self.measured is None or self.phase is Phase.UNLOADED:
            return 0
        return max(0, self.measured - self.engine_bytes)

    @property
    def engine_bytes(self) -> int:
        """Bytes that its engine has now."""
        client = self.service.deployments.current.client
        pid = None if client is None else client.pid
        return (anonymous_bytes(pid) or 0) if pid is not None else 0

    def measure(self, front_bytes: int) -> None:
        """Takes down what it takes. `front_bytes`: what this process had before the load."""
        info = self.service.model.engine.info
        front = max(0, (anonymous_bytes(os.getpid()) or 0) - front_bytes)
        kv_bytes = 0 if info.runner == "cuda" else info.kv_bytes
        self.measured = self.engine_bytes + kv_bytes + front
        self.totals.bytes = self.measured

    def unloads_at(self, min_residence: float) -> float | None:
        """Time at which it is unloaded unless another request comes; None: never."""
        return None if self.keep_alive is None else max(self.last_used + self.keep_alive, self.loaded_at + min_residence)

    def seconds_to_load(self) -> float:
        """Estimated seconds until it is loaded: what is left of the load that is under way, or what loads have taken in the mean."""
        eta = self.service.deployments.current.startup.snapshot().eta_seconds if self.phase is Phase.LOADING else None
        if eta is not None:
            return eta
        return self.totals.load_seconds / self.totals.loads if self.totals.loads else FIRST_LOAD_SECONDS

    def status(self) -> replies.ModelStatus:
        """State that lists name."""
        progress = self.service.deployments.current.startup.snapshot().progress if self.phase is Phase.LOADING else None
        return replies.ModelStatus(self.phase.value, progress)

    def stage(self) -> str:
        """Stage that a request for it waits for, in words."""
        if self.phase is Phase.LOADING:
            startup = self.service.deployments.current.startup.snapshot()
            return f"{self.name} is loaded: {startup.stage} {startup.progress:.0%}"
        if self.phase is Phase.UNLOADING:
            return f"{self.name} is unloaded, and will be loaded again behind that"
        return f"{self.name} waits for memory of other models"


def kv_blocks(resident: Resident) -> int:
    """Blocks of its KV cache; of a model that was never loaded 1, none of which is in use."""
    return 1 if resident.listing is None else resident.listing.kv.blocks
