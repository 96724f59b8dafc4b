"""An executor without arrays: a KV oracle that checks every block that attention would read, in the step that reads it.

Owns the fake KV blocks and the modelled time of a step; never decides anything and never reads a real clock by itself.
A block's mark, one per KV group, is the stamp of the slot written last in it: a hash of all ids up to there and of whom they belong to.
Slots of a block are written in order and each write checks the mark of the one before, so the mark vouches for the whole block:
comparing marks block by block checks token, position, identity and group of every slot at the price of one comparison a block.
"""

from collections import deque

from ridgeline.core.plan import KVGroup, KVShape, Plan, Result, Timings, TokenLogprobs
from ridgeline.engine.executor import ExecutorInfo, Ticket
from ridgeline.errors import LawViolation
from ridgeline.sim.clock import MovableClock, SleepingClock, VirtualClock
from ridgeline.sim.laws.latency import Latency
from ridgeline.sim.laws.model import FakeModel
from ridgeline.sim.laws.rows import Resident

Span = tuple[Resident, int, list[int], int, list[int]]
"""A row's part of a step: the row, its first position, its token ids, whether it samples, and the positions whose next id is scored."""


class SimExecutor:
    """Implements `engine.executor.Executor`. Steps are computed one after the other, each when it is collected,
    or as soon as it is submitted when `eager`: both happen on real devices, and the answer must not depend on it."""

    def __init__(
        self,
        info: ExecutorInfo,
        model: FakeModel,
        clock: MovableClock,
        latency: Latency | None = None,
        eager: bool = False,
    ) -> None:
        self._info = info
        self._model = model
        self._clock = clock
        self._latency = latency or Latency()
        self._eager = eager
        self._block_tokens = info.kv.block_tokens
        self._windows = [group.window for group in info.kv.groups]
        places = info.kv.blocks + info.kv.host_blocks + 1
        self._marks = [[0] * places for _ in info.kv.groups]
        self._owner: list[tuple[Resident, int, int] | None] = [None] * places
        """Who wrote what a block holds, or will in a step in flight: row, group, block."""
        self._rows: list[Resident | None] = [None] * info.rows
        self._queue: deque[tuple[Ticket, list[Span], float]] = deque()
        self._early: deque[Result] = deque()
        self._free_at = 0.0
        self.peak_in_flight = 0
        self.not_finite: dict[tuple[int, int], int] = {}
        """Position that computed to NaN, by (seed, choice): what the engine has been told of."""

    @property
    def info(self) -> ExecutorInfo:
        return self._info

    @property
    def in_flight(self) -> int:
        """Steps submitted and not collected."""
        return len(self._queue)

    def submit(self, plan: Plan) -> Ticket:
        """Takes note of rows and blocks; checks that no block is handed out that a step in flight may still touch."""
        if not plan.row:
            raise LawViolation(6, f"step {plan.step} is empty")
        self._change_rows(plan)
        self._change_owners(plan)
        spans = self._spans(plan)
        ticket = Ticket(plan)
        began = max(self._clock.now(), self._free_at)
        self._free_at = began + self._latency.seconds(plan)
        self._queue.append((ticket, spans, self._free_at))
        self.peak_in_flight = max(self.peak_in_flight, len(self._queue))
        if self._eager:
            self._early.append(self._run(plan, spans))
        return ticket

    def collect(self, ticket: Ticket) -> Result:
        """Lets the modelled time pass and answers for the oldest step."""
        if not self._queue or self._queue[0][0] is not ticket:
            raise RuntimeError(f"step {ticket.plan.step} is not the oldest in flight")
        _, spans, done_at = self._queue.popleft()
        self._clock.advance_to(done_at)
        return self._early.popleft() if self._eager else self._run(ticket.plan, spans)

    def close(self) -> None:
        """Forgets all steps in flight and all rows."""
        self._queue.clear()
        self._early.clear()
        self._rows = [None] * self._info.rows

    # ── submission: rows, tables, and who may touch which block ──────────────────────────────────────────────────

    def _change_rows(self, plan: Plan) -> None:
        for row in plan.freed_rows:
            if self._resident(row).in_flight:
                raise LawViolation(3, f"row {row} is freed while a step in flight writes to it")
            self._rows[row] = None
        for new in plan.new_rows:
            if self._rows[new.row] is not None:
                raise LawViolation(2, f"row {new.row} is given to two sequences")
            if len(new.tables) != len(self._windows):
                raise LawViolation(5, f"row {new.row} comes with {len(new.tables)} tables for {len(self._windows)} groups")
            self._rows[new.row] = Resident(new, self._model)
        for row, group, first, block_ids in plan.blocks:
            resident = self._resident(row)
            table = resident.tables[group]
            if len(table) != first:
                raise LawViolation(2, f"row {row} has {len(table)} blocks of group {group}; block {first} is appended")
            table.extend(block_ids)

    def _change_owners(self, plan: Plan) -> None:
        for source, target in plan.copies:
            self._check_untouched(target, "written by a copy")
            self._owner[target] = self._owner[source]

    def _check_untouched(self, block_id: int, why: str) -> None:
        """No step in flight may still read or write what the block holds."""
        held = self._owner[block_id]
        if held is not None and held[0].in_flight:
            other, group, block = held
            if block_id <= self._info.kv.blocks and block >= self._first_block_read(group, other.in_flight[0]):
                raise LawViolation(3, f"block {block_id} is {why} while a step in flight of row {other.row} may touch it")

    def _hand_out(self, resident: Resident, group: int, first_block: int) -> None:
        """Blocks from `first_block` on that are new in the table become the row's own: nobody may still be about to touch them."""
        table = resident.tables[group]
        for block in range(max(first_block, resident.handed_out[group]), len(table)):
            block_id = table[block]
            if not 0 < block_id <= self._info.kv.blocks:
                raise LawViolation(2, f"row {resident.row} is given block {block_id} of {self._info.kv.blocks}")
            self._check_untouched(block_id, f"given to row {resident.row}")
            self._owner[block_id] = (resident, group, block)
        resident.handed_out[group] = len(table)

    def _spans(self, plan: Plan) -> list[Span]:
        spans: list[Span] = []
        tokens = plan.tokens.tolist()
        at = 0
        scored: dict[int, list[int]] = {}
        for index, begin, count in plan.score:
            scored.setdefault(index, []).extend(range(plan.start[index] + begin, plan.start[index] + begin + count))
        size = self._block_tokens
        for index, row in enumerate(plan.row):
            count = plan.count[index]
            resident = self._resident(row)
            first = plan.start[index]
            resident.submit(first, count)
            for group, table in enumerate(resident.tables):
                if len(table) > resident.handed_out[group]:
                    self._hand_out(resident, group, first // size)
                if len(table) * size < first + count:
                    raise LawViolation(2, f"row {row} computes position {first + count - 1}, group {group} has {len(table)} blocks")
            spans.append((resident, first, tokens[at : at + count], plan.sample[index], resident.to_score(scored.get(index, []))))
            at += count
        if at != len(tokens):
            raise LawViolation(5, f"step {plan.step}: {len(tokens)} tokens for {at} planned")
        return spans

    def _resident(self, row: int) -> Resident:
        resident = self._rows[row] if 0 <= row < len(self._rows) else None
        if resident is None:
            raise LawViolation(5, f"row {row} is planned and not resident")
        return resident

    def _first_block_read(self, group: int, position: int) -> int:
        """The first block that attention reads from `position` on."""
        window = self._windows[group]
        return max(0, position - window + 1) // self._block_tokens if window else 0

    # ── execution: write, then read, then sample ────────────────────────────────────────────────────────────────

    def _run(self, plan: Plan, spans: list[Span]) -> Result:
        for source, target in plan.copies:
            for marks in self._marks:
                marks[target] = marks[source]
        for resident, first, tokens, _, _ in spans:
            resident.advance(first, tokens, self._block_tokens)
            self._write(resident, first)
        sampled: list[tuple[int, ...]] = []
        logprobs: list[tuple[TokenLogprobs, ...] | None] = []
        scores: list[tuple[TokenLogprobs, ...]] = []
        for resident, first, _, samples, scored in spans:
            self._read(resident, first)
            resident.in_flight.popleft()
            if not resident.finite:
                self.not_finite[resident.params.seed, resident.params.choice] = resident.nan_at
            if scored:
                scores.append(tuple([self._score(resident, position) for position in scored]))
            sampled.append((self._sample(resident),) if samples else ())
            best = resident.params.sampling.logprobs
            shown = samples and best is not None
            logprobs.append((self._model.logprobs(resident.chain[-1], sampled[-1][0], best or 0),) if shown else None)
        return Result(
            step=plan.step,
            sampled=tuple(sampled),
            finite=bytearray(resident.finite for resident, *_ in spans),
            logprobs=tuple(logprobs) if any(logprobs) else None,
            timings=Timings(run=self._latency.seconds(plan)),
            scores=tuple(scores) or None,
        )

    def _write(self, resident: Resident, first: int) -> None:
        chain, size, all_marks = resident.chain, self._block_tokens, self._marks
        end = len(chain)
        blocks = range(first // size, (end - 1) // size + 1)
        for group, table in enumerate(resident.tables):
            marks = all_marks[group]
            for block in blocks:
                block_id = table[block]
                begin = block * size
                if first > begin:
                    if marks[block_id] != chain[first - 1]:
                        raise self._wrong_block(resident, group, block)
                else:
                    for others in all_marks:
                        others[block_id] = 0
                begin += size
                marks[block_id] = chain[(end if end < begin else begin) - 1]

    def _read(self, resident: Resident, first: int) -> None:
        size, ends, tables = self._block_tokens, resident.ends, resident.tables
        full, rest = divmod(len(resident.chain), size)
        for group, marks in enumerate(self._marks):
            table, window = tables[group], self._windows[group]
            low = (first - window + 1) // size if 0 < window <= first else 0
            if [marks[block_id] for block_id in table[low:full]] != ends[low:full]:
                wrong = next(block for block in range(low, full) if marks[table[block]] != ends[block])
                raise self._wrong_block(resident, group, wrong)
            if rest and marks[table[full]] != resident.chain[-1]:
                raise self._wrong_block(resident, group, full)

    def _sample(self, resident: Resident) -> int:
        position = len(resident.chain)
        if position != len(resident.ids):
            raise LawViolation(8, f"sequence {resident.sequence} samples at {position}, its ids reach {len(resident.ids)}")
        token = self._model.sample(resident.chain[-1], resident.params, position, resident.past)
        resident.ids.append(token)
        return token

    def _score(self, resident: Resident, position: int) -> TokenLogprobs:
        """Of the prompt token behind `position`."""
        return self._model.logprobs(resident.chain[position], resident.ids[position + 1], resident.params.prompt_logprobs or 0)

    def _wrong_block(self, resident: Resident, group: int, block: int) -> LawViolation:
        block_id = resident.tables[group][block]
        owner = self._owner[block_id]
        content = "nothing" if owner is None else f"block {owner[2]} of sequence {owner[0].sequence}, group {owner[1]}"
        law = 3
        if owner is not None and owner[0] is not resident:
            law = 9 if owner[0].origin != resident.origin else 3 if owner[0].finite else 15
        return LawViolation(
            law,
            f"sequence {resident.sequence} reads {block_id} as its block {block} of group {group}; it holds {content} or is stale",
        )


def fake_executor(
    rows: int = 16,
    blocks: int = 1024,
    block_tokens: int = 16,
    windows: tuple[int, ...] = (0,),
    vocab: int = 512,
    max_model_len: int = 4096,
    model: FakeModel | None = None,
    step_seconds: float = 0.0,
    token_seconds: float = 0.0,
    host_blocks: int = 0,
) -> SimExecutor:
    """An executor for tests of everything above it: needs no weights and samples printable ASCII by default.

    `windows` has one entry a KV group, 0 for full attention. With `step_seconds` or `token_seconds` a step takes that long for real.
    """
    groups = tuple(KVGroup("window" if window else "full", (layer,), window) for layer, window in enumerate(windows))
    info = ExecutorInfo(
        kv=KVShape(groups, block_tokens, blocks, b"fake", host_blocks),
        vocab=vocab,
        max_model_len=max_model_len,
        rows=rows,
        runner="fake",
        weights_bytes=0,
        kv_bytes=0,
    )
    latency = Latency(step_seconds, token_seconds)
    clock: MovableClock = SleepingClock() if step_seconds or token_seconds else VirtualClock()
    return SimExecutor(info, model or FakeModel(), clock, latency)
