"""Keys of files, origins and certificates that cannot work are told at the start, with the way out, and without a part of a secret."""

import os
import stat
import subprocess
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import pytest

from ridgeline.config.groups import EngineConfig, ServerConfig
from ridgeline.config.secret import read_cache_secret, read_tier_secret
from ridgeline.errors import ConfigError
from ridgeline.server.auth import check_exposure
from ridgeline.server.keys import ApiKeys
from ridgeline.server.origins import allows, parse_origins
from ridgeline.server.tls import Certificate

PLAIN = EngineConfig("demo")


def write(path: Path, text: str, mode: int = 0o600) -> str:
    path.write_text(text)
    path.chmod(mode)
    return str(path)


def test_keys_of_setting_and_file(tmp_path: Path) -> None:
    file = write(tmp_path / "keys", "\n# comment\none\n  ops \t two \n")
    keys = ApiKeys("own key", file)
    assert keys.needed and keys.reload() == 3
    assert all(keys.find(key) for key in ("own key", "one", "two"))
    assert not any(keys.find(key) for key in ("", "ops", "ops two", "own", "on", "one ", "#", "One", "\xe9"))
    assert "own key" not in repr(vars(keys)) and b"own key" not in repr(vars(keys)).encode()
    write(tmp_path / "keys", "three")
    assert keys.reload() == 2 and keys.find("three") and keys.find("own key") and not keys.find("one")
    (tmp_path / "keys").unlink()
    with pytest.raises(ConfigError, match="cannot be read"):
        keys.reload()
    assert keys.find("three")
    assert not ApiKeys().needed


def test_tenants_of_keys(tmp_path: Path) -> None:
    digest = sha256(b"hashed").hexdigest()
    file = write(tmp_path / "keys", f"plain\na sha256:{digest} tenant=acme weight=4 rpm=2 tpm=100\nb key== tenant=acme scope=admin\nc four")
    keys = ApiKeys(None, file)
    plain, a, b, c = (keys.find(key) for key in ("plain", "hashed", "key==", "four"))
    assert plain and a and b and c and keys.find(f"sha256:{digest}") is None and keys.find(digest) is None
    assert (plain.tenant, plain.weight, plain.is_admin, plain.quota) == ("", 1, False, None)
    assert (a.tenant, a.weight, a.is_admin) == ("acme", 4, False) and (b.tenant, b.weight, b.is_admin) == ("acme", 4, True)
    assert len({each.owner for each in (plain, a, b, c)}) == 4 and (c.tenant, c.quota) == ("", None)
    keys.reload()
    assert (again := keys.find("hashed")) and again.quota is a.quota and again.owner == a.owner, "what is left of limits stays"
    write(tmp_path / "keys", f"a sha256:{digest} rpm=3 tpm=100")
    keys.reload()
    assert (other := keys.find("hashed")) and other.quota is not a.quota


WRONG_OPTIONS = {
    "a hush tenant": "line 1: write KEY, or NAME KEY and options as NAME=VALUE",
    "a hush tenant=x tenant=y": "each once",
    "a hush burst=3": "tenant, weight, scope, rpm, rpd, tpm, tpd",
    "a hush tenant=a/b": "a tenant is at most 64",
    "a hush scope=root": "scope is one of client, admin",
    "a hush weight=0": "weight is a whole number from 1 to 1,000",
    "a hush rpm=1e3": "rpm is a whole number from 1",
    "a hush tpm=" + "9" * 5_000: "tpm is a whole number",
    "a hush weight=2\nb hush2 weight=3": "line 2: the tenant has the weight 2 in a line above, here 3",
    "a sha256:hush": "sha256: is followed by the 64 hex digits",
    "\n".join(f"n{at} hush{at} tenant=t{at}" for at in range(1_025)): "1025 keys of 1025 tenants; at most 4096 of 1024",
}


