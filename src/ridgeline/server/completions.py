"""`/v1/completions`: text in, text out, whole or as a stream.

Owns the meaning of the fields that only completions have, and the form of their answers. Bounds are `engine.admit`'s.
"""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from msgspec import structs
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from ridgeline.core.params import SamplingParams
from ridgeline.engine.admit import check_number
from ridgeline.engine.answer import ChoiceDelta, ChoiceEnd, ChoiceStart, CollectedChoice
from ridgeline.server import body, fields, replies, wire
from ridgeline.server.answer import AnswerSource, Header, respond
from ridgeline.server.encoding import run_encoding
from ridgeline.server.errors import ApiError
from ridgeline.server.generate import start_generation
from ridgeline.server.loading import Model
from ridgeline.server.logprobs import TokenNames, completion_logprobs, joined, prompt_logprobs
from ridgeline.server.notes import Notes
from ridgeline.server.reasoning import NO_LIMIT
from ridgeline.server.service import Service
from ridgeline.server.structured import structured_outputs
from ridgeline.server.transport import client_of, read_body
from ridgeline.text.fim import Fim
from ridgeline.text.stream import TextDelta
from ridgeline.text.token_text import prompt_text

MAX_PROMPTS: Final = 64
DEFAULT_MAX_TOKENS: Final = 16


def routes(service: Service) -> list[BaseRoute]:
    """The routes of this family."""

    async def completions(request: Request) -> Response:
        payload, notes = fields.COMPLETION.read(await read_body(request))
        notes.client = client_of(request)
        service.deployments.check_name(payload.model, takes_adapters=True)
        begun = await start_completion(service, payload, notes)
        model = service.model
        header = Header.make(model, f"cmpl-{begun.source.id}")
        names = TokenNames(model.tokenizer, bool(payload.return_tokens_as_token_ids))
        token_ids = bool(payload.return_token_ids)
        form = CompletionFormat(header, names, begun.params.logprobs, payload.prompt_logprobs, bool(payload.echo), token_ids)
        return await respond(
            request, begun.source, form, begun.params.n, body.stream_settings(payload, service.config), notes, vote=begun.params.vote
        )

    return [Route("/v1/completions", completions, methods=["POST"])]


@dataclass(frozen=True, slots=True)
class StartedCompletion:
    """Completions that generate. `prompts` are those that were admitted."""

    source: AnswerSource
    params: SamplingParams
    prompts: Sequence[Sequence[int]]


async def start_completion(
    service: Service, payload: wire.CompletionRequest, notes: Notes, *, clips: bool = False, ends: frozenset[int] = frozenset()
) -> StartedCompletion:  # fmt: skip
    """Tokenises, admits and submits the prompts, of every dialect alike. `clips`: a length that does not fit the context is made to;
    `ends` end an answer as EOS does.

    Raises ApiError, RequestError, OverloadedError or EngineDeadError; then nothing has been submitted.
    """
    model = service.model
    body.check_generation(payload)
    logprobs, limit = body.num_logprobs(payload), body.output_limit(payload, notes)
    of_prompt = _num_prompt_logprobs(payload, logprobs)
    asked = structured_outputs(payload)
    params = body.sampling_params(
        payload, model.defaults, logprobs=logprobs, prompt_logprobs=of_prompt, max_tokens=_max_tokens(payload, limit),
        structured_outputs=asked and asked.params, thinking_token_budget=_budget(payload, model, notes),
    )  # fmt: skip
    grammar = await service.compile_grammar(asked, notes)
    notes.encoding = time.monotonic()
    prompts = _truncate(payload, params.max_tokens or 0, model, await tokenise(payload, model))
    notes.tokenised = time.monotonic()
    if clips and params.max_tokens is not None:
        room = model.limits.max_model_len - max(map(len, prompts))
        params = replace(params, max_tokens=min(params.max_tokens, max(1, room)))
    ends = (await _fim(payload, model)).ends if payload.suffix else ends
    with body.client_field_names(payload, limit):
        source = await start_generation(service, payload, prompts, params, notes, stop_ids=ends, grammar=grammar)
    return StartedCompletion(source, params, prompts)


def _max_tokens(payload: wire.CompletionRequest, limit: body.OutputLimit | None) -> int | None:
    """The number of tokens that the client states; where it sends nothing at all OpenAI's default. None: as many as fit."""
    if limit is not None or payload.max_tokens is None:
        return limit.tokens if limit else None
    return DEFAULT_MAX_TOKENS


