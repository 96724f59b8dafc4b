"""The verdict: a server's bottleneck now, its distance from its ceilings and its knee, and which levers help, with their predicted gain.

Arithmetic on the sums of the last seconds (`observe.live`) and on the planner's model of this machine, corrected by what starts measured.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from math import ceil
from typing import Final, Literal

from ridgeline.config.groups import EngineConfig
from ridgeline.engine.executor import ExecutorInfo
from ridgeline.observe.knee import Steps, steps_of
from ridgeline.observe.live import Second
from ridgeline.planning.deployment import Deployment, Workload
from ridgeline.planning.formats import class_bytes
from ridgeline.planning.levers import ACCEPTANCE, DRAFT_TOKENS, accepted_tokens
from ridgeline.planning.speed import decode_itl, decode_work, knee, mixed_itl
from ridgeline.planning.step import IDEAL, RowGroup, StepWork, pass_seconds, reached, resource_seconds, step_work

Bottleneck = Literal["none", "kv_cache", "rows", "host", "compute", "memory", "device"]
"""none: idle part of the time; rows: --max-num-seqs; device: busy, and nothing is known of its ceilings."""
BOTTLENECKS: Final[tuple[Bottleneck, ...]] = ("none", "kv_cache", "rows", "host", "compute", "memory", "device")
WINDOW_SECONDS: Final = 10
MANY: Final = 0.5
"""Choices that wait on average from which a queue counts."""
FULL: Final = 0.9
"""Share of the time from which a server counts as busy all of it."""
HOST_SHARE: Final = 0.3
"""Share of busy time outside of the executor from which the host is the bottleneck."""
MOST_BATCH: Final = 512
LEAST_GAIN: Final = 1.03
"""Smaller predicted gains are within the errors of the model."""


@dataclass(frozen=True, slots=True)
class Lever:
    """A change and what it is predicted to do: `gain` is the factor by which `figure` gets better."""

    name: str
    figure: Literal["throughput", "itl"]
    gain: float
    why: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """The verdict on the last seconds. Shares of 1: `busy` of the time, `host` of busy time, `compute` and `memory` of this machine's
    ceilings while steps run, `kv` of blocks. `batch` is rows per step; `knee` that at which computing takes over from bandwidth
    (`observe.knee`), None where the model of the machine is not known."""

    bottleneck: Bottleneck
    text: str
    busy: float
    host: float
    compute: float | None
    memory: float | None
    kv: float
    batch: float
    knee: float | None
    levers: tuple[Lever, ...]


@dataclass(frozen=True, slots=True)
class Served:
    """Properties of the judged server: the engine's facts and settings, its model on this machine (None: unknown), mean tokens of requests,
    what steps took that decoded so many rows and nothing else, and seconds of a prompt's token beyond these (0: unknown)."""

    info: ExecutorInfo
    config: EngineConfig
    planned: Deployment | None
    prompt: float
    output: float
    seen: Mapping[int, float] = field(default_factory=dict)
    prompt_token: float = 0.0


def judge(window: Second, served: Served) -> Verdict:
    """The verdict on a window's steps."""
    info, planned = served.info, _with_load(served)
    if not window.steps:
        return Verdict("none", "idle", 0.0, 0.0, None, None, 0.0, 0.0, None, ())
    blocks = max(1, info.kv.blocks)
    rows, waiting = window.rows / window.steps, window.waiting / window.steps
    kv = max(0.0, 1 - window.unheld / window.steps / blocks)
    busy, host = min(1.0, window.busy / window.at), max(0.0, 1 - window.run / max(window.busy, 1e-9))
    shares: tuple[float, float] | None = None
    bound: Bottleneck = "device"
    model = None if planned is None else _Model(window, served, planned, _steps(window, served, planned))
    if model is not None:
        work = _mean_step(window, info, model.planned, kv)
        seconds = max(1e-9, window.run / window.steps)
        compute, memory = resource_seconds(model.planned, work, IDEAL)
        shares = compute / seconds, memory / seconds
        bound = "compute" if model.computes(rows, work) else "memory"
    bottleneck = _bottleneck(window, busy, host, bound)
    found, at_knee = tuple[Lever, ...](), None
    if model is not None:
        at_knee = model.knee()
        found = tuple(sorted(_levers(served, model, bottleneck, rows, waiting, busy), key=lambda each: -each.gain))
    verdict = Verdict(
        bottleneck, "", busy, host, shares and shares[0], shares and shares[1], kv, rows, at_knee,
        tuple(each for each in found if each.gain >= LEAST_GAIN),
    )  # fmt: skip
    return replace(verdict, text=_sentence(verdict, window, waiting, bound))


