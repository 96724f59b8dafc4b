"""`ridgeline generate`: prompts from words, files and pipes; answers in order; what is wrong with a line is said with its number."""

import json
import os
import pty
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from ridgeline.cli.main import make_app
from ridgeline.errors import RidgelineError

PROGRAM = "import sys; sys.argv[0] = 'ridgeline'; from ridgeline.cli.main import main; main()"
TEMPLATE = "{% for m in messages %}<{{ m.role }}>{{ m.content }}<eos>{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def run(environment: dict[str, str]) -> Run:
    def call(*arguments: str, stdin: str | bytes = "") -> "subprocess.CompletedProcess[str]":
        sent = stdin if isinstance(stdin, bytes) else stdin.encode()
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, "generate", "fake:{}", *arguments], capture_output=True, input=sent, env=environment, timeout=60
        )
        return subprocess.CompletedProcess(done.args, done.returncode, done.stdout.decode(), done.stderr.decode())

    return call


def within(*arguments: str, stdin: bytes = b"") -> Result:
    """The verb in this process: quicker, and errors are still exceptions."""
    return CliRunner().invoke(make_app(), ["generate", "fake:{}", *arguments], input=stdin)


def texts(done: "subprocess.CompletedProcess[str]") -> list[str]:
    assert done.returncode == 0, done.stderr
    return [json.loads(line)["prompt"] for line in done.stdout.splitlines()]


def test_prompts_from_everywhere(run: Run, tmp_path: Path) -> None:
    lines = tmp_path / "lines.txt"
    lines.write_text("one\n\ntwo\nthree")
    short = ("--json", "--max-tokens", "2")
    expected = ["one", "two", "three"]
    assert texts(run("one", "two", "three", *short)) == expected
    assert texts(run("--input", str(lines), *short)) == expected
    assert texts(run(*short, stdin=lines.read_text())) == expected
    assert texts(run("-", *short, stdin=lines.read_text())) == expected
    objects = "".join(f'{{"prompt": "{each}"}}\n' for each in expected)
    assert texts(run(*short, stdin=objects)) == expected


def test_order_is_kept_over_many_prompts_of_unlike_length(run: Run, tmp_path: Path) -> None:
    prompts = [f"{number} " * (1 + number % 17) for number in range(200)]
    answers = tmp_path / "answers.jsonl"
    done = run("--json", "--seed", "1", "--output", str(answers), stdin="\n".join(prompts))
    assert done.returncode == 0 and done.stdout == "", done.stderr
    assert [json.loads(line)["prompt"] for line in answers.read_text().splitlines()] == prompts


def test_conversations_and_ids_of_a_file(run: Run, tmp_path: Path) -> None:
    template, asked = tmp_path / "chat.jinja", tmp_path / "asked.jsonl"
    template.write_text(TEMPLATE)
    asked.write_text('{"id": 7, "messages": [{"role": "user", "content": "Hi"}]}\n{"id": "b", "prompt": "Hi"}\n')
    done = run("--input", str(asked), "--chat-template", str(template), "--json", "--max-tokens", "3")
    assert done.returncode == 0, done.stderr
    chat, plain = (json.loads(line) for line in done.stdout.splitlines())
    assert (chat["id"], plain["id"]) == (7, "b")
    assert bytes(chat["prompt_token_ids"][:8]) == b"<user>Hi" and plain["prompt_token_ids"] == [256, *b"Hi"]


def test_votes_and_beams() -> None:
    """One of the choices that sampling alone gives, with its vote; as many beams as were asked for."""
    short = ("count", "--max-tokens", "3", "--seed", "4", "--json")
    every = [choice["text"] for choice in json.loads(within(*short, "--n", "4").stdout)["choices"]]
    (choice,) = json.loads(within(*short, "--best-of", "4", "--vote-regex", "(?s)^.").stdout)["choices"]
    assert choice["text"] in every and choice["vote"]["voters"] == 4 and choice["vote"]["answer"] == choice["text"][0]
    beams = json.loads(within("count", "--max-tokens", "3", "--json", "--beam-width", "3").stdout)["beams"]
    assert len({beam["text"] for beam in beams}) == 3
    assert [beam["cumulative_logprob"] for beam in beams] == sorted((beam["cumulative_logprob"] for beam in beams), reverse=True)
    for mistake in (("--vote-json", "/a"), ("--beam-width", "3", "--best-of", "2"), ("--beam-width", "0")):
        assert isinstance(within(*short, *mistake).exception, RidgelineError)


