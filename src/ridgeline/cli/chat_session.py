"""Chat session: the turns of a conversation, sampling parameters, use of the context, and the /commands.

Reads and writes no terminal.
"""

import json
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, NamedTuple

from ridgeline.cli.sampling import FLAGS, parse_value
from ridgeline.core.params import SamplingParams
from ridgeline.engine.llm import LLM
from ridgeline.errors import ConfigError, RequestError
from ridgeline.facts.files.json_file import read_object
from ridgeline.text.chat_content import Conversation

RESERVED_PART = 8
"""Turns are to be dropped until one part in so many of the context is free."""


@dataclass(frozen=True, slots=True)
class Turn:
    """A message and its answer."""

    message: str
    answer: str


@dataclass(slots=True)
class AnswerStats:
    """Statistics of the newest answer. Times in seconds since the request."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    tokens: int = 0
    first: float = 0.0
    last: float = 0.0
    finish_reason: str | None = None

    @property
    def tokens_per_second(self) -> float | None:
        """Decode rate after the first token; None for answers of one token."""
        return (self.tokens - 1) / (self.last - self.first) if self.tokens > 1 and self.last > self.first else None


class ChatSession:
    """A conversation. unanswered: a message without an answer; generated: tokens of all answers."""

    def __init__(self, llm: LLM, params: SamplingParams, system: str | None) -> None:
        self.llm = llm
        self.params = params
        self.system = system
        self.turns: list[Turn] = []
        self.unanswered: str | None = None
        self.stats = AnswerStats()
        self.generated = 0

    def answer(self, message: str) -> Iterator[str]:
        """Streams the answer to a message. A partial answer joins the conversation too. Raises RequestError."""
        self.unanswered = message
        began = time.monotonic()
        stream = self.llm.stream(self._conversation(self.turns, message), self.params)
        stats = self.stats = AnswerStats()
        answer = ""
        try:
            for output in stream:
                choice = output.outputs[0]
                stats.last = time.monotonic() - began
                stats.first = stats.first or stats.last
                stats.prompt_tokens, stats.cached_tokens = len(output.prompt_token_ids), output.num_cached_tokens or 0
                stats.tokens += len(choice.token_ids)
                stats.finish_reason = choice.finish_reason
                answer += choice.text
                yield choice.text
        finally:
            self.generated += stats.tokens
            if answer:
                self.turns.append(Turn(message, answer))
                self.unanswered = None

    def retry(self) -> str | None:
        """The message to answer again: the unanswered one, else the last, whose answer is dropped. None without messages."""
        if self.unanswered is None and self.turns:
            self.unanswered = self.turns.pop().message
        return self.unanswered

    def undo(self) -> str | None:
        """Removes the last message with its answer and returns the message; None without one."""
        message, self.unanswered = self.unanswered, None
        return message if message is not None or not self.turns else self.turns.pop().message

    def drop(self, count: int) -> int:
        """Removes the `count` oldest turns; returns their number."""
        dropped = len(self.turns[:count])
        del self.turns[:count]
        return dropped

    def clear(self) -> None:
        """Removes all turns, not the system prompt."""
        self.turns.clear()
        self.unanswered = None

    def prompt_tokens(self, skipped: int = 0) -> int:
        """Tokens of the prompt of the next answer, without the `skipped` oldest turns."""
        rest = self.turns[skipped:]
        if self.unanswered is None and not rest:
            return 0
        last = self.unanswered if self.unanswered is not None else rest.pop().message
        template = self.llm.chat_template
        assert template is not None
        return len(template.encode(self._conversation(rest, last), self.llm.tokenizer))

    def count_turns_to_drop(self) -> int | None:
        """Number of oldest turns to drop so that an answer has room; None where dropping all is not enough."""
        most = self.llm.limits.max_model_len * (RESERVED_PART - 1) // RESERVED_PART
        return next((count for count in range(1, len(self.turns) + 1) if self.prompt_tokens(count) <= most), None)

    def messages(self) -> list[dict[str, str]]:
        """All messages as objects with role and content."""
        head = [{"role": "system", "content": self.system}] if self.system else []
        return head + _messages(self.turns)

    def resume(self, messages: list[dict[str, str]]) -> None:
        """Restores the result of `messages`. Raises RequestError where the roles do not alternate."""
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
    """Result of a command. text: shown to the user; message: for the model to answer; is_exit: ends the chat."""

    text: str = ""
    message: str | None = None
    is_exit: bool = False


def run_command(line: str, session: ChatSession) -> Reply:
    """Runs the command `/name argument`. Raises RidgelineError."""
    name, _, argument = line[1:].partition(" ")
    if name not in COMMANDS:
        raise ConfigError(f"there is no command /{name[:40]}; /help lists them (a message that begins with / is written with //)")
    return COMMANDS[name].run(session, argument.strip())


def _help(session: ChatSession, argument: str) -> Reply:
    lines = [f"{f'/{name} {each.argument}'.rstrip():<20}{each.text}" for name, each in COMMANDS.items()]
    return Reply("\n".join([*lines, 'A line that ends in \\ goes on in the next; """ begins and ends a message of several lines.']))


