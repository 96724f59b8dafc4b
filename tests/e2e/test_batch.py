"""`ridgeline batch`: every request once and in order, errors in their places, a killed run gone on with, and what is refused at once."""

import json
import os
import random
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
from processes import COMMAND

FAKE = 'fake:{"vocab": 258, "max_model_len": 512}'


def request(number: int, url: str = "/v1/completions", **body: Any) -> dict[str, Any]:
    asked = body or {"model": "fake", "prompt": f"{number}", "max_tokens": 8, "seed": number}
    return {"custom_id": f"r{number}", "method": "POST", "url": url, "body": asked}


def write(path: Path, requests: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(each) + "\n" for each in requests))
    return path


def start(source: Path, output: Path, model: str = FAKE, *more: str) -> "subprocess.Popen[str]":
    arguments = [*COMMAND, "batch", str(source), str(output), "--model", model, *more]
    return subprocess.Popen(arguments, stderr=subprocess.PIPE, text=True, start_new_session=True)


def run(source: Path, output: Path, *more: str, model: str = FAKE, status: int = 0) -> str:
    process = start(source, output, model, *more)
    told = process.communicate(timeout=120)[1]
    assert process.returncode == status, told
    return told


def answers(path: Path) -> list[dict[str, Any]]:
    """Without what differs from run to run: ids and times."""
    found = [json.loads(line) for line in path.read_text().splitlines()]
    for each in found:
        for name in ("id", "created"):
            each["response"]["body"].pop(name, None)
    return found


def test_all_endpoints_and_errors_in_their_places(tmp_path: Path) -> None:
    source = write(tmp_path / "in.jsonl", [
        request(0), request(1, "/v1/embeddings", input="a"), request(2, "/v1/completions", prompt="a", max_tokens=-7),
        request(3, "/v1/chat/completions", messages=[{"role": "user", "content": "a"}]),
        request(4, "/v1/completions", model="other", prompt="a"),
        request(5, "/v1/responses", input="a"), request(6),
    ])  # fmt: skip
    output = tmp_path / "out.jsonl"
    assert "4 of them errors" in run(source, output)
    found = answers(output)
    assert [each["custom_id"] for each in found] == [f"r{number}" for number in range(7)]
    assert [each["response"]["status_code"] for each in found] == [200, 200, 400, 400, 404, 400, 200]
    assert [each["error"] is None for each in found] == [True, True, False, False, False, False, True]
    assert found[2]["error"]["code"] == "invalid_value" and found[0]["response"]["body"]["usage"]["completion_tokens"] == 8
    assert sorted(os.listdir(tmp_path)) == ["in.jsonl", "out.jsonl"]
    assert "there already" in run(source, output, status=2)


@pytest.mark.parametrize(("line", "problem"), [
    ("{", "line 2 is no request"), ('{"custom_id": "a"}', "line 2 is no request"), (json.dumps(request(0)), "custom_id of line 1"),
    (json.dumps(request(1, "/v1/files")), "url one of"), (json.dumps(request(1, prompt="a", stream=True)), "stream has no meaning"),
    (json.dumps({**request(1), "custom_id": ""}), "custom_id has 0"), (json.dumps(request(1, prompt="a" * (1 << 20))), "line 2 has more"),
])  # fmt: skip
def test_a_wrong_line_is_named_before_anything_is_loaded(tmp_path: Path, line: str, problem: str) -> None:
    from ridgeline.errors import ConfigError
    from ridgeline.server.batch import read_lines

    source = tmp_path / "in.jsonl"
    source.write_text(f"{json.dumps(request(0))}\n{line}\n")
    with pytest.raises(ConfigError, match=problem):
        read_lines(source, "fake")


def test_what_was_answered_is_kept_and_what_changed_is_not(tmp_path: Path) -> None:
    """As after a kill: whole lines, one of another request, and a torn one."""
    requests = [request(number) for number in range(6)]
    run(write(tmp_path / "in.jsonl", requests), tmp_path / "whole.jsonl")
    lines = (tmp_path / "whole.jsonl").read_text().splitlines(keepends=True)
    marked = [line.replace('"error":null', '"error":null ') for line in lines]
    requests[1]["body"]["seed"] = 99
    write(tmp_path / "in.jsonl", requests)
    (tmp_path / "out.jsonl.partial").write_text("".join(marked[:4]) + "no JSON\n" + marked[4][:40])
    assert "3 of 6 requests were answered before" in run(tmp_path / "in.jsonl", tmp_path / "out.jsonl")
    found = (tmp_path / "out.jsonl").read_text().splitlines(keepends=True)
    assert [found[at] for at in (0, 2, 3)] == [marked[at] for at in (0, 2, 3)], "kept as they were"
    whole, now = answers(tmp_path / "whole.jsonl"), answers(tmp_path / "out.jsonl")
    assert [now[at] for at in (0, 2, 3, 4, 5)] == [whole[at] for at in (0, 2, 3, 4, 5)] and now[1] != whole[1]


