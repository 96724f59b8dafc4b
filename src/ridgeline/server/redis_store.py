"""Answers in a Redis or Valkey server, which several servers share: what one has stored, each of them finds.

Bounds and owners are those of the other stores (`server.response_store`), kept by a script that the server runs whole. Records go by
themselves at their age. A server that is gone or slow costs what is stored meanwhile, and what is asked for gets 503.
"""

import asyncio
import logging
import struct
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Final, TypeVar

from ridgeline.config.redis import RedisServer
from ridgeline.errors import RETRY_AFTER_SECONDS
from ridgeline.server.errors import ApiError
from ridgeline.server.response_store import ID, RECORD_OVERHEAD, Bounds

log = logging.getLogger("ridgeline.server")
T = TypeVar("T")

FLAG: Final = "--response-store"
PASSWORD_FLAG: Final = "--response-store-password-file"
PREFIX: Final = "ridgeline:responses:"
CALL_SECONDS: Final = 2.0
LEASE_SECONDS: Final = 30
_STORED: Final = struct.Struct("<d")
"""Prefix of a record: when it was stored, in seconds since 1970."""
_THREADS: Final = ThreadPoolExecutor(8, "responses-redis")

PUT: Final = """
local order, sizes, record, id = KEYS[1], KEYS[2], KEYS[3], ARGV[1]
local now, seconds, size, most = tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])
local function drop(name)
  redis.call('DEL', KEYS[4] .. name)
  redis.call('ZREM', order, name)
  local held = redis.call('HGET', sizes, name)
  if held then
    redis.call('HINCRBY', sizes, 'all', -held)
    redis.call('HDEL', sizes, name)
  end
end
if redis.call('EXISTS', order) ~= redis.call('EXISTS', sizes) then
  redis.call('DEL', order, sizes)
end
for _, name in ipairs(redis.call('ZRANGEBYSCORE', order, '-inf', now - seconds)) do drop(name) end
drop(id)
if size > most then return 0 end
while tonumber(redis.call('HGET', sizes, 'all') or '0') + size > most do
  drop(redis.call('ZRANGE', order, 0, 0)[1])
end
local life = math.ceil(seconds * 1000)
redis.call('SET', record, ARGV[6], 'PX', life)
redis.call('ZADD', order, now, id)
redis.call('HSET', sizes, id, size)
redis.call('HINCRBY', sizes, 'all', size)
redis.call('PEXPIRE', order, life)
redis.call('PEXPIRE', sizes, life)
return 1
"""
"""Stores a record and drops those of its owner that are too old, or too much with it. The server may have evicted an index: what that
named goes at its age."""
DELETE: Final = """
local found = redis.call('DEL', KEYS[3])
if redis.call('ZREM', KEYS[1], ARGV[1]) == 1 then
  redis.call('HINCRBY', KEYS[2], 'all', -tonumber(redis.call('HGET', KEYS[2], ARGV[1]) or '0'))
  redis.call('HDEL', KEYS[2], ARGV[1])
end
return found
"""


class RedisStore:
    """Implements `SharedStore`."""

    def __init__(self, url: str, password: str | None, bounds: Bounds) -> None:
        """Raises ConfigError for an address that is not taken. Nothing is asked of the server yet."""
        self._server = RedisServer(url, FLAG, PASSWORD_FLAG, password, CALL_SECONDS)
        self._bounds = bounds

    async def put(self, owner: bytes, response_id: str, record: bytes) -> None:
        bounds, now = self._bounds, self._bounds.clock()
        keys = [*_keys(owner, response_id), _name(owner, "")]
        values = [response_id, now, bounds.seconds, len(record) + RECORD_OVERHEAD, bounds.max_bytes, _STORED.pack(now) + record]
        try:
            is_stored = await self._run(lambda client: client.eval(PUT, len(keys), *keys, *values))
        except OSError as error:
            log.warning("an answer is not stored: %s", error)
            return
        if not is_stored:
            log.warning("an answer of %d bytes is not stored: --response-store-bytes is %d", len(record), bounds.max_bytes)

    async def get(self, owner: bytes, response_id: str) -> bytes | None:
        if not ID.fullmatch(response_id):
            return None
        most = _STORED.size + self._bounds.max_bytes
        data = await self._ask(lambda client: client.getrange(_name(owner, response_id), 0, most))
        if not _STORED.size < len(data) <= most:
            return None
        (stored,) = _STORED.unpack_from(data)
        return bytes(data[_STORED.size :]) if self._bounds.clock() - stored < self._bounds.seconds else None

    async def delete(self, owner: bytes, response_id: str) -> bool:
        if await self.get(owner, response_id) is None:
            return False
        keys = _keys(owner, response_id)
        return bool(await self._ask(lambda client: client.eval(DELETE, len(keys), *keys, response_id)))

    async def lease(self, response_ids: Sequence[str]) -> None:
        def renew(client: Any) -> None:
            calls = client.pipeline(transaction=False)
            for each in response_ids:
                calls.set(_lease(each), b"1", ex=LEASE_SECONDS)
            calls.execute()

        try:
            await self._run(renew)
        except OSError as error:
            log.warning("other servers are not told of answers in the background: %s", error)

    async def is_leased(self, response_id: str) -> bool:
        return bool(await self._ask(lambda client: client.exists(_lease(response_id))))

    async def _run(self, work: Callable[[Any], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(_THREADS, partial(self._server.call, work))

    async def _ask(self, work: Callable[[Any], Any]) -> Any:
        try:
            return await self._run(work)
        except OSError as error:
            log.warning("stored answers cannot be read: %s", error)
            headers = {"Retry-After": str(RETRY_AFTER_SECONDS)}
            raise ApiError("engine_unavailable", "the store of answers does not answer now; try again", headers=headers) from None


def _name(owner: bytes, response_id: str) -> str:
    return f"{PREFIX}{{{owner.hex()}}}:{response_id}"


def _keys(owner: bytes, response_id: str) -> list[str]:
    """Order and sizes of an owner's records, and a record."""
    return [_name(owner, "order"), _name(owner, "sizes"), _name(owner, response_id)]


def _lease(response_id: str) -> str:
    return f"{PREFIX}leases:{response_id}"
