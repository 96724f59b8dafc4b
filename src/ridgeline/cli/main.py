"""The command `ridgeline`: one verb a file. Owns the process' exit and how errors look: one line with cause, number and fix, status 2.

A verb's file is imported when the verb is asked for, so that help costs nothing.
"""

import importlib
import sys
from typing import Annotated, Final

import typer

from ridgeline import __version__
from ridgeline.errors import RidgelineError

VERBS: Final = {
    "serve": "Serve a model: a page and an OpenAI-compatible API.",
    "generate": "Continue prompts with a model, in this process.",
    "plan": "Say what a model needs and yields on given devices, before anything is downloaded.",
    "sim": "Simulate serving with the real scheduler, before or without any server.",
    "whatif": "Try other settings on recorded traffic, with the real scheduler, beside today's.",
    "replay": "Decide a recording again and compare; make a trace and a step log of it.",
    "doctor": "Say what this machine offers, what is lost, and how to get it back.",
    "laws": "Simulate the engine over many random small worlds and check every law.",
}
INTERRUPTED: Final = 130
MISTAKEN: Final = 2


def main() -> None:
    """The entry point. Never returns."""
    asked = sys.argv[1] if len(sys.argv) > 1 else None
    try:
        command_line(asked)()
    except RidgelineError as error:
        fail(str(error))
    except BrokenPipeError:
        sys.stderr.close()  # Whoever read our output has gone; Python would complain about it once more while it ends.
        sys.exit(MISTAKEN)
    except OSError as error:
        fail(f"{error.filename or 'the system'}: {error.strerror or error}")
    except MemoryError:
        fail("there is not enough memory; lower --kv-cache-memory-bytes or --max-model-len, or take a smaller model")
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)


def fail(message: str) -> None:
    """Ends the process with one line."""
    print(f"ridgeline: {message}", file=sys.stderr)
    sys.exit(MISTAKEN)


def command_line(asked: str | None) -> typer.Typer:
    """All verbs, of which only `asked` is loaded."""
    app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode=None)
    app.callback()(ridgeline)
    for verb, text in VERBS.items():
        if verb == asked:
            app.command(verb)(getattr(importlib.import_module(f"ridgeline.cli.{verb}"), verb))
        else:
            app.command(verb, help=text)(_not_loaded)
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


def _not_loaded() -> None:
    raise AssertionError("a verb was run that the command line did not ask for")
