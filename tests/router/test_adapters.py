"""Requests for a model or an adapter go to the servers that have it, which tell a router with the key."""

import json
import time
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

from lora_files import write_tiny_adapter
from processes import ServerProcess
from tiny import write_tiny


def ask(url: str, body: dict[str, Any], path: str = "/v1/completions") -> int:
    connection = HTTPConnection(url.partition("://")[2], timeout=30)
    try:
        connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        return connection.getresponse().status
    finally:
        connection.close()


def test_models_and_adapters_are_found_where_they_are(tmp_path: Path, environment: dict[str, str]) -> None:
    model, key = write_tiny(tmp_path / "base.gguf"), ["--router-key-file", str(tmp_path / "key")]
    write_tiny_adapter(tmp_path / "one", 1)
    shared = [str(model), "--max-model-len", "128", *key]
    started = [ServerProcess(shared, environment)]
    try:
        started.append(ServerProcess([*shared, "second=fake:{}", "--lora", f"base:one={tmp_path / 'one'}"], environment))
        plain, other = started
        router = ServerProcess(["--replica", f"{plain.url}=1000", "--replica", other.url, *key], environment, "route")
        started.append(router)
        end = time.monotonic() + 10
        while json.loads(router.get("/router")[1])["replicas"][1]["names"] != ["base", "one", "second"]:
            assert time.monotonic() < end, router.get("/router")
            time.sleep(0.02)
        body = {"prompt": "hello", "max_tokens": 1}
        assert ask(plain.url, body | {"model": "base:one"}) == 404, "one of them alone has it"
        assert [ask(router.url, body | {"model": name}) for name in ("base:one", "one", "second", "base")] == [200] * 4
        assert [each.metric("ridgeline_http_requests_total", 'status="200"') for each in (plain, other)] == [1, 3]
        assert "x-ridgeline-names" not in str(head(other.url)), "clients do not learn of names"
    finally:
        for each in reversed(started):
            each.stop()


def head(url: str) -> list[tuple[str, str]]:
    connection = HTTPConnection(url.partition("://")[2], timeout=30)
    try:
        connection.request("GET", "/readyz")
        answer = connection.getresponse()
        answer.read()
        return answer.getheaders()
    finally:
        connection.close()
