"""The /commands of `ridgeline run`: one table. A command changes the session and says what to show, or what the model is to answer."""

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, NamedTuple

from ridgeline.cli.form import check_form, read_text
from ridgeline.cli.run_session import Session
from ridgeline.cli.sampling import FLAGS, parse_value
from ridgeline.core.params import SamplingParams, StructuredOutputs
from ridgeline.errors import ConfigError, nearest
from ridgeline.facts.files.json_file import read_object

MAX_SAVED_BYTES: Final = 64 << 20


class Reply(NamedTuple):
    """Result of a command. text: shown to the user; message: for the model to answer; draft: put on the input line, to be edited."""

    text: str = ""
    message: str | None = None
    draft: str | None = None
    goes_on: bool = False
    is_exit: bool = False


def is_command(line: str) -> bool:
    """True for `/name` and `/name argument` of the table, and for a mistyped name; a message that begins with / is written with //."""
    return line.startswith("/") and not line.startswith("//")


def run_command(line: str, session: Session) -> Reply:
    """Runs the command `/name argument`. Raises RidgelineError."""
    name, _, argument = line[1:].partition(" ")
    command = COMMANDS.get(ALIASES.get(name, name))
    if command is None:
        meant = nearest(name, COMMANDS)
        hint = f"did you mean /{meant}? " if meant else ""
        raise ConfigError(f"there is no command /{name[:40]}; {hint}/help lists them (a message that begins with / is written with //)")
    return command.run(session, argument.strip())


def _help(session: Session, argument: str) -> Reply:
    lines = [f"  {f'/{name} {each.argument}'.rstrip():<24}{each.text}" for name, each in COMMANDS.items()]
    keys = (
        "", '  """                     begins and ends a message of several lines; so does \\ at the end of a line',
        "  Alt+Enter               begins a line within a message", "  Ctrl+C                  stops an answer, or drops the line",
    )  # fmt: skip
    return Reply("\n".join([*lines, *keys]))


def _system(session: Session, argument: str) -> Reply:
    if argument:
        session.system = argument
    return Reply(f"system prompt: {session.system}" if session.system else "there is no system prompt")


def _clear(session: Session, argument: str) -> Reply:
    session.clear()
    return Reply("the conversation is cleared")


def _retry(session: Session, argument: str) -> Reply:
    message = session.retry()
    if message is None:
        raise ConfigError("there are 0 messages; nothing can be answered again")
    return Reply(message=message)


def _more(session: Session, argument: str) -> Reply:
    if not session.turns or session.unanswered is not None:
        raise ConfigError("there is no answer to go on with; send a message first")
    return Reply(goes_on=True)


def _edit(session: Session, argument: str) -> Reply:
    message = session.undo()
    if message is None:
        raise ConfigError("there are 0 messages; nothing can be edited")
    return Reply(message=argument) if argument else Reply("edit the message and press Enter", draft=message)


def _undo(session: Session, argument: str) -> Reply:
    message = session.undo()
    if message is None:
        raise ConfigError("there are 0 messages; nothing can be taken back")
    return Reply(f"taken back: {message[:60]}")


def _drop(session: Session, argument: str) -> Reply:
    if not argument.isascii() or not argument.isdigit():
        raise ConfigError(f"/drop takes a number of turns, not {argument[:40]!r}")
    return Reply(f"{session.drop(int(argument[:9]))} turns are forgotten, {len(session.turns)} are left")


def _set(session: Session, argument: str) -> Reply:
    name, _, text = argument.partition(" ")
    text = text.strip()
    if not name:
        return Reply(_parameters(session))
    if name == "verbose":
        session.verbose = _parse_switch("verbose", text)
        return Reply(f"verbose {str(session.verbose).lower()}")
    if name in SPECIAL and text:
        return Reply(SPECIAL[name](session, text))
    if not text:
        raise ConfigError("/set takes a parameter and a value, as in /set temperature 0.7; /set alone lists them")
    default = session.llm.get_default_sampling_params(None)
    value: Any = getattr(default, name) if text == "default" and name in FLAGS else parse_value(name, text)
    params = replace(session.params, **{name: value})
    session.llm.prepare("x", params)  # admission raises the error
    session.params = params
    return Reply(f"{name} {value}")


def _format(session: Session, text: str) -> str:
    """`/set format`: json, a file with a JSON Schema, or off."""
    if text in ("off", "default", "text"):
        asked = None
    elif text == "json":
        asked = StructuredOutputs(json_object=True)
    else:
        asked = StructuredOutputs(json=read_text(text, "/set format"))
        check_form(asked, "format")
    session.params = replace(session.params, structured_outputs=asked)
    return f"format {text}" if asked is not None else "format off"


def _think(session: Session, text: str) -> str:
    """`/set think`: on, off, or the most tokens of reasoning. A model that cannot be told not to think gets a budget of 0."""
    template = session.llm.chat_template
    if template is None or (template.reasoning_ids is None and not session.switches):
        raise ConfigError(f"the model {session.llm.config.model!r} does not reason")
    budget: int | None = None
    if text.isascii() and text.isdigit():
        budget = int(text[:10])
    elif text == "off" and not session.switches:
        budget = 0
    elif text not in ("on", "off", "default"):
        raise ConfigError(f"think is {text[:40]!r}; on, off, default or a number of tokens was expected")
    params = replace(session.params, thinking_token_budget=budget)
    session.llm.prepare("x", params)  # admission raises the error
    session.params, session.thinks = params, {"off": False, "default": None}.get(text, True)
    return f"think {text}"


