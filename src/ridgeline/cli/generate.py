"""`ridgeline generate`: prompts in, continuations out, with the engine in this process. Data to stdout or a file, all else to stderr.

Owns the reading of prompts from the command line, a file or a pipe: each knows where it stands, and what is wrong with one is said with it.
"""

import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, TextIO

import typer

from ridgeline.cli.sampling import chosen, with_sampling_flags
from ridgeline.errors import ConfigError, ModelFormatError, RequestError
from ridgeline.facts.files.json_file import parse_object
from ridgeline.text.chat_content import Conversation

MAX_TOKENS: Final = 64
"""Outputs of a choice where neither the user nor the model says otherwise."""


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
    best_of: Annotated[int | None, typer.Option(help="Choices to compute, of which the likeliest come.")] = None,
    logprobs: Annotated[int | None, typer.Option(help="Log-probabilities of so many best tokens (with --json).")] = None,
    prompt_logprobs: Annotated[int | None, typer.Option(help="The same for the prompt's tokens.")] = None,
    chat_template: Annotated[str | None, typer.Option(help="File with a chat template that replaces the model's.", metavar="FILE")] = None,
    generation_config: Annotated[str, typer.Option(help="auto: sampling defaults of the model's authors; none: Ridgeline's.")] = "auto",
    max_model_len: Annotated[int | None, typer.Option(help="Tokens of prompt and output [what model and cache hold].")] = None,
    max_num_seqs: Annotated[int | None, typer.Option(help="Sequences that run at once [64, on a GPU 256].")] = None,
    kv_cache_memory_bytes: Annotated[int | None, typer.Option(help="Memory of the KV cache.")] = None,
    **sampling: Any,
) -> None:
    """Continue prompts with a model, in this process."""
    from ridgeline.cli.serve import Loading
    from ridgeline.engine.llm import LLM
    from ridgeline.errors import RequestError

    asked = read_prompts(prompts or [], input_file)
    sampling |= {"n": n, "best_of": best_of, "logprobs": logprobs, "prompt_logprobs": prompt_logprobs}
    settings: dict[str, Any] = {"chat_template": chat_template, "generation_config": generation_config}
    settings |= {"max_model_len": max_model_len, "max_num_seqs": max_num_seqs, "kv_cache_memory_bytes": kv_cache_memory_bytes}
    with _destination(output) as out, Loading() as loading, LLM(model, on_progress=loading.show, **settings) as llm:
        loading.close()
        params = chosen(sampling, llm.get_default_sampling_params(MAX_TOKENS))
        answers = []
        for each in asked:
            try:
                answers.append(llm.prepare(each.prompt, params))
            except RequestError as error:
                raise each.rejection(error) from None
        for each, answer in zip(asked, _with_bar(llm.run(answers), len(asked), out), strict=True):
            _print(answer.output(), each.name, as_json, out)


@contextmanager
def _destination(name: str | None) -> Iterator[TextIO]:
    """Opened before the model loads: what cannot be written to is told at once."""
    if name is None:
        yield sys.stdout
        return
    with Path(name).expanduser().open("w", encoding="utf-8") as file:
        yield file


def _with_bar(answers: Iterable[Any], total: int, out: TextIO) -> Iterator[Any]:
    """The answers; a bar on stderr counts them where somebody sees it and no answers come between."""
    if total == 1 or not sys.stderr.isatty() or out.isatty():
        yield from answers
        return
    from rich.console import Console
    from rich.progress import track

    yield from track(answers, "prompts", total, console=Console(stderr=True))


def _print(answer: Any, name: str | int | None, as_json: bool, out: TextIO) -> None:
    if as_json:
        print(json.dumps(_as_dict(answer, name), ensure_ascii=False), file=out)
    else:
        for output in answer.outputs:
            print(f"{answer.prompt or ''}{output.text}", file=out)
    out.flush()


