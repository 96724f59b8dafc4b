"""Predictions against measurements: memory by use, and seconds of steps; and what steps reach, fitted to these.

Pure arithmetic. Measurements are those of a start (`compute.runtime.measure`), or the many of `ridgeline plan --verify`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import exp, log
from pathlib import Path
from statistics import fmean, median
from typing import TYPE_CHECKING, Final

from ridgeline.config.resolve import Decision
from ridgeline.facts.hardware.this_machine import this_machine
from ridgeline.facts.model import ModelFacts
from ridgeline.planning.arguments import THIS_MACHINE, PlanOptions, deployment_of
from ridgeline.planning.corrections import Correction, corrected, keep_correction, read_correction
from ridgeline.planning.deployment import Deployment, block_bytes_of, rank_activations, rank_weights
from ridgeline.planning.step import IDEAL, RowGroup, link_seconds, overlapped, part_seconds, pass_seconds, reached, step_work

if TYPE_CHECKING:
    from ridgeline.engine.executor import ExecutorInfo

Timed = tuple[int, int, float]
"""Rows of a step, tokens of each, and its seconds. All rows begin at position 0 and sample once."""
Point = tuple[float, float, float, float, float]
"""Logarithms of the shares that products and reads reach, of the head's over that of products, and of attention's share; the overlap."""
LEAST_SHARE, MOST_SHARE = 1e-3, 10.0
"""Shares of a ceiling. Above 1 where weights lie in caches, or the ceiling was measured beside other load."""
KNOWN_WEIGHT: Final = 1e-4
"""Weight of a share's distance from what was known."""
COARSE: Final = 16
"""Shares of each kind that the fit begins with, evenly on a logarithmic scale, at each of these overlaps; it then halves its steps so many
times:"""
OVERLAPS: Final = (0.0, 0.25, 0.5, 0.75, 1.0)
REFINEMENTS: Final = 12
UNKNOWNS: Final = 5
"""Unknowns of a fit: what products, reads, the head and attention reach, and what overlaps."""
CONTRADICTION: Final = 0.35
"""A start whose few steps, in the median, are by so much quicker or slower than those of the start behind which many were timed replaces
what these have told: the machine is another. Shared ones are a quarter quicker or slower from one minute to the next."""
MOVES: Final = 4
"""So many moves of a size at most."""


@dataclass(frozen=True, slots=True)
class Line:
    """One figure, in bytes or seconds."""

    name: str
    unit: str
    predicted: float
    measured: float

    @property
    def error(self) -> float:
        """The prediction over the measurement, less 1."""
        return self.predicted / self.measured - 1 if self.measured else 0.0

    @property
    def told(self) -> tuple[str, str, str]:
        """Prediction, measurement and error as people read them: MB or ms, and per cent."""
        scale, unit = (1e6, "MB") if self.unit == "B" else (1e-3, "ms")
        return f"{self.predicted / scale:,.2f} {unit}", f"{self.measured / scale:,.2f} {unit}", f"{self.error:+.1%}"


@dataclass(frozen=True, slots=True)
class Verification:
    """A start's predictions beside what was measured. `deployment`: what was started, on this machine as it is known now; `runner`: by
    which."""

    lines: tuple[Line, ...]
    deployment: Deployment
    runner: str