def test_an_engine_that_is_gone_ends_the_run_and_is_no_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import asyncio

    from ridgeline.errors import EngineDeadError
    from ridgeline.server import batch

    monkeypatch.setattr(batch, "BUSY_TRIES", 3)
    monkeypatch.setattr(batch, "BUSY_SECONDS", 0.0)
    source, output = write(tmp_path / "in.jsonl", [request(0), request(1)]), tmp_path / "out.jsonl"
    lines, calls = batch.read_lines(source, "fake"), 0

    async def app(scope: Any, receive: Any, send: Any) -> None:
        """Answers one request, then its engine is gone until the sixth."""
        nonlocal calls
        calls += 1
        is_gone = 1 < calls < 6
        body = b'{"error": {"message": "no engine runs"}}' if is_gone else b"{}"
        await send({"type": "http.response.start", "status": 503 if is_gone else 200})
        await send({"type": "http.response.body", "body": body})

    def go_on() -> int:
        with batch.open_answers(output) as found:
            kept = found.keep({line.custom_id: line for line in lines})
            asyncio.run(batch.answer_all(app, source, lines, found, 1, lambda _: None))
            found.finish(lines)
        return kept

    with pytest.raises(EngineDeadError, match=r"'r1' found no room .* 503 no engine runs"):
        go_on()
    assert calls == 4 and go_on() == 1
    assert [each["response"]["status_code"] for each in answers(output)] == [200, 200]


def kill_and_go_on(tmp_path: Path, count: int, kills: int, model: str) -> None:
    """Kills a run at random moments: before its first answer, between two, while one is written. Each goes on where the last one was."""
    source = write(tmp_path / "in.jsonl", [request(number) for number in range(count)])
    run(source, tmp_path / "whole.jsonl", model=model)
    rng, output, partial = random.Random(1), tmp_path / "out.jsonl", tmp_path / "out.jsonl.partial"
    kept = list[int]()
    for left in range(kills, 0, -1):
        before = answered(partial)
        goal = before + rng.randint(0, 2 * (count - before) // (left + 2))
        process = start(source, output, model)
        while process.poll() is None and answered(partial) < goal:
            time.sleep(0.002)
        time.sleep(rng.uniform(0.0, 0.05) if goal > before else rng.uniform(0.0, 1.0))
        assert process.poll() is None, f"it ended before it was killed for the {kills - left + 1}th time, behind {kept} answers"
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        kept.append(answered(partial))
    told = run(source, output, model=model)
    print(f"killed {kills} times, behind {', '.join(map(str, kept))} of {count} answers")
    assert f"{kept[-1]} of {count} requests were answered before" in told or not kept[-1]
    assert kept == sorted(kept), "no answer is computed twice"
    assert answers(output) == answers(tmp_path / "whole.jsonl") and len(answers(output)) == count


def answered(partial: Path) -> int:
    """Whole lines of answers so far."""
    return partial.read_bytes().count(b"\n") if partial.exists() else 0


def test_a_killed_run_goes_on(tmp_path: Path) -> None:
    kill_and_go_on(tmp_path, 300, 1, FAKE)


@pytest.mark.night
@pytest.mark.timeout(1800)
def test_two_thousand_requests_killed_twenty_times(tmp_path: Path) -> None:
    kill_and_go_on(tmp_path, 2_000, 20, 'fake:{"vocab": 258, "max_model_len": 512, "step_seconds": 0.02}')


def test_files_over_http_are_told_of_the_verb(demo_server: Any) -> None:
    for path in ("/v1/files", "/v1/batches", "/v1/batches/b1/cancel"):
        answer = httpx.post(f"{demo_server.url}{path}", json={})
        assert answer.status_code == 404 and "ridgeline batch" in answer.json()["error"]["message"]
