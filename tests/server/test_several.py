"""Several models in one server: whose a request is, loads and unloads under load, room, keep-alive, and what all of them say together."""

import json
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import httpx
import pytest
from several_site import CONFIG, QUICK, SLOW, Models

from ridgeline.config.env import model_stores
from ridgeline.config.groups import ServerConfig
from ridgeline.core.params import Adapter
from ridgeline.engine.adapters import AdapterLibrary, KnownAdapter
from ridgeline.errors import ConfigError
from ridgeline.server.several.everywhere import names_of_all
from ridgeline.server.several.resident import Phase


@pytest.fixture(scope="module")
def pair(_child_finds_the_source: None) -> Iterator[Models]:
    """Two models for all tests that need no settings of their own: starts of engines are what tests cost. Each leaves both loaded."""
    site = Models(CONFIG, a=QUICK, b=SLOW)
    site.wait(site.roster.start())
    yield site
    site.close()


@pytest.fixture
def make(_child_finds_the_source: None) -> Iterator[Any]:
    made: list[Models] = []

    def make_models(config: ServerConfig = CONFIG, **models: str) -> Models:
        made.append(Models(config, **models))
        made[-1].wait(made[-1].roster.start())
        return made[-1]

    yield make_models
    for each in made:
        each.close()


def finished(site: Models) -> dict[str, float]:
    """Requests that each model has answered."""
    lines = [each for each in site.get("/metrics").text.splitlines() if each.startswith("vllm:request_success_total{")]
    return {name: sum(float(each.rpartition(" ")[2]) for each in lines if f'model_name="{name}"' in each) for name in site.roster.residents}


def test_each_request_goes_to_its_model(pair: Models) -> None:
    site, before = pair, finished(pair)
    assert site.phases() == ["loaded", "loaded"] and len(set(site.pids())) == 2
    assert [site.complete(name).json()["model"] for name in ("a", "b")] == ["a", "b"]
    assert site.complete("b", prompt=[1] * 350).status_code == 400 and site.complete("a", prompt=[1] * 350).status_code == 200
    unknown, missing = site.complete("c"), site.complete(None)
    assert unknown.status_code == 404 and "'a', 'b'" in unknown.json()["error"]["message"]
    assert missing.status_code == 400 and missing.json()["error"]["param"] == "model" and "'a', 'b'" in missing.text
    assert site.request("POST", "/v1/completions", content=b"{").status_code == 400
    assert [each["id"] for each in site.get("/v1/models").json()["data"]] == ["a", "b"]
    assert site.get("/v1/models/b").json()["max_model_len"] == 300 and site.get("/v1/models/c").status_code == 404
    page = site.get("/v1/models?limit=1", headers={"anthropic-version": "2023-06-01"}).json()
    assert ([each["id"] for each in page["data"]], page["has_more"], page["last_id"]) == (["a"], True, "a")
    assert site.get("/live?model=b").json()["model"] == "b" and site.get("/live").json()["model"] == "a"
    answer = site.complete("b")
    assert site.get(f"/v1/requests/{answer.headers['x-request-id']}/explain").status_code == 200
    after = finished(site)
    assert {name: after[name] - before[name] for name in after} == {"a": 2, "b": 2}, "a request that is refused generates nothing"
    text = site.get("/metrics").text
    assert all(f'ridgeline_model_loaded{{model_name="{name}"}} 1.0' in text for name in "ab")
    assert text.count("# TYPE vllm:num_requests_running gauge") == 1
    assert all(site.get(path).status_code == 200 for path in ("/readyz", "/health", "/ping", "/startupz", "/load", "/", "/openapi.json"))


def test_an_unloaded_model_is_loaded_by_a_request_that_waits(pair: Models) -> None:
    site, loads = pair, pair.roster.residents["b"].totals.loads
    before = site.complete("b", prompt=[7, 8, 9], seed=1, temperature=1).json()["choices"]
    site.unload("b")
    assert site.phases() == ["loaded", "unloaded"] and site.pids()[1] is None
    cards = site.get("/v1/models").json()["data"]
    assert [each["status"]["value"] for each in cards] == ["loaded", "unloaded"] and cards[1]["max_model_len"] == 300
    assert names_of_all(site.roster) == (["a", "b"], ["b"])
    assert site.get("/live?model=b").status_code == 503 and "loads it" in site.get("/live?model=b").text
    assert [each["name"] for each in site.get("/api/ps").json()["models"]] == ["a:latest"]
    assert [each["name"] for each in site.get("/api/tags").json()["models"]] == ["a:latest", "b:latest"]
    assert site.get("/readyz").status_code == 200
    assert site.post("/api/show", model="b").status_code == 200 and site.phases()[1] == "unloaded", "what is known needs no load"
    assert site.complete("b", prompt=[7, 8, 9], seed=1, temperature=1).json()["choices"] == before
    assert site.phases() == ["loaded", "loaded"]
    assert f'ridgeline_model_loads_total{{model_name="b"}} {loads + 1}.0' in site.get("/metrics").text


