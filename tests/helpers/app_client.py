"""Synchronous requests to an application whose loop runs in a thread."""

import asyncio
import threading
from typing import Any

import httpx


class AppLoop:
    """A loop in a thread, which the application under test is made for."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._thread.start()

    def connect(self, app: Any) -> None:
        """Sends what follows to an application."""
        self.app = app
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        self.client = httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8000", timeout=30)

    def wait(self, work: Any, seconds: float = 30) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(seconds)

    def request(self, method: str, path: str, **more: Any) -> httpx.Response:
        return self.wait(self.client.request(method, path, **more))

    def get(self, path: str, **more: Any) -> httpx.Response:
        return self.request("GET", path, **more)

    def end(self, stop: Any) -> None:
        """Ends client, application (`stop`) and loop."""
        self.wait(self.client.aclose())
        self.wait(stop)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()
