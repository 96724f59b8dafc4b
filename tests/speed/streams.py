"""What a client sees of a streamed completion: the time between its events."""

import time
from typing import Any

import httpx


async def note_pauses(client: httpx.AsyncClient, body: dict[str, Any], pauses: list[float]) -> None:
    """Streams one answer; appends the seconds between two of its events that carry something."""
    async with client.stream("POST", "/v1/completions", json=body | {"stream": True}) as answer:
        last = None
        async for line in answer.aiter_lines():
            if line.startswith("data: {"):
                now = time.perf_counter()
                if last is not None:
                    pauses.append(now - last)
                last = now
