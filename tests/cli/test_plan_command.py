"""`ridgeline plan` as a user meets it: the keys of its JSON, its tables, its errors, its start without array libraries."""

import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from ridgeline.cli.main import main
from ridgeline.cli.plan import read_workload

KEYS = {
    "weights_bytes", "kv_bytes_per_token", "kv_bytes_per_sequence", "overhead_bytes", "max_sequences", "max_context_tokens", "fits",
    "decode_floor_seconds", "prefill_floor_seconds", "decode_intensity", "prefill_intensity", "ridge_intensity", "bound_by",
    "cost_per_million_tokens", "min_devices",
}  # fmt: skip


def run(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    """The exit status of `ridgeline plan …` in this process."""
    monkeypatch.setattr(sys, "argv", ["ridgeline", "plan", *words])
    with pytest.raises(SystemExit) as ended:
        main()
    return int(ended.value.code or 0)


def test_json(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(monkeypatch, "llama-3-8b", "--device", "h100", "--users", "16", "--slo", "itl=50ms", "--api-price", "0.2", "--json") == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer.keys() >= KEYS
    assert (answer["fits"], answer["weights_bytes"], answer["kv_bytes_per_token"]) == (True, 2 * 8_030_261_248, 131_072)
    assert answer["batch_table"] and answer["levers"] and answer["flags"] and answer["context_curve"] and answer["scaling"]
    used = sum(answer[f"{part}_bytes"] for part in ("weights", "activation", "overhead", "reserve", "kv_budget"))
    assert used == pytest.approx(answer["memory_bytes"], abs=4)


@pytest.mark.parametrize(
    "words",
    [
        ("llama-3-8b",),
        ("mixtral-8x7b", "--device", "h200", "--count", "2", "--tensor-parallel-size", "1", "--pipeline-parallel-size", "2"),
        ("deepseek-v3", "--device", "b200", "--count", "8", "--context", "100000", "--slo", "ttft=20s,itl=100ms"),
        ("gemma-3-270m", "--device", "m4"),
        ("llama-3-8b", "--device", "l4", "--dtype", "q4_k", "--kv-dtype", "int8", "--workload", "in=3000,out=1000,prefix=0.5,burst=4"),
        (
            "llama-3-8b",
            "--device",
            "a10",
            "--memory",
            "48",
            "--bandwidth",
            "900",
            "--tflops",
            "150",
            "--price-per-hour",
            "0.5",
            "--api-price",
            "1",
        ),
    ],
)
def test_tables(words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(monkeypatch, *words) == 0
    shown = capsys.readouterr().out
    for part in ("It fits", "ridge point", "Context against users", "knee", "Levers", "Least devices", "--max-num-seqs"):
        assert part in shown
    assert max(map(len, shown.splitlines())) <= 118


def test_what_does_not_fit_says_what_would(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(monkeypatch, "llama-3-70b", "--device", "a100", "--users", "32") == 1
    shown = capsys.readouterr().out
    assert "It does not fit" in shown and "3 devices are enough" in shown and "Levers" not in shown


def test_objective_out_of_reach(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(monkeypatch, "llama-3-8b", "--slo", "itl=1ms") == 0
    assert "No batch meets the objective" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "cause"),
    [
        (("no-such-model",), "there is no model 'no-such-model'"),
        (("llama-3-8b", "--device", "abacus"), "known: this, a100-40gb"),
        (("llama-3-8b", "--slo", "itl=50"), "write itl=50ms"),
        (("llama-3-8b", "--context", "1000000"), "outside 2 … 8192"),
        (("llama-3-8b", "--api-price", "-3"), "--api-price is -3"),
    ],
)
def test_errors_are_one_line_and_status_2(
    words: tuple[str, ...], cause: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, *words) == 2
    shown = capsys.readouterr()
    assert cause in shown.err and shown.err.count("\n") <= 2 and not shown.out


@pytest.mark.parametrize(
    ("words", "status"),
    [(["plan", "llama-3-70b", "--device", "h100", "--count", "4"], 0), (["bench", "serve", "--url", "http://127.0.0.1:9"], 2)],
)
def test_starts_in_half_a_second_without_array_libraries(words: list[str], status: int, tmp_path: Path) -> None:
    """Processor time, since other work on this machine is not the verb's; with compiled modules, as an installation has them. A machine
    that is slow today has 3.5 times what a start with the libraries of the command line takes, 0.16 s on a usual one."""
    program = (
        f"import sys; sys.modules['numpy'] = sys.modules['torch'] = None; sys.argv = ['ridgeline', *{words!r}];"
        "from ridgeline.cli.main import main; main()"
    )
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    environment["PYTHONPYCACHEPREFIX"] = str(tmp_path)

    def start(program: str, status: int) -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, env=environment)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        assert done.returncode == status, done.stderr
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    spent = [start(program, status)]  # compiles
    bare = min(start("import msgspec, typer, rich.console, rich.table", 0) for _ in range(3))
    allowed = max(0.5, 3.5 * bare)
    while len(spent) < 4 and min(spent) > allowed:
        spent.append(start(program, status))
    assert min(spent) <= allowed, (spent, bare)


def test_a_trace_says_the_workload(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Mean lengths, what earlier requests had, the fullest sixtieth, and the longest request as the context."""
    path = tmp_path / "own.jsonl"
    options = [{"time": 0.001 * n, "prompt": 100, "output": 10, "prefix": 7, "shared": 80} for n in range(9)]
    path.write_text("".join(json.dumps(each) + "\n" for each in [*options, {"time": 60, "prompt": 1100, "output": 110}]))
    words, longest = read_workload(str(path))
    assert words == "in=200,out=20,prefix=0.320,burst=54.00" and longest == 1210
    assert read_workload("in=5,out=2") == ("in=5,out=2", None) and read_workload(None) == (None, None)
    assert run(monkeypatch, "llama-3-8b", "--workload", str(path), "--expert-parallel-size", "1", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["context"] == 1210 and {row["shape"] for row in found["scaling"]} >= {"bursty over an idle base"}
    assert sum(found["weights_by_class_bytes"].values()) == found["weights_bytes"]
    path.write_text('{"time": 4, "prompt": 100, "output": 10}\n')
    assert read_workload(str(path)) == ("in=100,out=10,prefix=0.000,burst=1.00", 110)
    path.write_text("no json\n")
    assert run(monkeypatch, "llama-3-8b", "--workload", str(path)) == 2
    assert "line 1 is no JSON" in capsys.readouterr().err
