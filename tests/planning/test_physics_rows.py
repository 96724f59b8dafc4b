"""The notes' tables and worked examples row by row: what they say, beside what the functions of the planner make of it.

`said` is the text of the notes: a number is reproduced when it differs by at most a unit of its last digit, one with "~" by 5 %.
Rows that contradict physics or each other are in `DEVIATIONS`, with what is right and a reason. docs/physics.md, section 13, lists all.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from operator import truediv
from pathlib import Path

import notes
import pytest
from notes import kv_bytes, max_sequences, min_devices

from ridgeline.facts.files.formats import FORMATS
from ridgeline.facts.headers.read import describe_model
from ridgeline.planning import levers, parallel, report, speed
from ridgeline.planning.arguments import Question, deployment_of
from ridgeline.planning.deployment import Deployment, attention_score_bytes
from ridgeline.planning.shape import shape_of

GB, GIB = 1e9, 2**30
BILLIONS = {"8B": 8.03, "70B": 70.6, "405B": 405.1}
SHAPE = {"7B": (32, 32, 128), "8B": (32, 8, 128), "70B": (80, 8, 128), "405B": (126, 8, 128)}
"""Layers, KV heads, head dimension."""


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


WEIGHTS = [
    line
    for name, size, said in (
        ("FP32", 4, "28 140 280"), ("FP16 / BF16", 2, "14 70 140"), ("INT8", 1, "7 35 70"), ("INT4", 0.5, "3.5 17.5 35"),
        ("FP8", 1, "7 35 70"),
    )
    for line in rows("1 §3 Weight Memory by Precision", name, said, *each(lambda b, size=size: b * size, 7, 35, 70))  # type: ignore[misc]
]  # fmt: skip

PART_1 = [
    *rows("1 §1 Decode", "weight read of 7B, ms; tokens/s", "~7 ~140",
          14e9 / 2e12 * 1e3, 2e12 / 14e9),
    *rows("1 §1 Training vs Inference", "FLOP a parameter", "6 2", 6, 2),
    *rows("1 §1 Training vs Inference", "GB for 7B in training", "~84", 7e9 * (2 + 2 + 4 + 4) / GB),
    *rows("1 §2 Total latency", "300 + 200 × 20 ms", "4,300", 300 + 200 * 20),
    *rows("1 §2 Targets", "TTFT ms: chat, documents, code", "300 1000 100", *each(lambda t: t * 1e3, *map(
        notes.TTFT_TARGETS.__getitem__, ("chat", "document questions", "code completion")))),
    *rows("1 §2 Targets", "choppy from, ms", "80", notes.ITL_CHOPPY * 1e3),
    *rows("1 §2 TTFT by users", "10 and 50 users at 40 ms a prompt, ms", "400 2,000", *each(
        lambda n: n * 40, 10, 50)),
    *WEIGHTS,
    *rows("1 §3 KV cache", "Llama-2 7B, 2,048 tokens, GB", "1.07", kv_bytes(*SHAPE["7B"], 2048, 2) / GB),
    *rows("1 §3 KV cache", "left of 80 GB; sequences", "63 ~59", 80 - 14 - 3, max_sequences(80, 14, 3, 1.07)),
    *rows("1 §3 KV cache", "GB freed by INT4; more sequences", "10.5 10", 7 * 2 - 7 * 0.5, 10.5 / 1.07),
    *rows("1 §3 Calculator", "weights, overhead, KV, sequences, each", "14.0 2.8 63.2 ~59 1.07",
          7 * 2, 14 * notes.OVERHEAD_FACTOR - 14, 80 - 14 * notes.OVERHEAD_FACTOR,
          max_sequences(80, 14, 2.8, 1.07), kv_bytes(*SHAPE["7B"], 2048, 2) / GB),
    *rows("1 §3 VRAM rule", "factor", "1.2", notes.OVERHEAD_FACTOR),
    *rows("1 §3 CPU or GPU", "ms of 14 GB: A100, DDR5; ratio", "~7 ~140 20",
          *each(lambda b: 14e9 / b * 1e3, 2e12, 1e11), 2e12 / 1e11),
    *rows("1 §4 Quantization", "INT4 memory against FP16", "0.25", 0.5 / 2),
    *rows("1 §5 Compression chain", "GB of 7B and 6.3B in INT4", "3.5 3.15", 7 * 0.5, 6.3 * 0.5),
    *rows("1 §7 Cost", "dollars a thousand tokens", "0.00083", speed.million_token_cost(3, 1000) / 1e3),
    *rows("1 §9 Volume", "thresholds, M tokens a day", "1 50",
          report.API_BELOW_TOKENS_PER_DAY / 1e6, report.SELF_HOST_ABOVE_TOKENS_PER_DAY / 1e6),
    *rows("1 §9 Example", "API a day, a month; own A100 a month", "100 3,000 ~1,500",
          100e6 / 1e6, 30 * 100e6 / 1e6, report.self_host_month_cost(2)),
]  # fmt: skip

TIMES = [320.0, 355.0, 392.0, 428.0]
GAPS = [after - before for before, after in pairwise(TIMES)]
PART_2 = [
    *rows("2 Timeline", "ITLs, TPS", "35 37 36 27.8", *GAPS, 1000 / (sum(GAPS) / 3)),
    *rows("2 Ideal shard rate", "tokens/s on four H100", "95.7", 4 * 3.35e12 / 140e9),
    *rows("2 KV cache", "GQA, MHA, ratio", "1.34 10.74 8", kv_bytes(80, 8, 128, 4096, 2) / GB, kv_bytes(80, 64, 128, 4096, 2) / GB, 8),
    *rows("2 Production note", "GB of KV for 100 users, raw total", "134 274", 100 * 1.34, 140 + 134),
    *rows("2 Try it yourself", "raw GB", "67.69", 14 + kv_bytes(32, 8, 128, 2048, 2, 200) / GB),
    *rows("2 max_context_for_budget", "tokens", "8,544", int((320e9 - 140e9 - 40e9) / 50 / 327_680)),
    *rows("2 chunked_schedule", "chunks of 6,144", "2048 2048 2048", *[min(2048, 6144 - at) for at in range(0, 6144, 2048)]),
    *rows("2 users_from_kv_budget", "FP16, FP8", "59 119", max_sequences(80, 0, 0, 1.342), max_sequences(80, 0, 0, 0.671)),
    *rows("2 Choppy", "ms", "100", notes.ITL_TYPEWRITER * 1e3),
]


def table(where: str, lines: dict[str, str], found: Callable[[str], list[float]]) -> list[Row]:
    """A table by its first column."""
    return [row for name, said in lines.items() for row in rows(where, name, said, *found(name))]


def per_token(model: str) -> float:
    """Bytes of a cached token."""
    return notes.kv_token_bytes(*SHAPE[model], 2)


CURVES = {
    "A100": {1: 140, 4: 530, 8: 980, 16: 1850, 32: 3600, 64: 5800, 128: 7200, 256: 7800},
    "H100": {1: 238, 4: 900, 8: 1700, 16: 3200, 32: 6100, 64: 9800, 128: 14200, 256: 16500},
}
PART_3 = [
    *rows("3 Roofline", "ridge of A100, H100", "156 295", *each(lambda f: f, 312 / 2.0, 989 / 3.35)),
    *rows("3 Prefill vs Decode", "ratio of FLOPs, of bytes, intensities", "512 1 512 1",
          512 / 1, 1,
          notes.matmul_intensity(512, 4096, 14336, 2), notes.matmul_intensity(1, 4096, 14336, 2)),
    *table("3 Llama 3 Model Weight Memory", {"8B": "16.1 8.0 4.0 1", "70B": "141.2 70.6 35.3 2", "405B": "810.2 405.1 202.6 11"},
           lambda m: [*each(lambda size: BILLIONS[m] * size, 2, 1, 0.5),
                      min_devices(BILLIONS[m] * 2, 80)]),
    *table("3 KV per token", {"8B": "131,072 0.125", "70B": "327,680 0.3125", "405B": "516,096 ~0.49"},
           lambda m: [per_token(m), per_token(m) / 2**20]),
    *table("3 KV Cache Memory Per Request", {"8B": "0.5 3.1", "70B": "1.25 0.9", "405B": "~1.96 0.2"},
           lambda m: [4096 * per_token(m) / GIB, 100 * 4096 * per_token(m) / GIB / (BILLIONS[m] * 2)]),
    *table("3 KV Cache Memory at Scale", {"8B": "0.5 16 64 128", "70B": "1.25 40 160 320", "405B": "~1.96 ~62.7 ~250.9 ~501.8"},
           lambda m: each(lambda batch: kv_bytes(*SHAPE[m], 4096, 2, int(batch)) / GIB, 1, 32, 128, 256)),
    *rows("3 Long context", "8B, 128K, 32 sequences, GiB", "512", kv_bytes(*SHAPE["8B"], 131_072, 2, 32) / GIB),
    *rows("3 Activation Memory", "GiB a layer, of 32", "1 32", *each(lambda n: n * attention_score_bytes(32, 4096, 2) / GIB, 1, 32)),
    *rows("3 Total Memory Budget", "headroom of 70B on 2 × A100; in INT8; at half the batch", "-29 119 169",
          160 - (141 + 40 + 4 + 4), 70.6 + 40 + 8, 141 + 20 + 8),
    *rows("3 Batched decode", "intensity at 1, 8, 32, 64, 128, 156, 295", "1 8 32 64 128 156 295", *each(
        lambda batch: notes.matmul_intensity(int(batch), 4096, 14336, 2), 1, 8, 32, 64, 128, 156, 295)),
    *rows("3 Batch Size Impact", "tokens/s from ms a token", "~140 ~540 ~2,000 ~3,600 ~5,800 ~7,200 ~7,800", *map(
        truediv, (1, 4, 16, 32, 64, 128, 256), (0.007, 0.0074, 0.008, 0.0089, 0.011, 0.0178, 0.0328))),
    *rows("3 Batch Size Impact", "utilisation at 4, 16, 32, 64, %", "3 10 20 ~40", *each(
        lambda batch: 100 * notes.utilisation(batch, 156), 4, 16, 32, 64)),
    *rows("3 Batch Size Impact", "KV at 2K, GiB", "0.25 1.0 4.0 8.0 16.0 32.0 64.0", *each(
        lambda batch: kv_bytes(*SHAPE["8B"], 2048, 2, int(batch)) / GIB, 1, 4, 16, 32, 64, 128, 256)),
    *rows("3 The Memory Wall", "8B, 70B, 70B in INT8, ratio", "119 10 66 6.6",
          max_sequences(80, 16.1, 4, 0.5), max_sequences(160, 141.2, 6, 1.25), max_sequences(160, 70.6, 6, 1.25), 66 / 10),
    *rows("3 The Memory Wall", "GB freed by INT4; requests", "~106 ~85", 70.6 * 1.5, 70.6 * 1.5 / 1.25),
    *rows("3 Static batching", "idle % after the short request", "98", 100 * (1 - 10 / 500)),
    *rows("3 Specifications", "H100 / A100: HBM, bandwidth, FP16, INT8, ridge, NVLink", "1.0 1.67 3.17 3.17 1.89 1.5",
          80 / 80, 3.35 / 2.0, 989 / 312, 1978 / 624, 295 / 156, 900 / 600),
    *rows("3 8B on one GPU", "tokens/s from ITL", "~140 ~172 ~238 ~286", *each(lambda ms: 1e3 / ms, 7.1, 5.8, 4.2, 3.5)),
    *rows("3 8B on one GPU", "max batch in 16 bits", "~120", max_sequences(80, 16.1, 4, 0.5)),
    *rows("3 70B on several", "tokens/s from ITL", "~67 ~154 ~111 ~286 ~455", *each(lambda ms: 1e3 / ms, 15, 6.5, 9, 3.5, 2.2)),
    *rows("3 70B on several", "max batch in 16 bits", "~10", max_sequences(160, 141.2, 6, 1.25)),
    *rows("3 405B", "tokens/s from ITL", "~45 ~91 ~143", *each(lambda ms: 1e3 / ms, 22, 11, 7)),
    *rows("3 405B", "bubbles of two stages, 9 and 4 pieces, %", "10 20", *each(lambda m: 100 * parallel.pipeline_bubble(2, int(m)), 9, 4)),
    *rows("3 Scaling curves", "H100 / A100 at batch 1", "1.7", CURVES["H100"][1] / CURVES["A100"][1]),
    *rows("3 Optimization Hierarchy", "speculation from 1.5, prefix caching at hits of 0.5 and 0.9", "2.67 2 10",
          levers.speculation_speedup(4, 1.5), levers.reused_prefill_speedup(0.5), levers.reused_prefill_speedup(0.9)),
    *rows("3 Cost", "$ a million at 286 and 7,200 tok/s; ratio", "15.5 0.62 25",
          speed.million_token_cost(16, 286), speed.million_token_cost(16, 7200), 7200 / 286),
]  # fmt: skip

PART_4 = [
    *rows("4 §3 KV", "7B at 4,096, of 64, GQA", "~2.1 ~137 4", kv_bytes(*SHAPE["7B"], 4096, 2) / GB,
          kv_bytes(*SHAPE["7B"], 4096, 2, 64) / GB, kv_bytes(*SHAPE["7B"], 1, 2) / kv_bytes(*SHAPE["8B"], 1, 2)),
    *rows("4 §7 Variants", "KV heads of Llama-2 70B", "8", describe_model("llama-2-70b", Path()).kv_heads),
]  # fmt: skip
PART_5 = [
    *rows("5 §2 Artifact", "GB of 7B: FP32, FP16, INT8, Q4_K_M", "~28 ~14 ~7 ~4", *each(lambda size: 7 * size, 4, 2, 1),
          7 * (FORMATS["Q4_K"].bits_per_weight / 8)),
    *rows("5 §5 Embedding", "MB of [32000, 4096] in 16 bits", "~256", 32_000 * 4096 * 2 / 1e6),
    *rows("5 §9 Decode", "kB of a token in a layer of 7B, tens", "16", 2 * 32 * 128 * 2 / 1024),
    *rows("5 §10 Prefix cache", "% saved", "51", 100 * (1 - 367 / 753)),
    *rows("5 §11 Contiguous", "slots wasted of 20 and 20", "10 14", *each(lambda n: 20 - n, 10, 6)),
    *rows("5 §13 Metrics", "TTFT ms; ITL ms; KV", "500 2000 5000 30 100 0.85 0.9", *each(
        lambda t: t * 1e3, notes.TTFT_INTERACTIVE, notes.TTFT_TOLERABLE, notes.TTFT_BROKEN, notes.ITL_SMOOTH,
        notes.ITL_TYPEWRITER), notes.KV_ALERT, notes.KV_TROUBLE),
    *rows("5 §14 Time", "TTFT of the parts, ms", "~45", 0.5 + 1 + 40 + 4),
]  # fmt: skip
ROWS = [*PART_1, *PART_2, *PART_3, *PART_4, *PART_5]
DOCUMENT = (Path(__file__).resolve().parents[2] / "docs" / "physics.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_the_row_is_reproduced(row: Row) -> None:
    assert row.found == pytest.approx(row.number, abs=row.unit * (1 + 1e-9)), row


def test_the_document_lists_every_table() -> None:
    """With how many of its numbers are reproduced."""
    counts = Counter(row.where for row in ROWS)
    missing = [f"| {where} | {count} |" for where, count in counts.items() if f"| {where} | {count} |" not in DOCUMENT]
    assert not missing, "\n".join(missing)


def listed(*tensors: tuple[int, int]) -> float:
    """Billions of parameters of 32 layers of these tensors, with embedding and head."""
    return (32 * sum(rows * columns for rows, columns in tensors) + 2 * 32_000 * 4096) / 1e9


SQUARE = (4096, 4096)
OWN_FORMULA = "from its own formula, 3 GB per device"
DEVIATIONS = [
    (Row("1 §2 TTFT by users", "one user, ms", "200", 1 * 40),
     "10 and 50 users are prompts of 40 ms one after the other, so one user waits 40"),
    (Row("1 §3 KV cache", "sequences in 63 GB", "59", max_sequences(80, 14, 3, 1.07)), "58.9, and no sequence is nine tenths"),
    (Row("3 Llama 3 Model Weight Memory", "parameters of 405B, billions", "405.1",
         shape_of(describe_model("llama-3.1-405b", Path())).total_parameters / 1e9), "counted from the configuration"),
    (Row("3 The Memory Wall", "8B in GB of one kind", "119", max_sequences(80, 16.1, 4, kv_bytes(*SHAPE["8B"], 4096, 2) / GB)),
     "0.5 is GiB, the rest GB"),
    (Row("3 The Memory Wall", "70B in GB of one kind", "10", max_sequences(160, 141.2, 6, kv_bytes(*SHAPE["70B"], 4096, 2) / GB)),
     "1.25 is GiB"),
    (Row("3 The Memory Wall", "70B in INT8 in GB of one kind", "66",
         max_sequences(160, 70.6, 6, kv_bytes(*SHAPE["70B"], 4096, 2) / GB)), "1.25 is GiB"),
    (Row("3 Batch Size Impact", "utilisation at 128, %", "75", 100 * notes.utilisation(128, 156)), "128 of a ridge of 156"),
    (Row("3 Batch Size Impact", "utilisation at 256, %", "95", 100 * notes.utilisation(256, 156)),
     "beyond the ridge; its cache binds instead"),
    (Row("3 Batch Size Impact", "tokens/s at batch 4", "540", CURVES["A100"][4]), "the curve of the same part"),
    (Row("3 Batch Size Impact", "tokens/s at batch 16", "2000", CURVES["A100"][16]), "the curve of the same part"),
    (Row("3 8B on one GPU", "max batch, A100 INT8", "200", max_sequences(80, 8.0, 4, 0.5)),
     "from its own formula; 272 if the cache has 8 bits too"),
    (Row("3 8B on one GPU", "max batch, H100 FP8", "240", max_sequences(80, 8.0, 4, 0.5)),
     "from its own formula; 272 if the cache has 8 bits too"),
    (Row("3 70B on several", "max batch, 4 × A100 INT8", "100", max_sequences(320, 70.6, 12, 1.25)), OWN_FORMULA),
    (Row("3 70B on several", "max batch, 4 × H100 FP8", "120", max_sequences(320, 70.6, 12, 1.25)), OWN_FORMULA),
    (Row("3 70B on several", "max batch, 8 × H100 FP8", "280", max_sequences(640, 70.6, 24, 1.25)), OWN_FORMULA),
    (Row("3 405B", "cost against 70B, times", "8", (16 / 2000) / (4 / 7200)), "16 devices for 2,000 tok/s against 4 for 7,200"),
    (Row("3 Optimization Hierarchy", "batch capacity from fewer bits, at most", "4", 66 / 10), "its own example has 66 in place of 10"),
    (Row("5 §2 Artifact", "parameters of the tensors listed, billions", "7", listed(*[SQUARE] * 4, (4096, 11008), (11008, 4096))),
     "the gate is missing: with it 6.7"),
    (Row("5 §7 Layers", "layers of Llama 3.2 3B", "32", describe_model("llama-3.2-3b", Path()).layers), "its configuration"),
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
    return deployment_of(describe_model(model, Path()), Question(device, count, dtype, workload=f"in={prompt},out={output}"))


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
    assert [min_devices(405.1 * size, 80) for size in (1, 2)] == [6, 11]
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
    """Both grow nearly in proportion at first and flatten: what doubling brings never grows, and falls below 1.5 at last."""
    deployment = on("llama-3-8b", device.lower(), 1, None, 2047, 1)
    ours = {batch: batch / speed.decode_itl(deployment, batch) for batch in CURVES[device]}
    for curve in (ours, CURVES[device]):
        gains = [curve[2 * batch] / curve[batch] for batch in (4, 8, 16, 32, 64, 128)]
        assert gains[0] > 1.8 and gains[-1] < 1.4
        assert all(later < earlier * 1.06 for earlier, later in pairwise(gains))
