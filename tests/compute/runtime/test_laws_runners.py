"""The simulator's laws with a real runner as its executor, the native one where the extension is: a request's bits stay those it has alone.

A tiny random model with window layers and a full one. Aborts, late closes, priorities, several choices, preemption, cold and warm cache,
depth 1 … 4, block sizes 1, 4 and 16.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from random import Random

import gguf
import numpy as np
import pytest

from ridgeline.compute.runtime import worker
from ridgeline.config.groups import EngineConfig
from ridgeline.core.commands import Abort, Admit, Command
from ridgeline.core.params import Admitted, Limits, Sampling
from ridgeline.core.plan import KVGroup, Plan, Result, TokenLogprobs
from ridgeline.core.policy import POLICIES
from ridgeline.core.scheduler import Scheduler
from ridgeline.engine.engine import Engine
from ridgeline.engine.executor import BlockContents, Executor, ExecutorInfo, Ticket
from ridgeline.errors import LawViolation
from ridgeline.planning.memory import sequence_blocks
from ridgeline.sim.clock import VirtualClock
from ridgeline.sim.laws.model import Latency
from ridgeline.sim.laws.oracle import AnswerSource
from ridgeline.sim.laws.run import Simulation
from ridgeline.sim.laws.workload import World, make_world

VOCAB, HIDDEN, LAYERS, HEADS, HEAD_DIM, FFN, WINDOW = 96, 32, 6, 2, 16, 48, 4
LONGEST = 44
BLOCK_TOKEN_BYTES = 2 * 4 * HEAD_DIM
GROUPS = (KVGroup("full", (5,), 0), *(KVGroup("window", (layer,), WINDOW) for layer in range(5)))

Answer = tuple[list[int], list[TokenLogprobs]]


class RecordedAnswer:
    """A recorded answer: ids, and log-probabilities of outputs and prompt where they were requested."""

    def __init__(self, ids: Sequence[int], logprobs: Sequence[TokenLogprobs] | None, prompt_logprobs: Sequence[TokenLogprobs] = ()) -> None:
        self._ids = ids
        self._logprobs = logprobs
        self._prompt_logprobs = prompt_logprobs

    def token(self, index: int) -> int:
        return self._ids[index]

    def logprobs(self, index: int) -> TokenLogprobs | None:
        return None if self._logprobs is None else self._logprobs[index]

    def prompt_logprobs(self) -> Sequence[TokenLogprobs]:
        return self._prompt_logprobs


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("laws") / "laws.gguf"
    writer = gguf.GGUFWriter(path, "gemma3")
    writer.add_context_length(64)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(FFN)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(1)
    writer.add_key_length(HEAD_DIM)
    writer.add_value_length(HEAD_DIM)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(1e6)
    writer.add_sliding_window(WINDOW)
    writer.add_tokenizer_model("llama")
    writer.add_token_list([f"t{i}" for i in range(VOCAB)])
    queries = HEADS * HEAD_DIM
    shapes: dict[str, tuple[int, ...]] = {"token_embd": (VOCAB, HIDDEN), "output_norm": (HIDDEN,)}
    for i in range(LAYERS):
        norms = ("attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm")
        shapes |= {f"blk.{i}.{name}": (HIDDEN,) for name in norms} | {f"blk.{i}.attn_{name}_norm": (HEAD_DIM,) for name in "qk"}
        shapes |= {f"blk.{i}.attn_q": (queries, HIDDEN), f"blk.{i}.attn_output": (HIDDEN, queries)}
        shapes |= {f"blk.{i}.attn_{name}": (HEAD_DIM, HIDDEN) for name in "kv"}
        shapes |= {f"blk.{i}.ffn_{name}": (FFN, HIDDEN) for name in ("gate", "up")} | {f"blk.{i}.ffn_down": (HIDDEN, FFN)}
    rng = np.random.default_rng(5)
    for name, shape in shapes.items():
        writer.add_tensor(f"{name}.weight", (rng.standard_normal(shape) * 0.3 + (len(shape) == 1)).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


class Timed:
    """A real executor whose steps take modelled time on a virtual clock."""

    def __init__(self, executor: Executor, clock: VirtualClock, latency: Latency) -> None:
        self._executor = executor
        self._clock = clock
        self._latency = latency

    @property
    def info(self) -> ExecutorInfo:
        return self._executor.info

    @property
    def blocks(self) -> BlockContents | None:
        return self._executor.blocks

    def submit(self, plan: Plan) -> Ticket:
        return self._executor.submit(plan)

    def collect(self, ticket: Ticket) -> Result:
        self._clock.advance_to(self._clock.now() + self._latency.seconds(ticket.plan))
        return self._executor.collect(ticket)

    def close(self) -> None:
        self._executor.close()


def executor(model: Path, block_tokens: int, blocks: int, rows: int, budget: int, host_blocks: int = 0) -> Executor:
    config = EngineConfig(
        str(model),
        max_model_len=LONGEST,
        max_num_seqs=rows,
        max_num_batched_tokens=budget,
        kv_cache_memory_bytes=blocks * block_tokens * BLOCK_TOKEN_BYTES,
        swap_space=host_blocks * block_tokens * BLOCK_TOKEN_BYTES / 2**30,
        block_size=block_tokens,
        kv_dtype="f32",
    )
    return worker.build(config, lambda stage, fraction: None)


def requests() -> list[Admitted]:
    """Twelve, most of which share 18 ids; one asks for two choices."""
    rng = Random(3)
    shared = [rng.randrange(VOCAB) for _ in range(18)]
    made = []
    for index in range(12):
        own = [rng.randrange(VOCAB) for _ in range(rng.randint(1, 7))]
        made.append(
            Admitted(
                f"r{index}",
                tuple(shared + own if index % 4 else own),
                max_tokens=rng.randint(8, 18),
                seed=index,
                choices=1 + (index == 5),
                sampling=Sampling(temperature=0.8, logprobs=2),
                stop_ids=frozenset({rng.randrange(VOCAB)}),
                two_phase=index % 3 == 0,
                priority=index % 2,
            )
        )
    return made


@pytest.fixture(scope="module")
def answers(model: Path) -> dict[tuple[str, int], Answer]:
    """Every choice alone, one at a time, without a prefix cache."""
    alone = executor(model, 16, 60, rows=1, budget=64)
    limits = Limits(rows=1, token_budget=64, max_model_len=LONGEST, prefix_caching=False)
    engine = Engine(Scheduler(limits, alone.info.kv, POLICIES["one"]), alone, VirtualClock(), 1)
    found: dict[tuple[str, int], Answer] = {}
    turn = engine.turn([Admit(replace(each, two_phase=False)) for each in requests()])
    while turn.progressed:
        for output in turn.outputs:
            ids, logprobs = found.setdefault((output.request_id, output.choice), ([], []))
            ids += output.ids
            logprobs += output.logprobs or ()
        turn = engine.turn()
    alone.close()
    return found


def world(seed: int, policy: str, limits: Limits) -> World:
    """All requests within a few steps, three hang-ups, closes that come late."""
    rng = Random(seed)
    admits: list[tuple[float, Command]] = [(rng.uniform(0.0, 0.05), Admit(each)) for each in requests()]
    aborts: list[tuple[float, Command]] = [(rng.uniform(0.0, 0.1), Abort(f"r{index}")) for index in rng.sample(range(12), 3)]
    inbound = tuple(sorted(admits + aborts, key=lambda item: item[0]))
    base = make_world(0)
    return replace(base, seed=seed, policy=policy, limits=limits, inbound=inbound, close_delay=0.02, abort_permille=0, repeats_close=True)


def run(
    model: Path, here: World, answers: dict[tuple[str, int], Answer], block_tokens: int, blocks: int, host_blocks: int = 0
) -> Counter[str]:
    """The simulation of `here`, to its end, on a real runner: raises LawViolation."""
    clock = VirtualClock()
    device = executor(model, block_tokens, blocks, here.limits.rows, here.limits.token_budget, host_blocks)

    def source(request: Admitted, choice: int) -> AnswerSource:
        return RecordedAnswer(*answers[request.request_id, choice])

    simulation = Simulation(replace(here, info=device.info), clock, Timed(device, clock, here.latency), source, {})
    simulation.run(1 << 30)
    device.close()
    return simulation.coverage.counts


@pytest.mark.parametrize("block_tokens", [1, 4, 16])
@pytest.mark.parametrize("depth", [1, 2, 3, 4])
def test_laws_hold_and_answers_stay_to_the_bit(model: Path, answers: dict[tuple[str, int], Answer], block_tokens: int, depth: int) -> None:
    """Blocks for little more than one request of full length: preemption, eviction and cache hits."""
    blocks = sequence_blocks(GROUPS, block_tokens, LONGEST, chunk=12) * (2 if block_tokens == 1 else 3) // 2
    limits = Limits(rows=8, token_budget=12, depth=depth, max_model_len=LONGEST)
    counts = run(model, world(depth, "priority", limits), answers, block_tokens, blocks)
    assert counts["preempted"] > 0
    assert counts["prefix hit"] > 0
    assert depth == 1 or counts[f"{depth} steps in flight"] > 0


@pytest.mark.parametrize(("depth", "share"), [(1, 0.2), (2, 4), (4, 4)])
def test_laws_hold_with_pages_on_the_host(model: Path, answers: dict[tuple[str, int], Answer], depth: int, share: float) -> None:
    blocks = sequence_blocks(GROUPS, 4, LONGEST, chunk=12) * 3 // 2
    limits = Limits(rows=8, token_budget=12, depth=depth, max_model_len=LONGEST)
    counts = run(model, world(depth, "priority", limits), answers, 4, blocks, int(blocks * share))
    assert counts["block moved to the host"] > 0
    assert share < 1 or (counts["prefix hit on the host"] > 0 and counts["fetched beside blocks that move out"] > 0)


@pytest.mark.parametrize("block_tokens", [1, 4])
@pytest.mark.parametrize("depth", [1, 2, 3, 4])
def test_laws_hold_with_drafts(model: Path, answers: dict[tuple[str, int], Answer], block_tokens: int, depth: int) -> None:
    """Drafts that are right, half right and wrong, past stop ids and limits, in windowed rows that are preempted: bits stay the same."""
    blocks = sequence_blocks(GROUPS, block_tokens, LONGEST, chunk=12) * 5 // 2
    limits = Limits(rows=8, token_budget=24, depth=depth, max_model_len=LONGEST, samples=30)
    counts = Counter[str]()
    for seed in range(3):
        here = replace(world(10 * depth + seed, "priority", limits), drafts=4)
        counts += run(model, here, answers, block_tokens, blocks, 2 * blocks)
    expected = {"drafts all right", "drafts partly right", "drafts all wrong", "drafts of several rows", "drafts of a row with a window"}
    assert expected <= set(counts) and counts["preempted"] > 0 and counts["prefix hit"] > 0
    assert block_tokens == 1 or counts["drafts across a block's edge"] > 0


@pytest.mark.parametrize(("rows", "budget", "caching"), [(1, 64, False), (8, 1, False), (8, 64, True)])
def test_company_chunks_and_cache_do_not_matter(
    model: Path, answers: dict[tuple[str, int], Answer], rows: int, budget: int, caching: bool
) -> None:
    limits = Limits(rows=rows, token_budget=budget, depth=2, max_model_len=LONGEST, prefix_caching=caching)
    run(model, world(9, "fcfs", limits), answers, 4, 400)


def test_a_wrong_bit_is_found(model: Path, answers: dict[tuple[str, int], Answer]) -> None:
    """The comparison can fail: one log-probability of one choice differs in its last bit."""
    ids, logprobs = answers["r1", 0]
    off = replace(logprobs[5], logprob=float(np.nextafter(np.float64(logprobs[5].logprob), 0.0)))
    wrong = answers | {("r1", 0): (ids, [*logprobs[:5], off, *logprobs[6:]])}
    with pytest.raises(LawViolation, match="law 8: r1/0, output 5"):
        run(model, replace(world(9, "fcfs", Limits(max_model_len=LONGEST)), inbound=((0.0, Admit(requests()[1])),)), wrong, 4, 400)
