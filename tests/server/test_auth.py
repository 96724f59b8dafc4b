"""Access control: every route × method × spelling × credential, hosts and origins. Default deny."""

from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote

import pytest

from ridgeline.config.groups import EngineConfig, ServerConfig
from ridgeline.errors import ConfigError
from ridgeline.server.auth import check_exposure
from ridgeline.server.routers import BLOCKS_PATH
from ridgeline.server.routes import ADMIN, PUBLIC, ROWS

KEY = "open sesame"
OPEN = {"/", "/livez", "/startupz", "/readyz", "/health", "/ping", "/version", "/dashboard"}
"""What may be read without a key, beside files of the page."""
ROUTES = {row.path for row in ROWS if row.summary}
METHODS = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT"]
SPELLINGS = [
    "{}", "{}/", "/{}", "/.{}", "/x/..{}", "{}?key=open+sesame", "{}%2f", "{};a=b", "{}%00", "{}/../livez", "/livez{}", "/livez/..{}",
]  # fmt: skip
CREDENTIALS: list[list[tuple[str, str]]] = [
    [], [("Authorization", "Bearer wrong")], [("Authorization", KEY)], [("Authorization", f"Basic {KEY}")], [("Authorization", "Bearer")],
    [("Authorization", f"Bearer {KEY}x")], [("Authorization", "Bearer \xe9")], [("X-Api-Key", f"{KEY}x")],
    [("Api-Key", "")], [("Cookie", f"key={KEY}")],
    [("Authorization", "Bearer wrong"), ("Authorization", f"Bearer {KEY}")], [("X-Api-Key", "wrong"), ("X-Api-Key", KEY)],
]  # fmt: skip


@pytest.fixture(scope="module")
def locked(site: Any) -> Iterator[Any]:
    locked = type(site)(EngineConfig("fake:{}"), ServerConfig(api_key=KEY))
    locked.wait(locked.service.start())
    yield locked
    locked.close()


