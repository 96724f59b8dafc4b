"""Malformed requests to a router: what is wrong with them is answered as a server would, quickly, and nothing is left behind."""

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hostile import Tally, send_all
from processes import ServerProcess

FAKE = 'fake:{"blocks": 300, "max_model_len": 192, "windows": [0, 32], "vocab": 258, "script": [["@@", "x"]]}'
MAX_GROWTH_MB = 24.0


@pytest.fixture
def router(environment: dict[str, str], tmp_path: Path) -> Iterator[ServerProcess]:
    """In front of one server, with a key for both."""
    key = ["--router-key-file", str(tmp_path / "key")]
    server = ServerProcess([FAKE, *key], environment)
    try:
        started = ServerProcess(["--replica", server.url, *key], environment, "route")
        yield started
        started.stop()
    finally:
        server.stop()


def footprint(router: ServerProcess) -> tuple[float, int]:
    """(resident MB, open requests) of the router."""
    end = time.monotonic() + 10
    while (requests := json.loads(router.get("/router")[1])["replicas"][0]["requests"]) and time.monotonic() < end:
        time.sleep(0.05)
    return int(Path(f"/proc/{router.process.pid}/statm").read_text().split()[1]) * 4_096 / 1e6, requests


@pytest.mark.parametrize("total", [1_000, pytest.param(200_000, marks=[pytest.mark.night, pytest.mark.timeout(1_800)])])
def test_malformed_requests_to_a_router(router: ServerProcess, total: int) -> None:
    tallies, found = list[Tally](), list[tuple[float, int]]()
    for numbers in (range(total // 2), range(total // 2, total)):
        tallies.append(send_all(router.url, 11, numbers))
        found.append(footprint(router))
    print([dict(sorted(each.statuses.items())) for each in tallies], f"slowest {max(each.slowest for each in tallies):.2f} s", found)
    assert not any(each.problems for each in tallies), [dict(list(each.problems.items())[:10]) for each in tallies]
    assert [requests for _, requests in found] == [0, 0] and found[1][0] - found[0][0] < MAX_GROWTH_MB
    assert all(each.statuses[200] > total / 40 and each.statuses[400] > total / 10 and each.streams for each in tallies)
    assert "Traceback" not in router.output(), router.output()[-2_000:]
