"""Shapes from GGUF headers of any architecture; headers without a whole model get typed errors."""

from array import array
from math import prod
from pathlib import Path

import pytest

from ridgeline.errors import ModelFormatError
from ridgeline.facts.files.formats import FORMATS
from ridgeline.facts.files.gguf import Header
from ridgeline.facts.files.gguf_values import Value
from ridgeline.facts.headers.gguf import describe_gguf
from ridgeline.facts.model import Experts, StateLayers, TensorFacts
from ridgeline.planning.formats import class_bytes

NOWHERE = Path("/nonexistent")


def header(arch: str, tensors: dict[str, tuple[int, ...]], kind: str = "Q8_0", **values: Value) -> Header:
    """The header of a file with these keys under `arch` and these tensors of one format."""
    metadata: dict[str, Value] = {
        "general.architecture": arch,
        **{f"{arch}.{key.replace('__', '.')}": value for key, value in values.items()},
    }
    table = {name: TensorFacts(name, kind, shape, NOWHERE, 0, FORMATS[kind].row_bytes(prod(shape))) for name, shape in tensors.items()}
    return Header(metadata, table, (NOWHERE,))


BASIC = {"block_count": 2, "embedding_length": 64, "attention__head_count": 4, "context_length": 128}
TENSORS = {"token_embd.weight": (100, 64), "blk.0.attn_q.weight": (64, 64), "blk.0.ffn_up.weight": (96, 64), "blk.0.ffn_norm.weight": (64,)}


def test_header_of_any_architecture() -> None:
    found = describe_gguf(header("stablelm", {**TENSORS, "output.weight": (100, 64)}, **BASIC, attention__head_count_kv=2))
    assert (found.attention_kind, found.widths.cached, found.layer_kinds, found.dtype) == ("GQA", 2 * 2 * 16, ("full", "full"), "q8_0")
    assert found.parameters == {"embedding": 6400, "head": 6400, "attention": 4096, "ffn": 6144, "experts": 0, "norms": 64}
    assert found.stored["ffn"] == 6144 // 32 * 34


@pytest.mark.parametrize(("kind", "bits"), [("Q8_0", 8.5), ("Q4_K", 4.625), ("IQ2_XXS", 4.5625), ("TQ1_0", 2.5625)])
def test_a_cpu_holds_what_its_kernels_read(kind: str, bits: float) -> None:
    """Blocks of some formats are larger there than in the file: of a file, and of a model whose format is asked for."""
    found = describe_gguf(header("llama", {"token_embd.weight": (256, 256), "blk.0.ffn_up.weight": (512, 256)}, kind, **BASIC))
    wanted = found.total_parameters * bits / 8
    assert sum(class_bytes(found, None, native=True).values()) == wanted
    assert sum(class_bytes(found, kind.lower(), native=True).values()) == wanted
    stored = FORMATS[kind].row_bytes(found.total_parameters)
    assert sum(class_bytes(found, None).values()) == sum(class_bytes(found, kind.lower()).values()) == stored


@pytest.mark.parametrize(
    ("arch", "window", "kinds"),
    [("gemma2", 16, "wf"), ("phi3", 16, "ww"), ("gemma3", 16, "ww"), ("llama", 0, "ff"), ("stablelm", 16, "ff")],
)
def test_windows_of_headers(arch: str, window: int, kinds: str) -> None:
    found = describe_gguf(header(arch, TENSORS, **BASIC, attention__sliding_window=window))
    assert "".join(kind[0] for kind in found.layer_kinds) == kinds


def test_latent_attention_and_experts_of_headers() -> None:
    keys = {"attention__kv_lora_rank": 32, "rope__dimension_count": 8, "attention__key_length": 40, "attention__value_length": 32}
    keys |= {"attention__key_length_mla": 24, "attention__value_length_mla": 16, "expert_count": 8, "expert_used_count": 2}
    found = describe_gguf(header("deepseek2", {**TENSORS, "blk.1.ffn_down_exps.weight": (8, 64, 32)}, **BASIC, **keys))
    widths = found.widths
    assert (found.attention_kind, widths.cached, widths.decode, widths.prefill) == ("MLA", 40, 4 * (40 + 32), 4 * (24 + 16))
    assert found.experts == Experts(8, 2, 1) and found.parameters["experts"] == 8 * 64 * 32
    assert found.active_parameters == found.total_parameters - 0.75 * 8 * 64 * 32


def test_heads_that_differ_by_layer() -> None:
    """OpenELM and DeciLM files have an array where others have a number."""
    keys = {**BASIC, "attention__head_count": array("i", [4, 8]), "attention__head_count_kv": array("i", [2, 4])}
    found = describe_gguf(header("openelm", TENSORS, **keys, feed_forward_length=array("i", [96, 128]), attention__key_length=16))
    assert (found.heads, found.kv_heads, found.ffn, found.widths.cached, found.widths.decode) == (8, 2, 128, 3 * 32, 6 * 32)
    assert found.layers * found.widths.cached == (2 + 4) * 32


def test_hybrids_of_headers() -> None:
    """Nemotron-H: zero KV heads where a layer is a recurrence or a feed-forward; Falcon-H1: both in every layer."""
    state = {"ssm__inner_size": 128, "ssm__state_size": 32, "ssm__conv_kernel": 4, "ssm__group_count": 2}
    tensors = {**TENSORS, "blk.0.ssm_in.weight": (424, 64), "blk.0.ssm_norm.weight": (128,), "blk.2.attn_k.weight": (32, 64)}
    keys = {**BASIC, "block_count": 3, "attention__head_count_kv": array("i", [0, 0, 2])}
    found = describe_gguf(header("nemotron_h", tensors, **keys, **state))
    assert (found.layer_kinds, found.kv_layers, found.widths.cached) == (("none", "none", "full"), 1, 2 * 2 * 16)
    assert found.state == StateLayers(1, 128 * 32, 3 * (128 + 2 * 2 * 32))
    assert found.parameters["attention"] == 4096 + 424 * 64 + 32 * 64
    beside = describe_gguf(header("falcon-h1", {**tensors, "blk.0.attn_k.weight": (32, 64)}, **BASIC, attention__head_count_kv=2, **state))
    assert (beside.layer_kinds, beside.state) == (("full", "full"), found.state)


@pytest.mark.parametrize(
    ("tensors", "values", "cause"),
    [
        ({}, {}, "token_embd"),
        (TENSORS, {"attention__head_count_kv": array("i", [1])}, "1 entries, 2 integers"),
        (TENSORS, {"attention__head_count_kv": array("d", [1, 2])}, "2 integers"),
        (TENSORS, {"attention__head_count_kv": array("i", [-1, 2])}, "integers of 0"),
        ({**TENSORS, "blk.0.ssm_in.weight": (4, 64)}, {}, "ssm.inner_size"),
        ({"token_embd.weight": (100, 64)}, {}, "no layers"),
        (TENSORS, {"block_count": 0}, "outside 1"),
        (TENSORS, {"expert_count": 4, "expert_used_count": 5}, "outside 1 … 4"),
    ],
)
def test_headers_without_a_whole_model_are_refused(tensors: dict[str, tuple[int, ...]], values: dict[str, Value], cause: str) -> None:
    with pytest.raises(ModelFormatError, match=cause):
        describe_gguf(header("llama", tensors, **{**BASIC, **values}))
