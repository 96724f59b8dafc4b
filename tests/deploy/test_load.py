"""The load scripts: Locust, k6, wrk and `bench serve` send the same load to one server, and say the same of it as its own metrics."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

LOAD = Path(__file__).resolve().parents[2] / "deploy" / "load"
CLIENTS, TOKENS, STEP_SECONDS = 8, 10, 0.02
PER_SECOND = CLIENTS / (TOKENS * STEP_SECONDS)
"""Requests that the server's steps allow."""
FAKE = json.dumps({"rows": CLIENTS, "step_seconds": STEP_SECONDS})


@pytest.fixture(scope="module")
def server(serving: Callable[..., Any]) -> Iterator[Any]:
    with serving(f"fake:{FAKE}") as server:
        yield server


def run(command: list[str], environment: dict[str, str], folder: Path) -> str:
    program = shutil.which(command[0], path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    if program is None:
        pytest.skip(f"{command[0]} is not installed")
    done = subprocess.run(
        [program, *command[1:]], env={**environment, "TOKENS": str(TOKENS)}, cwd=folder, capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def by_locust(server: Any, seconds: int, environment: dict[str, str], folder: Path) -> float:
    users = ["-u", str(CLIENTS), "-r", "100", "-t", f"{seconds}s"]
    rows = json.loads(run(
        ["locust", "-f", str(LOAD / "locustfile.py"), "--headless", "--json", "--skip-log", *users, "-H", server.url], environment, folder
    ))  # fmt: skip
    ttft, whole = (next(row for row in rows if row["name"] == name) for name in ("TTFT", "/v1/completions"))
    assert whole["num_failures"] == 0 and whole["num_requests"] <= ttft["num_requests"] <= whole["num_requests"] + CLIENTS
    assert 0 < ttft["total_response_time"] / ttft["num_requests"] < whole["total_response_time"] / whole["num_requests"]
    return float(whole["num_requests"] / seconds)


def by_k6(server: Any, seconds: int, environment: dict[str, str], folder: Path) -> float:
    users = ["--vus", str(CLIENTS), "--duration", f"{seconds}s", "-e", f"URL={server.url}", "-e", f"TOKENS={TOKENS}"]
    run(["k6", "run", "--no-usage-report", "--quiet", "--summary-export", "out.json", *users, str(LOAD / "k6.js")], environment, folder)
    found = json.loads((folder / "out.json").read_text())["metrics"]
    assert found["checks"]["fails"] == 0 and found["output_tokens"]["count"] == TOKENS * found["http_reqs"]["count"]
    return float(found["http_reqs"]["rate"])


def by_wrk(server: Any, seconds: int, environment: dict[str, str], folder: Path) -> float:
    users = ["-t1", f"-c{CLIENTS}", f"-d{seconds}s", "-s", str(LOAD / "wrk.lua")]
    told = run(["wrk", *users, f"{server.url}/v1/completions"], environment, folder)
    assert "Non-2xx" not in told and "Socket errors" not in told, told
    found = re.search(r"Requests/sec:\s+([\d.]+)", told)
    assert found is not None, told
    return float(found[1])


def by_bench(server: Any, seconds: int, environment: dict[str, str], folder: Path) -> float:
    program = "import sys; sys.argv[0] = 'ridgeline'; from ridgeline.cli.main import main; main()"
    load = ["--streams", str(CLIENTS), "--seconds", str(seconds), "--input-len", "20", "--output-len", str(TOKENS), "--ignore-eos"]
    command = [sys.executable, "-c", program, "bench", "serve", "--url", server.url, *load, "--json", "-"]
    [found] = json.loads(run(command, environment, folder))["runs"]
    assert found["failed"] == 0 and abs(found["server_ttft"] - found["ttft"]["mean"]) < 0.02
    return float(found["requests_per_second"])


CLIENT_OF = {"locust": by_locust, "k6": by_k6, "wrk": by_wrk, "bench serve": by_bench}


def ended(server: Any) -> float:
    return float(server.metric("vllm:request_success_total"))


@pytest.mark.parametrize("name", CLIENT_OF)
def test_each_client_loads_a_server(server: Any, name: str, environment: dict[str, str], tmp_path: Path) -> None:
    before = ended(server)
    rate = CLIENT_OF[name](server, 3, environment, tmp_path)
    if rate <= 0.3 * PER_SECOND:  # beside other tests seconds may pass before all users are there
        rate = CLIENT_OF[name](server, 12, environment, tmp_path)
    assert 0.3 * PER_SECOND < rate <= 1.3 * PER_SECOND, rate
    assert ended(server) > before


@pytest.mark.night
@pytest.mark.alone
@pytest.mark.timeout(300)
def test_all_say_the_same(server: Any, environment: dict[str, str], tmp_path: Path) -> None:
    """Thirty seconds each; `bench serve` is within 5 % of each of the others, and all within what the steps allow."""
    rates = {name: client(server, 30, environment, tmp_path) for name, client in CLIENT_OF.items()}
    print(", ".join(f"{name} {rate:.2f}/s" for name, rate in rates.items()), f"the steps allow {PER_SECOND:g}")
    for rate in rates.values():
        assert abs(rate / rates["bench serve"] - 1) <= 0.05 and rate <= 1.02 * PER_SECOND
