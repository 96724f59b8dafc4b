"""What `generate` is to answer: prompts of the command line, of a file, of a pipe. Each knows where it stands.

Owns the reading of lines and what is wrong with one; never renders and never runs.
"""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ridgeline.errors import ConfigError, ModelFormatError, RequestError
from ridgeline.facts.files.json_file import parse_object
from ridgeline.text.chat_content import Conversation

MAX_LINE_BYTES: Final = 16 << 20
STDIN: Final = "-"
_KEYS: Final = ("prompt", "messages", "id")


@dataclass(frozen=True, slots=True)
class Asked:
    """One prompt. `place` is empty for those of the command line; `name` is what the input calls it, to be found again in the output."""

    prompt: str | Conversation
    place: str = ""
    name: str | int | None = None

    def refusal(self, error: RequestError) -> RequestError:
        """The same error, which says where."""
        return RequestError(f"{self.place}: {error}", param=error.param, code=error.code) if self.place else error


def read_prompts(words: Sequence[str], file: str | None) -> list[Asked]:
    """Prompts of the command line, or of `file`: a line each, or objects of .jsonl. "-", or a pipe where nothing else is given, is stdin.

    Raises ConfigError for lines that cannot be read and where there is nothing to do.
    """
    if file is None and (list(words) == [STDIN] or (not words and not sys.stdin.isatty())):
        words, file = [], STDIN
    if file is None:
        asked = [Asked(word) for word in words]
    elif words:
        raise ConfigError("prompts stand on the command line and in --input; give one of them", fix={"--input": None})
    else:
        asked = list(_of_file(file))
    if not asked:
        where = "" if file is None else f" in {_name(file)}"
        raise ConfigError(f"there are 0 prompts{where}; give some as words, with --input FILE or through a pipe")
    return asked


def _of_file(file: str) -> Iterator[Asked]:
    as_objects: bool | None = file.endswith(".jsonl") if file != STDIN else None
    name = _name(file)
    for number, line in enumerate(_lines(file, name), 1):
        if not line.strip():
            continue
        if as_objects is None:  # a pipe has no name that says what it holds: its first line does
            as_objects = line.lstrip().startswith("{")
        place = f"{name}, line {number}"
        yield _object(line, place) if as_objects else Asked(line, place)


def _name(file: str) -> str:
    return "stdin" if file == STDIN else file


def _lines(file: str, name: str) -> Iterator[str]:
    with sys.stdin.buffer if file == STDIN else Path(file).expanduser().open("rb") as source:
        number = 0
        while raw := source.readline(MAX_LINE_BYTES + 1):
            number += 1
            if len(raw) > MAX_LINE_BYTES:
                raise ConfigError(f"{name}, line {number} has more than {MAX_LINE_BYTES} bytes; split it")
            try:
                yield raw.decode("utf-8").rstrip("\r\n")
            except UnicodeDecodeError as error:
                raise ConfigError(f"{name}, line {number} is not UTF-8 (byte {error.start})") from None


def _object(line: str, place: str) -> Asked:
    """`{"prompt": …}` or `{"messages": […]}`, with an `id` if it likes."""
    try:
        values: dict[str, Any] = parse_object(line, place)
    except ModelFormatError as error:
        raise ConfigError(str(error)) from None
    if unknown := [key for key in values if key not in _KEYS]:
        raise ConfigError(f"{place} has the key {unknown[0][:60]!r}; there may be: {', '.join(_KEYS)}")
    prompt, messages, name = (values.get(key) for key in _KEYS)
    if (prompt is None) == (messages is None):
        raise ConfigError(f"{place} must have one of prompt and messages")
    if not (isinstance(prompt, str) or isinstance(messages, list)):
        raise ConfigError(f"{place}: prompt must be a string, messages a list of objects")
    if name is not None and (isinstance(name, bool) or not isinstance(name, (str, int))):
        raise ConfigError(f"{place}: id must be a string or an integer")
    return Asked(prompt if isinstance(prompt, str) else Conversation(messages or []), place, name)