SPECIAL: Final[Mapping[str, Callable[[Session, str], str]]] = {"format": _format, "think": _think}
"""Options of `/set` beside sampling parameters and verbose."""


def _parse_switch(name: str, text: str) -> bool:
    if text not in ("true", "false", "on", "off", ""):
        raise ConfigError(f"{name} is {text[:40]!r}, true or false was expected")
    return text in ("true", "on", "")


def _parameters(session: Session) -> str:
    default = SamplingParams()
    lines = []
    for name in FLAGS:
        value = getattr(session.params, name)
        unset = {"max_tokens": "until the answer ends", "seed": "random"}.get(name, "–") if value in (None, ()) else value
        lines.append(f"  {name:<20}{unset}{'' if value == getattr(default, name) or value is None else '  *'}")
    form, thinks = session.params.structured_outputs, session.thinks
    shown = "off" if form is None else "json" if form.json_object else "JSON Schema"
    budget = session.params.thinking_token_budget
    think = "default" if thinks is None else "off" if not thinks else "on" if budget is None else f"{budget} tokens"
    return "\n".join([*lines, f"  {'format':<20}{shown}", f"  {'think':<20}{think}", f"  {'verbose':<20}{str(session.verbose).lower()}"])


def _show(session: Session, argument: str) -> Reply:
    llm, default = session.llm, SamplingParams()
    used, most = session.prompt_tokens(), llm.limits.max_model_len
    changed = [name for name in FLAGS if getattr(session.params, name) != getattr(default, name)]
    return Reply(
        f"  model     {llm.config.model}\n"
        f"  mode      {session.mode}\n"
        f"  context   {used} tokens of {most} are used, {max(0, most - used)} are left; {session.generated} were generated in all\n"
        f"  turns     {len(session.turns)}\n"
        f"  system    {session.system or '–'}\n"
        f"  sampling  {', '.join(f'{name} {getattr(session.params, name)}' for name in changed) or '–'}"
    )


def _mode(session: Session, argument: str) -> Reply:
    if argument not in ("chat", "completion", ""):
        raise ConfigError(f"/mode takes chat or completion, not {argument[:40]!r}")
    if not argument:
        return Reply(f"mode {session.mode}")
    session.set_mode("chat" if argument == "chat" else "completion")
    return Reply(f"mode {argument}; the conversation is cleared")


def _multiline(session: Session, argument: str) -> Reply:
    session.multiline = not session.multiline
    on = "Enter begins a line, an empty line sends; /multiline again ends this"
    return Reply(on if session.multiline else "Enter sends")


def _save(session: Session, argument: str) -> Reply:
    path = _path("save", argument)
    content = json.dumps({"model": session.llm.config.model, "messages": session.messages()}, ensure_ascii=False, indent=1)
    try:
        path.write_text(f"{content}\n", encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path} cannot be written ({error.strerror}); check the path and its permissions") from None
    return Reply(f"{len(session.turns)} turns are in {path}; the page can import it too")


def _load(session: Session, argument: str) -> Reply:
    path = _path("load", argument)
    messages = read_object(path, MAX_SAVED_BYTES).get("messages")
    if not isinstance(messages, list) or not all(_is_message(each) for each in messages):
        raise ConfigError(f"{path} holds no conversation: messages must be a list of objects with role and content, both strings")
    session.resume(messages)
    return Reply(f"{len(session.turns)} turns are back")


def _bye(session: Session, argument: str) -> Reply:
    return Reply(is_exit=True)


def _is_message(each: object) -> bool:
    return isinstance(each, dict) and isinstance(each.get("role"), str) and isinstance(each.get("content"), str)


def _path(command: str, argument: str) -> Path:
    if not argument:
        raise ConfigError(f"/{command} takes a file, as in /{command} talk.json")
    return Path(argument).expanduser()


class Command(NamedTuple):
    """argument: how /help writes it. run: raises RidgelineError."""

    argument: str
    text: str
    run: Callable[[Session, str], Reply]


COMMANDS: Final[Mapping[str, Command]] = {
    "help": Command("", "this list", _help),
    "retry": Command("", "answer the last message again", _retry),
    "more": Command("", "go on with the last answer", _more),
    "edit": Command("[TEXT]", "edit the last message, or send TEXT in its place", _edit),
    "undo": Command("", "take back the last message and its answer", _undo),
    "clear": Command("", "forget the conversation", _clear),
    "drop": Command("N", "forget the N oldest turns", _drop),
    "system": Command("[TEXT]", "set the system prompt; without TEXT show it", _system),
    "set": Command("[NAME VALUE]", "set a parameter, format (json, FILE), think (on, off, N), verbose; without NAME list them", _set),
    "mode": Command("[chat|completion]", "talk with the model, or let it continue texts", _mode),
    "multiline": Command("", "switch whether Enter sends or begins a line", _multiline),
    "show": Command("", "model, context, system prompt, parameters", _show),
    "save": Command("FILE", "write the conversation to a file", _save),
    "load": Command("FILE", "go on with a conversation from a file", _load),
    "bye": Command("", "end (so does Ctrl+D)", _bye),
}
ALIASES: Final = {"?": "help", "exit": "bye", "quit": "bye"}
