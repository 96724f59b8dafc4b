"""Transfers from a hub: resumed after a cut at any byte, shared by concurrent pulls, checked, and never a token to another host."""

import hashlib
import os
import random
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hub_server import COMMIT, Hub, digest_of, resolve, serve_hub, stores_at

from ridgeline.errors import ConfigError, ModelFormatError, ModelNotFoundError
from ridgeline.facts.hub import client as hub_client
from ridgeline.facts.hub import download
from ridgeline.facts.hub.locks import file_lock
from ridgeline.facts.hub.source import resolve_model

SIZE = 50_000


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    monkeypatch.setattr(hub_client, "FIRST_PAUSE_SECONDS", 0.001)
    with serve_hub() as hub:
        hub.files["org/m"] = {"m-Q4_K_M.gguf": random.Random(1).randbytes(SIZE)}
        yield hub


def blobs(home: Path) -> Path:
    return home / "hf" / "hub" / "models--org--m" / "blobs"


def content(hub: Hub) -> bytes:
    return hub.files["org/m"]["m-Q4_K_M.gguf"]


def test_fifty_random_cuts_are_resumed_with_the_right_hash(hub: Hub, tmp_path: Path) -> None:
    """Cut in the connection: each part is asked for once, and the whole is right."""
    pick = random.Random(7)
    places = sorted(pick.sample(range(1, SIZE), 50))
    hub.cuts = [after - before for before, after in zip([0, *places], places, strict=False)]
    path = Path(resolve("org/m", tmp_path, hub.url)["path"])
    assert path.read_bytes() == content(hub)
    asked = [headers.get("range") for _, path, headers in hub.requests if path.startswith("large/")]
    assert asked == [None, *(f"bytes={place}-" for place in places)]


def test_what_a_killed_process_left_is_resumed_at_fifty_random_bytes(hub: Hub, tmp_path: Path) -> None:
    pick, digest = random.Random(8), digest_of("m.gguf", content(hub))
    for number, place in enumerate([0, SIZE, *pick.sample(range(1, SIZE), 48)]):
        home = tmp_path / str(number)
        blobs(home).mkdir(parents=True)
        (blobs(home) / f"{digest}.incomplete").write_bytes(content(hub)[:place])
        hub.requests.clear()
        path = Path(resolve("org/m", home, hub.url)["path"])
        assert path.read_bytes() == content(hub) and not list(blobs(home).glob("*.incomplete"))
        ranges = [headers.get("range") for _, path, headers in hub.requests if path.startswith("large/")]
        assert ranges == ([] if place == SIZE else [f"bytes={place}-" if place else None])


def test_a_partial_file_that_is_wrong_or_too_long_is_fetched_anew(hub: Hub, tmp_path: Path) -> None:
    digest = digest_of("m.gguf", content(hub))
    for number, left in enumerate((bytes(1000), bytes(SIZE), bytes(SIZE + 1))):
        blobs(tmp_path / str(number)).mkdir(parents=True)
        (blobs(tmp_path / str(number)) / f"{digest}.incomplete").write_bytes(left)
        path = Path(resolve("org/m", tmp_path / str(number), hub.url)["path"])
        assert path.read_bytes() == content(hub)


def test_a_server_without_ranges_is_begun_anew(hub: Hub, tmp_path: Path) -> None:
    hub.ranges, hub.cuts = False, [100, 40_000]
    assert Path(resolve("org/m", tmp_path, hub.url)["path"]).read_bytes() == content(hub)


def test_a_wrong_digest_is_an_error_and_nothing_stays(hub: Hub, tmp_path: Path) -> None:
    hub.wrong.add("m-Q4_K_M.gguf")
    found = resolve("org/m", tmp_path, hub.url)
    assert "has digest" in found["error"] and "the hub states" in found["error"]
    assert list(blobs(tmp_path).iterdir()) == [] and not list(tmp_path.rglob("snapshots/*"))
    hub.wrong.clear()
    hub.files["org/m"] = {"config.json": b"{ }", "tokenizer.json": b"{}", "model.safetensors": b"weights"}
    hub.wrong.add("config.json")  # a small file is checked by git's digest
    assert "config.json has digest" in resolve("org/m", tmp_path, hub.url)["error"]


