"""What steps are padded to, which of them replay graphs, and that padding is on page 0: without a kernel."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from ridgeline.compute.cuda.buckets import Bucket, Buckets, block_buckets, row_buckets, token_bucket
from ridgeline.compute.cuda.device import interpreted
from ridgeline.compute.cuda.graphs import Graphs, segments
from ridgeline.compute.cuda.plan import Call
from ridgeline.compute.cuda.sampler import COLUMNS
from ridgeline.compute.cuda.step import NOBODY, NOTHING, Sampled, StepBuffers, layout
from ridgeline.compute.graph import StepInputs

BUCKETS = Buckets(tokens=2048, rows=64, positions=8192, block_tokens=16)


class Recording:
    """Stands in for CUDA graphs: a capture runs nothing, a replay notes what was captured."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.capturing: list[str] | None = None

    def call(self, name: str, attention: bool = False) -> Call:
        return Call(lambda: (self.log if self.capturing is None else self.capturing).append(name), attention)

    def capture(self, run: Callable[[], None], pool: Any) -> Any:
        self.capturing = held = []
        run()
        self.capturing = None
        log = self.log

        class Held:
            def replay(self) -> None:
                log.append("graph(" + " ".join(held) + ")")

        return Held()


def test_rows_come_in_few_sizes() -> None:
    assert row_buckets(1) == (1,)
    assert row_buckets(5) == (1, 2, 4, 8)
    assert row_buckets(65)[-3:] == (56, 64, 72)
    assert row_buckets(300)[-4:] == (248, 256, 288, 320)[-4:]


def test_tokens_and_blocks_come_in_few_sizes() -> None:
    assert [token_bucket(count) for count in (1, 9, 512, 513, 2048)] == [8, 16, 512, 768, 2048]
    assert block_buckets(8192, 16) == (32, 128, 512)
    assert block_buckets(100, 16) == (7,)


@pytest.mark.parametrize(
    ("counts", "blocks", "expected"),
    [
        ([1], 1, Bucket(1, 1, 32, 1)),
        ([1] * 5, 33, Bucket(8, 8, 128, 1)),
        ([1] * 64, 512, Bucket(64, 64, 512, 1)),
        ([2], 1, Bucket(8, 2, 32, 8)),  # six tokens of padding, in a row of their own
        ([8], 1, Bucket(8, 1, 32, 8)),
        ([2048], 128, Bucket(2048, 1, 128, 2048)),
        ([1] * 63 + [450], 1, Bucket(768, 72, 32, 512)),
        ([1] * 64 + [7], 1, Bucket(128, 72, 32, 64)),
    ],
)
def test_bucket(counts: list[int], blocks: int, expected: Bucket) -> None:
    assert BUCKETS.of(counts, blocks) == expected
    assert all(size <= most for size, most in zip(expected, BUCKETS.largest, strict=True))


def test_every_step_fits_a_bucket() -> None:
    random = np.random.default_rng(1)
    for _ in range(500):
        rows = int(random.integers(1, 65))
        counts = np.ones(rows, int)
        counts[0] += int(random.integers(0, 2048 - rows + 1)) if random.random() < 0.7 else 0
        found = BUCKETS.of(counts.tolist(), int(random.integers(1, 513)))
        assert found.tokens >= counts.sum() and found.rows >= rows and found.most_q >= counts.max()
        assert all(size <= most for size, most in zip(found, BUCKETS.largest, strict=True))
        padding = found.tokens - int(counts.sum())
        assert not padding or found.single or found.rows > rows, "padding has a row of its own"
        assert found.single or padding <= min(found.most_q, found.blocks * 16)


def recorded() -> tuple[Recording, Graphs, list[Call], list[Call]]:
    recording = Recording()
    body = [recording.call(name, name.startswith("attention")) for name in ("embed", "attention.0", "mlp", "attention.1", "norm")]
    return recording, Graphs(recording.capture, None), body, [recording.call("head"), recording.call("sample")]


def test_a_single_step_is_one_graph() -> None:
    recording, graphs, body, tail = recorded()
    bucket = Bucket(4, 4, 32, 1)
    graphs.add_single(bucket, body, tail)
    assert recording.log == ["embed", "attention.0", "mlp", "attention.1", "norm", "head", "sample"], "all of it runs once before"
    recording.log.clear()
    graphs.run(bucket, body, tail)
    assert recording.log == ["graph(embed attention.0 mlp attention.1 norm head sample)"] and len(graphs) == 1


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
    graphs.add_single(Bucket(4, 4, 32, 1), body, tail)
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
        adapter=np.zeros(cu_q[-1], np.int32),
        select=(cu_q[1:] - 1).astype(np.int32),
    )


