"""`sim` and `whatif`: the right lever comes first where the answer is known, traces are read or refused, nothing heavy is imported."""

import json
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from ridgeline.cli.scenarios import make_scenario, parse_changes, scenario_at_rate
from ridgeline.cli.sim_runs import SimulationRuns
from ridgeline.errors import ConfigError
from ridgeline.sim.fleet.experiment import (
    Knee,
    LeverResult,
    candidate_levers,
    compute_interval,
    find_bottleneck,
    find_min_replicas,
    rank_levers,
    search_knee,
)
from ridgeline.sim.fleet.scenario import Scenario
from ridgeline.sim.fleet.traffic import read_trace

CASES = {
    "KV cache in 8 bits": {
        "step_time": "constant:0.01", "kv_blocks": "1000", "requests": "60", "rate": "3", "prompt": "2000", "output": "300",
    },
    "weights in 4 bits": {"arrivals": "closed", "users": "4", "requests": "40", "prompt": "64", "output": "300"},
    "weights in fp8": {
        "requests": "60", "rate": "20", "prompt": "6000", "output": "4", "context": "8192", "max_num_batched_tokens": "8192",
    },
    "twice the sequences at once": {
        "step_time": "constant:0.01", "max_num_seqs": "4", "requests": "80", "rate": "20", "prompt": "100", "output": "100",
    },
    "prefix caching": {
        "enable_prefix_caching": "false", "requests": "80", "rate": "12", "prompt": "4000", "output": "20",
        "prefixes": "4", "shared": "3800", "context": "8192",
    },
}  # fmt: skip
"""Bound by KV capacity, bandwidth, compute, the queue, missing reuse: the lever that removes what binds → settings."""


@pytest.mark.parametrize("lever", CASES)
def test_the_lever_that_removes_what_binds_comes_first(lever: str) -> None:
    base = CASES[lever]
    now = make_scenario("llama-3-8b", base, None)
    today = now.run(1)
    tried = []
    for name, settings in candidate_levers(now).items():
        changed = make_scenario("llama-3-8b", base | settings, None)
        tried.append(LeverResult(name, changed.run(1), changed.replicas * changed.deployment.layout.ranks))
    best = rank_levers(today, tried, has_objective=False)
    assert best[0].name == lever, [each.name for each in best]
    expected = {"KV cache in 8 bits": "KV cache", "twice the sequences at once": "sequences at once"}.get(lever, "the device's time")
    assert find_bottleneck(today).startswith(expected)


def test_least_replicas_is_the_least() -> None:
    base = {"step_time": "constant:0.02", "max_num_seqs": "4", "requests": "150", "rate": "12", "prompt": "50", "output": "40"}
    base["slo"] = "ttft=300ms"
    scenario = make_scenario("llama-3-8b", base, None)
    found = find_min_replicas(scenario, (1,))
    assert found is not None and found > 1

    def met(replicas: int) -> float:
        return make_scenario("llama-3-8b", base | {"replicas": str(replicas)}, None).run(1).met

    assert met(found) >= 0.99 > met(found - 1)


class Queue:
    """M/M/1 as a scenario: throughput is the rate, mean latency 1 / (capacity − rate); power is greatest at half of the capacity."""

    def __init__(self, rate: float, capacity: float) -> None:
        self.output_tokens_per_second = rate
        self.e2e = SimpleNamespace(mean=1 / max(1e-9, capacity - rate))

    def run(self, seed: int) -> "Queue":
        return self


@pytest.mark.parametrize("believed", [0.6, 4.0, 10.0, 40.0])
def test_the_knee_is_found_though_the_range_begins_elsewhere(believed: float) -> None:
    knee = search_knee(lambda rate: Queue(rate, 10.0), believed, 1)  # type: ignore[arg-type, return-value]
    assert knee.is_inside and 3 < knee.rate < 7.6
    assert [rate for rate, _ in knee.curve] == sorted({rate for rate, _ in knee.curve})


def test_a_knee_that_is_nowhere_is_no_knee() -> None:
    knee = search_knee(lambda rate: Queue(rate, 1e9), 1.0, 1)  # type: ignore[arg-type, return-value]
    assert not knee.is_inside and knee.rate == knee.curve[-1][0] == pytest.approx(1.5**6)


def test_other_rates_of_a_trace(tmp_path: Path) -> None:
    path = tmp_path / "own.jsonl"
    path.write_text("".join(json.dumps({"time": n / 10, "prompt": 40, "output": 3}) + "\n" for n in range(41)))
    twice = scenario_at_rate("llama-3-8b", {}, path)(20.5).load
    assert isinstance(twice, tuple) and twice[-1].time == pytest.approx(2.0)
    with pytest.raises(ConfigError, match="closed loop has none"):
        scenario_at_rate("llama-3-8b", {"arrivals": "closed"}, None)
    path.write_text(json.dumps({"time": 1, "prompt": 40, "output": 3}) + "\n")
    with pytest.raises(ConfigError, match="come at once"):
        scenario_at_rate("llama-3-8b", {}, path)


