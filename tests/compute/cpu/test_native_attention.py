"""Native attention over the paged cache: near the reference, and bit for bit the same however a sequence is cut, stored and mixed."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from calls import Items, attention, kv_write
from hypothesis import given, settings
from hypothesis import strategies as st

from ridgeline.compute.cpu import ext
from ridgeline.compute.cpu.cache import DTYPES, allocate_native_kv, head_bytes, of_slots, record_width, widened
from ridgeline.compute.ops.attention import attention as definition
from ridgeline.compute.ops.attention import kv_write as write_definition
from ridgeline.compute.ops.attention import paged_sample
from ridgeline.compute.ops.definition import floats
from ridgeline.compute.runner import relative_error
from ridgeline.core.plan import KVGroup, KVShape
from ridgeline.facts.model import CachedHeads
from ridgeline.planning.memory import kv_head_bytes

LEVELS, TYPES = ext.isa_levels(), tuple(DTYPES)
LENGTH, HEADS, KV_HEADS, WIDTH = 600, 6, 2, 16
Q = floats(1, LENGTH, HEADS * WIDTH)
K, V = floats(2, LENGTH, KV_HEADS * WIDTH), floats(3, LENGTH, KV_HEADS * WIDTH)


def poisoned(blocks: int, kv_heads: int, block_tokens: int, head_dim: int, kind: str) -> np.ndarray:
    """Records whose every bit is set: NaN in fp32, in bf16 and in the scale of an int8 head."""
    shape = (blocks, kv_heads, block_tokens, record_width(kind, head_dim))
    return np.full((*shape, np.dtype(DTYPES[kind]).itemsize), 0xFF, np.uint8).view(DTYPES[kind]).reshape(shape)


def stored(x: np.ndarray, block_tokens: int, kind: str) -> np.ndarray:
    """fp32 [slots, KV heads, D] as records of a type."""
    slots, kv_heads, head_dim = x.shape
    made = poisoned(slots // block_tokens, kv_heads, block_tokens, head_dim, kind)
    flat = np.ascontiguousarray(x).reshape(slots, -1)
    kv_write(flat, flat, made, made.copy(), np.arange(slots))
    return made


def by_slot(records: np.ndarray) -> np.ndarray:
    """Records as fp32 [slots, KV heads, D]: what the reference takes."""
    return widened(of_slots(records, np.arange(len(records) * records.shape[2])))


def against_the_reference(arguments: dict[str, Any], kind: str, **how: Any) -> float:
    """The greatest error over a cache of `kind` against the reference over what that cache holds, in units of the largest value."""
    latent = arguments["value_dim"]
    cache = {name: stored(arguments["keys" if latent else name], arguments["block_tokens"], kind) for name in ("keys", "values")}
    ours, values = attention(**{**arguments, **cache}, **how), by_slot(cache["values"])[..., : latent or None]
    theirs = definition(**{**arguments, "keys": by_slot(cache["keys"]), "values": values})
    assert isinstance(theirs, np.ndarray)
    return float(np.abs(ours - theirs).max() / np.nanmax(np.abs(values)))


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("sample", definition.samples(), ids=lambda sample: sample.name)
def test_equals_the_reference(sample: Any, kind: str, level: str) -> None:
    for threads in (1, 4):
        assert against_the_reference(sample.arguments, kind, threads=threads, level=level) < 1e-6


@settings(max_examples=60, deadline=None)
@given(
    rows=st.lists(st.tuples(st.integers(0, 600), st.integers(1, 30)), min_size=1, max_size=4),
    kv_heads=st.integers(1, 3),
    group=st.sampled_from([1, 2, 3, 4, 7, 20]),
    head_dim=st.sampled_from([1, 8, 16, 20, 64, 80, 128]),
    block_tokens=st.sampled_from([1, 3, 4, 16, 32]),
    window=st.sampled_from([0, 0, 1, 5, 200, 256, 300]),
    softcap=st.sampled_from([0.0, 0.0, 2.0]),
    share=st.sampled_from([0.0, 0.0, 0.5, 0.9]),
    kind=st.sampled_from(TYPES),
    threads=st.integers(1, 4),
)
def test_any_shape(
    rows: list[tuple[int, int]],
    kv_heads: int,
    group: int,
    head_dim: int,
    block_tokens: int,
    window: int,
    softcap: float,
    share: float,
    kind: str,
    threads: int,
) -> None:
    """`share`: of a key that is the value too."""
    arguments = dict(paged_sample("", rows, window=window, softcap=softcap, block_tokens=block_tokens).arguments)
    slots, tokens = len(arguments["keys"]), len(arguments["q"])
    arguments |= {"q": floats(1, tokens, kv_heads * group * head_dim), "head_dim": head_dim, "scale": head_dim**-0.5}
    arguments |= {name: floats(seed, slots, kv_heads, head_dim) for name, seed in (("keys", 2), ("values", 3))}
    for name in ("keys", "values"):
        arguments[name][:block_tokens] = np.nan
        arguments[name][_unowned(arguments)] = np.nan
    if share:
        arguments["value_dim"] = latent = -(-int(share * 100) * head_dim // 100)
        arguments["values"] = arguments["keys"][..., :latent]
    assert against_the_reference(arguments, kind, threads=threads) < 1e-6


def _unowned(arguments: dict[str, Any]) -> np.ndarray:
    """Slots that no position of any row has, and those that every query of a row is a window or more ahead of."""
    block_tokens, mine = arguments["block_tokens"], np.ones(len(arguments["keys"]), bool)
    for table, length, count in zip(arguments["tables"], arguments["kv_len"], np.diff(arguments["cu_q"]), strict=True):
        first = max(0, length - count - arguments["window"] + 1) if arguments["window"] else 0
        at = np.arange(first, length)
        mine[table[at // block_tokens] * block_tokens + at % block_tokens] = False
    return mine


class Paged:
    """Two sequences in one cache: ours, and a stranger of another length; the rest of the cache is NaN."""

    def __init__(self, kind: str, block_tokens: int, **how: Any) -> None:
        self.block_tokens, self.how = block_tokens, how
        blocks = -(-LENGTH // block_tokens)
        block_ids = np.random.default_rng(4).permutation(np.arange(1, 2 * blocks + 1)).astype(np.int32)
        self.tables = np.stack([block_ids[:blocks], block_ids[blocks:]])
        self.keys, self.values = (poisoned(2 * blocks + 1, KV_HEADS, block_tokens, WIDTH, kind) for _ in range(2))
        self.write(1, floats(5, 200, KV_HEADS * WIDTH), floats(6, 200, KV_HEADS * WIDTH), 0)

    def write(self, row: int, k: np.ndarray, v: np.ndarray, start: int) -> None:
        at = np.arange(start, start + len(k))
        slots = self.tables[row, at // self.block_tokens].astype(np.int64) * self.block_tokens + at % self.block_tokens
        kv_write(k, v, self.keys, self.values, slots)

    def chunk(self, start: int, end: int, window: int, *, stranger: int = 0, softcap: float = 0.0) -> np.ndarray:
        """Our queries start … end; `stranger` tokens of the other row run in the same step, before ours."""
        self.write(0, K[start:end], V[start:end], start)
        return self.attend(np.concatenate([floats(7, stranger, HEADS * WIDTH), Q[start:end]]), end, stranger, window, softcap)

    def attend(self, q: np.ndarray, end: int, stranger: int, window: int, softcap: float = 0.0) -> np.ndarray:
        """What all but the first `stranger` queries get, the last of which stands before `end`."""
        cu_q, kv_len = np.array([0, stranger, len(q)], np.int32), np.array([200, end], np.int32)
        own = {"head_dim": WIDTH, "scale": WIDTH**-0.5, "window": window, "softcap": softcap}
        tables = self.tables[::-1].copy()
        return attention(q, self.keys, self.values, tables, cu_q, kv_len, self.block_tokens, **own, **self.how)[stranger:]


def backwards(items: Items) -> Items:
    """Items of the same tokens and head together, in the opposite order."""
    heads = [tuple(item[name] for name in ("row", "kv_head", "first_token")) for item in items]
    places = {head: [i for i, other in enumerate(heads) if other == head] for head in dict.fromkeys(heads)}
    return items[[i for head in reversed(places) for i in places[head]]]


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize(("window", "softcap"), [(0, 0.0), (1, 0.0), (5, 0.0), (256, 0.0), (300, 0.0), (130, 0.7)])
def test_exact(kind: str, window: int, softcap: float) -> None:
    whole = Paged(kind, 16).chunk(0, LENGTH, window, softcap=softcap)
    assert np.isfinite(whole).all()
    for block_tokens, size, stranger, how in [
        (1, 33, 3, {"threads": 1, "arrange": backwards}),
        (4, 5, 1, {"threads": 2}),
        (16, 1, 2, {"threads": 2}),
        (16, 127, 40, {"threads": 3, "arrange": backwards}),
        (24, 256, 1, {"threads": 4}),
        (7, LENGTH - 1, 9, {"threads": 4, "arrange": backwards}),
        (16, LENGTH, 0, {"threads": 1, "level": "scalar"}),
        (1, 97, 3, {"threads": 3, "level": "scalar"}),
    ]:
        paged = Paged(kind, block_tokens, **how)
        pieces = [paged.chunk(at, min(at + size, LENGTH), window, stranger=stranger, softcap=softcap) for at in range(0, LENGTH, size)]
        assert np.array_equal(np.concatenate(pieces).view(np.uint32), whole.view(np.uint32)), (block_tokens, size, how)


@pytest.mark.parametrize("kind", TYPES)
def test_rows_of_one_step(kind: str) -> None:
    """Many rows at once give what each gives alone, whatever work stands beside it."""
    lengths = [600, 300, 257, 129, 128, 1, 512, 511, 256, 5]
    paged = Paged(kind, 4)
    paged.write(0, K, V, 0)

    def run(rows: list[int], **how: Any) -> np.ndarray:
        tables, kv_len = paged.tables[[0] * len(rows)], np.array([lengths[row] for row in rows], np.int32)
        q, cu_q = Q[[lengths[row] - 1 for row in rows]], np.arange(len(rows) + 1, dtype=np.int32)
        own = {"head_dim": WIDTH, "scale": 0.25, "window": 0, "softcap": 0.0}
        return attention(q, paged.keys, paged.values, tables, cu_q, kv_len, 4, **own, **how)

    alone = np.concatenate([run([row], threads=1) for row in range(len(lengths))])
    for threads in (1, 2, 4):
        assert np.array_equal(run(list(range(len(lengths))), threads=threads), alone)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("kind", TYPES)
def test_nan_stays_where_it_is_seen(kind: str, level: str) -> None:
    """A key or value that is not finite is felt by the queries of its row that see it, and by nobody else."""
    end, bad = 300, 258
    clean = Paged(kind, 4, level=level).chunk(0, end, 40, stranger=3)
    for what in (K, V):
        spoiled = what.copy()
        spoiled[bad, 3] = np.nan
        paged = Paged(kind, 4, level=level)
        paged.write(0, *((spoiled if what is K else K)[:end], (spoiled if what is V else V)[:end]), 0)
        ours = paged.attend(np.concatenate([floats(7, 3, HEADS * WIDTH), Q[:end]]), end, 3, 40)
        felt = np.isnan(ours[:, : 3 * WIDTH]).any(axis=1)  # the heads of the first KV head
        assert np.array_equal(felt, (np.arange(end) >= bad) & (np.arange(end) < bad + 40))
        assert np.array_equal(ours[~felt], clean[~felt])
        assert np.array_equal(ours[:, 3 * WIDTH :], clean[:, 3 * WIDTH :])


def test_nan_of_a_query_is_its_own() -> None:
    paged = Paged("bf16", 16)
    clean = paged.chunk(0, 300, 0)
    q = Q[:300].copy()
    q[77, WIDTH] = np.nan
    ours = paged.attend(q, 300, 0, 0)
    assert np.isnan(ours[77, WIDTH : 2 * WIDTH]).all()
    ours[77, WIDTH : 2 * WIDTH] = clean[77, WIDTH : 2 * WIDTH]
    assert np.array_equal(ours, clean)


@pytest.mark.parametrize("window", [1, 5, 255, 256, 257])
def test_edge_of_the_window(window: int) -> None:
    """The key `window - 1` behind is seen, the one `window` behind is not."""
    for distance, seen in [(window - 1, True), (window, False)]:
        paged = Paged("f32", 4)
        paged.chunk(0, 600, window)
        before = paged.attend(Q[599:600], 600, 0, window)
        at = 599 - distance
        paged.values[paged.tables[0, at // 4], :, at % 4] = np.nan
        after = paged.attend(Q[599:600], 600, 0, window)
        assert np.isnan(after).all() == seen
        assert np.array_equal(before, after) != seen


def cut(threads: int, rows: list[tuple[int, int]], kv_heads: int, group: int, head_dim: int, window: int = 0) -> Items:
    """The items of a step."""
    found: list[Items] = []

    def keep(items: Items) -> Items:
        found.append(items.copy())
        return items

    sample = dict(paged_sample("", rows, window=window, block_tokens=16).arguments)
    blocks = len(sample["keys"]) // 16
    sample |= {"q": floats(1, len(sample["q"]), kv_heads * group * head_dim), "head_dim": head_dim}
    sample |= {name: np.zeros((blocks, kv_heads, 16, head_dim), np.float32) for name in ("keys", "values")}
    attention(**sample, threads=threads, arrange=keep)
    return found[0]


@pytest.mark.parametrize("threads", [1, 2, 4])
@pytest.mark.parametrize("window", [0, 100])
def test_items_cover_everything_once(threads: int, window: int) -> None:
    rows = [(2000, 1), (0, 300), (700, 5), (0, 1), (900, 40)]
    items = cut(threads, rows, 2, 3, 32, window)
    computed = [
        (int(item["kv_head"]), token, split)
        for item in items
        for token in range(item["first_token"], item["first_token"] + item["tokens"])
        for split in range(item["first_split"], item["first_split"] + item["splits"])
    ]
    assert len(computed) == len(set(computed))
    token = 0
    for cached, new in rows:
        for position in range(cached, cached + new):
            first = max(0, position - window + 1) // 256 if window else 0
            assert {(head, token, split) for head in range(2) for split in range(first, position // 256 + 1)} <= set(computed)
            token += 1


def test_one_long_row_gives_work_to_all() -> None:
    assert len(cut(1, [(1999, 1)], 1, 4, 256)) == 1
    assert len(cut(2, [(1999, 1)], 1, 4, 256)) >= 4
    assert len(cut(2, [(100, 1)], 1, 4, 256)) == 1
    assert len(cut(1, [(0, 512)], 1, 4, 256)) >= 16


@pytest.mark.parametrize("level", LEVELS)
def test_bf16_is_rounded_to_the_nearest(level: str) -> None:
    halves = np.arange(0, 1 << 16, 7, dtype=np.uint32) << 16
    bits = np.concatenate([halves + low for low in (0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF)]).astype(np.uint32)
    x = np.ascontiguousarray(bits[: len(bits) // 16 * 16].view(np.float32).reshape(-1, 16))
    made = np.zeros((len(x), 1, 1, 16), np.uint16)
    kv_write(x, x, made, made.copy(), np.arange(len(x)), level=level)
    nan = np.isnan(x)
    expected = (x.view(np.uint32).astype(np.uint64) + 0x7FFF + ((x.view(np.uint32) >> 16) & 1)) >> 16
    assert nan.any()
    assert np.array_equal(np.isnan(widened(made[:, 0, 0])), nan)
    assert np.array_equal(made[:, 0, 0][~nan], expected[~nan])


@pytest.mark.parametrize("level", LEVELS)
def test_int8_has_a_scale_for_each_head(level: str) -> None:
    k = floats(1, 9, 2 * 20)
    k[1, :20], k[2, 3], k[3, 25], k[4, :20] = 0, np.inf, np.nan, 1e-38
    k[5, :20], k[5, 0] = 0.5, 127
    made = poisoned(3, 2, 3, 20, "int8")
    kv_write(k, k, made, made.copy(), np.arange(9), level=level)
    heads = k.reshape(9, 2, 20)
    finite = np.isfinite(heads).all(axis=2)
    amax = np.where(finite, np.abs(np.where(finite[..., None], heads, 0)).max(axis=2), 0)
    live = amax > 1e-36
    scales = np.where(finite, np.where(live, amax / np.float32(127), 0), np.nan).astype(np.float32)
    inverse = np.float32(127) / np.where(live, amax, 1)
    codes = np.rint(np.where(live[..., None], heads, 0) * inverse[..., None]).astype(np.int8)
    records = of_slots(made, np.arange(9))
    assert np.array_equal(records[..., :20], codes)
    assert np.array_equal(np.ascontiguousarray(records[..., 20:]).view(np.float32)[..., 0], scales, equal_nan=True)
    near = np.abs(widened(records) - heads)[live]
    assert (near <= np.broadcast_to(scales[..., None], heads.shape)[live] * 0.5001).all()


def test_fp32_is_stored_as_it_is() -> None:
    for sample in write_definition.samples():
        theirs = {name: array.copy() for name, array in sample.arguments.items()}
        ours = {**theirs, **{name: stored(theirs[name], 4, "f32") for name in ("keys", "values")}}
        kv_write(**ours)
        write_definition(**theirs)
        assert all(np.array_equal(by_slot(ours[name]), theirs[name]) for name in ("keys", "values"))


@pytest.mark.parametrize("kind", TYPES)
def test_cache_costs_what_planning_says(kind: str) -> None:
    shape = KVShape((KVGroup("full", (0, 2)), KVGroup("window", (1, 3), 32)), 16, 10, b"")
    cache = allocate_native_kv(shape, CachedHeads(3, 20), kind)
    assert head_bytes(kind, 20) == kv_head_bytes(20, kind)
    assert cache.pool.nbytes == 2 * 2 * 11 * 16 * 3 * kv_head_bytes(20, kind)
    keys, values = cache.layer(1)
    assert cache.record(1)[1:3] == (keys.ctypes.data, values.ctypes.data)
    k, v = floats(1, 4, 60), floats(2, 4, 60)
    slots = np.array([17, 3, 175, 40])
    kv_write(k, v, keys, values, slots)
    near = {"f32": 0.0, "bf16": 2**-8, "int8": 1 / 250}[kind]
    for read, written in zip(cache.read(1, slots), (k, v), strict=True):
        assert relative_error(read, written.reshape(4, 3, 20)) <= near
    assert not cache.layer(0)[0].any()


def test_groups_must_agree() -> None:
    with pytest.raises(ValueError, match="equally many layers"):
        allocate_native_kv(KVShape((KVGroup("full", (0,)), KVGroup("full", (1, 2))), 16, 10, b""), CachedHeads(1, 8), "bf16")


@pytest.mark.parametrize(
    ("name", "spoil", "message"),
    [
        ("tables", lambda x: x + 100, "name blocks"),
        ("kv_len", lambda x: x * 0, "positions"),
        ("cu_q", lambda x: x + 1, "positions"),
        ("q", lambda x: x.astype(np.float64), "float32"),
        ("block_tokens", lambda x: x * 2, "blocks"),
    ],
)
def test_misuse_is_refused(name: str, spoil: Callable[[Any], Any], message: str) -> None:
    arguments = dict(definition.samples()[0].arguments)
    arguments |= {name: stored(arguments[name], 4, "f32") for name in ("keys", "values")}
    with pytest.raises(ValueError, match=message):
        attention(**{**arguments, name: spoil(arguments[name])})
    with pytest.raises(ValueError, match="slots reach"):
        kv_write(K[:1], V[:1], *(poisoned(2, KV_HEADS, 2, WIDTH, "f32") for _ in range(2)), np.array([4]))