def buffers() -> StepBuffers:
    return StepBuffers(interpreted(1 << 30), 2, BUCKETS.largest, depth=2, nobody=64)


@pytest.mark.parametrize(("counts", "starts"), [([1, 1, 1], [40, 3, 0]), ([5, 1, 20], [0, 33, 17]), ([16], [0])])
def test_a_step_arrives_whole_and_its_padding_is_on_page_0(counts: list[int], starts: list[int]) -> None:
    inputs, room = step(counts, starts), buffers()
    bucket = BUCKETS.of(counts, inputs.tables[0].shape[1])
    place, samples = np.array([9, 4, 7][: len(counts)], np.int32), np.array([True, False, True][: len(counts)])
    columns = {name: np.arange(1, 1 + len(counts)) for name in COLUMNS}
    for _ in range(4):  # round the ring, over what other steps left there
        room._packed.fill_(0x7F)
        for host in room._ring:
            host.fill_(0x7F)
        room.send(bucket, inputs, Sampled(place, samples, columns))
    got = {name: value.numpy() for name, value in room.views(bucket).columns.items()}
    tokens, rows = sum(counts), len(counts)
    for name in ("ids", "row_of_token"):
        assert np.array_equal(got[name][:tokens], getattr(inputs, name))
    assert np.array_equal(got["positions"][:tokens], inputs.positions[0])
    assert np.array_equal(got["kv_len"][:rows], inputs.kv_len) and np.array_equal(got["cu_q"][: rows + 1], inputs.cu_q)
    assert np.array_equal(got["source"][:tokens], place[inputs.row_of_token]) and (got["source"][tokens:] == 64).all()
    assert np.array_equal(got["target"][:rows], np.where(samples, place, 64)) and (got["target"][rows:] == 64).all()
    assert np.array_equal(got["select"][:rows], inputs.select)
    for group in range(2):
        width = inputs.tables[group].shape[1]
        assert np.array_equal(got["tables"][group, :rows, :width], inputs.tables[group])
        assert not got["tables"][group, :rows, width:].any() and not got["tables"][group, rows:].any()
        assert np.array_equal(got["slots"][group, :tokens], inputs.slots[group]) and not got["slots"][group, tokens:].any()
    # Rows of padding are rows like others: they own their tokens, at positions that their table of page 0 covers.
    ends = np.diff(got["cu_q"])
    assert ends.sum() == bucket.tokens and (ends >= 0).all() and ends.max() <= bucket.most_q
    assert np.array_equal(got["row_of_token"], np.repeat(np.arange(bucket.rows), ends))
    assert np.array_equal(got["kv_len"][rows:], ends[rows:]) and got["select"].max() < bucket.tokens
    assert (got["ids"][tokens:] == 0).all() and all((got[name][:rows] == columns[name]).all() for name in COLUMNS)


def test_a_step_of_nothing_is_all_padding() -> None:
    room = buffers()
    for bucket in (Bucket(8, 8, 32, 1), BUCKETS.mixed(64), BUCKETS.largest):
        room._ring[room._turn].fill_(0x7F)
        room.send(bucket, NOTHING, NOBODY)
        got = {name: value.numpy() for name, value in room.views(bucket).columns.items()}
        assert np.diff(got["cu_q"]).sum() == bucket.tokens and not got["tables"].any() and not got["slots"].any()
        assert (got["target"] == 64).all() and got["kv_len"].max() <= bucket.blocks * 16


def test_columns_of_tokens_lie_where_rows_and_tables_do_not_move_them() -> None:
    """Segments are captured for a number of tokens, whatever rows there are."""
    few, _ = layout(Bucket(16, 2, 32, 16), 2)
    many, size = layout(Bucket(16, 24, 512, 16), 2)
    for name in ("slots", "ids", "positions", "row_of_token", "source"):
        assert few[name] == many[name]
    assert all(start % 16 == 0 for start, _ in many.values()) and size <= layout(BUCKETS.largest, 2)[1]


def test_the_copy_to_the_device_is_one() -> None:
    room, inputs = buffers(), step([3], [0])
    bucket = BUCKETS.of([3], 1)
    copies: list[torch.Size] = []

    class Counting(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if "copy" in func.name():
                copies.append(args[0].shape)
            return func(*args, **(kwargs or {}))

    room.send(bucket, inputs, NOBODY)
    with Counting():
        room.send(bucket, inputs, NOBODY)
    assert copies == [torch.Size([layout(bucket, 2)[1]])]