def test_a_search_without_a_knee_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ridgeline.cli.sim_runs.search_knee", lambda *_: Knee(3.0, [(3.0, scenario.run(1))], is_inside=False))
    scenario = make_scenario("llama-3-8b", {"requests": "5"}, None)
    with SimulationRuns(1, quiet=True) as runs:
        runs.find_knee(lambda rate: scenario)
    assert "No knee" in runs.notes[0] and "5 requests do not fill the fleet" in runs.notes[0] and not runs.results["knee_inside"]


def test_intervals_are_students() -> None:
    found = compute_interval([1.0, 2.0, 3.0])
    assert (found.mean, round(found.half or 0, 3)) == (2.0, 2.484)
    assert compute_interval([5.0]).half is None


TRACES = {
    "own.jsonl": '{"time": 5, "prompt": 30, "output": 4}\n\n{"time": 4.5, "prompt": 9, "output": 2, "prefix": 3, "shared": 8}\n',
    "mooncake.jsonl": '{"timestamp": 0, "input_length": 1030, "output_length": 5, "hash_ids": [7, 8, 9]}\n'
    '{"timestamp": 1500, "input_length": 1100, "output_length": 6, "hash_ids": [7, 8, 10]}\n',
    "burst.csv": "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
    "5,ChatGPT,472,18,490,Conversation log\n7,GPT-4,10,0,10,API log\n9,GPT-4,1087,230,1317,API log\n",
}


def test_traces_of_three_formats_are_read(tmp_path: Path) -> None:
    for name, text in TRACES.items():
        (tmp_path / name).write_text(text)
    own = read_trace(tmp_path / "own.jsonl")
    assert [(each.time, each.prompt, each.output, each.shared) for each in own] == [(0.0, 9, 2, 8), (0.5, 30, 4, 0)]
    first, second = read_trace(tmp_path / "mooncake.jsonl", speed=3.0)
    assert (first.time, second.time, second.prompt, second.output) == (0.0, 0.5, 1100, 6)
    assert (first.prefix, second.prefix, second.shared) == (8, 8, 1024)
    assert [(each.time, each.prompt, each.output) for each in read_trace(tmp_path / "burst.csv")] == [(0.0, 472, 18), (4.0, 1087, 230)]


