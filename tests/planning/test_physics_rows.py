"""The notes' tables and worked examples, row by row: what they say, beside what the functions of the planner make of it.

`said` is the text of the notes: a number is reproduced when it differs by at most a unit of its last digit, one with "~" by 5 %.
Rows that contradict physics are in `DEVIATIONS`, with what is right and a reason. docs/physics.md, section 13, lists all.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import pytest

from ridgeline.config.env import ModelStores
from ridgeline.facts.files.formats import FORMATS
from ridgeline.facts.headers.read import describe_model
from ridgeline.facts.model import ModelFacts
from ridgeline.planning import levers, parallel, report, speed
from ridgeline.planning.arguments import PlanOptions, deployment_of
from ridgeline.planning.deployment import Deployment, attention_score_bytes
from ridgeline.planning.formats import class_bytes
from ridgeline.planning.memory import kv_bytes

GB, GIB = 1e9, 2**30
MODELS = {"7B": "llama-2-7b", "8B": "llama-3-8b", "70B": "llama-3-70b", "405B": "llama-3.1-405b"}


@dataclass(frozen=True)
class Row:
    """Where a number stands, what it is about, the number as written, and the number computed here."""

    where: str
    what: str
    said: str
    found: float

    def __str__(self) -> str:
        return f"{self.where}: {self.what}"

    @property
    def number(self) -> float:
        return float(self.said.lstrip("~").replace(",", ""))

    @property
    def unit(self) -> float:
        """A unit of the last digit, 5 % where it says "~"."""
        if self.said.startswith("~"):
            return 0.05 * self.number
        _, _, part = self.said.partition(".")
        return 10.0 ** -len(part) if part else 1.0


def rows(where: str, what: str, said: str, *found: float) -> list[Row]:
    """A line of a table: as many numbers said, separated by spaces, as found."""
    return [Row(where, f"{what}, {number}", text, value) for number, (text, value) in enumerate(zip(said.split(), found, strict=True), 1)]


def each(function: Callable[[float], float], *values: float) -> list[float]:
    """The function of every value."""
    return [function(value) for value in values]


def shape(model: str) -> ModelFacts:
    return describe_model(MODELS[model], ModelStores(Path()))


def kv(model: str, tokens: float, sequences: float = 1) -> float:
    """Bytes of the cache in 16 bits."""
    found = shape(model)
    return kv_bytes(found.kv_layers, 1, found.widths.cached, 16) * tokens * sequences


def weights(model: str, dtype: str) -> float:
    return sum(class_bytes(shape(model), dtype).values())


def table(where: str, lines: dict[str, str], found: Callable[[str], list[float]]) -> list[Row]:
    """A table by its first column."""
    return [row for name, said in lines.items() for row in rows(where, name, said, *found(name))]


CURVES = {
    "A100": {1: 140, 4: 530, 8: 980, 16: 1850, 32: 3600, 64: 5800, 128: 7200, 256: 7800},
    "H100": {1: 238, 4: 900, 8: 1700, 16: 3200, 32: 6100, 64: 9800, 128: 14200, 256: 16500},
}
ROWS = [
    *rows("1 §3 KV cache", "Llama-2 7B, 2,048 tokens, GB", "1.07", kv("7B", 2048) / GB),
    *rows("1 §7 Cost", "dollars a thousand tokens", "0.00083", speed.million_token_cost(3, 1000) / 1e3),
    *rows("1 §9 Volume", "thresholds, M tokens a day", "1 50",
          report.API_BELOW_TOKENS_PER_DAY / 1e6, report.SELF_HOST_ABOVE_TOKENS_PER_DAY / 1e6),
    *rows("1 §9 Example", "own A100 a month", "~1,500", report.self_host_month_cost(2)),
    *rows("2 KV cache", "70B at 4,096, GB", "1.34", kv("70B", 4096) / GB),
    *rows("3 Roofline", "ridge of A100, H100", "156 295", *map(speed.ridge_intensity, (312e12, 989e12), (2.0e12, 3.35e12))),
    *table("3 Llama 3 Model Weight Memory", {"8B": "16.1", "70B": "141.2"}, lambda m: [weights(m, "bf16") / GB]),
    *table("3 KV per token", {"8B": "131,072 0.125", "70B": "327,680 0.3125", "405B": "516,096 ~0.49"},
           lambda m: [kv(m, 1), kv(m, 1) / 2**20]),
    *table("3 KV Cache Memory Per Request", {"8B": "0.5 3.1", "70B": "1.25 0.9", "405B": "~1.96 0.2"},
           lambda m: [kv(m, 4096) / GIB, 100 * kv(m, 4096) / GIB / (weights(m, "bf16") / GB)]),
    *table("3 KV Cache Memory at Scale", {"8B": "0.5 16 64 128", "70B": "1.25 40 160 320", "405B": "~1.96 ~62.7 ~250.9 ~501.8"},
           lambda m: each(lambda batch: kv(m, 4096, batch) / GIB, 1, 32, 128, 256)),
    *rows("3 Long context", "8B, 128K, 32 sequences, GiB", "512", kv("8B", 131_072, 32) / GIB),
    *rows("3 Activation Memory", "GiB a layer, of 32", "1 32", *each(lambda n: n * attention_score_bytes(32, 4096, 2) / GIB, 1, 32)),
    *rows("3 Batch Size Impact", "KV at 2K, GiB", "0.25 1.0 4.0 8.0 16.0 32.0 64.0", *each(
        lambda batch: kv("8B", 2048, batch) / GIB, 1, 4, 16, 32, 64, 128, 256)),
    *rows("3 405B", "bubbles of two stages, 9 and 4 pieces, %", "10 20", *each(lambda m: 100 * parallel.pipeline_bubble(2, int(m)), 9, 4)),
    *rows("3 Optimization Hierarchy", "speculation from 1.5, prefix caching at hits of 0.5 and 0.9", "2.67 2 10",
          levers.speculation_speedup(4, 1.5), levers.reused_prefill_speedup(0.5), levers.reused_prefill_speedup(0.9)),
    *rows("3 Cost", "$ a million at 286 and 7,200 tok/s", "15.5 0.62", *each(lambda rate: speed.million_token_cost(16, rate), 286, 7200)),
    *rows("4 §3 KV", "7B at 4,096, of 64, GQA", "~2.1 ~137 4", kv("7B", 4096) / GB, kv("7B", 4096, 64) / GB, kv("7B", 1) / kv("8B", 1)),
    *rows("4 §7 Variants", "KV heads of Llama-2 70B", "8", describe_model("llama-2-70b", ModelStores(Path())).kv_heads),
    *rows("5 §2 Artifact", "GB of 7B in Q4_K_M", "~4", 7 * (FORMATS["Q4_K"].bits_per_weight / 8)),
    *rows("5 §5 Embedding", "MB of [32000, 4096] in 16 bits", "~256", shape("7B").parameters["embedding"] * 2 / 1e6),
    *rows("5 §9 Decode", "kB of a token in a layer of 7B", "16", kv("7B", 1) / shape("7B").layers / 1024),
]  # fmt: skip
DOCUMENT = (Path(__file__).resolve().parents[2] / "docs" / "physics.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_the_row_is_reproduced(row: Row) -> None:
    assert row.found == pytest.approx(row.number, abs=row.unit * (1 + 1e-9)), row


def test_the_document_lists_every_table() -> None:
    """With how many of its numbers are reproduced."""
    counts = Counter(row.where for row in ROWS)
    missing = [f"| {where} | {count} |" for where, count in counts.items() if f"| {where} | {count} |" not in DOCUMENT]
    assert not missing, "\n".join(missing)


DEVIATIONS = [
    (Row("3 Llama 3 Model Weight Memory", "parameters of 405B, billions", "405.1", shape("405B").total_parameters / 1e9),
     "counted from the configuration"),
    (Row("5 §7 Layers", "layers of Llama 3.2 3B", "32", describe_model("llama-3.2-3b", ModelStores(Path())).layers), "its configuration"),
]  # fmt: skip
"""What the notes say and what is right, with the reason."""


@pytest.mark.parametrize(("row", "reason"), DEVIATIONS, ids=str)
def test_a_deviation_is_one_and_is_written_down(row: Row, reason: str) -> None:
    assert abs(row.found - row.number) > 1e-6
    assert f"| {row.where} | {row.what} | {row.said} | {row.found:.4g} | {reason} |" in DOCUMENT


@dataclass(frozen=True)
class Claim:
    """A cell of part 3's "Real Numbers": `said` milliseconds of TTFT or ITL, or tokens/s, beside what the data sheets allow."""

    config: str
    column: str
    said: float
    limit: float

    @property
    def line(self) -> str:
        """Its line in the document."""
        share = self.limit / self.said if self.column in ("TTFT", "ITL") else self.said / self.limit
        verdict = f"faster than physics, × {share:.2f}" if share > 1.005 else f"possible, {share:.0%} of the limit"
        limit = f"{self.limit:,.0f}" if self.limit >= 100 else f"{self.limit:.3g}"
        return f"| {self.config} | {self.column} | {self.said:,.10g} | {limit} | {verdict} |"