def verify_start(
    facts: ModelFacts,
    decisions: Sequence[Decision],
    info: "ExecutorInfo",
    process_bytes: int | None,
    cache: Path,
    timed: Sequence[Timed] | None = None,
) -> Verification | None:
    """Compares an engine's start with what the planner says of it, and keeps what was reached as this machine's.

    facts          of the planner                       decisions  of the engine
    process_bytes  of its process; None: unknown        cache      where corrections are kept
    timed          more steps than those that the start timed: by `plan --verify`, whose process is smaller than a server's engine
    None where there is nothing to compare: no step was timed, or the planner does not know the device.
    """
    values = {each.name: each.value for each in decisions}
    runner, is_own, timed = str(values.get("runner", "")), timed is not None, info.timed if timed is None else timed
    if not timed or not runner:
        return None
    context = max(2, min(info.max_model_len, facts.context))
    options = PlanOptions(THIS_MACHINE, kv_dtype=str(values["kv_dtype"]), context=context, users=info.rows, chunk=info.tokens)
    deployment = replace(deployment_of(facts, options), device=this_machine(cache))
    if deployment.device.is_gpu != (runner == "cuda"):
        return None
    before = read_correction(cache, deployment, runner)
    predicted = deployment if before is None else corrected(deployment, before)
    process = predicted
    if is_own and before is not None and before.own_bytes:
        process = replace(predicted, device=replace(predicted.device, overhead_bytes=before.own_bytes))
    memory, speed = memory_lines(process, timed, info, process_bytes), speed_lines(predicted, timed)
    found = fit_correction(predicted, timed, info.weights_bytes, process_bytes)
    if is_own and process_bytes is not None:
        found = replace(found, own_bytes=found.overhead_bytes)
    if before is not None:
        found = _joined(before, found, _median_ratio(speed), knows_engine=process_bytes is not None and not is_own)
    if len(timed) >= UNKNOWNS and info.timed:
        found = replace(found, start_ratio=_median_ratio(speed_lines(corrected(deployment, found), info.timed)))
    keep_correction(cache, deployment, runner, found)
    return Verification((*memory, *speed), corrected(deployment, found), runner)


def _joined(before: Correction, found: Correction, ratio: float, *, knows_engine: bool) -> Correction:
    """The correction to keep of two. Fewer steps than there are unknowns do not replace speeds that many have told, unless they contradict
    them. `ratio`: seconds of these steps over what was predicted, in the median. `knows_engine`: found measured a server's engine."""
    overhead_bytes = (found if knows_engine else before).overhead_bytes
    stays = found.steps < UNKNOWNS <= before.steps and abs(log(ratio / before.start_ratio)) <= log(1 + CONTRADICTION)
    kept = before if stays else found
    # Factors of other estimates say nothing of these: a start's few are the quickest of some, and served prompts are held against those.
    spread = before.spread if stays or (found.steps >= UNKNOWNS and before.front_end_seconds) else ()
    return replace(
        kept, overhead_bytes=overhead_bytes, own_bytes=found.own_bytes or before.own_bytes,
        front_end_seconds=before.front_end_seconds, host_seconds=before.host_seconds, spread=spread,
    )  # fmt: skip


def _median_ratio(speed: Sequence[Line]) -> float:
    return median(line.measured / line.predicted for line in speed)


def speed_lines(deployment: Deployment, timed: Sequence[Timed]) -> list[Line]:
    """Seconds of steps."""
    return [Line(_named(rows, tokens), "s", _predicted(deployment, rows, tokens), seconds) for rows, tokens, seconds in timed]


def _named(rows: int, tokens: int) -> str:
    return f"prefill of {tokens}" if tokens > 1 else f"decode of {rows}"


def _predicted(deployment: Deployment, rows: int, tokens: int) -> float:
    return pass_seconds(deployment, step_work(deployment, [RowGroup(0, tokens, rows)]))


def prompt_seconds(deployment: Deployment, tokens: int) -> float:
    """Predicted seconds of the step of a prompt that comes alone."""
    return _predicted(deployment, 1, tokens)


def token_seconds(deployment: Deployment, position: int) -> float:
    """Predicted seconds of the step of one row that decodes at `position`."""
    return pass_seconds(deployment, step_work(deployment, [RowGroup(position, 1, 1)]))


def memory_lines(deployment: Deployment, timed: Sequence[Timed], info: "ExecutorInfo", process_bytes: int | None) -> list[Line]:
    """Memory by use. `process_bytes`: of the engine's process behind the steps that were timed, when they alone have touched the cache."""
    weights = rank_weights(deployment)
    lines = [
        Line("weights", "B", weights, info.weights_bytes),
        Line("KV cache", "B", info.kv.blocks * block_bytes_of(deployment), info.kv_bytes),
    ]
    if process_bytes is not None:
        beside = deployment.device.overhead_bytes + _touched_activations(deployment, timed)
        lines.append(Line("process without KV", "B", weights + beside, process_bytes))
    return lines


