"""An engine whose KV blocks outlive it, over the simulated executor, and a tier that a test may poison."""

import random
import select
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

from ridgeline.config.secret import private_folder
from ridgeline.core.commands import Admit, Command
from ridgeline.core.events import Closed, Event, PrefixHit
from ridgeline.core.params import Admitted, Limits
from ridgeline.core.plan import KVShape
from ridgeline.core.policy import POLICIES
from ridgeline.core.scheduler import Scheduler
from ridgeline.engine.engine import Engine
from ridgeline.engine.record import RecordedEngine, Recorder, Setup
from ridgeline.engine.tiers.file import FileTier
from ridgeline.engine.tiers.seal import Content, Seal
from ridgeline.engine.tiers.store import BlockStore
from ridgeline.engine.tiers.tier import Tier
from ridgeline.engine.tiers.worth import NOWHERE, Place
from ridgeline.observe.metrics import Metrics
from ridgeline.observe.prometheus import exposition
from ridgeline.sim.clock import VirtualClock
from ridgeline.sim.laws.executor import SimExecutor, StampBlocks, fake_executor
from ridgeline.sim.laws.model import FakeModel

SECRET = bytes(range(32))
PROMPT = tuple(100 + number * 7 % 90 for number in range(100))
BYTES = 1 << 20


STAMP_BYTES = 8 * 17


@cache
def shape(block_bytes: int = STAMP_BYTES) -> KVShape:
    """Two groups, one with a window; a block's stamps, and their group, are its bytes, or the first of these (`Padded`)."""
    return replace(fake_executor(windows=(0, 24)).info.kv, block_bytes=block_bytes)


def file_tier(folder: Path, most_bytes: int = BYTES, block_bytes: int = STAMP_BYTES) -> FileTier:
    with private_folder(str(folder)) as descriptor:
        return FileTier(descriptor, "model", Seal(SECRET, shape(block_bytes)).value_bytes, most_bytes)


class Padded(StampBlocks):
    """Contents of simulated blocks that are as large as those of a model: stamps, and what follows from them."""

    class Staged(dict[int, bytes]):
        wrong = 0

        def __setitem__(self, number: int, content: bytes) -> None:
            self.wrong += content != padded(content[:STAMP_BYTES], len(content))
            super().__setitem__(number, content[:STAMP_BYTES])

    def __init__(self, blocks: StampBlocks, block_bytes: int) -> None:
        self.__dict__.update(vars(blocks))
        self.staged = blocks.staged = self.content = self.Staged()
        self._bytes = block_bytes

    def read(self, block_id: int) -> bytes:
        return padded(super().read(block_id), self._bytes)


def padded(content: bytes, size: int) -> bytes:
    return (content + sha256(content).digest() * (size // 32)).ljust(size, b"\0")[:size]


class Run:
    """An engine over the simulated executor, which checks the content of every block that it reads, and a store over `tiers`."""

    def __init__(
        self, tiers: Sequence[Tier], seconds: float = 4e-3, record: Path | None = None, secret: bytes = SECRET,
        block_bytes: int = STAMP_BYTES, **bounds: Any,
    ) -> None:  # fmt: skip
        kv = shape(block_bytes)
        executor = SimExecutor(replace(fake_executor().info, kv=kv), FakeModel(), VirtualClock())
        limits = Limits(rows=4, token_budget=64, depth=2)
        scheduler = Scheduler(limits, kv, POLICIES["fcfs"])
        self.blocks = executor.blocks if block_bytes == STAMP_BYTES else Padded(executor.blocks, block_bytes)
        self.store = BlockStore(tiers, Seal(secret, kv), kv, self.blocks, token_seconds=lambda: seconds, **bounds)
        if record is None:
            self.engine = Engine(scheduler, executor, VirtualClock(), 2, self.store)
        else:
            recorder = Recorder(executor, record, Setup(limits, kv, "fcfs", 16))
            self.engine = RecordedEngine(scheduler, VirtualClock(), 2, recorder, self.store)
        self.events: list[Event] = []

    def answer(self, name: str, prompt: tuple[int, ...] = PROMPT, **fields: object) -> tuple[int, ...]:
        request = Admitted(request_id=name, prompt=prompt, max_tokens=8, seed=5, two_phase=False, **fields)  # type: ignore[arg-type]
        commands: list[Command] = [Admit(request)]
        ids: list[int] = []
        while commands or not self.engine.idle:
            if not commands and not self.engine.in_flight and (awaited := self.engine.awaited):
                assert select.select(awaited, [], [], 20)[0], "a fetch is never reported"
            turn = self.engine.turn(self.engine.prepare(commands))
            commands = []
            ids += [token for output in turn.outputs for token in output.ids]
            self.events += turn.events
        assert any(isinstance(event, Closed) and event.request_id == name for event in self.events)
        return tuple(ids)

    def close(self) -> dict[str, int]:
        self.engine.close()
        assert not (isinstance(self.blocks, Padded) and self.blocks.content.wrong), "a block that nobody has computed was used"
        return dict(next(iter(self.store.counts.values())))

    def metric(self, name: str) -> float:
        """The sum over tiers of what `/metrics` shows."""
        metrics = Metrics()
        for event in self.events:
            metrics.apply(event)
        lines = exposition(metrics, "m", shape()).decode().splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(f"{name}{{"))

    @property
    def from_tier(self) -> int:
        return sum(event.from_tier for event in self.events if isinstance(event, PrefixHit))


class MemoryTier:
    """A tier whose values a test may change. `seconds` of each read; `fails`: every call raises."""

    name = "memory"
    takes = True
    refused = 0

    def __init__(self, seconds: float = 0.0, fails: bool = False) -> None:
        self.values: dict[bytes, bytes] = {}
        self.seconds, self.fails = seconds, fails

    def might_have(self, name: bytes) -> bool:
        return True

    def has(self, names: Sequence[bytes]) -> list[bool]:
        if self.fails:
            raise OSError("gone")
        return [name in self.values for name in names]

    def get(self, names: Sequence[bytes], seconds: float, value_bytes: int) -> list[bytes | None]:
        time.sleep(self.seconds)
        return [self.values.get(name) for name in names]

    def put(self, name: bytes, value: bytes, place: Place = NOWHERE) -> None:
        if self.fails:
            raise OSError("gone")
        self.values[name] = value

    def forget(self, name: bytes) -> None:
        self.values.pop(name, None)

    def close(self) -> None:
        pass


def kept(tier: Tier, block_bytes: int = STAMP_BYTES) -> None:
    """Lets an engine compute the prompt, and end."""
    run = Run([tier], block_bytes=block_bytes)
    run.answer("a")
    assert run.close()["kept"] >= 2 * (len(PROMPT) // 16)


def poison(rng: random.Random, values: dict[bytes, bytes]) -> None:
    """Changes every value in one of the ways that a tier could."""
    for name, value in list(values.items()):
        at, other = rng.randrange(len(value)), rng.choice(list(values.values()))
        values[name] = rng.choice((
            value[:at], value + b"\0", b"", rng.randbytes(len(value)),
            value[:at] + bytes([value[at] ^ 1 << rng.randrange(8)]) + value[at + 1 :],
            other if other != value else b"", bytes(len(value)), value[:32] + rng.randbytes(len(value) - 32),
        ))  # fmt: skip


def content(number: int, block_bytes: int = STAMP_BYTES) -> tuple[Content, bytes]:
    key = number.to_bytes(32, "little")
    return Content(key, 0, tuple(range(number, number + 16)), b""), padded(key, block_bytes)
