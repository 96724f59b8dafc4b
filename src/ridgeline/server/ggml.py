"""llama-server's own routes: `/completion`, `/infill`, `/props`, `/slots`, `/apply-template`, `/embedding`, over the same generation.

Owns their meaning and the bodies of their answers. No prompt of another client and no path is told; nothing is saved, restored or set.
"""

import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from math import ceil
from typing import Any, Final

import msgspec
from msgspec import structs
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from ridgeline import __version__
from ridgeline.core.events import Finish
from ridgeline.core.params import SamplingParams
from ridgeline.core.plan import TokenLogprobs
from ridgeline.engine.admit import LOGIT_BIAS_BOUND
from ridgeline.engine.answer import ChoiceDelta, ChoiceEnd, ChoiceStart
from ridgeline.server import body, fields, ggml_shapes
from ridgeline.server.answer import Idle, collect, deliver
from ridgeline.server.chat_prompts import render_chat
from ridgeline.server.completions import StartedCompletion, start_completion
from ridgeline.server.embeddings import texts_of
from ridgeline.server.encoding import run_encoding
from ridgeline.server.errors import ApiError
from ridgeline.server.ggml_shapes import Chunk, GgmlCompletion, GgmlCompletionRequest, InfillRequest, Timings, TokenProb, TopProb
from ridgeline.server.loading import Model
from ridgeline.server.notes import Notes
from ridgeline.server.promises import MAX_RETRY_AFTER_SECONDS
from ridgeline.server.service import Service
from ridgeline.server.shortcut import Shortcut
from ridgeline.server.transport import GGML_EVENTS, KEEP_ALIVE, EventStream, client_of, json_response, read_body, unless_disconnected
from ridgeline.server.vectors import Asked, beside_loop, embed, numbers_json
from ridgeline.text.token_text import token_text

NO_SEED: Final = 2**32 - 1
"""The seed that stands for none."""
NO_SLOT: Final = -1
MAX_EXTRA: Final = 256
NAMES: Final = {"repetition_penalty": "repeat_penalty", "logprobs": "n_probs", "suffix": "input_suffix"}


def routes(service: Service) -> list[BaseRoute]:
    """The routes of this family."""

    async def completion(request: Request) -> Response:
        payload, notes = fields.GGML_COMPLETION.read(await read_body(request))
        return await answer(request, payload, notes, payload.prompt, frozenset())

    async def infill(request: Request) -> Response:
        payload, notes = fields.INFILL.read(await read_body(request))
        return await answer(request, payload, notes, *await _between(payload, service.model))

    async def answer(request: Request, payload: GgmlCompletionRequest, notes: Notes, prompt: Any, ends: frozenset[int]) -> Response:
        notes.client = client_of(request)
        service.deployments.check_name(payload.model)
        with body.told_as(NAMES):
            begun = await start_completion(service, _plain(payload, prompt, notes), notes, clips=True, ends=ends)
        form = CompletionForm(service.model, payload, begun, notes)
        stream = None
        if payload.stream:
            begun.source.shortcut = Shortcut(form.tell)
            events = _events(begun, form, service.config.sse_keep_alive_interval)
            stream = EventStream(events, begun.source.abort, GGML_EVENTS)
        return await deliver(request, begun.source, notes, stream, lambda: _whole(begun, form))

    return [
        *(Route(path, completion, methods=["POST"]) for path in ("/completion", "/completions")),
        Route("/infill", infill, methods=["POST"]),
        *_other_routes(service),
    ]


def _other_routes(service: Service) -> list[BaseRoute]:
    """The routes that generate nothing."""

    async def props(request: Request) -> Response:
        model = service.model
        bos, eos = model.ends
        defaults = body.sampling_params(GgmlCompletionRequest(), model.defaults, max_tokens=None)
        return json_response(ggml_shapes.Props(
            ggml_shapes.DefaultSettings(model.limits.max_model_len, _settings(model, defaults)),
            model.engine.info.rows, model.name, model.name, "" if model.chat is None else model.chat.text,
            bos or "", eos or "", {"vision": False, "audio": False}, f"ridgeline-{__version__}",
        ))  # fmt: skip

    async def slots(request: Request) -> Response:
        model, busy = service.model, service.current_metrics().running
        if busy >= model.engine.info.rows and request.query_params.get("fail_on_no_slot"):
            seconds = min(MAX_RETRY_AFTER_SECONDS, max(1, ceil(service.waiting_room.seconds_per_place)))
            raise ApiError("engine_unavailable", "no slot is free", headers={"Retry-After": str(seconds)})
        speculative = service.deployment.engine_config.speculative != "off"
        rows = range(model.engine.info.rows)
        return json_response([ggml_shapes.Slot(row, model.limits.max_model_len, speculative, row < busy) for row in rows])

    async def apply_template(request: Request) -> Response:
        payload, notes = fields.CHAT.read(await read_body(request))
        service.deployments.check_name(payload.model)
        answer = json_response(ggml_shapes.Prompt(await render_chat(payload, service.model, notes)))
        answer.headers.update(notes.tell())
        return answer

    async def embedding(request: Request) -> Response:
        payload, notes = fields.GGML_EMBEDDING.read(await read_body(request))
        notes.client = client_of(request)
        service.deployments.check_name(payload.model)
        texts = texts_of(payload.input if payload.content is None else payload.content, "content")
        found = await unless_disconnected(request.scope, embed(service, texts, notes, Asked(param="content")))
        shown = await beside_loop(found.vectors, lambda: [numbers_json(each) for each in found.vectors])
        answer = json_response([ggml_shapes.GgmlEmbedding(at, [each]) for at, each in enumerate(shown)])
        answer.headers.update(notes.tell())
        return answer

    return [
        Route("/props", props, methods=["GET"]),
        Route("/slots", slots, methods=["GET"]),
        Route("/apply-template", apply_template, methods=["POST"]),
        *(Route(path, embedding, methods=["POST"]) for path in ("/embedding", "/embeddings")),
    ]