@pytest.mark.parametrize("text", WRONG_OPTIONS, ids=lambda text: text[:24])
def test_options_that_are_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigError, match=WRONG_OPTIONS[text]) as error:
        ApiKeys(None, write(tmp_path / "keys", text))
    assert "hush" not in str(error.value)


def test_the_secret_of_the_cache_is_made_once_and_shared(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    first = read_cache_secret(str(file), PLAIN)
    assert first == read_cache_secret(str(file), PLAIN) and len(first) == 32 and file.stat().st_mode & 0o777 == 0o600
    assert list(tmp_path.iterdir()) == [file] and read_cache_secret(None, PLAIN) != read_cache_secret(None, PLAIN)
    file.unlink()
    assert read_cache_secret(str(file), PLAIN) != first, "a lost secret is a new one"
    for text, mode, message in (("short", 0o600, "has 5 characters"), ("x" * 32, 0o640, "run: chmod 600")):
        write(file, text, mode)
        with pytest.raises(ConfigError, match=message):
            read_cache_secret(str(file), PLAIN)
    with pytest.raises(ConfigError, match="cannot be made"):
        read_cache_secret(str(tmp_path / "missing" / "secret"), PLAIN)


def test_the_secret_in_the_folder_of_blocks_is_no_link_and_nobody_elses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = replace(PLAIN, kv_cache_dir=str(tmp_path / "kv"))
    first, file = read_cache_secret(None, config), tmp_path / "kv" / "secret"
    assert first == read_tier_secret(config) and list((tmp_path / "kv").iterdir()) == [file] and file.stat().st_mode & 0o777 == 0o600
    file.rename(tmp_path / "elsewhere")
    file.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ConfigError, match=r"kv/secret' cannot be read: Too many levels of symbolic links"):
        read_tier_secret(config)
    named = replace(config, kv_cache_secret_file=str(file))
    assert read_tier_secret(named) == first, "secrets of Kubernetes are links, which the operator names"
    file.unlink()
    write(file, "x" * 32, 0o644)
    with pytest.raises(ConfigError, match="run: chmod 600"):
        read_tier_secret(config)
    write(file, "x" * 32, 0o600)
    real, own = os.fstat, os.geteuid()

    def of_another(descriptor: int) -> os.stat_result:
        found = real(descriptor)
        return found if stat.S_ISDIR(found.st_mode) else os.stat_result((*found[:4], own + 1, *found[5:]))

    monkeypatch.setattr(os, "fstat", of_another)
    with pytest.raises(ConfigError, match=f"belongs to user {own + 1}, this process to {own}"):
        read_tier_secret(config)


WRONG_KEYS = {
    "hush hush hush": "line 1: write KEY, or NAME KEY and options",
    "na/me hush": "line 1: write KEY, or NAME KEY",
    "ok\nschlüssel-hush": "line 2: a key must be printable ASCII",
    "hush\nhush": "line 2: this name or key stands in a line above",
    "a hush\na hush2": "line 2: this name or key stands in a line above",
    "": "has 0 keys",
    "# hush": "has 0 keys",
    "\n".join(f"hush{number}" for number in range(4_097)): "has 4097 keys of 1 tenants; at most 4096",
    "h" * 1_100_000: "more than 1,048,576 bytes",
}


@pytest.mark.parametrize("text", WRONG_KEYS, ids=lambda text: text[:20])
def test_files_of_keys_that_are_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigError, match=WRONG_KEYS[text]) as error:
        check_exposure(ServerConfig(api_key_file=write(tmp_path / "keys", text)))
    assert "hush" not in str(error.value)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o644, 0o660])
def test_files_of_keys_that_others_can_read(tmp_path: Path, mode: int) -> None:
    file = write(tmp_path / "keys", "hush", mode)
    with pytest.raises(ConfigError, match=rf"mode {mode:04o} .* run: chmod 600 {file}"):
        ApiKeys(None, file)


