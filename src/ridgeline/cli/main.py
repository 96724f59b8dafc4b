"""The command `ridgeline`: a table of verbs; a verb is imported when the command line or shell completion names it.

Owns the exit status and the form of errors: one line with cause, number and fix, then a command that works (the same with the wrong flag
changed or removed), status 2.
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
MODULES: Final = {"whatif": "sim", "replay": "sim", "laws": "sim"}
"""Modules of verbs whose module has another name."""
EXIT_INTERRUPTED: Final = 130
EXIT_USAGE: Final = 2


def main() -> None:
    """The entry point. Never returns."""
    words = sys.argv[1:]
    command: Any = typer.main.get_command(make_app())
    try:
        status = command.main(words, PROGRAM, standalone_mode=False)
        sys.exit(status if isinstance(status, int) else 0)
    except RidgelineError as error:
        fail(str(error), working_command(words, error, command))
    except UsageError as error:
        _usage(error, words, command)
    except BrokenPipeError:
        sys.stderr.close()  # the reader of stdout has gone; avoids a second error at exit
        sys.exit(EXIT_USAGE)
    except OSError as error:
        fail(f"{error.filename or 'the system'}: {error.strerror or error}")
    except MemoryError:
        fail("there is not enough memory; lower --kv-cache-memory-bytes or --max-model-len, or take a smaller model")
    except KeyboardInterrupt:
        sys.exit(EXIT_INTERRUPTED)


def fail(message: str, suggestion: str | None = None) -> NoReturn:
    """Prints an error, and a command that works where one is known, and exits with status 2."""
    print(f"{PROGRAM}: {message}", file=sys.stderr)
    if suggestion is not None:
        print(f"This works: {suggestion}", file=sys.stderr)
    sys.exit(EXIT_USAGE)


def _usage(error: Any, words: list[str], command: Any) -> NoReturn:
    """Reports an invalid command line; prints help for an empty one or a group's name alone."""
    if not words:
        print(command.get_help(command.make_context(PROGRAM, [], resilient_parsing=True)))
        sys.exit(EXIT_USAGE)
    if type(error).__name__ == "NoArgsIsHelpError":
        print(error.format_message())
        sys.exit(EXIT_USAGE)
    verb = words[0] if words[0] in VERBS else nearest_verb(words[0], list(VERBS))
    if verb != words[0] and not words[0].startswith("-"):
        fail(error.format_message(), None if verb is None else shlex.join([PROGRAM, verb, *words[1:]]))
    fail(error.format_message(), working_command(words, error, command))


def make_app() -> typer.Typer:
    """The app with all verbs, none of them imported."""
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
                self.commands[args[0]] = _load_verb(args[0], modules.get(args[0], args[0]))
            return super().resolve_command(ctx, args)

    app = typer.Typer(cls=Verbs, no_args_is_help=True, add_completion=add_completion, pretty_exceptions_enable=False, rich_markup_mode=None)
    for verb, text in table.items():
        app.command(verb, help=text)(_unloaded_verb)
    return app


def _load_verb(verb: str, module: str) -> Any:
    found = getattr(importlib.import_module(f"ridgeline.cli.{module}"), verb)
    if isinstance(found, typer.Typer):
        return typer.main.get_command(found)
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
    app.command(verb)(found)
    return typer.main.get_command(app)


def _unloaded_verb() -> None:
    raise AssertionError("a verb was run that was not imported")


PROGRAM = "ridgeline"
DEMO = {"MODEL": "demo"}
Command = Any
"""click's Command class, or typer's copy of it in some versions."""


def working_command(words: Sequence[str], error: Exception, command: Command) -> str | None:
    """A corrected command line for `words` (verb first), from the error's fix; None without one.

    command  the whole program, with the flags of the imported verbs
    """
    fix, inner, verb = _fix(error), 0, command.commands.get(words[0])
    while hasattr(verb, "commands") and inner + 1 < len(words):
        inner += 1
        verb = verb.commands.get(words[inner])
    if not fix or verb is None:
        return None
    return shlex.join([PROGRAM, *words[:inner], *apply_fix(words[inner:], fix, verb)])


def apply_fix(words: Sequence[str], fix: Mapping[str, str | None], command: Command) -> list[str]:
    """`words` with every flag of `fix` replaced or added, or removed for None. "MODEL" is the first word that is not a flag; for a verb
    without arguments it is --model, which is removed."""
    options = [option for option in command.params if option.param_type_name == "option" and option.is_flag]
    switches = {name for option in options for name in (*option.opts, *option.secondary_opts)}
    kept, flags = [words[0]], dict(fix)
    model = flags.pop("MODEL", None)
    if model is not None and all(param.param_type_name == "option" for param in command.params):
        flags["--model"], model = None, None
    rest = iter(words[1:])
    for word in rest:
        name, equals, _ = word.partition("=")
        tokens = [name] if word.startswith("-") and (equals or name in switches) else [name, next(rest, "")] if word.startswith("-") else []
        if not tokens:
            kept.append(model if model is not None else word)
            model = None
        elif name not in flags:
            kept += [word] if len(tokens) == 1 else [word, tokens[1]]
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
    """The verb most similar to a mistyped one; None without one."""
    return next(iter(get_close_matches(word, verbs, 1)), None)
