"""Client of a hub's HTTP endpoints: listings of repositories, files, and ranges of files.

Owns what is sent to whom: the token goes to the hub's own origin, over TLS or to this machine, and never to the host of a redirect.
"""

import json
import re
import socket
import ssl
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from email.message import Message
from http.client import HTTPException, HTTPResponse
from typing import Any, Final, TypeVar
from urllib.error import URLError
from urllib.parse import quote, urljoin, urlsplit
from urllib.request import HTTPErrorProcessor, Request, build_opener

from ridgeline import __version__
from ridgeline.errors import ModelFormatError, ModelNotFoundError
from ridgeline.facts.files.values import quoted
from ridgeline.facts.hub.names import HubName

MAX_REDIRECTS: Final = 5
MAX_LISTING_BYTES: Final = 64 << 20
MAX_FILE_BYTES: Final = 1 << 43
MAX_RETRY_AFTER_SECONDS: Final = 30.0
TIMEOUT_SECONDS: Final = 30.0
"""Timeout of connecting and of each read: a transfer that stands still this long is begun anew where it stopped."""
ATTEMPTS: Final = 3
"""Attempts at a listing or a range of a file."""
FIRST_PAUSE_SECONDS: Final = 0.5
_REDIRECTS = (301, 302, 303, 307, 308)
_RETRIED = (408, 429, 500, 502, 503, 504)
_COMMIT = re.compile(r"[0-9a-f]{40}")
_DIGEST = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_LOOPBACK = ("127.0.0.1", "localhost", "::1")

Answer = TypeVar("Answer")


class TransferError(Exception):
    """A failure that another attempt may overcome: a broken connection, a server that is busy.

    wait   seconds that the server asked for
    final  nobody is there: another attempt is of no use
    """

    def __init__(self, message: str, wait: float | None = None, final: bool = False) -> None:
        super().__init__(message)
        self.wait = wait
        self.final = final


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A file of a repository. `digest` is the SHA-256 of its content, or where it has 40 digits the SHA-1 of git's blob; "" if unknown."""

    path: str
    bytes: int
    digest: str


@dataclass(frozen=True, slots=True)
class Repository:
    """A repository at one commit. `licence` is what its card states, "" where it states none."""

    name: HubName
    commit: str
    files: Mapping[str, RemoteFile]
    licence: str = ""