def _budget(payload: wire.CompletionRequest, model: Model, notes: Notes) -> int | None:
    """The most tokens of reasoning, where a text begins with it or its prompt has begun it; None: no limit."""
    tokens = payload.thinking_token_budget
    if tokens is None or tokens == NO_LIMIT:
        return None
    check_number("thinking_token_budget", tokens)
    if model.chat is None or model.chat.reasoning_ids is None:
        notes.ignore("thinking_token_budget", "this model's chat template knows no reasoning that could be limited")
        return None
    return tokens


def _num_prompt_logprobs(payload: wire.CompletionRequest, logprobs: int | None) -> int | None:
    """Number of likeliest ids per prompt token: an echo with log-probabilities has the prompt's too."""
    if payload.echo and logprobs is not None:
        return max(logprobs, payload.prompt_logprobs or 0)
    return payload.prompt_logprobs


def _truncate(payload: wire.CompletionRequest, max_tokens: int, model: Model, prompts: list[list[int]]) -> list[list[int]]:
    """The last `truncate_prompt_tokens` ids of each prompt, a BOS at its start among them; -1: what the context leaves beside outputs."""
    limit = payload.truncate_prompt_tokens
    if limit is None:
        return prompts
    if limit != -1 and not 1 <= limit <= model.limits.max_model_len:
        bounds = f"at least 1 and at most {model.limits.max_model_len}, or -1"
        raise ApiError("invalid_value", f"truncate_prompt_tokens is out of range; it must be {bounds}", param="truncate_prompt_tokens")
    limit = max(1, model.limits.max_model_len - max(1, max_tokens)) if limit == -1 else limit
    return [_last_ids(prompt, limit, model.tokenizer.bos) for prompt in prompts]


def _last_ids(prompt: list[int], count: int, bos: int | None) -> list[int]:
    if len(prompt) <= count:
        return prompt
    return [prompt[0], *prompt[len(prompt) - count + 1 :]] if prompt[0] == bos else prompt[-count:]


async def tokenise(payload: wire.CompletionRequest, model: Model) -> list[list[int]]:
    """The ids of each prompt: a string, ids, or a list of these, each in front of the suffix where there is one. Raises ApiError for
    what is none of these, RequestError and OverloadedError for texts that take too long."""
    prompt = payload.prompt
    if prompt is None:
        raise ApiError("missing_field", "prompt is missing; send a string, strings, token ids, or lists of token ids", param="prompt")
    if prompt == []:
        raise ApiError("empty_prompt", "prompt is empty; send at least one string or token id", param="prompt")
    single = isinstance(prompt, str) or all(isinstance(each, int) for each in prompt)
    prompts: list[Any] = [prompt] if single else list(prompt)
    if len(prompts) > MAX_PROMPTS:
        raise ApiError("invalid_value", f"{len(prompts)} prompts; at most {MAX_PROMPTS} are taken in one request", param="prompt")
    if any(isinstance(each, int) for each in prompts):
        raise ApiError("invalid_type", "a prompt mixes strings and token ids; send one kind, or several prompts", param="prompt")
    add_bos, suffix = payload.add_special_tokens is not False, payload.suffix
    if suffix:
        fim, characters = await _fim(payload, model), sum(map(len, prompts)) + len(prompts) * len(suffix)
        return await run_encoding(model.tokenizer, characters, lambda: [fim.prompt(each, suffix, add_bos=add_bos) for each in prompts])

    encoder = model.prompt_encoder(payload.cache_salt)

    def encode() -> list[list[int]]:
        return [encoder.encode(each, add_bos, special=True) if isinstance(each, str) else each for each in prompts]

    characters = sum(len(each) for each in prompts if isinstance(each, str))
    return await run_encoding(model.tokenizer, characters, encode) if any(isinstance(each, str) for each in prompts) else prompts


async def _fim(payload: wire.CompletionRequest, model: Model) -> Fim:
    """The form in which the model is asked for the text before a suffix. Raises ApiError where it cannot be, and for fields that exclude a
    suffix."""
    for name in ("echo", "truncate_prompt_tokens"):
        if getattr(payload, name):
            raise ApiError("invalid_value", f"{name} and suffix exclude each other; leave one of them out", param=name)
    fim = await asyncio.to_thread(model.fim)
    if fim is None:
        message = "this model has no tokens for a suffix, as models for code have; leave it out, or use one that fills in the middle"
        raise ApiError("unsupported_parameter", message, param="suffix")
    return fim


