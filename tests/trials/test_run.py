"""`ridgeline run` as a newcomer meets it: a base model that says so, and a mistake that ends nothing."""

import subprocess
import sys
from collections.abc import Callable

import pytest

PROGRAM = "import sys; sys.argv[0] = 'ridgeline'; from ridgeline.cli.main import main; main()"
Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def run(environment: dict[str, str]) -> Run:
    def call(*lines: str, verb: str = "run") -> object:
        command = [sys.executable, "-c", PROGRAM, verb, "fake:{}", "--max-tokens", "8"]
        return subprocess.run(command, capture_output=True, text=True, input="\n".join(lines), env=environment, timeout=60)

    return call  # type: ignore[return-value]


def test_n4_a_base_model_continues_texts_and_says_why(run: Run) -> None:
    done = run("Once upon a time")
    assert done.returncode == 0 and len(done.stdout) == 9, done.stderr
    assert "this is a base model (its files hold no chat template)" in done.stderr and "opens as completion" in done.stderr
    told = run("/mode chat", "/show")
    assert "has no chat template; start with --chat-template FILE" in told.stderr and "mode      completion" in told.stderr


def test_n20_a_bad_set_does_not_end_a_pipe(run: Run) -> None:
    mistakes = ["/set temperature hot", "/set colour 1", "/set temperature 99", "/set top_k", "/sing", "/load /no/such/file", "/drop x"]
    done = run(*mistakes, "Once", "/set temperature 0.5", "/show")
    assert done.returncode == 1, "what failed is told at the end too"
    assert done.stderr.count("error: ") == len(mistakes) and len(done.stdout) == 9 and "temperature 0.5" in done.stderr
    assert "Traceback" not in done.stderr
    assert run("/set temperature 0.5", "Once").returncode == 0


def test_chat_says_what_it_is_called_now(run: Run) -> None:
    done = run(verb="chat")
    assert done.returncode == 2 and "it is `ridgeline run` here" in done.stderr
