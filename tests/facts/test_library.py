"""The library: models of every store on this machine, found and used where they lie, and removed only where Ridgeline put them."""

import hashlib
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hub_server import COMMIT, Hub, resolve, serve_hub, stores_at

from ridgeline.config.env import ModelStores
from ridgeline.errors import ConfigError, ModelNotFoundError
from ridgeline.facts.hub.digests import resolve_checked
from ridgeline.facts.hub.library import find_entry, list_models, remove_model
from ridgeline.facts.hub.names import HubName, parse_hub_name, short_name, short_names, starters
from ridgeline.facts.hub.select import DEFAULT_ORDER, is_safe_path, quantisation_of, select_files
from ridgeline.facts.hub.source import find_local, resolve_model

HOSTILE = [
    "../model.gguf", "../../etc/model.gguf", "/etc/model.gguf", "a/../../model.gguf", "..\\model.gguf", "a\\..\\model.gguf",
    "C:\\model.gguf",
    "c:model.gguf", "a//model.gguf", "./model.gguf", "a/./model.gguf", "a/../model.gguf", "~/../model.gguf/..", "model.gguf/", "",
    "mo\0del.gguf", "mo\ndel.gguf", "mo\rdel.gguf", "\x1b[2Jmodel.gguf", "mo\u202edel.gguf", "mo\x7fdel.gguf", "x" * 300 + ".gguf",
    "a/" * 300 + "model.gguf", " model.gguf", "model.gguf ", "a /model.gguf", ".../model.gguf", "a./model.gguf", "con*.gguf", "a|b.gguf",
    "<a>.gguf", 'a".gguf', "a?.gguf", "\udcff.gguf",
]  # fmt: skip
NAMES = [
    "../name", "/org/name", "org/..", "org/../name", "org/name@../x", "org/name@a/../../b", "org/name:../x", "org/name/../../x.gguf",
    "org/na\0me", "org/na\nme", "org/name?x=1", "org/name#x", "org/name%2e%2e", "hf.co/../x", "https://evil.example/org/name", "org\\name",
    "o" * 200 + "/name", "org/" + "n" * 200, "org/name@" + "r" * 300, "file:///etc/passwd", "org/name/x.bin", "org/name/x.py",
    "-org/name", ".org/name", "org/name:" + "q" * 99, "hf.co//etc/passwd",
]  # fmt: skip


@pytest.fixture
def hub() -> Iterator[Hub]:
    with serve_hub() as hub:
        yield hub


def test_x4_thirty_hostile_names_and_files_are_refused_and_nothing_is_outside_the_root(hub: Hub, tmp_path: Path) -> None:
    assert len(HOSTILE) >= 30 and not any(map(is_safe_path, HOSTILE))
    home = tmp_path / "home"
    home.mkdir()
    for name in NAMES:
        assert parse_hub_name(name) is None, name
        assert "error" in resolve(name, home, hub.url)
    assert hub.requests == []
    encodable = {name: b"evil" for name in HOSTILE if name.isprintable() or "\x1b" in name or "\n" in name}
    hub.files["org/evil"] = encodable | {"config.json": b"{}", "a.py": b"import os", "pytorch_model.bin": b"pickle"}
    assert "pytorch_model.bin only" in resolve("org/evil", home, hub.url)["error"]
    hub.files["org/evil"] = encodable | {"m.gguf": b"good"}
    found = Path(resolve("org/evil", home, hub.url)["path"])
    assert found.read_bytes() == b"good" and found.is_relative_to(home)
    hub.files["org/case"] = {"config.json": b"{}", "model-00001-of-00001.safetensors": b"a", "MODEL-00001-of-00001.safetensors": b"b"}
    select_files(HubName("org/case"), hub.files["org/case"])  # one of them is no shard
    twice = ["config.json", "x.safetensors", "X.safetensors"]
    with pytest.raises(Exception, match="differ in their case alone"):
        select_files(HubName("org/case"), twice)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["home"]
    inside = [path for path in home.rglob("*") if path.is_file() and path.read_bytes() in (b"evil", b"pickle", b"import os")]
    assert inside == []