def _system(session: ChatSession, argument: str) -> Reply:
    if argument:
        session.system = argument
    return Reply(f"system prompt: {session.system}" if session.system else "there is no system prompt")


def _clear(session: ChatSession, argument: str) -> Reply:
    session.clear()
    return Reply("the conversation is cleared")


def _retry(session: ChatSession, argument: str) -> Reply:
    message = session.retry()
    if message is None:
        raise ConfigError("there are 0 messages; nothing can be answered again")
    return Reply(message=message)


def _undo(session: ChatSession, argument: str) -> Reply:
    message = session.undo()
    if message is None:
        raise ConfigError("there are 0 messages; nothing can be taken back")
    return Reply(f"taken back: {message[:60]}")


def _drop(session: ChatSession, argument: str) -> Reply:
    if not argument.isascii() or not argument.isdigit():
        raise ConfigError(f"/drop takes a number of turns, not {argument[:40]!r}")
    return Reply(f"{session.drop(int(argument[:9]))} turns are forgotten, {len(session.turns)} are left")


def _set(session: ChatSession, argument: str) -> Reply:
    name, _, text = argument.partition(" ")
    if not text:
        raise ConfigError("/set takes a parameter and a value, as in /set temperature 0.7; /params lists them")
    params = replace(session.params, **{name: parse_value(name, text.strip())})
    session.llm.prepare("x", params)  # admission raises the error
    session.params = params
    return Reply(f"{name} {getattr(params, name)}")


def _params(session: ChatSession, argument: str) -> Reply:
    default = SamplingParams()
    lines = []
    for name in FLAGS:
        value = getattr(session.params, name)
        unset = {"max_tokens": "what the context leaves", "seed": "random"}.get(name, "–") if value in (None, ()) else value
        lines.append(f"{name:<20}{unset}{'' if value == getattr(default, name) or value is None else '  *'}")
    return Reply("\n".join(lines))


def _tokens(session: ChatSession, argument: str) -> Reply:
    used, most = session.prompt_tokens(), session.llm.limits.max_model_len
    return Reply(f"{used} tokens of {most} are used, {max(0, most - used)} are left; {session.generated} were generated in all")


def _save(session: ChatSession, argument: str) -> Reply:
    path = _path("save", argument)
    try:
        path.write_text(json.dumps({"messages": session.messages()}, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path} cannot be written ({error.strerror}); check the path and its permissions") from None
    return Reply(f"{len(session.turns)} turns are in {path}")


def _load(session: ChatSession, argument: str) -> Reply:
    path = _path("load", argument)
    messages = read_object(path, MAX_SAVED_BYTES).get("messages")
    if not isinstance(messages, list) or not all(_is_message(each) for each in messages):
        raise ConfigError(f"{path} holds no conversation: messages must be a list of objects with role and content, both strings")
    session.resume(messages)
    return Reply(f"{len(session.turns)} turns are back")


def _exit(session: ChatSession, argument: str) -> Reply:
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
    run: Callable[[ChatSession, str], Reply]


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
