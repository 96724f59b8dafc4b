"""Measurement session with one server: its model, prompts of an exact number of tokens, and loads.

Loads are closed loops, in which each stream waits for its answer, and open loops, in which requests come at given times. In an open loop
latency counts from the time at which a request should have been sent, so that a stall of the server shows in every request that it delayed
(Tene, "How not to measure latency": coordinated omission).

Prompts consist of words whose cost in tokens is measured on the server: by `/tokenize`, else by the usage of trial requests.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any, Final

from ridgeline.bench.client import Api, Client, PreparedRequest, RequestOutcome, make_body
from ridgeline.bench.http import HttpClient, HttpError, ServerAddress
from ridgeline.bench.reconcile import ServerTtft
from ridgeline.errors import ConfigError
from ridgeline.sim.fleet.traffic import Arrival

OnDone = Callable[[RequestOutcome], None]


@dataclass(frozen=True, slots=True)
class Measurement:
    """All outcomes in the order in which they ended, wall time, and the CPU time of this process in seconds; `server`: times to first
    token by the server's metrics, None where it has none."""

    outcomes: Sequence[RequestOutcome]
    seconds: float
    client_seconds: float
    server: ServerTtft | None = None


async def closed_loop(
    client: Client, requests: Iterator[PreparedRequest], streams: int, seconds: float | None, on_done: OnDone
) -> Measurement:
    """`streams` requests at once, each followed by the next as soon as it ends, until `requests` or the seconds are used up.

    The intended time of a request is the end of the one before it.
    """
    outcomes: list[RequestOutcome] = []
    watch = _Stopwatch()

    async def stream() -> None:
        ready_at = watch.began
        while (seconds is None or ready_at < watch.began + seconds) and (request := next(requests, None)) is not None:
            outcome = await client.run(request, ready_at)
            outcomes.append(outcome)
            on_done(outcome)
            ready_at = time.perf_counter()

    async with asyncio.TaskGroup() as group:
        for _ in range(streams):
            group.create_task(stream())
    return watch.stop(outcomes)


async def open_loop(client: Client, requests: Sequence[PreparedRequest], limit: int | None, on_done: OnDone) -> Measurement:
    """Each request when it is due, at most `limit` at once; latency counts from the due time also while it waits for a slot."""
    outcomes: list[RequestOutcome] = []
    slots = asyncio.Semaphore(limit or len(requests) or 1)
    watch = _Stopwatch()

    async def send(request: PreparedRequest, due: float) -> None:
        async with slots:
            outcome = await client.run(request, due)
        outcomes.append(outcome)
        on_done(outcome)

    async with asyncio.TaskGroup() as group:
        for request in requests:
            due = watch.began + request.due
            wait = due - time.perf_counter()
            if wait > 0:
                await asyncio.sleep(wait)
            group.create_task(send(request, due))
    return watch.stop(outcomes)


class _Stopwatch:
    def __init__(self) -> None:
        self.began, self._cpu_began = time.perf_counter(), time.process_time()

    def stop(self, outcomes: Sequence[RequestOutcome]) -> Measurement:
        """The measurement since the start."""
        return Measurement(outcomes, time.perf_counter() - self.began, time.process_time() - self._cpu_began)


FIRST_WORD: Final = "The"
"""First word of every prompt: some tokenizers encode the first word of a text differently."""
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
NUM_PROBED_WORDS: Final = 24
"""Words whose cost is measured one by one without `/tokenize`."""
MAX_CACHED_PREFIXES: Final = 64
"""Shared prefixes that are cached."""

Count = Callable[[str], Awaitable[int]]
"""Number of tokens of a prompt on the server, added ones included."""


@dataclass(frozen=True, slots=True)
class TokenCosts:
    """Token costs: of each word after other words, of the full stop, and the overhead of a prompt; `source`: how they were measured."""

    words: Mapping[str, int]
    stop: int
    overhead: int
    source: str


