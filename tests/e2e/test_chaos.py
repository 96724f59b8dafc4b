"""Faults on demand in a real server: each is done, told, and got over; none where the server does not allow them."""

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from ridgeline.cli.admin_client import ask_admin, find_socket
from ridgeline.errors import ConfigError

FAKE = 'fake:{"rows": 8, "step_seconds": 0.004}'


def streams(server: Any, texts: list[str]) -> list[threading.Thread]:
    """Four clients, each with one long answer; `texts` gets what they read, "" of one that was cut off."""

    def one(number: int) -> None:
        body = {"prompt": [number], "max_tokens": 150, "seed": number, "ignore_eos": True}
        try:
            answer = httpx.post(server.url + "/v1/completions", json=body, timeout=30)
            texts.append(answer.json()["choices"][0]["text"] if answer.status_code == 200 else str(answer.status_code))
        except httpx.TransportError:
            texts.append("")

    found = [threading.Thread(target=one, args=(number,)) for number in range(4)]
    for each in found:
        each.start()
    while server.metric("vllm:num_requests_running") < 4:
        time.sleep(0.02)
    return found


def test_each_fault_is_got_over(serving: Callable[..., Any], tmp_path: Path) -> None:
    arguments = "--allow-chaos", "--step-timeout", "0.5", "--response-store", "file", "--response-store-dir", str(tmp_path / "store")
    template = tmp_path / "template.jinja"
    template.write_text("{% for message in messages %}{{ message.content }}{% endfor %}")
    with serving(FAKE, *arguments, "--chat-template", str(template)) as server:
        where = find_socket(str(server.process.pid))

        def inject(fault: str, seconds: float, *, loaded: bool = True) -> tuple[dict[str, Any], list[str]]:
            texts: list[str] = []
            clients = streams(server, texts) if loaded else []
            report = ask_admin(where, None, "POST", "/chaos", {"fault": fault, "seconds": seconds}, 60)
            for each in clients:
                each.join()
            assert report["recovered"] and report["fault"] == fault and report["failed"] == 0
            return report, texts

        report, texts = inject("kill-engine", 1)
        assert report["engine_restarted"] and report["open_requests"] == 4 and "SIGKILL" in report["what"]
        assert [len(text) for text in texts] == [150] * 4, "every answer goes on"
        report, texts = inject("stop-engine", 10)
        assert report["engine_restarted"] and "found to hang" in report["what"] and [len(text) for text in texts] == [150] * 4
        report, texts = inject("slow-engine", 0.5)
        assert not report["engine_restarted"] and [len(text) for text in texts] == [150] * 4
        report, texts = inject("drop-connections", 5)
        assert texts == [""] * 4 and not report["engine_restarted"]
        asked = {"input": "hi", "max_output_tokens": 3}
        kept = httpx.post(server.url + "/v1/responses", json=asked, timeout=30).json()["id"]
        during: list[int] = []
        client = threading.Timer(0.2, lambda: during.append(httpx.post(server.url + "/v1/responses", json=asked, timeout=30).status_code))
        client.start()
        inject("full-disk", 1, loaded=False)
        client.join()
        assert during and during[0] in (200, 500, 503), "an answer, or an error that says so: no hang"
        assert httpx.get(f"{server.url}/v1/responses/{kept}", timeout=30).status_code == 200
        assert httpx.post(server.url + "/v1/responses", json=asked, timeout=30).status_code == 200
        assert "Traceback" not in server.output(), server.output()
        assert server.output().count("action=chaos ") == 5 == server.output().count('action="chaos ended"')
        with pytest.raises(ConfigError, match="there are: kill-engine"):
            ask_admin(where, None, "POST", "/chaos", {"fault": "format-disk"})
        assert server.stop() == 0


def test_no_fault_where_none_is_allowed(demo_server: Any) -> None:
    engine = demo_server.engine_pid()
    with pytest.raises(ConfigError, match="start it with --allow-chaos"):
        ask_admin(str(demo_server.process.pid), None, "POST", "/chaos", {"fault": "kill-engine"})
    assert demo_server.engine_pid() == engine and demo_server.get("/readyz")[0] == 200
