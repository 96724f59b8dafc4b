"""Suggestions beside an error: the user's command line with its mistakes repaired, printed only after the program itself has taken it.

A repair changes or removes what an error names. The repaired line is parsed by the same parser and its values are checked (`cli.checks`);
what this finds is repaired again, so that lines with several mistakes end in one that works, or in no suggestion.
"""

import io
import os
import shlex
from collections.abc import Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from typing import Any, Final

import typer

from ridgeline.cli.checks import Unchecked, find_check
from ridgeline.cli.main import PROGRAM, VERBS, UsageError, make_app
from ridgeline.errors import ModelFormatError, ModelNotFoundError, RequestError, RidgelineError, nearest

MAX_REPAIRS: Final = 8
DESTRUCTIVE: Final = ("rm", "drain", "swap", "chaos")
"""Verbs that nobody is led to by a typing mistake."""
OTHER_NAMES: Final = {
    "chat": "run", "talk": "run", "start": "serve", "server": "serve", "up": "serve", "api_server": "serve", "launch": "serve",
    "ls": "list", "models": "list", "tags": "list", "download": "pull", "fetch": "pull", "get": "pull", "remove": "rm", "delete": "rm",
    "info": "show", "inspect": "show", "status": "ps", "complete": "generate", "completion": "generate", "benchmark": "bench",
    "simulate": "sim", "check": "doctor", "estimate": "plan", "capacity": "plan", "rerun": "replay",
}  # fmt: skip
"""Names that other programs, or earlier versions, give to a verb."""
DEMO: Final = {"MODEL": "demo"}
EXAMPLES: Final = {"model": "demo", "what": "explain"}
"""Argument → value that works, for one that is missing or wrong."""
SETTING_FLAGS: Final = ("--set", "--today")
"""Flags whose value is `name=value`."""


def find_suggestion(words: Sequence[str], error: Exception) -> str | None:
    """The line to print below `error`, to which the command line `words` led; None where no repair leads to one that works.

    Words that are empty or cannot be printed are never repeated.
    """
    line, seen = list(words), set[tuple[str, ...]]()
    for _ in range(MAX_REPAIRS):
        line, found = _repair(line, error)
        if not line or tuple(line) in seen or not all(word and word.isprintable() for word in line):
            return None
        seen.add(tuple(line))
        if found is None or isinstance(found, Unchecked):
            return f"{'This works' if found is None else 'Try'}: {shlex.join([PROGRAM, *line])}"
        error = found
    return None


def check_line(words: Sequence[str]) -> Exception | None:
    """The error that the command line leads to before anything runs; None where it works, Unchecked where that cannot be known cheaply."""
    program: Any = typer.main.get_command(make_app())
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        try:
            program.main(list(words), PROGRAM, standalone_mode=False, obj=find_check)
        except Exception as error:  # whatever a check meets: a line that fails is not suggested
            return error
    return None


def unknown_verb(word: str) -> str:
    """The error for a verb that does not exist."""
    other = OTHER_NAMES.get(word.lower())
    if other in VERBS:
        return f"there is no {word!r}: it is `{PROGRAM} {other}` here"
    return f"there is no verb {word!r:.60}; there are: {', '.join(VERBS)}"


def _repair(words: list[str], error: Exception) -> tuple[list[str], Exception | None]:
    """The first repair that works, else the most promising one, with its error; ([], error) without any."""
    best: tuple[list[str], Exception | None] = ([], error)
    for line in _repairs(words, error):
        found = check_line(line)
        if found is None or isinstance(found, Unchecked):
            return line, found
        if not best[0] or (_lacks_or_exceeds(best[1]) and not _lacks_or_exceeds(found)):
            best = line, found
    return best


def _lacks_or_exceeds(error: Exception | None) -> bool:
    """True for an argument that is missing, or one too many: a repair took too much or too little."""
    return _kind(error) in ("MissingParameter", "UsageError")


def _kind(error: Exception | None) -> str:
    return type(error).__name__


def _repairs(words: list[str], error: Any) -> list[list[str]]:
    """Lines that may lack the mistake that `error` names, the likeliest first."""
    depth, command = _verb(words)
    before, items = words[:depth], split(words[depth:], command)

    def line(*changed: Item) -> list[str]:
        return [*before, *(word for each in changed for word in each.words)]

    if hasattr(command, "commands"):  # no verb, or one that does not exist
        return _verb_repairs(words, depth, command)
    if isinstance(error, RequestError):
        flags = [param.opts[0] for param in command.params if param.name == error.param and param.param_type_name == "option"]
        return [line(*apply_fix(items, {flag: None}, command)) for flag in flags]
    if isinstance(error, RidgelineError):
        fix = error.fix or (DEMO if isinstance(error, (ModelNotFoundError, ModelFormatError)) else {})
        return [line(*apply_fix(items, fix, command))] if fix else []
    if not isinstance(error, UsageError):
        return []
    if _kind(error) == "NoSuchOption":
        return [line(*each) for each in _option_repairs(items, error, command)]
    option, param = getattr(error, "option_name", None), getattr(error, "param", None)
    if option is not None:  # used in a wrong way: without its value, or with one that it does not take
        bare = [Item(each.name, [each.name]) if each.name == option else each for each in items]
        return [line(*bare), line(*(each for each in items if each.name != option))]
    if param is not None and param.param_type_name == "option":
        return [line(*apply_fix(items, {param.opts[0]: None}, command))]
    if param is not None:
        return [line(*_with_argument(items, param, command))] if param.name in EXAMPLES else []
    plain = [number for number, each in enumerate(items) if not each.name]
    return [line(*items[: plain[-1]], *items[plain[-1] + 1 :])] if plain else []  # one argument too many


