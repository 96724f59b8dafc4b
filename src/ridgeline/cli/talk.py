"""A conversation of a person with a model: what was said, how answers are sampled, what the context holds.

Owns the turns and the accounts. Reads and writes no terminal.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass

from ridgeline.core.params import SamplingParams
from ridgeline.engine.llm import LLM
from ridgeline.errors import RequestError
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
    """Of the answer that came last. Times in seconds since it was asked for."""

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
        """How many of the oldest turns have to go so that an answer has room; None where even all of them are not enough."""
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
