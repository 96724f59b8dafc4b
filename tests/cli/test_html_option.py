"""`--html` of plan, sim and whatif: what is written, what is said, and that a file that cannot be written is told before anything runs."""

import json
import re
import sys
from pathlib import Path

import pytest

from ridgeline.cli.main import main

SIM = ("sim", "llama-3-8b", "--requests", "20", "--rate", "20")


def run(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    monkeypatch.setattr(sys, "argv", ["ridgeline", *words])
    with pytest.raises(SystemExit) as ended:
        main()
    return int(ended.value.code or 0)


def data_of(path: Path) -> dict[str, object]:
    """What is embedded."""
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', path.read_text(encoding="utf-8"), re.DOTALL)
    assert found is not None
    return json.loads(found[1])


def check_self_contained(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert text.startswith("<!doctype html>") and "default-src 'none'" in text and "<!--" not in text
    assert not re.findall(r"""(?:src|href)=["']|@import|url\(""", text)


def test_plan(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    page = tmp_path / "plan.html"
    words = ("--device", "h200", "--memory", "100", "--users", "7", "--slo", "itl=50ms", "--dtype", "fp8", "--json", "--html", str(page))
    assert run(monkeypatch, "plan", "gemma-3-4b", *words) == 0
    shown = capsys.readouterr()
    assert json.loads(shown.out)["users"] == 7 and "plan.html written" in shown.err
    check_self_contained(page)
    data = data_of(page)
    assert data["opened"] | {"model": "gemma-3-4b", "device": "h200", "users": 7, "dtype": "fp8", "tensor": None} == data["opened"]
    assert data["devices"]["h200"]["memory_bytes"] == 100 * 10**9 and data["objective"] == {"ttft": None, "itl": 0.05}


def test_a_layout_that_was_asked_for_is_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    page = tmp_path / "plan.html"
    words = ("--count", "4", "--pipeline-parallel-size", "2", "--tensor-parallel-size", "2", "--html", str(page))
    assert run(monkeypatch, "plan", "llama-3-8b", *words) == 0
    opened = data_of(page)["opened"]
    assert (opened["count"], opened["tensor"], opened["pipeline"]) == (4, 2, 2)


def test_a_models_name_is_only_text(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from ridgeline.models.table import KNOWN

    odd = tmp_path / "<script>alert(1)<!--<script>"
    odd.mkdir()
    (odd / "config.json").write_text((KNOWN / "gpt2.json").read_text())
    assert run(monkeypatch, "plan", str(odd), "--html", str(tmp_path / "plan.html")) == 0
    assert "alert" not in re.sub(r"\\u003c[^\"]*", "", (tmp_path / "plan.html").read_text())
    assert any("<script>alert(1)" in name for name in data_of(tmp_path / "plan.html")["models"])


def test_sim_and_whatif(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    page, trace = tmp_path / "runs.html", tmp_path / "trace.jsonl"
    assert run(monkeypatch, *SIM, "--seeds", "2", "--html", str(page)) == 0
    assert "TTFT p50" in capsys.readouterr().out
    check_self_contained(page)
    data = data_of(page)
    (only,) = data["runs"]
    assert only["name"] == "as set" and len(data["table"]) > 20
    for name, curve in only["curves"].items():
        assert len(curve) == len(data["shares"]) and curve == sorted(curve) and curve[0] >= 0, name
        assert curve[data["shares"].index(0.9)] == pytest.approx(only[f"{name}.p90"]["mean"]), name
    trace.write_text("".join(json.dumps({"timestamp": 50 * i, "input_length": 200, "output_length": 20}) + "\n" for i in range(20)))
    words = ("--model", "llama-3-8b", "--set", "max_num_seqs=2", "--seeds", "1", "--no-levers", "--json", "--html", str(page))
    assert run(monkeypatch, "whatif", str(trace), *words) == 0
    assert [each["name"] for each in data_of(page)["runs"]] == ["today", "max_num_seqs=2"]
    assert [each["name"] for each in json.loads(capsys.readouterr().out)["runs"]] == ["today", "max_num_seqs=2"]


@pytest.mark.parametrize("words", [("plan", "llama-3-8b"), SIM])
def test_a_file_that_cannot_be_written(
    words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert run(monkeypatch, *words, "--html", str(tmp_path / "no" / "page.html")) == 2
    shown = capsys.readouterr()
    assert "cannot be written: No such file or directory" in shown.err and "--html page.html" in shown.err and not shown.out
