"""Several models in one server: what goes wrong with one, what a key may do to all, and what is left behind."""

import gc
import json
import time
import weakref
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from several_site import CONFIG, QUICK, Models

from ridgeline.config.groups import EngineConfig
from ridgeline.server.deployment import Deployment
from ridgeline.server.several.listing import renew
from ridgeline.server.swap import Swapper

NEW = 'fake:{"rows": 4, "max_model_len": 777}'
KEYS = "boss admin-key scope=admin\nplain client-key\nspent spent-key rpm=1\n"


@pytest.fixture(scope="module")
def site(_child_finds_the_source: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Models]:
    """Two models, keys of all kinds, a template for the second one, and unloads of what is idle for a tenth of a second."""
    folder = tmp_path_factory.mktemp("several")
    keys, template = folder / "keys", folder / "chat.jinja"
    keys.write_text(KEYS)
    keys.chmod(0o600)
    template.write_text("{% for m in messages %}<{{ m.content }}>{% endfor %}")
    config = replace(CONFIG, api_key_file=str(keys), chat_template=f"b={template}", keep_alive=3_600.0)
    made = Models(config, a=QUICK, b=QUICK)
    made.wait(made.roster.start())
    yield made
    made.close()


def ask(site: Models, path: str, key: str = "client-key", **body: Any) -> Any:
    return site.request("POST", path, json=body, headers={"Authorization": f"Bearer {key}"})


def test_a_template_is_that_of_its_model(site: Models) -> None:
    messages = [{"role": "user", "content": "hello"}]
    answers = {name: ask(site, "/v1/chat/completions", model=name, messages=messages, max_tokens=2) for name in "ab"}
    assert answers["b"].status_code == 200, answers["b"].text
    assert answers["a"].status_code == 400 and "template" in answers["a"].json()["error"]["message"]


def test_a_client_keeps_a_model_no_longer_than_the_server_does(site: Models) -> None:
    resident = site.roster.residents["a"]
    for key, asked, kept in [
        ("client-key", -1, 3_600.0), ("client-key", "24h", 3_600.0), ("client-key", "5m", 300.0), ("client-key", None, 3_600.0),
        ("admin-key", -1, None), ("admin-key", "24h", 86_400.0),
    ]:  # fmt: skip
        more = {} if asked is None else {"keep_alive": asked}
        assert ask(site, "/api/generate", key, model="a", **more).status_code == 200
        assert resident.keep_alive == kept, (key, asked)


def test_a_key_that_has_spent_its_quota_loads_no_model(site: Models) -> None:
    assert ask(site, "/v1/completions", "spent-key", model="b", prompt=[1], max_tokens=1).status_code == 200
    site.unload("b")
    refused = ask(site, "/v1/completions", "spent-key", model="b", prompt=[1], max_tokens=1)
    assert refused.status_code == 429 and refused.headers["retry-after"] and site.phases() == ["loaded", "unloaded"]
    assert ask(site, "/v1/completions", model="b", prompt=[1], max_tokens=1).status_code == 200


def test_a_model_that_was_unloaded_is_kept_by_nothing(site: Models) -> None:
    """Not by the timers of connections, the tasks that watched it, or what requests left behind."""
    stream = ask(site, "/v1/completions", model="b", prompt=[1], max_tokens=3, stream=True)
    assert stream.status_code == 200
    deployment = weakref.ref(site.roster.residents["b"].service.deployments.current)
    model = weakref.ref(site.roster.residents["b"].service.model.prompts)
    site.unload("b")
    gc.unfreeze()
    gc.collect()
    assert deployment() is None and model() is None
    assert ask(site, "/v1/completions", model="b", prompt=[1], max_tokens=1).status_code == 200


def test_an_unload_that_fails_ends_neither_unloads_nor_the_model(
    site: Models, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    stop, failures = Deployment.stop, list[Deployment]()

    async def failing(self: Deployment) -> None:
        await stop(self)
        if not failures:
            failures.append(self)
            raise OSError("planted")

    monkeypatch.setattr(Deployment, "stop", failing)
    monkeypatch.setattr("ridgeline.server.several.roster.SWEEP_SECONDS", 0.02)
    for unloads in (1, 2):
        before = site.roster.residents["a"].totals.unloads
        assert ask(site, "/api/generate", "admin-key", model="a", keep_alive=0.01).status_code == 200
        until = time.monotonic() + 20
        while site.roster.residents["a"].totals.unloads == before and time.monotonic() < until:
            time.sleep(0.01)
        assert site.phases()[0] == "unloaded", unloads
        assert ask(site, "/v1/completions", model="a", prompt=[1], max_tokens=1).status_code == 200
    assert len(failures) == 1 and "unload failed" in caplog.text


def test_lists_tell_of_the_model_that_took_anothers_place(site: Models) -> None:
    resident = site.roster.residents["a"]
    swapper = Swapper(resident.service, lambda engine: None, partial(renew, resident))
    headers = {"Authorization": "Bearer client-key"}
    assert site.get("/v1/models/a", headers=headers).json()["max_model_len"] == 400
    site.wait(swapper.swap(NEW, None))
    for phase in ("loaded", "unloaded"):
        assert site.get("/v1/models/a", headers=headers).json()["max_model_len"] == 777
        assert site.phases()[0] == phase
        if phase == "loaded":
            site.unload("a")
    assert ask(site, "/v1/completions", model="a", prompt=[1] * 500, max_tokens=1).status_code == 200


def test_one_model_is_pulled_at_a_time_whatever_model_the_query_names(site: Models, monkeypatch: pytest.MonkeyPatch) -> None:
    second: list[Any] = []

    def fetch(name: str, state: Any) -> None:
        again = site.client.post("/api/pull?model=b", json={"model": "org/other", "stream": False}, headers=boss)
        second.append(site.wait(again))

    boss = {"Authorization": "Bearer admin-key"}
    monkeypatch.setattr("ridgeline.server.ollama_models._fetch", fetch)
    first = ask(site, "/api/pull", "admin-key", model="org/name")
    assert first.status_code == 200 and json.loads(first.text.splitlines()[-1]) == {"status": "success"}
    assert second[0].status_code == 429 and "another model is being pulled" in second[0].text


def test_settings_of_one_model_reach_it_alone(tmp_path: Path) -> None:
    engine = EngineConfig("unused", lora=("a:law=/x", "b:tax=/y", "b:law=/z"), expect_sha256="b=" + "0" * 64, enable_lora=False)
    site = Models(replace(CONFIG, chat_template="a=/one,b=/two"), engine, a=QUICK, b=QUICK)
    current = {name: each.service.deployments.current for name, each in site.roster.residents.items()}
    assert {name: each.engine_config.lora for name, each in current.items()} == {"a": ("law=/x",), "b": ("tax=/y", "law=/z")}
    assert [current[name].engine_config.expect_sha256 for name in "ab"] == [None, "0" * 64]
    assert [current[name]._config.chat_template for name in "ab"] == ["/one", "/two"]
    site.close()
