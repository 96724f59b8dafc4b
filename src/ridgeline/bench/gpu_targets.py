"""Targets of one GPU with the default model, and their results: met, missed, not measured. Pure functions of the parts' rows.

Speeds are held against what the ceilings of the same run allow (`gpu_bounds`), so that every GPU is judged by its own.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Final

from ridgeline.bench.gpu_bounds import Ceilings, decode_seconds, prefill_seconds, read_ceilings
from ridgeline.facts.model import ModelFacts

Row = Mapping[str, Any]
Parts = Mapping[tuple[str, str], Sequence[Row]]
"""(part, dtype) → its rows."""


@dataclass(frozen=True, slots=True)
class Target:
    """A target for one value, in the rows of a part that match `where`. Lower is better for seconds and bytes, higher for the rest.

    key    name of the value in the row: seconds, tokens per second, or a ratio
    bound  seconds that a step, or a prompt, needs at least; `target` is then the share of the best speed that is reached
    """

    what: str
    part: str
    dtype: str
    where: Mapping[str, object]
    key: str
    target: float
    stretch: float | None = None
    bound: Callable[[ModelFacts, Ceilings], float] | None = None

    @property
    def is_lower_better(self) -> bool:
        """True if lower values are better."""
        return self.bound is None and self.key.endswith(("seconds", "bytes"))

    @property
    def unit(self) -> str:
        """Name of what `target` counts: the key, or a share."""
        return self.key if self.bound is None else "share_of_bound"

    def reached(self, row: Row, facts: ModelFacts, ceilings: Ceilings | None) -> float | None:
        """The share of `target` that a matching row reaches; None where that takes ceilings and there are none."""
        if self.bound is None:
            return float(row[self.key])
        if ceilings is None:
            return None
        rows = row.get("batch", row.get("rows", 1))
        taken = row[self.key] if self.key == "seconds" else rows / row[self.key]
        return float(self.bound(facts, ceilings) / taken)

    @property
    def command(self) -> str:
        """The command that measures it."""
        return f"ridgeline bench gpu --only {self.part} --dtype {self.dtype}"

    def matches(self, row: Row) -> bool:
        """True if the row has the value."""
        return self.key in row and all(row.get(name) == value for name, value in self.where.items())

    def is_reached(self, value: float, target: float) -> bool:
        """True if `value` is at least as good as `target`."""
        return value <= target if self.is_lower_better else value >= target


SIZES: Final = (1, 32, 64, 128, 256)
DECODE: Final[Mapping[str, tuple[tuple[float, ...], tuple[float | None, ...]]]] = {
    "bf16": ((0.79, 0.74, 0.75, 0.75, 0.70), (0.88, 0.84, 0.84, 0.85, 0.83)),
    "fp8": ((0.75, 0.70, 0.70, 0.68, 0.66), (None,) * len(SIZES)),
}
"""Shares of the bound by batch size: target, stretch."""
PREFILL: Final[Mapping[str, tuple[float, float]]] = {"bf16": (0.72, 0.84), "fp8": (0.62, 0.75)}
FIRST_TOKEN: Final = (0.63, 0.75)
SERVING: Final[Mapping[str, tuple[float, float | None]]] = {"bf16": (0.66, None), "fp8": (0.46, 0.58)}
CONTEXT: Final = 1024
SERVED_ROWS: Final = 256
SERVED_CONTEXT: Final = 1500
"""Positions of a row on average, with 1000 in and 1000 out: each step computes as many tokens of prompts as it has rows."""
PROMPT: Final = 2048
HOST_SECONDS: Final[Mapping[int, float]] = {1: 0.3e-3, 32: 0.3e-3, 256: 1.5e-3}
"""Seconds of the host per step, by its rows."""
IDLE_SECONDS: Final = 50e-6
ADAPTER_COUNT: Final = 8
ADAPTERS: Final[Mapping[int, float]] = {1: 0.85, 32: 0.85}
"""Share of the speed without adapters, by batch size."""
GREEDY: Final[dict[str, object]] = {"graphs": True, "top_p": None}
"""Rows of `decode` that have targets: those with top-p are beside them, to show what sampling costs."""


def _make_targets() -> Iterator[Target]:
    tokens = "tokens_per_second"
    for dtype, (targets, stretches) in DECODE.items():
        for batch, target, stretch in zip(SIZES, targets, stretches, strict=True):
            where: Mapping[str, object] = {**GREEDY, "batch": batch}
            bound = partial(decode_seconds, dtype=dtype, rows=batch, context=CONTEXT)
            yield Target(f"decode {dtype}, batch {batch}", "decode", dtype, where, tokens, target, stretch, bound)
    for dtype, prompt in PREFILL.items():
        bound = partial(prefill_seconds, dtype=dtype, tokens=PROMPT)
        yield Target(f"prefill {dtype}, 2k tokens", "prefill", dtype, {"tokens": PROMPT}, "seconds", *prompt, bound)
    bound = partial(prefill_seconds, dtype="bf16", tokens=PROMPT)
    yield Target("TTFT idle, 2k tokens, over HTTP", "ttft", "bf16", {"through": "HTTP"}, "seconds", *FIRST_TOKEN, bound)
    for dtype, goals in SERVING.items():
        bound = partial(decode_seconds, dtype=dtype, rows=SERVED_ROWS, context=SERVED_CONTEXT, prompt_tokens=SERVED_ROWS)
        name = f"serving {dtype}, 1000 in, 1000 out, saturated"
        yield Target(name, "serving", dtype, {"rows": SERVED_ROWS}, tokens, *goals, bound)
    for dtype in DECODE:
        yield from _host_targets(dtype)
    for batch, ratio in ((1, 1.5), (32, 4.0)):
        yield Target(f"against transformers, batch {batch}, times as fast", "transformers", "bf16", {"batch": batch}, "ratio", ratio)
    for batch, ratio in ADAPTERS.items():
        name = f"decode bf16, batch {batch}, {ADAPTER_COUNT} adapters of rank 16, against none"
        yield Target(name, "adapters", "bf16", {"batch": batch, "adapters": ADAPTER_COUNT}, "ratio", ratio)
    yield Target("soak, requests", "soak", "bf16", {}, "requests", 2_000)
    yield Target("soak, growth of device memory", "soak", "bf16", {}, "grown_bytes", 0)


def _host_targets(dtype: str) -> Iterator[Target]:
    """Host time and idle time of the device: of steps of the runner alone, and when serving (engine)."""
    for part, size, sizes, whose in (("decode", "batch", SIZES, "runner"), ("serving", "rows", (32, 256), "engine")):
        for each in sizes:
            where: Mapping[str, object] = {**GREEDY, size: each} if part == "decode" else {size: each}
            if each in HOST_SECONDS:
                name = f"host time per step, {whose}, {dtype}, {size} {each}"
                yield Target(name, part, dtype, where, "host_seconds", HOST_SECONDS[each])
            yield Target(f"GPU idle between steps, {whose}, {dtype}, {size} {each}", part, dtype, where, "idle_seconds", IDLE_SECONDS)


TARGETS: Final = tuple(_make_targets())
HEADLINE_KEYS: Final = ("tokens_per_second", "seconds")
"""Values that are shown beside their targets in tables of steps."""


@dataclass(frozen=True, slots=True)
class TargetResult:
    """A value against its target. `result`: met, stretch met, missed, or not measured.

    value     as the row has it, under `key`
    measured  the same, or the share of the bound where `unit` says so, as `target` and `stretch`
    """

    what: str
    key: str
    value: float | None
    unit: str
    measured: float | None
    target: float
    stretch: float | None
    result: str
    command: str

    def as_dict(self) -> dict[str, object]:
        """A dict for JSON: seconds, bytes, tokens per second, ratios."""
        return asdict(self)


def compare_with_targets(parts: Parts, facts: ModelFacts) -> list[TargetResult]:
    """Every target with its measurement. facts: of the model that was measured."""
    ceilings = read_ceilings(row for own in parts.values() for row in own)
    rows = {**parts, ("transformers", "bf16"): [*parts.get(("transformers", "bf16"), ()), *_ratios(parts)]}
    found = []
    for target in TARGETS:
        own = [row for row in rows.get((target.part, target.dtype), ()) if target.matches(row)]
        value = float(own[-1][target.key]) if own else None
        share = target.reached(own[-1], facts, ceilings) if own else None
        result = _result(target, share)
        goals = target.target, target.stretch
        found.append(TargetResult(target.what, target.key, value, target.unit, share, *goals, result, target.command))
    return found


def _result(target: Target, value: float | None) -> str:
    if value is None:
        return "not measured"
    if not target.is_reached(value, target.target):
        return "missed"
    return "stretch met" if target.stretch is not None and target.is_reached(value, target.stretch) else "met"


def _ratios(parts: Parts) -> Iterator[Row]:
    """Ridgeline's decode throughput over transformers' best at the same batch size, where both were measured."""
    own = _best_throughput(parts.get(("decode", "bf16"), ()))
    reference = _best_throughput(parts.get(("transformers", "bf16"), ()))
    for batch in sorted(own.keys() & reference.keys()):
        yield {"batch": batch, "ratio": own[batch] / reference[batch]}


def batch_invariant_costs(parts: Parts) -> Iterator[dict[str, Any]]:
    """The cost of the batch-invariant mode: share of throughput lost, by type and batch size."""
    for dtype in sorted({dtype for _, dtype in parts}):
        plain, invariant = (_best_throughput(parts.get((part, dtype), ())) for part in ("decode", "invariant"))
        for batch in sorted(plain.keys() & invariant.keys()):
            lost = 1 - invariant[batch] / plain[batch]
            yield {"dtype": dtype, "batch": batch, "tokens_per_second": invariant[batch], "share_lost": lost}


def _best_throughput(rows: Sequence[Row]) -> dict[int, float]:
    """Best tokens per second by batch size, with graphs, greedy."""
    found: dict[int, float] = {}
    for row in rows:
        if "tokens_per_second" in row and "batch" in row and row.get("graphs") is not False and row.get("top_p") is None:
            found[row["batch"]] = max(found.get(row["batch"], 0.0), row["tokens_per_second"])
    return found


def headline_target(part: str, dtype: str, row: Row) -> Target | None:
    """The target of a row's main value; None without one."""
    own = (target for target in TARGETS if (target.part, target.dtype) == (part, dtype))
    return next((target for target in own if target.key in HEADLINE_KEYS and target.matches(row)), None)
