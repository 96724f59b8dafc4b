"""Targets of one H200 with the default model, and what a report says of them: met, missed, not measured. Pure.

Owns the targets. Rows come from the parts; nothing here measures.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

Row = Mapping[str, Any]
Parts = Mapping[tuple[str, str], Sequence[Row]]
"""(part, dtype) → its rows."""


@dataclass(frozen=True, slots=True)
class Aim:
    """One figure that is to be reached, in the rows of a part that have `where`. Less is better for seconds and bytes, more for the rest.

    key   the figure's name in its row; seconds, tokens per second, or a ratio
    """

    what: str
    part: str
    dtype: str
    where: Mapping[str, object]
    key: str
    target: float
    stretch: float | None = None

    @property
    def less(self) -> bool:
        """True if less is better."""
        return self.key.endswith(("seconds", "bytes"))

    @property
    def command(self) -> str:
        """The command that measures it."""
        return f"ridgeline bench gpu --only {self.part} --dtype {self.dtype}"

    def matches(self, row: Row) -> bool:
        """True if the row has the figure."""
        return self.key in row and all(row.get(name) == value for name, value in self.where.items())

    def reached(self, value: float, aim: float) -> bool:
        """True if `value` is as good as `aim`."""
        return value <= aim if self.less else value >= aim


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


def _aims() -> Iterator[Aim]:
    tokens = "tokens_per_second"
    for dtype, (targets, stretches) in DECODE.items():
        for batch, target, stretch in zip(SIZES, targets, stretches, strict=True):
            yield Aim(f"decode {dtype}, batch {batch}, tok/s", "decode", dtype, {"batch": batch, "graphs": True}, tokens, target, stretch)
    for dtype, prompt in PREFILL.items():
        yield Aim(f"prefill {dtype}, 2k tokens", "prefill", dtype, {"tokens": 2048}, "seconds", *prompt)
    yield Aim("TTFT idle, 2k tokens, over HTTP", "ttft", "bf16", {"through": "HTTP"}, "seconds", 0.060, 0.050)
    for dtype, served in SERVING.items():
        yield Aim(f"serving {dtype}, 1000 in, 1000 out, saturated, tok/s", "serving", dtype, {"rows": 256}, tokens, *served)
    for dtype in DECODE:
        yield from _host_aims(dtype)
    for batch, ratio in ((1, 1.5), (32, 4.0)):
        yield Aim(f"against transformers, batch {batch}, times as fast", "transformers", "bf16", {"batch": batch}, "ratio", ratio)
    yield Aim("soak, requests", "soak", "bf16", {}, "requests", 2_000)
    yield Aim("soak, growth of device memory", "soak", "bf16", {}, "grown_bytes", 0)


def _host_aims(dtype: str) -> Iterator[Aim]:
    """Time of the host, and of the device without work: of steps made by hand (runner), and when serving (engine)."""
    for part, size, sizes, whose in (("decode", "batch", SIZES, "runner"), ("serving", "rows", (32, 256), "engine")):
        for each in sizes:
            where: Mapping[str, object] = {size: each, "graphs": True} if part == "decode" else {size: each}
            if each in HOST_SECONDS:
                name = f"host time per step, {whose}, {dtype}, {size} {each}"
                yield Aim(name, part, dtype, where, "host_seconds", HOST_SECONDS[each])
            yield Aim(f"GPU idle between steps, {whose}, {dtype}, {size} {each}", part, dtype, where, "idle_seconds", IDLE_SECONDS)


AIMS: Final = tuple(_aims())
HEADLINES: Final = ("tokens_per_second", "seconds")
"""Figures that stand beside their targets in tables of steps."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """A figure against its target. `result`: met, stretch met, missed, or not measured."""

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


def verdicts(parts: Parts) -> list[Verdict]:
    """Every target, with what was measured of it."""
    rows = {**parts, ("transformers", "bf16"): [*parts.get(("transformers", "bf16"), ()), *_ratios(parts)]}
    found = []
    for aim in AIMS:
        values = [float(row[aim.key]) for row in rows.get((aim.part, aim.dtype), ()) if aim.matches(row)]
        value = values[-1] if values else None
        found.append(Verdict(aim.what, value, aim.target, aim.stretch, _result(aim, value), aim.key, aim.command))
    return found


def _result(aim: Aim, value: float | None) -> str:
    if value is None:
        return "not measured"
    if not aim.reached(value, aim.target):
        return "missed"
    return "stretch met" if aim.stretch is not None and aim.reached(value, aim.stretch) else "met"


def _ratios(parts: Parts) -> Iterator[Row]:
    """Our decoding over transformers' best at the same batch size, where both were measured."""
    ours = _speeds(parts.get(("decode", "bf16"), ()))
    theirs = _speeds(parts.get(("transformers", "bf16"), ()))
    for batch in sorted(ours.keys() & theirs.keys()):
        yield {"batch": batch, "ratio": ours[batch] / theirs[batch]}


def costs(parts: Parts) -> Iterator[dict[str, Any]]:
    """The price of the batch-invariant mode: the share of tokens per second that it takes, by type and batch size."""
    for dtype in sorted({dtype for _, dtype in parts}):
        plain, invariant = (_speeds(parts.get((part, dtype), ())) for part in ("decode", "invariant"))
        for batch in sorted(plain.keys() & invariant.keys()):
            lost = 1 - invariant[batch] / plain[batch]
            yield {"dtype": dtype, "batch": batch, "tokens_per_second": invariant[batch], "share_lost": lost}


def _speeds(rows: Sequence[Row]) -> dict[int, float]:
    """Tokens per second by batch size, the best of each; steps without graphs do not count."""
    found: dict[int, float] = {}
    for row in rows:
        if "tokens_per_second" in row and "batch" in row and row.get("graphs") is not False:
            found[row["batch"]] = max(found.get(row["batch"], 0.0), row["tokens_per_second"])
    return found


def headline(part: str, dtype: str, row: Row) -> Aim | None:
    """The aim of a row's chief figure, for whoever shows it as it comes; None where nothing was said of it."""
    return next((aim for aim in AIMS if (aim.part, aim.dtype) == (part, dtype) and aim.key in HEADLINES and aim.matches(row)), None)
