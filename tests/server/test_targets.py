"""Deadlines, targets and priorities over HTTP, where one row serves one request after the other."""

import asyncio
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ridgeline.config.groups import EngineConfig, ServerConfig
from ridgeline.core.step_time import StepSeconds
from ridgeline.errors import ConfigError
from ridgeline.server.keys import ApiKeys
from ridgeline.server.targets import Targets

ONE_ROW = 'fake:{"rows": 1, "step_seconds": 0.01, "max_model_len": 4096}'


@pytest.fixture(scope="module")
def slo(site: Any) -> Iterator[Any]:
    found = type(site)(EngineConfig(ONE_ROW, scheduling_policy="slo"), ServerConfig(goodput="ttft=20s", max_waiting=64))
    found.wait(found.service.start())
    yield found
    found.close()


@pytest.fixture(scope="module")
def spoken(site: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    template = tmp_path_factory.mktemp("template") / "template.jinja"
    template.write_text("{% for message in messages %}{{ message.content }}{% endfor %}")
    found = type(site)(EngineConfig(ONE_ROW, scheduling_policy="slo"), ServerConfig(chat_template=str(template)))
    found.wait(found.service.start())
    yield found
    found.close()


def in_order(site: Any, bodies: list[dict[str, Any]]) -> list[int]:
    """Numbers of the requests in the order in which they end. All of them wait for one that came first."""
    ended: list[int] = []

    async def one(number: int, body: dict[str, Any]) -> None:
        answer = await site.client.post("/v1/completions", json={"prompt": "a", "max_tokens": 3, "ignore_eos": True, **body})
        assert answer.status_code == 200, answer.text
        ended.append(number)

    async def all_of_them() -> None:
        first = asyncio.create_task(one(-1, {"max_tokens": 60}))
        await asyncio.sleep(0.1)
        await asyncio.gather(first, *(one(number, body) for number, body in enumerate(bodies)))

    site.wait(all_of_them())
    return ended[1:]


def test_the_smallest_priority_runs_first(new_site: Any) -> None:
    """vLLM's meaning: lower is earlier, 0 where none is sent, and of equals the one that came first."""
    site = new_site(EngineConfig(ONE_ROW, scheduling_policy="priority"))
    assert in_order(site, [{"priority": 5}, {}, {"priority": -1}, {"priority": 5}, {"priority": 0}]) == [2, 1, 4, 0, 3]
    assert "x-ridgeline-ignored-fields" not in site.complete(prompt="a", priority=3, max_tokens=1).headers


def test_least_slack_runs_first(slo: Any) -> None:
    """Where no target is named it is the objective's, 20 s."""
    assert in_order(slo, [{"ttft_ms": 60_000}, {"ttft_ms": 5_000}, {}, {"ttft_ms": 4_000}]) == [3, 1, 2, 0]


def test_a_deadline_ends_what_is_late(slo: Any) -> None:
    answer = slo.complete(prompt="a", max_tokens=2_000, ignore_eos=True, deadline_ms=150)
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["type"]) == (504, "deadline_exceeded", "timeout_error")
    assert "150 ms" in error["message"] and answer.headers["x-should-retry"] == "false"
    stream = slo.complete(prompt="a", max_tokens=2_000, ignore_eos=True, deadline_ms=200, stream=True)
    events = [json.loads(line[6:]) for line in stream.text.splitlines() if line.startswith("data: {")]
    assert stream.status_code == 200 and len(events) > 3 and events[-1]["error"]["code"] == "deadline_exceeded"
    header = {"x-slo-deadline-ms": "150"}
    late = slo.request("POST", "/v1/completions", json={"prompt": "a", "max_tokens": 2_000, "ignore_eos": True}, headers=header)
    assert late.status_code == 504
    body = {"prompt": "a", "max_tokens": 2, "deadline_ms": 20_000}
    assert slo.request("POST", "/v1/completions", json=body, headers=header).status_code == 200, "the body's own counts"
    assert slo.complete(prompt="a", max_tokens=2).status_code == 200 and slo.service.deployment.open_requests == 0


@pytest.mark.parametrize(("path", "asked"), [
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}], "max_tokens": 900}),
    ("/v1/messages", {"messages": [{"role": "user", "content": "a"}], "max_tokens": 900}),
    ("/v1/responses", {"input": "a", "max_output_tokens": 900}),
])  # fmt: skip
def test_every_dialect_has_the_fields(spoken: Any, path: str, asked: dict[str, Any]) -> None:
    late = spoken.request("POST", path, json={"model": "fake", **asked, "deadline_ms": 60})
    assert late.status_code == 504 and "60 ms" in late.json()["error"]["message"]
    for name in ("ttft_ms", "itl_ms", "deadline_ms"):
        wrong = spoken.request("POST", path, json={"model": "fake", **asked, name: 0})
        assert wrong.status_code == 400 and name in wrong.json()["error"]["message"]