def claims(config: str, deployment: Deployment, cells: dict[str, float]) -> list[Claim]:
    """TTFT and ITL against their floors in ms, rates of a batch ("B=32") against the most tokens/s, all at peaks without any loss."""
    short = replace(deployment, context=2)
    floor = {"TTFT": speed.prefill_floor(deployment) * 1e3, "ITL": speed.decode_floor(short) * 1e3}
    prompt = replace(deployment, context=deployment.workload.prompt)

    def limit(column: str) -> float:
        if column in floor:
            return floor[column]
        batch = int(column.removeprefix("B="))
        return batch / speed.decode_floor(prompt, batch)

    return [Claim(config, column, said, limit(column)) for column, said in cells.items()]


def on(model: str, device: str, count: int, dtype: str | None, prompt: int, output: int) -> Deployment:
    """A deployment of the notes."""
    facts = describe_model(model, ModelStores(Path()))
    return deployment_of(facts, PlanOptions(device, count, dtype, workload=f"in={prompt},out={output}"))


def eight(device: str, dtype: str | None) -> Deployment:
    return on("llama-3-8b", device, 1, dtype, 2048, 512)


def seventy(device: str, count: int, dtype: str | None) -> Deployment:
    return on("llama-3-70b", device, count, dtype, 4096, 1024)