def _with_load(served: Served) -> Deployment | None:
    """The planned deployment with the lengths that requests have."""
    if served.planned is None:
        return None
    prompt, output = max(1, round(served.prompt)), max(1, round(served.output))
    return replace(served.planned, workload=Workload(prompt, output), chunk=served.info.tokens)


def _mean_step(window: Second, info: ExecutorInfo, planned: Deployment, kv: float) -> StepWork:
    """Cost of a step with the mean numbers of rows and prompt tokens, at the mean context by the blocks that are held."""
    rows, decode = window.rows / window.steps, window.decode / window.steps
    prefill = (window.tokens - window.decode) / window.steps
    context = round(kv * info.kv.blocks * info.kv.block_tokens / max(1, len(info.kv.groups)) / max(1.0, rows))
    groups = [RowGroup(min(context, info.max_model_len - 1), 1, decode)] if decode else []
    if prefill >= 1:
        groups.append(RowGroup(0, round(prefill), 1.0))
    return step_work(planned, groups)


def _bottleneck(window: Second, busy: float, host: float, bound: Bottleneck) -> Bottleneck:
    waiting = window.waiting / window.steps
    if max(window.lack_rows, window.lack_blocks) >= MANY * window.steps:
        return "kv_cache" if window.lack_blocks >= window.lack_rows else "rows"
    if busy < MANY and waiting < MANY:
        return "none"
    return "host" if host > HOST_SHARE else bound


def _steps(window: Second, served: Served, planned: Deployment) -> Steps | None:
    """Steps as they take place. Of a GPU None: its steps turn at the ridge, as the estimates of the planner do, where a CPU's grow from the
    first row on."""
    start = served.info.seconds
    return None if start is None or planned.device.is_gpu else steps_of(start, served.seen, served.prompt_token, window)


@dataclass(frozen=True, slots=True)
class _Model:
    """Steps of the served load by their batch: as they take place where that is known, else as the planner estimates them."""

    window: Second
    served: Served
    planned: Deployment
    steps: Steps | None

    @property
    def prompt(self) -> float:
        """Prompt tokens that are computed with each output token: what the prefix cache has is not among them."""
        prefill, decode = self.window.tokens - self.window.decode, self.window.decode
        return prefill / decode if decode else self.served.prompt / max(1.0, self.served.output)

    def growth(self, before: int, after: int) -> float:
        """Seconds of a step of so many sequences, and the prompts that come with them, over those of another."""
        if self.steps is None:
            return mixed_itl(self.planned, after) / mixed_itl(self.planned, before)
        return self.steps.growth(before, after, self.prompt)

    def knee(self) -> float:
        """The batch of the greatest throughput over latency."""
        return float(knee(self.planned, MOST_BATCH)) if self.steps is None else self.steps.knee(self.prompt, MOST_BATCH)

    def computes(self, rows: float, work: StepWork) -> bool:
        """True where computing binds the mean step, and not what it reads."""
        if self.steps is not None:
            return rows > self.knee()
        compute, memory = resource_seconds(self.planned, work, reached(self.planned))
        return compute > memory


