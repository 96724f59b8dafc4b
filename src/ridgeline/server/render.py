"""From pieces to the bodies of `/v1/completions`: whole answers, events of a stream, log-probabilities, usage."""

from collections.abc import Sequence
from dataclasses import dataclass

from ridgeline.core.plan import TokenLogprobs
from ridgeline.server import wire
from ridgeline.server.generate import Ended
from ridgeline.text.stream import Release
from ridgeline.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Header:
    """What every body of one answer repeats."""

    id: str
    created: int
    model: str

    def body(self, choices: list[wire.Choice], usage: wire.Usage | None = None) -> wire.Completion:
        """A body of this answer."""
        return wire.Completion(self.id, "text_completion", self.created, self.model, "", choices, usage)


@dataclass(slots=True)
class Tally:
    """Usage of one HTTP request: each prompt once, however many choices it has; outputs of all choices."""

    choices_per_prompt: int
    prompt: int = 0
    completion: int = 0
    cached: int = 0

    def add(self, ended: Ended) -> None:
        """Counts one choice."""
        self.completion += ended.usage.completion_tokens
        if ended.index % self.choices_per_prompt == 0:
            self.prompt += ended.usage.prompt_tokens
            self.cached += ended.usage.cached_tokens

    @property
    def usage(self) -> wire.Usage:
        """The totals so far."""
        return wire.Usage(self.prompt, self.completion, self.prompt + self.completion, wire.PromptTokensDetails(self.cached))


def text_choice(index: int, release: Release, tokenizer: Tokenizer, with_logprobs: bool) -> wire.Choice:
    """New text of one choice, as an event of a stream has it."""
    return wire.Choice(index=index, text=release.text, logprobs=logprobs([release], tokenizer) if with_logprobs else None)


def end_choice(ended: Ended) -> wire.Choice:
    """The end of one choice, as the last event of a stream has it."""
    return wire.Choice(index=ended.index, text="", finish_reason=ended.reason.value, stop_reason=ended.stop_reason)


def whole_choice(ended: Ended, releases: Sequence[Release], tokenizer: Tokenizer, with_logprobs: bool) -> wire.Choice:
    """One choice of a whole answer."""
    text = "".join(release.text for release in releases)
    found = logprobs(releases, tokenizer) if with_logprobs else None
    return wire.Choice(
        index=ended.index, text=text, logprobs=found, finish_reason=ended.reason.value, stop_reason=ended.stop_reason
    )


def logprobs(releases: Sequence[Release], tokenizer: Tokenizer) -> wire.Logprobs:
    """Columns over tokens in OpenAI's completions format. Offsets count characters from the start of the choice's text."""
    ids = [token for release in releases for token in release.ids]
    found = [each for release in releases for each in release.logprobs]
    return wire.Logprobs(
        tokens=[token_text(tokenizer, token) for token in ids],
        token_logprobs=[each.logprob for each in found],
        top_logprobs=[_top(tokenizer, token, each) for token, each in zip(ids, found, strict=True)],
        text_offset=[offset for release in releases for offset in release.offsets],
    )


def _top(tokenizer: Tokenizer, token: int, found: TokenLogprobs) -> dict[str, float]:
    """The best ids, and the sampled one, which need not be among them."""
    return {token_text(tokenizer, other): value for other, value in (*found.top, (token, found.logprob))}


def token_text(tokenizer: Tokenizer, token: int) -> str:
    r"""One token as text; bytes that are not whole characters as OpenAI writes them: `bytes:\xe2\x96`."""
    piece = tokenizer.piece(token)
    try:
        return piece.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in piece)
