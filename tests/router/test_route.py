"""`ridgeline route` in front of real servers: choice, failures, the end, keys."""

import json
import signal
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from inspect import signature
from pathlib import Path
from typing import Any

import openai
import pytest
from processes import ServerProcess

from ridgeline.cli.route import config_of
from ridgeline.cli.route import route as route_verb
from ridgeline.router.attempts import LEAST_SAMPLES, SAMPLES_PER_LOOK, Hedge

LONG = "A prefix that many requests share, sentence after sentence. " * 40
SLOW = 'fake:{"step_seconds": 0.005}'


@pytest.fixture(scope="module")
def replicas(environment: dict[str, str]) -> Iterator[list[ServerProcess]]:
    template = Path(__file__).parents[1] / "gold" / "templates" / "Qwen-Qwen3-0.6B.jinja"
    started = [ServerProcess([SLOW, "--chat-template", str(template)], environment) for _ in range(2)]
    yield started
    for each in started:
        if each.process.poll() is None:
            each.stop()


@pytest.fixture
def route(environment: dict[str, str]) -> Iterator[Callable[..., ServerProcess]]:
    started: list[ServerProcess] = []

    def start(*arguments: str) -> ServerProcess:
        started.append(ServerProcess(list(arguments), environment, "route"))
        return started[-1]

    yield start
    for each in started:
        if each.process.poll() is None:
            each.stop()


@pytest.fixture(scope="module")
def router(environment: dict[str, str], replicas: list[ServerProcess]) -> Iterator[ServerProcess]:
    """In front of both."""
    started = ServerProcess(to(replicas), environment, "route")
    yield started
    started.stop()


def to(servers: list[ServerProcess]) -> list[str]:
    return [word for each in servers for word in ("--replica", each.url)]


def ask(
    url: str, body: dict[str, Any], path: str = "/v1/completions", headers: dict[str, str] | None = None
) -> tuple[int, Any, dict[str, str]]:
    connection = HTTPConnection(url.partition("://")[2], timeout=30)
    try:
        connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json", **(headers or {})})
        answer = connection.getresponse()
        text = answer.read()
        return answer.status, text if body.get("stream") else json.loads(text), dict(answer.getheaders())
    finally:
        connection.close()


def requests_of(server: ServerProcess) -> float:
    return server.metric("vllm:request_success_total")


def test_a_prefix_goes_where_it_was_and_the_rest_where_least_is_to_do(replicas: list[ServerProcess], router: ServerProcess) -> None:
    before = [requests_of(each) for each in replicas]
    for number in range(4):
        assert ask(router.url, {"prompt": LONG + str(number), "max_tokens": 2})[0] == 200
    same = sorted(requests_of(each) - was for each, was in zip(replicas, before, strict=True))
    assert same == [0, 4]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda n: ask(router.url, {"prompt": f"{n} " * 900, "max_tokens": 60, "ignore_eos": True}), range(8)))
    spread = sorted(requests_of(each) - was for each, was in zip(replicas, before, strict=True))
    assert spread[0] >= 3 and sum(spread) == 12
    assert router.metric("ridgeline_router_answers_total") >= 12


def test_an_answer_is_the_replicas(replicas: list[ServerProcess], router: ServerProcess) -> None:
    body = {"prompt": "hello", "max_tokens": 8, "seed": 7, "temperature": 1.0}
    direct, routed = (ask(url, body, headers={"X-Request-Id": "of-the-client"}) for url in (replicas[0].url, router.url))
    assert direct[1]["choices"] == routed[1]["choices"] and set(direct[2]) == set(routed[2])
    assert routed[2]["x-request-id"] == "of-the-client"
    name, end = ask(router.url, body)[2]["x-request-id"], time.monotonic() + 10
    while not any(name in each.output() for each in replicas):
        assert time.monotonic() < end, "the replica knows the request by the router's name"
    with openai.OpenAI(base_url=router.url + "/v1", api_key="-") as client:
        assert [each.id for each in client.models.list()] == ["fake"]
        text = "".join(each.choices[0].text for each in client.completions.create(model="fake", stream=True, **body))
    assert text == direct[1]["choices"][0]["text"]
    assert ask(router.url, {"prompt": 3.5})[0] == 400
    assert router.get("/v1/nothing")[0] == 404 and router.get("/livez") == (200, "ok\n")


def test_a_replica_that_dies_fails_no_request_that_has_no_answer_yet(
    environment: dict[str, str], replicas: list[ServerProcess], route: Callable[..., ServerProcess]
) -> None:
    doomed = ServerProcess([SLOW], environment)
    router = route(*to([doomed, replicas[0]]))
    with openai.OpenAI(base_url=router.url + "/v1", api_key="-", max_retries=0) as client, ThreadPoolExecutor(4) as pool:
        stream = client.completions.create(model="fake", prompt="a", max_tokens=4000, stream=True, extra_body={"ignore_eos": True})
        next(iter(stream))
        answers = [pool.submit(ask, router.url, {"prompt": f"{number} {LONG}", "max_tokens": 4}) for number in range(24)]
        answers[4].result()
        doomed.process.kill()
        with pytest.raises(openai.APIError, match="ended before its answer did"):
            list(stream)
        assert {each.result()[0] for each in answers} == {200}
    doomed.process.wait()
    state = json.loads(router.get("/router")[1])["replicas"]
    assert [each["requests"] for each in state] == [0, 0] and not state[0]["ready"]


def test_a_client_that_goes_ends_its_request(replicas: list[ServerProcess], router: ServerProcess) -> None:
    connection = HTTPConnection(router.url.partition("://")[2], timeout=30)
    body = {"prompt": "a", "max_tokens": 4000, "ignore_eos": True, "stream": True}
    connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
    connection.getresponse().read(10)
    connection.close()
    end = time.monotonic() + 10
    while sum(each.metric("vllm:num_requests_running") for each in replicas) or router.metric("ridgeline_router_requests_running"):
        assert time.monotonic() < end
        time.sleep(0.02)


