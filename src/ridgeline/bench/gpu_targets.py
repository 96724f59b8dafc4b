"""Targets of one H200 with the default model, and their results: met, missed, not measured. Pure functions of the parts' rows."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

Row = Mapping[str, Any]
Parts = Mapping[tuple[str, str], Sequence[Row]]
"""(part, dtype) → its rows."""


@dataclass(frozen=True, slots=True)
class Target:
    """A target for one value, in the rows of a part that match `where`. Lower is better for seconds and bytes, higher for the rest.

    key   name of the value in the row: seconds, tokens per second, or a ratio
    """

    what: str
    part: str
    dtype: str
    where: Mapping[str, object]
    key: str
    target: float
    stretch: float | None = None

    @property
    def is_lower_better(self) -> bool:
        """True if lower values are better."""
        return self.key.endswith(("seconds", "bytes"))

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
    "bf16": ((225, 5_300, 8_700, 12_800, 14_000), (250, 6_000, 9_800, 14_500, 16_500)),
    "fp8": ((400, 9_400, 15_500, 22_500, 25_000), (None,) * len(SIZES)),
}
"""Tokens per second by batch size: target, stretch."""
PREFILL: Final[Mapping[str, tuple[float, float]]] = {"bf16": (0.052, 0.045), "fp8": (0.034, 0.028)}
SERVING: Final[Mapping[str, tuple[float, float | None]]] = {"bf16": (8_000, None), "fp8": (11_000, 14_000)}
HOST_SECONDS: Final[Mapping[int, float]] = {1: 0.3e-3, 32: 0.3e-3, 256: 1.5e-3}
"""Of a step, by its rows."""
IDLE_SECONDS: Final = 50e-6


def _make_targets() -> Iterator[Target]:
    tokens = "tokens_per_second"
    for dtype, (targets, stretches) in DECODE.items():
        for batch, target, stretch in zip(SIZES, targets, stretches, strict=True):
            where: Mapping[str, object] = {"batch": batch, "graphs": True}
            yield Target(f"decode {dtype}, batch {batch}, tok/s", "decode", dtype, where, tokens, target, stretch)
    for dtype, prompt in PREFILL.items():
        yield Target(f"prefill {dtype}, 2k tokens", "prefill", dtype, {"tokens": 2048}, "seconds", *prompt)
    yield Target("TTFT idle, 2k tokens, over HTTP", "ttft", "bf16", {"through": "HTTP"}, "seconds", 0.060, 0.050)
    for dtype, goals in SERVING.items():
        yield Target(f"serving {dtype}, 1000 in, 1000 out, saturated, tok/s", "serving", dtype, {"rows": 256}, tokens, *goals)
    for dtype in DECODE:
        yield from _host_targets(dtype)
    for batch, ratio in ((1, 1.5), (32, 4.0)):
        yield Target(f"against transformers, batch {batch}, times as fast", "transformers", "bf16", {"batch": batch}, "ratio", ratio)
    yield Target("soak, requests", "soak", "bf16", {}, "requests", 2_000)
    yield Target("soak, growth of device memory", "soak", "bf16", {}, "grown_bytes", 0)


def _host_targets(dtype: str) -> Iterator[Target]:
    """Host time and idle time of the device: of steps of the runner alone, and when serving (engine)."""
    for part, size, sizes, whose in (("decode", "batch", SIZES, "runner"), ("serving", "rows", (32, 256), "engine")):
        for each in sizes:
            where: Mapping[str, object] = {size: each, "graphs": True} if part == "decode" else {size: each}
            if each in HOST_SECONDS:
                name = f"host time per step, {whose}, {dtype}, {size} {each}"
                yield Target(name, part, dtype, where, "host_seconds", HOST_SECONDS[each])
            yield Target(f"GPU idle between steps, {whose}, {dtype}, {size} {each}", part, dtype, where, "idle_seconds", IDLE_SECONDS)


TARGETS: Final = tuple(_make_targets())
HEADLINE_KEYS: Final = ("tokens_per_second", "seconds")
"""Values that are shown beside their targets in tables of steps."""


@dataclass(frozen=True, slots=True)
class TargetResult:
    """A value against its target. `result`: met, stretch met, missed, or not measured."""

    what: str
    measured: float | None
    target: float
    stretch: float | None
    result: str
    key: str
    command: str

    def as_dict(self) -> dict[str, object]:
        """A dict for JSON: seconds, bytes, tokens per second, ratios."""
        return asdict(self)


def compare_with_targets(parts: Parts) -> list[TargetResult]:
    """Every target with its measurement."""
    rows = {**parts, ("transformers", "bf16"): [*parts.get(("transformers", "bf16"), ()), *_ratios(parts)]}
    found = []
    for target in TARGETS:
        values = [float(row[target.key]) for row in rows.get((target.part, target.dtype), ()) if target.matches(row)]
        value = values[-1] if values else None
        found.append(TargetResult(target.what, value, target.target, target.stretch, _result(target, value), target.key, target.command))
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
    """Best tokens per second by batch size, with graphs."""
    found: dict[int, float] = {}
    for row in rows:
        if "tokens_per_second" in row and "batch" in row and row.get("graphs") is not False:
            found[row["batch"]] = max(found.get(row["batch"], 0.0), row["tokens_per_second"])
    return found


def headline_target(part: str, dtype: str, row: Row) -> Target | None:
    """The target of a row's main value; None without one."""
    own = (target for target in TARGETS if (target.part, target.dtype) == (part, dtype))
    return next((target for target in own if target.key in HEADLINE_KEYS and target.matches(row)), None)
