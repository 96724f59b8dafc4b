"""From a mistake to the command that works: the same words with the flag that was wrong changed or taken away.

Owns the reading of a command line as words; never runs anything.
"""

import shlex
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Any

from ridgeline.errors import ModelFormatError, ModelNotFoundError, RidgelineError

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
    """What a mistyped verb was probably meant to be."""
    return next(iter(get_close_matches(word, verbs, 1)), None)
