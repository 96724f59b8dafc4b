"""What is read of an adapter, on which thread, and what is refused rather than ignored."""

import os
import select
import sys
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from hub_server import COMMIT, serve_hub, stores_at
from lora_files import write_tensors
from tiny import write_tiny

from ridgeline.compute.adapters import store
from ridgeline.compute.adapters.slots import AdapterSlots
from ridgeline.compute.adapters.store import AdapterStore
from ridgeline.config.env import ModelStores
from ridgeline.core.params import Adapter
from ridgeline.engine.adapters import AdapterLibrary, LoRARequest
from ridgeline.errors import ConfigError, ModelFormatError
from ridgeline.facts.headers.adapter import digest_of, file_contents, read_adapter
from ridgeline.facts.headers.read import read_model_facts

QUERY = "model.layers.0.self_attn.q_proj"


def pair(module: str = QUERY, a: str = "lora_A.weight", value: float = 1.0) -> dict[str, np.ndarray]:
    return {f"{module}.{a}": np.full((2, 64), value, np.float32), f"{module}.lora_B.weight": np.ones((64, 2), np.float32)}


@pytest.mark.parametrize(
    ("name", "module", "outputs", "inputs"),
    [
        ("qwen2moe", "mlp.shared_expert_gate", 1, 64),
        ("deepseek2", "self_attn.kv_b_proj", 4 * (32 + 64), 32),
        ("qwen3next", "linear_attn.conv1d", 256, 4),
    ],
)
def test_matrices_that_cannot_be_changed(stored: Any, tmp_path: Path, name: str, module: str, outputs: int, inputs: int) -> None:
    """The gate of shared experts, the matrix that latent attention takes apart by heads, and a convolution."""
    facts, module = read_model_facts(stored(name, "safetensors")), f"model.layers.0.{module}"
    tensors = {f"{module}.lora_A.weight": np.ones((2, inputs), np.float32), f"{module}.lora_B.weight": np.ones((outputs, 2), np.float32)}
    with pytest.raises(ModelFormatError, match=rf"{module}.*no matrix that an adapter can change"):
        read_adapter(write_tensors(tmp_path / "own", tensors), facts)


@pytest.mark.parametrize("other", [pair("layers.0.self_attn.q_proj"), pair(a="lora_A.default.weight")])
def test_two_names_of_one_matrix(tmp_path: Path, other: dict[str, np.ndarray]) -> None:
    facts = read_model_facts(write_tiny(tmp_path / "base.gguf"))
    with pytest.raises(ModelFormatError, match=r"2 times|are the same matrix"):
        read_adapter(write_tensors(tmp_path / "own", pair() | other), facts)


class Loading:
    """A store over the tiny model, whose runner changes `matrices`."""

    def __init__(self, folder: Path, matrices: tuple[str, ...] = ("blk.0.attn_q.pairs",), **bounds: int) -> None:
        self.facts = read_model_facts(write_tiny(folder / "base.gguf"))
        slots = AdapterSlots(dict.fromkeys(matrices, (32, 32)), 1)
        self.store = AdapterStore(self.facts, **{"most": 4, "most_bytes": 1 << 20, "max_rank": 64} | bounds, slots=slots)
        self.folder = folder

    def adapter(self, name: str, value: float = 1.0) -> Adapter:
        path = write_tensors(self.folder / name, pair(value=value))
        return Adapter(name, digest_of(file_contents(read_adapter(path, self.facts))), str(path))

    def load(self, adapter: Adapter, in_use: tuple[bytes, ...] = ()) -> str | None:
        """Its error, once it is there or cannot be."""
        self.store.load(adapter)
        self.store.begin(in_use)
        found = self.store.take()
        while not found:
            assert select.select([self.store.fileno()], [], [], 20)[0], "nothing is reported"
            found = self.store.take()
        ((digest, error),) = found
        assert digest == adapter.digest
        return error


def test_a_matrix_that_the_runner_does_not_change(tmp_path: Path) -> None:
    loading = Loading(tmp_path, matrices=("blk.0.attn_k.pairs",))
    assert "'one' cannot be loaded: the runner adds no change to blk.0.attn_q" in (loading.load(loading.adapter("one")) or "")
    loading.store.close()


def test_threads_take_turns_sooner_while_an_adapter_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The interval is the whole process's: it is put back behind each adapter, read or not, and by a store that closes."""
    loading, real, own, seen = Loading(tmp_path), store.read_pairs, sys.getswitchinterval(), []

    def watched(adapter: Adapter, *rest: Any) -> Any:
        seen.append(sys.getswitchinterval())
        return real(adapter, *rest) if adapter.name == "one" else {}["strange"]

    monkeypatch.setattr(store, "read_pairs", watched)
    for name, value in (("one", 1.0), ("two", 2.0)):
        loading.load(loading.adapter(name, value))
        assert sys.getswitchinterval() == own
    loading.store.load(loading.adapter("three", 3.0))
    loading.store.begin(())
    loading.store.close()
    assert sys.getswitchinterval() == own and seen == pytest.approx([store.SWITCH_SECONDS] * 3)


