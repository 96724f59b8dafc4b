"""What a first user meets in the shell: plans of this machine, tables that say what they are of and fit, an honest bench, causes first."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import fields
from pathlib import Path

import pytest
from gguf_files import model_file, value
from rich.cells import cell_len

from ridgeline.bench.report import LatencySummary, LoadReport, has_percentile, report_notes, table_rows
from ridgeline.cli.main import VERBS, main
from ridgeline.config.env import cache_directory
from ridgeline.errors import ModelFormatError
from ridgeline.facts.hardware import this_machine as machine
from ridgeline.facts.hardware.ceilings import Ceilings
from ridgeline.facts.hardware.gpu import Gpu
from ridgeline.text.files import read_files

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """`ridgeline` in this process: status, stdout, stderr."""

    def call(line: str, columns: int | None = None) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["ridgeline", *shlex.split(line)])
        if columns is not None:
            monkeypatch.setenv("COLUMNS", str(columns))
        with pytest.raises(SystemExit) as ended:
            main()
        shown = capsys.readouterr()
        return int(ended.value.code or 0), shown.out, shown.err

    return call


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "day.jsonl"
    path.write_text("".join(json.dumps({"time": n / 10, "prompt": 400, "output": 30}) + "\n" for n in range(12)))
    return path


# ── traces ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("line", ["whatif", "whatif /no/such/trace.jsonl", "sim llama-3-8b --trace /no/such/trace.jsonl", "whatif --help"])
def test_n2_whoever_has_no_trace_is_told_how_to_get_one(line: str, run: Run) -> None:
    _, out, err = run(line)
    told = " ".join((out + err).split())
    assert "ridgeline serve MODEL --record FILE" in told and "ridgeline replay FILE --trace trace.jsonl" in told


def test_n2_a_recording_is_told_from_a_trace(run: Run) -> None:
    recording = Path(__file__).resolve().parents[1] / "engine" / "recordings"
    path = next(path for path in sorted(recording.iterdir()) if path.read_bytes().startswith(b"ridgeline recording"))
    status, _, err = run(f"whatif {path}")
    assert status == 2 and "is a recording" in err and "ridgeline replay" in err


# ── architectures ───────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("config", [{"model_type": "jamba"}, {"model_type": "mamba9"}])
def test_n11_a_directory_of_an_unsupported_architecture_says_so_first(config: dict[str, str], tmp_path: Path) -> None:
    """Although its tokenizer is missing too."""
    known = json.loads((Path(machine.__file__).parents[2] / "models/known/mixtral-8x7b.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(known | config))
    with pytest.raises(ModelFormatError, match=r"model_type 'jamba' is not supported|model_type 'mamba9' is not known"):
        read_files("m", tmp_path, chat_template=None, generation_config="auto")


def test_n11_a_file_of_an_unsupported_architecture_says_so_first(tmp_path: Path) -> None:
    """Although its tokenizer is of no kind that is known."""
    path = tmp_path / "other.gguf"
    changes = {"general.architecture": value("str", "mamba9"), "tokenizer.ggml.model": value("str", "none that is known")}
    path.write_bytes(model_file(changes).build())
    with pytest.raises(ModelFormatError, match="architecture 'mamba9' is not supported"):
        read_files("m", path, chat_template=None, generation_config="auto")


# ── plans ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_n13_a_plan_that_does_not_fit_ends_with_1(run: Run) -> None:
    for json_flag in ("", " --json"):
        status, out, _ = run(f"plan llama-3-70b --device rtx-4090{json_flag}")
        assert status == 1 and ("It does not fit" in out or json.loads(out)["fits"] is False)
        assert run(f"plan llama-3-8b --device h100{json_flag}")[0] == 0


def test_a_plan_is_of_this_machine_and_measures_it_once(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second plan takes what the first measured; other cores, a damaged or an old file are measured anew."""
    count = 0

    def measure() -> Ceilings:
        nonlocal count
        count += 1
        return Ceilings(count * 1e10, {"f32": 1e11}, "avx2")

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(machine, "measure_ceilings", measure)
    monkeypatch.setattr(machine, "gpu_missing", lambda: "none")
    status, out, _ = run("plan gemma-3-270m")
    assert status == 0 and "this machine (" in out and "avx2" in out
    file = cache_directory() / machine.FILE
    assert machine.this_machine(cache_directory()).bytes_per_second == 1e10 and count == 1
    kept = json.loads(file.read_text())
    negative = {"bytes_per_second": -1.0, "flops_per_second": {"f32": 1.0}, "isa": "avx2"}
    others = [json.dumps(kept | change) for change in ({"measured": 0}, {"key": {}}, {"ceilings": negative})]
    for damaged in ("", "{", "[]", *others):
        before = count
        file.write_text(damaged)
        assert machine.this_machine(cache_directory()).bytes_per_second == (before + 1) * 1e10, damaged
    assert machine.this_machine(cache_directory(), fresh=True).bytes_per_second == count * 1e10
    assert machine.this_machine(Path("/proc/no/such/place")).name.startswith("this machine")  # what cannot be kept is measured


