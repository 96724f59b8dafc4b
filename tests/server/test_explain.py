"""Explanations over HTTP: whose they are, what they name, and that their causes sum to what passed."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from ridgeline.config.groups import EngineConfig, ServerConfig

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
