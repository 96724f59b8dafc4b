"""From pieces to the bodies of `/v1/chat/completions`: whole answers, chunks of a stream, log-probabilities."""

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from ridgeline.core.plan import TokenLogprobs
from ridgeline.server import wire
from ridgeline.server.answer import Collected, Header
from ridgeline.server.generate import Begun, Ended, Shown
from ridgeline.server.spelling import Spelling


@dataclass(frozen=True, slots=True)
class ChatRender:
    """The form of one answer.

    logprobs         whether to show them; how many was said to the engine
    prompt_logprobs  how many of the likeliest ids to show beside each token of the prompt; None: nothing
    token_ids                  ids of prompt and outputs are shown too
    """

    header: Header
    spelling: Spelling
    logprobs: bool
    prompt_logprobs: int | None
    token_ids: bool

    @property
    def begins(self) -> bool:
        """Every choice does."""
        return True

    @property
    def plain(self) -> bool:
        """Neither ids nor log-probabilities are asked for."""
        return not self.logprobs and not self.token_ids

    def begin(self, begun: Begun, usage: wire.Usage | None) -> wire.ChatCompletionChunk:
        """The chunk that says who speaks."""
        prompt = list(begun.prompt) if self.token_ids else None
        delta = wire.Delta(role="assistant", content="")
        return self._chunk([wire.ChatChunkChoice(index=begun.index, delta=delta, token_ids=self._ids(()))], usage, prompt)

    def show(self, shown: Shown, usage: wire.Usage | None) -> wire.ChatCompletionChunk:
        """A chunk with new text."""
        release = shown.release
        choice = wire.ChatChunkChoice(
            index=shown.index,
            delta=wire.Delta(content=release.text),
            logprobs=self._logprobs(release.ids, release.logprobs),
            token_ids=self._ids(release.ids),
        )
        return self._chunk([choice], usage)

    def end(self, ended: Ended, usage: wire.Usage | None) -> wire.ChatCompletionChunk:
        """The last chunk of a choice."""
        choice = wire.ChatChunkChoice(
            index=ended.index, delta=wire.Delta(), finish_reason=ended.reason.value, stop_reason=ended.stop_reason
        )
        return self._chunk([choice], usage)

    def total(self, usage: wire.Usage) -> wire.ChatCompletionChunk:
        """The chunk after all choices."""
        return self._chunk([], usage)

    def whole(self, found: Sequence[Collected], usage: wire.Usage) -> wire.ChatCompletion:
        """All choices at once."""
        begun, header = found[0].begun, self.header
        ranked = None
        if self.prompt_logprobs is not None:
            ranked = self.spelling.ranked(begun.prompt_logprobs, begun.prompt, self.prompt_logprobs)
        return wire.ChatCompletion(
            header.id, "chat.completion", header.created, header.model, header.fingerprint, [self._choice(each) for each in found], usage,
            prompt_logprobs=ranked, prompt_token_ids=list(begun.prompt) if self.token_ids else None,
        )  # fmt: skip

    def _choice(self, found: Collected) -> wire.ChatChoice:
        return wire.ChatChoice(
            index=found.ended.index,
            message=wire.AssistantMessage("assistant", found.text),
            logprobs=self._logprobs(found.ids, found.logprobs),
            finish_reason=found.ended.reason.value,
            stop_reason=found.ended.stop_reason,
            token_ids=self._ids(found.ids),
        )

    def _logprobs(self, ids: Sequence[int], found: Sequence[TokenLogprobs]) -> wire.ChatLogprobs | None:
        if not self.logprobs:
            return None
        return wire.ChatLogprobs([self._token(token, each) for token, each in zip(ids, found, strict=True)])

    def _token(self, token: int, found: TokenLogprobs) -> wire.ChatLogprob:
        top = [wire.TopLogprob(self.spelling.name(other), value, self._bytes(other)) for other, value in found.top]
        return wire.ChatLogprob(self.spelling.name(token), found.logprob, self._bytes(token), top)

    def _bytes(self, token: int) -> list[int]:
        return list(self.spelling.tokenizer.piece(token))

    def _ids(self, ids: Sequence[int]) -> list[int] | msgspec.UnsetType:
        return list(ids) if self.token_ids else msgspec.UNSET

    def _chunk(
        self, choices: list[wire.ChatChunkChoice], usage: wire.Usage | None, prompt: list[int] | None = None
    ) -> wire.ChatCompletionChunk:
        header = self.header
        return wire.ChatCompletionChunk(
            header.id, "chat.completion.chunk", header.created, header.model, header.fingerprint, choices, usage, prompt
        )