def test_a_hub_that_states_digests_in_headers_alone_is_enough_and_none_at_all_is_not(hub: Hub, tmp_path: Path) -> None:
    hub.digests = False
    assert Path(resolve("org/m", tmp_path, hub.url)["path"]).read_bytes() == content(hub)
    heads = [path for method, path, _ in hub.requests if method == "HEAD"]
    assert heads == [f"org/m/resolve/{COMMIT}/m-Q4_K_M.gguf"]
    hub.states_digests = False
    assert "states no digest for m-Q4_K_M.gguf" in resolve("org/m", tmp_path / "other", hub.url)["error"]


def test_what_passes_is_tried_again_and_what_stays_says_where_it_stopped(hub: Hub, tmp_path: Path) -> None:
    hub.busy = [503, 429]
    hub.cuts = [10, 0, 0, 500]
    assert Path(resolve("org/m", tmp_path / "a", hub.url)["path"]).read_bytes() == content(hub)
    hub.cuts = [1_234, *[0] * 50]
    found = resolve("org/m", tmp_path / "b", hub.url)
    assert "m-Q4_K_M.gguf stopped at byte 1,234 of 50,000" in found["error"] and "goes on from there" in found["error"]
    hub.cuts.clear()
    assert Path(resolve("org/m", tmp_path / "b", hub.url)["path"]).read_bytes() == content(hub)


PULL = """
import sys
from hub_server import resolve
print(resolve("org/m", __import__("pathlib").Path(sys.argv[1]), sys.argv[2]))
"""


def start_pull(home: Path, hub: Hub) -> "subprocess.Popen[str]":
    helpers = str(Path(__file__).resolve().parents[1] / "helpers")
    path = os.pathsep.join([*sys.path, helpers])
    return subprocess.Popen(
        [sys.executable, "-c", PULL, str(home), hub.url], env={**os.environ, "PYTHONPATH": path}, stdout=subprocess.PIPE, text=True
    )


