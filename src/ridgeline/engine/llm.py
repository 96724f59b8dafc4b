"""`LLM`: the engine in this process, for offline use. Names are vLLM's where the meaning coincides.

Runs the same `Engine` behind the same admission as the server; needs neither sockets nor frames. One thread at a time.
"""

import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Any

from ridgeline.config.arguments import read_arguments
from ridgeline.config.env import model_stores
from ridgeline.config.groups import FAKE_PREFIX
from ridgeline.core.params import Grammar, SamplingParams, structured_outputs, with_known_arguments
from ridgeline.core.thinking import Thinking
from ridgeline.engine.adapters import AdapterLibrary, LoRARequest
from ridgeline.engine.admit import ModelLimits, admit, admit_text, cut_text, make_seed_source
from ridgeline.engine.beams import BeamSearchOutput, BeamSearchParams, beam_search
from ridgeline.engine.canary import PARAMS as CANARY
from ridgeline.engine.canary import canary_request, judge
from ridgeline.engine.compose import Progress
from ridgeline.engine.local import LocalEngine
from ridgeline.engine.outputs import LLMRequest, RequestOutput
from ridgeline.engine.pooled import (
    EmbeddingOutput,
    PoolingOutput,
    PoolingParams,
    PoolingRequestOutput,
    ScoringOutput,
    TextRequest,
    pooled_as,
)
from ridgeline.engine.prompts import (
    Lora,
    Messages,
    Progressing,
    Prompt,
    Prompts,
    as_list,
    is_conversation,
    one_adapter_per_prompt,
    one_per_prompt,
    plain_prompt,
    progress_bar,
    read_conversations,
)
from ridgeline.errors import ConfigError, Finding, OverloadedError, RequestError
from ridgeline.facts.headers.read import RANDOM_PREFIX
from ridgeline.facts.hub.digests import resolve_checked
from ridgeline.text.chat import ChatTemplate, no_template
from ridgeline.text.chat_content import Conversation
from ridgeline.text.files import read_files
from ridgeline.text.statements import ModelKind, model_kind, read_statements
from ridgeline.text.structured import Asked, StructuredOutputCompiler
from ridgeline.text.tokenizer import bad_word_ids, text_ids
from ridgeline.text.tokenizer_check import check_vocabulary
from ridgeline.text.tools.calling import Form, Offer, form_of, read_offer, read_tools
from ridgeline.text.tools.marks import begins_reasoning


