"""Explanations over HTTP: whose they are, what they name, and that their causes sum to what passed."""

import asyncio
import json
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from ridgeline.config.groups import EngineConfig, ServerConfig
from ridgeline.observe.charges import MAX_STEPS_IN_LOOP

KEYS = "a key-a tenant=one\nb key-b tenant=two\nroot key-root scope=admin\n"


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


def test_a_client_sees_its_own_and_an_admin_all(new_site: Any, tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text(KEYS)
    file.chmod(0o600)
    site = new_site(EngineConfig('fake:{"rows": 1}'), ServerConfig(api_key_file=str(file)))

    async def both() -> list[Any]:
        bodies = [{"prompt": text, "max_tokens": 1_000} for text in ("first", "second")]
        asked = zip(("key-a", "key-b"), bodies, strict=True)
        return await asyncio.gather(*[site.client.post("/v1/completions", json=body, headers=bearer(key)) for key, body in asked])

    answers = dict(zip(("key-a", "key-b"), site.wait(both()), strict=True))
    told = {key: site.get(f"/v1/requests/{each.json()['id']}/explain", headers=bearer(key)).json() for key, each in answers.items()}
    for found in told.values():
        assert found["tenant"] is None and found["state"] == "length" and found["output_tokens"] == 1_000
        for part in (found["total"], found["ttft"]):
            assert sum(each["ms"] for each in part["causes"]) == pytest.approx(part["measured_ms"], rel=0.01, abs=0.05)
    late, early = sorted(told, key=lambda key: waiting(told[key]) is None)
    waited = waiting(told[late])
    assert waited is not None and {(each["request"], each["tenant"]) for each in waited["blockers"]} == {("another request", None)}
    name = answers[late].headers["x-request-id"]
    assert site.get(f"/v1/requests/{name}/explain", headers=bearer(late)).json()["id"] == told[late]["id"]

    for_admin = site.get(f"/v1/requests/{told[late]['id']}/explain", headers=bearer("key-root")).json()
    named = waiting(for_admin)
    tenants = {"key-a": "one", "key-b": "two"}
    assert named is not None and named["blockers"][0]["request"] == told[early]["id"] and named["blockers"][0]["tenant"] == tenants[early]
    assert for_admin["tenant"] == tenants[late]
    for key, name in ((early, told[late]["id"]), (early, "cmpl-none")):
        refused = site.get(f"/v1/requests/{name}/explain", headers=bearer(key))
        assert refused.status_code == 404 and "X-Request-Id" in refused.json()["error"]["message"]
    assert site.get(f"/v1/requests/{told[late]['id']}/explain").status_code == 401
    slowest = {key: [each["id"] for each in site.get("/live", headers=bearer(key)).json()["slowest"]] for key in (*told, "key-root")}
    assert slowest == {**{key: [told[key]["id"]] for key in told}, "key-root": [told[late]["id"], told[early]["id"]]}


def test_a_client_cannot_confirm_what_another_tenant_has_sent(new_site: Any, tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text(KEYS)
    file.chmod(0o600)
    site = new_site(EngineConfig('fake:{"rows": 1}'), ServerConfig(api_key_file=str(file)))

    def ask(key: str, text: str, salt: str = "s") -> str:
        body = {"prompt": text, "max_tokens": 1, "cache_salt": salt}
        return site.request("POST", "/v1/completions", json=body, headers=bearer(key)).json()["id"]

    def miss(name: str, key: str) -> dict[str, Any]:
        return site.get(f"/v1/requests/{name}/explain", headers=bearer(key)).json()["prefix_miss"]

    secret = "the password of the vault is swordfish, and nobody may know of it " * 3
    ask("key-a", secret)
    ask("key-b", "another salt of the same tenant " * 5, "old")
    told = [miss(name, "key-b") for name in (ask("key-b", secret), ask("key-b", "another salt of the same tenant " * 5, "new"))]
    assert [each["cause"] for each in told] == ["first", "first"] and all(each["at"] == each["tokens"] == 0 for each in told)
    right, wrong = (miss(ask("key-b", text, f"{text[:3]}"), "key-b") for text in (secret, "some other guess at it " * 9))
    assert right | {"ms": 0} == wrong | {"ms": 0}, "a right guess reads as a wrong one"
    name = ask("key-b", secret, "asked for by an admin")
    assert miss(name, "key-root")["cause"] == "salt" and miss(name, "key-root")["tokens"] > 100
    own = ask("key-b", secret[:100] + "and it goes on in another way " * 3, "s")
    assert miss(own, "key-b")["at"] > 90, "of its own prompts a client is told"


def waiting(told: dict[str, Any]) -> dict[str, Any] | None:
    """The wait for a row."""
    return next((each for each in told["total"]["causes"] if each["cause"] == "rows"), None)


def test_a_chat_names_its_template_and_tokeniser(chat_site: Any) -> None:
    site = chat_site
    answer = site.chat("hi", max_tokens=4)
    told = site.get(f"/v1/requests/{answer.json()['id']}/explain").json()
    causes = [each["cause"] for each in told["total"]["causes"]]
    assert {"template", "tokenise", "host", "prefill", "detokenise"} <= {*causes}
    assert told["summary"].startswith(f"{told['ttft']['ms']:,.0f} ms to the first token")


def test_an_answer_says_it_by_itself_where_it_is_asked(chat_site: Any) -> None:
    assert "ridgeline" not in chat_site.complete(prompt="a", max_tokens=3).json()["usage"]
    whole = chat_site.complete(prompt="a", max_tokens=3, explain=True).json()["usage"]["ridgeline"]
    last = chat_site.events("/v1/chat/completions", messages=[{"role": "user", "content": "a"}], max_tokens=3, explain=True,
                            stream_options={"include_usage": True})[-1]["usage"]["ridgeline"]  # fmt: skip
    long = chat_site.complete(prompt="a", max_tokens=MAX_STEPS_IN_LOOP + 9, ignore_eos=True, explain=True)
    assert "ridgeline" not in long.json()["usage"]
    for told in (whole, last):
        assert {"prefill", "decode"} <= told["total_ms"].keys() and told["first"] in told["total_ms"]
        assert sum(told["ttft_ms"].values()) < sum(told["total_ms"].values())


def test_an_engine_that_ends_leaves_a_recording(new_site: Any, tmp_path: Path) -> None:
    site = new_site(EngineConfig("fake:"))
    site.service.recorder._folder = tmp_path / "incidents"
    assert site.complete(prompt="before", max_tokens=5).status_code == 200
    os.kill(site.service.deployment.client.pid, signal.SIGKILL)
    site.wait(site.service.deployment.client.ready(1))
    assert site.get("/metrics").status_code == 200
    for thread in [each for each in threading.enumerate() if each.name == "recorder"]:
        thread.join()
    (folder,) = (tmp_path / "incidents").iterdir()
    told = json.loads((folder / "incident.json").read_text())
    assert told["kind"] == "engine" and "ended" in told["reason"] and told["requests"] == 1 and told["steps"] >= 5
    assert json.loads((folder / "trace.jsonl").read_text())["output"] == 5


def test_an_engine_that_hangs_leaves_a_recording(new_site: Any, tmp_path: Path) -> None:
    """It is stopped in the middle of an answer, which the next engine ends."""
    site = new_site(EngineConfig('fake:{"step_seconds": 0.01}', step_timeout_seconds=0.5))
    site.service.recorder._folder = tmp_path / "incidents"
    answers: list[Any] = []
    asked = {"prompt": "one", "max_tokens": 60, "ignore_eos": True}
    answering = threading.Thread(target=lambda: answers.append(site.complete(**asked)))
    answering.start()
    time.sleep(0.2)
    os.kill(site.service.deployment.client.pid, signal.SIGSTOP)
    answering.join()
    assert answers[0].status_code == 200 and answers[0].json()["usage"]["completion_tokens"] == 60
    for thread in [each for each in threading.enumerate() if each.name == "recorder"]:
        thread.join()
    (folder,) = (tmp_path / "incidents").iterdir()
    told = json.loads((folder / "incident.json").read_text())
    assert told["kind"] == "engine" and "0.5 s" in told["reason"] and told["requests"] == 1, told
