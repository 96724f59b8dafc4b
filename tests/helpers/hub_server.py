"""A local server that speaks a hub's endpoints, and `resolve_model` in a process that knows no other hub."""

import hashlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"
ROOT = Path(__file__).resolve().parents[2]


@dataclass
class Hub:
    """A repository's files by "org/name", and the paths that were asked for.

    gated   repositories whose terms nobody has accepted: listed where they have files, never served
    ghosts  files that are listed and not there
    """

    files: dict[str, dict[str, bytes]] = field(default_factory=dict)
    gated: set[str] = field(default_factory=set)
    ghosts: set[str] = field(default_factory=set)
    asked: list[str] = field(default_factory=list)
    url: str = ""


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: Hub

    def log_message(self, *_: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self.answer()

    def do_GET(self) -> None:
        self.answer()

    def answer(self) -> None:
        parts = unquote(urlsplit(self.path).path).strip("/").split("/")
        self.hub.asked.append(f"{self.command} {'/'.join(parts)}")
        api = parts[:2] == ["api", "models"]
        parts = parts[2:] if api else parts
        name = "/".join(parts[:2])
        if name in self.hub.gated and not (api and name in self.hub.files):
            self.refuse(403 if "authorization" in self.headers else 401, "GatedRepo", "Access to this model is restricted")
        elif name not in self.hub.files:
            self.refuse(401, "RepoNotFound", "Repository not found")
        elif api:
            self.listing(name, parts[3] if len(parts) > 3 else "main")
        else:
            self.file(self.hub.files[name], parts[3], "/".join(parts[4:]))

    def listing(self, name: str, revision: str) -> None:
        if revision not in ("main", COMMIT):
            self.refuse(404, "RevisionNotFound", "Invalid rev id")
            return
        siblings = [{"rfilename": file, "size": len(content), "blobId": "0" * 40} for file, content in self.hub.files[name].items()]
        self.send(200, json.dumps({"id": name, "modelId": name, "sha": COMMIT, "siblings": siblings}).encode())

    def file(self, files: dict[str, bytes], revision: str, file: str) -> None:
        if file not in files or file in self.hub.ghosts:
            self.refuse(404, "EntryNotFound", "Entry not found")
            return
        content, status = files[file], 200
        headers = {"ETag": f'"{hashlib.sha1(content).hexdigest()}"', "X-Repo-Commit": COMMIT, "Accept-Ranges": "bytes"}
        asked = self.headers.get("Range")
        if asked:
            first = int(asked.removeprefix("bytes=").split("-")[0])
            headers["Content-Range"] = f"bytes {first}-{len(content) - 1}/{len(content)}"
            content, status = content[first:], 206
        self.send(status, content, headers)

    def refuse(self, status: int, code: str, message: str) -> None:
        self.send(status, b"{}", {"X-Error-Code": code, "X-Error-Message": message})

    def send(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for key, value in (headers or {}).items():
            self.send_header(key, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)


@contextmanager
def serve_hub() -> Iterator[Hub]:
    """A hub without repositories, on a free port."""
    hub = Hub()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Bound", (Handler,), {"hub": hub}))
    server.daemon_threads = True
    hub.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield hub
    server.shutdown()
    thread.join()
    server.server_close()


PROGRAM = """
import json, sys
from pathlib import Path
from ridgeline.errors import RidgelineError
from ridgeline.facts.hub.source import resolve_model
for name in sys.argv[2:]:
    stages = []
    try:
        path = resolve_model(name, Path(sys.argv[1]), lambda stage, fraction: stages.append((stage, fraction)))
        print(json.dumps({"path": str(path), "stages": stages}))
    except RidgelineError as error:
        print(json.dumps({"error": f"{type(error).__name__}: {error}"}))
"""


def resolve_all(names: list[str], home: Path, endpoint: str, **environment: str) -> list[dict[str, Any]]:
    """Path and stages, or the error, of each name, in a process of its own: the library reads its environment on import."""
    settings = {key: value for key, value in os.environ.items() if not key.startswith(("HF_", "HUGGING"))}
    settings |= {
        "HF_HOME": str(home / "hf"),
        "HF_ENDPOINT": endpoint,
        "PYTHONPATH": str(ROOT / "src"),
        "NO_PROXY": "127.0.0.1",
        **environment,
    }
    program = [sys.executable, "-W", "ignore", "-c", PROGRAM, str(home / "cache"), *names]
    done = subprocess.run(program, capture_output=True, text=True, env=settings, cwd=home, timeout=60)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def resolve(name: str, home: Path, endpoint: str, **environment: str) -> dict[str, Any]:
    """`resolve_all` of one name."""
    return resolve_all([name], home, endpoint, **environment)[0]
