"""GGUF files for tests, written byte by byte so that any number in them can be wrong."""

import struct
from dataclasses import dataclass, field
from math import prod

from ridgeline.facts.headers.latent import latent_sizes
from ridgeline.facts.model import Latent
from ridgeline.models.table import RUNNABLE

TYPES = {"u8": 0, "i8": 1, "u16": 2, "i16": 3, "u32": 4, "i32": 5, "f32": 6, "bool": 7, "str": 8, "arr": 9, "u64": 10, "i64": 11, "f64": 12}
CODES = {"u8": "B", "i8": "b", "u16": "H", "i16": "h", "u32": "I", "i32": "i", "f32": "f", "bool": "B", "u64": "Q", "i64": "q", "f64": "d"}


def string(text: str | bytes) -> bytes:
    raw = text if isinstance(text, bytes) else text.encode()
    return struct.pack("<Q", len(raw)) + raw


def value(kind: str, content: object) -> bytes:
    """One typed metadata value, type id in front; an array is ("arr", (kind, items))."""
    return struct.pack("<I", TYPES[kind]) + payload(kind, content)


def payload(kind: str, content: object) -> bytes:
    if kind == "str":
        return string(content)  # type: ignore[arg-type]
    if kind == "arr":
        inner, items = content  # type: ignore[misc]
        return struct.pack("<IQ", TYPES[inner], len(items)) + b"".join(payload(inner, item) for item in items)
    return struct.pack("<" + CODES[kind], content)


@dataclass
class File:
    """A GGUF file in parts; `build` joins them. Defaults make a small, valid file."""

    magic: bytes = b"GGUF"
    version: int = 3
    pairs: list[tuple[str | bytes, bytes]] = field(default_factory=lambda: [("general.architecture", value("str", "tiny"))])
    tensors: list[tuple[str, tuple[int, ...], int, int]] = field(default_factory=lambda: [("a", (4,), 0, 0), ("b", (32, 2), 8, 32)])
    """(name, shape innermost first, type id, offset)."""
    data: bytes = bytes(100)
    tensor_count: int | None = None
    pair_count: int | None = None

    def build(self) -> bytes:
        tensors = self.tensor_count if self.tensor_count is not None else len(self.tensors)
        pairs = self.pair_count if self.pair_count is not None else len(self.pairs)
        head = self.magic + struct.pack("<IQQ", self.version, tensors, pairs)
        head += b"".join(string(key) + content for key, content in self.pairs)
        for name, shape, kind, offset in self.tensors:
            head += string(name) + struct.pack("<I", len(shape)) + struct.pack(f"<{len(shape)}Q", *shape) + struct.pack("<IQ", kind, offset)
        return head + bytes(-len(head) % 32) + self.data


def _whole(name: str) -> str:
    return name if name.endswith(".bias") or name == "ssm_a" else f"{name}.weight"


def model_file(
    changes: dict[str, bytes | None] | None = None,
    tensors: dict[str, tuple[int, ...] | None] | None = None,
    architecture: str = "gemma3",
) -> File:
    """A whole two-layer model in F32 zeros; the second layer has experts if the architecture has, the first a recurrence. `changes` sets
    metadata (None: leaves it out), `tensors` sets shapes, outermost first."""
    row = RUNNABLE[architecture]
    sizes = {"hidden": 32, "queries": 32, "keys": 16, "head": 16, "heads": 2, "ffn": 64, "context": 128}
    sizes |= {"experts": 4, "expert_ffn": 32, "shared_ffn": 32, "shared_gates": 1, "normed_head": 16, "corrected": 0}
    sizes |= latent_sizes(Latent(rank=24, rotary=8, plain=8, value=16), heads=2, query_rank=0)
    sizes |= {"gated_queries": 64, "in_proj": 0, "apart_channels": 48, "apart_gates": 32, "channels": 48, "kernel": 4, "inner": 32}
    sizes |= {"beta_alpha": 4, "state_heads": 2}
    numbers = {
        "block_count": 2, "context_length": 128, "embedding_length": 32, "feed_forward_length": 64, "attention.head_count": 2,
        "attention.head_count_kv": 1, "attention.key_length": 16, "attention.value_length": 16, "attention.sliding_window": 8,
    }  # fmt: skip
    if "sparse" in row.parts:
        numbers |= {"expert_count": 4, "expert_used_count": 2, "expert_feed_forward_length": 32, "expert_shared_feed_forward_length": 32}
    if row.fused.get("attn_kv_b"):
        numbers |= {"attention.key_length": 32, "attention.value_length": 24, "attention.kv_lora_rank": 24, "rope.dimension_count": 8}
        numbers |= {"attention.key_length_mla": 16, "attention.value_length_mla": 16}
    if row.recurrence:
        numbers |= {"ssm.inner_size": 32, "ssm.state_size": 8, "ssm.group_count": 1, "ssm.time_step_rank": 2, "ssm.conv_kernel": 4}
    first = "sparse" if "sparse" in row.parts and "dense" not in row.parts else "dense"
    parts = (("state" if row.recurrence else "attention", first), ("attention", "sparse"))
    layers = [(i, (*row.tensors, *(each for part in own for each in row.parts.get(part, ())))) for i, own in enumerate(parts)]
    pairs: dict[str, bytes | None] = {"general.architecture": value("str", architecture)}
    pairs |= {f"{architecture}.{key}": value("u32", number) for key, number in numbers.items()}
    pairs[f"{architecture}.{row.eps_key}"] = value("f32", 1e-6)
    pairs["tokenizer.ggml.tokens"] = value("arr", ("str", ["a", "b", "c"]))
    shapes: dict[str, tuple[int, ...] | None] = {"token_embd.weight": (4, 32)}
    shapes |= {f"{name}.weight": tuple(sizes[n] for n in names) for name, *names in row.outer_tensors}
    shapes |= {f"{name}.bias": (32,) for name in row.outer_biases}
    shapes |= {f"blk.{i}.{_whole(name)}": tuple(sizes[n] for n in names) for i, rows in layers for name, *names in rows}
    always = [name for name, when in row.biases.items() if when == "always"]
    shapes |= {
        f"blk.{i}.{name}.bias": tuple(sizes[n] for n in names[: max(1, len(names) - 1)])
        for i, rows in layers
        for name, *names in rows
        if name in always
    }
    for fused, parts in row.fused.items():
        if fused == "attn_kv_b":  # of old files
            continue
        for stem, suffix in ((f"blk.{i}.", suffix) for i in range(2) for suffix in ("weight", "bias")):
            held = [shapes.pop(f"{stem}{part}.{suffix}", None) for part in parts]
            if held[0] is not None:
                shapes[f"{stem}{fused}.{suffix}"] = (sum(shape[0] for shape in held if shape), *held[0][1:])
    entries, offset = [], 0
    for name, shape in (shapes | (tensors or {})).items():
        if shape is not None and prod(shape):
            entries.append((name, tuple(reversed(shape)), 0, offset))
            offset += -(-4 * prod(shape) // 32) * 32
    kept = [(key, content) for key, content in (pairs | (changes or {})).items() if content is not None]
    return File(pairs=kept, tensors=entries, data=bytes(offset))