def test_links_that_lead_out_of_the_cache_are_not_used_and_not_written_through(hub: Hub, tmp_path: Path) -> None:
    hub.files["org/m"] = {"m-Q8_0.gguf": b"good"}
    secret = tmp_path / "secret"
    secret.write_text("private")
    folder = tmp_path / "hf" / "hub" / "models--org--m"
    snapshot = folder / "snapshots" / COMMIT
    snapshot.mkdir(parents=True)
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text(COMMIT)
    (snapshot / "m-Q8_0.gguf").symlink_to(secret)
    stores = stores_at(tmp_path, hub.url)
    assert find_local("org/m", stores) is None and list_models(stores) == []
    (folder / "blobs").mkdir()
    digest = hashlib.sha256(b"good").hexdigest()
    (folder / "blobs" / f"{digest}.incomplete").symlink_to(secret)
    assert "cannot be written" in resolve("org/m", tmp_path, hub.url)["error"]
    (folder / "blobs" / f"{digest}.incomplete").unlink()
    assert Path(resolve("org/m", tmp_path, hub.url)["path"]).read_bytes() == b"good"
    assert secret.read_text() == "private"


def test_names() -> None:
    assert parse_hub_name("hf.co/org/name:Q4_K_M") == HubName("org/name", None, "Q4_K_M")
    assert parse_hub_name("https://huggingface.co/org/name@v1") == HubName("org/name", "v1")
    assert parse_hub_name("org/name:latest") == HubName("org/name")
    assert parse_hub_name("org/name:UD-Q4_K_XL") == HubName("org/name", None, "UD-Q4_K_XL")
    assert [str(parse_hub_name(name)) for name in ("org/a@v:q8_0", "org/a/b/c.gguf")] == ["org/a@v:q8_0", "org/a/b/c.gguf"]


def test_the_table_of_short_names() -> None:
    table = {name: entry for name, entry in short_names().items() if ":" in name}
    assert len(table) >= 30
    for name, entry in table.items():
        assert parse_hub_name(str(entry.hub)) is not None and entry.about_bytes > 0 and entry.licence and entry.title, name
        assert entry.kind in ("instruct", "base") and (entry.hub.file or (entry.hub.quantisation or "") in DEFAULT_ORDER), name
        assert all(len(digest) == 64 and int(digest, 16) for _, digest in entry.hub.sha256)
        assert not entry.hub.sha256 or entry.hub.file in dict(entry.hub.sha256)
    assert len({digest for entry in table.values() for _, digest in entry.hub.sha256}) >= 20
    assert short_name("Qwen3:0.6B") == table["qwen3:0.6b"] and short_name("qwen3") == short_name("qwen3:latest") == table["qwen3:0.6b"]
    assert short_name("qwen3:99b") is None and short_name("no-such") is None
    sizes = [entry.about_bytes for entry in starters()]
    assert len(sizes) == 3 and sizes == sorted(sizes) and all(entry.kind == "instruct" for entry in starters())


def test_a_default_quantisation_is_taken_in_order_and_others_by_name() -> None:
    files = ["m-Q8_0.gguf", "m-Q4_K_M.gguf", "m-UD-Q4_K_XL.gguf", "m-BF16.gguf", "mmproj-F16.gguf"]
    assert select_files(HubName("a/b"), files) == ["m-Q4_K_M.gguf"]
    assert select_files(HubName("a/b"), files[:1] + files[3:]) == ["m-Q8_0.gguf"]
    assert select_files(HubName("a/b", quantisation="ud-q4_k_xl"), files) == ["m-UD-Q4_K_XL.gguf"]
    with pytest.raises(ModelNotFoundError, match="0 GGUF models that are 'F16'"):
        select_files(HubName("a/b", quantisation="F16"), files)
    names = {"a.Q2_K.gguf": "Q2_K", "a-iq4_nl.gguf": "IQ4_NL", "Q6_K_L/a.gguf": "Q6_K_L", "oss-20b-mxfp4.gguf": "MXFP4", "llama-3.gguf": ""}
    assert {name: quantisation_of(name) for name in names} == names


