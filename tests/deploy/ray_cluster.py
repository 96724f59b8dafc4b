"""Ridgeline on a Ray cluster of two nodes, hosts with namespaces of their own, behind Serve's proxy, to which clients have another link.

Run by hand with `make ray`, as root: Ray is 490 MB installed. Prints what it saw; ends with 1 where something is not as it should be.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

HERE = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(HERE / "tests" / "deploy"), str(HERE / "tests" / "helpers")]

import ray_ports  # noqa: E402
import ray_trace  # noqa: E402
from ray_hosts import FRONT, Host, made_hosts, wait_for  # noqa: E402

CLIENT_KEY, ADMIN_KEY = "a-key-of-a-client", "a-key-of-an-admin"
PORT, GCS_PORT = 8123, 6379
ADDRESS = f"{FRONT[0]}:{PORT}"
FAKE = "fake:" + json.dumps({"rows": 64, "step_seconds": 0.1})
SLOW = "slow=fake:" + json.dumps({"step_seconds": ray_trace.STEP_SECONDS, "max_model_len": 16_384, "blocks": 8_192})
OTHER = "other=fake:{}"
STREAMS, MANY = 8, 36
ENGINE, MODEL_PROCESS = "ray::ServeReplica:ridgeline:Engine", "ridgeline.engine.process"
NODE = ("--object-store-memory", str(80 << 20), "--num-cpus", "3", "--disable-usage-stats")
SCALING = {"upscale_delay_s": 2, "downscale_delay_s": 6, "look_back_period_s": 4, "max_replicas": 4}


def ask(seed: int, model: str = "fake", key: str = CLIENT_KEY, tokens: int = 100, **headers: str) -> str:
    """The text of one stream, ten seconds of it by default. Raises for an error in it."""
    how = {"max_tokens": tokens, "seed": seed, "temperature": 1, "ignore_eos": True, "stream": True}
    body = {"model": model, "prompt": f"{seed} " * 300, **how}
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {key}", **headers}
    with urlopen(Request(f"http://{ADDRESS}/v1/completions", json.dumps(body).encode(), headers), timeout=120) as answer:
        events = [line[6:] for line in answer.read().decode().splitlines() if line.startswith("data: ")]
    assert events[-1] == "[DONE]", events[-1]
    return "".join(json.loads(event)["choices"][0]["text"] for event in events[:-1])


def call(method: str, path: str, key: str | None = None, body: object = None) -> tuple[int, str]:
    """Status and body of an answer."""
    headers = {"Content-Type": "application/json"} | ({} if key is None else {"Authorization": f"Bearer {key}"})
    data = None if body is None else json.dumps(body).encode()
    try:
        with urlopen(Request(f"http://{ADDRESS}{path}", data, headers, method=method), timeout=60) as answer:
            return answer.status, answer.read().decode()
    except HTTPError as error:
        with error:
            return error.code, error.read().decode()


class Cluster:
    """Two nodes with the application on them; `wrong`: what was not as it should be."""

    def __init__(self, hosts: list[Host], driver: "subprocess.Popen[str]", record: Path) -> None:
        self.hosts, self.record = hosts, record
        self.wrong: list[str] = []
        self._driver = driver

    def check(self, what: str, is_right: bool, seen: object) -> None:
        """Prints what was seen."""
        print(f"{'ok   ' if is_right else 'WRONG'} {what}: {seen}", flush=True)
        if not is_right:
            self.wrong.append(what)

    def status(self) -> dict[str, Any]:
        """What Serve says of the engines."""
        assert self._driver.stdin is not None and self._driver.stdout is not None
        self._driver.stdin.write("\n")
        self._driver.stdin.flush()
        found: dict[str, Any] = json.loads(self._driver.stdout.readline())
        return found

    def engines(self) -> int:
        """Engines that run, as Serve says."""
        return int(self.status()["states"].get("RUNNING", 0))

    def processes(self, name: str = ENGINE) -> list[tuple[Host, int]]:
        """Engines' processes, and where they are."""
        return [(host, pid) for host in self.hosts for pid in host.processes(name)]


