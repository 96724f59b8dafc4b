"""The table of docs/gpu.md of what a visit has seen, and a page of what failed. Without rows every line says unmeasured."""

from collections.abc import Sequence
from typing import Any

from walk import Row, Visit

from ridgeline.bench.gpu_targets import Parts, TargetResult, batch_invariant_costs, compare_with_targets
from ridgeline.facts.headers.checkpoint import read_config_facts
from ridgeline.facts.headers.read import find_config
from ridgeline.models.table import MEASURED, SPARSE

HEAD = ("| what | target | measured | command |", "|---|---|---|---|")
UNMEASURED = "unmeasured"


def rows_by_part(rows: Sequence[Row]) -> Parts:
    """Rows of `bench gpu`, by part and type. Where several parts of the visit measured the same, the latest stand last, and count."""
    found: dict[tuple[str, str], list[Row]] = {}
    for row in sorted(rows, key=lambda row: int(row.get("part", 0))):
        words = str(row.get("step", "")).split()
        if words[:1] == ["bench"]:
            found.setdefault((words[1], words[2]), []).append(row)
    return found


def table(rows: Sequence[Row]) -> list[str]:
    """Every target, what was seen of it, and the command that measures it; then what has no target."""
    parts = rows_by_part(rows)
    results = compare_with_targets(parts, read_config_facts(find_config(MEASURED)))
    lines = [f"| {each.what} | {_target(each)} | {_seen(each)} | `{each.command}` |" for each in results]
    costs = "; ".join(f"batch {cost['batch']}: {cost['share_lost']:.1%}" for cost in batch_invariant_costs(parts))
    kernels = [row for row in parts.get(("kernels", "bf16"), ()) if "share_of_ceiling" in row]
    median = f"{len(kernels)} cases, median {sorted(row['share_of_ceiling'] for row in kernels)[len(kernels) // 2]:.0%}" if kernels else ""
    tests = _tests(rows)
    sparse = [row for row in parts.get(("experts", "bf16"), ()) if "tokens_per_second" in row and "top_p" not in row]
    decoded = "; ".join(f"batch {row['batch']}: {row['tokens_per_second']:.0f} tok/s" for row in sparse if row["graphs"])
    rest = (
        (f"decode bf16 with experts, {SPARSE}'s shape", "–", decoded, "ridgeline bench gpu --only experts"),
        ("the price of the batch-invariant mode", "–", costs, "ridgeline bench gpu --only decode,invariant"),
        ("each kernel, share of the ceiling", "–", median, "ridgeline bench gpu --only kernels"),
        ("eager = graph, bit for bit, two layers of real widths", "all", _share(rows, "smoke", "graph"), "make gpu ARGS=1"),
        ("ops equal their references; no allocation, no waiting; laws 7 to 9", "all", tests, "make gpu ARGS=1"),
    )
    return [*HEAD, *lines, *(f"| {what} | {target} | {seen or UNMEASURED} | `{command}` |" for what, target, seen, command in rest)]


def _target(result: TargetResult) -> str:
    if result.unit == "share_of_bound":
        stretch = f" (stretch {result.stretch:.0%})" if result.stretch else ""
        return f"≥ {result.target:.0%} of the bound{stretch}"
    lower = result.key.endswith(("seconds", "bytes"))
    return f"{'≤' if lower else '≥'} {_figure(result.key, result.target)}"


def _seen(result: TargetResult) -> str:
    """Value, share of the bound, verdict."""
    if result.value is None:
        return UNMEASURED
    share = f", {result.measured:.0%} of the bound" if result.unit == "share_of_bound" and result.measured is not None else ""
    return f"{_figure(result.key, result.value)}{share}: {result.result if result.measured is not None else 'no ceilings'}"


def _figure(key: str, value: float) -> str:
    if key.endswith("seconds"):
        return f"{value * 1e3:.3g} ms"
    if key == "ratio":
        return f"{value:.2f} ×"
    return f"{value:,.0f}{' tok/s' if key == 'tokens_per_second' else ' bytes' if key.endswith('bytes') else ''}"


def _share(rows: Sequence[Row], key: str, value: str) -> str:
    """How many rows of a kind have no error."""
    own = [row for row in rows if row.get(key) == value]
    return f"{sum('error' not in row for row in own)} of {len(own)}" if own else ""


def _tests(rows: Sequence[Row]) -> str:
    """Outcomes of all tests of part 1."""
    counts: dict[str, Any] = {}
    for row in rows:
        for outcome, count in row.get("tests", {}).items() if row.get("part") == 1 else ():
            counts[outcome] = counts.get(outcome, 0) + count
    return ", ".join(f"{count} {outcome}" for outcome, count in sorted(counts.items()))


def write_table(visit: Visit) -> None:
    """Writes both pages."""
    rows, failures = list(visit.rows), list(visit.failures)
    ceilings = {row["ceiling"]: row.get("per_second", 0.0) for row in rows if "ceiling" in row}
    speeds = ", ".join(f"{name} {speed:.4g}/s" for name, speed in ceilings.items())
    devices = dict.fromkeys(str(row["about"].get("device")) for row in rows if "about" in row)
    head = [f"Seen on {', '.join(devices) or 'no device'}; ceilings: {speeds or 'none'}.", ""]
    (visit.out / "table.md").write_text("\n".join([*head, *table(rows)]) + "\n", encoding="utf-8")
    failed = [f"## part {step['part']}, {step['step']}\n\n{step['error']}\n" for step in failures]
    said = [f"## {row['test']}\n\n```\n{row['says']}\n```\n" for row in rows if "test" in row]
    (visit.out / "failed.md").write_text("\n".join([*failed, *said]) or "Nothing failed.\n", encoding="utf-8")
