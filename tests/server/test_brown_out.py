"""Brown-out: when a rung is taken and left, what each leaves out, and who is told; the last by a server that is really full."""

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ridgeline.config.groups import EngineConfig, ServerConfig
from ridgeline.core.commands import Knob, SetKnob
from ridgeline.core.params import SamplingParams
from ridgeline.errors import OverloadedError
from ridgeline.server import brown_out
from ridgeline.server.brown_out import DOWN_SECONDS, UP_SECONDS, BrownOut, Ladder, Level
from ridgeline.server.keys import Caller
from ridgeline.server.knobs import set_knob

KNOBS: dict[Knob, int] = {"step_ms": 60, "num_speculative_tokens": 4}
BATCH = Caller("batch", is_sheddable=True, brown_out_tokens=64)


def test_rungs_are_taken_and_left_one_by_one_and_a_wait_between_the_thresholds_changes_nothing() -> None:
    ladder = Ladder(2.0)
    assert ladder.update(9.0, 0.0) is Level.NONE
    assert ladder.update(9.0, UP_SECONDS) is Level.NO_DRAFTS
    assert ladder.update(1.9, 2.0) is Level.NO_DRAFTS and ladder.update(1.1, 99.0) is Level.NO_DRAFTS, "between them it stays"
    assert [ladder.update(2.0, 100 + UP_SECONDS * at) for at in range(6)] == [1, 2, 3, 3, 3, 3], "refusals begin at twice the wait"
    assert [ladder.update(4.0, 106 + UP_SECONDS * at) for at in range(3)] == [3, 4, 4]
    assert ladder.update(2.0, 110.0) is Level.SHED
    assert ladder.update(4.0, 109.9 + DOWN_SECONDS) is Level.SHED and ladder.update(2.0, 120.0) is Level.SHED, "short for long enough"
    assert ladder.update(2.0, 120.0 + DOWN_SECONDS) is Level.SHORTER_ANSWERS
    assert ladder.update(0.0, 130.0) is Level.SHORTER_ANSWERS
    assert ladder.update(0.0, 1_000.0) is Level.NONE, "who comes behind an hour of rest finds none of it"
    assert ladder.update(2.0, 1_000.5) is Level.NONE


def climbed(level: Level) -> tuple[BrownOut, list[SetKnob]]:
    sent: list[SetKnob] = []
    found = BrownOut(2.0, lambda: KNOBS, sent.append)
    for at in range(level + 1):
        found.update(5.0, at * UP_SECONDS, 1)
    assert found.level is level
    return found, sent


def test_drafts_go_first_then_prefill_and_both_come_back() -> None:
    found, sent = climbed(Level.SHED)
    assert sent == [SetKnob("num_speculative_tokens", 0), SetKnob("step_ms", 30)]
    found.update(5.0, 4.1, 2)
    assert sent[2:] == [SetKnob("step_ms", 30), SetKnob("num_speculative_tokens", 0)], "a new engine is told"
    found.update(0.0, 5.0, 2)
    found.update(0.0, 100.0, 2)
    assert sent[4:] == [SetKnob("step_ms", 60), SetKnob("num_speculative_tokens", 4)] and found.level is Level.NONE
    found.forget()
    found.update(0.0, 101.0, 2)
    assert len(sent) == 6, "nothing is left out of the engine's own settings"


def test_a_server_without_drafts_does_not_say_that_it_leaves_them_out() -> None:
    found = BrownOut(2.0, lambda: {"step_ms": 60}, lambda knob: None)
    told = []
    for at in range(3):
        found.update(5.0, at * UP_SECONDS, 1)
        told.append(found.measures(Caller()))
    assert told == ["", "", "smaller-prefill"]


def test_only_who_agreed_gets_shorter_answers_or_none() -> None:
    found, _ = climbed(Level.SHORTER_ANSWERS)
    asked = SamplingParams(max_tokens=1_000)
    assert found.limit(asked, BATCH).max_tokens == 64 and found.limit(asked, Caller()) is asked
    assert found.limit(replace(asked, max_tokens=None), BATCH).max_tokens == 64
    assert found.limit(replace(asked, min_tokens=100), BATCH).max_tokens == 100
    assert found.limit(replace(asked, max_tokens=10), BATCH).max_tokens == 10
    found.check(BATCH, 1)
    assert found.measures(BATCH) == "no-drafts, smaller-prefill, shorter-answers=64"
    assert found.measures(Caller()) == "no-drafts, smaller-prefill"
    found, _ = climbed(Level.SHED)
    found.check(Caller(), 0)
    for caller, priority in ((BATCH, 0), (Caller(), 1)):
        with pytest.raises(OverloadedError, match="lowest class") as told:
            found.check(caller, priority)
        assert told.value.retry_after_seconds == 10
    assert climbed(Level.SMALLER_PREFILL)[0].limit(asked, BATCH) is asked


def test_a_full_server_says_what_it_leaves_out_and_drains(new_site: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = tmp_path / "keys"
    keys.write_text("a key-of-a\nbatch key-of-b tenant=b sheddable=yes brown_out_tokens=3\n")
    keys.chmod(0o600)
    monkeypatch.setattr(brown_out, "UP_SECONDS", 0.1)
    engine = EngineConfig('fake:{"rows": 1, "step_seconds": 0.01}', speculative="ngram")
    site = new_site(engine, ServerConfig(api_key_file=str(keys), brown_out=0.1))

    def ask(key: str, tokens: int) -> Any:
        body = {"prompt": "p", "max_tokens": tokens, "ignore_eos": True}
        return site.request("POST", "/v1/completions", json=body, headers={"Authorization": f"Bearer {key}"})

    assert brown_out.HEADER not in ask("key-of-a", 3).headers
    with ThreadPoolExecutor(7) as threads:
        long = [threads.submit(ask, "key-of-a", 40) for _ in range(6)]
        time.sleep(0.35)
        batch = threads.submit(ask, "key-of-b", 40).result()
        while site.service.brown_out.level < Level.SHED:
            time.sleep(0.01)
        shed, metrics = ask("key-of-b", 40), site.get("/metrics", headers={"Authorization": "Bearer key-of-a"}).text
        client, sent = site.service.deployment.client, list[SetKnob]()
        send = client.send
        monkeypatch.setattr(client, "send", lambda each: (sent.append(each) if isinstance(each, SetKnob) else None, send(each)))
        monkeypatch.setattr(brown_out, "DOWN_SECONDS", 0.02)
        site.loop.call_soon_threadsafe(set_knob, site.service, "step_ms", 40)
        assert site.wait(site.service.deployments.drain(0)) is False
        told = [each.result() for each in long]
    assert batch.headers["x-ridgeline-brown-out"].startswith("no-drafts") and batch.json()["usage"]["completion_tokens"] in (3, 40)
    assert shed.status_code == 429 and int(shed.headers["retry-after"]) >= 5 and "lowest class" in shed.text
    assert 'ridgeline_brown_out_level{model_name="fake"} 4.0' in metrics
    assert float(metrics.partition('ridgeline_expected_wait_seconds{model_name="fake"} ')[2].partition("\n")[0]) > 0
    assert all(each.json()["usage"]["completion_tokens"] == 40 for each in told), "who did not agree has whole answers"
    drafts = site.service.deployment.engine_config.num_speculative_tokens
    assert [(each.name, each.value) for each in sent] == [
        ("step_ms", 40), ("step_ms", 20), ("num_speculative_tokens", 0), ("step_ms", 40), ("num_speculative_tokens", drafts),
    ]  # fmt: skip
