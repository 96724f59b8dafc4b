"""A real Prometheus scrapes the server, and its own API answers from what it found."""

import json
import shutil
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote
from urllib.request import Request, urlopen

import pytest

KEY = "k"


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def complete(server: Any, tokens: int) -> None:
    body = json.dumps({"prompt": "p", "max_tokens": tokens}).encode()
    with urlopen(Request(f"{server.url}/v1/completions", body, {"Authorization": f"Bearer {KEY}"}), timeout=10) as answer:
        assert answer.status == 200


def query(port: int, expression: str) -> float | None:
    try:
        with urlopen(f"http://127.0.0.1:{port}/api/v1/query?query={quote(expression)}", timeout=5) as answer:
            found = json.load(answer)["data"]["result"]
    except OSError:
        return None
    return float(found[0]["value"][1]) if found else None


def test_prometheus_reads_the_metrics(serving: Callable[..., Any], tmp_path: Path) -> None:
    binary = shutil.which("prometheus")
    if binary is None:
        pytest.skip("prometheus is not installed (apt-get install prometheus)")
    with serving("fake:{}", "--api-key", KEY) as server:
        complete(server, 7)
        port = free_port()
        (tmp_path / "prometheus.yml").write_text(
            "global: {scrape_interval: 200ms, scrape_timeout: 200ms}\nscrape_configs: [{job_name: ridgeline, authorization: {credentials: "
            f"{KEY}}}, static_configs: [{{targets: ['{server.url.removeprefix('http://')}']}}]}}]\n"
        )
        options = [f"--config.file={tmp_path}/prometheus.yml", f"--storage.tsdb.path={tmp_path}/data"]
        options.append(f"--web.listen-address=127.0.0.1:{port}")
        with (tmp_path / "log").open("w") as log:
            process = subprocess.Popen([binary, *options], stdout=log, stderr=log)
        try:
            end = time.monotonic() + 30
            while query(port, "vllm:generation_tokens_total") != 7.0:
                assert time.monotonic() < end, (tmp_path / "log").read_text()
                time.sleep(0.2)
            assert query(port, 'up{job="ridgeline"}') == 1.0
            assert query(port, 'vllm:request_success_total{finished_reason="length", model_name="fake"}') == 1.0
            assert query(port, "histogram_quantile(0.5, vllm:time_to_first_token_seconds_bucket)") is not None
        finally:
            process.terminate()
            process.wait(timeout=20)
