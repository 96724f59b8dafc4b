"""The command line as a user meets it: help is fast, mistakes are one line and status 2, data goes to stdout, signals end it cleanly."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import pytest

PROGRAM = "import sys; sys.argv[0] = 'ridgeline'; from ridgeline.cli.main import main; main()"
WITHOUT = "import sys; sys.modules.update(dict.fromkeys({modules!r})); "


@pytest.fixture
def run(environment: dict[str, str]) -> Callable[..., "subprocess.CompletedProcess[str]"]:
    def call(*arguments: str, without: tuple[str, ...] = ()) -> "subprocess.CompletedProcess[str]":
        program = (WITHOUT.format(modules=without) if without else "") + PROGRAM
        return subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True, text=True, env=environment, timeout=60)

    return call


@pytest.mark.alone
def test_help_is_fast_and_needs_no_arrays(run: Callable[..., Any]) -> None:
    taken = []
    while len(taken) < 5 and min(taken, default=9.0) >= 0.3:
        began = time.monotonic()
        done = run("--help", without=("numpy", "torch", "uvicorn", "starlette", "prometheus_client", "sentencepiece", "msgspec"))
        taken.append(time.monotonic() - began)
        assert done.returncode == 0, done.stderr
    assert min(taken) < 0.3, taken
    assert all(verb in done.stdout for verb in ("serve", "run", "generate", "doctor", "laws"))


@pytest.mark.parametrize("verb", ["serve", "run", "generate", "doctor", "laws"])
def test_every_verb_has_help(run: Callable[..., Any], verb: str) -> None:
    done = run(verb, "--help", without=("numpy", "torch"))
    assert done.returncode == 0 and f"Usage: ridgeline {verb}" in done.stdout, done.stderr


def test_version(run: Callable[..., Any]) -> None:
    assert re.fullmatch(r"\d+\.\d+\.\d+\n", run("--version").stdout)


MISTAKES = [
    (["serve", "missing.gguf"], "missing.gguf"),
    (["serve", "demo", "--host", "0.0.0.0"], "--api-key"),
    (["serve", "fake:{", "--port", "0"], "fake:"),
    (["serve", "fake:{}", "--port", "0", "--scheduling-policy", "best"], "fcfs"),
    (["serve", "fake:{}", "--port", "99999"], "--port"),
    (["serve", "fake:{}", "--host", "203.0.113.1", "--api-key", "k", "--port", "0"], "cannot listen"),
    (["serve", "fake:{}", "--api-key", " "], "--api-key"),
    (["serve"], "model"),
    (["generate", "fake:{}", "text", "--temperature", "99"], "temperature"),
    (["generate", "fake:{}", "text", "--max-tokens", "-1"], "max_tokens"),
    (["generate", "missing.gguf", "text"], "missing.gguf"),
    (["sing"], "sing"),
]


@pytest.mark.parametrize(("arguments", "named"), MISTAKES, ids=[" ".join(arguments) for arguments, _ in MISTAKES])
def test_mistakes_are_named_and_never_a_traceback(run: Callable[..., Any], arguments: list[str], named: str) -> None:
    done = run(*arguments)
    assert done.returncode == 2, done.stderr
    assert done.stdout == ""
    assert named in done.stderr and "Traceback" not in done.stderr
    assert any(line.startswith("ridgeline: ") for line in done.stderr.splitlines()[-2:])


def test_a_port_in_use(run: Callable[..., Any]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        done = run("serve", "fake:{}", "--port", str(taken.getsockname()[1]))
        assert done.returncode == 2 and "in use" in done.stderr and "--port" in done.stderr


def test_generate_prints_text_or_json(run: Callable[..., Any]) -> None:
    done = run("generate", "fake:{}", "one", "two", "--max-tokens", "5", "--seed", "1", "--json", "--n", "2", "--logprobs", "1")
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert [line["prompt"] for line in lines] == ["one", "two"]
    for line in lines:
        assert [choice["index"] for choice in line["choices"]] == [0, 1]
        for choice in line["choices"]:
            assert len(choice["token_ids"]) == len(choice["text"]) == len(choice["logprobs"]) == 5
            assert [pairs[0][0] for pairs in choice["logprobs"]] == choice["token_ids"]
    plain = run("generate", "fake:{}", "one", "--max-tokens", "5", "--seed", "1")
    assert plain.stdout == f"one{lines[0]['choices'][0]['text']}\n"


def test_doctor_finds_what_is_there(run: Callable[..., Any]) -> None:
    done = run("doctor")
    assert done.returncode == 0, done.stderr
    for name in ("CPU cores", "memory", "extension", "BLAS", "arithmetic", "demo model"):
        assert re.search(rf"^(ok|LOST) +{name} ", done.stdout, re.MULTILINE), name
    for loss in re.finditer(r"^LOST.*\n(.*)", done.stdout, re.MULTILINE):
        assert "fix: " in loss[1]


def test_doctor_says_what_is_lost_without_numpy(run: Callable[..., Any]) -> None:
    done = run("doctor", without=("numpy",))
    assert done.returncode == 0 and "LOST  BLAS" in done.stdout and "fix: " in done.stdout, done.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_end_the_server_cleanly(serving: Callable[..., Any], number: signal.Signals) -> None:
    with serving("fake:{}") as server:
        engine = server.engine_pid()
        server.process.send_signal(number)
        assert server.process.wait(timeout=5) == 0
        assert "Traceback" not in server.output()
        assert not os.path.exists(f"/proc/{engine}"), "the engine outlives its server"


def test_the_server_process_runs_without_numpy_and_torch(environment: dict[str, str]) -> None:
    program = WITHOUT.format(modules=("numpy", "torch", "transformers")) + PROGRAM
    with subprocess.Popen(
        [sys.executable, "-c", program, "serve", "fake:{}", "--port", "0"], stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        assert process.stderr is not None
        lines = []
        for line in process.stderr:
            lines.append(line)
            if " at http://" in line:
                break
        process.send_signal(signal.SIGTERM)
        lines += process.stderr.readlines()
        assert process.wait(timeout=20) == 0, lines
    assert any(" at http://" in line for line in lines), lines
