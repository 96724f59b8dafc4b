"""The command `ridgeline`: a table of verbs; a verb is imported when the command line or shell completion names it.

Owns the exit status and the form of errors: one line with cause, number and fix, then a command that works where one was found and checked
(`cli.suggest`), status 2.
"""

import importlib
import inspect
import sys
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Annotated, Any, Final, NoReturn

import typer
import typer.core

from ridgeline import __version__
from ridgeline.errors import RidgelineError

UsageError: Final[Any] = typer.BadParameter.__base__
"""click's class, or typer's copy of it."""

VERBS: Final = {
    "serve": "Serve models: a page and an OpenAI-compatible API.",
    "route": "One address for several servers, by prefix and load.",
    "run": "Talk with a model, in this process.",
    "pull": "Fetch a model: size and fit first, resumed, checked.",
    "list": "List the models on this machine, whoever fetched them.",
    "show": "Show a model: facts, template, licence, origin, fit.",
    "rm": "Remove a model that was fetched.",
    "ps": "List the running servers.",
    "top": "Watch a server: load, speed, its bottleneck, what helps.",
    "admin": "Look at a running server and change it.",
    "investigate": "Take an alert; say its phase, evidence and first lever.",
    "explain": "Say where the time of a server's requests went.",
    "profile": "Trace a server's next steps for Perfetto, or profile it.",
    "chaos": "Inject a fault into a server that allows it.",
    "generate": "Continue prompts with a model, in this process.",
    "batch": "Answer a file of requests, in this process.",
    "merge": "Write a checkpoint with a LoRA adapter merged into it.",
    "plan": "Say what a model needs and yields, before it is downloaded.",
    "config": "Explain each setting: value, origin, reason, cost, metric.",
    "sim": "Simulate serving with the real scheduler, without a server.",
    "whatif": "Try other settings on recorded traffic, beside today's.",
    "replay": "Decide a recording again; make a trace and a step log of it.",
    "bench": "Measure servers, kernels and this machine.",
    "doctor": "Say what this machine offers and lacks, with the fix.",
    "laws": "Simulate random small worlds and check every law.",
}
MODULES: Final = {"pull": "library", "rm": "library", "whatif": "sim", "replay": "sim", "laws": "sim"}
"""Modules of verbs whose module has another name."""
EXIT_INTERRUPTED: Final = 130
EXIT_USAGE: Final = 2
PROGRAM: Final = "ridgeline"
HELP_FLAGS: Final = {"help_option_names": ["--help", "-h"]}

Check = Callable[[Mapping[str, Any]], None]
"""Checks the arguments of a verb, by parameter name, without running it. Raises what the verb would."""


def main() -> None:
    """The entry point. Never returns."""
    words = sys.argv[1:]
    command: Any = typer.main.get_command(make_app())
    try:
        status = command.main(words, PROGRAM, standalone_mode=False)
        if status == EXIT_INTERRUPTED:
            _exit_interrupted()
        sys.exit(status if isinstance(status, int) else 0)
    except RidgelineError as error:
        fail(str(error), words, error)
    except UsageError as error:
        _usage(error, words, command)
    except BrokenPipeError:
        sys.stderr.close()  # the reader of stdout has gone; avoids a second error at exit
        sys.exit(EXIT_USAGE)
    except OSError as error:
        fail(f"{error.filename or 'the system'}: {error.strerror or error}")
    except MemoryError:
        fail("there is not enough memory; lower --kv-cache-memory-bytes or --max-model-len, or take a smaller model")
    except (Interrupted, KeyboardInterrupt) as interrupt:
        _exit_interrupted(str(interrupt))


class Interrupted(Exception):
    """An interrupt of a verb, with what it interrupted: typer makes a bare status of KeyboardInterrupt."""


def _exit_interrupted(what: str = "") -> NoReturn:
    print(f"{PROGRAM}: {what or 'interrupted'}", file=sys.stderr)
    sys.exit(EXIT_INTERRUPTED)


