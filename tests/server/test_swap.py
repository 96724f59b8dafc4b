"""A model swap: requests that have begun end with the old model, others go to the new one, and a failure changes nothing."""

import threading
import time
from typing import Any

import pytest

from ridgeline.config.groups import EngineConfig
from ridgeline.errors import ConfigError, ModelNotFoundError
from ridgeline.server.app import QueueGate
from ridgeline.server.swap import Swapper

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
            await QueueGate(pipelined, service)({"type": "http", "method": "POST", "path": "/v1/completions"}, pipelined, pipelined)
            return first, service.engine.pid

    async def pipelined(*_: Any) -> None:
        """The next request of the connection: its task has the context of the one before."""
        met.append(service.engine.pid)

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
