"""From pieces to the bodies of `/v1/completions`: whole answers, events of a stream, the echo of a prompt, log-probabilities."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec

from ridgeline.core.plan import TokenLogprobs
from ridgeline.server import wire
from ridgeline.server.answer import Collected, Header
from ridgeline.server.generate import Begun, Ended, Shown
from ridgeline.server.spelling import Spelling, prompt_text


@dataclass(slots=True)
class CompletionRender:
    """The form of one answer.

    logprobs, prompt_logprobs  how many of the likeliest ids to show beside the token; None: nothing
    echo                       every choice begins with its prompt
    token_ids                  ids of prompt and outputs are shown too
    """

    header: Header
    spelling: Spelling
    logprobs: int | None
    prompt_logprobs: int | None
    echo: bool
    token_ids: bool
    _echoed: dict[int, int] = field(default_factory=dict)
    """Characters of the prompt before each choice's own text."""

    @property
    def begins(self) -> bool:
        """Whether anything of the prompt is asked for."""
        return self.echo or self.token_ids

    @property
    def plain(self) -> bool:
        """Neither ids nor log-probabilities are asked for."""
        return self.logprobs is None and not self.token_ids

    def begin(self, begun: Begun, usage: wire.Usage | None) -> wire.Completion:
        """The event with the prompt."""
        text, logprobs = self._prompt(begun) if self.echo else ("", None)
        return self._event(
            wire.Choice(
                index=begun.index, text=text, logprobs=logprobs, prompt_token_ids=self._ids(begun.prompt), token_ids=self._ids(())
            ),
            usage,
        )

    def show(self, shown: Shown, usage: wire.Usage | None) -> wire.Completion:
        """An event with new text."""
        release = shown.release
        logprobs = None
        if self.logprobs is not None:
            logprobs = self._columns(release.ids, release.logprobs, release.offsets, self._echoed.get(shown.index, 0))
        return self._event(wire.Choice(index=shown.index, text=release.text, logprobs=logprobs, token_ids=self._ids(release.ids)), usage)

    def end(self, ended: Ended, usage: wire.Usage | None) -> wire.Completion:
        """The last event of a choice."""
        return self._event(
            wire.Choice(index=ended.index, text="", finish_reason=ended.reason.value, stop_reason=ended.stop_reason), usage
        )

    def total(self, usage: wire.Usage) -> wire.Completion:
        """The event after all choices."""
        return self._body([], usage)

    def whole(self, found: Sequence[Collected], usage: wire.Usage) -> wire.Completion:
        """All choices at once."""
        return self._body([self._choice(each) for each in found], usage)

    def _choice(self, found: Collected) -> wire.Choice:
        text, logprobs = self._prompt(found.begun) if self.echo else ("", None)
        if self.logprobs is not None:
            own = self._columns(found.ids, found.logprobs, found.offsets, len(text))
            logprobs = own if logprobs is None else _joined(logprobs, own)
        prompt_logprobs: wire.PromptLogprobs | msgspec.UnsetType = msgspec.UNSET
        if self.prompt_logprobs is not None:
            prompt_logprobs = self.spelling.ranked(found.begun.prompt_logprobs, found.begun.prompt, self.prompt_logprobs)
        return wire.Choice(
            index=found.ended.index,
            text=text + found.text,
            logprobs=logprobs,
            finish_reason=found.ended.reason.value,
            stop_reason=found.ended.stop_reason,
            prompt_logprobs=prompt_logprobs,
            prompt_token_ids=self._ids(found.begun.prompt),
            token_ids=self._ids(found.ids),
        )

    def _prompt(self, begun: Begun) -> tuple[str, wire.Logprobs | None]:
        shown = prompt_text(self.spelling.tokenizer, begun.prompt)
        text = "".join(shown.texts)
        self._echoed[begun.index] = len(text)
        if self.logprobs is None:
            return text, None
        return text, self._columns(begun.prompt, begun.prompt_logprobs, shown.offsets, 0)

    def _columns(
        self, ids: Sequence[int], found: Sequence[TokenLogprobs | None], offsets: Sequence[int], start: int
    ) -> wire.Logprobs:
        """OpenAI's completions format. Offsets count characters from the start of the choice's text."""
        return wire.Logprobs(
            tokens=[self.spelling.name(token) for token in ids],
            token_logprobs=[None if each is None else each.logprob for each in found],
            top_logprobs=[None if each is None else self._top(token, each) for token, each in zip(ids, found, strict=True)],
            text_offset=[start + offset for offset in offsets],
        )

    def _top(self, token: int, found: TokenLogprobs) -> dict[str, float]:
        """The best ids, and the token itself, which need not be among them."""
        best = found.top[: self.logprobs]
        return {self.spelling.name(other): value for other, value in (*best, (token, found.logprob))}

    def _ids(self, ids: Sequence[int]) -> list[int] | msgspec.UnsetType:
        return list(ids) if self.token_ids else msgspec.UNSET

    def _event(self, choice: wire.Choice, usage: wire.Usage | None) -> wire.Completion:
        return self._body([choice], usage)

    def _body(self, choices: list[wire.Choice], usage: wire.Usage | None) -> wire.Completion:
        header = self.header
        return wire.Completion(header.id, "text_completion", header.created, header.model, header.fingerprint, choices, usage)


def _joined(first: wire.Logprobs, second: wire.Logprobs) -> wire.Logprobs:
    return wire.Logprobs(
        first.tokens + second.tokens,
        first.token_logprobs + second.token_logprobs,
        first.top_logprobs + second.top_logprobs,
        first.text_offset + second.text_offset,
    )
