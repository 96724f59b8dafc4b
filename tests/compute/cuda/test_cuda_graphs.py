"""Sizes that steps are padded to, steps that replay graphs, and padding on block 0: without a kernel."""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

from ridgeline.compute.cuda import step as step_module
from ridgeline.compute.cuda.buckets import Bucket, Buckets, block_buckets, row_buckets, token_bucket
from ridgeline.compute.cuda.device import interpreted
from ridgeline.compute.cuda.graphs import Graphs, Launch, segments
from ridgeline.compute.cuda.step import NO_SAMPLING, SAMPLING_COLUMNS, DeviceSampling, StepBuffers, layout
from ridgeline.compute.cuda.tables import BlockTables
from ridgeline.compute.cuda.triton.launch import BoundLaunch
from ridgeline.compute.dummy import dummy_step, even_counts
from ridgeline.compute.graph import Op, StepInputs

BUCKETS = Buckets(tokens=2048, rows=64, positions=8192, block_tokens=16)


class Recording:
    """Stands in for CUDA graphs: a capture runs nothing, a replay notes what was captured."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.capturing: list[str] | None = None
        self.pools, self.used = 0, list[Any]()

    def call(self, name: str, attention: bool = False) -> Launch:
        op = Op("attention", (), ()) if attention else None
        return Launch(lambda: (self.log if self.capturing is None else self.capturing).append(name), op)

    def new_pool(self) -> object:
        """A pool by number: graphs that are dropped take theirs with them."""
        self.pools += 1
        return self.pools

    def capture(self, run: Callable[[], None], pool: Any) -> Any:
        self.capturing = held = []
        self.used.append(pool)
        run()
        self.capturing = None
        log = self.log

        class Held:
            def replay(self) -> None:
                log.append("graph(" + " ".join(held) + ")")

        return Held()


def test_rows_come_in_few_sizes() -> None:
    assert row_buckets(1) == (1,)
    assert row_buckets(5) == (1, 2, 4, 5)
    assert row_buckets(64) == (1, 2, 4, 8, 16, 24, 32, 48, 64)
    assert row_buckets(300)[-4:] == (224, 256, 288, 300)


def test_tokens_and_blocks_come_in_few_sizes() -> None:
    assert [token_bucket(count, 2000) for count in (1, 129, 512, 513, 1990)] == [128, 256, 512, 768, 2000]
    assert block_buckets(8192, 16) == (128, 512)
    assert block_buckets(100, 16) == (7,)


def test_graphs_are_few() -> None:
    """Of 256 rows and 8,192 positions: 30 whole steps, and three sizes of mixed steps whose pieces are captured."""
    found = Buckets(tokens=8192, rows=256, positions=8192, block_tokens=16)
    assert len(found.decode) == 30 and found.decode[0] == Bucket(256, 256, 512, 1)
    assert found.segments == (512, 256, 128) and Buckets(tokens=200, rows=8, positions=64, block_tokens=16).segments == (200, 128)


@pytest.mark.parametrize(
    ("counts", "blocks", "expected"),
    [
        ([1], 1, Bucket(1, 1, 128, 1)),
        ([1] * 5, 129, Bucket(8, 8, 512, 1)),
        ([1] * 64, 512, Bucket(64, 64, 512, 1)),
        ([2], 1, Bucket(128, 2, 128, 2)),  # 126 tokens of padding, in a row of their own
        ([128], 8, Bucket(128, 1, 128, 128)),
        ([2048], 128, Bucket(2048, 1, 128, 2048)),
        ([1] * 63 + [450], 1, Bucket(768, 65, 128, 512)),
        ([1] * 62 + [7], 1, Bucket(128, 64, 128, 8)),
    ],
)
def test_bucket(counts: list[int], blocks: int, expected: Bucket) -> None:
    assert BUCKETS.of(counts, blocks) == expected
    assert all(size <= most for size, most in zip(expected, BUCKETS.largest, strict=True))


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        ([5], Bucket(5, 2, 128, 8, True)),
        ([1, 3, 2], Bucket(20, 5, 128, 8, True)),
        ([1] * 64, Bucket(64, 64, 128, 1)),
        ([1] * 63 + [2], Bucket(320, 65, 128, 8, True)),
        ([6, 1], Bucket(128, 4, 128, 8)),  # a prompt
    ],
)
def test_steps_that_verify_drafts_have_graphs_of_their_own(counts: list[int], expected: Bucket) -> None:
    drafting = Buckets(tokens=2048, rows=64, positions=8192, block_tokens=16, drafts=4)
    assert drafting.of(counts, 1) == expected
    assert (expected in drafting.verification) == (2 <= max(counts) <= 5)
    assert not BUCKETS.verification and max(bucket.tokens for bucket in drafting.verification) <= 512
    assert all(all(size <= most for size, most in zip(each[:4], drafting.largest, strict=False)) for each in drafting.verification)
    assert drafting.selected == 320 and BUCKETS.selected == 65
    behind = Buckets(tokens=2048, rows=64, positions=8192, block_tokens=16, backlog=4)  # as many graphs, which sample the last ids alone
    assert [each._replace(verifies=True) for each in behind.verification] == [*drafting.verification] and behind.selected == 65


def test_every_step_fits_a_bucket() -> None:
    random = np.random.default_rng(1)
    for _ in range(500):
        rows = int(random.integers(1, 65))
        counts = np.ones(rows, int)
        counts[0] += int(random.integers(0, 2048 - rows + 1)) if random.random() < 0.7 else 0
        found = BUCKETS.of(counts.tolist(), int(random.integers(1, 513)))
        assert found.tokens >= counts.sum() and found.rows >= rows and found.max_q >= counts.max()
        assert all(size <= most for size, most in zip(found, BUCKETS.largest, strict=True))
        padding = found.tokens - int(counts.sum())
        assert not padding or found.is_decode or found.rows > rows, "padding has a row of its own"
        assert found.is_decode or found.tokens in BUCKETS.mixed_tokens


def test_mixtures_are_buckets_that_steps_have() -> None:
    for bucket in BUCKETS.compiled:
        rows = min(bucket.rows, -(-bucket.tokens // bucket.max_q))
        filled = dummy_step(even_counts(bucket.tokens, rows), groups=1, block_tokens=16)
        counts = np.diff(filled.cu_q)
        assert counts.sum() == bucket.tokens and counts.min() >= 1 and counts.max() <= bucket.max_q
        assert filled.tables[0].shape[1] <= bucket.blocks and bucket.rows in BUCKETS.rows


def recorded() -> tuple[Recording, Graphs, list[Launch], list[Launch]]:
    recording = Recording()
    body = [recording.call(name, name.startswith("attention")) for name in ("embed", "attention.0", "mlp", "attention.1", "norm")]
    return recording, Graphs(recording.capture, recording.new_pool), body, [recording.call("head"), recording.call("sample")]


class Kernel:
    """Stands in for a jitted kernel: its launch compiles, and what it compiled is launched with all values in order."""

    arg_names: ClassVar = ["x", "y", "BLOCK", "PDL"]

    def __init__(self) -> None:
        self.log: list[tuple[Any, ...]] = []

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., Any]:
        return lambda *given, **named: self.log.append((grid, *given, named)) or self.compiled

    @property
    def compiled(self) -> Any:
        return defaultdict(lambda: lambda *given: self.log.append(given))


def test_a_bound_launch_is_specialised_once() -> None:
    kernel = Kernel()
    launch = BoundLaunch(kernel, (7, 2), ("x", 1), {"BLOCK": 16}, num_warps=4)
    for _ in range(3):
        launch()
    assert kernel.log == [((7, 2, 1), "x", 1, {"BLOCK": 16, "PDL": False, "num_warps": 4}), ("x", 1, 16, False), ("x", 1, 16, False)]
    with pytest.raises(ValueError, match=r"the kernel takes \['BLOCK', 'PDL'\], not \['TILE', 'PDL'\]"):
        BoundLaunch(kernel, (7,), ("x", 1), {"TILE": 16})


def test_a_decode_step_is_one_graph() -> None:
    recording, graphs, body, tail = recorded()
    bucket = Bucket(4, 4, 32, 1)
    graphs.add_step(bucket, body, tail)
    assert recording.log == ["embed", "attention.0", "mlp", "attention.1", "norm", "head", "sample"], "all of it runs once before"
    recording.log.clear()
    graphs.run(bucket, body, tail)
    assert recording.log == ["graph(embed attention.0 mlp attention.1 norm head sample)"] and len(graphs) == 1


def test_graphs_after_a_clear_take_a_pool_of_their_own() -> None:
    """The driver frees a pool whose graphs are all gone: torch refuses its handle."""
    recording, graphs, body, tail = recorded()
    for _ in range(2):
        graphs.add_step(Bucket(4, 4, 32, 1), body, tail)
        graphs.add_segments(16, body, tail)
        graphs.clear()
    assert recording.used == [1] * 4 + [2] * 4


def test_a_small_mixed_step_replays_what_stands_between_attentions() -> None:
    recording, graphs, body, tail = recorded()
    graphs.add_segments(16, body, tail)
    recording.log.clear()
    for rows, blocks in ((1, 32), (24, 128)):
        graphs.run(Bucket(16, rows, blocks, 16), body, tail)
    assert recording.log == 2 * ["graph(embed)", "attention.0", "graph(mlp)", "attention.1", "graph(norm)", "head", "sample"]
    assert len(graphs) == 3


def test_what_has_no_graph_is_launched() -> None:
    recording, graphs, body, tail = recorded()
    graphs.add_step(Bucket(4, 4, 32, 1), body, tail)
    graphs.add_segments(16, body, tail)
    recording.log.clear()
    for bucket in (Bucket(4, 4, 128, 1), Bucket(16, 16, 32, 1), Bucket(768, 2, 32, 512)):
        graphs.run(bucket, body, tail)
    assert recording.log == 3 * ["embed", "attention.0", "mlp", "attention.1", "norm", "head", "sample"]


def test_segments_end_at_attentions() -> None:
    recording, _, body, _ = recorded()
    parts = [(len(part), behind is not None) for part, behind in segments(body)]
    assert parts == [(1, True), (1, True), (1, False)] and recording.log == []


def step(counts: list[int], starts: list[int], groups: int = 2) -> StepInputs:
    lengths = np.add(starts, counts)
    row = np.repeat(np.arange(len(counts)), counts)
    cu_q = np.cumsum([0, *counts])
    positions = np.arange(cu_q[-1]) - cu_q[row] + np.array(starts)[row]
    width = -(-int(lengths.max()) // 16)
    tables = tuple(1 + np.arange(len(counts) * width, dtype=np.int32).reshape(len(counts), width) + 100 * g for g in range(groups))
    return StepInputs(
        ids=np.arange(5, 5 + cu_q[-1]).astype(np.int32),
        positions=positions.astype(np.int32)[None],
        row_of_token=row.astype(np.int32),
        cu_q=cu_q.astype(np.int32),
        kv_len=lengths.astype(np.int32),
        tables=tables,
        slots=tuple(table[row, positions // 16] * np.int64(16) + positions % 16 for table in tables),
        select=(cu_q[1:] - 1).astype(np.int32),
    )


def buffers() -> StepBuffers:
    device = interpreted(1 << 30)
    tables = BlockTables(device, 2, 64, BUCKETS.largest.blocks, depth=2)
    return StepBuffers(device, tables, [BUCKETS.largest], depth=2, dummy_row=64, width=1)


@pytest.mark.parametrize(
    ("counts", "starts", "drafts"),
    [([1, 1, 1], [40, 3, 0], 0), ([5, 1, 20], [0, 33, 17], 0), ([16], [0], 0), ([1, 4, 2], [30, 3, 0], 3), ([4, 4], [0, 9], 3)],
)
def test_a_step_arrives_whole_and_its_padding_is_on_block_0(counts: list[int], starts: list[int], drafts: int) -> None:
    inputs, room = step(counts, starts), buffers()
    bucket = Buckets(tokens=2048, rows=64, positions=8192, block_tokens=16, drafts=drafts).of(counts, inputs.tables[0].shape[1])
    place, samples = np.array([9, 4, 7][: len(counts)], np.int32), np.array([True, False, True][: len(counts)])
    columns = {name: np.arange(1, 1 + len(counts)) for name in SAMPLING_COLUMNS}
    for _ in range(4):  # round the ring, over what other steps left there
        room._packed.fill_(0x7F)
        for host in room._ring:
            host.fill_(0x7F)
        room.send(bucket, inputs, DeviceSampling(place, samples, columns, np.array(counts, np.uint8)))
    got = {name: value.numpy() for name, value in room.device_views(bucket).columns.items()}
    tokens, rows = sum(counts), len(counts)
    of = inputs.row_of_token if bucket.verifies else np.arange(rows)
    for name in ("ids", "row_of_token"):
        assert np.array_equal(got[name][:tokens], getattr(inputs, name))
    assert np.array_equal(got["positions"][:tokens], inputs.positions[0])
    assert np.array_equal(got["kv_len"][:rows], inputs.kv_len) and np.array_equal(got["cu_q"][: rows + 1], inputs.cu_q)
    assert np.array_equal(got["source"][:tokens], place[inputs.row_of_token]) and (got["source"][tokens:] == 64).all()
    assert np.array_equal(got["target"][:rows], np.where(samples, place, 64)) and (got["target"][rows:] == 64).all()
    assert np.array_equal(got["table_row"][:rows], place) and (got["table_row"][rows:] == 64).all()
    if bucket.verifies:
        assert got["select"].tolist() == [*range(bucket.tokens)]
        assert got["place"][:tokens].tolist() == [
            1 + at for start, count in zip(starts, counts, strict=True) for at in range(start, start + count)
        ]
        assert got["samples"].tolist() == [*counts, *[0] * (bucket.rows - rows)]
    else:
        assert np.array_equal(got["select"][:rows], inputs.select)
    for group in range(2):
        assert np.array_equal(got["slots"][group, :tokens], inputs.slots[group]) and not got["slots"][group, tokens:].any()
    # Rows of padding have a token each in a decode step, else none.
    ends = np.diff(got["cu_q"])
    assert (ends[rows:] == (1 if bucket.is_decode else 0)).all() and ends.max() <= bucket.max_q
    assert (got["row_of_token"][tokens:] >= rows).all() and (got["row_of_token"] < bucket.rows).all()
    assert np.array_equal(got["kv_len"][rows:], ends[rows:]) and got["select"].min() >= 0 and got["select"].max() < bucket.tokens
    assert (got["ids"][tokens:] == 0).all() and all((got[name][: len(of)] == columns[name][of]).all() for name in SAMPLING_COLUMNS)


def test_a_step_that_nobody_reads_is_on_block_0() -> None:
    room = buffers()
    for bucket, rows in (
        (Bucket(8, 8, 128, 1), 8),
        (BUCKETS.smallest_mixed(128), 1),
        (BUCKETS.largest, 1),
        (Bucket(2048, 65, 128, 64), 65),
    ):
        room._ring[room._next].fill_(0x7F)
        room.send(bucket, dummy_step(even_counts(bucket.tokens, rows), groups=2, block_tokens=16), NO_SAMPLING)
        got = {name: value.numpy() for name, value in room.device_views(bucket).columns.items()}
        assert np.diff(got["cu_q"]).sum() == bucket.tokens and got["slots"].max() < 16
        assert (got["target"] == 64).all() and (got["table_row"] == 64).all() and got["kv_len"].max() <= bucket.blocks * 16


def test_a_buffer_of_the_host_is_not_written_while_it_is_copied() -> None:
    """Its event is waited for before, and recorded behind the copy."""
    room, told = buffers(), []

    class Told:
        def __init__(self, number: int) -> None:
            self.number = number

        def record(self) -> None:
            told.append(("copied", self.number))

        def synchronize(self) -> None:
            told.append(("free", self.number))

    room._copied = [Told(number) for number in range(3)]
    bucket = BUCKETS.of([1], 1)
    for _ in range(4):
        room.send(bucket, step([1], [0]), NO_SAMPLING)
    assert told == [(what, number) for number in (0, 1, 2, 0) for what in ("free", "copied")]


def test_steps_of_the_same_rows_leave_what_they_share(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only what changes is written, and the device has what it has of a step that is written whole; other steps between them do no harm."""
    room, fresh = buffers(), buffers()
    same = DeviceSampling(
        np.array([7, 3, 40], np.int32), np.array([True, False, True]), {name: np.arange(1, 4) for name in SAMPLING_COLUMNS}
    )
    written: list[int] = []
    whole = step_module.pack_rows
    monkeypatch.setattr(step_module, "pack_rows", lambda *given: (written.append(1), whole(*given)))
    for number in range(12):
        inputs = step([1, 1, 1], [40 + number, 13 + number, number])
        bucket = BUCKETS.of([1, 1, 1], inputs.tables[0].shape[1])
        if number == 7:
            room.send(BUCKETS.of([5, 1], 1), step([5, 1], [0, 2]), NO_SAMPLING)
        written.clear()
        room.send(bucket, inputs, same)
        assert bool(written) == (number < 3 or number == 9), "each buffer of the ring once, and the one that had another step"
        fresh.send(bucket, inputs, replace(same))
        ours, theirs = (each.device_views(bucket).columns for each in (room, fresh))
        assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_layouts_that_are_kept_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ridgeline.compute.cuda.step.MAX_LAYOUTS", 4)
    room = buffers()
    for tokens in BUCKETS.mixed_tokens:
        room.send(BUCKETS.padded(tokens, 1, tokens, 1), dummy_step([tokens], groups=2, block_tokens=16), NO_SAMPLING)
    assert len(room._staging_views) == 4


