"""A conversation of a person with a model: what was said, how answers are sampled, what the context holds, and the /commands.

Owns the turns, the accounts, and the words of the commands. Reads and writes no terminal.
"""

import json
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, NamedTuple

from ridgeline.cli.sampling import FLAGS, parsed
from ridgeline.core.params import SamplingParams
from ridgeline.engine.llm import LLM
from ridgeline.errors import ConfigError, RequestError
from ridgeline.facts.files.json_file import read_object
from ridgeline.text.chat_content import Conversation

ROOM_SHARE = 8
"""A conversation that takes more than all but this part of the context is worth shortening."""


@dataclass(frozen=True, slots=True)
class Turn:
    """A message and its answer."""

    message: str
    answer: str


@dataclass(slots=True)
class Account:
    """Figures of the answer that came last. Times in seconds since it was asked for."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    tokens: int = 0
    first: float = 0.0
    last: float = 0.0
    finish_reason: str | None = None

    @property
    def tokens_per_second(self) -> float | None:
        """After the first token; None where there is no pace to speak of."""
        return (self.tokens - 1) / (self.last - self.first) if self.tokens > 1 and self.last > self.first else None


class Talk:
    """Turns so far and the next one. `unanswered` is a message that got no answer; `generated` counts the tokens of all answers."""

    def __init__(self, llm: LLM, params: SamplingParams, system: str | None) -> None:
        self.llm = llm
        self.params = params
        self.system = system
        self.turns: list[Turn] = []
        self.unanswered: str | None = None
        self.account = Account()
        self.generated = 0

    def say(self, message: str) -> Iterator[str]:
        """The answer, as it comes. It joins the conversation however it ends, if there is any of it. Raises RequestError."""
        self.unanswered = message
        began = time.monotonic()
        stream = self.llm.stream(self._conversation(self.turns, message), self.params)
        account = self.account = Account()
        answer = ""
        try:
            for output in stream:
                choice = output.outputs[0]
                account.last = time.monotonic() - began
                account.first = account.first or account.last
                account.prompt_tokens, account.cached_tokens = len(output.prompt_token_ids), output.num_cached_tokens or 0
                account.tokens += len(choice.token_ids)
                account.finish_reason = choice.finish_reason
                answer += choice.text
                yield choice.text
        finally:
            self.generated += account.tokens
            if answer:
                self.turns.append(Turn(message, answer))
                self.unanswered = None

    def again(self) -> str | None:
        """The message that is to be answered once more: the one without an answer, else the last, whose answer is forgotten."""
        if self.unanswered is None and self.turns:
            self.unanswered = self.turns.pop().message
        return self.unanswered

    def undo(self) -> str | None:
        """Takes back the last message, with its answer. None: there is none."""
        message, self.unanswered = self.unanswered, None
        return message if message is not None or not self.turns else self.turns.pop().message

    def drop(self, count: int) -> int:
        """Forgets the oldest turns; returns how many."""
        dropped = len(self.turns[:count])
        del self.turns[:count]
        return dropped

    def clear(self) -> None:
        """Forgets every turn, not the system prompt."""
        self.turns.clear()
        self.unanswered = None

    def prompt_tokens(self, skipped: int = 0) -> int:
        """Tokens of the conversation without its `skipped` oldest turns, as the next answer would see it."""
        rest = self.turns[skipped:]
        if self.unanswered is None and not rest:
            return 0
        last = self.unanswered if self.unanswered is not None else rest.pop().message
        template = self.llm.chat_template
        assert template is not None
        return len(template.encode(self._conversation(rest, last), self.llm.tokenizer))

    def to_drop(self) -> int | None:
        """The number of oldest turns that have to go so that an answer has room; None where even all of them are not enough."""
        most = self.llm.limits.max_model_len * (ROOM_SHARE - 1) // ROOM_SHARE
        return next((count for count in range(1, len(self.turns) + 1) if self.prompt_tokens(count) <= most), None)

    def messages(self) -> list[dict[str, str]]:
        """All that was said, as objects with role and content."""
        head = [{"role": "system", "content": self.system}] if self.system else []
        return head + _messages(self.turns)

    def resume(self, messages: list[dict[str, str]]) -> None:
        """Goes on from what `messages` returned. Raises RequestError for anything else."""
        system = messages[0]["content"] if messages and messages[0]["role"] == "system" else None
        rest = messages[1:] if system is not None else messages
        roles = [message["role"] for message in rest]
        if len(rest) % 2 or roles != ["user", "assistant"] * (len(rest) // 2):
            raise RequestError("a conversation alternates between user and assistant, after a system message if there is one")
        self.clear()
        self.system = system
        self.turns = [Turn(*(message["content"] for message in rest[at : at + 2])) for at in range(0, len(rest), 2)]

    def _conversation(self, turns: list[Turn], message: str) -> Conversation:
        head = [{"role": "system", "content": self.system}] if self.system else []
        return Conversation([*head, *_messages(turns), {"role": "user", "content": message}])


def _messages(turns: list[Turn]) -> list[dict[str, str]]:
    pairs = [({"role": "user", "content": turn.message}, {"role": "assistant", "content": turn.answer}) for turn in turns]
    return [message for pair in pairs for message in pair]


MAX_SAVED_BYTES: Final = 64 << 20


class Reply(NamedTuple):
    """An answer to a command: what is said to the person, the message that the model is to answer, and whether the chat is over."""

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
    talk.llm.prepare("x", params)  # admission raises the error
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
