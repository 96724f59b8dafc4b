"""Engine processes of a fake model and what is asked of them, for tests from outside."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

from ridgeline.config.groups import EngineConfig
from ridgeline.core.commands import Output
from ridgeline.core.events import Closed
from ridgeline.core.params import Admitted, SamplingParams
from ridgeline.engine.admit import ModelLimits, admit
from ridgeline.engine.client import EngineClient
from ridgeline.engine.streams import RequestStream

FAST = EngineConfig('fake:{"rows": 16, "blocks": 4096}')
SLOW = EngineConfig('fake:{"rows": 16, "blocks": 4096, "step_seconds": 0.02}', step_timeout_seconds=0.8)


def no_delay(failures: int) -> float:
    return 0.0


@asynccontextmanager
async def serving(config: EngineConfig, **arguments: Any) -> AsyncIterator[EngineClient]:
    client = EngineClient(config, delay=arguments.pop("delay", no_delay), **arguments)
    await client.start()
    try:
        await asyncio.wait_for(client.ready(), 10)
        yield client
    finally:
        await client.shutdown()


async def request(client: EngineClient, name: str, **fields: Any) -> Admitted:
    info = (await client.ready()).info
    limits = ModelLimits(info.vocab, info.max_model_len, frozenset(), info.kv)
    return admit((5, 6, 7), SamplingParams(**fields), limits, request_id=name, draw_seed=lambda: 7)


async def read(stream: RequestStream) -> tuple[list[int], list[Closed]]:
    ids: list[int] = []
    closed = []
    async for item in stream:
        if isinstance(item, Output):
            ids += item.ids
        else:
            closed.append(item)
    return ids, closed


def run(main: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(main, 20))


def alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


async def until(condition: Callable[[], bool], seconds: float) -> float:
    """Seconds until the condition held; fails when it does not in time."""
    began = time.monotonic()
    while not condition():
        assert time.monotonic() - began < seconds, "too late"
        await asyncio.sleep(0.005)
    return time.monotonic() - began
