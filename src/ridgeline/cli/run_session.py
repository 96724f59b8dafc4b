"""The state of `ridgeline run`: the turns of a conversation, sampling parameters, use of the context. Reads and writes no terminal.

In the mode "completion" a message is a text that the model continues; turns do not see each other.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

from ridgeline.core.params import SamplingParams
from ridgeline.engine.llm import LLM
from ridgeline.errors import ConfigError, RequestError
from ridgeline.text.chat_content import Conversation
from ridgeline.text.tools.families import SWITCHES

Mode = Literal["chat", "completion"]
Message = Mapping[str, str]

RESERVED_PART: Final = 8
"""Turns are to be dropped until one part in so many of the context is free."""
COMPLETION_TOKENS: Final = 256
"""Most tokens of a continuation where nothing is said: a base model does not end by itself."""


@dataclass(frozen=True, slots=True)
class Turn:
    """A message and its answer, or a text and its continuation."""

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


class Session:
    """A conversation with a model.

    thinks      the model is to reason, where its template can tell it so; None: the template decides
    unanswered  a message without an answer
    generated   tokens of all answers
    """

    def __init__(self, llm: LLM, params: SamplingParams, system: str | None, mode: Mode = "chat") -> None:
        self.llm = llm
        self.params = params
        self.system = system
        self.mode: Mode = mode
        self.verbose = False
        self.multiline = False
        self.thinks: bool | None = None
        self.turns: list[Turn] = []
        self.unanswered: str | None = None
        self.stats = AnswerStats()
        self.generated = 0

    @property
    def switches(self) -> list[str]:
        """Variables by which the template is told whether to think."""
        template = self.llm.chat_template
        return [] if template is None else [name for name in SWITCHES if name in template.variables]

    def set_mode(self, mode: Mode) -> None:
        """Begins anew in another mode. Raises ConfigError for chat without a chat template."""
        if mode == "chat" and self.llm.chat_template is None:
            raise ConfigError(f"the model {self.llm.config.model!r} has no chat template; start with --chat-template FILE to chat with it")
        self.mode = mode
        self.clear()

    def answer(self, message: str) -> Iterator[str]:
        """Streams the answer to a message. A partial answer joins the conversation too. Raises RequestError."""
        self.unanswered = message
        answer = ""
        try:
            for text in self._stream(self._prompt(self.turns, message)):
                answer += text
                yield text
        finally:
            if answer:
                self.turns.append(Turn(message, answer))
                self.unanswered = None

    def go_on(self) -> Iterator[str]:
        """Streams more of the last answer, which there is. Raises RequestError."""
        last = self.turns[-1]
        answer = last.answer
        try:
            for text in self._stream(self._prompt(self.turns[:-1], last.message, last.answer)):
                answer += text
                yield text
        finally:
            self.turns[-1] = Turn(last.message, answer)

    def _stream(self, prompt: str | Conversation) -> Iterator[str]:
        began = time.monotonic()
        limited = self.mode == "completion" and self.params.max_tokens is None
        params = replace(self.params, max_tokens=COMPLETION_TOKENS) if limited else self.params
        stream = self.llm.stream(prompt, params, lora=self.llm.adapters.only)
        stats = self.stats = AnswerStats()
        try:
            for output in stream:
                choice = output.outputs[0]
                stats.last = time.monotonic() - began
                stats.first = stats.first or stats.last
                stats.prompt_tokens, stats.cached_tokens = len(output.prompt_token_ids), output.num_cached_tokens or 0
                stats.tokens += len(choice.token_ids)
                stats.finish_reason = choice.finish_reason
                yield choice.text
        finally:
            self.generated += stats.tokens

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
        prompt = self._prompt(rest, last)
        if isinstance(prompt, str):
            return len(self.llm.tokenizer.encode(prompt, add_bos=True, special=True))
        template = self.llm.chat_template
        assert template is not None
        return len(template.encode(prompt, self.llm.tokenizer))

    def count_turns_to_drop(self) -> int | None:
        """Number of oldest turns to drop so that an answer has room; None where dropping all is not enough."""
        if self.mode == "completion":
            return None
        most = self.llm.limits.max_model_len * (RESERVED_PART - 1) // RESERVED_PART
        return next((count for count in range(1, len(self.turns) + 1) if self.prompt_tokens(count) <= most), None)

    def messages(self) -> list[Message]:
        """All messages as objects with role and content."""
        last = [{"role": "user", "content": self.unanswered}] if self.unanswered is not None else []
        return [*self._head(), *_messages(self.turns), *last]

    def resume(self, messages: Sequence[Message]) -> None:
        """Restores the result of `messages`. Raises RequestError where the roles do not alternate."""
        system = messages[0]["content"] if messages and messages[0]["role"] == "system" else None
        rest = list(messages[1:] if system is not None else messages)
        if [message["role"] for message in rest] != [("user", "assistant")[at % 2] for at in range(len(rest))]:
            raise RequestError("a conversation alternates between user and assistant, after a system message if there is one")
        self.clear()
        self.system = system
        self.unanswered = rest.pop()["content"] if len(rest) % 2 else None
        self.turns = [Turn(*(message["content"] for message in rest[at : at + 2])) for at in range(0, len(rest), 2)]

    def _head(self) -> list[Message]:
        return [{"role": "system", "content": self.system}] if self.system else []

    def _prompt(self, turns: Sequence[Turn], message: str, begun: str = "") -> str | Conversation:
        """The prompt of an answer to `message` behind `turns`, of which `begun` is there already."""
        if self.mode == "completion":
            return message + begun
        asked: list[Message] = [*self._head(), *_messages(turns), {"role": "user", "content": message}]
        told = dict.fromkeys(self.switches, self.thinks) if self.thinks is not None else {}
        if not begun:
            return Conversation(asked, arguments=told)
        continued = [*asked, {"role": "assistant", "content": begun}]
        return Conversation(continued, add_generation_prompt=False, continue_final_message=True, arguments=told)


def _messages(turns: Sequence[Turn]) -> list[Message]:
    pairs = [({"role": "user", "content": turn.message}, {"role": "assistant", "content": turn.answer}) for turn in turns]
    return [message for pair in pairs for message in pair]
