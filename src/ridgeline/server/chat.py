"""`/v1/chat/completions`: a conversation in, the assistant's next message out, whole or as a stream.

Owns the meaning of the fields that only chat has, and the form of its answers. Its prompt is `chat_prompts`'s.
"""

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import msgspec
from msgspec import structs
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from ridgeline.core.events import Finish
from ridgeline.core.params import SamplingParams
from ridgeline.engine.answer import ChoiceDelta, ChoiceEnd, ChoiceStart, CollectedChoice
from ridgeline.server import body, fields, reasoning, replies, tools, wire
from ridgeline.server.answer import AnswerSource, Header, respond
from ridgeline.server.callers import current_caller
from ridgeline.server.chat_prompts import tokenise_chat
from ridgeline.server.generate import start_generation
from ridgeline.server.loading import Model
from ridgeline.server.logprobs import TokenNames, chat_logprobs, prompt_logprobs
from ridgeline.server.notes import Notes
from ridgeline.server.service import Service
from ridgeline.server.spoken import Speaker
from ridgeline.server.structured import structured_outputs
from ridgeline.server.transport import client_of, json_response, read_body
from ridgeline.server.vllm_shapes import RenderedChat
from ridgeline.text.stream import TextDelta
from ridgeline.text.tools.calling import Form, form_of
from ridgeline.text.tools.hearing import Reading


def routes(service: Service) -> list[BaseRoute]:
    """The routes of this family."""

    async def chat(request: Request) -> Response:
        payload, notes = fields.CHAT.read(await read_body(request))
        notes.client = client_of(request)
        service.deployments.check_name(payload.model, takes_adapters=True)
        body.check_generation(payload)
        begun = await start_chat(service, payload, notes)
        model = service.model
        header = Header.make(model, f"chatcmpl-{begun.source.id}")
        names = TokenNames(model.tokenizer, bool(payload.return_tokens_as_token_ids))
        logprobs = body.num_logprobs(payload) is not None
        bodies = ChatFormat(header, names, logprobs, payload.prompt_logprobs, bool(payload.return_token_ids), begun.reading)
        streaming, params = body.stream_settings(payload, service.config), begun.params
        return await respond(request, begun.source, bodies, params.n, streaming, notes, vote=params.vote)

    async def render(request: Request) -> Response:
        payload, notes = fields.CHAT.read(await read_body(request))
        service.deployments.check_name(payload.model)
        ids = await tokenise_chat(payload, service.model, notes)
        answer = json_response(RenderedChat(f"chatcmpl-{secrets.token_hex(16)}", service.model.name, ids))
        answer.headers.update(notes.tell())
        return answer

    return [
        *(Route(path, chat, methods=["POST"]) for path in ("/v1/chat/completions", "/chat/completions")),
        Route("/v1/chat/completions/render", render, methods=["POST"]),
    ]


@dataclass(frozen=True, slots=True)
class StartedChat:
    """A chat that generates.

    reading  how reasoning and calls are read from the text; None: it is content as it is
    is_cut   the context has less room than the client asked for
    """

    source: AnswerSource
    reading: Reading | None
    params: SamplingParams
    is_cut: bool


async def start_chat(service: Service, payload: wire.ChatCompletionRequest, notes: Notes, *, clips: bool = False) -> StartedChat:
    """Renders, tokenises, admits and submits a chat, of every dialect alike. `clips`: a length that does not fit the context is made to.

    Raises ApiError, RequestError, OverloadedError or EngineDeadError; then nothing has been submitted.
    """
    model = service.model
    logprobs, limit = body.num_logprobs(payload), body.output_limit(payload, notes)
    wish = reasoning.wish(payload)
    prompt = await tokenise_chat(payload, model, notes, wish)
    asked_tokens = limit.tokens if limit else _default_max_tokens(payload, model, len(prompt))
    room = max(1, model.limits.max_model_len - len(prompt))
    is_cut = clips and asked_tokens is not None and asked_tokens > room
    form = _form(payload, model, prompt, is_told=wish.is_told)
    asked, how, relay = form.asked, form.reading, current_caller().relay
    if how is not None and relay is not None:
        how = replace(how, key=relay.key)
    special = {"skip_special_tokens": False} if how is not None and how.kept else {}
    params = body.sampling_params(
        payload, model.defaults, logprobs=logprobs, max_tokens=room if is_cut else asked_tokens, structured_outputs=asked and asked.params,
        thinking_token_budget=_budget(service, payload, wish, how, notes), **special,
    )  # fmt: skip
    grammar = await service.compile_grammar(asked, notes)
    with body.client_field_names(payload, limit):
        source = await start_generation(service, payload, [prompt], params, notes, stop_ids=model.turn_end_ids, grammar=grammar)
    return StartedChat(source, how, params, is_cut)


