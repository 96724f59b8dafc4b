"""Flags for the form of an answer: `--json-schema`, `--regex`, `--choice`, `--grammar`. What they mean is `text.structured`'s.

A form that cannot be followed is an error before a model is loaded.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Final

import typer

from ridgeline.core.params import StructuredOutputs
from ridgeline.errors import ConfigError

JsonSchema = Annotated[
    str | None, typer.Option(help="Answers are JSON of this JSON Schema: a file, or the schema as text.", metavar="FILE|TEXT")
]
Regex = Annotated[str | None, typer.Option(help="Answers match this regular expression as a whole.", metavar="TEXT")]
Choice = Annotated[list[str] | None, typer.Option(help="Answers are one of these texts; may be repeated.", metavar="TEXT")]
GrammarFile = Annotated[str | None, typer.Option(help="Answers follow this grammar, GBNF or Lark.", metavar="FILE")]

MAX_BYTES: Final = 1 << 20


def read_form(json_schema: str | None, regex: str | None, choice: Sequence[str] | None, grammar: str | None) -> StructuredOutputs | None:
    """The form that flags ask for, or None. Raises ConfigError for two of them and for files, RequestError for what cannot be followed."""
    flags = {"--json-schema": json_schema, "--regex": regex, "--choice": choice or None, "--grammar": grammar}
    given = [name for name, value in flags.items() if value is not None]
    if not given:
        return None
    if len(given) > 1:
        raise ConfigError(f"{given[0]} and {given[1]} both ask for a form; give one of them", fix={given[1]: None})
    if json_schema is not None and not json_schema.lstrip().startswith("{"):
        json_schema = read_text(json_schema, "--json-schema")
    if grammar is not None:
        grammar = read_text(grammar, "--grammar")
    asked = StructuredOutputs(json=json_schema, regex=regex, choice=tuple(choice) if choice else None, grammar=grammar)
    check_form(asked, given[0])
    return asked


def read_text(name: str, flag: str) -> str:
    """The text of a file that `flag` names. Raises ConfigError."""
    path = Path(name).expanduser()
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"{flag}: {name[:200]} cannot be read ({error.strerror}); give a file") from None
    if len(data) > MAX_BYTES:
        raise ConfigError(f"{flag}: {name} has more than {MAX_BYTES} bytes; give a smaller one")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{flag}: {name} is not UTF-8 (byte {error.start})") from None


def check_form(asked: StructuredOutputs, flag: str) -> None:
    """Raises RequestError for a form that cannot be followed."""
    from ridgeline.text.structured import StructuredOutputCompiler

    compiler = StructuredOutputCompiler()
    try:
        compiler.compile(asked, flag)
    finally:
        compiler.close()
