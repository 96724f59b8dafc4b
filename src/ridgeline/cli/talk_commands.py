"""The /commands of `ridgeline chat`: a table of names, each with what it does and says. Owns their words; reads no terminal."""

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final, NamedTuple

from ridgeline.cli.sampling import FLAGS, parsed
from ridgeline.cli.talk import Talk
from ridgeline.core.params import SamplingParams
from ridgeline.errors import ConfigError
from ridgeline.facts.files.json_file import read_object

MAX_SAVED_BYTES: Final = 64 << 20


class Reply(NamedTuple):
    """What is said to the person, the message that the model is to answer, and whether the chat is over."""

    said: str = ""
    message: str | None = None
    over: bool = False


def run_command(line: str, talk: Talk) -> Reply:
    """Does what `/name argument` asks for. Raises RidgelineError with the cause."""
    name, _, argument = line[1:].partition(" ")
    if name not in COMMANDS:
        raise ConfigError(f"there is no command /{name[:40]}; /help lists them (a message that begins with / is written with //)")
    return COMMANDS[name].run(talk, argument.strip())


def _help(talk: Talk, argument: str) -> Reply:
    lines = [f"{f'/{name} {each.argument}'.rstrip():<20}{each.text}" for name, each in COMMANDS.items()]
    return Reply("\n".join([*lines, 'A line that ends in \\ goes on in the next; """ begins and ends a message of several lines.']))


def _system(talk: Talk, argument: str) -> Reply:
    if argument:
        talk.system = argument
    return Reply(f"system prompt: {talk.system}" if talk.system else "there is no system prompt")


def _clear(talk: Talk, argument: str) -> Reply:
    talk.clear()
    return Reply("the conversation begins anew")


def _retry(talk: Talk, argument: str) -> Reply:
    message = talk.again()
    if message is None:
        raise ConfigError("there are 0 messages; nothing can be answered again")
    return Reply(message=message)


def _undo(talk: Talk, argument: str) -> Reply:
    message = talk.undo()
    if message is None:
        raise ConfigError("there are 0 messages; nothing can be taken back")
    return Reply(f"taken back: {message[:60]}")


def _drop(talk: Talk, argument: str) -> Reply:
    if not argument.isascii() or not argument.isdigit():
        raise ConfigError(f"/drop takes a number of turns, not {argument[:40]!r}")
    return Reply(f"{talk.drop(int(argument[:9]))} turns are forgotten, {len(talk.turns)} are left")


def _set(talk: Talk, argument: str) -> Reply:
    name, _, text = argument.partition(" ")
    if not text:
        raise ConfigError("/set takes a parameter and a value, as in /set temperature 0.7; /params lists them")
    params = replace(talk.params, **{name: parsed(name, text.strip())})
    talk.llm.prepare("x", params)  # the door says what is wrong with it
    talk.params = params
    return Reply(f"{name} {getattr(params, name)}")


def _params(talk: Talk, argument: str) -> Reply:
    default = SamplingParams()
    lines = []
    for name in FLAGS:
        value = getattr(talk.params, name)
        unset = {"max_tokens": "what the context leaves", "seed": "random"}.get(name, "–") if value in (None, ()) else value
        lines.append(f"{name:<20}{unset}{'' if value == getattr(default, name) or value is None else '  *'}")
    return Reply("\n".join(lines))


def _tokens(talk: Talk, argument: str) -> Reply:
    used, most = talk.prompt_tokens(), talk.llm.limits.max_model_len
    return Reply(f"{used} tokens of {most} are used, {max(0, most - used)} are left; {talk.generated} were generated in all")


def _save(talk: Talk, argument: str) -> Reply:
    path = _path("save", argument)
    try:
        path.write_text(json.dumps({"messages": talk.messages()}, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path} cannot be written ({error.strerror}); check the path and its permissions") from None
    return Reply(f"{len(talk.turns)} turns are in {path}")


def _load(talk: Talk, argument: str) -> Reply:
    path = _path("load", argument)
    messages = read_object(path, MAX_SAVED_BYTES).get("messages")
    if not isinstance(messages, list) or not all(_is_message(each) for each in messages):
        raise ConfigError(f"{path} holds no conversation: messages must be a list of objects with role and content, both strings")
    talk.resume(messages)
    return Reply(f"{len(talk.turns)} turns are back")


def _exit(talk: Talk, argument: str) -> Reply:
    return Reply(over=True)


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
    run: Callable[[Talk, str], Reply]


COMMANDS: Final[Mapping[str, Command]] = {
    "help": Command("", "this list", _help),
    "system": Command("TEXT", "set the system prompt; without TEXT show it", _system),
    "retry": Command("", "answer the last message again", _retry),
    "undo": Command("", "take back the last message and its answer", _undo),
    "clear": Command("", "forget the conversation", _clear),
    "drop": Command("N", "forget the N oldest turns", _drop),
    "set": Command("NAME VALUE", "set a sampling parameter", _set),
    "params": Command("", "show the sampling parameters", _params),
    "tokens": Command("", "tokens used so far, and left", _tokens),
    "save": Command("FILE", "write the conversation to a file", _save),
    "load": Command("FILE", "go on with a conversation from a file", _load),
    "exit": Command("", "end (so does Ctrl-D)", _exit),
}

