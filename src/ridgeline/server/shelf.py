"""Stored answers as the Responses API asks for them: whole, their items, what goes on from one, and those that are still computed.

Owns the form of a record, and the tasks of answers in the background.
"""

import asyncio
import secrets
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final

import msgspec

from ridgeline.server.errors import ApiError
from ridgeline.server.response_store import ResponseStore, SharedStore
from ridgeline.server.responses_input import answer_of
from ridgeline.server.responses_shapes import Item, ResponseObject
from ridgeline.server.routers import TAG_BYTES
from ridgeline.server.tapes import Tapes

RENEWAL_SECONDS: Final = 10.0
"""Between the renewals of leases, a third of the time for which they hold."""
MAX_ANSWERS: Final = 16
"""Answers that are looked at for the references of one request."""


class Record(msgspec.Struct, frozen=True):
    """Stored form of an answer: itself, and the conversation before it."""

    response: msgspec.Raw
    input: list[Item]


class _Said(msgspec.Struct, frozen=True):
    """The part that is read of a stored answer."""

    id: str
    status: str
    output: list[Item]
    background: bool


class Shelf:
    """Stored answers. Every method takes the owner, and raises ApiError for an answer that this owner has not."""

    def __init__(self, store: ResponseStore | None) -> None:
        self.tag = secrets.token_hex(TAG_BYTES // 2)
        """Ends the ids of this process's answers, so that a router knows where they are."""
        self._store = store
        self._shared = store if isinstance(store, SharedStore) else None
        self._renewing: asyncio.Task[None] | None = None
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self.tapes = Tapes()
        """Events of answers in the background, which are asked for only by who has the answer."""

    @property
    def is_open(self) -> bool:
        """True if answers can be stored."""
        return self._store is not None

    @property
    def is_shared(self) -> bool:
        """True if other servers find what is stored here."""
        return self._shared is not None

    async def put(self, owner: bytes, response: ResponseObject, items: Sequence[Item]) -> None:
        """Stores an answer with the conversation before it."""
        if self._shared is not None and response.status == "in_progress":
            await self._shared.lease([response.id])
        if self._store is not None:
            record = Record(msgspec.Raw(msgspec.json.encode(response)), list(items))
            await self._store.put(owner, response.id, msgspec.json.encode(record))

    async def response(self, owner: bytes, response_id: str) -> bytes:
        """The answer as JSON."""
        return bytes((await self._record(owner, response_id))[0].response)

    async def items(self, owner: bytes, response_id: str) -> list[Item]:
        """The conversation before the answer."""
        return (await self._record(owner, response_id))[0].input

    async def conversation(self, owner: bytes, response_id: str | None) -> list[Item]:
        """The conversation with the answer, but for a call that ended before its arguments did; nothing without an id."""
        if response_id is None:
            return []
        found = await self._find(owner, response_id)
        if found is None:
            message = "there is no stored answer of this id" if self.is_open else "this server stores no answers (--response-store none)"
            raise ApiError("previous_response_not_found", f"{message}; send the conversation as input", param="previous_response_id")
        record, said = found
        if said.status not in ("completed", "incomplete"):
            message = f"the answer of this id is {said.status}; only one that has ended goes on"
            raise ApiError("invalid_value", message, param="previous_response_id")
        return [*record.input, *(item for item in said.output if item.call_id is None or item.status != "incomplete")]

    async def resolve(self, owner: bytes, items: Sequence[Item]) -> list[Item]:
        """The items, with those that they refer to in the places of references. The newest is looked for first: its answer has the
        conversation before it too."""
        known: dict[str | None, Item] = {item.id: item for item in items if item.type != "item_reference"}
        asked = 0
        for at in range(len(items) - 1, -1, -1):
            if items[at].id in known:
                continue
            asked += 1
            answer = answer_of(items[at])
            found = await self._find(owner, answer) if answer is not None and asked <= MAX_ANSWERS else None
            if found is not None:
                known = {item.id: item for item in (*found[0].input, *found[1].output)} | known
            if items[at].id not in known:
                message = f"input[{at}] refers to an item that is not stored here; send the item itself"
                raise ApiError("invalid_value", message, param="input")
        return [known[item.id] for item in items]

    async def delete(self, owner: bytes, response_id: str) -> None:
        """Deletes the answer, and stops it where it is still computed."""
        await self._record(owner, response_id)
        await self._stop(response_id)
        self.tapes.drop(response_id)
        if self._store is not None:
            await self._store.delete(owner, response_id)

    async def cancel(self, owner: bytes, response_id: str) -> bytes:
        """Stops an answer in the background and returns it; one that has ended stays as it is."""
        _, said = await self._record(owner, response_id)
        if not said.background:
            message = "only an answer in the background can be cancelled; close the connection of another"
            raise ApiError("invalid_value", message, param="id")
        await self._stop(response_id)
        return await self.response(owner, response_id)

    def work(self, response_id: str, work: Coroutine[Any, Any, None], close: Callable[[], None]) -> None:
        """Computes an answer in the background. `close` is called at its end."""
        task = self._tasks[response_id] = asyncio.ensure_future(work)
        if self._shared is not None and self._renewing is None:
            self._renewing = asyncio.ensure_future(self._renew(self._shared))

        def ended(task: "asyncio.Task[None]") -> None:
            del self._tasks[response_id]
            self.tapes.end(response_id)
            close()

        task.add_done_callback(ended)

    async def _renew(self, shared: SharedStore) -> None:
        """Tells other servers of the answers in the background, as long as there are some."""
        while self._tasks:
            await asyncio.sleep(RENEWAL_SECONDS)
            await shared.lease(list(self._tasks))
        self._renewing = None

    async def _stop(self, response_id: str) -> None:
        task = self._tasks.get(response_id)
        if task is not None:
            task.cancel()
            await asyncio.wait({task})

    async def _record(self, owner: bytes, response_id: str) -> tuple[Record, _Said]:
        found = await self._find(owner, response_id)
        if found is None:
            raise ApiError("not_found", "there is no stored answer of this id", param="id")
        return found

    async def _find(self, owner: bytes, response_id: str) -> tuple[Record, _Said] | None:
        """A record; None where there is none, or none that can be read."""
        data = None if self._store is None else await self._store.get(owner, response_id)
        if data is None:
            return None
        try:
            record = msgspec.json.decode(data, type=Record)
            said = msgspec.json.decode(record.response, type=_Said)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return None
        if said.id != response_id:
            return None
        if said.status == "in_progress" and response_id not in self._tasks and not await self._is_computed_elsewhere(response_id):
            return _interrupted(record, said)
        return record, said

    async def _is_computed_elsewhere(self, response_id: str) -> bool:
        return self._shared is not None and await self._shared.is_leased(response_id)


def _interrupted(record: Record, said: _Said) -> tuple[Record, _Said]:
    """An answer whose server ended before it did."""
    whole = msgspec.json.decode(record.response)
    whole |= {"status": "failed", "error": {"code": "server_error", "message": "the server ended before this answer did"}}
    return Record(msgspec.Raw(msgspec.json.encode(whole)), record.input), msgspec.structs.replace(said, status="failed")
