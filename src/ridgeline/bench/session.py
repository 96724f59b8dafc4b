"""A server that is measured: its model, its words, and loads that are put on it.

Loads are closed loops, in which each stream waits for its answer, and open ones, in which requests come when they come. In an open loop
latency counts from the moment at which a request should have been sent, whatever the server or this client was doing then: a server that
stalls shows it in every request that it kept waiting (Tene, "How not to measure latency": coordinated omission).
"""

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from ridgeline.bench.client import Api, Ask, Client, Outcome, body_of
from ridgeline.bench.http import Http, HttpError, Target
from ridgeline.bench.prompts import Prompts, learn_costs
from ridgeline.errors import ConfigError
from ridgeline.sim.fleet.traffic import Arrival

OnDone = Callable[[Outcome], None]


@dataclass(frozen=True, slots=True)
class Measured:
    """All outcomes in the order in which they ended, and the processor seconds that this process spent over `seconds` of the clock."""

    outcomes: Sequence[Outcome]
    seconds: float
    client_seconds: float


async def closed_loop(client: Client, asks: Iterator[Ask], streams: int, seconds: float | None, on_done: OnDone) -> Measured:
    """`streams` requests at once, each followed by the next as soon as it ends, until `asks` or the seconds are used up.

    A request is meant to be sent when the one before it ended.
    """
    outcomes: list[Outcome] = []
    watch = _Watch()

    async def stream() -> None:
        free = watch.began
        while (seconds is None or free < watch.began + seconds) and (ask := next(asks, None)) is not None:
            outcome = await client.run(ask, free)
            outcomes.append(outcome)
            on_done(outcome)
            free = time.perf_counter()

    async with asyncio.TaskGroup() as group:
        for _ in range(streams):
            group.create_task(stream())
    return watch.stop(outcomes)


async def open_loop(client: Client, asks: Sequence[Ask], most: int | None, on_done: OnDone) -> Measured:
    """Each request when it is due, at most `most` at once; who waits for a place has begun to wait when due."""
    outcomes: list[Outcome] = []
    places = asyncio.Semaphore(most or len(asks) or 1)
    watch = _Watch()

    async def one(ask: Ask, due: float) -> None:
        async with places:
            outcome = await client.run(ask, due)
        outcomes.append(outcome)
        on_done(outcome)

    async with asyncio.TaskGroup() as group:
        for ask in asks:
            due = watch.began + ask.due
            wait = due - time.perf_counter()
            if wait > 0:
                await asyncio.sleep(wait)
            group.create_task(one(ask, due))
    return watch.stop(outcomes)


class _Watch:
    def __init__(self) -> None:
        self.began, self._own = time.perf_counter(), time.process_time()

    def stop(self, outcomes: Sequence[Outcome]) -> Measured:
        """Everything since the start."""
        return Measured(outcomes, time.perf_counter() - self.began, time.process_time() - self._own)


WARM_UP_SEED: Final = 1 << 40
"""Added to the seed of warm-up prompts, which nobody should find in a cache."""

UNNAMED: Final = "unnamed"
"""What a server is asked for that has no list of models, where no name is given."""


@dataclass(frozen=True, slots=True)
class Load:
    """A load that is put on a server.

    arrivals  what requests ask for, and in an open loop when; without end only beside `seconds` in a closed loop
    streams   of a closed loop; in an open one the most requests at once, None for any number
    seconds   after which a closed loop sends nothing new
    """

    name: str
    arrivals: Iterable[Arrival]
    streams: int | None
    opened: bool = False
    seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Manner:
    """The manner of requests, the same for all. key: bearer token; seconds: the most that an answer may take; extra: fields of the body."""

    api: Api = "completions"
    model: str | None = None
    key: str | None = None
    seconds: float = 600.0
    ignore_eos: bool = False
    extra: Mapping[str, Any] = field(default_factory=dict)

    def named(self, model: str | None) -> "Manner":
        """The same with a model where none is named."""
        return self if self.model is not None or model is None else replace(self, model=model)


class Session:
    """Use `await Session.open(…)`; `close` ends its connections."""

    def __init__(self, http: Http, manner: Manner, model: str, costs_source: str, prompts: Prompts) -> None:
        self._http, self._manner, self._prompts = http, manner, prompts
        self._client = Client(http, manner.api, manner.seconds)
        self.model, self.costs_source = model, costs_source

    @classmethod
    async def open(cls, url: str, manner: Manner, seed: int) -> "Session":
        """Finds the model and learns what words cost. Raises ConfigError where the server does not answer."""
        http = Http(Target.of(url), manner.key)
        try:
            model = manner.model or await first_model(http)
        except HttpError as error:
            raise ConfigError(f"{url[:80]} does not list its models: {error}; is it an OpenAI-compatible server?") from None
        costs = await learn_costs(http, manner.api, model)
        return cls(http, manner, model, costs.source, Prompts(costs, seed))

    async def warm_up(self, load: Load, requests: int, at_once: int) -> list[str]:
        """So many requests as the load has, with other prompts. Returns the messages of those that failed."""
        asks = self._asks((arrival for arrival, _ in zip(load.arrivals, range(requests), strict=False)), WARM_UP_SEED)
        measured = await closed_loop(self._client, asks, max(1, min(at_once, requests)), None, lambda outcome: None)
        return [f"{outcome.error}: {outcome.message}" for outcome in measured.outcomes if outcome.error]

    async def measure(self, load: Load, first: int = 0, on_done: OnDone = lambda outcome: None) -> Measured:
        """The load, with prompts numbered from `first`. They are made before the first is sent, but for a closed loop without end."""
        asks = self._asks(load.arrivals, first)
        if load.opened:
            return await open_loop(self._client, list(asks), load.streams, on_done)
        if load.seconds is None:
            asks = iter(list(asks))
        return await closed_loop(self._client, asks, load.streams or 1, load.seconds, on_done)

    def close(self) -> None:
        """Ends idle connections."""
        self._http.close()

    def _asks(self, arrivals: Iterable[Arrival], first: int) -> Iterator[Ask]:
        manner = self._manner
        for number, arrival in enumerate(arrivals, first):
            text = self._prompts.text(arrival, number)
            body = body_of(manner.api, self.model, text, arrival.output, manner.ignore_eos, manner.extra)
            yield Ask(number, body, arrival.prompt, arrival.output, arrival.time)


async def first_model(http: Http) -> str:
    """The name of the first model that the server lists; `UNNAMED` where it has no list. Raises HttpError where it does not answer."""
    try:
        found = await http.get(f"{http.version}/models")
    except HttpError as error:
        if error.kind == "HTTP 404":
            return UNNAMED
        raise
    try:
        return str(found["data"][0]["id"])[:500]
    except (KeyError, IndexError, TypeError):
        raise HttpError("no models", f"{http.version}/models names no model; name one with --model") from None
