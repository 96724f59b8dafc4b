"""The flight recorder: when it writes, that others open what it writes, and that it holds no text."""

import json
import stat
from pathlib import Path
from random import Random

import pytest
from ledgers import Ask, background, serve
from typer.testing import CliRunner

from ridgeline.cli.main import make_app
from ridgeline.cli.scenarios import incident_settings, make_scenario
from ridgeline.config.groups import EngineConfig
from ridgeline.core.commands import Knob
from ridgeline.core.params import Admitted
from ridgeline.errors import ConfigError
from ridgeline.observe.charges import slowest_choice
from ridgeline.observe.ledger import ChoiceRecord, RequestRecord
from ridgeline.observe.metrics import Metrics
from ridgeline.observe.prefixes import PromptLog
from ridgeline.observe.recorder import BREACH_REQUESTS, MAX_KEPT, PAUSE_SECONDS, Recorder, write_incident
from ridgeline.observe.requests import Result
from ridgeline.planning.objectives import Objective
from ridgeline.sim.fleet.durations import ConstantDurations, ObservedStep, fit_constant
from ridgeline.sim.fleet.traffic import read_steps, read_trace
from ridgeline.sim.laws.executor import fake_executor


def p99(asks: list[Ask]) -> float:
    return sorted(ask.ended - ask.at for ask in asks)[int(0.99 * len(asks))]


def test_an_incident_simulated_again_is_as_slow_as_it_was(tmp_path: Path) -> None:
    rng, prompts = Random(3), PromptLog()
    asks = [*background(rng, 14.0, 8.0), *(Ask(4.0 + 0.01 * each, 3_000, 20) for each in range(6))]
    ledger = serve(asks)
    for ask in asks:
        prompts.add(Admitted(ask.name, tuple(range(1, ask.prompt + 1)), 1, 1), 16)
    write_incident(ledger, prompts, tmp_path, {"kind": "test"}, max(ask.ended for ask in asks))
    assert {file.name: stat.S_IMODE(file.stat().st_mode) for file in tmp_path.iterdir()} == dict.fromkeys(
        ("incident.json", "trace.jsonl", "steps.jsonl", "perfetto.json"), 0o600
    )
    arrivals, steps = read_trace(tmp_path), read_steps(tmp_path / "steps.jsonl")
    assert sorted((each.prompt, each.output) for each in arrivals) == sorted((ask.prompt, ask.output) for ask in asks)
    assert max(each.shared for each in arrivals) > 0
    fitted = fit_constant([ObservedStep(*each) for each in steps])
    assert (fitted.step, fitted.token) == pytest.approx((0.01, 0.0002), rel=0.02)
    again = [Ask(each.time, each.prompt, each.output) for each in arrivals]
    serve(again)
    assert p99(again) == pytest.approx(p99(asks), rel=0.1)
    lines = (tmp_path / "perfetto.json").read_text().splitlines()
    assert max(map(len, lines)) < 1_000, "a thread that encodes many events at once holds up the others"
    spans = json.loads("".join(lines))["traceEvents"]
    assert {each["ph"] for each in spans} == {"M", "X", "C", "b", "e"} and sum(each["ph"] == "X" for each in spans) == len(steps)
    assert json.loads((tmp_path / "incident.json").read_text())["requests"] == len(asks)
    told = CliRunner().invoke(make_app(), ["investigate", "FirstTokenLate", "--incident", str(tmp_path)])
    assert told.exit_code == 0 and "FirstTokenLate: queue, budget" in told.output and "First: cache prefixes" in told.output
    for words in (["FirstTokenlate"], ["TokensSlow", "--incident", str(tmp_path / "none")]):
        with pytest.raises(ConfigError, match=r"did you mean FirstTokenLate|is no incident"):
            CliRunner().invoke(make_app(), ["investigate", *words], catch_exceptions=False)