class HubClient:
    """Endpoints of the hub at the URL `endpoint`."""

    def __init__(self, endpoint: str, token: str | None = None, offline: bool = False) -> None:
        parts = urlsplit(endpoint)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ModelNotFoundError(f"the hub's URL is {quoted(endpoint)}; set HF_ENDPOINT to one like https://huggingface.co")
        self.endpoint = endpoint.rstrip("/")
        self._origin = _origin(endpoint)
        self._token = token if parts.scheme == "https" or parts.hostname in _LOOPBACK else None
        self._offline = offline
        self._opener = build_opener(_AnyStatus)

    def repository(self, name: HubName) -> Repository:
        """The listing of a repository. Raises ModelNotFoundError with the cause and the fix."""
        revision = f"/revision/{quote(name.revision, safe='')}" if name.revision else ""
        url = f"{self.endpoint}/api/models/{name.repository}{revision}?blobs=true"
        body = self._retried(name, lambda: self._read(name, url, {}, MAX_LISTING_BYTES))
        try:
            return _parse_listing(name, json.loads(body))
        except (ValueError, TypeError, AttributeError, KeyError, RecursionError):
            raise ModelNotFoundError(
                f"{self.endpoint} answered with something that is not the listing of a repository; is HF_ENDPOINT a hub's URL?"
            ) from None

    def file_url(self, repository: Repository, path: str) -> str:
        """URL of a file at the repository's commit."""
        return f"{self.endpoint}/{repository.name.repository}/resolve/{repository.commit}/{quote(path)}"

    def read_range(self, repository: Repository, path: str, first: int, length: int) -> bytes:
        """`length` bytes of a file from byte `first`, fewer at its end. Raises ModelNotFoundError."""
        url = self.file_url(repository, path)
        headers = {"Range": f"bytes={first}-{first + length - 1}"}
        return self._retried(repository.name, lambda: self._read(repository.name, url, headers, length, partial=first > 0))

    def stated_digest(self, repository: Repository, path: str) -> str:
        """Digest that the hub states in the headers of a file; "" without one."""
        url = self.file_url(repository, path)

        def ask() -> str:
            with self._request(url, {}, self._token, method="HEAD") as response:
                if response.status not in _REDIRECTS:
                    self._check_status(repository.name, response)
                return stated_digest(response.headers)

        return self._retried(repository.name, ask)

    @contextmanager
    def open(self, name: HubName, url: str, headers: Mapping[str, str]) -> Iterator[HTTPResponse]:
        """The response of a GET behind all redirects. Raises TransferError, ModelNotFoundError."""
        self._check_online(name)
        token, secure = self._token, url.startswith("https:")
        for _ in range(MAX_REDIRECTS + 1):
            with self._request(url, headers, token if _origin(url) == self._origin else None) as response:
                if response.status not in _REDIRECTS:
                    self._check_status(name, response)
                    yield response
                    return
                url = urljoin(url, response.headers.get("Location", ""))
                if urlsplit(url).scheme != "https" and (secure or urlsplit(url).scheme != "http"):
                    raise ModelNotFoundError(f"{self.endpoint} redirects to {quoted(url)}, which is not https; nothing was sent there")
        raise ModelNotFoundError(f"{self.endpoint} redirects {name.repository} more than {MAX_REDIRECTS} times")

    def _read(self, name: HubName, url: str, headers: Mapping[str, str], limit: int, partial: bool = False) -> bytes:
        """At most `limit` bytes of the answer. `partial` needs a server that honours ranges."""
        with self.open(name, url, headers) as response:
            if partial and response.status != 206:
                raise ModelNotFoundError(f"{self.endpoint} answers requests for a part of a file with all of it; use another mirror")
            expected = int(response.headers.get("Content-Length") or -1)
            try:
                body = response.read(limit)
            except (OSError, HTTPException) as error:
                raise TransferError(str(error) or type(error).__name__) from None
        if len(body) < min(expected, limit):
            raise TransferError(f"the connection ended after {len(body)} of {expected} bytes")
        return body

    @contextmanager
    def _request(self, url: str, headers: Mapping[str, str], token: str | None, method: str = "GET") -> Iterator[HTTPResponse]:
        request = Request(url, headers={"User-Agent": f"ridgeline/{__version__}", "Accept-Encoding": "identity", **headers}, method=method)
        if token is not None:
            request.add_unredirected_header("Authorization", f"Bearer {token}")
        try:
            response: HTTPResponse = self._opener.open(request, timeout=TIMEOUT_SECONDS)
        except (OSError, HTTPException, ValueError) as error:
            raise _connection_error(error) from None
        with response:
            yield response

    def _check_online(self, name: HubName) -> None:
        if self._offline:
            raise self._unreachable(name, "HF_HUB_OFFLINE is set")

    def _check_status(self, name: HubName, response: HTTPResponse) -> None:
        """Raises what a status outside 2xx means."""
        status, code, where = response.status, response.headers.get("X-Error-Code", ""), f"{self.endpoint}/{name.repository}"
        if 200 <= status < 300:
            return
        if status in _RETRIED:
            raise TransferError(f"status {status}", _retry_after(response.headers.get("Retry-After")))
        if code == "GatedRepo":
            raise ModelNotFoundError(f"{where} is gated: accept its terms there, then set HF_TOKEN to a token of that account")
        if code == "RevisionNotFound":
            raise ModelNotFoundError(f"{where} has no revision {name.revision!r}; name a branch, a tag or a commit that it has")
        if code == "EntryNotFound":
            raise ModelNotFoundError(f"{where} lists a file that it does not have; try again, or name a revision: {name.repository}@COMMIT")
        if status in (401, 403, 404):
            raise ModelNotFoundError(
                f"there is no file or directory {name.repository!r}, and {where} does not exist or is private; "
                "check the name, or set HF_TOKEN"
            )
        raise self._unreachable(name, f"status {status}")

    def _retried(self, name: HubName, ask: Callable[[], Answer]) -> Answer:
        """The result of `ask`, attempted again after failures that may pass. Raises ModelNotFoundError after the last."""
        for attempt in range(ATTEMPTS):
            try:
                return ask()
            except TransferError as error:
                if error.final or attempt + 1 == ATTEMPTS:
                    raise self._unreachable(name, str(error)) from None
                time.sleep(pause_seconds(attempt, error))
        raise AssertionError("the last attempt neither returned nor failed")

    def _unreachable(self, name: HubName, cause: str) -> ModelNotFoundError:
        return ModelNotFoundError(
            f"{name.repository!r} is not a file or directory here and cannot be fetched from {self.endpoint} ({cause}); "
            "download it where there is a network and give the path"
        )


