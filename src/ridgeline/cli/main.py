"""The command `ridgeline`: one verb a file. Owns the process' exit and how errors look: one line with cause, number and fix, status 2."""

import shlex
import sys
from typing import Annotated, Any, Final, NoReturn

import typer

from ridgeline import __version__
from ridgeline.cli.mistakes import PROGRAM, nearest_verb, working_command
from ridgeline.cli.verbs import group
from ridgeline.errors import RidgelineError

UsageError: Final[Any] = typer.BadParameter.__base__
"""click's class, or typer's copy of it."""

VERBS: Final = {
    "serve": "Serve a model: a page and an OpenAI-compatible API.",
    "chat": "Talk with a model, in this process.",
    "generate": "Continue prompts with a model, in this process.",
    "plan": "Say what a model needs and yields on given devices, before anything is downloaded.",
    "config": "Explain each setting of an engine: value, origin, reason, cost, and the metric that shows it is wrong.",
    "sim": "Simulate serving with the real scheduler, before or without any server.",
    "whatif": "Try other settings on recorded traffic, with the real scheduler, beside today's.",
    "replay": "Decide a recording again and compare; make a trace and a step log of it.",
    "bench": "Measure servers, kernels and this machine.",
    "doctor": "Say what this machine offers, what is lost, and how to get it back.",
    "laws": "Simulate the engine over many random small worlds and check every law.",
}
INTERRUPTED: Final = 130
MISTAKEN: Final = 2


def main() -> None:
    """The entry point. Never returns."""
    words = sys.argv[1:]
    command: Any = typer.main.get_command(command_line())
    try:
        status = command.main(words, PROGRAM, standalone_mode=False)
        sys.exit(status if isinstance(status, int) else 0)
    except RidgelineError as error:
        fail(str(error), working_command(words, error, command))
    except UsageError as error:
        _usage(error, words, command)
    except BrokenPipeError:
        sys.stderr.close()  # Whoever read our output has gone; Python would complain about it once more while it ends.
        sys.exit(MISTAKEN)
    except OSError as error:
        fail(f"{error.filename or 'the system'}: {error.strerror or error}")
    except MemoryError:
        fail("there is not enough memory; lower --kv-cache-memory-bytes or --max-model-len, or take a smaller model")
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)


def fail(message: str, works: str | None = None) -> NoReturn:
    """Ends the process with one line, and a second one with the command that works where one is known."""
    print(f"{PROGRAM}: {message}", file=sys.stderr)
    if works is not None:
        print(f"This works: {works}", file=sys.stderr)
    sys.exit(MISTAKEN)


def _usage(error: Any, words: list[str], command: Any) -> NoReturn:
    """A command line that cannot be understood; without any word, or with a group's name alone, help."""
    if not words:
        print(command.get_help(command.make_context(PROGRAM, [], resilient_parsing=True)))
        sys.exit(MISTAKEN)
    if type(error).__name__ == "NoArgsIsHelpError":
        print(error.format_message())
        sys.exit(MISTAKEN)
    verb = words[0] if words[0] in VERBS else nearest_verb(words[0], list(VERBS))
    if verb != words[0] and not words[0].startswith("-"):
        fail(error.format_message(), None if verb is None else shlex.join([PROGRAM, verb, *words[1:]]))
    fail(error.format_message(), working_command(words, error, command))


def command_line() -> typer.Typer:
    """All verbs, of which none is loaded."""
    app = group(VERBS)
    app.callback()(ridgeline)
    return app


def print_version(asked: bool) -> None:
    """Ends the process with the version where it was asked for."""
    if asked:
        print(__version__)
        raise typer.Exit


def ridgeline(
    version: Annotated[bool, typer.Option("--version", help="Print the version and end.", is_eager=True, callback=print_version)] = False,
) -> None:
    """An LLM inference engine and server that explains itself."""
