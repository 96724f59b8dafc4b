"""A server that is measured: its model, its words, and loads that are put on it.

Loads are closed loops, in which each stream waits for its answer, and open ones, in which requests come when they come. In an open loop
latency counts from the moment at which a request should have been sent, whatever the server or this client was doing then: a server that
stalls shows it in every request that it kept waiting (Tene, "How not to measure latency": coordinated omission).
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any, Final

from ridgeline.bench.client import Api, Ask, Client, Outcome, body_of
from ridgeline.bench.http import Http, HttpError, Target
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


LEAD: Final = "The"
"""Begins every prompt, since the first word of a text costs otherwise than later ones in some tokenizers."""
STOP: Final = "."
_TEXT: Final = (
    "a time year people way day man thing woman life child world school state family student group country problem hand part place "
    "case week company system program question work government number night point home water room mother area money story fact month "
    "lot right study book eye job word business issue side kind head house service friend father power hour game line end member law "
    "car city community name president team minute idea body information back parent face others level office door health person art "
    "war history party result change morning reason research girl moment air teacher force education foot boy age policy music market "
    "sense nation plan college interest death experience effect use class control field development role effort rate heart show "
    "leader light voice wife police mind price report decision son view relationship town road arm difference value building action "
    "model season society tax director position player record paper space ground form event official matter center couple site "
    "project activity star table need court oil situation cost industry figure street image phone data picture practice piece land"
)
WORDS: Final = tuple(f" {word}" for word in _TEXT.split())
FEW: Final = 24
"""Words that are asked about one by one where no `/tokenize` is."""
MOST_PREFIXES: Final = 64
"""Shared beginnings that are remembered."""

Count = Callable[[str], Awaitable[int]]
"""The tokens that a server sees in a prompt, whatever it adds included."""


@dataclass(frozen=True, slots=True)
class Costs:
    """Tokens of each word behind other words, of the full stop, and of what a prompt has besides them; `source` says how they are known."""

    words: Mapping[str, int]
    stop: int
    around: int
    source: str


class Prompts:
    """Texts by number of tokens. The same seed, arrival and number give the same text for every server with the same costs."""

    def __init__(self, costs: Costs, seed: int) -> None:
        self._costs, self._seed = costs, seed
        self._dearest = max(costs.words.values())
        self._choices = [[word for word, cost in costs.words.items() if cost <= most] for most in range(self._dearest + 1)]
        self._prefixes: dict[tuple[int, int], str] = {}

    def text(self, arrival: Arrival, number: int) -> str:
        """The prompt of a request. One too short for what every prompt has is as short as there is."""
        room = max(0, arrival.prompt - self._costs.around)
        shared = min(max(0, arrival.shared - self._costs.around), room) if arrival.prefix else 0
        return LEAD + self._prefix(arrival.prefix, shared) + self._words(Random(f"{self._seed}:{number}"), room - shared)

    def _prefix(self, prefix: int, tokens: int) -> str:
        if not tokens:
            return ""
        if (prefix, tokens) not in self._prefixes:
            if len(self._prefixes) >= MOST_PREFIXES:
                self._prefixes.clear()
            self._prefixes[prefix, tokens] = self._words(Random(f"{self._seed}:prefix:{prefix}"), tokens)
        return self._prefixes[prefix, tokens]

    def _words(self, rng: Random, tokens: int) -> str:
        """Words, and where no word fits any more full stops."""
        if self._dearest == 1:
            return "".join(rng.choices(self._choices[1], k=tokens))
        found = []
        while choices := self._choices[min(tokens, self._dearest)]:
            found.append(rng.choice(choices))
            tokens -= self._costs.words[found[-1]]
        return "".join(found) + STOP * (tokens // self._costs.stop)


async def learn_costs(http: Http, api: Api, model: str) -> Costs:
    """Costs of words on this server, in tokens. Raises ConfigError where it answers nothing that tells."""
    if api == "completions":
        for form in TOKENIZE:
            costs = await _asked(http, form, model)
            if costs is not None:
                return costs
    try:
        return await _costs(_probe(http, api, model), FEW, "usage of trial requests")
    except HttpError as error:
        raise ConfigError(f"the server does not tell how many tokens a prompt has: {error}") from None


TOKENIZE: Final[Sequence[tuple[str, str]]] = (("prompt", "tokens"), ("content", "tokens"), ("inputs", ""))
"""Where the text stands in a body for `/tokenize`, and the tokens in its answer: ours and vLLM's, llama-server's, TGI's."""


async def _asked(http: Http, form: tuple[str, str], model: str) -> Costs | None:
    field, tokens = form
    forms: dict[str, dict[str, Any]] = {"prompt": {"model": model}, "content": {"add_special": True}, "inputs": {}}

    async def count(text: str) -> int:
        found = await http.post("/tokenize", {field: text, **forms[field]})
        listed = found.get(tokens) if tokens and isinstance(found, dict) else found
        if not isinstance(listed, list) or not listed:
            raise HttpError("no tokens", "no list of tokens")
        return len(listed)

    try:
        return await _costs(count, len(WORDS), "/tokenize")
    except HttpError:
        return None  # Another form may do.


def _probe(http: Http, api: Api, model: str) -> Count:
    client = Client(http, api, 600.0)

    async def count(text: str) -> int:
        found = await client.run(Ask(0, body_of(api, model, text, 1, False, {}), 0, 1), time.perf_counter())
        if found.error is not None:
            raise HttpError(found.error, found.message)
        if not found.counted or not found.prompt:
            raise HttpError("no usage", "an answer has no usage")
        return found.prompt

    return count


async def _costs(count: Count, most: int, source: str) -> Costs:
    """Tokens of each word: where all together cost as many as they are, one. Else each of the first `most` is asked about."""
    lead = await count(LEAD)
    if await count(LEAD + "".join(WORDS)) - lead == len(WORDS):
        return Costs(dict.fromkeys(WORDS, 1), 1, lead, source)
    base = LEAD + WORDS[1]
    around = await count(base)
    words = {word: max(1, await count(base + word) - around) for word in WORDS[:most]}
    sample = "".join(words)
    stop = max(1, await count(base + sample + STOP) - await count(base + sample))
    return Costs(words, stop, lead, source)


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