class LLM:
    """A loaded model.

    chat_template      path of a template that replaces the model's
    generation_config  "auto": parameters that a caller leaves out wholly are those that the model's authors recommend; "none": Ridgeline's
    settings           fields of `config.groups.EngineConfig` (max_model_len, max_num_seqs, seed …), sizes as "8k" too, and vLLM's names
                       where they mean the same or ask for nothing (`config.foreign`)
    """

    def __init__(
        self,
        model: str | Path,
        *,
        chat_template: str | Path | None = None,
        generation_config: str = "auto",
        on_progress: Progress = lambda stage, fraction: None,
        **settings: Any,
    ) -> None:
        """Raises ConfigError, ModelNotFoundError or ModelFormatError where the settings or the model are at fault."""
        if generation_config not in ("auto", "none"):
            raise ConfigError(f"generation_config is {generation_config!r}; auto and none are possible")
        self.config = read_arguments(model, settings)
        model, path = self.config.model, None
        if not model.startswith((FAKE_PREFIX, RANDOM_PREFIX)):
            path = resolve_checked(model, model_stores(), self.config.expect_sha256, on_progress)
        self._files = read_files(model, path, chat_template=chat_template, generation_config=generation_config)
        self.tokenizer = self._files.tokenizer
        self._grammars = StructuredOutputCompiler()
        if chat_template is not None:
            _ = self.chat_template  # errors in it are raised before weights are read
        try:
            self._engine = LocalEngine(self.config, on_progress)
        except BaseException:
            self._close_template()
            raise
        self.decisions = self._engine.decisions
        info = self._engine.info
        vocab = self._files.vocab(info.vocab)
        self.limits = ModelLimits(vocab, info.max_model_len, self._files.eos_ids(vocab), info.kv)
        self._draw_seed = make_seed_source(self.config.seed)
        self.adapters = AdapterLibrary(self._files.path, self.config.max_lora_rank if self.config.adapter_slots else 0, model_stores())
        try:
            self.adapters.add_all(self.config.lora)
        except BaseException:
            self.close()
            raise

    @cached_property
    def chat_template(self) -> ChatTemplate | None:
        """The model's, or the one that replaces it; None where there is none. Starts the process that renders, when first asked for."""
        return self._files.load_template()

    @cached_property
    def kind(self) -> ModelKind:
        """The kind of the model: whether it was trained to chat or to continue texts, and why that is concluded."""
        return model_kind(read_statements(self.config.model, self._files.path, self.tokenizer), self.chat_template)

    def check(self) -> tuple[Finding, ...]:
        """Problems of the model that its header, weights, tokenizer and template show, and one short step: what a server checks before its
        first request. Raises ModelFormatError where the model's numbers are not finite."""
        _, findings = self._files.check(self.chat_template)
        if self._files.path is None:
            return findings
        findings += (*self._engine.info.findings, *check_vocabulary(self.tokenizer, self._engine.info.vocab))
        request = canary_request(self.tokenizer, self.limits) if self._engine.info.generates else None
        for answered in self.run([LLMRequest(request, None, CANARY, self.tokenizer)] if request is not None else []):
            choice = answered.choices[0]
            findings += judge(choice.start.prompt_logprobs, choice.end.reason, self.limits.vocab)
        return findings

    def get_default_sampling_params(self, max_tokens: int | None = 16) -> SamplingParams:
        """Parameters that the model's authors recommend, else Ridgeline's defaults; `max_tokens` where they recommend none."""
        return SamplingParams(**{"max_tokens": max_tokens, **self._files.generation.sampling})  # type: ignore[arg-type]

    @with_known_arguments
    def generate(
        self,
        prompts: Prompts,
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        priority: Sequence[int] | None = None,
        lora: Lora = None,
        lora_request: Lora = None,
        use_tqdm: Progressing = False,
    ) -> list[RequestOutput]:
        """Answers in the order of the prompts: a string, strings, ids, or lists of ids; parameters for all, or one per prompt.

        lora      name of an adapter, or vLLM's `LoRARequest`: for all prompts, or one (or None) for each. `lora_request`: the same
        use_tqdm  shows a progress bar; a function like tqdm makes its own
        Raises RequestError before anything runs if any prompt cannot be accepted, EngineDeadError after `close` or a step that failed.
        """
        texts = as_list(prompts)
        params = one_per_prompt(sampling_params or self.get_default_sampling_params(), len(texts))
        ranks = priority or [0] * len(texts)
        columns = texts, params, ranks, one_adapter_per_prompt(lora_request if lora is None else lora, len(texts))
        requests = [self.prepare(text, each, priority=rank, lora=own) for text, each, rank, own in zip(*columns, strict=True)]
        return _complete(self, requests, use_tqdm)

    @with_known_arguments
    def chat(
        self,
        messages: Messages | Sequence[Messages],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        add_generation_prompt: bool | None = None,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        tool_choice: str | Mapping[str, Any] | None = None,
        parallel_tool_calls: bool = True,
        chat_template_kwargs: Mapping[str, object] | None = None,
        lora: Lora = None,
        lora_request: Lora = None,
        use_tqdm: Progressing = False,
    ) -> list[RequestOutput]:
        """The assistant's next message of a conversation, or of several. Without parameters it may be as long as the context allows.

        add_generation_prompt   None: unless the final message is continued
        continue_final_message  the model goes on with the last message instead of answering it
        tools                   functions as in OpenAI's API; calls of them, and reasoning, are read from the answers
        tool_choice             "auto", "none", "required", or a function, as a server takes it; None: "auto" where this model's form of
                                calls is known, else "none"
        chat_template_kwargs    further variables that the template reads (`enable_thinking` …)
        lora, lora_request      as `generate`
        Raises as `generate`; RequestError also where there is no template, or where it rejects the conversation.
        """
        several = read_conversations(messages)
        params = one_per_prompt(sampling_params or self.get_default_sampling_params(None), len(several))
        header = not continue_final_message if add_generation_prompt is None else add_generation_prompt
        conversations = [Conversation(each, tools, None, header, continue_final_message, chat_template_kwargs or {}) for each in several]
        is_unknown = tool_choice is None and self.chat_template is not None and self.chat_template.family is None
        offer = read_offer(read_tools(tools or ()), "none" if is_unknown else tool_choice, parallel_tool_calls)
        columns = zip(conversations, params, one_adapter_per_prompt(lora_request if lora is None else lora, len(several)), strict=True)
        return _complete(self, [self.prepare(prompt, own, offer=offer, lora=name) for prompt, own, name in columns], use_tqdm)

    @with_known_arguments
    def stream(
        self,
        prompt: Prompt | Messages | Conversation,
        sampling_params: SamplingParams | None = None,
        *,
        lora: str | LoRARequest | None = None,
    ) -> Iterator[RequestOutput]:
        """One answer as it comes: each output has the new part. Dropping the iterator, or closing it, aborts the request.

        Raises as `generate`, before anything runs.
        """
        target = Conversation(prompt) if is_conversation(prompt) else prompt  # type: ignore[arg-type]
        default = self.get_default_sampling_params(None if isinstance(target, Conversation) else 16)
        request = self.prepare(target, sampling_params or default, lora=lora)  # type: ignore[arg-type]
        if request.has_extra_choices:
            raise RequestError("best_of cannot be streamed: which answers are best is known at their end; use generate", param="best_of")
        return self._engine.stream(request)

    @with_known_arguments
    def beam_search(self, prompts: Prompts, params: BeamSearchParams, *, lora: str | LoRARequest | None = None) -> list[BeamSearchOutput]:
        """The likeliest continuations of each prompt that a search of `params.beam_width` beams finds, best first. lora: the adapter that
        answers.

        Raises as `generate`; RequestError also for a width that is too large.
        """
        ids = [self.prepare(each, params.longest_params).request.prompt for each in as_list(prompts)]
        return beam_search(self, ids, params, lora)

    @with_known_arguments
    def embed(
        self,
        prompts: Prompts,
        *,
        pooling_params: PoolingParams | None = None,
        truncate_prompt_tokens: int | None = None,
        use_tqdm: Progressing = False,
    ) -> list[PoolingRequestOutput[EmbeddingOutput]]:
        """A vector for each text or list of ids, by the model's pooling.

        truncate_prompt_tokens  tokens of a text that are kept; -1: as many as the model takes; None: a longer text is an error
        Raises as `generate`.
        """
        return [EmbeddingOutput.of(each) for each in self._vectors(prompts, pooling_params, truncate_prompt_tokens, use_tqdm)]

    @with_known_arguments
    def encode(
        self,
        prompts: Prompts,
        pooling_params: PoolingParams | None = None,
        *,
        truncate_prompt_tokens: int | None = None,
        use_tqdm: Progressing = False,
    ) -> list[PoolingRequestOutput[PoolingOutput]]:
        """The result of `embed`, with vLLM's other name of the vector, `data`."""
        return [PoolingOutput.of(each) for each in self._vectors(prompts, pooling_params, truncate_prompt_tokens, use_tqdm)]

    @with_known_arguments
    def score(
        self,
        data_1: str | Sequence[str],
        data_2: str | Sequence[str],
        *,
        truncate_prompt_tokens: int | None = None,
        use_tqdm: Progressing = False,
    ) -> list[PoolingRequestOutput[ScoringOutput]]:
        """The similarity of texts, from -1 to 1: one with each of several, or pairs. The cosine of their vectors. Raises as `generate`."""
        first, second = ([each] if isinstance(each, str) else list(each) for each in (data_1, data_2))
        if not first or len(first) not in (1, len(second)):
            raise RequestError(f"{len(first)} texts and {len(second)} are no pairs; give 1, or as many", param="data_1")
        found = self._vectors([*first, *second], None, truncate_prompt_tokens, use_tqdm)
        ahead, behind = found[: len(first)], found[len(first) :]
        return [ScoringOutput.of(*pair) for pair in zip(ahead * len(behind) if len(ahead) == 1 else ahead, behind, strict=True)]

    def _vectors(self, prompts: Prompts, params: PoolingParams | None, truncate: int | None, progress: Progressing) -> list[TextRequest]:
        """The texts, answered."""
        self._engine.check_open()
        info, longest = self._engine.info, self.limits.max_model_len
        pooling = pooled_as(info.pooling, params or PoolingParams())
        texts = [plain_prompt(each) for each in as_list(prompts)]
        ids = [text_ids(self.tokenizer, each) if isinstance(each, str) else each for each in texts]
        ids = [cut_text(each, longest, truncate, self.tokenizer.text_end) for each in ids]
        requests = [TextRequest(admit_text(each, pooling, self.limits, info.width, request_id=secrets.token_hex(16))) for each in ids]
        with progress_bar(len(requests), progress) as advance:
            for _ in self._engine.run(requests):
                advance(1)
        return requests

    def prepare(
        self,
        prompt: Prompt | Conversation,
        params: SamplingParams,
        *,
        priority: int = 0,
        offer: Offer | None = None,
        lora: str | LoRARequest | None = None,
    ) -> LLMRequest:
        """Admits a request for `run`, which is not submitted yet. offer: a chat's tools, whose answer is read; None: it is text.
        lora: the adapter that answers.

        Raises RequestError.
        """
        self._engine.check_open()
        if not self._engine.info.generates:
            raise RequestError("this model makes vectors of texts and generates none; use embed, or another model", param="prompt")
        params = _plain(params)
        limits = self.limits
        asked = None if params.structured_outputs is None else Asked(params.structured_outputs, "structured_outputs")
        form = Form(asked, None)
        if isinstance(prompt, Conversation):
            template = _template(self)
            ids: Sequence[int] = template.encode(prompt, self.tokenizer)
            limits = replace(limits, eos_ids=limits.eos_ids | template.stop_ids)
            if offer is not None:
                can_follow = not params.ignore_eos and params.allowed_token_ids is None
                special = {"skip_special": params.skip_special_tokens, "can_follow": can_follow}
                form = form_of(offer, asked, template, self.tokenizer, ids, **special)
                kept = form.reading is not None and form.reading.kept
                outputs = None if form.asked is None else form.asked.params
                params = replace(params, structured_outputs=outputs, skip_special_tokens=params.skip_special_tokens and not kept)
        else:
            prompt = plain_prompt(prompt)
            ids = self.tokenizer.encode(prompt, add_bos=True, special=True) if isinstance(prompt, str) else prompt
        request = admit(
            ids, params, limits,
            request_id=secrets.token_hex(16),
            draw_seed=self._draw_seed,
            priority=priority,
            bad_words=bad_word_ids(self.tokenizer, params.bad_words) if params.bad_words else (),
            grammar=None if form.asked is None else _grammar(self._grammars, form.asked),
            thinking=_thinking(self, ids, params.thinking_token_budget),
            adapter=None if lora is None else self.adapters.named(lora),
        )  # fmt: skip
        return LLMRequest(request, prompt if isinstance(prompt, str) else None, params, self.tokenizer, form.reading)

    def run(self, requests: Iterable[LLMRequest]) -> Iterator[LLMRequest]:
        """Yields each request when it and all before it are answered."""
        return self._engine.run(requests)

    def abort(self) -> None:
        """Ends every request under way; each keeps its output so far, with finish_reason "abort". A signal handler may call it."""
        self._engine.abort()

    def close(self) -> None:
        """Frees the model. Safe to call twice."""
        self._engine.close()
        self._close_template()
        self._grammars.close()

    def __enter__(self) -> "LLM":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _close_template(self) -> None:
        if "chat_template" in self.__dict__ and self.chat_template is not None:
            self.chat_template.close()