def test_who_would_be_late_is_told_at_once(slo: Any) -> None:
    """By the pace of the queue. A target finds its place in the order of the queue, however long that is."""

    async def burst() -> list[Any]:
        def ask(headers: Any = None, **body: Any) -> Any:
            more = {"prompt": "a", "max_tokens": 15, "ignore_eos": True, **body}
            return slo.client.post("/v1/completions", json=more, headers=headers)

        known = asyncio.gather(*(ask(max_tokens=2) for _ in range(4)))  # by these the pace is known
        await known
        waiting = [asyncio.create_task(ask(ttft_ms=9_000)) for _ in range(6)]
        await asyncio.sleep(0.1)
        wide = ask({"x-slo-deadline-ms": "20"}, deadline_ms=60_000)
        found = await asyncio.gather(ask(ttft_ms=60_000, deadline_ms=20), ask(ttft_ms=1), wide)
        return [*found, *(await asyncio.gather(*waiting))]

    late, first, patient, *others = slo.wait(burst())
    assert late.status_code == 429 and "too late for its target or deadline behind 0.0 s" in late.json()["error"]["message"]
    assert first.status_code == patient.status_code == 200, "nobody goes before the first; the body gives the other time"
    assert all(each.status_code == 200 for each in others)


def test_a_server_with_a_target_refuses_who_has_no_row_in_time(new_site: Any) -> None:
    """Whole or as a stream, with a status of its own; whoever names a longer target waits for it, and whoever has a row keeps it."""
    site = new_site(EngineConfig(ONE_ROW), ServerConfig(ttft_target=0.5))

    async def crowd() -> tuple[list[Any], list[float]]:
        async def ask(**body: Any) -> Any:
            began = time.monotonic()
            answer = await site.client.post("/v1/completions", json={"prompt": "a", "max_tokens": 3, "ignore_eos": True, **body})
            took.append(time.monotonic() - began)
            return answer

        took: list[float] = []
        first = asyncio.create_task(ask(max_tokens=150))
        await asyncio.sleep(0.1)
        late = await asyncio.gather(ask(), ask(stream=True))
        return [await first, *late, await ask(ttft_ms=20_000), await ask(stream=True)], took

    (first, whole, stream, patient, behind), took = site.wait(crowd())
    assert [each.status_code for each in (first, patient, behind)] == [200] * 3
    for late in (whole, stream):
        assert (late.status_code, late.json()["error"]["code"]) == (429, "overloaded")
        assert "waited too long for its first token" in late.json()["error"]["message"] and int(late.headers["retry-after"]) >= 1
    assert all(0.4 < each < 0.8 for each in took[:2]), took
    assert "x-ridgeline-ignored-fields" not in patient.headers
    assert site.service.deployment.open_requests == 0 and site.service.metrics.answers[429, "overloaded"] == 2
    prompt = {"prompt": [5] * 400, "max_tokens": 2}
    assert site.complete(**prompt).status_code == 200


def test_a_long_prompt_has_a_share_of_its_target_to_begin() -> None:
    cost = StepSeconds(0.01, 0.001, 0.0001)
    assert Targets(ttft_ms=500).last_start_ms(100, 10, cost) == 450, "two steps of ten rows, and the prompt"
    assert Targets(ttft_ms=500).last_start_ms(100_000, 10, cost) == 125 and Targets(ttft_ms=500).last_start_ms(9, 1, None) == 500


@pytest.mark.parametrize("value", ["0", "-1", "1.5", "abc", "86400001", "9" * 400, ""])
def test_headers_are_bounded(slo: Any, value: str) -> None:
    answer = slo.request("POST", "/v1/completions", json={"prompt": "a", "max_tokens": 1}, headers={"x-slo-ttft-ms": value})
    assert answer.status_code == 400 and answer.json()["error"]["param"] == "x-slo-ttft-ms"


def test_targets_of_a_key(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("chat secret1 ttft_ms=500 itl_ms=50\nbatch secret2 deadline_ms=60000\n")
    file.chmod(0o600)
    keys = ApiKeys(file=str(file))
    chat, batch = keys.find("secret1"), keys.find("secret2")
    assert chat is not None and chat.targets == Targets(ttft_ms=500, itl_ms=50)
    assert batch is not None and batch.targets.with_headers([(b"x-slo-tpot-ms", b"80")]) == Targets(itl_ms=80, deadline_ms=60_000)
    file.write_text("chat secret1 ttft_ms=0\n")
    with pytest.raises(ConfigError, match="line 1: ttft_ms is a whole number from 1 to 86,400,000"):
        keys.reload()
