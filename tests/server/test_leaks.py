"""Malformed requests leave nothing behind in the process: no task, no request in the engine, no stored answer that was not asked for."""

import asyncio
import random
from typing import Any

import httpx
from malformed import Malformed, Request

REQUESTS = 400


def split(request: Request) -> tuple[str, str, list[tuple[bytes, bytes]], bytes]:
    """Method, target, headers and body."""
    head, _, body = request.data.partition(b"\r\n\r\n")
    first, *lines = head.split(b"\r\n")
    method, target, _ = first.decode("latin-1").split(" ")
    headers = [(name, value.strip()) for name, _, value in (line.partition(b":") for line in lines)]
    return method, target, headers, body


async def send(site: Any, request: Request, rng: random.Random) -> int:
    """The status; 0 where the client went away."""
    method, target, headers, body = split(request)
    kept = [pair for pair in headers if pair[0].lower() not in (b"transfer-encoding", b"content-length")]
    asked = site.client.build_request(method, "/", headers=kept, content=body)
    asked.url = asked.url.copy_with(raw_path=target.encode())
    try:
        async with asyncio.timeout(0.002 if rng.random() < 0.1 else 10):
            return (await site.client.send(asked)).status_code
    except (TimeoutError, httpx.InvalidURL):
        return 0


def test_no_task_and_no_request_is_left(chat_site: Any) -> None:
    requests, rng = Malformed(3), random.Random(3)

    before = chat_site.wait(count_tasks())

    async def work() -> tuple[list[int], int]:
        framed = [each for each in map(requests.request, range(REQUESTS)) if each.is_framed and each.row is not None]
        statuses = [await send(chat_site, each, rng) for each in framed]
        for _ in range(100):
            tasks = await count_tasks()
            if tasks == before and not chat_site.service.deployment.open_requests:
                break
            await asyncio.sleep(0.05)
        return statuses, tasks

    statuses, tasks = asyncio.run_coroutine_threadsafe(work(), chat_site.loop).result(60)
    assert tasks == before and chat_site.service.deployment.open_requests == 0
    assert not [each for each in statuses if each >= 500] and statuses.count(200) > 20 and statuses.count(400) > 50


async def count_tasks() -> int:
    return len(asyncio.all_tasks()) - 1
