"""`/v1/completions`: text in, text out, whole or as a stream.

Owns the meaning of the fields that only completions have, and the form of their answers. Bounds are `engine.admit`'s.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from ridgeline.core.plan import TokenLogprobs
from ridgeline.engine.answer import Begun, Collected, Ended, Shown
from ridgeline.server import body, wire
from ridgeline.server.answer import Header, Spelling, respond
from ridgeline.server.errors import ApiError
from ridgeline.server.generate import start
from ridgeline.server.service import Model, Service
from ridgeline.server.transport import read_body
from ridgeline.text.stream import prompt_text
from ridgeline.text.tokenizer import Tokenizer

MAX_PROMPTS: Final = 64
LONG_TEXT: Final = 8_192
"""Characters beyond which tokenising would hold up other requests: it then happens in a thread."""


def routes(service: Service) -> list[BaseRoute]:
    """The routes of this family."""

    async def completions(request: Request) -> Response:
        sent = await read_body(request)
        asked = body.parse(wire.CompletionRequest, sent)
        body.COMPLETION.check(sent)
        model = service.model
        model.check_name(asked.model)
        body.check_generation(asked)
        params = body.sampling_params(asked, model.defaults, prompt_logprobs=_prompt_logprobs(asked))
        prompts = _truncated(asked, params.max_tokens or 0, model, await tokenise(asked, model.reading(asked.cache_salt)))
        source = start(service, asked, prompts, params)
        header = Header.of(model, f"cmpl-{source.id}")
        spelling = Spelling(model.tokenizer, bool(asked.return_tokens_as_token_ids))
        render = CompletionRender(
            header, spelling, asked.logprobs, asked.prompt_logprobs, bool(asked.echo), bool(asked.return_token_ids)
        )
        return await respond(request, source, render, params.n, body.streaming(asked, service.config))

    return [Route("/v1/completions", completions, methods=["POST"])]


def _prompt_logprobs(asked: wire.CompletionRequest) -> int | None:
    """An echo with log-probabilities has the prompt's too."""
    if asked.echo and asked.logprobs is not None:
        return max(asked.logprobs, asked.prompt_logprobs or 0)
    return asked.prompt_logprobs


def _truncated(asked: wire.CompletionRequest, max_tokens: int, model: Model, prompts: list[list[int]]) -> list[list[int]]:
    """The last `truncate_prompt_tokens` ids of each prompt, a BOS at its start among them; -1: what the context leaves beside outputs."""
    most = asked.truncate_prompt_tokens
    if most is None:
        return prompts
    if most != -1 and not 1 <= most <= model.limits.max_model_len:
        bounds = f"at least 1 and at most {model.limits.max_model_len}, or -1"
        raise ApiError("invalid_value", f"truncate_prompt_tokens is out of range; it must be {bounds}", param="truncate_prompt_tokens")
    most = max(1, model.limits.max_model_len - max(1, max_tokens)) if most == -1 else most
    return [_last(prompt, most, model.tokenizer.bos) for prompt in prompts]


def _last(prompt: list[int], most: int, bos: int | None) -> list[int]:
    if len(prompt) <= most:
        return prompt
    return [prompt[0], *prompt[len(prompt) - most + 1 :]] if prompt[0] == bos else prompt[-most:]


async def tokenise(asked: wire.CompletionRequest, tokenizer: Tokenizer) -> list[list[int]]:
    """The ids of each prompt: a string, strings, ids, or lists of ids. Raises ApiError for what is none of these."""
    prompt = asked.prompt
    if prompt is None:
        raise ApiError("missing_field", "prompt is missing; send a string, strings, token ids, or lists of token ids", param="prompt")
    if prompt == []:
        raise ApiError("empty_prompt", "prompt is empty; send at least one string or token id", param="prompt")
    single = isinstance(prompt, str) or all(isinstance(each, int) for each in prompt)
    prompts: list[Any] = [prompt] if single else list(prompt)
    if len(prompts) > MAX_PROMPTS:
        raise ApiError("invalid_value", f"{len(prompts)} prompts; at most {MAX_PROMPTS} are taken in one request", param="prompt")
    if len({type(each) for each in prompts}) != 1 or isinstance(prompts[0], int):
        raise ApiError("invalid_type", "prompt mixes strings and token ids; send one kind", param="prompt")
    add_bos = asked.add_special_tokens is not False

    def encode() -> list[list[int]]:
        return [tokenizer.encode(each, add_bos, special=True) if isinstance(each, str) else each for each in prompts]

    return await asyncio.to_thread(encode) if sum(map(len, prompts)) > LONG_TEXT else encode()


# ── bodies ──────────────────────────────────────────────────────────────────────────────────────────────────────────


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
        """True if anything of the prompt is asked for."""
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
