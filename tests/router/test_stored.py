"""Stored answers behind a router: an id says which server has it, whichever router is asked, and since when."""

import json
import secrets
from collections.abc import Callable, Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest
import redis
from processes import ServerProcess
from redis_server import PASSWORD, RedisProcess

from ridgeline.server.routers import TAG_BYTES

TEMPLATE = Path(__file__).parents[1] / "gold" / "templates" / "Qwen-Qwen3-0.6B.jinja"
SLOW = 'fake:{"step_seconds": 0.005}'
ASKED = {"model": "fake", "input": "a", "max_output_tokens": 16}
Start = Callable[..., ServerProcess]


@pytest.fixture
def start(environment: dict[str, str]) -> Iterator[Start]:
    """Starts a server, or a router in front of some."""
    started: list[ServerProcess] = []

    def begin(*arguments: str, to: list[ServerProcess] | None = None) -> ServerProcess:
        chosen = [SLOW, "--chat-template", str(TEMPLATE)] if to is None else [word for each in to for word in ("--replica", each.url)]
        started.append(ServerProcess([*chosen, *arguments], environment, "serve" if to is None else "route"))
        return started[-1]

    yield begin
    for each in reversed(started):
        if each.process.poll() is None:
            each.stop()


def ask(server: ServerProcess, body: dict[str, Any] | None = None, path: str = "/v1/responses", method: str = "POST") -> tuple[int, Any]:
    connection = HTTPConnection(server.url.partition("://")[2], timeout=30)
    try:
        connection.request(method, path, None if body is None else json.dumps(body), {"Content-Type": "application/json"})
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())
    finally:
        connection.close()


def computed(servers: list[ServerProcess]) -> float:
    return sum(each.metric("vllm:request_success_total") for each in servers)


def test_every_router_finds_it_where_it_is(start: Start) -> None:
    servers = [start(), start()]
    first, second = start("--routing", "round-robin", to=servers), start(to=servers)
    answers = [ask(first, ASKED | {"input": f"{number} " * 99})[1] for number in range(4)]
    names = [each["id"] for each in answers]
    owners = [next(each for each in servers if each.get(f"/v1/responses/{name}")[0] == 200) for name in names]
    assert {each.url for each in owners} == {each.url for each in servers}, "each has some"
    first.stop()
    for router in (second, start(to=servers)):
        for answer, owner in zip(answers, owners, strict=True):
            name, before = answer["id"], owner.metric("vllm:request_success_total")
            assert router.get(f"/v1/responses/{name}")[0] == router.get(f"/v1/responses/{name}/input_items")[0] == 200
            reference = {"type": "item_reference", "id": answer["output"][0]["id"]}
            assert ask(router, ASKED | {"previous_response_id": name})[0] == ask(router, ASKED | {"input": [reference]})[0] == 200
            assert owner.metric("vllm:request_success_total") == before + 2, "the server that has it goes on with it"
    before = computed(servers)
    for tag in {name[-TAG_BYTES:] for name in names} | {secrets.token_hex(TAG_BYTES // 2)}:
        forged = f"resp_{secrets.token_hex(12)}{tag}"
        assert second.get(f"/v1/responses/{forged}")[0] == 404
        status, said = ask(second, ASKED | {"previous_response_id": forged})
        assert (status, said["error"]["code"]) == (400, "previous_response_not_found")
    assert computed(servers) == before, "an id that is nobody's has nobody compute"
    assert ask(second, path=f"/v1/responses/{names[0]}", method="DELETE")[0] == 200
    assert [each.get(f"/v1/responses/{names[0]}")[0] for each in (second, *servers)] == [404] * 3


def test_what_an_id_does_not_say_is_searched_and_who_is_away_may_have_it(start: Start, tmp_path: Path) -> None:
    """A server that starts again ends ids otherwise, and has its files still."""
    stored = ["--response-store", "file", "--response-store-dir", str(tmp_path / "answers")]
    servers = [start(*stored), start()]
    router = start("--routing", "round-robin", to=servers)
    ports = [each.url.rpartition(":")[2] for each in servers]
    names = [ask(router, ASKED)[1]["id"] for _ in range(2)]
    if servers[1].get(f"/v1/responses/{names[0]}")[0] == 200:
        names.reverse()
    servers[0].stop()
    assert router.get(f"/v1/responses/{names[0]}")[0] == 503, "it will be back"
    assert router.get(f"/v1/responses/{names[1]}")[0] == 200
    start(*stored, "--port", ports[0])
    while sum(each["ready"] for each in json.loads(router.get("/router")[1])["replicas"]) < 2:
        pass
    assert router.get(f"/v1/responses/{names[0]}")[0] == 200
    assert ask(router, ASKED | {"previous_response_id": names[0]})[0] == 200
    servers[1].stop()
    start("--port", ports[1])
    while sum(each["ready"] for each in json.loads(router.get("/router")[1])["replicas"]) < 2:
        pass
    assert router.get(f"/v1/responses/{names[1]}")[0] == 404, "its memory has gone"


def test_an_answer_that_went_on_elsewhere_is_found_there(start: Start, tmp_path: Path) -> None:
    key = ["--router-key-file", str(tmp_path / "key")]
    doomed, other = start(*key), start(*key)
    router = start(*key, to=[doomed, other])
    connection = HTTPConnection(router.url.partition("://")[2], timeout=30)
    body = json.dumps(ASKED | {"stream": True, "max_output_tokens": 200})
    connection.request("POST", "/v1/responses", body, {"Content-Type": "application/json"})
    answer = connection.getresponse()
    lines = [answer.readline() for _ in range(60)]
    doomed.process.kill()
    doomed.process.wait()
    while line := answer.readline():
        lines.append(line)
    last = json.loads(next(line for line in reversed(lines) if line.startswith(b"data: "))[6:])
    assert last["type"] in ("response.completed", "response.incomplete")
    assert router.metric("ridgeline_router_continued_answers_total") == 1
    name = last["response"]["id"]
    status, said = ask(router, path=f"/v1/responses/{name}", method="GET")
    assert (status, said["output"]) == (200, last["response"]["output"]) and other.get(f"/v1/responses/{name}")[0] == 200
    connection.close()


def test_servers_that_share_answers_stand_in_for_each_other(start: Start, redis_server: RedisProcess) -> None:
    store = ["--response-store", redis_server.url, "--response-store-password-file", redis_server.password_file]
    doomed, other = start(*store), start(*store)
    router = start(to=[doomed, other])
    _, first = ask(router, ASKED)
    _, begun = ask(router, ASKED | {"max_output_tokens": 2_000, "background": True})
    path = f"/v1/responses/{begun['id']}"
    assert json.loads(other.get(path)[1])["status"] == "in_progress", "another server knows that it is still computed"
    doomed.process.kill()
    doomed.process.wait()
    assert ask(router, ASKED | {"previous_response_id": first["id"]})[0] == 200
    assert router.get(f"/v1/responses/{first['id']}")[0] == 200
    redis.Redis.from_url(redis_server.url, password=PASSWORD).delete(f"ridgeline:responses:leases:{begun['id']}")  # its time is over
    assert json.loads(router.get(path)[1])["status"] == "failed"