@contextmanager
def cluster(hosts: list[Host], folder: Path) -> Iterator[Cluster]:
    """Starts nodes and the application."""
    head, other = hosts
    head.run("ray", "start", "--head", "--port", str(GCS_PORT), "--node-ip-address", head.address, "--include-dashboard", "false", *NODE)
    other.run("ray", "start", "--address", f"{head.address}:{GCS_PORT}", "--node-ip-address", other.address, *NODE)
    command = head.command(sys.executable, str(HERE / "tests" / "deploy" / "ray_driver.py"))
    with (
        (folder / "driver.log").open("w") as log,
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True) as driver,
    ):
        assert driver.stdin is not None and driver.stdout is not None
        asked = {"host": FRONT[0], "port": PORT, "models": [FAKE, SLOW, OTHER], "scaling": SCALING}
        driver.stdin.write(json.dumps(asked) + "\n")
        driver.stdin.flush()
        try:
            assert driver.stdout.readline().startswith("{"), "the application did not start"
            yield Cluster(hosts, driver, folder / "record")
        except BaseException:
            print((folder / "driver.log").read_text()[-3_000:])
            raise
        finally:
            driver.stdin.close()


def check_placed(found: Cluster) -> None:
    """Two nodes with an engine each."""
    where, told = [host.name for host, _ in found.processes()], found.status()
    found.check("nodes; engines on each", told["nodes"] == 2 and sorted(where) == ["head", "other"], f"{told['nodes']}; {where}")


def check_choices(found: Cluster, folder: Path) -> None:
    """The choices of Serve's router in the cluster, and those of `ridgeline route` in front of two servers, for one trace."""
    from processes import SOURCE, ServerProcess

    environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
    shared = ["--api-key-file", str(folder / "keys"), "--router-key-file", str(folder / "router-key")]
    servers = [ServerProcess([FAKE, SLOW, OTHER, *shared], environment) for _ in range(2)]
    router = ServerProcess([word for each in servers for word in ("--replica", each.url)] + shared, environment, "route")
    headers, admin = ({"Authorization": f"Bearer {key}"} for key in (CLIENT_KEY, ADMIN_KEY))
    try:
        with ThreadPoolExecutor(2) as pool:
            ours = pool.submit(ray_trace.play, ADDRESS, headers, lambda: ray_trace.recorded(found.record))
            theirs = pool.submit(
                ray_trace.play, router.url.partition("://")[2], headers, ray_trace.RouteWatch(router.url, admin["Authorization"])
            )
            ray, route = ours.result(), theirs.result()
    finally:
        for each in (router, *servers):
            each.stop()
    same = sum(one == other for (one, _), (other, _) in zip(ray, route, strict=True))
    loads = sum(one == other for (_, one), (_, other) in zip(ray, route, strict=True))
    seen = f"{same} of {len(ray)}, {sum(number for number, _ in ray)} of them the second; loads before them alike: {loads}"
    found.check("choices of the cluster's router that are those of ridgeline route", same == len(ray) > 60, seen)


def check_models(found: Cluster) -> None:
    """A second model is unloaded on both engines, and loaded again where it is asked for."""

    def models() -> int:
        return len(found.processes(MODEL_PROCESS))

    whole, text = models(), ask(1, "other")
    refused = call("POST", "/models/unload", CLIENT_KEY, {"model": "other"})[0]
    seconds = [_unload(found, models, whole - number) for number in (1, 2)]
    began = time.monotonic()
    again = ask(1, "other")
    seconds.append(time.monotonic() - began)
    loaded = models()
    call("POST", "/models/load", ADMIN_KEY, {"model": "other"})
    seen = f"{whole}, {whole - 2}, {loaded}; as a client: {refused}; seconds: {[round(each, 1) for each in seconds]}"
    found.check("engines' model processes: all, other unloaded twice, asked for", (again, loaded, refused) == (text, whole - 1, 403), seen)


def _unload(found: Cluster, models: Callable[[], int], wanted: int) -> float:
    """Unloads the model at an engine that has it; the router hears of that within a second."""
    status, said = call("POST", "/models/unload", ADMIN_KEY, {"model": "other"})
    assert status == 200, said
    return wait_for("a model is unloaded", 20, lambda: models() == wanted) + (time.sleep(2.5) or 2.5)


@contextmanager
def asking(clients: int, ask_once: Callable[[int], object]) -> Iterator[None]:
    """Within it so many clients ask again and again. Raises what one of them has."""
    is_over = [False]

    def client(number: int) -> None:
        while not is_over[0]:
            ask_once(number)

    with ThreadPoolExecutor(clients) as pool:
        asked = [pool.submit(client, number) for number in range(clients)]
        try:
            yield
        finally:
            is_over[0] = True
        for each in asked:
            each.result()


