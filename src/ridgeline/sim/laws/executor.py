"""An executor without arrays: a KV oracle that checks every block that attention would read, in the step that reads it.

Owns the fake KV blocks and the modelled time of a step; makes no decisions and reads no real clock by itself.
A block has stamps, one per KV group and slot: a stamp is a hash of all ids up to its slot and of the sequence's identity. A write truncates
the stamps at its offset, so rejected drafts leave nothing behind, and checks the stamp before it, so the last stamp verifies the whole
block: token, position, identity and group of every slot are checked with one comparison per block.
"""

from array import array
from collections import deque
from collections.abc import Sequence

from ridgeline.core.drafts.model import DraftCache
from ridgeline.core.params import Pooling
from ridgeline.core.plan import KVGroup, KVShape, Plan, Result, Timings, TokenLogprobs
from ridgeline.core.step_time import StepSeconds
from ridgeline.engine.executor import ExecutorInfo, Ticket
from ridgeline.errors import LawViolation
from ridgeline.sim.clock import MovableClock, SleepingClock, VirtualClock
from ridgeline.sim.laws.drafting import SimDrafts
from ridgeline.sim.laws.model import VECTOR_WIDTH, FakeModel, HungModel, Latency
from ridgeline.sim.laws.rows import ResidentRow
from ridgeline.sim.laws.script import GrammarCompiler, LostGrammar, ScriptedModel, followed

Span = tuple[ResidentRow, int, list[int], int, list[int]]
"""A row's part of a step: row, first position, token ids, number of last positions that sample, positions whose next token is scored. The
position is the least until the step runs."""
EMPTY_STAMP = (0,)


class StampBlocks:
    """Implements `engine.executor.BlockContents`: the content of a block is its stamps, as 64-bit integers behind the number of their
    group."""

    def __init__(self, stamps: list[list[list[int]]]) -> None:
        self.staged: dict[int, bytes] = {}
        self._stamps = stamps
        self._taken: dict[int, bytes] = {}
        self.runs = 0
        self.types: dict[str, int] = {}

    def converted(self, content: bytes, type: str) -> bytes:
        return content

    def read(self, block_id: int) -> bytes:
        group = next((number for number, stamps in enumerate(self._stamps) if stamps[block_id]), 0)
        return array("q", [group, *self._stamps[group][block_id]]).tobytes()

    def touch(self, block_ids: Sequence[int]) -> None:
        """Does nothing: these blocks need no memory."""

    def take(self, number: int) -> None:
        """Takes content for a copy of a plan that is submitted."""
        self._taken[number] = self.staged.pop(number)

    def fill(self, number: int, block_id: int) -> None:
        """Writes content that has been taken."""
        group, *stamps = array("q", self._taken.pop(number))
        for others in self._stamps:
            others[block_id].clear()
        self._stamps[group][block_id].extend(stamps)