class Prompts:
    """Texts by number of tokens. The same seed, arrival and number give the same text for every server with the same costs."""

    def __init__(self, costs: TokenCosts, seed: int) -> None:
        self._costs, self._seed = costs, seed
        self._max_cost = max(costs.words.values())
        self._choices = [[word for word, cost in costs.words.items() if cost <= limit] for limit in range(self._max_cost + 1)]
        self._prefixes: dict[tuple[int, int], str] = {}

    def text(self, arrival: Arrival, number: int) -> str:
        """The prompt of a request, at least as long as the overhead."""
        room = max(0, arrival.prompt - self._costs.overhead)
        shared = min(max(0, arrival.shared - self._costs.overhead), room) if arrival.prefix else 0
        return FIRST_WORD + self._prefix(arrival.prefix, shared) + self._words(Random(f"{self._seed}:{number}"), room - shared)

    def _prefix(self, prefix: int, tokens: int) -> str:
        if not tokens:
            return ""
        if (prefix, tokens) not in self._prefixes:
            if len(self._prefixes) >= MAX_CACHED_PREFIXES:
                self._prefixes.clear()
            self._prefixes[prefix, tokens] = self._words(Random(f"{self._seed}:prefix:{prefix}"), tokens)
        return self._prefixes[prefix, tokens]

    def _words(self, rng: Random, tokens: int) -> str:
        """Random words of `tokens` tokens, filled with full stops where no word fits."""
        if self._max_cost == 1:
            return "".join(rng.choices(self._choices[1], k=tokens))
        found = []
        while choices := self._choices[min(tokens, self._max_cost)]:
            found.append(rng.choice(choices))
            tokens -= self._costs.words[found[-1]]
        return "".join(found) + STOP * (tokens // self._costs.stop)


async def measure_token_costs(http: HttpClient, api: Api, model: str) -> TokenCosts:
    """Measures the costs of words on this server. Raises ConfigError where it reports no token counts."""
    if api == "completions":
        for form in TOKENIZE_FORMS:
            costs = await _measure_with_tokenize(http, form, model)
            if costs is not None:
                return costs
    try:
        return await _measure_costs(_count_by_usage(http, api, model), NUM_PROBED_WORDS, "usage of trial requests")
    except HttpError as error:
        raise ConfigError(f"the server does not report how many tokens a prompt has: {error}") from None


TOKENIZE_FORMS: Final[Sequence[tuple[str, str]]] = (("prompt", "tokens"), ("content", "tokens"), ("inputs", ""))
"""(field of the text, field of the tokens) of `/tokenize`: Ridgeline and vLLM, llama-server, TGI."""


async def _measure_with_tokenize(http: HttpClient, form: tuple[str, str], model: str) -> TokenCosts | None:
    field, tokens = form
    forms: dict[str, dict[str, Any]] = {"prompt": {"model": model}, "content": {"add_special": True}, "inputs": {}}

    async def count(text: str) -> int:
        found = await http.post("/tokenize", {field: text, **forms[field]})
        listed = found.get(tokens) if tokens and isinstance(found, dict) else found
        if not isinstance(listed, list) or not listed:
            raise HttpError("no tokens", "no list of tokens")
        return len(listed)

    try:
        return await _measure_costs(count, len(WORDS), "/tokenize")
    except HttpError:
        return None  # try the next form


def _count_by_usage(http: HttpClient, api: Api, model: str) -> Count:
    client = Client(http, api, 600.0)

    async def count(text: str) -> int:
        found = await client.run(PreparedRequest(0, make_body(api, model, text, 1, False, {}), 0, 1), time.perf_counter())
        if found.error is not None:
            raise HttpError(found.error, found.message)
        if not found.counted or not found.prompt:
            raise HttpError("no usage", "an answer has no usage")
        return found.prompt

    return count


async def _measure_costs(count: Count, limit: int, source: str) -> TokenCosts:
    """Costs of words: one token each if all together cost one each, else measured for each of the first `limit`."""
    lead = await count(FIRST_WORD)
    if await count(FIRST_WORD + "".join(WORDS)) - lead == len(WORDS):
        return TokenCosts(dict.fromkeys(WORDS, 1), 1, lead, source)
    base = FIRST_WORD + WORDS[1]
    overhead = await count(base)
    words = {word: max(1, await count(base + word) - overhead) for word in WORDS[:limit]}
    sample = "".join(words)
    stop = max(1, await count(base + sample + STOP) - await count(base + sample))
    return TokenCosts(words, stop, lead, source)


WARM_UP_SEED: Final = 1 << 40
"""Added to the numbers of warm-up prompts, so that they differ from the measured ones."""

DEFAULT_MODEL: Final = "unnamed"
"""Model name for a server without a list of models."""


@dataclass(frozen=True, slots=True)
class Load:
    """A load on a server.

    arrivals      requests; with times in an open loop; endless only with `seconds` in a closed loop
    streams       of a closed loop; in an open one the most concurrent requests, None for no limit
    is_open_loop  requests are sent at their times, whether or not earlier ones are answered
    seconds       after which a closed loop sends nothing new
    """

    name: str
    arrivals: Iterable[Arrival]
    streams: int | None
    is_open_loop: bool = False
    seconds: float | None = None


@dataclass(frozen=True, slots=True)
class RequestOptions:
    """Options of all requests. key: bearer token; seconds: timeout; extra: fields of the body."""

    api: Api = "completions"
    model: str | None = None
    key: str | None = None
    seconds: float = 600.0
    ignore_eos: bool = False
    extra: Mapping[str, Any] = field(default_factory=dict)

    def with_model(self, model: str | None) -> "RequestOptions":
        """These options, with `model` where none is set."""
        return self if self.model is not None or model is None else replace(self, model=model)


class Session:
    """A session with one server. Use `await Session.open(…)`; `close` closes its connections."""

    def __init__(self, http: HttpClient, request_options: RequestOptions, model: str, costs_source: str, prompts: Prompts) -> None:
        self._http, self._request_options, self._prompts = http, request_options, prompts
        self._client = Client(http, request_options.api, request_options.seconds)
        self.model, self.costs_source = model, costs_source

    @classmethod
    async def open(cls, url: str, request_options: RequestOptions, seed: int) -> "Session":
        """Finds the model and measures the token costs of words. Raises ConfigError where the server does not answer."""
        http = HttpClient(ServerAddress.parse(url), request_options.key)
        try:
            model = request_options.model or await first_model(http)
        except HttpError as error:
            raise ConfigError(f"{url[:80]} does not list its models: {error}; is it an OpenAI-compatible server?") from None
        costs = await measure_token_costs(http, request_options.api, model)
        return cls(http, request_options, model, costs.source, Prompts(costs, seed))

    async def warm_up(self, load: Load, count: int, concurrency: int) -> list[str]:
        """Sends `count` requests of the load with other prompts. Returns the messages of those that failed."""
        requests = self._make_requests((arrival for arrival, _ in zip(load.arrivals, range(count), strict=False)), WARM_UP_SEED)
        measured = await closed_loop(self._client, requests, max(1, min(concurrency, count)), None, lambda outcome: None)
        return [f"{outcome.error}: {outcome.message}" for outcome in measured.outcomes if outcome.error]

    async def measure(self, load: Load, first: int = 0, on_done: OnDone = lambda outcome: None) -> Measurement:
        """The load, with prompts numbered from `first`. They are prepared before the first is sent, except for an endless closed loop."""
        requests = self._make_requests(load.arrivals, first)
        if load.is_open_loop or load.seconds is None:
            requests = iter(list(requests))
        before = await ServerTtft.read(self._http)
        if load.is_open_loop:
            measured = await open_loop(self._client, list(requests), load.streams, on_done)
        else:
            measured = await closed_loop(self._client, requests, load.streams or 1, load.seconds, on_done)
        after = await ServerTtft.read(self._http)
        return measured if after is None else replace(measured, server=after.since(before))

    def close(self) -> None:
        """Closes idle connections."""
        self._http.close()

    def _make_requests(self, arrivals: Iterable[Arrival], first: int) -> Iterator[PreparedRequest]:
        request_options = self._request_options
        for number, arrival in enumerate(arrivals, first):
            text = self._prompts.text(arrival, number)
            body = make_body(request_options.api, self.model, text, arrival.output, request_options.ignore_eos, request_options.extra)
            yield PreparedRequest(number, body, arrival.prompt, arrival.output, arrival.time)


async def first_model(http: HttpClient) -> str:
    """Name of the first model that the server lists; `DEFAULT_MODEL` without a list. Raises HttpError where it does not answer."""
    try:
        found = await http.get(f"{http.version}/models")
    except HttpError as error:
        if error.kind == "HTTP 404":
            return DEFAULT_MODEL
        raise
    try:
        return str(found["data"][0]["id"])[:500]
    except (KeyError, IndexError, TypeError):
        raise HttpError("no models", f"{http.version}/models names no model; name one with --model") from None