@pytest.mark.parametrize(
    ("name", "device"),
    [("NVIDIA H100 80GB HBM3", "h100-sxm"), ("NVIDIA H100 PCIe", "h100-pcie"), ("NVIDIA A100-SXM4-40GB", "a100-40gb"),
     ("NVIDIA A100-SXM4-80GB", "a100-80gb"), ("NVIDIA H200", "h200"), ("NVIDIA GeForce RTX 4090", "rtx-4090"), ("NVIDIA L40S", "l40s"),
     ("NVIDIA A10", "a10"), ("NVIDIA T4", None)],
)  # fmt: skip
def test_a_gpu_that_would_be_used_is_this_machine(name: str, device: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "gpu_missing", lambda: None)
    monkeypatch.setattr(machine, "read_gpus", lambda: (Gpu(name, "580", True, None, None, None, None, None, 81_000.0),))
    monkeypatch.setattr(machine, "measure_ceilings", lambda: Ceilings(1e10, {"f32": 1e11}, "avx2"))
    found = machine.this_machine(tmp_path)
    known = machine.gpu_device(name)
    assert (known.name if known else None) == device and name in found.name
    assert device is None or (found.memory_bytes == 81_000 << 20 and known is not None and found.bytes_per_second == known.bytes_per_second)


# ── tables ──────────────────────────────────────────────────────────────────────────────────────────────────────────

TABLES = [
    "plan llama-3-8b --device h100 --api-price 1 --slo itl=30ms",
    "plan deepseek-v3 --device b200 --count 8 --context 100000 --workload in=3000,out=1000,prefix=0.5,burst=4",
    "plan llama-3-70b --device a100",
    "sim llama-3-8b --requests 20 --seeds 2 --slo ttft=1s",
    "sim llama-3-8b --requests 20 --users 3 --set decode_replicas=1",
    "whatif {trace} --seeds 1 --set max_num_seqs=64 --set kv_dtype=int8 --replicas 2",
    "bench gpu --dry-run",
]


@pytest.mark.parametrize("columns", [80, 100])
@pytest.mark.parametrize("line", TABLES)
def test_n16_tables_fit_and_no_number_is_cut(line: str, columns: int, run: Run, trace: Path) -> None:
    status, out, err = run(line.format(trace=trace), columns)
    assert status in (0, 1) and not err
    assert max(map(cell_len, out.splitlines())) <= columns
    assert "…" not in out.replace("1 … ", "")


def test_n15_sim_and_whatif_say_what_they_simulate(run: Run, trace: Path) -> None:
    _, out, _ = run("sim llama-3-8b --requests 20 --rate 3 --device a100 --replicas 2 --slo ttft=1s", 100)
    for told in ("llama-3-8b", "2 replicas of 1 × a100-80gb", "20 requests", "poisson", "3 requests/s", "prompt lognormal:500", "ttft=1s",
                 "256 sequences", "2,048 tokens per step", "policy fcfs", "seed 1"):  # fmt: skip
        assert told in out, told
    _, out, _ = run(f"whatif {trace} --seeds 1 --no-levers", 100)
    for told in ("Gemma 3 270m", "1 × this machine (", "day.jsonl: 12 requests in 1.1 s", "mean prompt 400 and output 30 tokens"):
        assert told in out, told


def test_n16_whatif_says_what_helps_most_is_of(run: Run, trace: Path) -> None:
    _, out, _ = run(f"whatif {trace} --seeds 1 --today step_time=constant:0.02 --today max_num_seqs=2 --model llama-3-8b", 100)
    assert "What helps most, per device: twice the sequences at once, " in " ".join(out.split())
    assert " ".join(out.split()).count("mean E2E latency today over the lever's") == 2  # the column's title and the note
    _, out, _ = run(f"whatif {trace} --seeds 1 --today device=h100-sxm", 100)
    assert "1 × h100-sxm" in out and "No lever gains 2%" in out and "Bottleneck today: none" in out


@pytest.mark.parametrize("line", ["--help", "bench --help", "plan --help", "serve --help", "whatif -h"])
def test_n16_help_fits_and_no_verb_is_cut(line: str, run: Run) -> None:
    status, out, _ = run(line, 80)
    assert status == 0 and max(map(cell_len, out.splitlines())) <= 80
    assert not any(text.endswith("...") for text in out.splitlines() if "[" not in text)


# ── bench serve ─────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def report() -> Callable[[int], LoadReport]:
    def make(requests: int) -> LoadReport:
        values = dict.fromkeys((field.name for field in fields(LoadReport)), 0.0)
        latency = LatencySummary.of([0.01 * (n + 1) for n in range(requests)])
        values |= {"requests": requests, "failures": {}, "curves": {}} | dict.fromkeys(("ttft", "itl", "tpot", "e2e", "lag"), latency)
        return LoadReport(**values)  # type: ignore[arg-type]

    return make


