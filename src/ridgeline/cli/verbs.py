"""Groups of verbs of which one is imported when words, or the shell that completes them, name it: so that help costs nothing."""

import importlib
from collections.abc import Mapping
from typing import Any

import typer
import typer.core


def group(table: Mapping[str, str], prefix: str = "") -> typer.Typer:
    """The verbs of `table` (name → help). Verb `x` is the function or the group `x` of the module `ridgeline.cli.<prefix>x`."""

    class Verbs(typer.core.TyperGroup):
        """All verbs by name and help."""

        def resolve_command(self, ctx: Any, args: list[str]) -> Any:
            """The verb that the first word names, ready to run."""
            if args and args[0] in table:
                self.commands[args[0]] = _load(args[0], prefix)
            return super().resolve_command(ctx, args)

    app = typer.Typer(cls=Verbs, no_args_is_help=True, add_completion=not prefix, pretty_exceptions_enable=False, rich_markup_mode=None)
    for verb, text in table.items():
        app.command(verb, help=text)(_not_loaded)
    return app


def _load(verb: str, prefix: str) -> Any:
    found = getattr(importlib.import_module(f"ridgeline.cli.{prefix}{verb}"), verb)
    if isinstance(found, typer.Typer):
        return typer.main.get_command(found)
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
    app.command(verb)(found)
    return typer.main.get_command(app)


def _not_loaded() -> None:
    raise AssertionError("a verb was run that the command line did not ask for")
