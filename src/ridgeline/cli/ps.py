"""`ridgeline ps`: this user's running servers, with what each does now."""

import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Annotated, Any, Final
from urllib.error import HTTPError
from urllib.request import HTTPSHandler, OpenerDirector, ProxyHandler, build_opener

import typer

from ridgeline.cli.output import print_json, print_status, print_table

if TYPE_CHECKING:
    from ridgeline.server.running import RunningServer

ANSWER_SECONDS: Final = 1.0
MAX_ANSWER_BYTES: Final = 4 << 20
GAUGES: Final = {"running": "vllm:num_requests_running", "waiting": "vllm:num_requests_waiting"}


def ps(
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object: pid, url, model, uptime, state, requests.")] = False,
) -> None:
    """List this user's running servers: process, address, model, uptime, running and waiting requests."""
    from ridgeline.config.env import state_directory
    from ridgeline.server.running import running_servers

    servers = running_servers(state_directory())
    with ThreadPoolExecutor(16) as pool:
        found = [*pool.map(describe_server, servers)]
    if as_json:
        print_json({"servers": found})
    elif not found:
        print_status("No server of yours is running; `ridgeline serve MODEL` starts one.")
    else:
        heads = ("model", "url", "pid", "uptime", "state", "running", "waiting")
        print_table("", heads, [_row(server) for server in found])


def describe_server(server: "RunningServer") -> dict[str, Any]:
    """A line about a server. `running` and `waiting` are None where it does not say, as one with an API key does not."""
    status, _ = _ask(f"{server.url}/readyz")
    state = "ready" if status == 200 else "not ready" if status else "no answer"
    gauges: dict[str, int | None] = dict.fromkeys(GAUGES)
    if status == 200:
        metrics_status, text = _ask(f"{server.url}/metrics")
        if metrics_status == 200:
            gauges = {name: _gauge(text, metric) for name, metric in GAUGES.items()}
    uptime = max(0.0, time.time() - server.started)
    return {"pid": server.pid, "url": server.url, "model": server.model, "uptime_seconds": round(uptime, 1), "state": state, **gauges}


def _ask(url: str) -> tuple[int, str]:
    """(status, text) of an answer; status 0 where none came in time."""
    try:
        with _opener(url).open(url, timeout=ANSWER_SECONDS) as answer:
            return answer.status, answer.read(MAX_ANSWER_BYTES).decode("utf-8", "replace")
    except HTTPError as error:
        return error.code, ""
    except (OSError, ValueError):
        return 0, ""


def _opener(url: str) -> OpenerDirector:
    """Opens addresses without a proxy. The certificate of one's own server, found by its state file, may be for another name: nothing that
    is secret is sent."""
    if url.startswith("http:"):
        return build_opener(ProxyHandler({}))
    import ssl

    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return build_opener(ProxyHandler({}), HTTPSHandler(context=context))


def _gauge(text: str, metric: str) -> int | None:
    """The sum of a gauge's samples in Prometheus's text format; None where it has none."""
    samples = [line.rpartition(" ")[2] for line in text.splitlines() if line.startswith((f"{metric}{{", f"{metric} "))]
    try:
        return int(sum(map(float, samples))) if samples else None
    except (ValueError, OverflowError):
        return None


def _row(server: dict[str, Any]) -> tuple[str, ...]:
    minutes, seconds = divmod(int(server["uptime_seconds"]), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    uptime = f"{days} d {hours} h" if days else f"{hours} h {minutes} min" if hours else f"{minutes} min {seconds} s"
    counts = ("–" if server[name] is None else str(server[name]) for name in GAUGES)
    return server["model"], server["url"], str(server["pid"]), uptime, server["state"], *counts
