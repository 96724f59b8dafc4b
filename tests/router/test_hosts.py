"""Servers on hosts of their own, one of which is cut off while it streams: packets go nowhere, and no end of a connection tells of it."""

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from processes import ServerProcess
from relayed import alike, events
from switched import Switch, enter, switched_hosts

KEY = "a-key-of-clients"
FAKE = 'fake:{"step_seconds": 0.02}'
BODY = {"model": "fake", "max_tokens": 150, "ignore_eos": True, "temperature": 1.0}
NOTICED_SECONDS = 9.0
"""Within which a stream goes on: seven of silence, and what is needed elsewhere."""


@pytest.fixture
def switch() -> Iterator[Switch]:
    with switched_hosts(3) as made:
        yield made


@pytest.fixture
def start(environment: dict[str, str], tmp_path: Path, switch: Switch) -> Iterator[Callable[..., ServerProcess]]:
    """Starts a server on a host, or the router on the first one."""
    keys = tmp_path / "keys"
    keys.write_text(f"{KEY}\n")
    keys.chmod(0o600)
    shared = ["--api-key-file", str(keys), "--router-key-file", str(tmp_path / "key")]
    with ExitStack() as stack:

        def begin(number: int, *arguments: str) -> ServerProcess:
            host, verb = switch.hosts[number], "serve" if number else "route"
            made = ServerProcess([*arguments, *shared, "--host", host.address], environment, verb, where=host.where)
            stack.callback(made.stop)
            return made

        yield begin


@pytest.mark.night
@pytest.mark.timeout(600)
def test_a_host_that_is_cut_off_fails_no_request(switch: Switch, start: Callable[..., ServerProcess]) -> None:
    """Streams of the host go on elsewhere, requests of that moment are answered by another one, and the host is asked again when it is
    back."""
    replicas = [start(number, FAKE, "--no-enable-prefix-caching") for number in (1, 2)]
    router = start(0, *(word for each in replicas for word in ("--replica", each.url)), "--routing", "round-robin")
    ask = partial(events, path="/v1/completions", key=KEY)

    def body(number: int) -> dict[str, Any]:
        return BODY | {"prompt": f"{number} " * 20, "seed": number}

    with ThreadPoolExecutor(64, initializer=enter, initargs=(switch.hosts[0],)) as pool:
        wanted = [alike(each) for each in pool.map(lambda number: ask(replicas[0].url, body=body(number)), range(8))]
        for port in (1, 2, 1):
            begun, longest = threading.Semaphore(0), [0.0] * len(wanted)

            def one(number: int, begun: threading.Semaphore = begun, longest: list[float] = longest) -> str:
                last, count = time.monotonic(), 0

                def note() -> None:
                    nonlocal last, count
                    count += 1
                    if count == 20:
                        begun.release()
                    last, before = time.monotonic(), last
                    longest[number] = max(longest[number], last - before)

                return ask(router.url, body=body(number), on_event=note)

            streams = [pool.submit(one, number) for number in range(len(wanted))]
            for _ in streams:
                assert begun.acquire(timeout=30)
            switch.set_port(port, is_up=False)
            others = []
            for number in range(40):
                others.append(pool.submit(ask, router.url, body=body(number % 8) | {"max_tokens": 3}))
                time.sleep(0.25)
            assert [alike(each.result(timeout=60)) for each in streams] == wanted
            assert all('"finish_reason":"length"' in each.result(timeout=60) for each in others)
            print([round(each, 1) for each in longest])
            assert 2 < max(longest) < NOTICED_SECONDS, "some were cut off, and went on"
            switch.set_port(port, is_up=True)
            time.sleep(8)
