"""`ridgeline generate`: continues prompts with the engine in this process. Data to stdout or a file, all else to stderr.

Reads prompts from the command line, a file or a pipe; errors name the line of the prompt.
"""

import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Final, TextIO

import typer

from ridgeline.cli.form import Choice, GrammarFile, JsonSchema, Regex, read_form
from ridgeline.cli.output import print_status
from ridgeline.cli.sampling import FLAGS, check_sampling, make_sampling_params, read_vote, with_sampling_flags
from ridgeline.cli.setting_flags import engine_arguments, located, read_engine_flags, with_engine_flags
from ridgeline.core.params import SamplingParams
from ridgeline.engine.beams import BeamSearchParams
from ridgeline.errors import ConfigError, ModelFormatError, RequestError
from ridgeline.facts.files.json_file import parse_object
from ridgeline.text.chat_content import Conversation

MAX_TOKENS: Final = 64
"""Default of --max-tokens where the model has none."""
MAX_FORM_TOKENS: Final = 512
"""The same where answers have a form, which they should reach the end of."""


@with_engine_flags()
@with_sampling_flags
def generate(
    model: Annotated[str, typer.Argument(help="`demo`, a GGUF file, a model directory, or a name of the hub (org/name).")],
    prompts: Annotated[list[str] | None, typer.Argument(help="Texts to continue; - or none: those of stdin.", metavar="PROMPT...")] = None,
    input_file: Annotated[
        str | None, typer.Option("--input", help='One prompt per line; in .jsonl {"prompt": …} or {"messages": […]}.', metavar="FILE")
    ] = None,
    output: Annotated[str | None, typer.Option(help="File to write to instead of stdout.", metavar="FILE")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object per prompt, on a line of its own.")] = False,
    n: Annotated[int, typer.Option(help="Choices per prompt.")] = 1,
    best_of: Annotated[int | None, typer.Option(help="Choices to compute, of which the likeliest are returned.")] = None,
    vote_marker: Annotated[
        str | None, typer.Option(help="Of --best-of choices print the one with the commonest answer behind TEXT.", metavar="TEXT")
    ] = None,
    vote_json: Annotated[
        str | None, typer.Option(help="The same, the answer at POINTER in the choice's last JSON.", metavar="POINTER")
    ] = None,
    vote_regex: Annotated[str | None, typer.Option(help="The same, the last match of PATTERN or its group.", metavar="PATTERN")] = None,
    beam_width: Annotated[int | None, typer.Option(help="Search with so many beams in place of sampling; prints all, best first.")] = None,
    logprobs: Annotated[int | None, typer.Option(help="Log-probabilities of this many top tokens (with --json).")] = None,
    prompt_logprobs: Annotated[int | None, typer.Option(help="The same for the prompt's tokens.")] = None,
    json_schema: JsonSchema = None,
    regex: Regex = None,
    choice: Choice = None,
    grammar: GrammarFile = None,
    **given: Any,
) -> None:
    """Continue prompts with a model, in this process."""
    from ridgeline.cli.output import LoadingProgress
    from ridgeline.engine.llm import LLM
    from ridgeline.errors import RequestError

    inputs = read_prompts(prompts or [], input_file)
    sampling = {name: given.get(name) for name in FLAGS}
    sampling |= {"n": n, "best_of": best_of, "logprobs": logprobs, "prompt_logprobs": prompt_logprobs}
    sampling["vote"] = read_vote({"vote_marker": vote_marker, "vote_json": vote_json, "vote_regex": vote_regex})
    check_sampling(sampling)
    form = read_form(json_schema, regex, choice, grammar)
    settings = read_engine_flags(given, model)
    for note in settings.notes:
        print_status(f"note: {note}")
    arguments = {"on_progress": (loading := LoadingProgress()).show, **engine_arguments(settings)}
    with _open_output(output) as out, loading, located(settings), LLM(model, **arguments) as llm:
        loading.close()
        params = make_sampling_params(sampling, llm.get_default_sampling_params(MAX_TOKENS if form is None else MAX_FORM_TOKENS))
        params = replace(params, structured_outputs=form)
        if beam_width is not None:
            _print_beams(llm, inputs, beam_width, params, as_json, out)
            return
        answers = []
        for each in inputs:
            try:
                answers.append(llm.prepare(each.prompt, params, lora=llm.adapters.only))
            except RequestError as error:
                raise each.with_location(error) from None
        for each, answer in zip(inputs, _with_progress(llm.run(answers), len(inputs), out), strict=True):
            _print_answer(answer.output(), each.name, as_json, out)


@contextmanager
def _open_output(name: str | None) -> Iterator[TextIO]:
    """The output, opened before the model loads, so that errors come at once."""
    if name is None:
        yield sys.stdout
        return
    with Path(name).expanduser().open("w", encoding="utf-8") as file:
        yield file


def _with_progress(answers: Iterable[Any], total: int, out: TextIO) -> Iterator[Any]:
    """The answers, with a progress bar on stderr where stderr is a terminal and stdout is not."""
    if total == 1 or not sys.stderr.isatty() or out.isatty():
        yield from answers
        return
    from rich.console import Console
    from rich.progress import track

    yield from track(answers, "prompts", total, console=Console(stderr=True))


def _print_answer(answer: Any, name: str | int | None, as_json: bool, out: TextIO) -> None:
    if as_json:
        print(json.dumps(_as_dict(answer, name), ensure_ascii=False), file=out)
    else:
        for output in answer.outputs:
            print(f"{answer.prompt or ''}{output.text}", file=out)
    out.flush()


def _print_beams(llm: Any, inputs: Sequence["PromptInput"], width: int, params: SamplingParams, as_json: bool, out: TextIO) -> None:
    """Searches, and prints the beams of each prompt, best first. Raises RequestError for what a search has no use for."""
    if params.structured_outputs is not None or params.best_of is not None or params.n != 1:
        raise RequestError("a beam search has no --n, no --best-of and no form; leave them out", param="beam_width")
    if any(isinstance(each.prompt, Conversation) for each in inputs):
        raise RequestError("a beam search takes texts, not messages", param="beam_width")
    search = BeamSearchParams(width, params.max_tokens or MAX_TOKENS, params.ignore_eos)
    for each, found in zip(inputs, llm.beam_search([each.prompt for each in inputs], search, lora=llm.adapters.only), strict=True):
        if not as_json:
            print(*(beam.text for beam in found.sequences), sep="\n", file=out)
            continue
        row: dict[str, Any] = {} if each.name is None else {"id": each.name}
        beams = [
            {"text": beam.text, "cumulative_logprob": beam.cum_logprob, "finish_reason": beam.finish_reason} for beam in found.sequences
        ]
        print(json.dumps({**row, "prompt": each.prompt, "beams": beams}, ensure_ascii=False), file=out)
    out.flush()


def _as_dict(answer: Any, name: str | int | None) -> dict[str, Any]:
    """The answer as JSON: token ids, and log-probabilities as [id, value] pairs, the token's own first."""
    result: dict[str, Any] = {} if name is None else {"id": name}
    result |= {
        "prompt": answer.prompt,
        "prompt_token_ids": list(answer.prompt_token_ids),
        "cached_tokens": answer.num_cached_tokens,
        "choices": [_choice(output) for output in answer.outputs],
    }
    if answer.prompt_logprobs is not None:
        pairs = zip(answer.prompt_logprobs, answer.prompt_token_ids, strict=True)
        result["prompt_logprobs"] = [None if each is None else _pairs(each, token) for each, token in pairs]
    return result


def _choice(output: Any) -> dict[str, Any]:
    choice = {
        "index": output.index,
        "text": output.text,
        "token_ids": list(output.token_ids),
        "finish_reason": output.finish_reason,
        "stop_reason": output.stop_reason,
    }
    if output.vote is not None:
        choice["vote"] = asdict(output.vote)
    if output.logprobs is not None:
        choice["logprobs"] = [_pairs(each, token) for each, token in zip(output.logprobs, output.token_ids, strict=True)]
    return choice


def _pairs(result: dict[int, Any], sampled: int) -> list[tuple[int, float]]:
    ordered = sorted(result.items(), key=lambda item: (item[0] != sampled, -item[1].logprob))
    return [(token, each.logprob) for token, each in ordered]


MAX_LINE_BYTES: Final = 16 << 20
STDIN: Final = "-"
_KEYS: Final = ("prompt", "messages", "id")


@dataclass(frozen=True, slots=True)
class PromptInput:
    """One prompt. location: file and line, empty for the command line; name: `id` of the input, repeated in the output."""

    prompt: str | Conversation
    location: str = ""
    name: str | int | None = None

    def with_location(self, error: RequestError) -> RequestError:
        """The error with the location of the prompt."""
        return RequestError(f"{self.location}: {error}", param=error.param, code=error.code) if self.location else error


def read_prompts(words: Sequence[str], file: str | None) -> list[PromptInput]:
    """Prompts of the command line, or of `file`: one per line, or objects of .jsonl. "-" is stdin, as is a pipe without prompts.

    Raises ConfigError for invalid lines and without any prompt.
    """
    if file is None and (list(words) == [STDIN] or (not words and not sys.stdin.isatty())):
        words, file = [], STDIN
    if file is None:
        inputs = [PromptInput(word) for word in words]
    elif words:
        raise ConfigError("prompts are on the command line and in --input; give one of them", fix={"--input": None})
    else:
        inputs = list(_read_file(file))
    if not inputs:
        where = "" if file is None else f" in {_display_name(file)}"
        raise ConfigError(f"there are 0 prompts{where}; give some as words, with --input FILE or through a pipe")
    return inputs


def _read_file(file: str) -> Iterator[PromptInput]:
    as_objects: bool | None = file.endswith(".jsonl") if file != STDIN else None
    name = _display_name(file)
    for number, line in enumerate(_read_lines(file, name), 1):
        if not line.strip():
            continue
        if as_objects is None:  # the first line of a pipe shows its format
            as_objects = line.lstrip().startswith("{")
        location = f"{name}, line {number}"
        yield _parse_line(line, location) if as_objects else PromptInput(line, location)


def _display_name(file: str) -> str:
    return "stdin" if file == STDIN else file


def _read_lines(file: str, name: str) -> Iterator[str]:
    with sys.stdin.buffer if file == STDIN else Path(file).expanduser().open("rb") as source:
        number = 0
        while raw := source.readline(MAX_LINE_BYTES + 1):
            number += 1
            if len(raw) > MAX_LINE_BYTES:
                raise ConfigError(f"{name}, line {number} has more than {MAX_LINE_BYTES} bytes; split it")
            try:
                yield raw.decode("utf-8").rstrip("\r\n")
            except UnicodeDecodeError as error:
                raise ConfigError(f"{name}, line {number} is not UTF-8 (byte {error.start})") from None


def _parse_line(line: str, location: str) -> PromptInput:
    """`{"prompt": …}` or `{"messages": […]}`, with an optional `id`. Raises ConfigError."""
    try:
        values: dict[str, Any] = parse_object(line, location)
    except ModelFormatError as error:
        raise ConfigError(str(error)) from None
    if unknown := [key for key in values if key not in _KEYS]:
        raise ConfigError(f"{location} has the key {unknown[0][:60]!r}; possible keys: {', '.join(_KEYS)}")
    prompt, messages, name = (values.get(key) for key in _KEYS)
    if (prompt is None) == (messages is None):
        raise ConfigError(f"{location} must have one of prompt and messages")
    if not (isinstance(prompt, str) or isinstance(messages, list)):
        raise ConfigError(f"{location}: prompt must be a string, messages a list of objects")
    if name is not None and (isinstance(name, bool) or not isinstance(name, (str, int))):
        raise ConfigError(f"{location}: id must be a string or an integer")
    return PromptInput(prompt if isinstance(prompt, str) else Conversation(messages or []), location, name)