def _levers(served: Served, model: _Model, bottleneck: Bottleneck, rows: float, waiting: float, busy: float) -> Iterator[Lever]:
    """Levers that act on the bottleneck, each alone, with the planner's estimate of its gain."""
    planned = model.planned
    batch, wanted, config = max(1, round(rows)), max(1, ceil(rows + waiting)), served.config

    def more(most: int) -> float:
        """The gain in tokens per second where so many rows may run."""
        after = max(batch, min(most, wanted))
        return after / batch / model.growth(batch, after)

    if bottleneck == "rows":
        twice = min(4096, 2 * served.info.rows)
        yield Lever(f"--max-num-seqs {twice}", "throughput", more(twice), "requests wait although the KV cache has room")
    if bottleneck == "kv_cache":
        if planned.kv_bits > 8:
            wider = batch * planned.kv_bits // 8
            yield Lever("--kv-dtype int8", "throughput", more(wider), "half of the bytes per token: twice the sequences; check quality")
        yield Lever("--kv-cache-memory-bytes × 2", "throughput", more(2 * batch), "twice the sequences, where this machine has the memory")
    if bottleneck in ("compute", "memory") and busy >= FULL and waiting >= MANY:
        yield Lever("another replica", "throughput", min(2.0, wanted / batch), "this one is busy all the time, and requests wait")
    if bottleneck in ("compute", "memory"):
        narrow = replace(planned, dtype="q4_k")
        if sum(class_bytes(planned.model, "q4_k").values()) < 0.9 * sum(class_bytes(planned.model, planned.dtype).values()):
            gain = decode_itl(planned, batch) / decode_itl(narrow, batch)
            yield Lever("weights in 4 bits (another file)", "itl", gain, "fewer bytes per step; check quality")
        best = max(1, round(model.knee()))
        if batch > 1.5 * best:
            gain = model.growth(best, batch)
            yield Lever(f"--max-num-seqs {best}", "itl", gain, "beyond the knee latency grows faster than throughput; more requests wait")
    if bottleneck in ("memory", "none") and config.speculative == "off":
        verify = step_work(planned, [RowGroup(round(served.prompt), DRAFT_TOKENS + 1, batch, sampled=DRAFT_TOKENS + 1)])
        passes = pass_seconds(planned, verify) / pass_seconds(planned, decode_work(planned, batch))
        gain = accepted_tokens(ACCEPTANCE, DRAFT_TOKENS) / passes
        yield Lever("--speculative ngram", "itl", gain, f"for text that repeats itself: {ACCEPTANCE:.0%} of drafts assumed right")
    if bottleneck == "host" and config.depth == 1:
        yield Lever("--depth 2", "throughput", 1 / (1 - HOST_SHARE), "the host plans while the device computes")


def _sentence(verdict: Verdict, window: Second, waiting: float, bound: Bottleneck) -> str:
    """The verdict in words: phase, bottleneck, ceilings, host, batch and knee."""
    prefill = window.tokens - window.decode
    phase = "prefill" if prefill > 2 * window.decode else "decode" if prefill < window.decode / 2 else "prefill and decode"
    names = {
        "none": f"idle {1 - verdict.busy:.0%} of the time", "kv_cache": "the KV cache binds", "rows": "--max-num-seqs binds",
        "host": "the host binds", "compute": "compute-bound", "memory": "bandwidth-bound", "device": "the device is busy",
    }  # fmt: skip
    parts = [phase, names[verdict.bottleneck]]
    if verdict.bottleneck in ("kv_cache", "rows") and bound != "device":
        parts.append(f"before {'compute' if bound == 'compute' else 'bandwidth'} does")
    share = verdict.compute if bound == "compute" else verdict.memory
    if share is not None:
        parts.append(f"{share:.0%} of the {'compute' if bound == 'compute' else 'bandwidth'} ceiling while it runs")
    parts.append(f"{verdict.host:.0%} host")
    parts.append(f"batch {verdict.batch:.3g}" + (f" of knee {verdict.knee:.3g}" if verdict.knee else ""))
    parts.append(f"KV {verdict.kv:.0%} held")
    if waiting >= MANY:
        parts.append(f"{waiting:.3g} wait")
    return ", ".join(parts)
