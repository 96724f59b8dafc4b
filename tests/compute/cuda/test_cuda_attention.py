"""Attention over the paged cache against the reference: every type of cache, every cut, and what must be equal bit for bit."""

from typing import Any

import numpy as np
import pytest
import torch
from paged import OPERANDS, attend, empty_cache, stored
from tensors import DEVICE, error, numbers, on_device, poisoned

from ridgeline.compute.cuda.triton import attention as triton_attention
from ridgeline.compute.ops.attention import attention as definition
from ridgeline.compute.ops.attention import paged_sample
from ridgeline.compute.ops.definition import Sample, floats

TOLERANCE = {kind: definition.tolerance[f"cuda {'bf16' if kind in ('fp8', 'int8') else kind}"] for kind in OPERANDS}
"""By the type of the cache: that of the operands that are made of it."""


COUNTERS = triton_attention.counters_of(64, 8, 4, DEVICE)


def owned(sample: Sample) -> dict[str, Any]:
    """A sample's arguments; what no sequence owns, and what a window has left behind, is NaN."""
    arguments = dict(sample.arguments)
    mine, block_tokens = np.zeros(len(arguments["keys"]), bool), arguments["block_tokens"]
    for table, length, count in zip(arguments["tables"], arguments["kv_len"], np.diff(arguments["cu_q"]), strict=True):
        first = max(0, length - count - arguments["window"] + 1) if arguments["window"] else 0
        at = np.arange(first, length)
        mine[table[at // block_tokens] * block_tokens + at % block_tokens] = True
    for name in ("keys", "values"):
        arguments[name] = np.where(mine[:, None, None], arguments[name], np.float32(np.nan))
    return arguments


def with_heads(sample: Sample, heads: int, kv_heads: int, head_dim: int, latent: int = 0) -> dict[str, Any]:
    """A sample's rows and blocks with other heads; over a latent, if values have so many of the keys' numbers."""
    arguments, slots = dict(sample.arguments), len(sample.arguments["keys"])
    arguments |= {name: floats(seed, slots, kv_heads, head_dim) for name, seed in (("keys", 2), ("values", 3))}
    arguments |= {"q": floats(1, len(arguments["q"]), heads * head_dim), "head_dim": head_dim, "scale": head_dim**-0.5}
    if latent:
        arguments |= {"values": arguments["keys"][..., :latent], "value_dim": latent}
    return owned(Sample(sample.name, arguments))


def against_the_reference(arguments: dict[str, Any], kind: str, **how: Any) -> float:
    """The greatest error against the reference over what the cache and the queries hold once rounded."""
    dtype = OPERANDS[kind]
    cache = stored(arguments["keys"], arguments["values"], arguments["block_tokens"], kind)
    keys, values = (x.cpu().numpy() for x in cache.read(0, torch.arange(len(arguments["keys"]), device=DEVICE)))
    theirs = definition.reference(**{**arguments, "q": numbers(on_device(arguments["q"], dtype)), "keys": keys, "values": values})
    assert isinstance(theirs, np.ndarray)
    out = attend(arguments, cache, dtype, **how)
    assert torch.isnan(out[len(theirs) :].float()).all()  # tokens that no row owns
    return error(out[: len(theirs)], theirs)


@pytest.mark.parametrize("kind", TOLERANCE)
@pytest.mark.parametrize(
    ("rows", "heads", "head_dim", "window", "softcap"),
    [
        ([(700, 1), (0, 1), (255, 1), (256, 1)], (8, 2), 16, 0, 0.0),
        ([(700, 1), (40, 1)], (2, 2), 20, 300, 0.0),
        ([(300, 3), (0, 2), (511, 4)], (6, 2), 32, 0, 2.0),
        ([(60, 37), (0, 65), (130, 1)], (4, 1), 16, 50, 0.0),
        ([(600, 1), (0, 65), (0, 1)], (4, 1), 16, 0, 0.0),
    ],
    ids=["decode", "decode, window", "verification, softcap", "mixed, window", "mixed, decode in splits"],
)
def test_types_of_cache(kind: str, rows: list[tuple[int, int]], heads: tuple[int, int], head_dim: int, window: int, softcap: float) -> None:
    """Long enough for several splits; padded as a graph pads: rows without tokens, tokens without rows."""
    sample = paged_sample("", rows, window=window, softcap=softcap, block_tokens=16)
    assert against_the_reference(with_heads(sample, *heads, head_dim), kind, pad=2) < TOLERANCE[kind]


@pytest.mark.parametrize(
    ("kind", "rows"),
    [
        ("f32", [(600, 1), (0, 33)]),
        ("bf16", [(700, 1), (0, 1), (256, 1)]),
        ("fp16", [(300, 3), (0, 2)]),
        ("fp8", [(300, 1), (0, 1)]),
        ("int8", [(300, 1), (0, 20)]),
    ],
)
def test_latents(kind: str, rows: list[tuple[int, int]]) -> None:
    """Keys whose first numbers are values too; the heads of a token are several programs'."""
    sample = paged_sample("", rows, block_tokens=16)
    assert against_the_reference(with_heads(sample, 40, 1, 28, latent=20), kind, pad=2) < TOLERANCE[kind]


def test_longest() -> None:
    """One query over many splits, in programs of their own."""
    sample = paged_sample("", [(4099, 1)], block_tokens=32)
    assert against_the_reference(with_heads(sample, 4, 1, 16), "bf16") < TOLERANCE["bf16"]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_nothing_to_do(dtype: torch.dtype) -> None:
    """No rows: no launch. A row whose sequence is empty: zeros."""
    sample = paged_sample("", [(5, 1)], block_tokens=16).arguments
    cache = empty_cache("bf16", 2, 16, 2, 8)
    none = {"q": sample["q"][:0], "cu_q": np.zeros(1, np.int32), "kv_len": np.zeros(0, np.int32), "tables": np.zeros((0, 1), np.int32)}
    assert attend({**sample, **none}, cache, dtype).shape == (0, 32)
    assert torch.equal(attend({**sample, "kv_len": np.zeros(1, np.int32)}, cache, dtype), torch.zeros(1, 32, dtype=dtype, device=DEVICE))


def test_strided_rows() -> None:
    """Queries as columns of a wider buffer, written over: `out` may be q."""
    arguments = with_heads(paged_sample("", [(20, 1), (3, 4)], block_tokens=16), 4, 2, 16)
    cache = stored(arguments["keys"], arguments["values"], 16, "f32")
    expected, wide = attend(arguments, cache, torch.float32), poisoned(5, 100)
    q = wide[:, 20:84]
    q.copy_(on_device(arguments["q"]))
    integers = [on_device(x) for x in (arguments["tables"], np.arange(2, dtype=np.int32), arguments["cu_q"], arguments["kv_len"])]
    how = {name: arguments[name] for name in ("head_dim", "scale", "window", "softcap")}
    triton_attention.attention(q, cache.layer(0), *integers, out=q, work=None, counters=COUNTERS, max_q=4, **how)()
    assert torch.equal(wide[:, 20:84], expected)
    assert torch.isnan(wide[:, :20]).all() and torch.isnan(wide[:, 84:]).all()


class Sequence:
    """One sequence in a cache, beside a stranger; computed in any chunks."""

    LENGTH, HEADS, KV_HEADS, WIDTH = 600, 2, 1, 16

    def __init__(self, kind: str) -> None:
        blocks = -(-self.LENGTH // 16)
        block_ids = np.random.default_rng(4).permutation(np.arange(1, 2 * blocks + 1)).astype(np.int32)
        self.tables = np.stack([block_ids[blocks:], block_ids[:blocks]])
        shape = ((2 * blocks + 1) * 16, self.KV_HEADS, self.WIDTH)
        self.cache, self.dtype = stored(floats(1, *shape), floats(2, *shape), 16, kind), OPERANDS[kind]
        self.q = floats(3, self.LENGTH, self.HEADS * self.WIDTH)

    def chunk(self, start: int, end: int, window: int, *, stranger: int = 0, invariant: bool = True) -> torch.Tensor:
        """Queries start … end of the sequence; before them, `stranger` tokens of the other sequence, which has 300."""
        q = np.concatenate([floats(5, stranger, self.q.shape[1]), self.q[start:end]])
        rows = {"tables": self.tables, "cu_q": np.int32([0, stranger, len(q)]), "kv_len": np.int32([300, end])}
        own = {"head_dim": self.WIDTH, "scale": 0.25, "window": window, "softcap": 0.0}
        return attend({"q": q, **rows, **own}, self.cache, self.dtype, invariant=invariant)[stranger:]


@pytest.mark.parametrize(("kind", "window"), [("f32", 0), ("bf16", 0), ("bf16", 70), ("int8", 300)])
def test_invariant(kind: str, window: int) -> None:
    """A token has the same bits in a prompt computed at once, in chunks, alone, beside a stranger, in splits of their own or not."""
    sequence = Sequence(kind)
    first = 505  # a split ends at 512
    whole = sequence.chunk(first, 530, window)
    for start, end, stranger in ((first, 511, 3), (511, 512, 0), (512, 513, 1), (513, 530, 9)):
        assert torch.equal(sequence.chunk(start, end, window, stranger=stranger), whole[start - first : end - first]), (start, end)


def test_decode_does_not_depend_on_the_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the batch-invariant mode is off: one program for all splits or one for each give the same bits."""
    sequence = Sequence("bf16")
    alone = sequence.chunk(599, 600, 0, invariant=False)
    assert torch.equal(sequence.chunk(599, 600, 0, stranger=1, invariant=False), alone)
    for limit in (0, 1 << 40):
        monkeypatch.setattr(triton_attention, "WORK_LIMIT", limit)
        assert torch.equal(sequence.chunk(599, 600, 0, invariant=False), alone)
    monkeypatch.setattr(triton_attention, "LONGEST_KEYS", 300)
    monkeypatch.setattr(triton_attention, "SPLIT_BELOW", 0)
    assert torch.equal(sequence.chunk(599, 600, 0, invariant=False), alone)


@pytest.mark.parametrize("window", [1, 65])
def test_edge_of_the_window(window: int) -> None:
    """The key `window - 1` behind is seen, the one `window` behind is not, whatever it holds."""
    for distance, seen in [(window - 1, True), (window, False)]:
        sequence = Sequence("f32")
        before, at = sequence.chunk(599, 600, window), 599 - distance
        sequence.cache.layer(0).values[sequence.tables[1, at // 16], at % 16] = torch.nan
        after = sequence.chunk(599, 600, window)
        assert torch.isnan(after).any() == seen
        assert torch.equal(before, after) != seen


def test_schedules() -> None:
    """Tiles and programs by shape: what stands in the tables is what a step gets."""
    llama = {"heads": 32, "kv_heads": 8, "head_dim": 128, "device": torch.device("cpu")}

    def made(tokens: int, rows: int, **sizes: Any) -> tuple[triton_attention.Schedule, ...]:
        return triton_attention.make_schedules(tokens, rows, **sizes, **llama)

    (decode,) = made(256, 256, max_q=1, max_kv=2048)
    assert (decode.tile.queries, decode.blocks, decode.one_block, decode.split_programs, decode.splits) == (16, 256, True, 0, 8)
    (alone,) = made(1, 1, max_q=1, max_kv=131072)
    assert (alone.tile, alone.split_programs, alone.splits) == (decode.tile, 132, 512)
    assert made(1, 1, max_q=1, max_kv=200)[0].split_programs == 0
    (verified,) = made(32, 8, max_q=4, max_kv=2048)
    assert (verified.tile.queries, verified.one_block, verified.fold) == (16, True, True)
    fixed = [made(t, r, max_q=q, max_kv=4096, invariant=True) for t, r, q in ((256, 256, 1), (2048, 1, 2048), (40, 8, 9))]
    assert {(only.tile, only.fold) for (only,) in fixed} == {(decode.tile, True)}
    deepseek = {"heads": 128, "kv_heads": 1, "head_dim": 576, "latent": 512, "device": torch.device("cpu")}
    (latent,) = triton_attention.make_schedules(64, 64, max_q=1, max_kv=4096, **deepseek)
    assert (latent.tile.queries, latent.blocks, latent.split_programs) == (16, 64, 0), "64 rows x 8 parts of the heads fill the device"
    with pytest.raises(ValueError, match="512 dimensions, got 128 and 520"):
        triton_attention.make_schedules(1, 1, max_q=1, max_kv=64, **{**deepseek, "latent": 520})
    with pytest.raises(ValueError, match="at most 128 query heads"):
        triton_attention.make_schedules(1, 1, max_q=1, max_kv=64, **{**llama, "heads": 129, "kv_heads": 1})


def test_schedules_of_mixed_steps() -> None:
    """Rows of one token are not computed with the tiles of prompts, and no row keeps one program for all of its many keys."""
    llama = {"heads": 32, "kv_heads": 8, "head_dim": 128, "device": torch.device("cpu")}
    (prompt,) = triton_attention.make_schedules(2048, 1, max_q=2048, max_kv=2048, **llama)
    assert (prompt.tile.queries, prompt.blocks, prompt.fold, prompt.row_tokens) == (128, 65, False, "any")
    decode, prompts = triton_attention.make_schedules(552, 41, max_q=512, max_kv=32768, **llama)
    assert (decode.tile.queries, decode.blocks, decode.row_tokens, decode.split_programs) == (16, 41, "one", 8)
    assert (prompts.tile.queries, prompts.row_tokens) == (128, "several")
    (long,) = triton_attention.make_schedules(41, 41, max_q=1, max_kv=32768, **llama)
    assert long.split_programs == 8
    work = triton_attention.work_bytes(552, 41, max_q=512, max_kv=32768, **llama)
    assert work == 4 * 41 * 32 * 128 * 130, "partial results are kept by row"


@pytest.mark.parametrize(
    ("capability", "row"), [(80, 80), (86, 86), (87, 80), (89, 86), (90, 90), (100, 90), (103, 90), (120, 86), (121, 86)]
)
def test_tiles_of_every_device(capability: int, row: int) -> None:
    assert triton_attention.table_row(capability) == row


def test_too_little_scratch() -> None:
    arguments = with_heads(paged_sample("", [(600, 1)], block_tokens=16), 4, 2, 16)
    cache = stored(arguments["keys"], arguments["values"], 16, "f32")
    q, integers = on_device(arguments["q"]), [on_device(arguments[name]) for name in ("tables", "cu_q", "kv_len")]
    integers.insert(1, integers[2])  # never read
    how = {name: arguments[name] for name in ("head_dim", "scale", "window", "softcap")}
    with pytest.raises(ValueError, match="bytes of scratch, got 8"):
        triton_attention.attention(q, cache.layer(0), *integers, out=q, work=poisoned(2), counters=COUNTERS, max_q=1, **how)