def ollama(store: Path, name: str, content: bytes, *, adapter: bool = False, digest: str = "", size: int | None = None) -> Path:
    """Adds a model to an Ollama store, as `ollama pull` lays it out; returns its blob."""
    digest = digest or hashlib.sha256(content).hexdigest()
    details = json.dumps({"model_format": "gguf", "file_type": "Q8_0"}).encode()
    config = hashlib.sha256(details).hexdigest()
    (store / "blobs").mkdir(parents=True, exist_ok=True)
    for key, data in ((digest, content), (config, details)):
        if "/" not in key:
            (store / "blobs" / f"sha256-{key}").write_bytes(data)
    layer = {"mediaType": "application/vnd.ollama.image.model", "digest": f"sha256:{digest}", "size": size or len(content)}
    layers = [layer, {"mediaType": "application/vnd.ollama.image.license", "digest": "sha256:" + "0" * 64, "size": 1}]
    if adapter:
        layers.append({"mediaType": "application/vnd.ollama.image.adapter", "digest": "sha256:" + "1" * 64, "size": 1})
    manifest = store / "manifests" / name
    manifest.parent.mkdir(parents=True, exist_ok=True)
    manifest.write_text(json.dumps({"schemaVersion": 2, "config": {"digest": f"sha256:{config}"}, "layers": layers}))
    return store / "blobs" / f"sha256-{digest}"


def test_ollamas_models_are_used_where_they_lie(tmp_path: Path) -> None:
    store = tmp_path / "ollama"
    small = ollama(store, "registry.ollama.ai/library/llama3.2/1b", b"GGUF one")
    named = ollama(store, "registry.ollama.ai/somebody/own/latest", b"GGUF own")
    linked = ollama(store, "hf.co/org/name-GGUF/Q4_K_M", b"GGUF of the hub")
    ollama(store, "registry.ollama.ai/library/adapted/latest", b"GGUF two", adapter=True)
    ollama(store, "registry.ollama.ai/library/cut/latest", b"GGUF three", size=99)
    ollama(store, "registry.ollama.ai/library/evil/latest", b"x", digest="../../../secret")
    (store / "manifests/registry.ollama.ai/library/broken").mkdir(parents=True)
    (store / "manifests/registry.ollama.ai/library/broken/latest").write_text("{")
    stores = stores_at(tmp_path)
    before = sorted(store.rglob("*"))
    assert resolve_model("llama3.2:1b", stores) == resolve_model("LLAMA3.2:1B", stores) == small
    assert resolve_model("somebody/own", stores) == resolve_model("somebody/own:latest", stores) == named
    assert resolve_model("hf.co/org/name-GGUF:Q4_K_M", stores) == resolve_model("org/name-GGUF:q4_k_m", stores) == linked
    for name in ("adapted", "cut", "evil", "broken"):
        with pytest.raises(ModelNotFoundError):
            resolve_model(name, stores)
    listed = {entry.model.name: entry for entry in list_models(stores)}
    assert set(listed) == {"llama3.2:1b", "somebody/own:latest", "hf.co/org/name-GGUF:Q4_K_M"}
    assert all(entry.model.origin == "ollama" and entry.model.quantisation == "Q8_0" and not entry.is_own for entry in listed.values())
    assert all(resolve_model(name, stores) == entry.model.path for name, entry in listed.items())
    assert sorted(store.rglob("*")) == before