def test_n17_no_heading_twice_and_no_percentile_of_few(report: Callable[[int], LoadReport]) -> None:
    for requests, shown in ((8, {"p50"}), (10, {"p50", "p90"}), (20, {"p50", "p90", "p95"}), (100, {"p50", "p90", "p95", "p99"})):
        found = report(requests)
        labels = [row[0] for row in table_rows([found], objective=True)]
        assert len(labels) == len(set(labels))
        assert {label.removeprefix("TTFT ") for label in labels if label.startswith("TTFT p")} == shown
        assert {"TTFT max", "TTFT mean"} <= set(labels)
        assert any("a percentile needs" in note for note in report_notes(found)) == (requests < 100)
        assert has_percentile(found, "ttft.p99") == (requests >= 100)
    rows = {row[0]: row[1:] for row in table_rows([report(8), report(100)], objective=False)}
    assert rows["TTFT p99"] == ("–", "990 ms")


# ── time ────────────────────────────────────────────────────────────────────────────────────────────────────────────

STARTS = [words for words in (["--help"], ["plan", "demo"], ["list"]) if words[0] in (*VERBS, "--help")]
"""What shall take 0.4 s at most."""


@pytest.mark.alone
@pytest.mark.parametrize("words", STARTS, ids=lambda words: " ".join(words))
def test_help_list_and_plan_demo_start_at_once(words: list[str]) -> None:
    """CPU time of the best of five at most, since other work on this machine is not the verb's; a start imports no array library. A machine
    that is slow today has five times what it takes to import the libraries of the command line, 0.08 s on a usual one."""
    program = (
        "import sys, time; sys.modules['numpy'] = sys.modules['torch'] = None; from ridgeline.cli.main import main\n"
        f"sys.argv = ['ridgeline', *{words!r}]\ntry: main()\nfinally: print(time.process_time(), file=sys.stderr)"
    )
    libraries = "import time, msgspec, typer, rich.console, rich.table; print(time.process_time())"
    bare = [float(subprocess.check_output([sys.executable, "-c", libraries])) for _ in range(3)]
    allowed = max(0.4, 5 * min(bare))
    spent: list[float] = []
    while len(spent) < 5 and min(spent, default=9.0) > allowed:
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, env=os.environ, check=False)
        assert done.returncode == 0, done.stderr
        spent.append(float(done.stderr.splitlines()[-1]))
    assert min(spent) <= allowed, (spent, bare)


# ── interrupts ──────────────────────────────────────────────────────────────────────────────────────────────────────

PROGRAM = "import sys; sys.argv[0] = 'ridgeline'; from ridgeline.cli.main import main; main()"


def interrupt(words: list[str], sign: Callable[[str], bool], **variables: str) -> tuple[int, str, float]:
    """Status, stderr, and seconds to the end of a process that gets a SIGINT as soon as `sign` holds for what it has said."""
    process = subprocess.Popen(
        [sys.executable, "-u", "-c", PROGRAM, *words], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
        text=True, env={**os.environ, **variables}, process_group=0,
    )  # fmt: skip
    said: list[str] = []
    assert process.stderr is not None
    reader = threading.Thread(target=lambda: said.extend(iter(process.stderr.readline, "")))  # type: ignore[union-attr]
    reader.start()
    try:
        end = time.monotonic() + 60
        while not sign("".join(said)) and process.poll() is None and time.monotonic() < end:
            time.sleep(0.01)
        began = time.monotonic()
        os.killpg(process.pid, signal.SIGINT)
        status = process.wait(30)
        seconds = time.monotonic() - began
        reader.join(10)
        return status, "".join(said), seconds
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        process.stderr.close()


@pytest.mark.parametrize("verb", ["serve", "generate", "run"])
def test_n8_an_interrupt_while_loading_says_so_and_ends_with_130(verb: str) -> None:
    words = [verb, "demo", *(["--port", "0"] if verb == "serve" else ["hi"])]
    status, said, seconds = interrupt(words, lambda text: "packing weights" in text)
    assert status == 130 and re.search(r"ridgeline: interrupted while loading \(.+\)\n$", said), said
    assert "Traceback" not in said and seconds < 10


def test_n8_an_interrupt_waits_for_no_hub_that_stands_still(tmp_path: Path) -> None:
    """The transfer of a model has begun and sends nothing more."""
    from hub_server import serve_hub

    release = threading.Event()
    with serve_hub() as hub:
        hub.files["some/model"] = {"model-Q4_0.gguf": bytes(1 << 20)}
        hub.before_content = lambda: bool(release.wait(60)) and None
        try:
            status, said, seconds = interrupt(
                ["serve", "some/model:Q4_0", "--port", "0"], lambda _: hub.sent(".gguf") > 0,
                HF_ENDPOINT=hub.url, HF_HOME=str(tmp_path), XDG_CACHE_HOME=str(tmp_path), HF_HUB_OFFLINE="0",
            )  # fmt: skip
        finally:
            release.set()
    assert hub.sent(".gguf") and status == 130 and "interrupted while loading" in said and seconds < 10, said
