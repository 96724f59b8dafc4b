"""Vectors of texts for every endpoint: admits and submits texts, a bounded number at a time, and collects what comes.

`embed` is the one way from texts to vectors. As with generation, nothing is awaited between the check of the queue and the submission.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, TypeVar

import msgspec

from ridgeline.core.commands import Output
from ridgeline.core.events import Closed, Finish
from ridgeline.core.params import Admitted
from ridgeline.engine.admit import cut_text
from ridgeline.engine.client import EngineClient
from ridgeline.engine.pooled import numbers
from ridgeline.engine.streams import RequestStream, Wakeup
from ridgeline.errors import RequestError
from ridgeline.server.callers import current_caller
from ridgeline.server.encoding import run_encoding
from ridgeline.server.errors import ApiError
from ridgeline.server.loading import Model
from ridgeline.server.notes import Notes
from ridgeline.server.service import Service
from ridgeline.server.targets import Targets, too_late
from ridgeline.text.tokenizer import text_ids

MAX_TEXTS: Final = 2_048
MAX_TOKENS: Final = 300_000
"""Tokens of one request, as OpenAI has them."""
TEXTS_PER_ROW: Final = 2
"""Texts of one request that the engine has at a time, per row: enough that no row waits, few enough that others have their turn."""
LOOP_BYTES: Final = 1 << 17
"""Bytes of vectors beyond which work on their numbers is a thread's: the event loop would stand for some 5 ms."""

Made = TypeVar("Made")
Text = str | Sequence[int]


@dataclass(frozen=True, slots=True)
class Vectors:
    """Vectors in the order of their texts, little-endian float32 each, and what they cost."""

    id: str
    vectors: list[bytes]
    prompt_tokens: int
    cached_tokens: int


@dataclass(frozen=True, slots=True)
class Asked:
    """Wishes beside the texts.

    dimensions       leading numbers that are kept; None: all
    truncate         tokens of a text that are kept; -1: as many as the model takes; None: a longer text is an error
    add_special      the ids that the model wants around a text are put there
    param            name of the texts in messages
    """

    dimensions: int | None = None
    truncate: int | None = None
    add_special: bool = True
    priority: int = 0
    salt: str = ""
    deadline_ms: int | None = None
    param: str = "input"


async def embed(service: Service, texts: Sequence[Text], notes: Notes, asked: Asked = Asked()) -> Vectors:
    """A vector for each text, or ids, by the model's pooling, of length 1.

    Raises RequestError and ApiError for texts that cannot be taken, OverloadedError, EngineDeadError.
    """
    model = service.model
    pooling = model.engine.info.pooling
    if pooling is None:
        raise ApiError("invalid_value", "this model's runner makes no vectors of texts; use another one", param="model")
    if asked.dimensions is not None and asked.dimensions < 1:
        raise ApiError("invalid_value", f"dimensions is {asked.dimensions}; send at least 1, or leave it out", param="dimensions")
    ids = await _tokenise(model, texts, asked)
    notes.tokenised = time.monotonic()
    if asked.priority and not service.has_priorities:
        notes.ignore("priority", "requests are served in order of arrival, --scheduling-policy priority was not given")
    if service.brown_out is not None:
        service.brown_out.check(current_caller(), asked.priority if service.has_priorities else 0)
    pooling = replace(pooling, dimensions=asked.dimensions or 0)
    try:
        requests = service.admit_texts(ids, pooling, priority=asked.priority, salt=asked.salt, arrived=notes.arrived)
    except RequestError as error:
        error.param = asked.param if error.param == "input" else error.param
        raise
    return await _submit(service, requests, asked, notes)


async def beside_loop(vectors: Sequence[bytes], work: Callable[[], Made]) -> Made:
    """The result of `work` on all numbers of these, in a thread if they are many. It does one vector at a time: others run between."""
    return await asyncio.to_thread(work) if sum(map(len, vectors)) > LOOP_BYTES else work()