def test_a_group_may_read_what_root_gives_to_a_service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "keys"
    write(file, "hush", 0o440)
    monkeypatch.setattr("os.geteuid", lambda: 65_534)
    if file.stat().st_uid == 0:
        assert ApiKeys(None, str(file)).needed
        file.chmod(0o444)
    with pytest.raises(ConfigError, match="lets others than its owner at it"):
        ApiKeys(None, str(file))


def test_a_file_of_keys_opens_an_address(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--api-key-file"):
        check_exposure(ServerConfig(host="0.0.0.0"))
    check_exposure(ServerConfig(host="0.0.0.0", api_key_file=write(tmp_path / "keys", "hush")))


def test_origins() -> None:
    found = parse_origins(["https://A.example", "http://localhost:3000", "vscode-webview://abc", "http://[::1]:8000"])
    assert all(allows(found, each) for each in ("https://a.example", "http://localhost:3000", "vscode-webview://abc", "http://[::1]:8000"))
    assert not any(allows(found, each) for each in ("http://a.example", "https://a.example:444", "null", "*", "", "https://a.example.evil"))
    assert allows(parse_origins(["*"]), "https://any.example")
    for wrong, fix in (
        ("https://a.example/", "https://a.example"), ("https://a.example/x?y", "https://a.example"), ("a.example", None), ("null", "*"),
        ("https://*.example", None), ("https://a b", None), ("https://", None), ("", None), ("https://a\r\nx: y", None),
    ):  # fmt: skip
        with pytest.raises(ConfigError, match="--allowed-origins") as error:
            check_exposure(ServerConfig(allowed_origins=(wrong,)))
        assert error.value.fix == {"--allowed-origins": fix}, wrong


def openssl(*words: str) -> None:
    subprocess.run(["openssl", *words], check=True, capture_output=True, timeout=60)


@pytest.fixture(scope="module")
def pems(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pems")
    for name in ("a", "b"):
        curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-noenc", "-subj", "/CN=localhost", "-days", "2"]
        openssl("req", "-x509", *curve, "-keyout", str(folder / f"{name}.key"), "-out", str(folder / f"{name}.pem"))
    openssl("pkey", "-in", str(folder / "a.key"), "-aes256", "-passout", "pass:hush", "-out", str(folder / "locked.key"))
    (folder / "both.pem").write_text((folder / "a.pem").read_text() + (folder / "a.key").read_text())
    (folder / "garbage").write_text("hush")
    for file in folder.iterdir():
        file.chmod(0o600)
    (folder / "shown.key").write_text((folder / "a.key").read_text())
    (folder / "shown.key").chmod(0o644)
    return folder


def test_certificates(pems: Path) -> None:
    assert Certificate(ServerConfig()).context is None
    assert Certificate(ServerConfig(ssl_certfile=str(pems / "a.pem"), ssl_keyfile=str(pems / "a.key"))).context is not None
    assert Certificate(ServerConfig(ssl_certfile=str(pems / "both.pem"))).context is not None


@pytest.mark.parametrize(
    ("certificate", "key", "message"),
    [
        ("a.pem", "b.key", "the key is not the certificate's"),
        ("a.pem", "locked.key", "the private key is encrypted"),
        ("a.pem", "garbage", "is not PEM"),
        ("garbage", "a.key", "is not PEM"),
        ("a.pem", "none", "cannot be read"),
        ("none", "a.key", "No such file"),
        ("a.pem", "shown.key", "mode 0644 .*chmod 600"),
        ("a.pem", None, "is not PEM"),
        (None, "a.key", "--ssl-keyfile has no certificate"),
    ],
)
def test_certificates_that_cannot_work(pems: Path, certificate: str | None, key: str | None, message: str) -> None:
    certfile, keyfile = (None if each is None else str(pems / each) for each in (certificate, key))
    with pytest.raises(ConfigError, match=message):
        check_exposure(ServerConfig(ssl_certfile=certfile, ssl_keyfile=keyfile))
