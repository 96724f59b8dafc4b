"""How long a server takes to answer a probe, while something else goes on."""

import threading
import time
from urllib.request import urlopen


class Watch:
    """Asks `/livez` on connections of its own until it is told to end; keeps the longest time of an answer in seconds."""

    def __init__(self, url: str) -> None:
        self.url, self.longest, self.count = url, 0.0, 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        while not self._ended.is_set():
            began = time.monotonic()
            with urlopen(f"{self.url}/livez", timeout=10) as answer:
                assert answer.status == 200
            self.longest, self.count = max(self.longest, time.monotonic() - began), self.count + 1
            time.sleep(0.02)

    def __enter__(self) -> "Watch":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