def test_columns_of_tokens_lie_where_rows_do_not_move_them() -> None:
    """Segments are captured for a number of tokens, whatever rows there are."""
    few, _ = layout(Bucket(16, 2, 32, 16), 2, 48, shifts=True)
    many, size = layout(Bucket(16, 24, 512, 16), 2, 48, shifts=True)
    long, _ = layout(Bucket(16, 24, 32, 2), 2, 48, shifts=True)
    for name in ("changes", "slots", "ids", "positions", "row_of_token", "source", "shifts"):
        assert few[name] == many[name]
    assert few["kv_len"][0] == many["kv_len"][0], "which launches in front of the first attention read"
    assert long == many
    assert all(start % 16 == 0 for start, _ in many.values()) and size <= layout(BUCKETS.largest, 2, 48, shifts=True)[1]


def test_the_copy_to_the_device_is_one() -> None:
    room, inputs = buffers(), step([3], [0])
    bucket = BUCKETS.of([3], 1)
    copies: list[torch.Size] = []

    class Counting(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if "copy" in func.name():
                copies.append(args[0].shape)
            return func(*args, **(kwargs or {}))

    room.send(bucket, inputs, NO_SAMPLING)
    with Counting():
        room.send(bucket, inputs, NO_SAMPLING)
    assert copies == [torch.Size([layout(bucket, 2, room.tables.capacity)[1]])]