def test_every_flag_has_an_effect() -> None:
    plain = within("Hello", "--seed", "3", "--json").stdout
    same = within("Hello", "--seed", "3", "--json", "--temperature", "1", "--top-p", "1").stdout
    assert plain == same
    letter = json.loads(plain)["choices"][0]["text"][5]
    flags = (
        ("--max-tokens", "5"), ("--temperature", "0"), ("--seed", "4"), ("--top-k", "1"), ("--top-p", "0.1"), ("--min-p", "1"),
        ("--n", "2"), ("--presence-penalty", "2"), ("--frequency-penalty", "2"), ("--repetition-penalty", "3"), ("--best-of", "8"),
        ("--prompt-logprobs", "1"), ("--logprobs", "1"), ("--stop", letter), ("--bad-word", letter),
    )  # fmt: skip
    unchanged = [flag for flag in flags if within("Hello", "--seed", "3", "--json", *flag).stdout in ("", plain)]
    assert unchanged == []


MISTAKES = [
    (b'{"prompt": "a"}\n\n{"prompt": 5}\n', "line 3: prompt must be a string"),
    (b'{"prompt": "a"}\n{"prompt"', "line 2 is not JSON"),
    (b'{"promt": "a"}\n', "line 1 has the key 'promt'"),
    (b'{"prompt": "a", "messages": []}\n', "line 1 must have one of prompt and messages"),
    (b'{"prompt": "a"}\n{"messages": [{"role": "user", "content": "x"}]}\n', "line 2: the model"),
    (b"[" * 100_000, "line 1: prompt has 100001 tokens"),
    (b'{"prompt": ' + b"[" * 100_000, "line 1 nests too deeply"),
    (b"fine\n\xff\n", "line 2 is not UTF-8"),
    (b"fine\n" + b"x" * 5000 + b"\n", "line 2: prompt has 5001 tokens"),
    (b"\n\n", "0 prompts in stdin"),
]


@pytest.mark.parametrize(("stdin", "named"), MISTAKES, ids=[named for _, named in MISTAKES])
def test_a_mistake_says_where_it_stands(stdin: bytes, named: str) -> None:
    done = within(stdin=stdin)
    assert isinstance(done.exception, RidgelineError), done.exception
    assert named in str(done.exception) and "\n" not in str(done.exception) and done.stdout == ""


def test_a_mistake_is_one_line(run: Run) -> None:
    done = run(stdin=MISTAKES[0][0])
    assert (done.returncode, done.stdout, done.stderr) == (2, "", f"ridgeline: stdin, {MISTAKES[0][1]}, messages a list of objects\n")


def test_files_that_cannot_be_used(run: Run, tmp_path: Path) -> None:
    missing = run("--input", str(tmp_path / "missing.txt"))
    assert missing.returncode == 2 and "missing.txt" in missing.stderr
    both = run("word", "--input", str(tmp_path))
    assert both.returncode == 2 and "give one of them" in both.stderr
    nowhere = run("word", "--output", str(tmp_path / "no" / "where.txt"))
    assert nowhere.returncode == 2 and "where.txt" in nowhere.stderr and "Traceback" not in nowhere.stderr


def test_a_bar_on_the_terminal_and_answers_in_the_file(environment: dict[str, str], tmp_path: Path) -> None:
    tokens, other = pty.openpty()
    command = [sys.executable, "-c", PROGRAM, "generate", "fake:{}", "a", "b", "--output", str(tmp_path / "out.txt"), "--max-tokens", "3"]
    with subprocess.Popen(command, stderr=other, stdout=other, stdin=subprocess.DEVNULL, env=environment) as process:
        os.close(other)
        seen = b""
        while True:
            try:
                seen += os.read(tokens, 4096)
            except OSError:
                break
        assert process.wait(timeout=20) == 0, seen
    os.close(tokens)
    assert b"100%" in seen
    assert len((tmp_path / "out.txt").read_text().splitlines()) == 2
