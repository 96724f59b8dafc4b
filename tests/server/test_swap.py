"""A model swap: requests that have begun end with the old model, others go to the new one, and a failure changes nothing."""

import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from ridgeline.config.groups import EngineConfig, ServerConfig
from ridgeline.errors import ConfigError, ModelNotFoundError
from ridgeline.server import knob_watch
from ridgeline.server.app import QueueGate
from ridgeline.server.knob_watch import Watches
from ridgeline.server.swap import Swapper, Watch

OLD = 'fake:{"rows": 2, "step_seconds": 0.004, "max_model_len": 400}'
NEW = 'fake:{"rows": 4, "max_model_len": 777}'


def no_check(config: EngineConfig) -> None:
    pass


def test_old_requests_end_and_new_ones_go_to_the_new_model(new_site: Any) -> None:
    site = new_site(EngineConfig(OLD, speculative="ngram"))
    service, answers = site.service, []
    service.deployment.set_knob("step_ms", 17)
    body = {"prompt": [1], "max_tokens": 300, "ignore_eos": True}
    client = threading.Thread(target=lambda: answers.append(site.complete(**body)))
    client.start()
    while service.metrics.running < 1:
        time.sleep(0.005)
    old, pid = service.deployment, service.engine.pid
    swapper = Swapper(service, no_check)
    swapping = threading.Thread(target=lambda: answers.append(site.wait(swapper.swap(NEW, None))))
    swapping.start()
    while service.deployment is old:
        time.sleep(0.005)
    assert not answers and service.metrics.running == 1, "the old request goes on, and counts"
    with pytest.raises(ConfigError, match="is being swapped"):
        site.wait(swapper.swap(NEW, None))
    assert site.complete(prompt=[5] * 500, max_tokens=3).status_code == 200, "more than the old model takes"
    client.join()
    swapping.join()
    answer, report = answers
    assert answer.status_code == 200 and len(answer.json()["choices"][0]["text"]) == 300
    assert (report.old, report.new, report.open_requests, report.aborted) == (OLD, NEW, 1, 0)
    assert service.engine.pid != pid and old.client.pid is None and not service.deployments.others
    assert service.metrics.running == service.metrics.waiting == 0 and service.metrics.generation_tokens == 303
    assert not service.live.spending._requests and all(not each.open_choices for each in service.ledger.arrived_since(0.0))
    assert service.deployment.knobs == {"step_ms": 17} and not service.deployment.users
    card = site.get("/v1/models").json()["data"][0]
    assert (card["id"], card["max_model_len"]) == ("fake", 777) and site.get("/readyz").status_code == 200


def test_a_request_on_its_way_stays_with_its_model(new_site: Any) -> None:
    """Whoever has read the old model's tokenizer submits to the old model's engine, though the new one serves by then."""
    site = new_site(EngineConfig(OLD))
    service = site.service
    service.current_metrics().engine_starts = 5

    async def request() -> tuple[int, int]:
        with service.deployments.pinned():
            first = service.engine.pid
            new = service.deployments.add(EngineConfig(NEW), service.config)
            await new.start()
            service.switch(new)
            gate = QueueGate(nothing, {"/v1/completions": pipelined}, service)
            await gate({"type": "http", "method": "POST", "path": "/v1/completions"}, nothing, nothing)
            return first, service.engine.pid

    async def pipelined(_: Any) -> Any:
        """The next request of the connection: its task has the context of the one before."""
        met.append(service.engine.pid)
        return nothing

    async def nothing(*_: Any) -> None:
        pass

    met: list[int] = []
    service.check_capacity = lambda *_: met.append(service.engine.pid)
    before, behind = site.wait(request())
    assert before == behind != service.engine.pid and met == [service.engine.pid] * 2
    assert [each.users for each in service.deployments.others] == [0]
    service.engine.starts += 1
    assert service.current_metrics().engine_starts == 6, "those of the old model's engines count on"


def test_a_swap_that_fails_changes_nothing(new_site: Any) -> None:
    site = new_site(EngineConfig(OLD))
    pid = site.service.engine.pid
    for model, said in (('fake:{"rows": "x"}', "cannot be made"), ("/no/such.gguf", "no/such.gguf")):
        with pytest.raises((ConfigError, ModelNotFoundError), match=said):
            site.wait(Swapper(site.service, no_check).swap(model, None))
    assert site.service.engine.pid == pid and not site.service.deployments.others
    assert site.complete(prompt="a", max_tokens=2).status_code == 200


FAST = 'fake:{"rows": 4, "step_seconds": 0.004}'
SLOW = 'fake:{"rows": 4, "step_seconds": 0.03, "max_model_len": 900}'