# ── requests ────────────────────────────────────────────────────────────────────────────────────────────────────────


def _plain(payload: GgmlCompletionRequest, prompt: Any, notes: Notes) -> GgmlCompletionRequest:
    """The same in the fields that all completions have: without a length as many as fit, and a penalty over prompt and output."""
    found: dict[str, Any] = {"prompt": prompt}
    if payload.n_predict is None and payload.max_tokens is msgspec.UNSET:
        found["max_tokens"] = None
    if payload.n_probs is not None and payload.n_probs != 0:
        found["logprobs"] = payload.n_probs
    if payload.seed is not None and (payload.seed < 0 or payload.seed == NO_SEED):
        found["seed"] = None
    temperature: float | None = getattr(payload, "temperature")  # noqa: B009  (a field of the sampler's table)
    if temperature is not None and temperature < 0:
        found["temperature"] = 0.0
    if isinstance(payload.logit_bias, list):
        found["logit_bias"] = _biases(payload.logit_bias)
    if payload.repeat_penalty is not None and payload.repeat_last_n != 0:
        found["repetition_penalty"] = payload.repeat_penalty
        if payload.repeat_last_n not in (None, -1):
            notes.ignore("repeat_last_n", "the penalty counts the whole prompt and output")
    return structs.replace(payload, **found)


def _biases(pairs: list[tuple[int | str, float | bool]]) -> dict[str, float]:
    """Pairs of an id and its bias, of which false is the least, as other dialects write them. Raises ApiError for a text, which may be
    several tokens."""
    for token, bias in pairs:
        if not isinstance(token, int) or bias is True:
            message = "logit_bias has a pair that is no id and bias; /tokenize gives the ids of a text, and false is the least bias"
            raise ApiError("invalid_value", message, param="logit_bias")
    return {str(token): LOGIT_BIAS_BOUND.low if bias is False else bias for token, bias in pairs}


async def _between(payload: InfillRequest, model: Model) -> tuple[list[int], frozenset[int]]:
    """Ids of the prompt of an infill, and those that end its answer. Raises ApiError where the model cannot be asked for one."""
    prompt, extra = payload.prompt or "", payload.input_extra or []
    if not isinstance(prompt, str):
        raise ApiError("invalid_type", "prompt of an infill is a string", param="prompt")
    if len(extra) > MAX_EXTRA:
        raise ApiError("invalid_value", f"input_extra has {len(extra)}; send at most {MAX_EXTRA}", param="input_extra")
    fim = model.fim()
    if fim is None:
        message = "this model has no tokens for a suffix, as models for code have; use one that fills in the middle"
        raise ApiError("unsupported_parameter", message, param="input_suffix")
    before = "".join(f"{each.filename}\n{each.text}\n" for each in extra)
    prefix, suffix = payload.input_prefix or "", payload.input_suffix or ""
    encode = model.tokenizer.encode

    def ids() -> list[int]:
        start = encode(before, add_bos=True) if before else []
        return [*start, *fim.prompt(prefix, suffix, add_bos=not before), *encode(prompt, add_bos=False)]

    return await run_encoding(model.tokenizer, sum(map(len, (before, prefix, suffix, prompt))), ids), fim.ends


def _settings(model: Model, params: SamplingParams) -> dict[str, Any]:
    """A request's parameters under llama.cpp's names."""
    most = -1 if params.max_tokens is None else params.max_tokens
    return {
        "n_predict": most, "max_tokens": most, "seed": NO_SEED if params.seed is None else params.seed,
        "temperature": params.temperature, "top_k": params.top_k, "top_p": params.top_p, "min_p": params.min_p,
        "presence_penalty": params.presence_penalty, "frequency_penalty": params.frequency_penalty,
        "repeat_penalty": params.repetition_penalty, "repeat_last_n": -1, "stop": list(params.stop), "ignore_eos": params.ignore_eos,
        "n_probs": params.logprobs or 0, "n_ctx": model.limits.max_model_len, "model": model.name,
    }  # fmt: skip