def _plain(params: SamplingParams) -> SamplingParams:
    """The parameters with tuples where vLLM's callers write None, a text or a dict."""
    found: dict[str, Any] = {name: () for name in ("stop", "stop_token_ids", "bad_words", "logit_bias") if getattr(params, name) is None}
    if isinstance(params.stop, str):
        found["stop"] = (params.stop,)
    if isinstance(params.logit_bias, Mapping):
        found["logit_bias"] = tuple(params.logit_bias.items())
    if params.structured_outputs is not None:
        found["structured_outputs"] = structured_outputs(params.structured_outputs)
    return replace(params, **found) if found else params


def _complete(llm: LLM, requests: list[LLMRequest], progress: Progressing) -> list[RequestOutput]:
    outputs = []
    with progress_bar(len(requests), progress) as advance:
        for request in llm.run(requests):
            outputs.append(request.output())
            advance(1)
    return outputs


def _thinking(llm: LLM, prompt: Sequence[int], tokens: int | None) -> Thinking | None:
    """The budget of an answer's reasoning; None where there is none, or nothing that could be limited."""
    if tokens is None or llm.chat_template is None or (ids := llm.chat_template.reasoning_ids) is None:
        return None
    return ids.thinking(begins_reasoning(prompt, ids.texts, llm.tokenizer), tokens)


def _grammar(grammars: StructuredOutputCompiler, asked: Asked) -> Grammar | None:
    """The grammar of an answer; None where it is optional and cannot be followed. Raises RequestError, OverloadedError."""
    try:
        return replace(grammars.compile(asked.outputs, asked.field), is_optional=asked.is_optional)
    except (RequestError, OverloadedError):
        if asked.is_optional:
            return None
        raise


def _template(llm: LLM) -> ChatTemplate:
    if llm.chat_template is None:
        raise no_template(llm.config.model)
    return llm.chat_template