@dataclass(frozen=True, slots=True)
class Item:
    """An option with its value, or a plain word. name: of the option as given, "" for a plain word; words: as given."""

    name: str
    words: list[str]

    @property
    def value(self) -> str | None:
        """The option's value, None without one."""
        return self.words[1] if len(self.words) > 1 else self.words[0].partition("=")[2] or None


def split(words: Sequence[str], command: Any) -> list[Item]:
    """The words of a command line behind the verb. An unknown option has no value but one behind "="."""
    options = {name: option for option in command.params for name in (*option.opts, *option.secondary_opts) if name.startswith("-")}
    items: list[Item] = []
    rest = list(words)
    while rest:
        word = rest.pop(0)
        name, equals, _ = word.partition("=")
        if word == "--":
            return [*items, *(Item("", [each]) for each in rest)]
        if not word.startswith("-") or word == "-":
            items.append(Item("", [word]))
        elif name in options and not options[name].is_flag and not equals and rest:
            items.append(Item(name, [word, rest.pop(0)]))
        else:
            items.append(Item(name, [word]))
    return items


def apply_fix(items: Sequence[Item], fix: Mapping[str, str | None], command: Any) -> list[Item]:
    """`items` with every flag of `fix` (of an error) changed or added, or removed for None. `--set name=value` stands for `--name`,
    "MODEL" for the argument of that name; for a verb where it is an option, that is removed."""
    found = list(items)
    for flag, value in fix.items():
        if flag == "MODEL":
            param = next((each for each in command.params if each.name == "model"), None)
            if param is not None and param.param_type_name == "argument":
                found = _with_argument(found, param, command, value)
                continue
            flag, value = "--model", None
        known = any(flag in (*option.opts, *option.secondary_opts) for option in command.params)
        setting = flag.lstrip("-").replace("-", "_")
        changed = [item for item in (_changed(item, flag, setting, value) for item in found) if item is not None]
        if value is not None and known and changed == found:
            changed.append(Item(flag, [flag, value]))
        found = changed
    return found


def _changed(item: Item, flag: str, setting: str, value: str | None) -> Item | None:
    """The item with the new value if it is the flag, is or has `flag` as a value, or sets the setting; None where it is to be removed."""
    if item.name and flag in (item.name, item.value):
        return None if value is None else Item(item.name, [item.name, value])
    if item.words == [flag]:
        return None if value is None else Item("", [value])
    if item.name in SETTING_FLAGS and (item.value or "").partition("=")[0].replace("-", "_") == setting:
        return None if value is None else Item(item.name, [item.name, f"{setting}={value}"])
    return item


def _with_argument(items: Sequence[Item], param: Any, command: Any, value: str | None = None) -> list[Item]:
    """`items` with the argument `param` replaced, or put in its place."""
    position = [each.name for each in command.params if each.param_type_name == "argument"].index(param.name)
    plain = [number for number, each in enumerate(items) if not each.name]
    new, found = Item("", [value or EXAMPLES[param.name]]), list(items)
    if position < len(plain):
        found[plain[position]] = new
    else:
        found.insert(plain[-1] + 1 if plain else 0, new)
    return found


def _option_repairs(items: list[Item], error: Any, command: Any) -> list[list[Item]]:
    """Repairs of an option that does not exist: the nearest that does, else without it. None for short ones: they may mean anything."""
    at = next((number for number, each in enumerate(items) if each.name == error.option_name), None)
    if at is None or not error.option_name.startswith("--"):
        return []
    before, item, after = items[:at], items[at], items[at + 1 :]
    given = item.words[0].partition("=")[2]
    repairs = []
    if error.option_name == "--model" and (given or after):  # other servers take the model as an option
        model = Item("", [given] if given else after[0].words)
        repairs.append([model, *before, *(after if given else after[1:])])
    names = [name for each in command.params for name in each.opts if name.startswith("--")]
    name = nearest(error.option_name, names, 0.75)
    if name is not None:
        words = [name, *([given] if given else [])]
        repairs.append([*before, Item(name, words), *after])
    if after and not given and not after[0].name:
        repairs.append([*before, *after[1:]])
    return [*repairs, [*before, *after]]


def _verb_repairs(words: list[str], depth: int, command: Any) -> list[list[str]]:
    """Repairs of a verb that does not exist, or of an option before any verb."""
    if len(words) <= depth:
        return []
    word, verbs = words[depth], list(command.commands)
    if word.startswith("-"):
        near = nearest(word, ("--help", "--version"))
        return [[*words[:depth], near]] if near and len(words) == depth + 1 else []
    if depth == 0 and (OTHER_NAMES.get(word.lower()) in verbs):
        rest = words[1:]
        return [[OTHER_NAMES[word.lower()], *rest]]
    near = nearest(word, [verb for verb in verbs if verb not in DESTRUCTIVE])
    if near:
        return [[*words[:depth], near, *words[depth + 1 :]]]
    is_model = depth == 0 and (word in EXAMPLES.values() or word.endswith(".gguf") or os.sep in word)
    return [["serve", *words]] if is_model else []


def _verb(words: Sequence[str]) -> tuple[int, Any]:
    """(number of leading words that name a verb, its command). The command is a group where they do not name a whole verb."""
    command: Any = typer.main.get_command(make_app())
    context, depth = command.make_context(PROGRAM, [], resilient_parsing=True), 0
    while hasattr(command, "commands") and depth < len(words) and words[depth] in command.commands:
        _, command, _ = command.resolve_command(context, [words[depth]])
        context = type(context)(command, info_name=words[depth], parent=context)
        depth += 1
    return depth, command