def large(device: str, count: int, dtype: str) -> Deployment:
    return on("llama-3.1-405b", device, count, dtype, 2048, 512)


CLAIMS = [
    *claims("8B, A100 FP16", eight("a100", None), {"TTFT": 45, "ITL": 7.1, "B=32": 3600, "B=64": 5800}),
    *claims("8B, A100 INT8", eight("a100", "int8"), {"TTFT": 35, "ITL": 5.8, "B=32": 4200, "B=64": 7000}),
    *claims("8B, H100 FP16", eight("h100", None), {"TTFT": 18, "ITL": 4.2, "B=32": 6100, "B=64": 9800}),
    *claims("8B, H100 FP8", eight("h100", "fp8"), {"TTFT": 12, "ITL": 3.5, "B=32": 7800, "B=64": 13500}),
    *claims("70B, 2 × A100 FP16", seventy("a100", 2, None), {"TTFT": 320, "ITL": 15, "B=32": 1400}),
    *claims("70B, 4 × A100 INT8", seventy("a100", 4, "int8"), {"TTFT": 95, "ITL": 6.5, "B=32": 3800}),
    *claims("70B, 2 × H100 FP16", seventy("h100", 2, None), {"TTFT": 130, "ITL": 9, "B=32": 2400}),
    *claims("70B, 4 × H100 FP8", seventy("h100", 4, "fp8"), {"TTFT": 35, "ITL": 3.5, "B=32": 7200}),
    *claims("70B, 8 × H100 FP8", seventy("h100", 8, "fp8"), {"TTFT": 20, "ITL": 2.2, "B=32": 12000}),
    *claims("405B, 16 × A100 INT8", large("a100", 16, "int8"), {"TTFT": 380, "ITL": 22, "B=16": 600}),
    *claims("405B, 8 × H100 FP8", large("h100", 8, "fp8"), {"TTFT": 120, "ITL": 11, "B=16": 1200}),
    *claims("405B, 16 × H100 FP8", large("h100", 16, "fp8"), {"TTFT": 75, "ITL": 7, "B=16": 2000}),
]
LADDER = [*claims("8B, A100, strategies", eight("a100", None), {"B=1": 140, "B=32": 3600}),
          *[replace(claim, column=f"B=32, {name}") for name, rate in (("continuous", 5400), ("paged", 7000), ("chunks", 8500))
            for claim in claims("8B, A100, strategies", eight("a100", None), {"B=32": rate})]]  # fmt: skip


@pytest.mark.parametrize("claim", [*CLAIMS, *LADDER], ids=lambda claim: f"{claim.config} {claim.column}")
def test_a_claim_stands_beside_its_limit(claim: Claim) -> None:
    assert claim.line in DOCUMENT


def test_least_devices_of_405b() -> None:
    """Part 3: 8 H100 in FP8 "to fit with room for a modest batch", 16 and more in FP16; ours are what tensor ranks of eight allow."""
    for dtype, devices in (("fp8", 8), ("bf16", 16)):
        assert large("h100", devices, dtype).memory.fits and not large("h100", devices // 2, dtype).memory.fits


def curve_line(device: str, batch: int) -> str:
    """A point of part 3's curve, the most that the data sheet allows, and the planner's estimate, all in tokens/s."""
    deployment = on("llama-3-8b", device.lower(), 1, None, 2047, 1)
    said, most = CURVES[device][batch], batch / speed.decode_floor(deployment, batch)
    estimate = batch / speed.decode_itl(deployment, batch)
    return f"| {device} | {batch} | {said:,} | {most:,.0f} | {said / most:.2f} | {estimate:,.0f} | {said / estimate:.2f} |"


@pytest.mark.parametrize("device", CURVES)
def test_curves_and_their_deviations_are_written_down(device: str) -> None:
    for batch in CURVES[device]:
        assert curve_line(device, batch) in DOCUMENT


@pytest.mark.parametrize("device", CURVES)
def test_curves_have_the_shape_of_ours(device: str) -> None:
    """Ours too grows nearly in proportion at first and flattens: what doubling brings never grows, and falls below 1.4 at last."""
    deployment = on("llama-3-8b", device.lower(), 1, None, 2047, 1)
    ours = {batch: batch / speed.decode_itl(deployment, batch) for batch in CURVES[device]}
    gains = [ours[2 * batch] / ours[batch] for batch in (4, 8, 16, 32, 64, 128)]
    assert gains[0] > 1.8 and gains[-1] < 1.4
    assert all(later < earlier * 1.06 for earlier, later in pairwise(gains))