def test_an_incident_says_what_was_served(tmp_path: Path) -> None:
    """`whatif` takes settings and step times from it, as the last change of a setting left them."""
    ledger = serve([Ask(0.1 * number, 100, 20) for number in range(20)])
    info = fake_executor(rows=7, blocks=900, step_seconds=0.02, token_seconds=0.001).info
    recorder, knobs = Recorder(ledger, PromptLog(), tmp_path), dict[Knob, int]()
    recorder.serves(info, EngineConfig("llama-3-8b", enable_prefix_caching=False, max_num_seqs=5), knobs)
    knobs["step_ms"] = 33
    thread = recorder.record("engine", "it ended", 10.0)
    assert thread is not None
    thread.join()
    (folder,) = tmp_path.iterdir()
    model, today = incident_settings(folder)
    assert (model, today["max_num_seqs"], today["step_ms"], today["kv_blocks"], today["depth"]) == ("llama-3-8b", "5", "33", "900", "2")
    assert today["enable_prefix_caching"] == "false"
    found = make_scenario(model, today, folder)
    assert found.knobs.max_num_seqs == 5 and isinstance(found.durations, ConstantDurations)
    assert found.durations.step == pytest.approx(0.01, rel=0.1), "what the steps took, and not the start"
    told = CliRunner().invoke(make_app(), ["replay", str(folder)])
    assert told.exit_code == 0 and "20 requests in" in told.output and "TTFT as it was, of the 20 requests that had ended" in told.output
    assert incident_settings(folder / "trace.jsonl") == (None, {})
    for words, message in ((("--trace", "t.jsonl"), "has trace and steps already"), ((), "is no incident")):
        with pytest.raises(ConfigError, match=message):
            CliRunner().invoke(make_app(), ["replay", str(folder if words else tmp_path), *words], catch_exceptions=False)
    (folder / "incident.json").write_text(json.dumps({"model": "x", "settings": {}, "step_seconds": [1]}))
    with pytest.raises(ConfigError, match="object of fixed, row, token"):
        make_scenario("llama-3-8b", {"step_time": str(folder / "steps.jsonl")}, folder)


def test_what_hinders_a_recording_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    def fail(*told: object) -> None:
        raise RuntimeError("dictionary changed size during iteration")

    monkeypatch.setattr("ridgeline.observe.recorder.write_incident", fail)
    caplog.set_level("WARNING", "ridgeline.server")
    thread = Recorder(serve([Ask(0.0, 5, 2)]), PromptLog(), tmp_path).record("engine", "it ended", 0.0)
    assert thread is not None
    thread.join()
    assert "could not be recorded" in caplog.text


class Racing(ChoiceRecord):
    """A choice of `record`, of which another starts whenever this one is looked at."""

    record: RequestRecord

    @property
    def times(self) -> None:
        number = len(self.record.choices)
        self.record.choices[number] = ChoiceRecord()

    @times.setter
    def times(self, value: None) -> None:
        pass


def test_choices_may_start_while_a_record_is_read(tmp_path: Path) -> None:
    ledger = serve([Ask(0.0, 5, 2)])
    (record,) = ledger.arrived_since(0.0)
    racing = Racing()
    racing.record = record
    record.choices = {0: racing, 1: ChoiceRecord()}
    assert slowest_choice(record) == 0
    write_incident(ledger, PromptLog(), tmp_path, {"kind": "test"}, 1.0)
    assert json.loads((tmp_path / "incident.json").read_text())["requests"] == 1


def test_a_breach_is_recorded_once_and_few_are_kept(tmp_path: Path) -> None:
    recorder, metrics = Recorder(serve([Ask(0.0, 5, 2)]), PromptLog(), tmp_path / "incidents"), Metrics(Objective(ttft=0.1))
    recorder.look(metrics, 0.0)
    metrics.results[Result.GOOD] += BREACH_REQUESTS
    recorder.look(metrics, 2.0)
    assert not (tmp_path / "incidents").exists()
    threads = []
    original = recorder.record
    recorder.record = lambda *told: threads.append(original(*told))  # type: ignore[method-assign, func-returns-value, assignment]
    metrics.results[Result.LATE_FIRST_TOKEN] += BREACH_REQUESTS
    for now in (4.0, 6.0, 8.0):
        recorder.look(metrics, now)
    for number in range(1, MAX_KEPT + 3):
        recorder.record("engine", "it ended", 8.0 + number * PAUSE_SECONDS)
    written = [thread for thread in threads if thread is not None]
    for thread in written:
        thread.join()
    assert len(written) == MAX_KEPT + 3, "one for three looks at the same breach"
    folders = sorted(tmp_path.glob("incidents/*"))
    assert len(folders) <= MAX_KEPT + 3 and stat.S_IMODE(folders[0].stat().st_mode) == 0o700
    original("engine", "it ended", 1e6).join()  # type: ignore[union-attr]
    assert len([*tmp_path.glob("incidents/*")]) == MAX_KEPT