def test_mooncakes_prompts_share_what_their_blocks_say(tmp_path: Path) -> None:
    """A prompt, its conversation's next turn, another answer to the first, the turn after the next."""
    path = tmp_path / "mooncake.jsonl"
    turns = [[7, 8], [7, 8, 9], [7, 8, 11], [7, 8, 9, 10]]
    lines = [{"timestamp": 9_000 * i, "input_length": 512 * len(ids), "output_length": 2, "hash_ids": ids} for i, ids in enumerate(turns)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = make_scenario("llama-3-8b", {}, path).run(1)
    assert found.cached_share == (1024 + 1024 + 1536) / (1024 + 1536 + 1536 + 2048)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "no request"),
        ("{", "line 1 is no JSON"),
        ("[1]", "line 1 is no object"),
        ('{"time": 0, "prompt": 0, "output": 1}', "prompt is 0"),
        ('{"time": 1e400, "prompt": 1, "output": 1}', "time is inf"),
        ('{"time": 0, "prompt": true, "output": 1}', "prompt is True"),
        ('{"time": 0, "output": 1}', "prompt is None"),
        ('{"timestamp": 0, "input_length": 5, "output_length": 1, "hash_ids": ["x"]}', "hash_ids must be"),
    ],
)
def test_a_bad_trace_is_refused_by_its_line(tmp_path: Path, text: str, why: str) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text(text)
    with pytest.raises(ConfigError, match=why):
        read_trace(path)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ("max_num_seqs", "write name=value"),
        ("speed_of_light=1", "write name=value"),
        ("max_num_seqs=0", "1 … 4096"),
        ("rate=nan", "1e-06"),
        ("enable_prefix_caching=maybe", "true or false"),
        ("routing=best", "known: round-robin"),
        ("arrivals=never", "known: poisson"),
        ("prompt=gamma:3", "lognormal"),
        ("autoscale=5:2", "write 2:5"),
        ("scheduling_policy=lifo", "one of"),
        ("kv_blocks=10", "KV blocks"),
        ("device=abacus", "known"),
        ("step_time=constant:1,2,3,4", "constant:STEP"),
    ],
)
def test_a_bad_setting_is_refused_with_its_fix(change: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        make_scenario("llama-3-8b", {"requests": "1"} | parse_changes([change]), None).run(1)


def test_every_setting_has_a_default_that_runs() -> None:
    assert make_scenario("llama-3-8b", {"requests": "20"}, None).run(1).requests == 20


def run(*arguments: str) -> str:
    """The command without numpy and torch."""
    block = "import sys; sys.modules.update(numpy=None, torch=None); from ridgeline.cli.main import main; main()"
    done = subprocess.run([sys.executable, "-c", block, *arguments], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_whatif_puts_changes_beside_today(tmp_path: Path) -> None:
    path = tmp_path / "own.jsonl"
    path.write_text("".join(json.dumps({"time": n / 10, "prompt": 400, "output": 30}) + "\n" for n in range(16)))
    changes = ("--set", "max_num_seqs=64", "--set", "kv_dtype=int8", "--replicas", "2")
    messages = run("whatif", str(path), *changes, "--seeds", "2", "--slo", "ttft=1s")
    assert "this machine" in messages and "today" in messages and "max_num_seqs=64 kv_dtype=int8 replicas=2" in messages
    assert "Levers on the same requests" in messages and "mean E2E latency today over" in messages
    asked = ("--today", "device=h100-sxm", "--least-replicas", "--knee", "--no-levers", "--slo", "ttft=1s")
    found = json.loads(run("whatif", str(path), "--json", "--seeds", "1", *asked))
    assert found["runs"][0]["name"] == "today" and found["runs"][0]["requests"]["mean"] == 16
    assert found["least_replicas"] == 1 and found["knee_rate"] > 0


@pytest.mark.parametrize(("acceptance", "answer"), [("0.8", "speculation helps"), ("0.02", "speculation does not help")])
def test_whatif_says_whether_speculation_would_help(tmp_path: Path, acceptance: str, answer: str) -> None:
    path = tmp_path / "own.jsonl"
    path.write_text("".join(json.dumps({"time": n, "prompt": 100, "output": 60}) + "\n" for n in range(8)))
    drafts = ("--set", "num_speculative_tokens=4", "--set", f"acceptance={acceptance}")
    asked = ("--model", "llama-3-8b", "--today", "device=h100-sxm", "--seeds", "1", "--no-levers")
    said = " ".join(run("whatif", str(path), *asked, *drafts).split())
    assert f"With up to 4 drafts per step, {float(acceptance):.0%} of them right, mean E2E latency" in said and f": {answer}." in said
    found = json.loads(run("whatif", str(path), *asked, *drafts, "--json"))
    today, then = (each["e2e.p50"]["mean"] for each in found["runs"])
    assert (found["speculation_gain"] > 1.5) == (then < 0.7 * today) == (acceptance == "0.8")
    assert "speculation_gain" not in json.loads(run("whatif", str(path), *asked, "--json", "--set", "max_num_seqs=4"))


def test_sim_starts_without_arrays_and_finds_the_knee() -> None:
    began = time.monotonic()
    found = json.loads(run("sim", "llama-3-8b", "--requests", "40", "--rate", "5", "--json"))
    assert found["runs"][0]["requests"]["mean"] == 40
    assert time.monotonic() - began < 5
    assert json.loads(run("sim", "llama-3-8b", "--requests", "60", "--knee", "--json"))["knee_rate"] > 0


@pytest.mark.parametrize(
    ("settings", "shares"),
    [
        ({}, False),
        ({"arrivals": "closed", "users": "30"}, False),
        ({"max_num_seqs": "32", "output": "uniform:150", "kv_blocks": "1600", "decode_replicas": "1"}, False),
        ({"prefixes": "9"}, False),
        ({"prefixes": "9", "shared": "200"}, True),
        ({"max_num_seqs": "32", "context": "1024", "kv_blocks": "700"}, True),
        ({"max_num_seqs": "8", "scheduling_policy": "priority", "background": "0.5"}, True),
    ],
)
def test_the_prefix_cache_is_left_out_only_where_it_changes_nothing(
    monkeypatch: pytest.MonkeyPatch, settings: dict[str, str], shares: bool
) -> None:
    asked = {"rate": "40", "prompt": "300", "output": "150", "requests": "150"} | settings
    scenario = make_scenario("llama-3-8b", asked, None)
    assert scenario.replica_config().limits.prefix_caching is shares
    found = scenario.run(1)
    monkeypatch.setattr(Scenario, "_can_share_blocks", lambda *_: not shares)
    assert (scenario.run(1) == found) is not shares
