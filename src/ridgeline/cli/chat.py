"""`ridgeline chat`: a conversation with a model in this process. Answers go to stdout, all else to stderr.

Owns the terminal: what Ctrl-C means when, how answers look, and how messages are typed or piped: lines, lines that go on, blocks between
triple quotes.
"""

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Annotated, Any, Final

import typer

from ridgeline.cli.sampling import chosen, with_sampling_flags
from ridgeline.errors import ConfigError, EngineDeadError, RequestError, RidgelineError

DIM, PLAIN = "\x1b[2m", "\x1b[0m"
HARMLESS: Final = {code: "\N{REPLACEMENT CHARACTER}" for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t"}
"""Control characters that a model writes must not steer a terminal."""


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
    """Talk with a model, in this process. /help lists what else can be typed."""
    from ridgeline.cli.serve import Loading, say
    from ridgeline.cli.talk import Talk
    from ridgeline.engine.llm import LLM

    settings: dict[str, Any] = {"max_model_len": max_model_len, "kv_cache_memory_bytes": kv_cache_memory_bytes, "max_num_seqs": 1}
    settings |= {"chat_template": chat_template, "generation_config": generation_config}
    with Loading() as loading, LLM(model, on_progress=loading.show, **settings) as llm:
        template = llm.chat_template
        loading.close()
        if template is None:
            why = f"the model {model!r} has no chat template"
            raise ConfigError(f"{why}; give one with --chat-template FILE, or let it continue texts with: ridgeline generate")
        if template.source == "built in":
            say("this model has no chat template of its own and may not be trained to chat; it gets Ridgeline's")
        for warning in template.warnings:
            say(f"warning: {warning}")
        params = chosen(sampling, llm.get_default_sampling_params(None))
        llm.prepare("x", params)  # a flag out of range is told before anything is typed
        if sys.stdin.isatty():
            say(f"{model}, {llm.limits.max_model_len:,} tokens of context. /help lists commands, Ctrl-C stops an answer, Ctrl-D ends.")
        _converse(Talk(llm, params, system))


def _converse(talk: Any) -> None:
    """Converses until there is nothing more to read. Without a terminal the first mistake ends the process."""
    from ridgeline.cli.serve import say
    from ridgeline.cli.talk import run_command

    for text in _typed():
        try:
            message: str | None = text
            if text.startswith("/") and not text.startswith("//"):
                reply = run_command(text, talk)
                if reply.over:
                    return
                if reply.said:
                    say(reply.said)
                message = reply.message
            if message is not None:
                _answer(talk, message[1:] if message.startswith("//") else message)
        except EngineDeadError:
            raise
        except RidgelineError as error:
            if not sys.stdin.isatty():
                raise
            say(str(error))


def _typed() -> Iterator[str]:
    """Messages. Ctrl-C on a terminal throws away what was being typed."""

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


def _answer(talk: Any, message: str) -> None:
    """Shows the answer as it comes, then what it took."""
    on_terminal = sys.stdout.isatty()
    try:
        with _interruptible(talk.llm):
            for piece in talk.say(message):
                print(piece.translate(HARMLESS) if on_terminal else piece, end="", flush=True)
    except RequestError as error:
        raise _with_advice(error, talk) from None
    print(flush=True)
    if on_terminal:
        print(f"{DIM}{_account(talk.account)}{PLAIN}", file=sys.stderr)
    account = talk.account
    if account.finish_reason == "length" and account.prompt_tokens + account.tokens >= talk.llm.limits.max_model_len:
        raise ConfigError(f"the answer is cut off: {_full(talk)}")


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


def _with_advice(error: RequestError, talk: Any) -> RidgelineError:
    return ConfigError(_full(talk)) if error.code == "context_length_exceeded" else error


def _full(talk: Any) -> str:
    """That the context is full, and what to do."""
    used, most = talk.prompt_tokens(), talk.llm.limits.max_model_len
    count = talk.to_drop()
    advice = f"forget the oldest turn{'s' if count != 1 else ''} with /drop {count}, then /retry"
    if count is None:
        advice = "take the message back with /undo and shorten it, or /clear"
    return f"the context is full: the conversation has {used} tokens, the model takes {most}; {advice}"


def _account(account: Any) -> str:
    pace = account.tokens_per_second
    parts = [f"{account.tokens} tokens", f"{pace:.1f} tok/s" if pace else "", f"first after {account.first * 1000:.0f} ms"]
    parts += [f"{account.cached_tokens} of {account.prompt_tokens} prompt tokens cached"]
    parts += ["stopped" if account.finish_reason == "abort" else ""]
    return " · ".join(part for part in parts if part)


PROMPT, MORE = "> ", ". "
QUOTES: Final = '"""'


def messages(read: Callable[[str], str]) -> Iterator[str]:
    r"""Each message that `read(prompt)` brings; it raises EOFError at the end. Blank ones are left out.

    A line that ends in a backslash goes on in the next; triple quotes begin and end a message of several lines.
    """
    while True:
        try:
            line = read(PROMPT)
        except EOFError:
            return
        text = _block(line.strip()[len(QUOTES) :], read) if line.strip().startswith(QUOTES) else _joined(line, read)
        if text.strip():
            yield text


def _joined(line: str, read: Callable[[str], str]) -> str:
    parts = [line]
    while parts[-1].endswith("\\"):
        parts[-1] = parts[-1][:-1]
        try:
            parts.append(read(MORE))
        except EOFError:
            break
    return "\n".join(parts)


def _block(rest: str, read: Callable[[str], str]) -> str:
    parts = [rest]
    while QUOTES not in parts[-1]:
        try:
            parts.append(read(MORE))
        except EOFError:
            break
    parts[-1] = parts[-1].partition(QUOTES)[0]
    return "\n".join(parts).strip("\n")


def from_terminal(prompt: str) -> str:
    """One line, with the prompt where the person looks and never among data."""
    if sys.stdout.isatty():
        return input(prompt)
    print(prompt, end="", file=sys.stderr, flush=True)
    return input()


def from_pipe(prompt: str) -> str:
    """One line, which is shown on stderr with its prompt, so that the whole reads as a conversation there."""
    line = sys.stdin.readline()
    if not line:
        raise EOFError
    line = line.rstrip("\r\n")
    print(f"{prompt}{line}", file=sys.stderr, flush=True)
    return line