def pause_seconds(attempt: int, error: TransferError) -> float:
    """Seconds before attempt number `attempt` + 1: doubled each time, or what the server asked for."""
    return error.wait if error.wait is not None else FIRST_PAUSE_SECONDS * 2.0**attempt


def stated_digest(headers: Message) -> str:
    """Digest in a hub's headers of a file: that of the large file behind the redirect, else the ETag; "" without one."""
    for key in ("X-Linked-ETag", "ETag"):
        digest = (headers.get(key) or "").removeprefix("W/").strip('"')
        if _DIGEST.fullmatch(digest):
            return digest
    return ""


class _AnyStatus(HTTPErrorProcessor):
    """Returns responses of any status, and follows no redirect."""

    def http_response(self, request: Request, response: HTTPResponse) -> HTTPResponse:
        """The response, unchanged."""
        return response

    https_response = http_response


def _parse_listing(name: HubName, listing: Any) -> Repository:
    """Parses and bounds the answer of /api/models. Raises ValueError, TypeError, AttributeError or KeyError where it is none."""
    commit = listing["sha"]
    if not _COMMIT.fullmatch(commit):
        raise ValueError("the commit is no SHA-1")
    found: dict[str, RemoteFile] = {}
    for entry in listing["siblings"]:
        path, size, large = entry["rfilename"], entry.get("size"), entry.get("lfs") or {}
        digest = str(large.get("sha256") or large.get("oid") or entry.get("blobId") or "").removeprefix("sha256:")
        known = type(size) is int and 0 <= size <= MAX_FILE_BYTES
        if isinstance(path, str) and known:
            found[path] = RemoteFile(path, size, digest if _DIGEST.fullmatch(digest) else "")
    card = listing.get("cardData")
    licence = (card.get("license_name") or card.get("license")) if isinstance(card, dict) else None
    return Repository(name, commit, found, licence[:60] if isinstance(licence, str) and licence.isprintable() else "")


def _origin(url: str) -> tuple[str, str, int]:
    parts = urlsplit(url)
    return parts.scheme, parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)


def _retry_after(value: str | None) -> float | None:
    with suppress(ValueError, TypeError):
        return min(MAX_RETRY_AFTER_SECONDS, max(0.0, float(value or "")))
    return None


def _connection_error(error: Exception) -> Exception:
    cause = error.reason if isinstance(error, URLError) else error
    if isinstance(cause, ssl.SSLCertVerificationError):
        return ModelNotFoundError(f"the hub's certificate is not trusted ({cause.verify_message}); set SSL_CERT_FILE to your authority's")
    if isinstance(cause, ValueError):
        return ModelFormatError(f"the hub's address cannot be used: {cause!s:.120}")
    final = isinstance(cause, (ConnectionRefusedError, socket.gaierror))
    return TransferError(getattr(cause, "strerror", None) or str(cause) or type(cause).__name__, final=final)