def _budget(service: Service, payload: wire.ChatCompletionRequest, wish: reasoning.Wish, how: Reading | None, notes: Notes) -> int | None:
    """The most tokens of the answer's reasoning; None: no limit."""
    template = service.model.chat
    if template is None or payload.use_beam_search:
        return None
    can_reason = how is not None and how.marks is not None
    return reasoning.budget(wish, template, service.config.reasoning_budget, notes, can_reason=can_reason)


def _form(payload: wire.ChatCompletionRequest, model: Model, prompt: Sequence[int], *, is_told: bool) -> Form:
    """The form that the answer must have, and how it is read."""
    assert model.chat is not None, "tokenise_chat has refused the request"
    return form_of(
        tools.offered(payload), structured_outputs(payload), model.chat, model.tokenizer, prompt,
        can_follow=not (payload.ignore_eos or payload.use_beam_search or payload.allowed_token_ids is not None),
        skip_special=payload.skip_special_tokens is not False, is_told=is_told,
    )  # fmt: skip


def _default_max_tokens(payload: wire.ChatCompletionRequest, model: Model, prompt_tokens: int) -> int | None:
    """The model's default, at most what the context allows. None: as many as fit."""
    default = model.defaults.get("max_tokens")
    if default is None:
        return None
    context = model.limits.max_model_len
    return max(1, min(int(default), context - prompt_tokens, context // max(1, payload.n or 1, payload.best_of or 1)))


# ── bodies ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class ChatFormat:
    """The bodies of one answer.

    logprobs         log-probabilities are given
    prompt_logprobs  number of likeliest ids given beside each token of the prompt; None: no log-probabilities
    token_ids        ids of prompt and outputs are given too
    reading          how reasoning and calls are read from the text; None: it is content as it is
    """

    header: Header
    names: TokenNames
    logprobs: bool
    prompt_logprobs: int | None
    token_ids: bool
    reading: Reading | None = None
    _speakers: dict[int, Speaker] = field(default_factory=dict)

    @property
    def has_start_event(self) -> bool:
        """True: the first chunk of a choice gives the role."""
        return True

    @property
    def is_text_only(self) -> bool:
        """True if neither ids nor log-probabilities are asked for, and text is content as it is."""
        return not self.logprobs and not self.token_ids and self.reading is None

    def start_event(self, start: ChoiceStart, usage: replies.Usage | None) -> replies.ChatCompletionChunk:
        """The chunk with the role."""
        prompt = list(start.prompt) if self.token_ids else None
        delta = replies.Delta(role="assistant", content="")
        return self._chunk([replies.ChatChunkChoice(index=start.index, delta=delta, token_ids=self._ids(()))], usage, prompt)

    def delta_event(self, delta: ChoiceDelta, usage: replies.Usage | None) -> replies.ChatCompletionChunk | None:
        """A chunk with new text; None where nothing of it can be told yet."""
        choice = self._delta(delta)
        if self.reading is not None and choice.delta == replies.Delta() and self.is_silent:
            return None
        return self._chunk([choice], usage)

    @property
    def is_silent(self) -> bool:
        """True if a chunk without text says nothing."""
        return not self.logprobs and not self.token_ids

    def end_event(self, end: ChoiceEnd, last: ChoiceDelta | None, usage: replies.Usage | None) -> replies.ChatCompletionChunk:
        """The last chunk of a choice, with its last text."""
        choice = self._delta(ChoiceDelta(end.index, TextDelta(0)) if last is None else last, is_last=True)
        delta = replies.Delta() if choice.delta.content == "" else choice.delta
        reason = _finish_reason(end, self._speakers.get(end.index))
        return self._chunk([structs.replace(choice, delta=delta, finish_reason=reason, stop_reason=end.stop_reason)], usage)

    def usage_event(self, usage: replies.Usage) -> replies.ChatCompletionChunk:
        """The chunk after all choices."""
        return self._chunk([], self._with_reasoning(usage))

    def full_body(self, choices: Sequence[CollectedChoice], usage: replies.Usage) -> replies.ChatCompletion:
        """All choices at once."""
        start, header = choices[0].start, self.header
        of_prompt = None
        if self.prompt_logprobs is not None:
            of_prompt = prompt_logprobs(self.names, start.prompt, start.prompt_logprobs, self.prompt_logprobs)
        found = [self._choice(each) for each in choices]
        return replies.ChatCompletion(
            header.id, "chat.completion", header.created, header.model, header.fingerprint, found, self._with_reasoning(usage),
            prompt_logprobs=of_prompt, prompt_token_ids=list(start.prompt) if self.token_ids else None,
        )  # fmt: skip

    def _delta(self, delta: ChoiceDelta, is_last: bool = False) -> replies.ChatChunkChoice:
        new, speaker = delta.delta, self._speaker(delta.index)
        return replies.ChatChunkChoice(
            index=delta.index,
            delta=replies.Delta(content=new.text) if speaker is None else speaker.take(new, is_last) or replies.Delta(),
            logprobs=chat_logprobs(self.names, new.ids, new.logprobs) if self.logprobs and new.ids else None,
            token_ids=self._ids(new.ids),
        )

    def _speaker(self, index: int) -> Speaker | None:
        """The reader of a choice; None where text is content as it is."""
        if self.reading is None:
            return None
        return self._speakers.setdefault(index, Speaker(self.reading, index))

    def _choice(self, choice: CollectedChoice) -> replies.ChatChoice:
        speaker = self._speaker(choice.end.index)
        return replies.ChatChoice(
            index=choice.end.index,
            message=replies.AssistantMessage("assistant", choice.text) if speaker is None else speaker.whole(choice.deltas),
            logprobs=chat_logprobs(self.names, choice.ids, choice.logprobs) if self.logprobs else None,
            finish_reason=_finish_reason(choice.end, speaker),
            stop_reason=choice.end.stop_reason,
            token_ids=self._ids(choice.ids),
            vote=replies.elected(choice.election),
        )

    def _with_reasoning(self, usage: replies.Usage) -> replies.Usage:
        """The usage, with the tokens of reasoning where the model can reason."""
        if self.reading is None or self.reading.reasoning is None:
            return usage
        tokens = sum(each.reasoning_tokens for each in self._speakers.values())
        return structs.replace(usage, completion_tokens_details=replies.CompletionTokensDetails(tokens))

    def _ids(self, ids: Sequence[int]) -> list[int] | None:
        return list(ids) if self.token_ids else None

    def _chunk(
        self, choices: list[replies.ChatChunkChoice], usage: replies.Usage | None,
        prompt: list[int] | msgspec.UnsetType | None = msgspec.UNSET,
    ) -> replies.ChatCompletionChunk:  # fmt: skip
        header = self.header
        return replies.ChatCompletionChunk(
            header.id, "chat.completion.chunk", header.created, header.model, header.fingerprint, choices, usage, prompt
        )


def _finish_reason(end: ChoiceEnd, speaker: Speaker | None) -> str:
    """OpenAI's: an answer that ended by itself with whole calls ended for them."""
    return "tool_calls" if speaker is not None and speaker.has_called and end.reason is Finish.STOP else end.reason.value