@contextmanager
def under_load(site: Any, clients: int = 12) -> Iterator[Watches]:
    """Clients in a closed loop, three times as many as there are rows, and looks at what they get. Each of their answers is a whole one."""
    watches, ended, failed = Watches(site.service), asyncio.Event(), []

    async def client(number: int) -> None:
        while not ended.is_set():
            body = {"prompt": [5 + number] * 8, "max_tokens": 6, "ignore_eos": True}
            answer = await site.client.post("/v1/completions", json=body)
            if answer.status_code != 200 or len(answer.json()["choices"][0]["text"]) != 6:
                failed.append(answer.text)

    async def load() -> None:
        looking = asyncio.create_task(watches.look())
        await asyncio.gather(*(client(number) for number in range(clients)))
        looking.cancel()

    loading = asyncio.run_coroutine_threadsafe(load(), site.loop)
    try:
        yield watches
    finally:
        site.loop.call_soon_threadsafe(ended.set)
        loading.result(20)
    assert not failed, failed[0]


def until(condition: Any, seconds: float = 15.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_a_model_that_yields_less_goes_and_the_old_one_comes_back(new_site: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is planted: the new model's steps take longer. No request fails on either way, and the old one's engine is the one it had."""
    monkeypatch.setattr(knob_watch, "PERIOD_SECONDS", 0.05)
    site = new_site(EngineConfig(FAST), ServerConfig(goodput="ttft=20s"))
    service, told = site.service, []
    with under_load(site) as watches:
        time.sleep(2)
        first, pid = service.deployment, service.engine.pid
        watch = Watch(1.5, watches, lambda action, **fields: told.append((action, fields)))
        report = site.wait(Swapper(service, no_check).swap(SLOW, None, watch))
        assert (report.new, report.watch_seconds) == (SLOW, 1.5) and service.deployment is not first
        assert service.deployments.kept is first and service.deployments.others == [first] and first.client.pid == pid
        until(lambda: told)
        until(lambda: not service.deployments.others)
        assert service.deployment is first and service.engine.pid == pid and service.deployments.kept is None
    ((action, fields),) = told
    assert (action, fields["serves"], fields["ends"]) == ("swap rolled back", FAST, SLOW)
    assert "tokens/s with requests waiting" in fields["reason"]
    assert service.metrics.swaps == {"kept": 0, "rolled_back": 1, "failed": 0} and service.metrics.running == service.metrics.waiting == 0
    assert site.get("/v1/models").json()["data"][0]["max_model_len"] == first.model.limits.max_model_len


def test_a_model_that_yields_as_much_stays_and_so_does_one_that_another_swap_follows(
    new_site: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(knob_watch, "PERIOD_SECONDS", 0.05)
    site = new_site(EngineConfig(SLOW), ServerConfig(goodput="ttft=20s"))
    service, told = site.service, []

    def tell(action: str, **fields: Any) -> None:
        told.append((action, fields["serves"], fields["reason"]))

    swapper = Swapper(service, no_check)
    with under_load(site) as watches:
        time.sleep(2)
        site.wait(swapper.swap(FAST, None, Watch(60.0, watches, tell)))
        fast = service.deployment
        site.wait(swapper.swap(SLOW, None, Watch(60.0, watches, tell)))
        assert told == [("swap kept", FAST, "not judged: another swap follows")] and service.deployments.kept is fast
        site.wait(swapper.swap(FAST, None, Watch(1.0, watches, tell)))
        until(lambda: len(told) == 3)
        assert told[1:] == [("swap kept", SLOW, "not judged: another swap follows"), ("swap kept", FAST, "no loss of goodput")]
        until(lambda: not service.deployments.others)
    assert service.metrics.swaps == {"kept": 3, "rolled_back": 0, "failed": 0} and fast.client.pid is None


def test_an_engine_that_ends_for_good_brings_the_old_model_back_at_once(new_site: Any) -> None:
    site = new_site(EngineConfig(OLD))
    service, told, watches = site.service, [], Watches(site.service)
    first = service.deployment
    site.wait(Swapper(service, no_check).swap(NEW, None, Watch(60.0, watches, lambda action, **fields: told.append((action, fields)))))
    failing = asyncio.run_coroutine_threadsafe(service.deployments.wait_failed(), site.loop)
    site.wait(service.deployment.client.shutdown())
    until(lambda: not service.deployments.others)
    assert told[0][0] == "swap rolled back" and "ended for good" in told[0][1]["reason"] and service.deployment is first
    assert site.complete(prompt="a", max_tokens=2).status_code == 200 and not failing.done(), "the server goes on"
    failing.cancel()


def test_what_has_not_ended_in_its_time_is_told_so(new_site: Any) -> None:
    """The old model is kept all the same, and has nothing to do."""
    site = new_site(EngineConfig(OLD))
    service, answers, watches = site.service, [], Watches(site.service)
    body = {"prompt": [1], "max_tokens": 390, "ignore_eos": True}
    client = threading.Thread(target=lambda: answers.append(site.complete(**body)))
    client.start()
    until(lambda: service.metrics.running == 1)
    report = site.wait(Swapper(service, no_check).swap(NEW, 0.0, Watch(0.5, watches, lambda action, **fields: None)))
    client.join()
    assert report.aborted == 1 and answers[0].status_code == 503 and "swapped for another" in answers[0].json()["error"]["message"]
    kept = service.deployments.kept
    assert kept is not None and kept.open_requests == 0 and kept.client.is_ready
    until(lambda: service.metrics.running == 0)
    until(lambda: not service.deployments.others)
    assert kept.client.pid is None and service.metrics.swaps["kept"] == 1