def test_llama_cpps_cache_is_used_where_it_lies(tmp_path: Path) -> None:
    cache = tmp_path / "llama.cpp"
    cache.mkdir()
    name = "ggml-org_gemma-3-1b-it-GGUF_gemma-3-1b-it-Q4_K_M.gguf"
    (cache / name).write_bytes(b"GGUF")
    (cache / "ggml-org_gemma-3-1b-it-GGUF_mmproj-model-f16.gguf").write_bytes(b"GGUF")
    (cache / "other.gguf").write_bytes(b"GGUF")
    for part in (1, 2):
        (cache / f"a_b-GGUF_big-Q8_0-0000{part}-of-00002.gguf").write_bytes(b"GGUF")
    (cache / "a_b-GGUF_cut-Q6_K-00001-of-00002.gguf").write_bytes(b"GGUF")
    stores = stores_at(tmp_path)
    assert resolve_model("ggml-org/gemma-3-1b-it-GGUF:q4_k_m", stores).name == name
    assert resolve_model("a/b-GGUF:Q8_0", stores).name == "a_b-GGUF_big-Q8_0-00001-of-00002.gguf"
    listed = {entry.model.name: entry.model for entry in list_models(stores)}
    assert set(listed) == {"ggml-org/gemma-3-1b-it-GGUF:Q4_K_M", "a/b-GGUF:Q8_0", str(cache / "other.gguf")}
    assert listed["a/b-GGUF:Q8_0"].bytes == 8
    assert all(resolve_model(name, stores) == model.path for name, model in listed.items())


def test_what_was_fetched_is_listed_by_last_use_and_removed_and_the_rest_is_not(hub: Hub, tmp_path: Path) -> None:
    hub.files["org/g"] = {"g-Q4_K_M.gguf": b"four", "g-Q8_0.gguf": b"eight", "same-Q5_0.gguf": b"eight"}
    hub.files["org/c"] = {"config.json": b'{"torch_dtype": "bfloat16"}', "tokenizer.json": b"{}", "model.safetensors": b"weights"}
    stores = stores_at(tmp_path, hub.url)
    for name in ("org/g:Q8_0", "org/g:Q5_0", "org/g:Q4_K_M", "org/c"):
        resolve_model(name, stores)
    os.utime(next(p for p in (stores.cache / "library").iterdir() if "Q4_K_M" in p.read_text()), (1, 1))
    entries = {entry.model.name: entry for entry in list_models(stores)}
    assert set(entries) == {"org/g:Q4_K_M", "org/g:Q8_0", "org/g:Q5_0", "org/c"} and list(entries)[-1] == "org/g:Q4_K_M"
    assert {name: entry.model.quantisation for name, entry in entries.items()}["org/c"] == "BF16"
    assert all(entry.is_own and entry.model.commit == COMMIT for entry in entries.values())
    resolve_model("org/g:Q4_K_M", stores)
    found = find_entry("org/g:q4_k_m", stores)
    assert found is not None and found.record is not None and time.time() - found.record.used < 60
    assert found.record.source == f"org/g@{COMMIT}" and found.record.licence == "apache-2.0"

    assert remove_model(entries["org/g:Q8_0"], stores) == 0  # another model shares the content
    assert resolve_model("org/g:Q5_0", stores).read_bytes() == b"eight"
    assert remove_model(entries["org/g:Q5_0"], stores) == 5
    assert remove_model(entries["org/g:Q4_K_M"], stores) == 4
    assert remove_model(entries["org/c"], stores) == len(b'{"torch_dtype": "bfloat16"}{}weights')
    assert list_models(stores) == [] and list((tmp_path / "hf" / "hub").glob("models--*")) == []
    assert list((stores.cache / "library").iterdir()) == []


def test_models_of_other_programs_in_the_shared_cache_stay(hub: Hub, tmp_path: Path) -> None:
    hub.files["org/g"] = {"g-Q8_0.gguf": b"eight"}
    resolve("org/g", tmp_path, hub.url)
    fresh = stores_at(tmp_path, hub.url)
    fresh = ModelStores(tmp_path / "another cache", fresh.hub, endpoint=hub.url)
    entry = find_entry("org/g", fresh)
    assert entry is not None and not entry.is_own and resolve_model("org/g", fresh).read_bytes() == b"eight"
    with pytest.raises(AssertionError):
        remove_model(entry, fresh)
    entry = find_entry("org/g", fresh)
    assert entry is not None and not entry.is_own, "use is not ownership"


