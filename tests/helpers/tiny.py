"""A tiny random Gemma 3 for tests: its weights, its GGUF file, a plain model of it, and a driver that steps a runner by hand."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice, product
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ridgeline.compute.exact.cache import allocate_kv
from ridgeline.compute.exact.runner import NumpyRunner
from ridgeline.compute.graph import StepInputs
from ridgeline.compute.load.record import record
from ridgeline.compute.load.weights import map_weights
from ridgeline.compute.quant.weight import DenseWeight, Weight
from ridgeline.compute.states import StateCache, states_of
from ridgeline.core.plan import KVShape
from ridgeline.facts.headers.read import read_model_facts
from ridgeline.facts.model import ModelFacts
from ridgeline.planning.memory import kv_groups

if TYPE_CHECKING:
    import gguf


@dataclass(frozen=True)
class Tiny:
    """Dimensions. Seven layers: six with a window, one full, hence seven KV groups of one layer."""

    layers: int = 7
    hidden: int = 64
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 16
    ffn: int = 96
    vocab: int = 300
    window: int = 4
    context: int = 512
    eps: float = 1e-6


def tiny_weights(size: Tiny, seed: int = 0) -> dict[str, np.ndarray]:
    """fp32 by GGUF name, in the file's row-major shapes; norm weights as GGUF has them, the + 1 included."""
    random = np.random.default_rng(seed)

    def normal(*shape: int, spread: float) -> np.ndarray:
        return (random.standard_normal(shape) * spread).astype(np.float32)

    def matrix(rows: int, columns: int) -> np.ndarray:
        return normal(rows, columns, spread=columns**-0.5)

    def norm(width: int) -> np.ndarray:
        return 1 + normal(width, spread=0.2)

    queries, keys = size.heads * size.head_dim, size.kv_heads * size.head_dim
    weights = {"token_embd": normal(size.vocab, size.hidden, spread=0.3)}
    for i in range(size.layers):
        layer = {
            "attn_norm": norm(size.hidden),
            "attn_q": matrix(queries, size.hidden),
            "attn_k": matrix(keys, size.hidden),
            "attn_v": matrix(keys, size.hidden),
            "attn_q_norm": norm(size.head_dim),
            "attn_k_norm": norm(size.head_dim),
            "attn_output": matrix(size.hidden, queries),
            "post_attention_norm": norm(size.hidden),
            "ffn_norm": norm(size.hidden),
            "ffn_gate": matrix(size.ffn, size.hidden),
            "ffn_up": matrix(size.ffn, size.hidden),
            "ffn_down": matrix(size.hidden, size.ffn),
            "post_ffw_norm": norm(size.hidden),
        }
        weights |= {f"blk.{i}.{name}": values for name, values in layer.items()}
    weights["output_norm"] = norm(size.hidden)
    return {f"{name}.weight": values for name, values in weights.items()}


def write_tiny(
    path: Path, size: Tiny | None = None, *, seed: int = 0, kind: str = "F32", down: str = "", order: Sequence[int] = ()
) -> Path:
    """A GGUF file of the tiny model with a byte vocabulary; `kind` is the stored type of its matrices, `down` of ffn_down; `order`: its
    ids in another order."""
    import gguf  # here: kernels are tested where it is not installed

    size = size or Tiny()
    writer = gguf.GGUFWriter(path, "gemma3")
    writer.add_context_length(size.context)
    writer.add_embedding_length(size.hidden)
    writer.add_block_count(size.layers)
    writer.add_feed_forward_length(size.ffn)
    writer.add_head_count(size.heads)
    writer.add_head_count_kv(size.kv_heads)
    writer.add_key_length(size.head_dim)
    writer.add_value_length(size.head_dim)
    writer.add_layer_norm_rms_eps(size.eps)
    writer.add_rope_freq_base(1_000_000.0)
    writer.add_sliding_window(size.window)
    add_vocabulary(writer, size.vocab, order)
    for name, values in tiny_weights(size, seed).items():
        values = values[list(order)] if order and name == "token_embd.weight" else values
        stored = gguf.GGMLQuantizationType[down if down and "ffn_down" in name else kind]
        if values.ndim == 1 or kind == "F32":
            writer.add_tensor(name, values)
        else:
            writer.add_tensor(name, gguf.quants.quantize(values, stored), raw_dtype=stored)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def add_vocabulary(writer: "gguf.GGUFWriter", size: int, order: Sequence[int] = ()) -> None:
    """Four control tokens, 256 bytes, then letters and, as many as are wanted, what two and three of them make, as pieces; in `order`."""
    control = ["<pad>", "<eos>", "<bos>", "<unk>"]
    letters = [*"abcdefghijklmnopqrstuvwxyz", "▁", *"ABCDEFGHIJKLMNOPQRSTUVWXYZ"]
    marked = [f"▁{letter}" for letter in letters]
    longer = ("".join(each) for length in (2, 3) for each in product(letters[:26], repeat=length))
    pieces = [*islice(chain(letters, marked, longer), max(0, size - 260))]
    tokens = [*control, *(f"<0x{byte:02X}>" for byte in range(256)), *pieces]
    writer.add_tokenizer_model("llama")
    scores, types = [0.0] * 260 + [-float(i) for i in range(len(pieces))], [3, 3, 3, 2] + [6] * 256 + [1] * len(pieces)
    order = list(order) or list(range(len(tokens)))
    writer.add_token_list([tokens[each] for each in order])
    writer.add_token_scores([scores[each] for each in order])
    writer.add_token_types([types[each] for each in order])
    writer.add_bos_token_id(order.index(2))
    writer.add_eos_token_id(order.index(1))
    writer.add_unk_token_id(order.index(3))
    writer.add_add_bos_token(True)
    writer.add_add_space_prefix(False)


