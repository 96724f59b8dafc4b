"""The command `ridgeline`: a table of verbs, of which one is imported when words, or the shell that completes them, name it.

Owns the process' exit and how errors look: one line with cause, number and fix, then the command that works (the same words with the flag
that was wrong changed or taken away), status 2.
"""

import importlib
import shlex
import sys
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Annotated, Any, Final, NoReturn

import typer
import typer.core

from ridgeline import __version__
from ridgeline.errors import ModelFormatError, ModelNotFoundError, RidgelineError

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
HOMES: Final = {"whatif": "sim", "replay": "sim", "laws": "sim"}
"""Modules of verbs that do not have one of their own name."""
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
    app = group(VERBS, HOMES, completes=True)
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


def group(table: Mapping[str, str], homes: Mapping[str, str], completes: bool = False) -> typer.Typer:
    """The verbs of `table` (name → help). Verb `x` is the function or the group `x` of the module `ridgeline.cli.<homes[x], else x>`."""

    class Verbs(typer.core.TyperGroup):
        """All verbs by name and help."""

        def resolve_command(self, ctx: Any, args: list[str]) -> Any:
            """The verb that the first word names, ready to run."""
            if args and args[0] in table:
                self.commands[args[0]] = _load(args[0], homes.get(args[0], args[0]))
            return super().resolve_command(ctx, args)

    app = typer.Typer(cls=Verbs, no_args_is_help=True, add_completion=completes, pretty_exceptions_enable=False, rich_markup_mode=None)
    for verb, text in table.items():
        app.command(verb, help=text)(_not_loaded)
    return app


def _load(verb: str, home: str) -> Any:
    found = getattr(importlib.import_module(f"ridgeline.cli.{home}"), verb)
    if isinstance(found, typer.Typer):
        return typer.main.get_command(found)
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
    app.command(verb)(found)
    return typer.main.get_command(app)


def _not_loaded() -> None:
    raise AssertionError("a verb was run that the command line did not ask for")


PROGRAM = "ridgeline"
DEMO = {"MODEL": "demo"}
Command = Any
"""A verb, or all of them, as the command-line library has it: click's class, of which typer carries a copy of its own in some versions."""


def working_command(words: Sequence[str], error: Exception, command: Command) -> str | None:
    """`ridgeline serve demo …` with which `words` (verb first) would do; None where the error names no way out.

    command  the whole program, which knows its verbs and, of those that were loaded, their flags
    """
    fix, inner, verb = _fix(error), 0, command.commands.get(words[0])
    while hasattr(verb, "commands") and inner + 1 < len(words):
        inner += 1
        verb = verb.commands.get(words[inner])
    if not fix or verb is None:
        return None
    return shlex.join([PROGRAM, *words[:inner], *changed(words[inner:], fix, verb)])


def changed(words: Sequence[str], fix: Mapping[str, str | None], command: Command) -> list[str]:
    """The words with every flag of `fix` replaced, added, or, for None, taken away. "MODEL" is the first word that is no flag; of a verb
    without such words it is --model, which is taken away."""
    options = [option for option in command.params if option.param_type_name == "option" and option.is_flag]
    switches = {name for option in options for name in (*option.opts, *option.secondary_opts)}
    kept, flags = [words[0]], dict(fix)
    model = flags.pop("MODEL", None)
    if model is not None and all(param.param_type_name == "option" for param in command.params):
        flags["--model"], model = None, None
    rest = iter(words[1:])
    for word in rest:
        name, equals, _ = word.partition("=")
        own = [name] if word.startswith("-") and (equals or name in switches) else [name, next(rest, "")] if word.startswith("-") else []
        if not own:
            kept.append(model if model is not None else word)
            model = None
        elif name not in flags:
            kept += [word] if len(own) == 1 else [word, own[1]]
    if model is not None:
        kept.insert(1, model)
    for name, value in flags.items():
        kept += [] if value is None else [name, value]
    return kept


def _fix(error: Exception) -> Mapping[str, str | None]:
    if isinstance(error, RidgelineError):
        return error.fix or (DEMO if isinstance(error, (ModelNotFoundError, ModelFormatError)) else {})
    option, param = getattr(error, "option_name", None), getattr(error, "param", None)
    if option is not None:
        return {option: None}
    if param is not None and param.param_type_name == "option":
        return {param.opts[0]: None}
    return DEMO if param is not None and param.name == "model" else {}


def nearest_verb(word: str, verbs: Sequence[str]) -> str | None:
    """The verb that a mistyped one was probably meant to be."""
    return next(iter(get_close_matches(word, verbs, 1)), None)
