"""A real Prometheus scrapes a server under load, with the rules, dashboard and scaler of deploy/; Alertmanager sends the alerts.

Durations of the rules are scaled (`SPEEDUP`): what takes five minutes there takes seconds here. One load serves all tests.
"""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import quote
from urllib.request import Request, urlopen

import pytest
import yaml

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
KEY = "k"
SPEEDUP = 600
MODEL = "fake:" + json.dumps({"rows": 8, "blocks": 14, "step_seconds": 0.01, "script": [["Odd?", ""], ["?", "abcd" * 30]]})
SERVER = (
    MODEL, "--api-key", KEY, "--max-num-queued-reqs", "3", "--step-ms", "2", "--goodput", "ttft:1 itl:1", "--metrics-compat", "vllm",
)  # fmt: skip
"""Eight sequences run in a KV cache for two, steps are too long, objectives cannot be kept."""
CLIENTS = 14
UNDER_LOAD = {"FirstTokenLate", "GoodputLow", "LateSteps", "OddAnswers", "QueueGrows", "Rejections", "TokensSlow"}
SCARCE = {"KVCacheFull", "Preemptions"}
"""These wait for outputs to be longer than expected."""
BEHIND_FAILURES = {"Down", "EngineRestarts", "Errors"}


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def fetch(url: str) -> Any:
    with urlopen(url, timeout=5) as answer:
        return json.load(answer)


def faster(text: str) -> str:
    """The rules, with durations divided by `SPEEDUP`; windows hold some scrapes at least."""

    def shorter(found: re.Match[str], least: int) -> str:
        milliseconds = int(found[2]) * {"s": 1, "m": 60, "h": 3600}[found[3]] * 1000 // SPEEDUP
        return f"{found[1]}{max(least, milliseconds)}ms"

    text = re.sub(r"(\[)(\d+)([smh])(?=\])", lambda found: shorter(found, 1500), text)
    return re.sub(r"(for: )(\d+)([smh])", lambda found: shorter(found, 250), text)


class Webhook:
    """Where Alertmanager sends to: the alerts that came, by name, and the path that each came to."""

    def __init__(self) -> None:
        self.fired: dict[str, str] = {}
        fired = self.fired

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                fired.update({alert["labels"]["alertname"]: self.path for alert in body["alerts"] if alert["status"] == "firing"})
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: object) -> None: ...

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()

    def wait(self, names: set[str], seconds: float) -> None:
        end = time.monotonic() + seconds
        while not names <= self.fired.keys():
            assert time.monotonic() < end, f"not fired: {names - self.fired.keys()}"
            time.sleep(0.05)


@dataclass
class Monitored:
    """`port`: Prometheus'; `load`: ends with the fixture."""

    server: Any
    port: int
    webhook: Webhook
    log: Path

    def series(self, expression: str) -> list[Any]:
        found = fetch(f"http://127.0.0.1:{self.port}/api/v1/query?query={quote(expression)}")
        return [each for each in found["data"]["result"] if each["value"][1] != "NaN"]

    def wait(self, expression: str, seconds: float = 15.0) -> list[Any]:
        """The series of an expression, once there are some."""
        end = time.monotonic() + seconds
        while True:
            try:
                if found := self.series(expression):
                    return found
            except OSError:
                assert time.monotonic() < end, self.log.read_text()
            assert time.monotonic() < end, f"{expression} has no series"
            time.sleep(0.1)


@contextmanager
def running(log: Path, *command: str) -> Iterator[None]:
    with log.open("w") as file:
        process = subprocess.Popen(command, stdout=file, stderr=file)
    try:
        yield
    finally:
        process.kill()  # its folder goes with it
        process.wait(timeout=20)


@contextmanager
def load(url: str) -> Iterator[None]:
    """Clients that come back at once, whatever they are told. Half of their answers are short, so that the others are not expected."""
    is_over = threading.Event()

    def work(number: int) -> None:
        prompt = "Odd?" if number == 0 else f"{number}?"
        body = json.dumps({"prompt": prompt, "max_tokens": 100 if number % 2 else 2}).encode()
        request = Request(f"{url}/v1/completions", body, {"Authorization": f"Bearer {KEY}", "Content-Type": "application/json"})
        while not is_over.is_set():
            try:
                with urlopen(request, timeout=30) as answer:
                    answer.read()
            except HTTPError as error:
                error.read()
                is_over.wait(0.05)
            except OSError:
                is_over.wait(0.05)

    with ThreadPoolExecutor(CLIENTS) as pool:
        for number in range(CLIENTS):
            pool.submit(work, number)
        try:
            yield
        finally:
            is_over.set()


