"""Adapters of a server: names of models, loading under a root, unloading under load, and what is refused."""

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest
from lora_files import write_tiny_adapter
from tiny import write_tiny

from ridgeline.config.groups import EngineConfig, ServerConfig
from ridgeline.core.commands import PinAdapter
from ridgeline.engine.client import EngineClient
from ridgeline.server.app import build_app
from ridgeline.server.service import Service

KEY = {"Authorization": "Bearer secret"}


@pytest.fixture
def served(tmp_path: Path) -> Any:
    """Runs a scenario against a server with the adapter `one`, and `two` and others under its root."""
    model = write_tiny(tmp_path / "base.gguf")
    root = tmp_path / "root"
    write_tiny_adapter(tmp_path / "one", 1)
    write_tiny_adapter(root / "two", 2, rank=7)
    write_tiny_adapter(root / "dora", 3, use_dora=True)
    write_tiny_adapter(root / "large", 4, rank=100)
    (root / "out").symlink_to(tmp_path / "one")
    engine = EngineConfig(str(model), lora=(f"one={tmp_path / 'one'}",), max_loras=1, max_cpu_loras=1, max_model_len=128)

    async def run(scenario: Any, **more: Any) -> None:
        service = Service(engine, ServerConfig(api_key="secret", lora_root=str(root), **more))
        await service.start()
        try:
            transport = httpx.ASGITransport(build_app(service), raise_app_exceptions=False)
            async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8000", timeout=60, headers=KEY) as client:
                await scenario(client)
        finally:
            await service.stop()

    return lambda scenario, **more: asyncio.run(run(scenario, **more))


async def answer(client: httpx.AsyncClient, model: str | None, status: int = 200) -> Any:
    body = {"prompt": "hello there, this is a prompt", "max_tokens": 12, "temperature": 0, "ignore_eos": True, "logprobs": 1}
    found = await client.post("/v1/completions", json=body | ({"model": model} if model else {}))
    assert found.status_code == status, found.text
    return found.json()["choices"][0]["logprobs"]["token_logprobs"] if status == 200 else found.json()["error"]


async def load(client: httpx.AsyncClient, name: str, status: int = 200, **more: Any) -> str:
    found = await client.post("/v1/load_lora_adapter", json={"lora_name": name, **more})
    assert found.status_code == status, found.text
    return found.text


def test_names_loading_and_unloading(served: Any) -> None:
    async def scenario(client: httpx.AsyncClient) -> None:
        plain, one = await answer(client, None), await answer(client, "one")
        assert plain != one
        assert [await answer(client, name) for name in ("base", "base:one", "one")] == [plain, one, one]
        cards = (await client.get("/v1/models")).json()["data"]
        assert [(card["id"], card["parent"]) for card in cards] == [("base", None), ("one", "base")]
        await answer(client, "two", 404)
        await load(client, "two")
        two = await answer(client, "two")
        assert len({tuple(each) for each in (plain, one, two)}) == 3
        # One slot, one place in host memory: requests of both at once page in turns.
        names = ["one", "two", None] * 4
        found = await asyncio.gather(*[answer(client, name) for name in names])
        assert found == [one, two, plain] * 4
        listed = (await client.get("/lora-adapters")).json()
        assert [each["path"] for each in listed] == ["one", "two"]
        under_way = asyncio.create_task(answer(client, "two"))
        await asyncio.sleep(0)
        assert (await client.post("/v1/unload_lora_adapter", json={"lora_name": "two"})).status_code == 200
        await answer(client, "two", 404)
        assert under_way.cancel() or await under_way == two
        assert "there is no adapter" in (await client.post("/v1/unload_lora_adapter", json={"lora_name": "two"})).text

    served(scenario)


def test_pins_follow_what_is_loaded(served: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine is told of a pin at loading, and of its end at unloading and where the name is loaded again."""
    sent: list[PinAdapter] = []
    send = EngineClient.send
    monkeypatch.setattr(EngineClient, "send", lambda to, each: sent.append(each) if isinstance(each, PinAdapter) else send(to, each))

    async def scenario(client: httpx.AsyncClient) -> None:
        await load(client, "two", pinned=True)
        await load(client, "again", lora_path="two", pinned=True)
        await load(client, "two", load_inplace=True)
        assert [each.is_pinned for each in sent] == [True]
        assert (await client.post("/v1/unload_lora_adapter", json={"lora_name": "again"})).status_code == 200
        assert [each.is_pinned for each in sent] == [True, False] and len({each.digest for each in sent}) == 1

    served(scenario)


def test_what_is_refused(served: Any, tmp_path: Path) -> None:
    async def scenario(client: httpx.AsyncClient) -> None:
        for path in ("../one", "/etc", str(tmp_path / "one"), "a/b", ".", "..", "out", "none", ""):
            text = await load(client, "x", 400, lora_path=path or "..")
            assert str(tmp_path) not in text
        assert "DoRA" in await load(client, "x", 400, lora_path="dora")
        assert "rank 100" in await load(client, "x", 400, lora_path="large")
        assert "load_inplace" in await load(client, "one", 400, lora_path="two")
        body = {"lora_name": "new", "lora_path": "two"}
        both = await asyncio.gather(*[client.post("/v1/load_lora_adapter", json=body) for _ in range(2)])
        assert sorted(each.status_code for each in both) == [200, 400], "of two at once the second does not replace the first"
        assert (await client.post("/v1/load_lora_adapter", json={"lora_name": 5})).status_code == 400
        assert (await client.post("/v1/embeddings", json={"model": "one", "input": "a"})).status_code == 404
        wrong = await client.post("/v1/load_lora_adapter", json={"lora_name": "two"}, headers={"Authorization": "Bearer other"})
        assert wrong.status_code == 401

    served(scenario)


def test_an_adapter_belongs_to_tenants(served: Any, tmp_path: Path) -> None:
    """Who may not use one is told what a name of none is told, and finds it in no list."""
    keys = tmp_path / "keys"
    keys.write_text(
        "own k1 tenant=own adapters=one\nalso k2 tenant=own\nother k3 tenant=other adapters=two\n"
        "third k4 tenant=third\nall k5 tenant=all adapters=*\n"
    )
    keys.chmod(0o600)

    async def scenario(client: httpx.AsyncClient) -> None:
        plain, one = await answer(client, None), await answer(client, "base:one")
        assert (await load(client, "two")) and plain != one
        seen = {"k1": ["one"], "k2": ["one"], "k3": ["two"], "k4": [], "k5": ["one", "two"], "secret": ["one", "two"]}
        for key, names in seen.items():
            client.headers["Authorization"] = f"Bearer {key}"
            cards = (await client.get("/v1/models")).json()["data"]
            assert [card["id"] for card in cards] == ["base", *names]
            assert [each["path"] for each in (await client.get("/lora-adapters")).json()] == names
            none = await client.get("/v1/models/none")
            for name in ("one", "two"):
                found = await client.get(f"/v1/models/{name}")
                if name in names:
                    assert found.json()["parent"] == "base" and await answer(client, name) and await answer(client, f"base:{name}")
                else:
                    assert (found.status_code, found.text) == (404, none.text.replace("none", name))
                    for asked in ("%s", "base:%s"):
                        refused = await answer(client, asked % name, 404)
                        assert refused == {**await answer(client, asked % "none", 404), "message": refused["message"]}
                        assert refused["message"] == (await answer(client, asked % "none", 404))["message"].replace("none", name)
            if "one" in names:
                assert await answer(client, "one") == one
            assert await answer(client, None) == plain

    served(scenario, api_key_file=str(keys))
