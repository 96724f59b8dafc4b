"""Prompts of an exact number of tokens, each different, from words whose cost in tokens the server itself has told.

Owns the words and how their cost is found: by `/tokenize` where the server has it, else by the usage of two requests for one token.
"""

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Final

from ridgeline.bench.client import Api, Ask, Client, body_of
from ridgeline.bench.http import Http, HttpError
from ridgeline.errors import ConfigError
from ridgeline.sim.fleet.traffic import Arrival

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
