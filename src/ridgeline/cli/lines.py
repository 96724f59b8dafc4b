"""Messages as a person types them, or as a pipe brings them: lines, lines that go on, blocks between triple quotes.

Owns the prompts. Says nothing about what a message means.
"""

import sys
from collections.abc import Callable, Iterator
from typing import Final

PROMPT, MORE = "> ", ". "
QUOTES: Final = '"""'


def messages(read: Callable[[str], str]) -> Iterator[str]:
    r"""Each message that `read(prompt)` brings; it raises EOFError at the end. Blank ones are left out.

    A line that ends in a backslash goes on in the next; triple quotes begin and end a message of several lines.
    """
    while True:
        try:
            line = read(PROMPT)
        except EOFError:
            return
        text = _block(line.strip()[len(QUOTES) :], read) if line.strip().startswith(QUOTES) else _joined(line, read)
        if text.strip():
            yield text


def _joined(line: str, read: Callable[[str], str]) -> str:
    parts = [line]
    while parts[-1].endswith("\\"):
        parts[-1] = parts[-1][:-1]
        try:
            parts.append(read(MORE))
        except EOFError:
            break
    return "\n".join(parts)


def _block(rest: str, read: Callable[[str], str]) -> str:
    parts = [rest]
    while QUOTES not in parts[-1]:
        try:
            parts.append(read(MORE))
        except EOFError:
            break
    parts[-1] = parts[-1].partition(QUOTES)[0]
    return "\n".join(parts).strip("\n")


def from_terminal(prompt: str) -> str:
    """One line, with the prompt where the person looks and never among data."""
    if sys.stdout.isatty():
        return input(prompt)
    print(prompt, end="", file=sys.stderr, flush=True)
    return input()


def from_pipe(prompt: str) -> str:
    """One line, which is shown on stderr with its prompt, so that the whole reads as a conversation there."""
    line = sys.stdin.readline()
    if not line:
        raise EOFError
    line = line.rstrip("\r\n")
    print(f"{prompt}{line}", file=sys.stderr, flush=True)
    return line
