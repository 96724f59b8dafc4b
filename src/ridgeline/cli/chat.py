"""`ridgeline chat`: a conversation with a model in this process. Answers go to stdout, all else to stderr.

Owns the terminal: Ctrl-C, the display of answers, and the input of messages: lines, continued lines, text between triple quotes.
"""

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Annotated, Any, Final

import typer

from ridgeline.cli.sampling import make_sampling_params, with_sampling_flags
from ridgeline.errors import ConfigError, EngineDeadError, RequestError, RidgelineError

DIM, PLAIN = "\x1b[2m", "\x1b[0m"
CONTROL_CHARACTERS: Final = {code: "\N{REPLACEMENT CHARACTER}" for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t"}
"""Translation that replaces control characters of a model's output."""


@with_sampling_flags
def chat(
    model: Annotated[str, typer.Argument(help="`demo`, a GGUF file, a model directory, or a name of the hub (org/name).")],
    system: Annotated[str | None, typer.Option(help="System prompt.", metavar="TEXT")] = None,
    chat_template: Annotated[str | None, typer.Option(help="File with a chat template that replaces the model's.", metavar="FILE")] = None,
    generation_config: Annotated[str, typer.Option(help="auto: sampling defaults of the model's authors; none: Ridgeline's.")] = "auto",
    max_model_len: Annotated[int | None, typer.Option(help="Tokens of the whole conversation [what model and cache hold].")] = None,
    kv_cache_memory_bytes: Annotated[int | None, typer.Option(help="Memory of the KV cache.")] = None,
    **sampling: Any,
) -> None:
    """Talk with a model, in this process. /help lists commands."""
    from ridgeline.cli.chat_session import ChatSession
    from ridgeline.cli.output import LoadingProgress, print_status
    from ridgeline.engine.llm import LLM

    settings: dict[str, Any] = {"max_model_len": max_model_len, "kv_cache_memory_bytes": kv_cache_memory_bytes, "max_num_seqs": 1}
    settings |= {"chat_template": chat_template, "generation_config": generation_config}
    with LoadingProgress() as loading, LLM(model, on_progress=loading.show, **settings) as llm:
        template = llm.chat_template
        loading.close()
        if template is None:
            why = f"the model {model!r} has no chat template"
            raise ConfigError(f"{why}; give one with --chat-template FILE, or let it continue texts with: ridgeline generate")
        if template.source == "built in":
            print_status("this model has no chat template of its own and may not be trained to chat; Ridgeline's default is used")
        for finding in template.findings:
            print_status(f"{finding.severity}: {finding}")
        params = make_sampling_params(sampling, llm.get_default_sampling_params(None))
        llm.prepare("x", params)  # a flag out of range is told before anything is typed
        if sys.stdin.isatty():
            context = f"{llm.limits.max_model_len:,} tokens of context"
            print_status(f"{model}, {context}. /help lists commands, Ctrl-C stops an answer, Ctrl-D ends.")
        _run_conversation(ChatSession(llm, params, system))


def _run_conversation(session: Any) -> None:
    """Answers messages until the input ends. Without a terminal the first error ends the process."""
    from ridgeline.cli.chat_session import run_command
    from ridgeline.cli.output import print_status

    for text in _read_messages():
        try:
            message: str | None = text
            if text.startswith("/") and not text.startswith("//"):
                reply = run_command(text, session)
                if reply.is_exit:
                    return
                if reply.text:
                    print_status(reply.text)
                message = reply.message
            if message is not None:
                _print_answer(session, message[1:] if message.startswith("//") else message)
        except EngineDeadError:
            raise
        except RidgelineError as error:
            if not sys.stdin.isatty():
                raise
            print_status(str(error))


def _read_messages() -> Iterator[str]:
    """Messages from stdin. On a terminal, Ctrl-C discards the current line."""

    if not sys.stdin.isatty():
        yield from messages(from_pipe)
        return
    with suppress(ImportError):
        import readline  # noqa: F401  (lines can be edited, and come back with the arrow keys)
    while True:
        try:
            yield from messages(from_terminal)
            break
        except KeyboardInterrupt:
            print("\n(Ctrl-D or /exit ends)", file=sys.stderr)
    print(file=sys.stderr)


def _print_answer(session: Any, message: str) -> None:
    """Prints the answer as it is generated, then its statistics."""
    on_terminal = sys.stdout.isatty()
    try:
        with _interruptible(session.llm):
            for piece in session.answer(message):
                print(piece.translate(CONTROL_CHARACTERS) if on_terminal else piece, end="", flush=True)
    except RequestError as error:
        raise _with_advice(error, session) from None
    print(flush=True)
    if on_terminal:
        print(f"{DIM}{_format_stats(session.stats)}{PLAIN}", file=sys.stderr)
    stats = session.stats
    if stats.finish_reason == "length" and stats.prompt_tokens + stats.tokens >= session.llm.limits.max_model_len:
        raise ConfigError(f"the answer is cut off: {_context_full_message(session)}")


@contextmanager
def _interruptible(llm: Any) -> Iterator[None]:
    """The first Ctrl-C ends the answer, the second one the program."""

    def stop(number: int, frame: object) -> None:
        llm.abort()
        signal.signal(signal.SIGINT, signal.default_int_handler)

    before = signal.signal(signal.SIGINT, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _with_advice(error: RequestError, session: Any) -> RidgelineError:
    return ConfigError(_context_full_message(session)) if error.code == "context_length_exceeded" else error


def _context_full_message(session: Any) -> str:
    """Error message for a full context, with advice."""
    used, most = session.prompt_tokens(), session.llm.limits.max_model_len
    count = session.count_turns_to_drop()
    advice = f"forget the oldest turn{'s' if count != 1 else ''} with /drop {count}, then /retry"
    if count is None:
        advice = "take the message back with /undo and shorten it, or /clear"
    return f"the context is full: the conversation has {used} tokens, the model takes {most}; {advice}"


def _format_stats(stats: Any) -> str:
    rate = stats.tokens_per_second
    parts = [f"{stats.tokens} tokens", f"{rate:.1f} tok/s" if rate else "", f"first after {stats.first * 1000:.0f} ms"]
    parts += [f"{stats.cached_tokens} of {stats.prompt_tokens} prompt tokens cached"]
    parts += ["stopped" if stats.finish_reason == "abort" else ""]
    return " · ".join(part for part in parts if part)


PROMPT, CONTINUATION = "> ", ". "
QUOTES: Final = '"""'


def messages(read: Callable[[str], str]) -> Iterator[str]:
    r"""Messages read with `read(prompt)`, which raises EOFError at the end. Blank ones are skipped.

    A line that ends in a backslash continues on the next; triple quotes begin and end a message of several lines.
    """
    while True:
        try:
            line = read(PROMPT)
        except EOFError:
            return
        text = _read_quoted(line.strip()[len(QUOTES) :], read) if line.strip().startswith(QUOTES) else _read_continued(line, read)
        if text.strip():
            yield text


def _read_continued(line: str, read: Callable[[str], str]) -> str:
    parts = [line]
    while parts[-1].endswith("\\"):
        parts[-1] = parts[-1][:-1]
        try:
            parts.append(read(CONTINUATION))
        except EOFError:
            break
    return "\n".join(parts)


def _read_quoted(rest: str, read: Callable[[str], str]) -> str:
    parts = [rest]
    while QUOTES not in parts[-1]:
        try:
            parts.append(read(CONTINUATION))
        except EOFError:
            break
    parts[-1] = parts[-1].partition(QUOTES)[0]
    return "\n".join(parts).strip("\n")


def from_terminal(prompt: str) -> str:
    """Reads one line; the prompt goes to stderr where stdout is not a terminal."""
    if sys.stdout.isatty():
        return input(prompt)
    print(prompt, end="", file=sys.stderr, flush=True)
    return input()


def from_pipe(prompt: str) -> str:
    """Reads one line and echoes it with its prompt to stderr, which then shows the conversation."""
    line = sys.stdin.readline()
    if not line:
        raise EOFError
    line = line.rstrip("\r\n")
    print(f"{prompt}{line}", file=sys.stderr, flush=True)
    return line