def test_an_unload_waits_for_its_requests_and_later_ones_for_the_next_load(pair: Models) -> None:
    site, answers = pair, list[httpx.Response]()
    resident = site.roster.residents["b"]
    loads, unloads = resident.totals.loads, resident.totals.unloads
    first = threading.Thread(target=lambda: answers.append(site.complete("b", max_tokens=250, ignore_eos=True)))
    first.start()
    while resident.service.metrics.running < 1:
        time.sleep(0.005)
    unloading = threading.Thread(target=lambda: site.unload("b"))
    unloading.start()
    while resident.phase is not Phase.UNLOADING:
        time.sleep(0.005)
    second = threading.Thread(target=lambda: answers.append(site.complete("b", max_tokens=5, ignore_eos=True)))
    second.start()
    assert site.complete("a").status_code == 200, "another model answers meanwhile"
    assert not answers
    for thread in (first, unloading, second):
        thread.join()
    assert [each.status_code for each in answers] == [200, 200]
    assert [each.json()["usage"]["completion_tokens"] for each in answers] == [250, 5]
    assert resident.totals.loads == loads + 1 and resident.totals.unloads == unloads + 1


def test_the_least_recently_used_makes_room(make: Any) -> None:
    site = make(replace(CONFIG, max_loaded_models=2), a=QUICK, b=QUICK, c=QUICK)
    assert site.phases() == ["loaded", "loaded", "unloaded"]
    assert site.complete("b").status_code == 200 and site.complete("a").status_code == 200
    assert site.complete("c").status_code == 200 and site.phases() == ["loaded", "unloaded", "loaded"]
    assert site.complete("b").status_code == 200 and site.phases() == ["unloaded", "loaded", "loaded"]


def test_busy_models_that_exclude_each_other_take_turns(make: Any) -> None:
    """Four clients of two models with room for one: nobody fails, and a model that has come stays for its least time."""
    site, codes = make(replace(CONFIG, max_loaded_models=1, min_residence=0.3), a=QUICK, b=QUICK), []
    totals, until = [each.totals for each in site.roster.residents.values()], time.monotonic() + 60

    def client(name: str) -> None:
        while time.monotonic() < until and not (totals[0].loads >= 2 and totals[1].loads):
            codes.append((name, site.complete(name, max_tokens=20, ignore_eos=True).status_code))
            time.sleep(0.05)

    threads = [threading.Thread(target=client, args=(name,)) for name in "abab"]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert {code for _, code in codes} == {200} and {name for name, _ in codes} == {"a", "b"}
    assert 2 <= totals[0].loads <= 3 and 1 <= totals[1].loads <= 2, totals


def test_keep_alive_unloads_an_idle_model(make: Any) -> None:
    site = make(replace(CONFIG, keep_alive=0.3), a=QUICK, b=QUICK)
    until = time.monotonic() + 1.2
    while time.monotonic() < until:
        assert site.complete("a").status_code == 200
        time.sleep(0.05)
    assert site.phases() == ["loaded", "unloaded"], "the one that was used stays"
    assert site.post("/api/generate", model="a", keep_alive=-1).json()["done_reason"] == "load"
    assert site.get("/api/ps").json()["models"][0]["expires_at"].startswith("9999")
    time.sleep(0.8)
    assert site.phases()[0] == "loaded", "the request says for ever"
    assert site.post("/api/generate", model="a:latest", keep_alive="0s").json()["done_reason"] == "unload"
    while site.phases()[0] != "unloaded":
        time.sleep(0.02)
    assert site.post("/api/chat", model="a", keep_alive="soon").status_code == 400