def dense(facts: ModelFacts) -> dict[str, Weight]:
    """All weights of a file as fp32."""
    return {name: DenseWeight(weight.dense()) for name, weight in map_weights(facts).items()}


def plain_logits(facts: ModelFacts, weights: Mapping[str, Weight], ids: Sequence[int]) -> np.ndarray:
    """Logits [tokens, vocabulary] of one sequence in double precision, written straight from the paper: no cache, no batch."""
    w = {name: weight.dense().astype(np.float64) for name, weight in weights.items()}

    def norm(x: np.ndarray, weight: np.ndarray) -> np.ndarray:
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + facts.eps) * weight

    def rotate(x: np.ndarray, base: float) -> np.ndarray:
        half = facts.head_dim // 2
        angle = np.arange(len(x))[:, None] / base ** (np.arange(half) / half)
        turn = np.exp(1j * angle)[:, None]
        turned = (x[..., :half] + 1j * x[..., half:]) * turn
        return np.concatenate([turned.real, turned.imag], axis=-1)

    def gelu(x: np.ndarray) -> np.ndarray:
        return x / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))

    x = w["token_embd.weight"][list(ids)] * np.sqrt(facts.hidden)
    apart = np.arange(len(ids))[:, None] - np.arange(len(ids))
    for i, kind in enumerate(facts.layer_kinds):
        layer = {name.split(".")[2]: values for name, values in w.items() if name.startswith(f"blk.{i}.")}
        a = norm(x, layer["attn_norm"])
        q, k, v = ((a @ layer[f"attn_{part}"].T).reshape(len(ids), -1, facts.head_dim) for part in "qkv")
        q = rotate(norm(q, layer["attn_q_norm"]), facts.rope[kind].base)
        k = rotate(norm(k, layer["attn_k_norm"]), facts.rope[kind].base)
        k, v = (np.repeat(part, facts.heads // facts.kv_heads, axis=1) for part in (k, v))
        scores = np.einsum("qhd,khd->hqk", q, k) * facts.head_dim**-0.5
        seen = (apart >= 0) & ((apart < facts.window) | (kind == "full"))
        weight = np.exp(np.where(seen, scores, -np.inf) - np.where(seen, scores, -np.inf).max(-1, keepdims=True))
        o = np.einsum("hqk,khd->qhd", weight / weight.sum(-1, keepdims=True), v).reshape(len(ids), -1)
        x = x + norm(o @ layer["attn_output"].T, layer["post_attention_norm"])
        f = norm(x, layer["ffn_norm"])
        h = gelu(f @ layer["ffn_gate"].T) * (f @ layer["ffn_up"].T)
        x = x + norm(h @ layer["ffn_down"].T, layer["post_ffw_norm"])
    return norm(x, w["output_norm.weight"]) @ w["token_embd.weight"].T


def log_softmax(logits: np.ndarray) -> np.ndarray:
    """Log-probabilities in double precision, along the last axis."""
    logits = logits.astype(np.float64)
    logits = logits - logits.max(-1, keepdims=True)
    return logits - np.log(np.exp(logits).sum(-1, keepdims=True))


@dataclass
class Driver:
    """Steps a numpy runner by hand: sequences by number, blocks in a scattered order, every position of a group kept.

    Tokens of a step are whatever the caller says, so that every way to cut and to mix sequences can be tried.
    """

    facts: ModelFacts
    weights: Mapping[str, Weight]
    block_tokens: int = 16
    blocks: int = 2048
    threads: int = 1
    rows: int = 32
    """Sequences of a model with recurrent states."""
    computed: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.shape = KVShape(kv_groups(self.facts), self.block_tokens, self.blocks, b"")
        self.open()
        self._tables: dict[int, list[list[int]]] = {}
        self._places: dict[int, int] = {}
        self._free: Iterator[int] = iter(np.random.default_rng(3).permutation(np.arange(1, self.blocks + 1)).tolist())

    def open(self) -> None:
        """Makes the runner and its cache."""
        self.runner = NumpyRunner(record(self.facts)["step"], self.weights, self.shape, threads=self.threads)
        self.kv = allocate_kv(self.shape, self.facts.cached, self.states())
        self.kv.pool[:, :, : self.block_tokens] = np.nan  # block 0 is never read

    def states(self) -> StateCache | None:
        """Room for recurrent states, which hold what no sequence may read."""
        found = states_of(self.facts, self.rows, 1)
        for array in () if found is None else (*found.tails.values(), *found.states.values()):
            array[:] = np.nan
        return found

    def inputs(self, chunks: Sequence[tuple[int, Sequence[int]]], select: Sequence[int] | None = None) -> StepInputs:
        """(sequence, ids) a row: the next ids of each sequence. All positions are selected unless `select` says which."""
        starts = [self.computed.get(sequence, 0) for sequence, _ in chunks]
        counts = [len(ids) for _, ids in chunks]
        lengths = np.add(starts, counts)
        for (sequence, _), length in zip(chunks, lengths, strict=True):
            tables = self._tables.setdefault(sequence, [[] for _ in self.shape.groups])
            for table in tables:
                table += [next(self._free) for _ in range(-(-int(length) // self.block_tokens) - len(table))]
            self.computed[sequence] = int(length)
        row = np.repeat(np.arange(len(chunks)), counts)
        positions = np.concatenate([np.arange(start, length) for start, length in zip(starts, lengths, strict=True)])
        tables = [np.zeros((len(chunks), -(-int(lengths.max()) // self.block_tokens)), np.int32) for _ in self.shape.groups]
        for number, (sequence, _) in enumerate(chunks):
            for array, block_ids in zip(tables, self._tables[sequence], strict=True):
                array[number, : len(block_ids)] = block_ids
        block, offset = positions // self.block_tokens, positions % self.block_tokens
        chosen = range(len(positions)) if select is None else select
        places = [self._places.setdefault(sequence, len(self._places)) for sequence, _ in chunks]
        return StepInputs(
            ids=np.concatenate([np.asarray(ids, np.int32) for _, ids in chunks]),
            positions=positions.astype(np.int32)[None],
            row_of_token=row.astype(np.int32),
            cu_q=np.cumsum([0, *counts]).astype(np.int32),
            kv_len=lengths.astype(np.int32),
            tables=tuple(tables),
            slots=tuple(table[row, block] * np.int64(self.block_tokens) + offset for table in tables),
            select=np.array(chosen, np.int32),
            state_rows=np.array(places, np.int32),
        )

    def step(self, *chunks: tuple[int, Sequence[int]], select: Sequence[int] | None = None) -> np.ndarray:
        """Computes the next ids of some sequences; logits [selected, vocabulary]."""
        return self.runner.run(self.inputs(chunks, select), self.kv)["logits"]

    def feed(self, sequence: int, ids: Sequence[int], chunk: int) -> np.ndarray:
        """Computes `ids` in chunks, alone; logits [tokens, vocabulary]."""
        return np.concatenate([self.step((sequence, ids[at : at + chunk])) for at in range(0, len(ids), chunk)])

    def slot(self, sequence: int, group: int, position: int) -> int:
        """Where a group keeps K and V of a position."""
        block_id = self._tables[sequence][group][position // self.block_tokens]
        return block_id * self.block_tokens + position % self.block_tokens


def open_tiny(path: Path, size: Tiny | None = None, **options: object) -> tuple[ModelFacts, dict[str, Weight]]:
    """Writes the tiny model to `path` and reads it back: facts and fp32 weights."""
    facts = read_model_facts(write_tiny(path, size, **options))  # type: ignore[arg-type]
    return facts, dense(facts)
