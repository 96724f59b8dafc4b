"""A replica is killed in the middle of streams: another one goes on with each, and the client reads what it would have read."""

import json
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from processes import ServerProcess
from relayed import alike, events

THOUGHT = "<think>\nThe weather of a town is asked for, so the tool is what to call first of all.\n</think>\n\n"
CALL = '<tool_call>\n{"name": "weather", "arguments": {"town": "Bern, in the middle of the country, by the river"}}\n</tool_call>'
PLAIN = "It is sunny in Bern today, and it will stay so for most of the week; take a hat, and STOP reading here."
FAKE = "fake:" + json.dumps({"step_seconds": 0.01, "script": [["Bern?", THOUGHT + CALL], ["again", THOUGHT + PLAIN]]})
TOOL = {"name": "weather", "parameters": {"type": "object", "properties": {"town": {"type": "string"}}}}
ASK, AGAIN = ({"role": "user", "content": text} for text in ("How is it in Bern?", "Say it again"))
FREE = {"seed": 11, "temperature": 1.0, "max_tokens": 120, "ignore_eos": True, "stream_options": {"include_usage": True}}
ASKED: dict[str, tuple[str, dict[str, Any]]] = {
    "completion": ("/v1/completions", {"prompt": "a" * 99, "n": 2, **FREE}),
    "two prompts": ("/v1/completions", {"prompt": ["b" * 99, "c" * 99], "logprobs": 2, **FREE}),
    "drawn": ("/v1/completions", {"prompt": "d" * 99, "max_tokens": 100, "ignore_eos": True, "temperature": 1.0, "seed": 3}),
    "chat": ("/v1/chat/completions", {"messages": [AGAIN], "stop": ["STOP"], "stream_options": {"include_usage": True}}),
    "call": ("/v1/chat/completions", {"messages": [ASK], "tools": [{"type": "function", "function": TOOL}]}),
    "response": ("/v1/responses", {"input": [ASK], "tools": [{"type": "function", **TOOL}]}),
    "message": ("/v1/messages", {"messages": [ASK], "max_tokens": 300, "tools": [{"name": "weather", "input_schema": TOOL["parameters"]}]}),
    "llama.cpp's": ("/completion", {"prompt": "e" * 99, "n_predict": 100, "ignore_eos": True, "temperature": 1.0, "seed": 5, "n_probs": 2}),
    "Ollama's chat": ("/api/chat", {"messages": [ASK], "tools": [{"type": "function", "function": TOOL}]}),
    "Ollama's text": ("/api/generate", {"prompt": "f" * 99, "raw": True, "options": {"num_predict": 100, "seed": 7, "temperature": 1.0}}),
}  # fmt: skip
ASKED = {name: (path, body | {"model": "fake"}) for name, (path, body) in ASKED.items()}


@pytest.fixture
def start(environment: dict[str, str], tmp_path: Path) -> Iterator[Callable[..., ServerProcess]]:
    """Starts a replica, or a router, with the key that all of them share."""
    template = Path(__file__).parents[1] / "gold" / "templates" / "Qwen-Qwen3-0.6B.jinja"
    started: list[ServerProcess] = []

    def begin(*arguments: str, verb: str = "serve") -> ServerProcess:
        more = [FAKE, "--chat-template", str(template), "--no-enable-prefix-caching"] if verb == "serve" else []
        started.append(ServerProcess([*more, "--router-key-file", str(tmp_path / "key"), *arguments], environment, verb))
        return started[-1]

    yield begin
    for each in started:
        if each.process.poll() is None:
            each.stop()


def undisturbed(pool: ThreadPoolExecutor, url: str) -> dict[str, str]:
    """The streams of a replica itself."""
    return dict(zip(ASKED, map(alike, pool.map(lambda asked: events(url, *asked), ASKED.values())), strict=True))