def configure(folder: Path, server: Any, alertmanager: int, webhook: int) -> None:
    """The files of deploy/ with faster rules, this server's address, and a webhook for both receivers."""
    for name in ("rules.yml", "alerts.yml"):
        (folder / name).write_text(faster((DEPLOY / name).read_text()))
    config = yaml.safe_load((DEPLOY / "prometheus.yml").read_text())
    config["global"] = {"scrape_interval": "250ms", "scrape_timeout": "250ms", "evaluation_interval": "250ms"}
    config["alerting"]["alertmanagers"][0]["static_configs"][0]["targets"] = [f"127.0.0.1:{alertmanager}"]
    (scrape,) = config["scrape_configs"]
    scrape |= {"authorization": {"credentials": KEY}, "static_configs": [{"targets": [server.url.removeprefix("http://")]}]}
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    alerts = yaml.safe_load((DEPLOY / "alertmanager.yml").read_text())
    alerts["route"] |= {"group_wait": "50ms", "group_interval": "250ms"}
    for receiver in alerts["receivers"]:
        receiver["webhook_configs"][0]["url"] = f"http://127.0.0.1:{webhook}/{receiver['name']}"
    (folder / "alertmanager.yml").write_text(yaml.safe_dump(alerts))


@pytest.fixture(scope="module")
def monitored(serving: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Monitored]:
    programs = [shutil.which(name) for name in ("prometheus", "prometheus-alertmanager")]
    if None in programs:
        pytest.skip("Prometheus or Alertmanager is not installed (apt-get install prometheus prometheus-alertmanager)")
    prometheus, alertmanager = map(str, programs)
    folder, webhook, port, alerting = tmp_path_factory.mktemp("monitored"), Webhook(), free_port(), free_port()
    with ExitStack() as stack:
        server = stack.enter_context(serving(*SERVER))
        configure(folder, server, alerting, webhook.server.server_port)
        stack.enter_context(running(
            folder / "alertmanager.log", alertmanager, f"--config.file={folder}/alertmanager.yml", f"--storage.path={folder}/alerts",
            f"--web.listen-address=127.0.0.1:{alerting}", "--cluster.listen-address=",
        ))  # fmt: skip
        stack.enter_context(running(
            folder / "prometheus.log", prometheus, f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data",
            f"--web.listen-address=127.0.0.1:{port}",
        ))  # fmt: skip
        stack.callback(webhook.server.server_close)
        stack.callback(webhook.server.shutdown)
        stack.enter_context(load(server.url))
        yield Monitored(server, port, webhook, folder / "prometheus.log")


def test_prometheus_reads_the_metrics(monitored: Monitored) -> None:
    monitored.wait("vllm:generation_tokens_total > 20")
    (up,) = monitored.series("up")
    assert up["value"][1] == "1" and up["metric"]["job"] == "ridgeline"
    (rejected,) = monitored.wait('ridgeline_rejected_requests_total{reason="overloaded"} > 0')
    assert rejected["metric"]["model_name"] == "fake"
    (running,) = monitored.series("vllm:num_requests_running")
    assert running["metric"]["engine"] == "0"


def test_every_panel_has_series(monitored: Monitored) -> None:
    dashboard = json.loads((DEPLOY / "grafana.json").read_text())
    asked = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    assert len(asked) > 40
    for expression in asked:
        monitored.wait(expression)


def test_every_recorded_name_has_series(monitored: Monitored) -> None:
    """Those that the notes on inference ask for among them."""
    rules = yaml.safe_load((DEPLOY / "rules.yml").read_text())
    names = {rule["record"] for group in rules["groups"] for rule in group["rules"]}
    for name in names:
        monitored.wait(name)
    for expression in (
        "histogram_quantile(0.95, sum(rate(vllm:time_to_first_token_seconds_bucket[2m])) by (le))",
        "histogram_quantile(0.95, sum(rate(vllm:time_per_output_token_seconds_bucket[2m])) by (le))",
        "vllm:gpu_prefix_cache_hit_rate", "vllm:gpu_cache_usage_perc", "vllm:e2e_request_latency_seconds_bucket",
        "vllm:time_to_first_token_seconds_bucket", "vllm:num_requests_running", "vllm:num_requests_waiting",
    ):  # fmt: skip
        assert monitored.wait(expression), expression


def test_the_scalers_queries(monitored: Monitored) -> None:
    scaler = yaml.safe_load((DEPLOY / "kubernetes" / "keda.yaml").read_text())
    for trigger in scaler["spec"]["triggers"]:
        (found,) = monitored.wait(trigger["metadata"]["query"])
        assert float(found["value"][1]) > 0, trigger["name"]


def test_alerts_reach_a_webhook(monitored: Monitored) -> None:
    """All that a load can fire, each at the receiver of its severity."""
    monitored.webhook.wait(UNDER_LOAD, 20)
    rules = yaml.safe_load((DEPLOY / "alerts.yml").read_text())
    severities = {rule["alert"]: rule["labels"]["severity"] for group in rules["groups"] for rule in group["rules"]}
    assert severities.keys() == UNDER_LOAD | SCARCE | BEHIND_FAILURES
    assert all(path == f"/{severities[name]}s" for name, path in monitored.webhook.fired.items())


@pytest.mark.night
def test_alerts_of_failures(monitored: Monitored) -> None:
    """The engine is killed, and killed again: while it starts, requests are answered with 503. Then the server goes."""
    monitored.webhook.wait(SCARCE, 60)
    for _ in range(3):
        children = Path(f"/proc/{monitored.server.process.pid}/task/{monitored.server.process.pid}/children").read_text().split()
        for child in children:
            os.kill(int(child), signal.SIGKILL)
        time.sleep(1)
    monitored.webhook.wait({"EngineRestarts", "Errors"}, 30)
    monitored.server.stop()
    monitored.webhook.wait({"Down"}, 30)
