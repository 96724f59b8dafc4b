"""A local server that speaks a hub's endpoints, with large files at another host behind a redirect, and the ways in which it can fail."""

import hashlib
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urlsplit

from ridgeline.config.env import ModelStores, model_stores
from ridgeline.errors import RidgelineError
from ridgeline.facts.hub.source import resolve_model

COMMIT = "0123456789abcdef0123456789abcdef01234567"
LARGE = (".gguf", ".safetensors", ".bin")
"""Endings of files that are stored as large files: their digest is a SHA-256, and they are served by the other host."""


@dataclass
class Hub:
    """A repository's files by "org/name", and the requests that came.

    gated    repositories whose terms nobody has accepted: listed where they have files, never served
    ghosts   files that are listed and not there
    wrong    files whose content is not what the listing says
    cuts     bytes after which the next answers with a large file break off, one per answer
    busy     statuses of the next answers
    ranges   False: a server that ignores ranges
    digests  False: the listing has none
    states_digests  False: headers have none
    redirect host of large files; by default this server under another name
    requests (method, path, headers) of each
    before_content called before the content of a file is sent
    """

    files: dict[str, dict[str, bytes]] = field(default_factory=dict)
    gated: set[str] = field(default_factory=set)
    ghosts: set[str] = field(default_factory=set)
    wrong: set[str] = field(default_factory=set)
    cuts: list[int] = field(default_factory=list)
    busy: list[int] = field(default_factory=list)
    ranges: bool = True
    digests: bool = True
    states_digests: bool = True
    redirect: str = ""
    requests: list[tuple[str, str, dict[str, str]]] = field(default_factory=list)
    url: str = ""
    before_content: Callable[[], None] = lambda: None

    @property
    def asked(self) -> list[str]:
        """Method and path of each request."""
        return [f"{method} {path}" for method, path, _ in self.requests]

    def sent(self, ending: str) -> int:
        """Requests for the content of files with this ending, at the other host."""
        return sum(path.startswith("large/") and path.endswith(ending) for _, path, _ in self.requests)


def digest_of(path: str, content: bytes) -> str:
    """What a hub states of a file: SHA-256 of a large one, git's SHA-1 of another."""
    if path.endswith(LARGE):
        return hashlib.sha256(content).hexdigest()
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


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
        path = unquote(urlsplit(self.path).path).strip("/")
        self.hub.requests.append((self.command, path, {key.lower(): value for key, value in self.headers.items()}))
        if self.hub.busy:
            self.refuse(self.hub.busy.pop(0), "", "busy")
            return
        parts = path.split("/")
        if parts[0] == "large":
            self.content("/".join(parts[1:3]), "/".join(parts[3:]))
            return
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
            self.file(name, "/".join(parts[4:]))

    def listing(self, name: str, revision: str) -> None:
        if revision not in ("main", COMMIT):
            self.refuse(404, "RevisionNotFound", "Invalid rev id")
            return
        siblings: list[dict[str, Any]] = []
        for path, content in self.hub.files[name].items():
            entry: dict[str, Any] = {"rfilename": path, "size": len(content)}
            if self.hub.digests and path.endswith(LARGE):
                entry["lfs"] = {"sha256": digest_of(path, content), "size": len(content), "pointerSize": 134}
            elif self.hub.digests:
                entry["blobId"] = digest_of(path, content)
            siblings.append(entry)
        answer = {"id": name, "modelId": name, "sha": COMMIT, "siblings": siblings, "cardData": {"license": "apache-2.0"}}
        self.send(200, json.dumps(answer).encode())

    def file(self, name: str, path: str) -> None:
        files = self.hub.files[name]
        if path not in files or path in self.hub.ghosts:
            self.refuse(404, "EntryNotFound", "Entry not found")
        elif path.endswith(LARGE):
            host = self.hub.redirect or self.hub.url.replace("127.0.0.1", "localhost")
            digest = digest_of(path, files[path]) if self.hub.states_digests else ""
            linked = {"X-Linked-ETag": f'"{digest}"', "X-Linked-Size": str(len(files[path]))}
            self.send(302, b"", {"Location": f"{host}/large/{name}/{quote(path)}", "X-Repo-Commit": COMMIT, **linked})
        else:
            self.content(name, path)

    def content(self, name: str, path: str) -> None:
        self.hub.before_content()
        whole = self.hub.files[name][path]
        whole = bytes([whole[0] ^ 1]) + whole[1:] if path in self.hub.wrong else whole
        body, status, headers = whole, 200, {"ETag": f'"{digest_of(path, whole)}"', "Accept-Ranges": "bytes"}
        asked = self.headers.get("Range")
        if asked and self.hub.ranges:
            first, _, last = asked.removeprefix("bytes=").partition("-")
            body, status = whole[int(first) : int(last or len(whole)) + 1], 206
            headers["Content-Range"] = f"bytes {first}-{int(first) + len(body) - 1}/{len(whole)}"
        self.send(status, body, headers, cut=self.hub.cuts.pop(0) if self.hub.cuts and path.endswith(LARGE) else None)

    def refuse(self, status: int, code: str, message: str) -> None:
        self.send(status, b"{}", {"X-Error-Code": code, "X-Error-Message": message, **({"Retry-After": "0"} if status == 429 else {})})

    def send(self, status: int, body: bytes, headers: dict[str, str] | None = None, cut: int | None = None) -> None:
        self.send_response(status)
        for key, value in (headers or {}).items():
            self.send_header(key, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "GET":
            with suppress(ConnectionError):  # the client was killed
                self.wfile.write(body if cut is None else body[:cut])
        if cut is not None:
            self.close_connection = True


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


def stores_at(home: Path, endpoint: str = "http://127.0.0.1:9", **environment: str) -> ModelStores:
    """Stores within `home`, and the hub at `endpoint`, as the environment would say it."""
    variables = {"XDG_CACHE_HOME": str(home), "HF_HOME": str(home / "hf"), "HF_ENDPOINT": endpoint}
    variables |= {"OLLAMA_MODELS": str(home / "ollama"), "LLAMA_CACHE": str(home / "llama.cpp")}
    return model_stores(variables | environment)


def resolve(name: str, home: Path, endpoint: str, **environment: str) -> dict[str, Any]:
    """Path and stages of a name, or the error."""
    stages: list[tuple[str, float]] = []
    try:
        path = resolve_model(name, stores_at(home, endpoint, **environment), lambda stage, fraction: stages.append((stage, fraction)))
    except RidgelineError as error:
        return {"error": f"{type(error).__name__}: {error}"}
    return {"path": str(path), "stages": stages}