def test_two_processes_at_once_share_one_transfer_and_a_dead_holder_blocks_nobody(hub: Hub, tmp_path: Path) -> None:
    arrived, go = threading.Event(), threading.Event()

    def hold() -> None:
        arrived.set()
        go.wait(30)

    hub.before_content = lambda: hold() if hub.sent(".gguf") == 1 else None
    first, second = start_pull(tmp_path, hub), start_pull(tmp_path, hub)
    assert arrived.wait(20)
    while sum("api/models" in path for _, path, _ in hub.requests) < 2:
        time.sleep(0.01)
    first.kill()  # one of the two, which may hold the lock or wait for it
    first.communicate()
    go.set()
    assert "'path'" in (second.communicate(timeout=30)[0])
    third = resolve("org/m", tmp_path, hub.url)
    assert Path(third["path"]).read_bytes() == content(hub) and hub.sent(".gguf") <= 2

    shutil.rmtree(tmp_path / "hf")
    hub.requests.clear()
    hub.before_content = lambda: time.sleep(0.05)
    paths: list[str] = []
    threads = [threading.Thread(target=lambda: paths.append(resolve("org/m", tmp_path, hub.url)["path"])) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(paths) == 6 and len(set(paths)) == 1 and hub.sent(".gguf") == 1


def test_a_lock_whose_holder_died_is_free(tmp_path: Path) -> None:
    lock = tmp_path / "x.lock"
    program = f"import fcntl, os, time; h = os.open({str(lock)!r}, 66); fcntl.flock(h, 2); print('held', flush=True); time.sleep(60)"
    holder = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None and holder.stdout.readline() == "held\n"
    with pytest.raises(TimeoutError), file_lock(lock, lambda: (_ for _ in ()).throw(TimeoutError)):
        pass
    holder.kill()
    holder.wait()
    holder.stdout.close()
    with file_lock(lock, lambda: (_ for _ in ()).throw(TimeoutError)):
        pass


def test_several_files_are_fetched_at_once_and_a_failure_ends_all(hub: Hub, tmp_path: Path) -> None:
    together, most, lock = 0, 0, threading.Lock()

    def count() -> None:
        nonlocal together, most
        with lock:
            together += 1
            most = max(most, together)
        time.sleep(0.05)
        with lock:
            together -= 1

    shards = {f"model-{i:05d}-of-00008.safetensors": bytes([i]) * 1000 for i in range(1, 9)}
    hub.files["org/m"] = {"config.json": b"{}", "tokenizer.json": b"{}", "model.safetensors.index.json": b"{}", **shards}
    hub.before_content = count
    assert len(list(Path(resolve("org/m", tmp_path, hub.url)["path"]).glob("*.safetensors"))) == 8
    assert 2 <= most <= download.CONNECTIONS
    hub.ghosts.add("model-00004-of-00008.safetensors")
    assert "lists a file that it does not have" in resolve("org/m", tmp_path / "other", hub.url)["error"]


def test_a_full_disk_is_told_before_with_the_number_and_during_with_what_to_do(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Usage:
        free = 1_000

    monkeypatch.setattr(download.shutil, "disk_usage", lambda path: Usage)
    with pytest.raises(ConfigError, match=r"needs 50,000 more bytes in .*, where 1,000 are free; make room there .*HF_HOME"):
        resolve_model("org/m", stores_at(tmp_path, hub.url))
    assert hub.sent(".gguf") == 0 and not list(blobs(tmp_path).iterdir())
    monkeypatch.undo()

    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ConfigError, match=r"became full while org/m .* was fetched; make room, and the same command goes on"):
        resolve_model("org/m", stores_at(tmp_path, hub.url))
    monkeypatch.undo()
    assert resolve_model("org/m", stores_at(tmp_path, hub.url)).read_bytes() == content(hub)


def test_the_token_goes_to_the_hub_and_to_no_host_that_it_redirects_to(hub: Hub, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("hf_of_the_file\n")
    for number, (environment, token) in enumerate(
        {"HF_TOKEN": "hf_secret", "HF_TOKEN_PATH": str(tmp_path / "token"), "HF_HUB_DISABLE_IMPLICIT_TOKEN": ""}.items()
    ):
        hub.requests.clear()
        home = tmp_path / str(number)
        found = resolve_model("org/m", stores_at(home, hub.url, **{environment: token}))
        assert found.read_bytes() == content(hub)
        sent = {("large" if path.startswith("large/") else "hub"): headers.get("authorization") for _, path, headers in hub.requests}
        expected = {0: "Bearer hf_secret", 1: "Bearer hf_of_the_file", 2: None}[number]
        assert sent == {"hub": expected, "large": None}
    assert "hf_secret" not in repr(stores_at(tmp_path, HF_TOKEN="hf_secret"))
    assert stores_at(tmp_path, HF_TOKEN="bad\ntoken: x").token is None


@pytest.mark.parametrize("target", ["file:///etc/passwd", "ftp://127.0.0.1/x", "//127.0.0.1:9/x"])
def test_redirects_lead_to_http_alone(hub: Hub, tmp_path: Path, target: str) -> None:
    hub.redirect = target
    error = resolve("org/m", tmp_path, hub.url)["error"]
    assert "is not https; nothing was sent there" in error or "Connection refused" in error


def test_a_token_is_never_sent_in_the_clear_to_another_machine() -> None:
    assert hub_client.HubClient("http://hub.example", "hf_secret")._token is None
    assert hub_client.HubClient("https://hub.example", "hf_secret")._token == "hf_secret"
    with pytest.raises(ModelNotFoundError, match="set HF_ENDPOINT"):
        hub_client.HubClient("hub.example")


def test_a_short_name_accepts_its_pinned_digest_alone(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from ridgeline.facts.hub import names

    data = b"GGUF of the table"
    pinned = (("t.gguf", hashlib.sha256(data).hexdigest()),)
    entry = names.ShortName("tiny:1b", "T", names.HubName("org/t", file="t.gguf", sha256=pinned), 17, "instruct", "MIT")
    monkeypatch.setattr(names, "short_names", lambda: {"tiny:1b": entry, "tiny": entry})
    hub.files["org/t"] = {"t.gguf": data}
    assert resolve_model("TINY", stores_at(tmp_path, hub.url)).read_bytes() == data
    hub.files["org/t"] = {"t.gguf": b"another file"}
    with pytest.raises(ModelFormatError, match=r"it was replaced\. If you trust the new one, name it in full: org/t/t.gguf"):
        resolve_model("tiny:1b", stores_at(tmp_path / "fresh", hub.url))
