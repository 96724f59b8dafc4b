"""`ridgeline bench serve` and `bench compare` against real servers with a fake model, whose steps take a known time."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ridgeline.cli.main import main

PROGRAM = "import sys; sys.argv[0] = 'ridgeline'; from ridgeline.cli.main import main; main()"
FAKE = '{"vocab": 258, "rows": 8, "blocks": 4096, "step_seconds": %s}'
TEMPLATE = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"


@pytest.fixture
def bench(environment: dict[str, str]) -> Callable[..., subprocess.CompletedProcess[str]]:
    def run(*words: str, status: int = 0) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, "bench", *words], capture_output=True, text=True, env=environment, timeout=100
        )
        assert done.returncode == status, done.stderr + done.stdout
        return done

    return run


def test_serve_measures_what_steps_take(bench: Callable[..., Any], serving: Callable[..., Any], browser: Any, tmp_path: Path) -> None:
    """Steps of 30 ms, long against what other tests take of the machine: a token each, to four streams at once; a page that loads nothing,
    and every request in the JSON."""
    page, out = tmp_path / "page.html", tmp_path / "out.json"
    flags = [
        "--input-len",
        "60",
        "--output-len",
        "10",
        "--ignore-eos",
        "--slo",
        "ttft=10s,itl=10s",
        "--html",
        str(page),
        "--json",
        str(out),
    ]
    with serving("fake:" + FAKE % 0.03) as server:
        output = bench("serve", "--url", server.url, "--streams", "1,4", "--requests", "8", "--seed", "3", *flags).stdout
        failed = bench("serve", "--url", server.url, "--requests", "3", "--input-len", "5000", status=1).stdout
    assert "3 failed, HTTP 400" in failed and "4096" in failed
    found = json.loads(out.read_text())
    one, four = found["runs"]
    assert (one["name"], four["name"], found["seed"], found["prompts"]) == ("1 stream", "4 streams", 3, "/tokenize")
    for run in (one, four):
        assert (run["requests"], run["failed"], run["exact"], run["counted"], run["met"]) == (8, 0, 1.0, 1.0, 1.0)
        assert (run["prompt_tokens"], run["output_tokens"]) == (480, 80)
        assert 0.029 < run["tpot"]["p50"] < 0.09 and run["itl"]["p90"] >= run["itl"]["p50"] > 0.015
        assert run["each"]["output"] == [10] * 8 and run["each"]["error"] == [None] * 8
    assert four["output_tokens_per_second"] > 2 * one["output_tokens_per_second"]
    assert "TTFT p50" in output and "TTFT max" in output and "TTFT p99" not in output and "4 streams" in output and "seed 3" in output
    assert "http://" not in page.read_text().replace("http://www.w3.org", "").replace(server.url, "")
    browser.open(page.as_uri())
    for width, height in ((390, 844), (1280, 900)):
        browser.resize(width, height)
        browser.wait(f"innerWidth === {width} && Number(document.querySelector('#ttft svg').viewBox.baseVal.width) < {width}")
        assert browser.value("document.documentElement.scrollWidth") <= width
    names = browser.value("[...document.querySelectorAll('#ttft .legend li')].map(e => e.textContent)")
    assert names == ["1 stream", "4 streams"] and browser.problems == []
    assert all(each.startswith("file://") for each in browser.requests)


def test_chat_without_tokens_told_beforehand(bench: Callable[..., Any], serving: Callable[..., Any], tmp_path: Path) -> None:
    """What a template adds is found by trial; an open loop, in which ranges of lengths are drawn."""
    template = tmp_path / "t.jinja"
    template.write_text(TEMPLATE)
    with serving("fake:" + FAKE % 0.001, "--chat-template", str(template)) as server:
        words = ["--api", "chat", "--rate", "40", "--requests", "12", "--input-len", "40-90", "--output-len", "2-6", "--json", "-"]
        found = json.loads(bench("serve", "--url", server.url, *words).stdout)
    (run,) = found["runs"]
    assert found["prompts"] == "usage of trial requests" and (run["requests"], run["exact"]) == (12, 1.0)
    assert all(40 <= tokens <= 90 for tokens in run["each"]["prompt"])
    assert run["each"]["intended"][-1] > 0.05 and run["lag"]["p99"] < 0.5


@pytest.mark.parametrize(
    ("words", "cause"),
    [
        (["serve", "--url", "http://127.0.0.1:9"], "cannot be reached"),
        (["serve", "--api", "cats"], "completions and chat"),
        (["serve", "--extra-body", "[1]"], "is not a JSON object"),
        (["compare", "http://127.0.0.1:9"], "two or more"),
        (["compare", "cmd:false {port}", "http://127.0.0.1:9", "--scenarios", "start"], "ended with status 1"),
        (["compare", "cmd:a {port}", "b", "--scenarios", "cats"], "known: start"),
    ],
)
def test_mistakes_are_one_line(words: list[str], cause: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["ridgeline", "bench", *words])
    with pytest.raises(SystemExit) as ended:
        main()
    output = capsys.readouterr().err
    assert ended.value.code == 2 and cause in output and len(output.splitlines()) <= 2


def own(step: float) -> str:
    return "ridgeline:'fake:" + FAKE % step + "'"


def alive(command: str) -> list[str]:
    """Processes whose command line holds this."""
    found = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = file.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if command in line and file.parent.name != str(os.getpid()) and " bench " not in line:
            found.append(line)
    return found


def test_compare_finds_the_ratio_of_two_servers(bench: Callable[..., Any], tmp_path: Path) -> None:
    """Steps of 6 and of 18 ms: three times the tokens, a third of the gaps; both speak alike, and both are gone afterwards."""
    out, roofline = tmp_path / "out.json", tmp_path / "roofline.json"
    roofline.write_text('{"dram_bytes_per_second": {"one": 1e9, "all": 2e9}, "f32_flops_per_second": {"one": 1e10, "all": 2e10}}')
    words = ["fast=" + own(0.00601), "slow=" + own(0.01801), "--scenarios", "start,streams-4", "--rounds", "2", "--starts", "1"]
    output = bench("compare", *words, "--json", str(out), "--roofline", str(roofline), "--shape", "llama-3-8b", "--seed", "4").stdout
    found = json.loads(out.read_text())
    (scenario,) = found["scenarios"]
    compared = {line["figure"]: line for line in scenario["compared"]}
    throughput = compared["output_tokens_per_second"]["ratios"]["slow"]
    assert 1.5 < throughput["low"] <= throughput["value"] <= throughput["high"] < 4.5
    assert compared["itl.p50"]["ratios"]["slow"]["value"] < 0.8 and compared["output_tokens_per_second"]["ceiling"] < 1
    assert all(len(each["seconds"]) == 2 and min(each["resident_bytes"]) > 20e6 for each in found["starts"].values())
    rounds = scenario["rounds"]["fast"]
    assert [report["output_tokens"] for report in rounds["reports"]] == [256, 256] and min(rounds["resident_bytes"]) > 20e6
    assert ("fast / slow" in output or "fast / it" in output) and "the same answer to the first prompt in 2 of 2 rounds" in output
    assert "--max-num-seqs 4" in output and "ceiling" in output
    assert not alive("0.00601") and not alive("0.01801")


@pytest.mark.night
def test_restarted_servers_are_never_in_memory_together(bench: Callable[..., Any], tmp_path: Path) -> None:
    words = ["one=" + own(0.001), "other=" + own(0.00101), "--scenarios", "streams-1", "--rounds", "1", "--restart", "--json", "-"]
    found = json.loads(bench("compare", *words).stdout)
    assert found["restart"] and [len(each["seconds"]) for each in found["starts"].values()] == [1, 1]


def test_a_server_that_cannot_start_takes_no_figures_along(bench: Callable[..., Any], tmp_path: Path) -> None:
    """The others are measured; in company and alone the answers are the same; a limit leaves rounds out, and says so."""
    out = tmp_path / "out.json"
    words = ["good=" + own(0.00103), "bad=cmd:false {port}", "--scenarios", "streams-4", "--rounds", "500", "--within", "4"]
    output = bench("compare", *words, "--json", str(out), status=1)
    found = json.loads(out.read_text())
    rounds = found["scenarios"][0]["rounds"]
    assert "bad ended with status 1" in found["lost"]["bad"] and rounds["bad"]["reports"] == []
    assert 1 <= len(rounds["good"]["reports"]) < 500 and f"the time limit allowed {len(rounds['good']['reports'])} of 500" in output.stdout
    assert "bad is left out" in output.stdout and "good answers the first prompt alone as in a batch" in output.stdout
    assert "500 rounds take" in output.stderr


def test_who_is_killed_leaves_no_server_and_what_was_found(environment: dict[str, str], tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    servers = ["one=" + own(0.00205), "other=" + own(0.00206)]
    words = ["bench", "compare", *servers, "--scenarios", "streams-4", "--rounds", "900", "--json", str(out)]
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, *words], env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        end = time.monotonic() + 60
        while not (out.exists() and out.read_text().count("\n")) and time.monotonic() < end:
            time.sleep(0.05)
        assert alive("0.00205") and alive("0.00206")
        process.kill()
        process.wait()
        while (alive("0.00205") or alive("0.00206")) and time.monotonic() < end:
            time.sleep(0.05)
        assert not alive("0.00205") and not alive("0.00206")
        assert json.loads(out.read_text())["scenarios"][0]["rounds"]["one"]["reports"]
    finally:
        process.kill()
        process.wait()


def test_ending_a_comparison_ends_its_servers(environment: dict[str, str]) -> None:
    words = ["bench", "compare", "one=" + own(0.05003), "other=" + own(0.05004), "--scenarios", "streams-32", "--rounds", "50"]
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, *words], env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        end = time.monotonic() + 30
        while not alive("0.05004") and time.monotonic() < end:
            time.sleep(0.05)
        assert alive("0.05003") and alive("0.05004")
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=30) == 130
        assert not alive("0.05003") and not alive("0.05004")
    finally:
        process.kill()
        process.wait()