def _touched_activations(deployment: Deployment, timed: Sequence[Timed]) -> float:
    """Bytes of activations of the largest of these steps: memory counts from its first use on."""
    rows, tokens = max(rows for rows, _, _ in timed), max(rows * tokens for rows, tokens, _ in timed)
    return rank_activations(replace(deployment, users=rows, chunk=tokens))


def fit_correction(deployment: Deployment, timed: Sequence[Timed], weights_bytes: int, process_bytes: int | None) -> Correction:
    """Fits what steps and process reach. Shares and overlap are those of least mean error of the logarithm; of what no step depends on,
    what was known stays, and so do attention, overlap and how much faster the head is where there are fewer steps than unknowns, as
    behind a start."""
    known, shares = deployment.device, reached(deployment)
    parts = [_ideal_parts(deployment, rows, tokens) for rows, tokens, _ in timed]
    usual = log(shares.head / shares.compute), log(shares.attention), shares.overlap

    def loss(point: Point) -> float:
        compute, bandwidth, faster, attention, overlap = *map(exp, point[:4]), point[4]
        found = []
        for (layers, heads, weights, scores, cache, link), (_, _, seconds) in zip(parts, timed, strict=True):
            spent = overlapped((layers + heads / faster) / compute, weights / bandwidth, overlap)
            spent += overlapped(scores / attention, cache / bandwidth, overlap)
            found.append(abs(log((spent + link) / seconds)))
        distance = abs(point[0] - log(shares.compute)) + abs(point[1] - log(shares.bandwidth))
        distance += sum(abs(found - before) for found, before in zip(point[2:], usual, strict=True))
        return fmean(found) + KNOWN_WEIGHT * distance

    compute, bandwidth, faster, attention, overlap = _least(loss, usual, is_ample=len(timed) >= UNKNOWNS)
    overhead = known.overhead_bytes
    if process_bytes is not None:
        overhead = max(0, round(process_bytes - weights_bytes - _touched_activations(deployment, timed)))
    flops, attended = known.flops(deployment.compute_dtype) * exp(compute), known.flops(deployment.attention_dtype) * exp(attention)
    return Correction(flops, known.bytes_per_second * exp(bandwidth), attended, flops * exp(faster), overlap, overhead, len(timed))


def _least(loss: Callable[[Point], float], usual: tuple[float, float, float], *, is_ample: bool) -> Point:
    """The point of least loss: by a grid, then by steps that become shorter. Where steps are not ample, only compute and bandwidth move."""
    low, high = log(LEAST_SHARE), log(MOST_SHARE)
    grid = [low + (high - low) * number / (COARSE - 1) for number in range(COARSE)]
    overlaps = OVERLAPS if is_ample else usual[2:]
    best = min((loss(each), each) for each in ((a, b, *usual[:2], overlap) for a in grid for b in grid for overlap in overlaps))
    free, tied = (-1, 0, 1), (-1, 0, 1) if is_ample else (0,)
    stride, across = grid[1] - grid[0], OVERLAPS[1]
    for _ in range(REFINEMENTS):
        stride, across = stride / 2, across / 2
        for _ in range(MOVES):
            a, b, c, d, overlap = best[1]
            tried = [
                (a + i * stride, b + j * stride, c + k * stride, d + m * stride, min(1.0, max(0.0, overlap + n * across)))
                for i, j, k, m, n in product(free, free, tied, tied, tied)
            ]
            better = min((loss(each), each) for each in tried)
            if better[0] >= best[0]:
                break
            best = better
    return best[1]


def _ideal_parts(deployment: Deployment, rows: int, tokens: int) -> tuple[float, ...]:
    """Seconds at the ceilings: computing of layers and of the head, reading of weights; computing and reading of attention; links."""
    work = step_work(deployment, [RowGroup(0, tokens, rows)])
    (layers, weights), (scores, cache) = part_seconds(deployment, replace(work, head_flops=0.0), IDEAL)
    (products, _), _ = part_seconds(deployment, work, IDEAL)
    return layers, products - layers, weights, scores, cache, link_seconds(deployment, work.tokens)