def numbers_json(vector: bytes) -> Any:
    """A vector's numbers as they stand in JSON, for the place of `list[float]`: an encoder that gets all lists at once holds up every
    thread till its end."""
    return msgspec.Raw(msgspec.json.encode(numbers(vector).tolist()))


async def _submit(service: Service, requests: Sequence[Admitted], asked: Asked, notes: Notes) -> Vectors:
    targets = current_caller().targets.with_deadline(asked.deadline_ms)
    window = TEXTS_PER_ROW * service.model.engine.info.rows
    engine = service.check_capacity(min(window, len(requests)), targets)
    quota, tokens = current_caller().quota, sum(len(request.prompt) for request in requests)
    if quota is not None:
        quota.take_tokens(tokens, time.monotonic())
    if service.tracer is not None:
        service.tracer.admitted(requests)
    vectors, cached = await _within(targets, notes.arrived, _Collection(engine, requests, window))
    return Vectors(requests[0].request_id, vectors, tokens, cached)


async def _within(targets: Targets, arrived: float, collection: "_Collection") -> tuple[list[bytes], int]:
    """The vectors, before the deadline. Raises ApiError behind it."""
    left = None if not targets.deadline_ms else max(0.0, arrived + targets.deadline_ms / 1e3 - time.monotonic())
    try:
        async with asyncio.timeout(left):
            return await collection.run()
    except TimeoutError:
        raise too_late(targets.deadline_ms) from None


class _Collection:
    """The texts of one HTTP request, of which the engine has a window."""

    def __init__(self, engine: EngineClient, requests: Sequence[Admitted], window: int) -> None:
        self._engine = engine
        self._requests = requests
        self._waiting = deque(range(len(requests)))
        self._window = window
        self._open: dict[int, RequestStream] = {}
        self._vectors = [b""] * len(requests)
        self._cached = 0
        self._wakeup = Wakeup()

    async def run(self) -> tuple[list[bytes], int]:
        """All vectors, and the prompt tokens that came from the prefix cache. What is open when it is left is aborted."""
        try:
            while self._waiting or self._open:
                while self._waiting and len(self._open) < self._window:
                    number = self._waiting.popleft()
                    self._open[number] = self._engine.submit(self._requests[number], self._wakeup)
                await self._wakeup.wait()
                self._read()
            return self._vectors, self._cached
        finally:
            self._wakeup.close()
            for number in self._open:
                self._engine.abort(self._requests[number].request_id)

    def _read(self) -> None:
        for number, stream in list(self._open.items()):
            while (item := stream.pop()) is not None:
                if isinstance(item, Output):
                    self._vectors[number] = item.vector or b""
                elif isinstance(item, Closed):
                    del self._open[number]
                    self._cached += item.usage.cached_tokens
                    if item.reason is not Finish.STOP or not self._vectors[number]:
                        raise ApiError("engine_failed", item.message or "the engine ended this request without a vector")


async def _tokenise(model: Model, texts: Sequence[Text], asked: Asked) -> list[Sequence[int]]:
    """Ids of each text, cut where that is asked for. Raises ApiError, RequestError, OverloadedError."""
    if not 1 <= len(texts) <= MAX_TEXTS:
        code = "invalid_value" if texts else "empty_prompt"
        raise ApiError(code, f"{asked.param} has {len(texts)} texts; send 1 to {MAX_TEXTS}", param=asked.param)
    tokenizer, special = model.tokenizer, asked.add_special

    def encode() -> list[Sequence[int]]:
        return [text_ids(tokenizer, each, add_special=special) if isinstance(each, str) else each for each in texts]

    characters = sum(len(each) for each in texts if isinstance(each, str))
    found = await run_encoding(tokenizer, characters, encode) if characters else encode()
    found = [cut_text(each, model.limits.max_model_len, asked.truncate, tokenizer.text_end) for each in found]
    if (tokens := sum(map(len, found))) > MAX_TOKENS:
        message = f"{asked.param} has {tokens:,} tokens in all; at most {MAX_TOKENS:,} are taken in one request. Send several"
        raise ApiError("invalid_value", message, param=asked.param)
    return found