def test_any_error_is_reported_and_others_load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loading, real = Loading(tmp_path), store.read_pairs

    def broken(adapter: Adapter, *rest: Any) -> Any:
        return real(adapter, *rest) if adapter.name == "two" else {}["strange"]

    monkeypatch.setattr(store, "read_pairs", broken)
    assert loading.load(loading.adapter("one")) == "the adapter 'one' cannot be loaded: KeyError: 'strange'"
    assert loading.load(loading.adapter("two", 2.0)) is None
    with monkeypatch.context() as patch:
        patch.setattr(os, "read", lambda *_: pytest.fail("the pipe is read while nothing loads"))
        assert loading.store.take() == []
    loading.store.close()


def test_another_id_reads_the_path_again(tmp_path: Path) -> None:
    """vLLM's callers save a tune to the same path and count the id up."""
    library = AdapterLibrary(write_tiny(tmp_path / "base.gguf"), 64, ModelStores(tmp_path))
    path = write_tensors(tmp_path / "own", pair())
    first = library.named(LoRARequest("own", 1, str(path)))
    write_tensors(path, pair(value=2.0))
    assert library.named(LoRARequest("own", 1, str(path))) == first
    second = library.named(LoRARequest("own", 2, str(path)))
    assert second.digest != first.digest and library.named("own") == second


def test_adapters_are_bounded_by_their_bytes(tmp_path: Path) -> None:
    """Two of 1 KiB in 2.5 KiB: the one used longest ago is forgotten, one in use never; and nothing keeps a file's bytes."""
    loading = Loading(tmp_path, most_bytes=2560)
    one, two, three = (loading.adapter(name, value) for name, value in (("one", 1.0), ("two", 2.0), ("three", 3.0)))
    for each in (one, two, three):
        assert loading.load(each, (one.digest,)) is None
    pair = loading.store.get(one.digest).pairs["blk.0.attn_q.pairs"]
    assert pair.a.flags.owndata and pair.b.flags.owndata and pair.a.nbytes + pair.b.nbytes == 1024
    assert loading.store.get(three.digest)
    with pytest.raises(KeyError):
        loading.store.get(two.digest)
    loading.store.load(two)
    loading.store.begin((one.digest, three.digest))
    assert not loading.store.pending, "all are in use"
    loading.store.close()


def test_an_adapter_by_its_name_of_the_hub(tmp_path: Path) -> None:
    """Two files are fetched, once; a second start asks nobody. Code, pickles and repositories without an adapter are not taken."""
    model, here = write_tiny(tmp_path / "base.gguf"), write_tensors(tmp_path / "here", pair())
    files = {path.name: path.read_bytes() for path in here.iterdir()}
    with serve_hub() as hub:
        hub.files["org/law"] = files | {"evil.py": b"import os", "adapter_model.bin": b"pickle", "tokenizer.json": b"{}"}
        hub.files["org/pickled"] = {"adapter_config.json": b"{}", "adapter_model.bin": b"pickle"}
        hub.files["org/model"] = {"config.json": b"{}", "model.safetensors": b"x"}
        library = AdapterLibrary(model, 64, stores_at(tmp_path / "home", hub.url))
        library.add_all(["org/law", f"pinned=org/law@{COMMIT}"])
        library.add_all([f"local={here}"])
        assert [each.adapter.name for each in library.known] == ["law", "pinned", "local"]
        assert len({each.adapter.digest for each in library.known}) == 1
        assert not any(word in asked for asked in hub.asked for word in ("evil", ".bin", "tokenizer"))
        for name, cause in (("org/pickled", "can run any code"), ("org/model", "holds no LoRA adapter"), ("org/none", "org/none")):
            with pytest.raises(ConfigError, match=cause):
                library.add_all([name])
        hub.requests.clear()
        again = AdapterLibrary(model, 64, stores_at(tmp_path / "home", hub.url))
        again.add_all(["org/law"])
        vllm = again.named(LoRARequest("other", 1, "org/law"))
        assert vllm == again.named(LoRARequest("other", 1, "org/law")) and vllm.digest == library.known[0].adapter.digest
        assert hub.asked == []
        assert load_pairs(again.known[0].adapter, model).keys() == {"blk.0.attn_q.pairs"}


def load_pairs(adapter: Adapter, model: Path) -> Any:
    return store.read_pairs(adapter, read_model_facts(model), 64)


def test_a_gguf_adapter_ends_with_its_last_tensor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else all of what stands behind it would be read."""
    facts, path = read_model_facts(write_tiny(tmp_path / "base.gguf")), tmp_path / "own.gguf"
    writer = gguf.GGUFWriter(path, "gemma3")
    writer.add_type("adapter")
    writer.add_string("adapter.type", "lora")
    writer.add_float32("adapter.lora.alpha", 4.0)
    for part, shape in (("a", (2, 64)), ("b", (64, 2))):
        writer.add_tensor(f"blk.0.attn_q.weight.lora_{part}", np.ones(shape, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    assert read_adapter(path, facts).rank == 2
    digest = digest_of(file_contents(read_adapter(path, facts)))
    os.truncate(path, path.stat().st_size + 32)
    assert read_adapter(path, facts).rank == 2, "it may be padded"
    os.truncate(path, 1 << 40)
    monkeypatch.setattr(Path, "read_bytes", lambda _: pytest.fail("a file of a terabyte is read"))
    with pytest.raises(ModelFormatError, match=r"own.gguf has 1,099,511,627,776 bytes and its last tensor ends at"):
        store.read_pairs(Adapter("own", digest, str(path)), facts, 64)
