"""What a cluster lets in: keys at Serve's port, and Ray's own ports, by the interface on which they listen and by what they say without the
token. The exceptions are named here, and in docs/guide/deploy.md.
"""

import socket
from collections.abc import Callable
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import grpc
from ray_hosts import FRONT, Host, Listener

from ridgeline.server.routers import BLOCKS_PATH
from ridgeline.server.routes import ADMIN, PUBLIC, ROWS

RULES = Path(__file__).resolve().parents[2] / "deploy" / "ray.nft"
SERVE_ROUTES = ("/-/routes", "/-/healthz")
"""Serve's own, which no application sees: they ask for no key, and tell the names of applications."""
EVERYWHERE = (
    "gcs_server", "raylet/raylet", "ray::DashboardAgent", "monitor.py", "dashboard/dashboard.py",
    "ray::Serve", "ray::ProxyActor", "ray::IDLE", "ray_driver.py",
)  # fmt: skip
"""Parts of the command lines of what listens on all interfaces, whatever --node-ip-address says."""
WITHOUT_TOKEN = ("ray::DashboardAgent", "monitor.py", "dashboard/dashboard.py")
"""Of what answers GET /metrics to anybody."""
CALLS = (
    "/ray.rpc.NodeInfoGcsService/GetAllNodeInfo", "/ray.rpc.NodeManagerService/GetNodeStats",
    "/ray.rpc.CoreWorkerService/NumPendingTasks", "/ray.rpc.ObjectManagerService/Pull", "/ray.rpc.ReporterService/GetTraceback",
    "/ray.serve.ASGIService/HandleRequest", "/ray.rpc.RayletDriver/Init",
)  # fmt: skip
"""Calls of Ray's, at least one of which each of its ports knows."""
Call = Callable[..., tuple[int, str]]


def check_keys(found: Any, call: Call, client_key: str, admin_key: str) -> None:
    """Every route of the table with no key, a wrong one, and a client's; Serve's own; what the key between ingress and engines opens."""
    wrong, tried = [], 0
    for method, path in sorted({(row.method, row.path.replace("{name:path}", "fake")) for row in ROWS}):
        for key in (None, "wrong"):
            status, _ = call(method, path, key)
            is_open = (method, path) in PUBLIC
            tried += 1
            if (path == BLOCKS_PATH and status != 403) or (path != BLOCKS_PATH and (status == 401) is is_open) or status >= 500:
                wrong.append((method, path, key, status))
    for path in ("/-/", "/-/other", "/-/routes/x", "/-/healthz/x", "/nothing"):
        tried += 1
        if (status := call("GET", path)[0]) != 401:
            wrong.append(("GET", path, None, status))
    found.check("paths without a key, or with a wrong one, that are not refused", not wrong and tried > 100, f"{wrong} of {tried}")
    statuses = {path: call("GET", path)[0] for path in SERVE_ROUTES}
    found.check("Serve's own routes, without a key", set(statuses.values()) == {200}, statuses)
    told = [call("GET", BLOCKS_PATH, key)[0] for key in (None, client_key, admin_key)]
    closed = {path: call("POST", path, client_key, {"model": "fake"})[0] for path in sorted(ADMIN) if "{" not in path}
    is_closed = told == [403] * 3 and set(closed.values()) <= {403, 405}
    found.check("blocks told to clients; paths for admins, as a client", is_closed, (told, closed))
    with urlopen(f"http://{FRONT[0]}:8123/readyz", timeout=20) as answer:
        names = sorted(name.lower() for name in answer.headers if name.lower().startswith("x-ridgeline"))
    found.check("headers for routers in answers to clients", not names, names)


def check_ports(found: Any, hosts: list[Host], port: int) -> None:
    """Addresses that are listened on; what they say without the token; and what is left of them for clients behind the rules."""
    for host in hosts:
        named = {host.address, f"::ffff:{host.address}", "127.0.0.1", "::ffff:127.0.0.1", "::1"}
        listeners = host.listeners()
        strangers = [each for each in listeners if each.address not in named and not _is_everywhere(each) and each.port != port]
        count = sum(map(_is_everywhere, listeners))
        seen = f"{strangers} of {len(listeners)}, beside {count} that are named"
        found.check(f"{host.name}: ports elsewhere than on its address", not strangers, seen)
    head = hosts[0]
    front = [each for each in head.listeners() if each.port == port]
    found.check("Serve's proxy listens", [each.address for each in front] == [FRONT[0]], front)
    open_before = _reached(FRONT[0], head)
    answers = {each: _answers(FRONT[0], each.port) for each in open_before if each.port != port}
    tokenless = sorted({part for part in WITHOUT_TOKEN for each, said in answers.items() if said == "metrics" and part in each.command})
    allowed = all(said != "metrics" or any(part in each.command for part in WITHOUT_TOKEN) for each, said in answers.items())
    others = {(each.port, each.command[:90]): said for each, said in answers.items() if said not in ("metrics", "UNAUTHENTICATED")}
    seen = f"metrics of {tokenless}; otherwise: {others}; {len(answers)} ports"
    found.check("what answers without the token", allowed and not others, seen)
    for host in hosts:
        host.run("nft", "--define", "inside=inside", "--define", f"open={{ {port} }}", "--file", str(RULES))
    left = [each.port for address in (FRONT[0], head.address) for each in _reached(address, head)]
    found.check("ports that clients reach behind deploy/ray.nft", left == [port], f"{left}, of {len(open_before)} before")


def _is_everywhere(each: Listener) -> bool:
    return each.address in ("*", "0.0.0.0", "::") and any(part in each.command for part in EVERYWHERE)


def _reached(address: str, host: Host) -> list[Listener]:
    """Ports of the host that are connected to at an address from here."""
    found = []
    for each in {each.port: each for each in host.listeners()}.values():
        try:
            socket.create_connection((address, each.port), timeout=2).close()
            found.append(each)
        except OSError:
            pass
    return sorted(found, key=lambda each: each.port)


def _answers(address: str, port: int) -> str:
    """What a port says without the token: `metrics`, or statuses of calls that it knows."""
    try:
        with urlopen(f"http://{address}:{port}/metrics", timeout=3) as answer:
            return "metrics" if b"# TYPE" in answer.read() else "HTTP"
    except HTTPError as error:
        return f"HTTP {error.code}"
    except (OSError, HTTPException):  # gRPC
        pass
    statuses = set()
    with grpc.insecure_channel(f"{address}:{port}") as channel:
        for name in CALLS:
            try:
                channel.unary_unary(name)(b"", timeout=5)
                statuses.add(f"OK {name}")
            except grpc.RpcError as error:
                statuses.add(error.code().name)
    return " ".join(sorted(statuses - {"UNIMPLEMENTED"})) or "UNIMPLEMENTED"
