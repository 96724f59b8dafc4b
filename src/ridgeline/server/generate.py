"""From admitted requests to what may be shown of them: submits, reads the engine's streams, answers provisional ends, aborts.

Serves every endpoint that generates. Knows no HTTP and no JSON.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Final

from ridgeline.core.commands import Output
from ridgeline.core.events import Finish, Usage
from ridgeline.core.params import Admitted, SamplingParams
from ridgeline.engine.client import EngineClient, RequestStream
from ridgeline.server.errors import ApiError
from ridgeline.text.choice import Choice
from ridgeline.text.stream import Release
from ridgeline.text.tokenizer import Tokenizer

READ_AHEAD: Final = 16
"""Pieces that wait for a client; beyond them the engine's stream fills, which has its own bound."""


@dataclass(frozen=True, slots=True)
class Shown:
    """Text, ids and log-probabilities of one choice that may be shown now. `index` counts choices over all prompts."""

    index: int
    release: Release


@dataclass(frozen=True, slots=True)
class Ended:
    """The last of one choice. `stop_reason`: the stop string or the client's stop id; None for EOS and for other ends."""

    index: int
    reason: Finish
    stop_reason: str | int | None
    usage: Usage


Piece = Shown | Ended


class Generation:
    """All choices of one HTTP request, submitted when it is made: who comes next sees it in the queue. `abort` it whatever happens."""

    def __init__(self, engine: EngineClient, tokenizer: Tokenizer, requests: Sequence[Admitted], params: SamplingParams) -> None:
        """Raises EngineDeadError while no engine takes requests."""
        self._engine = engine
        self._requests = requests
        self._choices = sum(request.choices for request in requests)
        self._sources = []
        for number, request in enumerate(requests):
            choices = [Choice(request, index, params, tokenizer) for index in range(request.choices)]
            self._sources.append(_pieces(engine, engine.submit(request), choices, number * params.n))

    def abort(self) -> None:
        """Ends what is still open in the engine. Safe to call at any time, more than once."""
        for request in self._requests:
            self._engine.abort(request.request_id)

    async def pieces(self) -> AsyncGenerator[Piece, None]:
        """Pieces of all choices as they come; one `Ended` each, last. Iterate it once.

        Raises what the engine's client raises, and ApiError where the engine ended a choice with an error.
        """
        pieces: asyncio.Queue[Piece | Exception] = asyncio.Queue(READ_AHEAD)
        readers = [asyncio.create_task(_read(source, pieces)) for source in self._sources]
        try:
            for _ in range(self._choices):
                while not isinstance(piece := await pieces.get(), Ended):
                    if isinstance(piece, Exception):
                        raise piece
                    yield piece
                yield piece
        finally:
            for reader in readers:
                reader.cancel()
            await asyncio.gather(*readers, return_exceptions=True)


async def _read(source: AsyncIterator[Piece], pieces: "asyncio.Queue[Piece | Exception]") -> None:
    try:
        async for piece in source:
            await pieces.put(piece)
    except Exception as error:
        await pieces.put(error)


async def _pieces(engine: EngineClient, stream: RequestStream, choices: list[Choice], first_index: int) -> AsyncGenerator[Piece, None]:
    """Of one prompt: its choices' releases and ends, numbered from `first_index`. The engine hears of every end that is ours to decide."""
    async for item in stream:
        choice, index = choices[item.choice], first_index + item.choice
        if isinstance(item, Output):
            releases, close = choice.take(item)
            if close is not None:
                engine.send(close)
            for release in releases:
                if release.ids:
                    yield Shown(index, release)
        elif item.reason is Finish.ERROR:
            raise ApiError("engine_failed", item.message or "the engine ended this request with an error")
        else:
            yield Ended(index, item.reason, choice.stop_reason, item.usage)
