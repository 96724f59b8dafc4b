"""`LLM`: the engine in this process, for offline use. Names are vLLM's where the meaning coincides.

Runs the same `Engine` behind the same door as the server; needs neither sockets nor frames. Owns its engine; one thread at a time.
"""

import math
import secrets
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any

from ridgeline.config.env import cache_directory
from ridgeline.config.groups import FAKE_PREFIX, EngineConfig
from ridgeline.core.commands import Abort, Admit, Command, Output
from ridgeline.core.events import Closed, Rejected
from ridgeline.core.params import Admitted, SamplingParams
from ridgeline.engine.admit import ModelLimits, admit, seed_source
from ridgeline.engine.compose import Progress, start_engine
from ridgeline.engine.engine import Turn
from ridgeline.errors import EngineDeadError, RequestError
from ridgeline.facts.source import resolve_model
from ridgeline.text.bytes import ByteTokenizer
from ridgeline.text.choice import Choice
from ridgeline.text.stream import Release
from ridgeline.text.tokenizer import Tokenizer, load_tokenizer

Prompts = str | Sequence[str] | Sequence[int] | Sequence[Sequence[int]]
QUEUED_ROWS = 4
"""Choices handed to the engine at once, as a multiple of its rows: enough to choose from, little enough to stay cheap."""


@dataclass(frozen=True, slots=True)
class Logprob:
    """`rank` 1 is the most likely id; None: not among those asked for."""

    logprob: float
    rank: int | None
    decoded_token: str


@dataclass(frozen=True, slots=True)
class CompletionOutput:
    """One choice. `logprobs` and `cumulative_logprob` are None unless asked for; `stop_reason` is the client's stop string or id.

    finish_reason  "stop", "length", or "error" where the model's numbers were not finite
    """

    index: int
    text: str
    token_ids: tuple[int, ...]
    cumulative_logprob: float | None
    logprobs: tuple[dict[int, Logprob], ...] | None
    finish_reason: str
    stop_reason: str | int | None


@dataclass(frozen=True, slots=True)
class RequestOutput:
    """The answer to one prompt. `prompt` is None where ids were given; `num_cached_tokens` of the prompt came from the prefix cache."""

    request_id: str
    prompt: str | None
    prompt_token_ids: tuple[int, ...]
    outputs: tuple[CompletionOutput, ...]
    finished: bool
    num_cached_tokens: int


def tokenizer_of_model(model: str) -> Tokenizer:
    """The tokenizer of what a user calls a model; a fake model speaks bytes."""
    if model.startswith(FAKE_PREFIX):
        return ByteTokenizer()
    return load_tokenizer(resolve_model(model, cache_directory()))


class LLM:
    """A loaded model. `settings` are fields of `config.groups.EngineConfig` (max_model_len, max_num_seqs, seed …)."""

    def __init__(self, model: str, *, on_progress: Progress = lambda stage, fraction: None, **settings: Any) -> None:
        self.config = EngineConfig(model, **settings)
        self.tokenizer = tokenizer_of_model(model)
        self._engine, self.decisions = start_engine(self.config, on_progress)
        info = self._engine.executor.info
        # An id must be an input of the model and a token of the text side: padded embeddings have rows that no token names.
        vocab = min(info.vocab, self.tokenizer.vocab_size)
        self.limits = ModelLimits(vocab, info.max_model_len, self.tokenizer.eos_ids, info.kv)
        self._draw_seed = seed_source(self.config.seed)
        self._closed = False

    def generate(
        self,
        prompts: Prompts,
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        priority: Sequence[int] | None = None,
        progress: bool = False,
    ) -> list[RequestOutput]:
        """Answers in the order of the prompts: a string, strings, ids, or lists of ids; parameters for all, or one a prompt.

        progress  shows a bar
        Raises RequestError before anything runs if any prompt cannot be accepted, EngineDeadError after `close` or a step that failed.
        """
        if self._closed:
            raise EngineDeadError("this LLM is closed; make another one")
        texts = _as_list(prompts)
        params = _one_each(sampling_params or SamplingParams(), len(texts))
        answers = [
            self._admit(text, each, rank) for text, each, rank in zip(texts, params, priority or [0] * len(texts), strict=True)
        ]
        with _bar(len(answers), progress) as advance:
            self._run(answers, advance)
        return [answer.result() for answer in answers]

    def close(self) -> None:
        """Frees the model. Safe to call twice."""
        self._closed = True
        self._engine.executor.close()

    def __enter__(self) -> "LLM":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _admit(self, prompt: str | Sequence[int], params: SamplingParams, priority: int) -> "_Answer":
        if isinstance(params.stop, str):
            params = replace(params, stop=(params.stop,))
        ids = self.tokenizer.encode(prompt, add_bos=True) if isinstance(prompt, str) else prompt
        request = admit(ids, params, self.limits, request_id=secrets.token_hex(16), draw_seed=self._draw_seed, priority=priority)
        return _Answer(request, prompt if isinstance(prompt, str) else None, params, self.tokenizer)

    def _run(self, answers: list["_Answer"], advance: Callable[[int], None]) -> None:
        """Turns the engine until every answer is complete. Whatever interrupts, no request stays open."""
        waiting, open_answers = deque(answers), dict[str, _Answer]()
        room = QUEUED_ROWS * self._engine.executor.info.rows
        commands: list[Command] = []
        try:
            while waiting or open_answers:
                while waiting and sum(answer.open for answer in open_answers.values()) < room:
                    answer = waiting.popleft()
                    open_answers[answer.request.request_id] = answer
                    commands.append(Admit(answer.request))
                turn = self._turn(commands)
                commands = _deliver(turn, open_answers, advance)
        finally:
            if open_answers and not self._closed:
                self._turn([Abort(name) for name in open_answers])
                while self._engine.in_flight:
                    self._turn([])

    def _turn(self, commands: Sequence[Command]) -> Turn:
        """A turn that was interrupted, by an error or by Ctrl-C, leaves the device in an unknown state."""
        try:
            return self._engine.turn(commands)
        except BaseException:
            self.close()
            raise


