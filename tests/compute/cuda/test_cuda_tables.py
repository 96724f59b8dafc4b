"""Block tables that stay on the device and get changes alone, beside whole tables."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small import SIZE, device
from tiny import write_tiny

from ridgeline.compute.cuda import tables as tables_module
from ridgeline.compute.cuda.buckets import Bucket
from ridgeline.compute.cuda.graphs import Launch
from ridgeline.compute.cuda.tables import BlockTables, begin
from ridgeline.compute.runtime.null_graphs import null_executor
from ridgeline.config.groups import EngineConfig
from ridgeline.core.commands import Abort, Admit
from ridgeline.core.events import Preempted, PrefixHit
from ridgeline.core.params import Admitted
from ridgeline.engine.compose import make_engine
from ridgeline.facts.headers.read import read_model_facts

ROWS, TOKENS, LENGTH, BLOCK_TOKENS, DEPTH = 4, 24, 96, 4, 2
STEPS, BLOCKS = 500, 30


def begin_alone(bucket: Bucket, body: Sequence[Launch], tail: Sequence[Launch]) -> None:
    """Of a step its first launch."""
    assert body[0].name == "resolve ids"
    body[0].run()


def requests(random: np.random.Generator, step: int) -> list[Admitted]:
    """One or two: prompts that begin alike or not, some answered several times."""
    found = []
    for number in range(int(random.integers(1, 3))):
        head = [4 + int(random.integers(0, 3))] * int(random.integers(1, 16))
        tail = random.integers(4, SIZE.vocab, int(random.integers(1, 12))).tolist()
        asked = {
            "priority": int(random.integers(0, 3)),
            "max_tokens": int(random.integers(20, 50)),
            "seed": step,
            "choices": int(random.integers(1, 3)),
        }
        found.append(Admitted(f"{step}.{number}", (*head, *tail), **asked))  # type: ignore[arg-type]
    return found


def test_changes_make_what_whole_tables_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After every step each row has on the device the blocks that it reads, in a full and a window group: with preemption, prefixes that
    are there already, several answers of a prompt, requests that go; changes that travel with a step, and more."""
    facts = read_model_facts(write_tiny(tmp_path / "small.gguf", SIZE))
    executor: Any = null_executor(facts, rows=ROWS, tokens=TOKENS, positions=LENGTH, block_tokens=BLOCK_TOKENS, depth=DEPTH)
    few = replace(executor.info.kv, blocks=BLOCKS)
    executor._info = replace(executor.info, kv=few)
    runner, resident = executor.backend.runner, executor._rows
    monkeypatch.setattr(runner._graphs, "run", begin_alone)
    monkeypatch.setattr(tables_module, "MOST_SENT", 5)
    seen: Counter[str] = Counter()
    send = runner.tables._send
    monkeypatch.setattr(runner.tables, "_send", lambda *given: (seen.update(["sent"]), send(*given)))
    enqueue = executor.backend.enqueue

    def compared(work: Any) -> Any:
        flight = enqueue(work)
        assert not work.inputs.tables
        views = runner.buffers.device_views(runner._current)
        rows = views["table_row"][: len(work.plan.row)].tolist()
        assert rows == list(work.plan.row)
        for group, whole in enumerate(resident.tables):
            for row, length in zip(rows, work.inputs.kv_len.tolist(), strict=True):
                count = -(-length // BLOCK_TOKENS)
                assert np.array_equal(views.tables[group][row, :count].numpy(), whole[row, :count]), (work.plan.step, group, row)
            assert not views.tables[group][ROWS, 0], "padding is on block 0"
        seen["steps"] += 1
        return flight

    monkeypatch.setattr(executor.backend, "enqueue", compared)
    config = EngineConfig("null", max_num_seqs=ROWS, max_num_batched_tokens=TOKENS, depth=DEPTH, scheduling_policy="priority")
    engine, _ = make_engine(executor, config)
    random, idle = np.random.default_rng(1), True
    for number in range(2 * STEPS):
        commands: list[Any] = []
        if idle or random.random() < 0.2:
            new = requests(random, number)
            commands = engine.prepare([Admit(each) for each in new])
        elif random.random() < 0.03:
            commands = [Abort(new[0].request_id)]
        turn = engine.turn(commands)
        idle = not turn.progressed
        seen.update(type(event).__name__ for event in turn.events if isinstance(event, Preempted | PrefixHit))
        if seen["steps"] >= STEPS:
            break
    assert seen["steps"] >= STEPS, seen
    assert seen["Preempted"] > 5 and seen["PrefixHit"] > 20 and seen["sent"] > 20, seen
    executor.close()


def test_whole_tables_go_ahead_of_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """More than fits the step: the first of them at once, in parts; what comes later wins."""
    monkeypatch.setattr(tables_module, "MOST_SENT", 7)
    found = BlockTables(device(), groups=2, rows=3, blocks=9, depth=1)
    whole = [1 + np.arange(27, dtype=np.int32).reshape(3, 9) + 100 * group for group in range(2)]
    changes = np.full((2, found.capacity), 0x7F, np.int32)
    for part in ([0, 2], [1]):
        found.write(part, [table[part] for table in whole])
        found.pack(changes)
        column = found.tables.new_tensor(changes)
        nothing = column[0, :0]
        begin(nothing, nothing, nothing, nothing, found.tables, column, 0, found.capacity)()
    for group, table in enumerate(whole):
        assert np.array_equal(found.tables[group, :3].cpu().numpy(), table) and not found.tables[group, 3].any()
    found.pack(changes)
    assert (changes[0] == 3 * 9).all() and not changes[1].any(), "nothing has changed: padding's row keeps its block"