def test_an_unfinished_download_is_listed_and_can_be_removed(tmp_path: Path) -> None:
    blobs = tmp_path / "hf" / "hub" / "models--org--half" / "blobs"
    blobs.mkdir(parents=True)
    (blobs / ("0" * 64 + ".incomplete")).write_bytes(bytes(1000))
    stores = stores_at(tmp_path)
    (entry,) = list_models(stores)
    assert (entry.model.name, entry.model.origin, entry.model.bytes) == ("org/half", "unfinished", 1000)
    assert find_entry("org/half", stores) == entry and remove_model(entry, stores) == 1000
    assert list_models(stores) == [] and not blobs.parent.exists()


def test_an_incomplete_checkpoint_is_not_taken_for_whole(hub: Hub, tmp_path: Path) -> None:
    index = json.dumps({"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}}).encode()
    shards = {f"model-0000{i}-of-00002.safetensors": bytes([i]) * 10 for i in (1, 2)}
    hub.files["org/c"] = {"config.json": b"{}", "tokenizer.json": b"{ }", "model.safetensors.index.json": index, **shards}
    stores = stores_at(tmp_path, hub.url)
    snapshot = resolve_model("org/c", stores)
    for gone in ("model-00002-of-00002.safetensors", "tokenizer.json"):
        (snapshot / gone).unlink()
        assert find_local("org/c", stores) is None and not [e for e in list_models(stores) if e.model.origin == "hub"]
        assert resolve_model("org/c", stores) == snapshot and (snapshot / gone).exists()


def test_what_was_fetched_is_found_by_hugging_faces_own_programs_and_the_other_way_round(hub: Hub, tmp_path: Path) -> None:
    from huggingface_hub import hf_hub_download, scan_cache_dir, snapshot_download, try_to_load_from_cache

    hub.files["org/c"] = {"config.json": b"{}", "tokenizer.json": b"{ }", "model.safetensors": b"weights"}
    stores = stores_at(tmp_path, hub.url)
    snapshot = resolve_model("org/c", stores)
    assert try_to_load_from_cache("org/c", "model.safetensors", cache_dir=stores.hub) == str(snapshot / "model.safetensors")
    assert snapshot_download("org/c", cache_dir=stores.hub, local_files_only=True) == str(snapshot)
    found = scan_cache_dir(stores.hub)
    (repository,) = found.repos
    assert not found.warnings and repository.repo_id == "org/c" and next(iter(repository.revisions)).refs == {"main"}

    hub.files["org/g"] = {"g-Q4_K_M.gguf": b"GGUF"}
    file = hf_hub_download("org/g", "g-Q4_K_M.gguf", cache_dir=stores.hub, endpoint=hub.url)
    hub.requests.clear()
    assert str(resolve_model("org/g:Q4_K_M", stores)) == file and hub.requests == []
    entry = find_entry("org/g:Q4_K_M", stores)
    assert entry is not None and not entry.is_own


def test_parts_of_a_split_model_are_found_by_their_names_whatever_path_leads_there(hub: Hub, tmp_path: Path) -> None:
    parts = {f"m-Q8_0-0000{i}-of-00002.gguf": bytes([i]) * 10 for i in (1, 2)}
    hub.files["org/split"] = parts
    stores = stores_at(tmp_path, hub.url)
    first = resolve_model("org/split", stores)
    assert resolve_model(str(first), stores) == resolve_model(str(first.parent), stores) == first
    sums = "".join(f"{hashlib.sha256(content).hexdigest()}  {name}\n" for name, content in parts.items())
    (tmp_path / "sums").write_text(sums)
    assert resolve_checked("org/split", stores, str(tmp_path / "sums"), lambda stage, fraction: None) == first
    (tmp_path / "sums").write_text(sums.splitlines()[0] + "\n")
    with pytest.raises(ConfigError, match=r"has no line for m-Q8_0-00002-of-00002.gguf"):
        resolve_checked("org/split", stores, str(tmp_path / "sums"), lambda stage, fraction: None)
    with pytest.raises(ConfigError, match="the model has 2 files of weights"):
        resolve_checked("org/split", stores, "0" * 64, lambda stage, fraction: None)