async def call(site: Any, method: str, path: str, headers: list[tuple[str, str]]) -> tuple[int, dict[str, str], bytes]:
    """Straight to ASGI: no client that would tidy the path."""
    sent: list[Any] = []
    raw, _, query = path.partition("?")
    scope = {
        "type": "http", "method": method, "path": unquote(raw), "raw_path": raw.encode(), "query_string": query.encode(), "root_path": "",
        "http_version": "1.1", "scheme": "http", "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 8000), "state": {},
        "headers": [(b"host", b"127.0.0.1:8000"), *((name.lower().encode(), value.encode("latin-1")) for name, value in headers)],
    }  # fmt: skip

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False} if not sent else {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        sent.append(message)

    await site.app(scope, receive, send)
    answered = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
    return sent[0]["status"], answered, b"".join(message.get("body", b"") for message in sent[1:])


def test_public_routes(site: Any) -> None:
    """One of them has a key of its own, the router's."""
    assert {path for _, path in PUBLIC if not path.startswith("/ui/")} == OPEN | {BLOCKS_PATH}
    assert {method for method, _ in PUBLIC} == {"GET"}
    assert site.get(BLOCKS_PATH).status_code == 403


def every_spelling() -> Iterator[tuple[str, str]]:
    for route in sorted({*ROUTES, "/ui/app.js"}):
        for method in METHODS:
            for spelling in SPELLINGS:
                yield method, spelling.format(route.replace("{name:path}", "fake"))


def test_nothing_but_the_public_routes_without_the_key(locked: Any) -> None:
    async def knock() -> None:
        for method, path in every_spelling():
            for headers in CREDENTIALS:
                status, answered, body = await call(locked, method, path, headers)
                if (method, path.partition("?")[0]) in PUBLIC:
                    assert status == 200
                else:
                    assert status == 401, (method, path, headers, status)
                    assert answered["www-authenticate"] == "Bearer"
                    assert b"API key" in body and KEY.encode() not in body

    locked.wait(knock())


def test_with_the_key_everything_is_as_without_one(locked: Any, site: Any) -> None:
    async def knock() -> None:
        for scheme in ("Bearer", "bearer", "BEARER"):
            assert (await call(locked, "GET", "/v1/models", [("Authorization", f"{scheme} {KEY}")]))[0] == 200
        for header in ("X-Api-Key", "Api-Key"):
            assert (await call(locked, "GET", "/v1/models", [(header, KEY)]))[0] == 200
            assert (await call(locked, "GET", "/v1/models", [(header, KEY), ("Authorization", "Basic of=a proxy")]))[0] == 200
        for method, path in every_spelling():
            with_key = await call(locked, method, path, [("Authorization", f"Bearer {KEY}")])
            without = await call(site, method, path, [])
            assert with_key[0] == without[0] or without[0] == 403, (method, path)  # a key of --api-key is an admin's

    locked.wait(knock())


def test_what_is_for_admins_is_closed_to_clients_in_every_spelling(new_site: Any, tmp_path: Any) -> None:
    """Whatever the router takes for one of these paths is behind the check, as that stands at the endpoint."""
    file = tmp_path / "keys"
    file.write_text("tenant-key\nowner admin-key scope=admin\n")
    file.chmod(0o600)
    site = new_site(EngineConfig("fake:{}"), ServerConfig(api_key_file=str(file)))
    adapters = {"/v1/load_lora_adapter", "/v1/unload_lora_adapter"}
    loads = {"/models/load", "/models/unload"}
    assert {"/api/pull", "/api/delete", "/api/copy", "/server_info"} | adapters | loads == ADMIN

    async def knock() -> None:
        for path in sorted(ADMIN):
            for spelling in (*SPELLINGS, "{}%0a", "{}\n", "{}?x=%0a"):
                for method in METHODS:
                    target = spelling.format(path)
                    client = await call(site, method, target, [("Authorization", "Bearer tenant-key")])
                    assert client[0] in (403, 404, 405), (method, target, client)
                    admin = await call(site, method, target, [("Authorization", "Bearer admin-key")])
                    assert (client[0] == 403) == (admin[0] not in (403, 404, 405)), (method, target, client, admin)

    site.wait(knock())


def test_hosts(site: Any) -> None:
    for host in ("localhost", "localhost:8000", "127.0.0.1:9", "[::1]:8000", "LOCALHOST"):
        assert site.get("/livez", headers={"Host": host}).status_code == 200, host
    for host in ("evil.example", "127.0.0.1.evil.example", "localhost.evil.example:8000", "evil.example:127.0.0.1", "", "169.254.169.254"):
        for path in ("/livez", "/v1/models", "/"):
            answer = site.get(path, headers={"Host": host})
            assert (answer.status_code, answer.json()["error"]["code"]) == (403, "host_not_allowed"), host


def test_origins(site: Any) -> None:
    def status(origin: str, host: str = "localhost:8000") -> int:
        return site.request("POST", "/tokenize", json={"prompt": "a"}, headers={"Host": host, "Origin": origin}).status_code

    assert status("http://localhost:8000") == 200
    for origin in ("http://evil.example", "null", "http://localhost:8001", "https://127.0.0.1:8000", "http://localhost:8000.evil", ""):
        assert status(origin) == 403, origin


def test_other_hosts_are_served_behind_a_key(new_site: Any) -> None:
    site = new_site(EngineConfig("fake:{}"), ServerConfig(host="0.0.0.0", api_key=KEY), start=False)
    assert site.get("/livez", headers={"Host": "my.machine:8000"}).status_code == 200
    assert site.get("/v1/models", headers={"Host": "my.machine:8000"}).status_code == 401
    headers = {"Host": "my.machine", "Origin": "https://my.machine", "Authorization": f"Bearer {KEY}"}
    assert site.get("/v1/models", headers=headers).status_code == 503


def test_headers_are_bounded(site: Any) -> None:
    assert site.get("/livez", headers={"X-Long": "a" * 15_000}).status_code == 200
    assert site.get("/livez", headers={"X-Long": "a" * 16_384}).status_code == 431


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.2", "my.machine", ""])
def test_a_reachable_address_needs_a_key(host: str) -> None:
    with pytest.raises(ConfigError, match="--api-key"):
        check_exposure(ServerConfig(host=host))
    check_exposure(ServerConfig(host=host, api_key=KEY))


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "localhost"])
def test_loopback_needs_none(host: str) -> None:
    check_exposure(ServerConfig(host=host))


@pytest.mark.parametrize("key", ["", " ", " a", "a\n", "schlüssel"])
def test_keys_that_no_header_carries(key: str) -> None:
    with pytest.raises(ConfigError):
        check_exposure(ServerConfig(api_key=key))