@pytest.mark.timeout(90)
def test_every_stream_goes_on_as_it_would_have(start: Callable[..., ServerProcess]) -> None:
    doomed, other = start(), start()
    router = start("--replica", f"{doomed.url}=1000", "--replica", other.url, verb="route")
    begun = threading.Semaphore(0)

    def ask(path: str, body: dict[str, Any]) -> str:
        count = iter(range(1, 1 << 20))
        return events(router.url, path, body, lambda: begun.release() if next(count) == 30 else None)

    with ThreadPoolExecutor(len(ASKED)) as pool:
        streams = {name: pool.submit(ask, *asked) for name, asked in ASKED.items()}
        for _ in ASKED:
            assert begun.acquire(timeout=20)
        doomed.process.kill()
        found = {name: stream.result(timeout=60) for name, stream in streams.items()}
        wanted = undisturbed(pool, other.url)
    # A stream may end before the slowest one has begun, or wait at its client with all of it sent.
    assert 0 < router.metric("ridgeline_router_continued_answers_total") <= len(ASKED)
    for name in ASKED:
        assert ":r " not in found[name]
        assert alike(found[name]) == wanted[name], name
    forged = {"x-ridgeline-continue": "2 0", "x-ridgeline-router": "0" * 64}
    body = {"model": "fake", "prompt": "a", "max_tokens": 1}
    assert httpx.post(f"{router.url}/v1/completions", json=body, headers=forged).status_code == 200, "a client's headers are no router's"
    doomed.process.wait()


@pytest.mark.night
@pytest.mark.timeout(3600)
def test_a_hundred_kills_fail_no_stream(start: Callable[..., ServerProcess]) -> None:
    """Four replicas under streams of all dialects; one after the other is killed, and another takes its port while the next ones are."""
    replicas = [start() for _ in range(4)]
    ports = [each.url.rpartition(":")[2] for each in replicas]
    router = start(*(word for each in replicas for word in ("--replica", each.url)), verb="route")
    wanted = {name: alike(events(replicas[0].url, *asked)).split("\n\n") for name, asked in ASKED.items()}
    coming: dict[int, Future[ServerProcess]] = {}
    with ThreadPoolExecutor(len(ASKED)) as pool, ThreadPoolExecutor(len(replicas)) as starting:
        for number in range(100):
            place = number % len(replicas)
            if place in coming:
                replicas[place] = coming.pop(place).result(timeout=60)
            streams = {name: pool.submit(events, router.url, *asked) for name, asked in ASKED.items()}
            time.sleep(0.3 + number % 7 / 10)
            replicas[place].process.kill()
            replicas[place].process.wait()
            coming[place] = starting.submit(start, "--port", ports[place])
            for name, stream in streams.items():
                assert alike(stream.result(timeout=60)).split("\n\n") == wanted[name], f"{name}, kill {number}"
    assert router.metric("ridgeline_router_continued_answers_total") >= 100


@pytest.mark.night
@pytest.mark.timeout(3600)
def test_twenty_rolling_restarts_fail_no_stream(start: Callable[..., ServerProcess]) -> None:
    """Each replica in turn gets SIGTERM under streams and has one second: what it cannot end goes on elsewhere."""
    replicas = [start("--shutdown-timeout", "1") for _ in range(2)]
    ports = [each.url.rpartition(":")[2] for each in replicas]
    router = start(*(word for each in replicas for word in ("--replica", each.url)), verb="route")
    wanted = {name: alike(events(replicas[0].url, *asked)) for name, asked in ASKED.items()}
    for number in range(20):
        with ThreadPoolExecutor(len(ASKED)) as pool:
            streams = {name: pool.submit(events, router.url, *asked) for name, asked in ASKED.items()}
            time.sleep(0.5)
            replicas[number % 2].stop()
            assert {name: alike(stream.result(timeout=60)) for name, stream in streams.items()} == wanted
        replicas[number % 2] = start("--shutdown-timeout", "1", "--port", ports[number % 2])


@pytest.mark.timeout(90)
def test_another_set_of_servers_takes_over_under_streams(start: Callable[..., ServerProcess], tmp_path: Path) -> None:
    """Blue-green: the file names other servers; streams of the ones before end there, and the next requests go to the new ones."""
    blue, file = start(), tmp_path / "replicas"
    file.write_text(blue.url)
    router = start("--replicas-file", str(file), verb="route")
    with ThreadPoolExecutor(len(ASKED)) as pool:
        wanted = undisturbed(pool, blue.url)
        green = start()
        streams = {name: pool.submit(events, router.url, *asked) for name, asked in ASKED.items()}
        time.sleep(0.2)
        file.write_text(f"{green.url} # {blue.url}")
        assert {name: alike(stream.result(timeout=60)) for name, stream in streams.items()} == wanted
    end = time.monotonic() + 20
    while len(told := json.loads(router.get("/router")[1])["replicas"]) > 1:
        assert time.monotonic() < end, told
        time.sleep(0.05)
    assert told[0]["url"] == green.url and told[0]["ready"]
    assert "ridgeline_router_continued_answers_total{" not in router.get("/metrics")[1], "none was cut"
    blue.stop()
    assert alike(events(router.url, *ASKED["drawn"])) == wanted["drawn"]