def test_a_stream_is_told_what_it_waits_for(pair: Models, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ridgeline.server.several.roster.TELL_SECONDS", 0.05)
    site = pair
    site.unload("a")
    lines = site.complete("a", stream=True).text.split("\n\n")
    assert lines[0].startswith(": a ") and lines[-2] == "data: [DONE]"
    events = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    assert len(events) > 1 and events[-1]["choices"][0]["finish_reason"] == "length"
    site.unload("a")
    wrong = site.complete("a", stream=True, temperature=-1)
    assert wrong.status_code == 200 and "temperature" in json.loads(wrong.text.split("data: ")[1])["error"]["message"]


def test_a_model_that_cannot_be_loaded_fails_its_requests_alone(make: Any) -> None:
    site = make(replace(CONFIG, max_loaded_models=1), a=QUICK, b="fake:{}")
    resident = site.roster.residents["b"]
    broken = replace(resident.service.deployments.current.engine_config, model='fake:{"nonsense": 1}')
    resident.service.deployments.current.engine_config = broken
    answer = site.complete("b")
    assert answer.status_code == 503 and "could not be loaded" in answer.text and "nonsense" not in answer.text
    again = site.complete("b")
    assert again.status_code == 503 and 7 <= int(again.headers["retry-after"]) <= 10  # of the ten seconds in which nobody tries it
    assert site.complete("a").status_code == 200
    assert site.get("/readyz").status_code == 200


@pytest.mark.usefixtures("_child_finds_the_source")
def test_a_start_with_a_model_that_is_none_ends() -> None:
    site = Models(CONFIG, a=QUICK, b='fake:{"nonsense": 1}')
    with pytest.raises(ConfigError, match="nonsense"):
        site.wait(site.roster.start())
    site.close()


def test_an_adapter_is_known_while_its_model_is_unloaded(pair: Models, monkeypatch: pytest.MonkeyPatch) -> None:
    site, deployments = pair, pair.roster.residents["b"].service.deployments
    deployments.current.adapters = library = AdapterLibrary(None, 8, model_stores())
    monkeypatch.setitem(library._known, "tuned", KnownAdapter(Adapter("tuned", b"0" * 32, "/nowhere"), 8, 0))
    site.unload("b")
    for phase in ("unloaded", "loaded"):
        assert [each["id"] for each in site.get("/v1/models").json()["data"]] == ["a", "b", "tuned"]
        assert site.get("/v1/models/tuned").json()["parent"] == "b"
        assert site.phases()[1] == phase
        assert site.complete("b").status_code == 200


def test_what_is_no_request_loads_no_model(pair: Models) -> None:
    site = pair
    site.unload("a")
    for content in (b"{", b"[]", b'{"model": 5}', b"\xff", b"[" * 5_000):
        assert site.request("POST", "/v1/completions", content=content).status_code == 400
    odd_ones: list[Any] = [True, {}, [], "soon", ""]
    for odd in odd_ones:
        assert site.post("/api/generate", model="a", keep_alive=odd).status_code == 400
    assert site.phases() == ["unloaded", "loaded"]
    answer = site.complete("b", name=5, keep_alive={})
    assert answer.status_code == 200 and answer.json()["model"] == "b", "fields of other dialects mean nothing"
    assert site.complete("a").status_code == 200


def test_what_is_pulled_is_none_of_the_models(make: Any) -> None:
    site = make(replace(CONFIG, api_key="key"), a=QUICK)
    pulled = site.request("POST", "/api/pull", json={"model": "no such name!"}, headers={"authorization": "Bearer key"})
    assert pulled.status_code == 400 and "no name of a hub" in pulled.text


def test_aliases_lead_to_their_model(pair: Models, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(pair.roster.residents["b"].service.deployments.aliases, "other", None)
    assert pair.complete("other").json()["model"] == "b"
    assert [each["id"] for each in pair.get("/v1/models").json()["data"]] == ["a", "b", "other"]


@pytest.mark.parametrize("count", [1, pytest.param(50, marks=pytest.mark.night)])
def test_unloads_under_load_fail_no_request(pair: Models, count: int) -> None:
    """Two models under load; one is unloaded and loaded again and again."""
    site, codes, ends = pair, list[int](), threading.Event()
    first, second = (each.totals for each in site.roster.residents.values())
    loads, unloads = first.loads, second.unloads

    def client(name: str) -> None:
        while not ends.is_set():
            answer = site.complete(name, max_tokens=20, ignore_eos=True, stream=len(codes) % 2 == 0)
            codes.append(answer.status_code if "error" not in answer.text else 0)
            time.sleep(0.05)

    threads = [threading.Thread(target=client, args=(name,)) for name in "aabb"]
    for each in threads:
        each.start()
    for _ in range(count):
        site.unload("b")
        site.wait(site.roster.load(site.roster.residents["b"]))
    ends.set()
    for each in threads:
        each.join()
    assert set(codes) == {200} and len(codes) > 4 * count
    assert second.unloads == unloads + count and first.loads == loads
    assert not site.roster.open_requests and site.complete("b").status_code == 200


def test_loads_are_for_admins_in_every_spelling(make: Any, tmp_path: Any) -> None:
    file = tmp_path / "keys"
    file.write_text("tenant-key\nowner admin-key scope=admin\n")
    file.chmod(0o600)
    site = make(replace(CONFIG, api_key_file=str(file)), a=QUICK)
    for path in ("/models/load", "/models/unload", "//models/load", "/models/load/", "/%6dodels/load", "/models/load?x=1"):
        answer = site.request("POST", path, json={"model": "a"}, headers={"Authorization": "Bearer tenant-key"})
        assert answer.status_code in (403, 404, 405), (path, answer.text)
        assert answer.status_code == 403 or path != "/models/load"
    assert site.request("POST", "/models/load", json={"model": "a"}, headers={"Authorization": "Bearer admin-key"}).status_code == 200