def check_growth(found: Cluster) -> None:
    """Under streams of many clients the number of engines grows, one is killed meanwhile, and another one takes its place; behind them it
    shrinks. No stream fails, and none is answered otherwise than alone."""
    with ThreadPoolExecutor(STREAMS) as pool:
        wanted = list(pool.map(ask, range(STREAMS)))
    failed, done = list[str](), list[int]()

    def client(number: int) -> None:
        seed = number % STREAMS
        try:
            if ask(seed) != wanted[seed]:
                failed.append(f"{seed} is answered otherwise")
        except Exception as error:
            failed.append(repr(error))
        done.append(seed)

    with asking(MANY, client):
        grown = wait_for("a third engine", 120, lambda: found.engines() >= 3)
        before = found.processes()
        host, pid = before[0]
        host.kill(pid)
        wait_for("the engine is gone", 20, lambda: (host, pid) not in found.processes())
        back = wait_for("another engine", 120, lambda: found.engines() >= 3 and bool(set(found.processes()) - set(before)))
        time.sleep(5.0)
    seen = f"{len(done)} streams, {len(failed)} failed or different {failed[:3]}; third after {grown:.1f} s, another after {back:.1f} s"
    found.check(f"{MANY} clients, a third engine, one killed with -9, another one", not failed and len(done) >= MANY, seen)
    shrunk = wait_for("two engines again", 180, lambda: found.engines() == 2 and len(found.processes()) == 2)
    found.check("engines behind the load", True, f"2, after {shrunk:.1f} s")


def check_goodput(found: Cluster) -> None:
    """Six clients, whom two engines have rows for many times over, but whose tokens all come too late by their own objective."""
    with asking(6, lambda number: ask(number, tokens=10, **{"x-slo-tpot-ms": "1"})):
        grown = wait_for("a third engine for goodput", 120, lambda: found.engines() >= 3)
    shrunk = wait_for("two engines again", 180, lambda: found.engines() == 2)
    found.check("engines under 6 clients whose tokens come late", True, f"3 after {grown:.1f} s, and 2 again {shrunk:.1f} s behind them")


def check_handle(found: Cluster) -> None:
    """All that has crossed the handle, of each request so far."""
    told = [json.loads(line) for line in found.record.read_text().splitlines()]
    plain = [each["plain"] for each in told if "plain" in each]
    answers = sorted({name for each in told if each["what"] == "answered" for name in each["types"]})
    is_right = all(plain) and len(plain) > 50 and all(each["plain"] for each in told if each["what"] == "answered")
    found.check("arguments whose pickles call nothing; types of answers", is_right, f"{sum(plain)} of {len(plain)}; {answers}")


def checks(hosts: list[Host], folder: Path, names: list[str]) -> int:
    """Those that are named, or all, from where clients are."""
    with cluster(hosts, folder) as found:
        every: dict[str, Callable[[], None]] = {
            "placed": lambda: check_placed(found),
            "keys": lambda: ray_ports.check_keys(found, call, CLIENT_KEY, ADMIN_KEY),
            "ports": lambda: ray_ports.check_ports(found, hosts, PORT),
            "models": lambda: check_models(found),
            "growth": lambda: check_growth(found),
            "goodput": lambda: check_goodput(found),
            "choices": lambda: check_choices(found, folder),
            "handle": lambda: check_handle(found),
        }
        for name in names or every:
            every[name]()
        print(f"{len(found.wrong)} wrong: {found.wrong}" if found.wrong else "all as it should be")
        return int(bool(found.wrong))


def main() -> int:
    """Makes the hosts, and runs the checks in the network of their clients."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # hosts end with their context
    with TemporaryDirectory() as folder, made_hosts() as (head, other, client):
        keys = Path(folder) / "keys"
        keys.write_text(f"client {CLIENT_KEY}\nadmin {ADMIN_KEY} scope=admin\n")
        keys.chmod(0o600)
        path = os.pathsep.join([str(HERE / "src"), str(HERE / "deploy"), str(HERE / "tests" / "deploy")])
        environment = {
            **os.environ, "RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": os.urandom(32).hex(),
            "RIDGELINE_API_KEY_FILE": str(keys), "RIDGELINE_RAY_RECORD": f"{folder}/record", "PYTHONPATH": path,
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        }  # fmt: skip
        hosts = json.dumps([[each.name, each.address, each.pid] for each in (head, other)])
        command = ["nsenter", "-t", str(client.pid), "-n", sys.executable, __file__, "--inside", hosts, folder, *sys.argv[1:]]
        return subprocess.run(command, env=environment, check=False).returncode


if __name__ == "__main__":
    if sys.argv[1:2] == ["--inside"]:
        sys.exit(checks([Host(*each) for each in json.loads(sys.argv[2])], Path(sys.argv[3]), sys.argv[4:]))
    sys.exit(main())
