"""A disk that is full under the cache that survives restarts: a small tmpfs, which only the server sees."""

import json
import subprocess
from http.client import HTTPConnection
from pathlib import Path

import processes
import pytest
from processes import ServerProcess

IN_TMPFS = ["unshare", "-rm", "sh", "-c", 'mount -t tmpfs -o size=1m none "$0" && exec "$@"']
PROMPTS = [f"{name}, and what came of it on the next day. " * 16 for name in ("A journey", "The harbour")]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where a tmpfs can be mounted."""
    try:
        subprocess.run([*IN_TMPFS, str(tmp_path), "true"], check=True, capture_output=True, timeout=10)
    except (OSError, subprocess.SubprocessError):
        pytest.skip("needs mount namespaces of a user's own (unshare -rm)")
    return tmp_path


def texts(url: str) -> list[str]:
    found = []
    for prompt in PROMPTS:
        connection = HTTPConnection(url.partition("://")[2], timeout=60)
        body = json.dumps({"prompt": prompt, "max_tokens": 8, "temperature": 0})
        connection.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        assert answer.status == 200
        found.append(json.loads(answer.read())["choices"][0]["text"])
        connection.close()
    return found


@pytest.mark.timeout(300)
def test_a_server_on_a_full_disk_serves_on(
    demo_server: ServerProcess, folder: Path, environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "COMMAND", [*IN_TMPFS, str(folder), *processes.COMMAND])
    flags = ["--max-model-len", "2048", "--kv-cache-memory-bytes", str(256 << 20), "--kv-cache-dir", str(folder / "kv")]
    server = ServerProcess(["demo", *flags], environment)
    try:
        expected = texts(demo_server.url)
        assert texts(server.url) == expected and server.get("/readyz")[0] == 200
        counts = {name: server.metric(f"ridgeline_tier_{name}_total", 'tier="file"') for name in ("failures", "dropped_blocks")}
        assert counts["failures"] and counts["dropped_blocks"], "the disk was full"
        assert texts(server.url) == expected
    finally:
        server.stop()