def test_the_end_waits_for_answers(replicas: list[ServerProcess], route: Callable[..., ServerProcess]) -> None:
    router = route(*to(replicas[:1]))
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(ask, router.url, {"prompt": "a", "max_tokens": 40, "ignore_eos": True})
        while not json.loads(router.get("/router")[1])["replicas"][0]["requests"]:
            time.sleep(0.005)
        router.process.send_signal(signal.SIGTERM)
        assert answer.result()[0] == 200
    assert router.process.wait(timeout=10) == 0


def test_a_session_stays_with_its_server(replicas: list[ServerProcess], route: Callable[..., ServerProcess]) -> None:
    router = route(*to(replicas), "--session-affinity", "header:X-Session-Id", "--session-affinity", "user")

    def taken(headers: dict[str, str], user: str | None = None) -> tuple[bool, ...]:
        """Which servers got a request of these three."""
        before = [requests_of(each) for each in replicas]
        for number in range(3):
            assert ask(router.url, {"prompt": f"{number}", "max_tokens": 1, "user": user}, headers=headers)[0] == 200
        return tuple(requests_of(each) > was for each, was in zip(replicas, before, strict=True))

    found = [taken({"x-session-id": f"session {number}"}) for number in range(8)] + [taken({}, f"user {number}") for number in range(4)]
    assert set(found) == {(True, False), (False, True)}, "each has one server, and both have some"


def test_a_server_that_hangs_is_hedged(
    environment: dict[str, str], replicas: list[ServerProcess], route: Callable[..., ServerProcess]
) -> None:
    slow = ServerProcess([SLOW], environment)
    try:
        router = route("--replica", f"{slow.url}=1000", *to(replicas[:1]), "--hedge-percentile", "90")
        body = {"prompt": "a", "max_tokens": 1}
        for number in range(LEAST_SAMPLES + SAMPLES_PER_LOOK):
            assert ask(router.url, body | {"prompt": str(number)})[0] == 200
        slow.process.send_signal(signal.SIGSTOP)
        assert ask(router.url, body | {"stream": True})[0] == 200 and "hedged_answers_total 1.0" in router.get("/metrics")[1]
        slow.process.send_signal(signal.SIGCONT)
        end = time.monotonic() + 10
        while slow.metric("vllm:num_requests_running") or json.loads(router.get("/router")[1])["replicas"][0]["requests"]:
            assert time.monotonic() < end, "what nobody reads is ended"
            time.sleep(0.02)
    finally:
        slow.process.send_signal(signal.SIGCONT)
        slow.stop()


def test_requests_wait_for_the_first_server(environment: dict[str, str], route: Callable[..., ServerProcess]) -> None:
    """A service that is scaled to zero: the router holds what comes, says so to whoever scales, and a server that starts answers it."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    router = route("--replica", f"http://127.0.0.1:{port}", "--hold-timeout", "30")
    assert router.get("/readyz")[0] == 200, "it takes requests"
    with ThreadPoolExecutor(6) as pool:
        answers = [pool.submit(ask, router.url, {"prompt": str(number), "max_tokens": 2, "stream": number % 2 > 0}) for number in range(5)]
        end = time.monotonic() + 10
        while "ridgeline_router_requests_held 5.0" not in router.get("/metrics")[1]:
            assert time.monotonic() < end
            time.sleep(0.02)
        server = ServerProcess([SLOW, "--port", str(port)], environment)
        try:
            assert {each.result()[0] for each in answers} == {200}
            assert "ridgeline_router_requests_held 0.0" in router.get("/metrics")[1]
        finally:
            server.stop()
        waiting = pool.submit(ask, router.url, {"prompt": "a"})
        while "ridgeline_router_requests_held 1.0" not in router.get("/metrics")[1]:
            assert time.monotonic() < end + 30
            time.sleep(0.02)
        router.process.send_signal(signal.SIGTERM)
        assert waiting.result()[0] == 503, "no replica will come to a router that ends"


def test_keys_are_asked_for_and_passed_on(tmp_path: Path, environment: dict[str, str], route: Callable[..., ServerProcess]) -> None:
    keys = tmp_path / "keys"
    keys.write_text("secret-key-of-a\n")
    keys.chmod(0o600)
    server = ServerProcess([SLOW, "--api-key-file", str(keys)], environment)
    try:
        router = route(*to([server]), "--api-key-file", str(keys))
        assert ask(router.url, {"prompt": "a", "max_tokens": 1})[0] == 401
        assert router.get("/router")[0] == 401 and router.get("/metrics")[0] == 401 and router.get("/readyz")[0] == 200
        assert ask(router.url, {"prompt": "a", "max_tokens": 1}, headers={"Authorization": "Bearer secret-key-of-a"})[0] == 200
        assert ask(router.url, {"prompt": "a"}, headers={"Host": "evil.example"})[0] == 403
    finally:
        server.stop()
    status, body, headers = ask(router.url, {"prompt": "a"}, headers={"Authorization": "Bearer secret-key-of-a"})
    assert (status, body["error"]["code"]) == (503, "engine_unavailable") and headers["retry-after"] == "1"
    assert router.get("/readyz")[0] == 503


def test_no_request_is_hedged_by_default() -> None:
    config = config_of({name: each.default for name, each in signature(route_verb).parameters.items()})
    assert config.hedge_percentile is None
    hedge = Hedge(config.hedge_percentile)
    for _ in range(10 * LEAST_SAMPLES):
        hedge.note(0.1)
    assert hedge.delay is None and not hedge.takes("GET", None, b"")