# ── bodies ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(slots=True)
class CompletionFormat:
    """The bodies of one answer.

    logprobs, prompt_logprobs  number of likeliest ids given beside each token; None: no log-probabilities
    echo                       every choice begins with its prompt
    token_ids                  ids of prompt and outputs are given too
    """

    header: Header
    names: TokenNames
    logprobs: int | None
    prompt_logprobs: int | None
    echo: bool
    token_ids: bool
    _echoed: dict[int, int] = field(default_factory=dict)
    """Characters of the prompt before each choice's own text."""

    @property
    def has_start_event(self) -> bool:
        """True if anything of the prompt is asked for."""
        return self.echo or self.token_ids

    @property
    def is_text_only(self) -> bool:
        """True if neither ids nor log-probabilities are asked for."""
        return self.logprobs is None and not self.token_ids

    def start_event(self, start: ChoiceStart, usage: replies.Usage | None) -> replies.CompletionChunk:
        """The event with the prompt."""
        text, logprobs = self._echo(start) if self.echo else ("", None)
        self._echoed[start.index] = len(text)
        choice = replies.Choice(
            index=start.index, text=text, logprobs=logprobs, prompt_token_ids=self._ids(start.prompt), token_ids=self._ids(())
        )
        return self._event([choice], usage)

    def delta_event(self, delta: ChoiceDelta, usage: replies.Usage | None) -> replies.CompletionChunk:
        """An event with new text."""
        return self._event([self._delta(delta)], usage)

    def end_event(self, end: ChoiceEnd, last: ChoiceDelta | None, usage: replies.Usage | None) -> replies.CompletionChunk:
        """The last event of a choice, with its last text."""
        choice = self._delta(ChoiceDelta(end.index, TextDelta(0)) if last is None else last)
        return self._event([structs.replace(choice, finish_reason=end.reason.value, stop_reason=end.stop_reason)], usage)

    def usage_event(self, usage: replies.Usage) -> replies.CompletionChunk:
        """The event after all choices."""
        return self._event([], usage)

    def full_body(self, choices: Sequence[CollectedChoice], usage: replies.Usage) -> replies.Completion:
        """All choices at once."""
        header = self.header
        of_prompts = [self._choice(each) for each in choices]
        return replies.Completion(header.id, "text_completion", header.created, header.model, header.fingerprint, of_prompts, usage)

    def _delta(self, delta: ChoiceDelta) -> replies.Choice:
        new, logprobs = delta.delta, None
        if self.logprobs is not None and new.ids:
            echoed = self._echoed.get(delta.index, 0)
            logprobs = completion_logprobs(self.names, new.ids, new.logprobs, new.offsets, echoed, self.logprobs)
        return replies.Choice(index=delta.index, text=new.text, logprobs=logprobs, token_ids=self._ids(new.ids))

    def _choice(self, choice: CollectedChoice) -> replies.Choice:
        text, logprobs = self._echo(choice.start) if self.echo else ("", None)
        if self.logprobs is not None:
            own = completion_logprobs(self.names, choice.ids, choice.logprobs, choice.offsets, len(text), self.logprobs)
            logprobs = own if logprobs is None else joined(logprobs, own)
        of_prompt = None
        if self.prompt_logprobs is not None:
            of_prompt = prompt_logprobs(self.names, choice.start.prompt, choice.start.prompt_logprobs, self.prompt_logprobs)
        return replies.Choice(
            index=choice.end.index,
            text=text + choice.text,
            logprobs=logprobs,
            finish_reason=choice.end.reason.value,
            stop_reason=choice.end.stop_reason,
            prompt_logprobs=of_prompt,
            prompt_token_ids=self._ids(choice.start.prompt),
            token_ids=self._ids(choice.ids),
            vote=replies.elected(choice.election),
        )

    def _echo(self, start: ChoiceStart) -> tuple[str, replies.Logprobs | None]:
        """The prompt's text and log-probabilities."""
        prompt = prompt_text(self.names.tokenizer, start.prompt)
        text = "".join(prompt.texts)
        if self.logprobs is None:
            return text, None
        return text, completion_logprobs(self.names, start.prompt, start.prompt_logprobs, prompt.offsets, 0, self.logprobs)

    def _ids(self, ids: Sequence[int]) -> list[int] | None:
        return list(ids) if self.token_ids else None

    def _event(self, choices: list[replies.Choice], usage: replies.Usage | None) -> replies.CompletionChunk:
        header = self.header
        return replies.CompletionChunk(header.id, "text_completion", header.created, header.model, header.fingerprint, choices, usage)
