r"""Messages that a person types into `ridgeline run`, or pipes into it: lines, continued lines, blocks, and their history.

A line that ends in a backslash continues on the next; triple quotes begin and end a block. On a terminal GNU readline edits lines; its
history is kept in a file that only its owner can read.
"""

import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from ridgeline.cli.run_commands import COMMANDS, is_command
from ridgeline.cli.sampling import FLAGS
from ridgeline.errors import ConfigError

PROMPT, CONTINUATION = "> ", ". "
QUOTES: Final = '"""'
MAX_HISTORY: Final = 1000
"""Messages that are kept."""
MAX_HISTORY_BYTES: Final = 4 << 20
MAX_PIPE_BYTES: Final = 16 << 20

Read = Callable[[str], str]
"""Reads one line behind a prompt. Raises EOFError at the end."""


def messages(read: Read, is_multiline: Callable[[], bool] = lambda: False) -> Iterator[str]:
    """Messages read with `read`. Blank ones are skipped. is_multiline: Enter begins a line, and an empty line sends."""
    while True:
        try:
            line = read(PROMPT)
        except EOFError:
            return
        if line.strip().startswith(QUOTES):
            text = _read_quoted(line.strip()[len(QUOTES) :], read)
        elif is_multiline() and not is_command(line):
            text = _read_until_empty(line, read)
        else:
            text = _read_continued(line, read)
        if text.strip():
            yield text


def _read_continued(line: str, read: Read) -> str:
    parts = [line]
    while parts[-1].endswith("\\"):
        parts[-1] = parts[-1][:-1]
        try:
            parts.append(read(CONTINUATION))
        except EOFError:
            break
    return "\n".join(parts)


def _read_until_empty(line: str, read: Read) -> str:
    parts = [line]
    while parts[-1].strip():
        try:
            parts.append(read(CONTINUATION))
        except EOFError:
            break
    return "\n".join(parts).rstrip("\n")


def _read_quoted(rest: str, read: Read) -> str:
    parts = [rest]
    while QUOTES not in parts[-1]:
        try:
            parts.append(read(CONTINUATION))
        except EOFError:
            break
    parts[-1] = parts[-1].partition(QUOTES)[0]
    return "\n".join(parts).strip("\n")


def read_pipe() -> str:
    """All of stdin. Raises ConfigError where it is longer than a message may be, or not UTF-8."""
    content = sys.stdin.buffer.read(MAX_PIPE_BYTES + 1)
    if len(content) > MAX_PIPE_BYTES:
        raise ConfigError(f"stdin has more than {MAX_PIPE_BYTES >> 20} MiB, which no model reads at once; pipe less")
    try:
        return content.decode("utf-8").rstrip("\r\n")
    except UnicodeDecodeError as error:
        raise ConfigError(f"stdin is not UTF-8 (byte {error.start})") from None


def from_lines(text: str) -> Read:
    """Reads the lines of a text, and shows each with its prompt on stderr, which then shows the conversation."""
    lines = iter(text.splitlines())

    def read(prompt: str) -> str:
        line = next(lines, None)
        if line is None:
            raise EOFError
        print(f"{prompt}{line}", file=sys.stderr, flush=True)
        return line

    return read


def from_terminal(prompt: str) -> str:
    """Reads one line; the prompt goes to stderr where stdout is not a terminal."""
    if sys.stdout.isatty():
        return input(prompt)
    print(prompt, end="", file=sys.stderr, flush=True)
    return input()


class LineEditor:
    """GNU readline, or libedit, on a terminal: history, completion of commands, lines within a message. Does nothing without either."""

    def __init__(self, history: Path) -> None:
        self._file = history
        self._readline: Any = None
        with suppress(ImportError):
            import readline

            self._readline = readline
            self._bind()
            for message in self._load():
                readline.add_history(message)

    def remember(self, message: str) -> None:
        """Adds a message to the history, here and in the file, which only its owner can read."""
        if self._readline is None:
            return
        self._readline.add_history(message)
        with suppress(OSError):
            self._file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            number = os.open(self._file, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600)
            with open(number, "a", encoding="utf-8") as file:
                file.write(json.dumps(message) + "\n")

    def offer(self, draft: str) -> None:
        """Puts a text on the next input line."""
        if self._readline is None:
            return

        def insert() -> None:
            self._readline.insert_text(draft)
            self._readline.set_startup_hook()

        self._readline.set_startup_hook(insert)

    def _load(self) -> list[str]:
        """The newest messages; a file that has become long is shortened."""
        try:
            if self._file.stat().st_size > MAX_HISTORY_BYTES:
                self._file.unlink()
            lines = self._file.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError):
            return []
        if len(lines) > 2 * MAX_HISTORY:
            lines = lines[-MAX_HISTORY:]
            with suppress(OSError):
                self._file.write_text("\n".join(lines) + "\n", encoding="utf-8")
        found = []
        for line in lines[-MAX_HISTORY:]:
            with suppress(ValueError):
                found.append(json.loads(line))
        return [each for each in found if isinstance(each, str)]

    def _bind(self) -> None:
        readline = self._readline
        readline.set_auto_history(False)
        readline.set_completer(_complete)
        readline.set_completer_delims(" \t\n")
        if "libedit" in (readline.__doc__ or ""):
            readline.parse_and_bind("bind ^I rl_complete")
            return
        readline.parse_and_bind("tab: complete")
        readline.parse_and_bind("set enable-bracketed-paste on")
        for key in (r"\e\C-m", r"\e\C-j", r"\e[13;5u", r"\e[13;2u", r"\e[27;5;13~"):  # Alt+Enter; Ctrl+Enter where a terminal tells it
            readline.parse_and_bind(rf'"{key}": "\C-v\C-j"')


def _complete(text: str, number: int) -> str | None:
    """readline's completer: names of commands, and of parameters behind /set."""
    import readline

    before = readline.get_line_buffer()[: readline.get_begidx()]
    if before == "":
        names = [f"/{name} " for name in COMMANDS] if text.startswith("/") else []
    else:
        names = [f"{name} " for name in (*FLAGS, "verbose")] if before.startswith("/set ") else []
    return next(iter([name for name in names if name.startswith(text)][number:]), None)
