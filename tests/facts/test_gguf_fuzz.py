"""Mutated and truncated headers: typed errors or a header, never another exception, never slow, never much memory."""

import random
import resource
import time
from pathlib import Path

import pytest
from gguf_files import model_file, value

from ridgeline.errors import RidgelineError
from ridgeline.facts.files.gguf import read_header
from ridgeline.facts.headers.gguf import model_facts
from ridgeline.facts.headers.read import read_model_facts
from ridgeline.models.table import RUNNABLE
from ridgeline.text.files import gguf_tokenizer

MOST_SECONDS, MOST_BYTES = 0.1, 256 << 20


def seed_file(path: Path, vocabulary: int = 300) -> bytes:
    """A small model header with all that a real one has: arrays of strings and numbers, tensors of several types."""
    import gguf
    import numpy as np

    writer = gguf.GGUFWriter(path, "gemma3")
    writer.add_block_count(1)
    writer.add_context_length(128)
    writer.add_embedding_length(32)
    writer.add_feed_forward_length(64)
    writer.add_head_count(2)
    writer.add_head_count_kv(1)
    writer.add_key_length(16)
    writer.add_value_length(16)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_sliding_window(8)
    writer.add_tokenizer_model("llama")
    writer.add_token_list([f"<0x{i:02X}>" if i < 256 else f"t{i}" for i in range(vocabulary)])
    writer.add_token_scores([float(-i) for i in range(vocabulary)])
    writer.add_token_types([6 if i < 256 else 1 for i in range(vocabulary)])
    writer.add_bos_token_id(256)
    writer.add_eos_token_id(257)
    writer.add_unk_token_id(258)
    sizes = {"hidden": 32, "queries": 32, "keys": 16, "head": 16, "ffn": 64, "": 0}
    layer = [(f"blk.0.{name}", tuple(sizes[each] for each in dims)) for name, *dims in RUNNABLE["gemma3"].tensors]
    for name, shape in [("token_embd", (vocabulary, 32)), ("output_norm", (32, 0)), *layer]:
        writer.add_tensor(f"{name}.weight", np.zeros([size for size in shape if size], np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path.read_bytes()


def mutate(rng: random.Random, whole: bytes, header_bytes: int) -> bytes:
    raw = bytearray(whole)
    for _ in range(rng.choice((1, 1, 1, 2, 5))):
        at = rng.randrange(max(1, min(header_bytes, len(raw))))
        match rng.randrange(5):
            case 0:
                raw[at] = rng.randrange(256)
            case 1:
                raw[at : at + 8] = rng.choice((0, 1, 2**31, 2**32 - 1, 2**61, 2**63, 2**64 - 1)).to_bytes(8, "little")
            case 2:
                del raw[at : at + rng.randrange(1, 64)]
            case 3:
                raw[at:at] = raw[at : at + rng.randrange(1, 64)]
            case 4:
                del raw[1 + rng.randrange(len(raw)) :]
    return bytes(raw)


def worst_case(tmp_path: Path, count: int) -> tuple[float, int]:
    """Slowest read in seconds of processor time, and the number of refusals, among `count` mutated files: header, facts, tokenizer."""
    whole = seed_file(tmp_path / "seed.gguf")
    facts = model_facts(read_header(tmp_path / "seed.gguf"))
    header_bytes = min(tensor.offset for tensor in facts.tensors.values())
    rng, slowest, refused = random.Random(7), 0.0, 0
    path = tmp_path / "mutant.gguf"
    for _ in range(count):
        path.write_bytes(mutate(rng, whole, header_bytes))
        began = time.process_time()
        try:
            header = read_header(path)
            model_facts(header)
            gguf_tokenizer(header)
        except RidgelineError:
            refused += 1
        slowest = max(slowest, time.process_time() - began)
    return slowest, refused


def test_mutants(tmp_path: Path) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    slowest, refused = worst_case(tmp_path, 700)
    assert 350 < refused < 700
    assert slowest <= MOST_SECONDS
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024 <= MOST_BYTES


@pytest.mark.parametrize("architecture", RUNNABLE)
def test_mutants_of_every_architecture(architecture: str, tmp_path: Path) -> None:
    extra = {f"{name}.weight": (8,) for name in RUNNABLE[architecture].rope_tensors}
    file = model_file({"general.file_type": value("u32", 0)}, dict(extra), architecture)
    whole, rng, path, slowest, refused = file.build(), random.Random(3), tmp_path / "mutant.gguf", 0.0, 0
    for _ in range(200):
        path.write_bytes(mutate(rng, whole, len(whole) - len(file.data)))
        began = time.process_time()
        try:
            read_model_facts(path)
        except RidgelineError:
            refused += 1
        slowest = max(slowest, time.process_time() - began)
    assert refused > 100
    assert slowest <= MOST_SECONDS


@pytest.mark.night
def test_many_mutants(tmp_path: Path) -> None:
    slowest, refused = worst_case(tmp_path, 20_000)
    print(f"20,000 files, {refused} refused, slowest {slowest * 1e3:.1f} ms")
    assert slowest <= MOST_SECONDS