class _Answer:
    """One request while it is answered: its choices' text, ids and log-probabilities as they are released."""

    def __init__(self, request: Admitted, prompt: str | None, params: SamplingParams, tokenizer: Tokenizer) -> None:
        self.request = request
        self.open = request.choices
        self._prompt = prompt
        self._tokenizer = tokenizer
        self._choices = [Choice(request, index, params, tokenizer) for index in range(request.choices)]
        self._released: list[list[Release]] = [[] for _ in self._choices]
        self._ends: dict[int, Closed] = {}

    def take(self, output: Output) -> Command | None:
        releases, close = self._choices[output.choice].take(output)
        self._released[output.choice] += releases
        return close

    def end(self, closed: Closed) -> None:
        self._ends[closed.choice] = closed
        self.open -= 1

    def result(self) -> RequestOutput:
        """Everything that came, choice by choice."""
        cached = max(closed.usage.cached_tokens for closed in self._ends.values())
        outputs = tuple(self._completion(index) for index in range(self.request.choices))
        return RequestOutput(self.request.request_id, self._prompt, self.request.prompt, outputs, True, cached)

    def _completion(self, index: int) -> CompletionOutput:
        releases, closed = self._released[index], self._ends[index]
        found = [logprobs for release in releases for logprobs in release.logprobs]
        asked = self.request.logprobs is not None
        ids = tuple(token for release in releases for token in release.ids)
        return CompletionOutput(
            index=index,
            text="".join(release.text for release in releases),
            token_ids=ids,
            cumulative_logprob=math.fsum(each.logprob for each in found) if asked else None,
            logprobs=tuple(self._ranked(token, each.logprob, each.top) for token, each in zip(ids, found, strict=True)) if asked else None,
            finish_reason=closed.reason.value,
            stop_reason=self._choices[index].stop_reason,
        )

    def _ranked(self, sampled: int, logprob: float, top: tuple[tuple[int, float], ...]) -> dict[int, Logprob]:
        ranked = {token: Logprob(value, rank, self._name(token)) for rank, (token, value) in enumerate(top, 1)}
        ranked.setdefault(sampled, Logprob(logprob, None, self._name(sampled)))
        return ranked

    def _name(self, token: int) -> str:
        return self._tokenizer.piece(token).decode("utf-8", "replace")


def _deliver(turn: Turn, answers: dict[str, _Answer], advance: Callable[[int], None]) -> list[Command]:
    """Hands one turn's outputs to their answers, drops those that are complete; returns the closes to send."""
    closes = [close for output in turn.outputs if (close := answers[output.request_id].take(output)) is not None]
    for event in turn.events:
        if isinstance(event, Closed):
            answer = answers[event.request_id]
            answer.end(event)
            if not answer.open:
                del answers[event.request_id]
                advance(1)
        elif isinstance(event, Rejected):
            raise RequestError(event.message)
    return closes


def _as_list(prompts: Prompts) -> list[str | Sequence[int]]:
    """One prompt is a string or a non-empty list of integers; anything else is several."""
    if isinstance(prompts, str) or (len(prompts) > 0 and all(isinstance(each, int) for each in prompts)):
        return [prompts]  # type: ignore[list-item]
    return list(prompts)  # type: ignore[arg-type]


def _one_each(params: SamplingParams | Sequence[SamplingParams], count: int) -> list[SamplingParams]:
    found = [params] * count if isinstance(params, SamplingParams) else list(params)
    if len(found) != count:
        raise RequestError(f"{count} prompts come with {len(found)} sampling_params; give one, or one a prompt.", param="sampling_params")
    return found


@contextmanager
def _bar(total: int, show: bool) -> Iterator[Callable[[int], None]]:
    """What is called with each request that is done; with `show`, it moves a bar on the terminal."""
    if not show:
        yield lambda done: None
        return
    from rich.console import Console
    from rich.progress import Progress as Bar

    with Bar(console=Console(stderr=True)) as bar:
        task = bar.add_task("requests", total=total)
        yield lambda done: bar.advance(task, done)