def _as_dict(answer: Any, name: str | int | None) -> dict[str, Any]:
    """The answer as JSON: token ids, and log-probabilities as [id, value] pairs, the token's own first."""
    found: dict[str, Any] = {} if name is None else {"id": name}
    found |= {
        "prompt": answer.prompt,
        "prompt_token_ids": list(answer.prompt_token_ids),
        "cached_tokens": answer.num_cached_tokens,
        "choices": [_choice(output) for output in answer.outputs],
    }
    if answer.prompt_logprobs is not None:
        pairs = zip(answer.prompt_logprobs, answer.prompt_token_ids, strict=True)
        found["prompt_logprobs"] = [None if each is None else _pairs(each, token) for each, token in pairs]
    return found


def _choice(output: Any) -> dict[str, Any]:
    choice = {
        "index": output.index,
        "text": output.text,
        "token_ids": list(output.token_ids),
        "finish_reason": output.finish_reason,
        "stop_reason": output.stop_reason,
    }
    if output.logprobs is not None:
        choice["logprobs"] = [_pairs(each, token) for each, token in zip(output.logprobs, output.token_ids, strict=True)]
    return choice


def _pairs(found: dict[int, Any], sampled: int) -> list[tuple[int, float]]:
    ordered = sorted(found.items(), key=lambda item: (item[0] != sampled, -item[1].logprob))
    return [(token, each.logprob) for token, each in ordered]


MAX_LINE_BYTES: Final = 16 << 20
STDIN: Final = "-"
_KEYS: Final = ("prompt", "messages", "id")


@dataclass(frozen=True, slots=True)
class Asked:
    """One prompt. `place` is empty for those of the command line; `name` is what the input calls it, to be found again in the output."""

    prompt: str | Conversation
    place: str = ""
    name: str | int | None = None

    def rejection(self, error: RequestError) -> RequestError:
        """The same error, which says where."""
        return RequestError(f"{self.place}: {error}", param=error.param, code=error.code) if self.place else error


def read_prompts(words: Sequence[str], file: str | None) -> list[Asked]:
    """Prompts of the command line, or of `file`: a line each, or objects of .jsonl. "-", or a pipe where nothing else is given, is stdin.

    Raises ConfigError for lines that cannot be read and where there is nothing to do.
    """
    if file is None and (list(words) == [STDIN] or (not words and not sys.stdin.isatty())):
        words, file = [], STDIN
    if file is None:
        asked = [Asked(word) for word in words]
    elif words:
        raise ConfigError("prompts stand on the command line and in --input; give one of them", fix={"--input": None})
    else:
        asked = list(_of_file(file))
    if not asked:
        where = "" if file is None else f" in {_name(file)}"
        raise ConfigError(f"there are 0 prompts{where}; give some as words, with --input FILE or through a pipe")
    return asked


def _of_file(file: str) -> Iterator[Asked]:
    as_objects: bool | None = file.endswith(".jsonl") if file != STDIN else None
    name = _name(file)
    for number, line in enumerate(_lines(file, name), 1):
        if not line.strip():
            continue
        if as_objects is None:  # a pipe has no name that says what it holds: its first line does
            as_objects = line.lstrip().startswith("{")
        place = f"{name}, line {number}"
        yield _object(line, place) if as_objects else Asked(line, place)


def _name(file: str) -> str:
    return "stdin" if file == STDIN else file


def _lines(file: str, name: str) -> Iterator[str]:
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


def _object(line: str, place: str) -> Asked:
    """`{"prompt": …}` or `{"messages": […]}`, with an `id` if it likes."""
    try:
        values: dict[str, Any] = parse_object(line, place)
    except ModelFormatError as error:
        raise ConfigError(str(error)) from None
    if unknown := [key for key in values if key not in _KEYS]:
        raise ConfigError(f"{place} has the key {unknown[0][:60]!r}; there may be: {', '.join(_KEYS)}")
    prompt, messages, name = (values.get(key) for key in _KEYS)
    if (prompt is None) == (messages is None):
        raise ConfigError(f"{place} must have one of prompt and messages")
    if not (isinstance(prompt, str) or isinstance(messages, list)):
        raise ConfigError(f"{place}: prompt must be a string, messages a list of objects")
    if name is not None and (isinstance(name, bool) or not isinstance(name, (str, int))):
        raise ConfigError(f"{place}: id must be a string or an integer")
    return Asked(prompt if isinstance(prompt, str) else Conversation(messages or []), place, name)
