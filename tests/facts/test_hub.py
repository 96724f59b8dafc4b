"""Names of a hub, against a local server that speaks the hub's endpoints: downloads, the cache, and every way in which it can fail."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hub_server import COMMIT, Hub, resolve, serve_hub

from ridgeline.errors import ModelFormatError, ModelNotFoundError
from ridgeline.facts.hub.names import HubName, parse_hub_name
from ridgeline.facts.hub.select import select_files


@pytest.fixture
def hub() -> Iterator[Hub]:
    with serve_hub() as hub:
        yield hub


CHECKPOINT = {
    "config.json": b"{}",
    "tokenizer.json": b"{}",
    "chat_template.jinja": b"x",
    "README.md": b"words",
    "modeling_evil.py": b"import os",
    "pytorch_model.bin": b"pickle",
    "original/config.json": b"{}",
}


def test_a_checkpoint_is_fetched_without_code_and_pickles(hub: Hub, tmp_path: Path) -> None:
    hub.files["org/single"] = CHECKPOINT | {"model.safetensors": os.urandom(300_000)}
    found = resolve("org/single", tmp_path, hub.url)
    folder = Path(str(found["path"]))
    assert sorted(path.name for path in folder.iterdir()) == ["chat_template.jinja", "config.json", "model.safetensors", "tokenizer.json"]
    assert (folder / "model.safetensors").read_bytes() == hub.files["org/single"]["model.safetensors"]
    stages = [fraction for stage, fraction in found["stages"] if stage == "downloading org/single (0.00 GB)"]  # type: ignore[attr-defined]
    assert stages == sorted(stages) and stages[-1] == 1.0 and len(stages) > 3
    assert not any(word in asked for asked in hub.asked for word in (".py", ".bin", "README"))

    hub.requests.clear()
    assert resolve("org/single", tmp_path, hub.url)["path"] == str(folder)
    assert hub.asked == []  # what is here is used without asking

    for way in ({"HF_HUB_OFFLINE": "1"}, {"HF_ENDPOINT": "http://127.0.0.1:9"}):
        assert resolve("org/single", tmp_path, hub.url, **way)["path"] == str(folder)


def test_shards_are_fetched_with_their_index(hub: Hub, tmp_path: Path) -> None:
    shards = {f"model-0000{i}-of-00002.safetensors": bytes([i]) * 1000 for i in (1, 2)}
    hub.files["org/sharded"] = CHECKPOINT | shards | {"model.safetensors.index.json": b"{}", "consolidated.safetensors": b"twice"}
    folder = Path(str(resolve(f"org/sharded@{COMMIT}", tmp_path, hub.url)["path"]))
    assert {path.name for path in folder.glob("*.safetensors*")} == {*shards, "model.safetensors.index.json"}


def test_a_gguf_is_picked_by_its_quantisation_or_its_name(hub: Hub, tmp_path: Path) -> None:
    parts = {f"Q8_0/m-Q8_0-0000{i}-of-00002.gguf": bytes([i]) * 10 for i in (1, 2)}
    hub.files["org/gguf"] = {"m-Q4_K_M.gguf": b"four", "m-Q4_K_S.gguf": b"small", "mmproj-m-Q4_K_M.gguf": b"eyes", **parts}
    names = ["org/gguf:q4_k_m", "org/gguf/m-Q4_K_S.gguf", "org/gguf:Q8_0", "hf.co/org/gguf", "org/gguf:Q5_K_M"]
    four, small, eight, default, unclear = (resolve(name, tmp_path, hub.url) for name in names)
    assert Path(four["path"]).read_bytes() == b"four" and Path(small["path"]).read_bytes() == b"small"
    first = Path(eight["path"])
    assert first.name == "m-Q8_0-00001-of-00002.gguf" and first.with_name("m-Q8_0-00002-of-00002.gguf").read_bytes() == b"\2" * 10
    assert default["path"] == four["path"]
    assert "holds 0 GGUF models that are 'Q5_K_M'" in unclear["error"]
    assert "org/gguf:Q4_K_M" in unclear["error"] and "m-Q4_K_S.gguf" in unclear["error"]


def test_what_cannot_be_had_says_why_and_what_to_do(hub: Hub, tmp_path: Path) -> None:
    hub.files["org/pickled"] = {"config.json": b"{}", "pytorch_model.bin": b"pickle"}
    hub.files["org/there"] = CHECKPOINT | {"model.safetensors": b"x"}
    hub.files["org/terms"] = hub.files["org/there"]
    hub.gated |= {"org/gated", "org/terms"}
    expected = {
        "org/pickled": "ModelFormatError: org/pickled holds its weights in pytorch_model.bin only",
        "org/none": "org/none does not exist or is private; check the name, or set HF_TOKEN",
        "org/gated": "org/gated is gated: accept its terms there, then set HF_TOKEN",
        "org/terms": "org/terms is gated: accept its terms there, then set HF_TOKEN",
        "org/there@nowhere": "has no revision 'nowhere'",
        "no/such/model": "give the path of a .gguf file",
    }
    for (name, words), found in ((item, resolve(item[0], tmp_path, hub.url)) for item in expected.items()):
        assert words in found["error"], name
    hub.files["org/ghost"] = CHECKPOINT | {"model.safetensors": b"x"}
    hub.ghosts.add("model.safetensors")
    assert "lists a file that it does not have" in str(resolve("org/ghost", tmp_path, hub.url)["error"])
    offline = str(resolve("org/there", tmp_path, hub.url, HF_HUB_OFFLINE="1")["error"])
    assert "HF_HUB_OFFLINE is set" in offline and "give the path" in offline
    unreachable = str(resolve("org/there", tmp_path, "http://127.0.0.1:9")["error"])
    assert "cannot be fetched from http://127.0.0.1:9" in unreachable and "give the path" in unreachable
    assert not any("Traceback" in text for text in (offline, unreachable))


NAMES = {
    "org/name": HubName("org/name"),
    "org/name@v1.0": HubName("org/name", "v1.0"),
    "org/name:Q4_K_M": HubName("org/name", None, "Q4_K_M"),
    "org/name@main:Q8_0": HubName("org/name", "main", "Q8_0"),
    "org/name/sub/file.gguf": HubName("org/name", None, None, "sub/file.gguf"),
    "org/file.gguf": None,
    "name": None,
    "/org/name": None,
    "./org": None,
    "../name": None,
    "org/../name/file.gguf": None,
    "org/name/file.bin": None,
    "org/na me": None,
    "https://hub/org/name": None,
    "org/name@../../x": None,
}


@pytest.mark.parametrize("name", NAMES)
def test_names(name: str) -> None:
    assert parse_hub_name(name) == NAMES[name]


def test_one_copy_of_the_weights_is_enough() -> None:
    name, shards = HubName("org/name"), [f"model-0000{i}-of-00002.safetensors" for i in (1, 2)]
    index, other = "model.safetensors.index.json", "consolidated.safetensors"
    assert select_files(name, ["config.json", "model.safetensors", other, index, *shards]) == ["config.json", "model.safetensors"]
    assert select_files(name, ["config.json", other, index, *shards, "m.gguf"]) == ["config.json", index, *shards]
    assert select_files(name, ["config.json", other, "m.gguf"]) == ["config.json", other]
    assert select_files(HubName("org/name", quantisation="f16"), ["config.json", other, "m-F16.gguf"]) == ["m-F16.gguf"]
    assert select_files(name, ["config.json", "m.gguf", "pytorch_model.bin"]) == ["m.gguf"]


def test_names_that_leave_the_folder_are_never_fetched() -> None:
    name = HubName("org/name")
    evil = ["../../etc/model.gguf", "/etc/model.gguf", "..\\model.gguf", "a/../../model.gguf"]
    assert select_files(name, [*evil, "m.gguf"]) == ["m.gguf"]
    with pytest.raises(ModelFormatError, match="holds no model"):
        select_files(name, evil)
    with pytest.raises(ModelFormatError, match="at most 1024"):
        select_files(name, ["config.json", *(f"model-{i:05d}-of-02000.safetensors" for i in range(2000))])
    with pytest.raises(ModelNotFoundError, match="0 GGUF models that are 'Q2_K'"):
        select_files(HubName("org/name", quantisation="Q2_K"), ["m-Q2_KS.gguf"])