def fail(message: str, words: list[str] | None = None, error: Exception | None = None) -> NoReturn:
    """Prints an error, and for the command line `words` that led to `error` one that works, if one is found, and exits with status 2."""
    print(f"{PROGRAM}: {message}", file=sys.stderr)
    if words and error is not None:
        from ridgeline.cli.suggest import find_suggestion

        suggestion = find_suggestion(words, error)
        if suggestion is not None:
            print(suggestion, file=sys.stderr)
    sys.exit(EXIT_USAGE)


def _usage(error: Any, words: list[str], command: Any) -> NoReturn:
    """Reports an invalid command line; prints help for an empty one or a group's name alone."""
    if not words:
        print(command.get_help(command.make_context(PROGRAM, [], resilient_parsing=True)))
        sys.exit(EXIT_USAGE)
    if type(error).__name__ == "NoArgsIsHelpError":
        print(error.format_message())
        sys.exit(EXIT_USAGE)
    message, wanted = error.format_message(), getattr(getattr(error, "param", None), "help", None)
    if type(error).__name__ == "MissingParameter" and wanted:
        message = f"{message.rstrip('.')}: {wanted}"
    if words[0] not in VERBS and not words[0].startswith("-"):
        from ridgeline.cli.suggest import unknown_verb

        message = unknown_verb(words[0])
    fail(message, words, error)


def make_app() -> typer.Typer:
    """The app with all verbs, none of them imported. If its context's `obj` is a function from the path of a verb ("bench serve") to a
    `Check`, verbs are checked, not run."""
    app = group(VERBS, MODULES, add_completion=True)
    app.callback()(ridgeline)
    return app


def print_version(asked: bool) -> None:
    """Prints the version and exits, where --version is given."""
    if asked:
        print(__version__)
        raise typer.Exit


def ridgeline(
    version: Annotated[bool, typer.Option("--version", help="Print the version and end.", is_eager=True, callback=print_version)] = False,
) -> None:
    """An LLM inference engine and server that explains itself."""


def group(table: Mapping[str, str], modules: Mapping[str, str], add_completion: bool = False) -> typer.Typer:
    """An app with the verbs of `table` (name → help). Verb `x` is function or group `x` of module `ridgeline.cli.<modules[x], else x>`."""

    class Verbs(typer.core.TyperGroup):
        """Verbs by name and help, imported on use."""

        def resolve_command(self, ctx: Any, args: list[str]) -> Any:
            """Imports and returns the verb that the first word names."""
            if args and args[0] in table:
                find_check, path = ctx.find_root().obj, f"{ctx.command_path} {args[0]}".removeprefix(f"{PROGRAM} ")
                self.commands[args[0]] = load_verb(args[0], modules.get(args[0], args[0]), find_check and find_check(path))
            return super().resolve_command(ctx, args)

    app = typer.Typer(
        cls=Verbs, no_args_is_help=True, add_completion=add_completion, pretty_exceptions_enable=False, rich_markup_mode=None,
        context_settings=HELP_FLAGS,
    )  # fmt: skip
    for verb, text in table.items():
        app.command(verb, help=text)(_unloaded_verb)
    return app


def load_verb(verb: str, module: str, check: Check | None = None) -> Any:
    """The command or group `verb`, imported. With `check`, a command of the same flags that calls it in place of the verb."""
    found = getattr(importlib.import_module(f"ridgeline.cli.{module}"), verb)
    if isinstance(found, typer.Typer):
        return typer.main.get_command(found)
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None, context_settings=HELP_FLAGS)
    app.command(verb)(_interruptible(found) if check is None else _checking(found, check))
    return typer.main.get_command(app)


def _interruptible(verb: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(verb)
    def call(*arguments: Any, **given: Any) -> Any:
        try:
            return verb(*arguments, **given)
        except KeyboardInterrupt as interrupt:
            raise Interrupted(*interrupt.args) from None

    return call


def _checking(verb: Callable[..., None], check: Check) -> Callable[..., None]:
    def checked(**given: Any) -> None:
        check(given)

    checked.__signature__ = inspect.signature(verb)  # type: ignore[attr-defined]
    checked.__annotations__ = verb.__annotations__
    return checked


def _unloaded_verb() -> None:
    raise AssertionError("a verb was run that was not imported")