# ── answers ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(slots=True)
class CompletionForm:
    """The bodies of one answer."""

    model: Model
    payload: GgmlCompletionRequest
    begun: StartedCompletion
    notes: Notes
    _prompt_texts: dict[int, str] = field(default_factory=dict)
    _counts: dict[int, int] = field(default_factory=dict)
    _with_line: set[int] = field(default_factory=set)
    """Choices whose text has a line break so far."""

    def chunk(self, index: int, text: str, ids: Sequence[int], logprobs: Sequence[TokenLogprobs]) -> Chunk:
        """The event of new text."""
        self._counts[index] = self._counts.get(index, 0) + len(ids)
        if "\n" in text:
            self._with_line.add(index)
        evaluated = len(self.begun.prompts[index // self.begun.params.n])
        return Chunk(index, text, list(ids), False, NO_SLOT, self._counts[index], evaluated, self._probs(ids, logprobs))

    def tell(self, part: ChoiceDelta) -> Sequence[bytes]:
        """The events of a stream's new text, encoded."""
        new = part.delta
        return (msgspec.json.encode(self.chunk(part.index, new.text, new.ids, new.logprobs)),) if new.ids or new.text else ()

    async def end(
        self, end: ChoiceEnd, text: str, ids: Sequence[int], logprobs: Sequence[TokenLogprobs]
    ) -> GgmlCompletion | dict[str, Any]:  # fmt: skip
        """A whole answer, or the end of a stream, whose text has been told."""
        number = end.index // self.begun.params.n
        prompt = self.begun.prompts[number]
        word = end.stop_reason if isinstance(end.stop_reason, str) else ""
        kind = "word" if word else "limit" if end.reason is Finish.LENGTH else "eos"
        cached = end.usage.cached_tokens
        found = GgmlCompletion(
            end.index, text, list(ids) if self.payload.return_tokens else [], NO_SLOT, True,
            self.payload.model or self.model.name, end.usage.completion_tokens, len(prompt),
            _settings(self.model, self.begun.params), await self._prompt_text(number),
            "\n" in text or end.index in self._with_line, False, kind, word, cached, self._timings(end, len(prompt) - cached),
            self._probs(ids, logprobs),
        )  # fmt: skip
        return _only(found, self.payload.response_fields) if self.payload.response_fields else found

    async def _prompt_text(self, number: int) -> str:
        """The text of a prompt, decoded once."""
        if number not in self._prompt_texts:
            tokenizer, prompt = self.model.tokenizer, self.begun.prompts[number]
            self._prompt_texts[number] = await run_encoding(tokenizer, len(prompt), lambda: tokenizer.decode(prompt, False))
        return self._prompt_texts[number]

    def _timings(self, end: ChoiceEnd, prompt_tokens: int) -> Timings:
        now = time.monotonic()
        first = self.begun.source.usage.first_token_at or now
        prompt_ms, predicted_ms = 1e3 * (first - (self.notes.tokenised or first)), 1e3 * (now - first)
        predicted = end.usage.completion_tokens
        return Timings(
            end.usage.cached_tokens, prompt_tokens, prompt_ms, *_rates(prompt_tokens, prompt_ms),
            predicted, predicted_ms, *_rates(predicted, predicted_ms),
        )  # fmt: skip

    def _probs(self, ids: Sequence[int], found: Sequence[TokenLogprobs]) -> list[TokenProb] | None:
        if not self.payload.n_probs or not ids:
            return None
        tokenizer = self.model.tokenizer

        def fields_of(token: int, logprob: float) -> tuple[int, str, list[int], float]:
            return token, token_text(tokenizer, token), list(tokenizer.piece(token)), logprob

        return [
            TokenProb(*fields_of(token, each.logprob), [TopProb(*fields_of(*other)) for other in each.top])
            for token, each in zip(ids, found, strict=True)
        ]


def _rates(tokens: int, milliseconds: float) -> tuple[float, float]:
    """(milliseconds per token, tokens per second)."""
    return milliseconds / max(1, tokens), 1e3 * tokens / milliseconds if milliseconds else 0.0


def _only(found: GgmlCompletion, names: Sequence[str]) -> dict[str, Any]:
    """The fields of these names; one with a slash is that of an inner object."""
    whole, chosen = msgspec.to_builtins(found), dict[str, Any]()
    for name in names:
        value: Any = whole
        for part in name.split("/"):
            value = value.get(part) if isinstance(value, dict) else None
        if value is not None:
            chosen[name] = value
    return chosen


async def _whole(begun: StartedCompletion, form: CompletionForm) -> bytes:
    found = [await form.end(each.end, each.text, each.ids, each.logprobs) for each in await collect(begun.source, begun.params.n)]
    return msgspec.json.encode(found if len(found) > 1 else found[0])


async def _events(begun: StartedCompletion, form: CompletionForm, keep_alive_seconds: float) -> AsyncGenerator[bytes, None]:
    async with aclosing(begun.source.parts(keep_alive_seconds)) as parts:
        async for part in parts:
            match part:
                case ChoiceDelta():
                    for event in form.tell(part):
                        yield event
                case ChoiceEnd():
                    yield msgspec.json.encode(await form.end(part, "", (), ()))
                case Idle():
                    yield KEEP_ALIVE
                case ChoiceStart():
                    pass