class SimExecutor:
    """Implements `engine.executor.Executor`. Steps are computed in order, each when it is collected, or with `eager` when it is submitted.

    Both happen on real devices, and the answer must not depend on it.
    """

    def __init__(
        self,
        info: ExecutorInfo,
        model: FakeModel,
        clock: MovableClock,
        latency: Latency | None = None,
        eager: bool = False,
    ) -> None:
        self.grammars: GrammarCompiler | None = None
        """Set by who composes the engine, where `info.has_grammars`."""
        self.adapters = None
        self.trace = None
        self._info = info
        self._model = model
        self._clock = clock
        self._latency = latency or Latency()
        self._eager = eager
        self._block_tokens = info.kv.block_tokens
        self._windows = [group.window for group in info.kv.groups]
        places = info.kv.blocks + info.kv.host_blocks + 1
        self._owner: list[tuple[ResidentRow, int, int] | None] = [None] * places
        """Writer of each block's content, also of a step in flight: (row, group, index in the table)."""
        self._stamps: list[list[list[int]]] = [[[] for _ in range(places)] for _ in info.kv.groups]
        self.blocks = StampBlocks(self._stamps)
        self._rows: list[ResidentRow | None] = [None] * info.rows
        self._adapters: dict[int, bytes] = {}
        """Digest by slot."""
        self._drafts = None if info.drafts is None else SimDrafts(info.drafts, model, info.rows)
        self._queue: deque[tuple[Ticket, list[Span], float]] = deque()
        self._eager_results: deque[Result] = deque()
        self._free_at = 0.0
        self.peak_in_flight = 0
        self.not_finite: dict[tuple[int, int], int] = {}
        """First position that no id may be sampled from, by (seed, choice): it computed to NaN, as reported to the engine, or, where that
        is a position of ids known before (they came from blocks of another choice), it is the last of these."""

    @property
    def info(self) -> ExecutorInfo:
        return self._info

    @property
    def in_flight(self) -> int:
        """Steps submitted and not collected."""
        return len(self._queue)

    def submit(self, plan: Plan) -> Ticket:
        """Records rows and blocks; checks that no block is assigned that a step in flight may still read or write. Raises LawViolation."""
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
            self._eager_results.append(self._run(plan, spans))
        return ticket

    def collect(self, ticket: Ticket) -> Result:
        """Advances the clock to the end of the oldest step and returns its result."""
        if not self._queue or self._queue[0][0] is not ticket:
            raise RuntimeError(f"step {ticket.plan.step} is not the oldest in flight")
        _, spans, done_at = self._queue.popleft()
        self._clock.advance_to(done_at)
        return self._eager_results.popleft() if self._eager else self._run(ticket.plan, spans)

    def beat(self) -> int:
        """A number that changes while a step takes its time."""
        return self._clock.moves

    def close(self) -> None:
        """Drops all steps in flight and all rows."""
        self._queue.clear()
        self._eager_results.clear()
        self._rows = [None] * self._info.rows
        if self.grammars is not None:
            self.grammars.close()

    # ── submission: rows, tables, writers of blocks ──────────────────────────────────────────────────

    def _change_rows(self, plan: Plan) -> None:
        for row in plan.freed_rows:
            if self._resident(row).in_flight:
                raise LawViolation(3, f"row {row} is freed while a step in flight writes to it")
            self._rows[row] = None
        for fill in plan.fills:
            if any(resident is not None and resident.slot == fill.slot for resident in self._rows):
                raise LawViolation(5, f"slot {fill.slot} is filled while a row uses it")
            self._adapters[fill.slot] = fill.digest
        for new in plan.new_rows:
            if self._rows[new.row] is not None:
                raise LawViolation(2, f"row {new.row} is given to two sequences")
            if len(new.tables) != len(self._windows):
                raise LawViolation(5, f"row {new.row} comes with {len(new.tables)} tables for {len(self._windows)} groups")
            adapter = b"" if new.slot < 0 else self._adapters.get(new.slot)
            if adapter is None:
                raise LawViolation(5, f"row {new.row} uses slot {new.slot}, which has never been filled")
            self._rows[new.row] = resident = ResidentRow(new, self._model, adapter)
            grammar = new.params.sampling.grammar
            if grammar is not None and self.grammars is not None:
                resident.grammar = self.grammars.start(grammar, new.ids[new.params.prompt_tokens :])
        for row, group, first, block_ids in plan.blocks:
            resident = self._resident(row)
            table = resident.tables[group]
            if len(table) != first:
                raise LawViolation(2, f"row {row} has {len(table)} blocks of group {group}; block {first} is appended")
            table.extend(block_ids)

    def _change_owners(self, plan: Plan) -> None:
        for source, target in plan.copies:
            self._check_untouched(target, "written by a copy")
            self._owner[target] = self._owner[source] if source > 0 else None
            if source < 0:
                self.blocks.take(-source)

    def _check_untouched(self, block_id: int, why: str) -> None:
        """Raises LawViolation if a step in flight may still read or write the block."""
        held = self._owner[block_id]
        if held is not None and held[0].in_flight:
            other, group, block = held
            if block_id <= self._info.kv.blocks and block >= self._first_block_read(group, other.in_flight[0]):
                raise LawViolation(3, f"block {block_id} is {why} while a step in flight of row {other.row} may read or write it")

    def _assign_blocks(self, resident: ResidentRow, group: int, first_block: int) -> None:
        """Assigns blocks that are new in the table, from `first_block` on, to the row: no step in flight may read or write them."""
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
            first, open = plan.start[index], plan.open[index] if plan.open else 0
            resident.submit(first, count, max(0, plan.sample[index] - 1), open)
            for group, table in enumerate(resident.tables):
                if len(table) > resident.handed_out[group]:
                    self._assign_blocks(resident, group, first // size)
                if len(table) * size < first + open + count:
                    raise LawViolation(2, f"row {row} computes position {first + open + count - 1}, group {group} has {len(table)} blocks")
            spans.append((resident, first, tokens[at : at + count], plan.sample[index], resident.to_score(scored.get(index, []))))
            at += count
        if at != len(tokens):
            raise LawViolation(5, f"step {plan.step}: {len(tokens)} tokens for {at} planned")
        return spans

    def _resident(self, row: int) -> ResidentRow:
        resident = self._rows[row] if 0 <= row < len(self._rows) else None
        if resident is None:
            raise LawViolation(5, f"row {row} is planned and holds no sequence")
        return resident

    def _first_block_read(self, group: int, position: int) -> int:
        """The first block that attention reads from `position` on."""
        window = self._windows[group]
        return max(0, position - window + 1) // self._block_tokens if window else 0

    # ── execution: write, then read, then sample ────────────────────────────────────────────────────────────────

    def _run(self, plan: Plan, spans: list[Span]) -> Result:
        for source, target in plan.copies:
            if source < 0:
                self.blocks.fill(-source, target)
                continue
            for stamps in self._stamps:
                stamps[target] = stamps[source].copy()
        if plan.open:
            spans = [(each[0], each[0].first(each[1], open), *each[2:]) for each, open in zip(spans, plan.open, strict=True)]
        drafted = () if self._drafts is None else self._drafts.run(plan.spans, spans, plan.open)
        for resident, first, tokens, samples, _ in spans:
            resident.advance(first, tokens, max(0, samples - 1), self._block_tokens)
            self._write(resident, first)
        sampled: list[tuple[int, ...]] = []
        logprobs: list[tuple[TokenLogprobs, ...] | None] = []
        scores: list[tuple[TokenLogprobs, ...]] = []
        for resident, first, tokens, samples, scored in spans:
            self._read(resident, first)
            resident.in_flight.popleft()
            if scored:
                best = resident.params.prompt_logprobs or 0
                known = [(resident.chain[position], resident.ids[position + 1]) for position in scored]
                scores.append(tuple([self._model.logprobs(stamp, following, best) for stamp, following in known]))
            begin, last_known = len(resident.chain) - samples, len(resident.ids) - 1
            ids = self._sample_row(resident, begin, tokens[len(tokens) - samples + 1 :]) if samples else []
            sampled.append(tuple(ids))
            logprobs.append(self._logprobs(resident, begin, ids))
            if samples > 1:
                resident.cut(begin + max(1, len(ids)), self._block_tokens)
                resident.accept(max(0, len(ids) - 1))
            if not resident.finite:
                self.not_finite.setdefault((resident.params.seed, resident.params.choice), max(resident.nan_at, last_known))
        return Result(
            step=plan.step,
            sampled=tuple(sampled),
            finite=bytearray(resident.finite and not resident.lost for resident, *_ in spans),
            logprobs=tuple(logprobs) if any(logprobs) else None,
            timings=Timings(run=self._latency.seconds(plan)),
            scores=tuple(scores) or None,
            failures=tuple((index, resident.lost) for index, (resident, *_) in enumerate(spans) if resident.lost),
            vectors=tuple([self._model.vector(spans[index][0].chain[-1], spans[index][0].params) for index in plan.pool]),
            drafted=drafted,
        )

    def _write(self, resident: ResidentRow, first: int) -> None:
        chain, size = resident.chain, self._block_tokens
        blocks = range(first // size, (len(chain) - 1) // size + 1)
        for group, table in enumerate(resident.tables):
            for block in blocks:
                block_id, begin = table[block], block * size
                stamps = self._stamps[group][block_id]
                if first > begin:
                    if (stamps[: first - begin] or EMPTY_STAMP)[-1] != chain[first - 1]:
                        raise self._wrong_block(resident, group, block)
                    del stamps[first - begin :]
                else:
                    for others in self._stamps:
                        others[block_id].clear()
                stamps += chain[max(first, begin) : begin + size]

    def _read(self, resident: ResidentRow, first: int) -> None:
        size, ends, tables = self._block_tokens, resident.ends, resident.tables
        full, rest = divmod(len(resident.chain), size)
        for group, stamps in enumerate(self._stamps):
            table, window = tables[group], self._windows[group]
            low = (first - window + 1) // size if 0 < window <= first else 0
            if [(stamps[block_id] or EMPTY_STAMP)[-1] for block_id in table[low:full]] != ends[low:full]:
                wrong = next(block for block in range(low, full) if (stamps[table[block]] or EMPTY_STAMP)[-1] != ends[block])
                raise self._wrong_block(resident, group, wrong)
            if rest and (stamps[table[full]] or EMPTY_STAMP)[-1] != resident.chain[-1]:
                raise self._wrong_block(resident, group, full)

    def _sample_row(self, resident: ResidentRow, begin: int, drafts: list[int]) -> list[int]:
        """Samples after position `begin` and after each further one while its draft is right; stops before a non-finite position."""
        if begin + 1 != len(resident.ids):
            raise LawViolation(8, f"sequence {resident.sequence} samples at {begin + 1}, its ids reach {len(resident.ids)}")
        found: list[int] = []
        for position in range(begin, begin + len(drafts) + 1):
            if not resident.is_finite_up_to(position):
                resident.ids += [] if found else [0]  # steps in flight continue from any id
                break
            token = self._model.sample(resident.chain[position], resident.params, position + 1, resident.past)
            if resident.grammar is not None:
                try:
                    token = followed(resident.grammar, token, resident.chain[position])
                except LostGrammar as error:
                    resident.lost = str(error)
                    resident.ids += [] if found else [0]  # as above
                    break
            resident.ids.append(token)
            found.append(token)
            if position - begin < len(drafts) and token != drafts[position - begin]:
                break
        return found

    def _logprobs(self, resident: ResidentRow, begin: int, ids: list[int]) -> tuple[TokenLogprobs, ...] | None:
        """Log-probabilities of the ids sampled after position `begin` and those that follow, where the row requests them."""
        best = resident.params.sampling.logprobs
        if best is None or not ids:
            return None
        return tuple([self._model.logprobs(resident.chain[begin + index], token, best) for index, token in enumerate(ids)])

    def _wrong_block(self, resident: ResidentRow, group: int, block: int) -> LawViolation:
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
    hang: str = "",
    script: Sequence[Sequence[str]] | None = None,
    draft_blocks: int = 0,
) -> SimExecutor:
    """An executor for tests of the layers above it: needs no weights and samples printable ASCII by default.

    `windows` has one entry per KV group, 0 for full attention. With `step_seconds` or `token_seconds` a step takes that long in real time.
    With `draft_blocks` there is a draft
    model, whose cache has so many. `hang`: see `HungModel`. `script`: see `ScriptedModel`; its answers follow the grammars of requests.
    """
    model = ScriptedModel(script=tuple((*each,) for each in script)) if script else model or FakeModel()  # type: ignore[misc]
    groups = tuple(KVGroup("window" if window else "full", (layer,), window) for layer, window in enumerate(windows))
    info = ExecutorInfo(
        kv=KVShape(groups, block_tokens, blocks, b"fake", host_blocks),
        vocab=vocab,
        max_model_len=max_model_len,
        rows=rows,
        samples=9 * rows,
        runner="fake",
        weights_bytes=0,
        kv_bytes=0,
        has_grammars=bool(script),
        pooling=Pooling(),
        width=VECTOR_WIDTH,
        drafts=DraftCache(1, block_tokens, draft_blocks, max_model_len, vocab=vocab) if draft_blocks else None,
        seconds=StepSeconds(step_seconds, token_seconds, token_seconds) if step_seconds or token_seconds else None,
    )
    latency = Latency(step_seconds, token_seconds)
    clock: MovableClock = SleepingClock() if step_seconds or token_seconds else VirtualClock()
    return SimExecutor(info, HungModel(hang=hang) if hang else model, clock, latency)
