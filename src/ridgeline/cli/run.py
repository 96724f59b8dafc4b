"""`ridgeline run`: a conversation with a model in this process, or one answer. Answers go to stdout, all else to stderr.

Owns the flow: which model, in which mode, one prompt or many messages; Ctrl-C; how answers are shown.
"""

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Annotated, Any, Final

import typer

from ridgeline.cli.sampling import FLAGS, make_sampling_params, with_sampling_flags
from ridgeline.cli.setting_flags import engine_arguments, located, read_engine_flags, with_engine_flags
from ridgeline.errors import ConfigError, EngineDeadError, RequestError, RidgelineError

DIM, PLAIN = "\x1b[2m", "\x1b[0m"
CONTROL_CHARACTERS: Final = {code: "\N{REPLACEMENT CHARACTER}" for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t"}
"""Translation that replaces control characters of a model's output."""
UNADVISED: Final = {"temperature": 0.7, "top_p": 0.95}
"""Sampling of models whose authors recommend nothing: temperature 1 makes small ones wander."""
EXIT_INTERRUPTED: Final = 130


@with_engine_flags("max_num_seqs")
@with_sampling_flags
def run(
    model: Annotated[
        str | None, typer.Argument(help="`demo`, a short name (llama3.2:1b), a hub's (org/name:Q4_K_M), a GGUF file or a directory.")
    ] = None,
    prompt: Annotated[list[str] | None, typer.Argument(help="Answer this and end. What is piped follows it.", metavar="PROMPT...")] = None,
    system: Annotated[str | None, typer.Option(help="System prompt.", metavar="TEXT")] = None,
    verbose: Annotated[bool, typer.Option("--verbose", help="Show tokens per second and the time to the first token.")] = False,
    **given: Any,
) -> int:
    """Talk with a model, in this process. /help lists commands; stdin that is piped is the prompt."""
    from ridgeline.cli.library import fetch_missing
    from ridgeline.cli.output import LoadingProgress
    from ridgeline.cli.run_input import read_pipe
    from ridgeline.engine.llm import LLM

    settings = read_engine_flags(given, model, _choose_model)
    name = settings.engine.model
    words = " ".join(prompt or [])
    piped = read_pipe() if not sys.stdin.isatty() else ""
    if not sys.stdin.isatty() and not (words or piped).strip():
        raise ConfigError("there is no prompt: stdin is empty; give a prompt behind the model, or pipe one")
    arguments = {**engine_arguments(settings), "max_num_seqs": 1}
    sampling = {name: given.get(name) for name in FLAGS}
    for note in settings.notes:
        _print_note(f"note: {note}")
    fetch_missing(name)
    with LoadingProgress() as loading, located(settings), LLM(name, on_progress=loading.show, **arguments) as llm:
        findings = llm.check()
        loading.close()
        session = _open(llm, make_sampling_params(sampling, _defaults(llm, settings.server.generation_config)), system)
        session.verbose = verbose
        for finding in findings:
            _print_note(f"{finding.severity}: {finding}")
        if words:
            return _answer_once(session, f"{words}\n\n{piped}" if piped else words)
        if piped:
            return _run_piped(session, piped)
        return _run_on_terminal(session)


def _choose_model() -> str:
    """Asks on a terminal which of a few models to run. Raises ConfigError elsewhere, which names them."""
    from ridgeline.config.env import model_stores
    from ridgeline.facts.hub.names import starters
    from ridgeline.facts.hub.packaged import is_installed
    from ridgeline.facts.hub.source import find_local

    stores = model_stores()
    offers = []
    for each in starters():
        where = "here already" if find_local(each.name, stores) else _size(each.about_bytes)
        offers.append((each.name, f"{each.title}, {where}"))
    if is_installed("demo"):
        offers.append(("demo", "Gemma 3 270M, here already; a base model: it continues texts and does not answer"))
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        listed = "; ".join(f"{name} ({text.partition(';')[0]})" for name, text in offers)
        raise ConfigError(f"no model was named; small ones to begin with: {listed}", fix={"MODEL": "demo"})
    print("Which model? It is fetched once and kept.", file=sys.stderr)
    for number, (name, text) in enumerate(offers, 1):
        print(f"  {number}  {name:<14}{text}", file=sys.stderr)
    print("Number, or another name [1]: ", end="", file=sys.stderr, flush=True)
    try:
        answer = input().strip() or "1"
    except EOFError:
        raise ConfigError("no model was named") from None
    return offers[int(answer) - 1][0] if answer.isascii() and answer.isdigit() and 0 < int(answer[:3]) <= len(offers) else answer


def _size(about_bytes: int) -> str:
    return f"{about_bytes / 1e9:.1f} GB" if about_bytes >= 1e9 else f"{about_bytes / 1e6:.0f} MB"


def _defaults(llm: Any, generation_config: str) -> Any:
    """Parameters that the model's authors recommend; those for small models where they recommend nothing."""
    from ridgeline.core.params import SamplingParams

    found = llm.get_default_sampling_params(None)
    return replace(found, **UNADVISED) if generation_config == "auto" and found == SamplingParams(max_tokens=None) else found


def _open(llm: Any, params: Any, system: str | None) -> Any:
    """The session, in the mode that suits the model. Raises where a flag is out of range, before anything is typed."""
    from ridgeline.cli.run_session import Session

    llm.prepare("x", params)
    kind = llm.kind
    if kind.kind == "base":
        chat = "; /mode chat talks with it nevertheless" if llm.chat_template is not None and sys.stdin.isatty() else ""
        why = f"this is a base model ({kind.reason}): it was trained to continue texts, not to answer"
        _print_note(f"{why}, so it opens as completion{chat}")
    return Session(llm, params, system, "completion" if kind.kind == "base" else "chat")


def _print_note(text: str) -> None:
    from ridgeline.cli.output import print_status

    print_status(f"{DIM}{text}{PLAIN}" if sys.stderr.isatty() else text)


def _answer_once(session: Any, message: str) -> int:
    """Prints the answer to one message; returns the exit status."""
    _print_answer(session, session.answer(message))
    return EXIT_INTERRUPTED if session.stats.finish_reason == "abort" else 0


def _run_piped(session: Any, text: str) -> int:
    """Answers a piped text: as one message, or line by line, as if it were typed, where the first line is a command. A line that fails is
    told and the next one is read; the exit status is 1 then."""
    from ridgeline.cli.run_commands import is_command
    from ridgeline.cli.run_input import from_lines, messages

    if not is_command(text):
        return _answer_once(session, text[1:] if text.startswith("//") else text)
    failures = 0
    for message in messages(from_lines(text), lambda: session.multiline):
        try:
            if not _take(session, message, None):
                break
        except EngineDeadError:
            raise
        except RidgelineError as error:
            failures += 1
            _print_note(f"error: {error}")
    return 1 if failures else 0


def _run_on_terminal(session: Any) -> int:
    """Answers messages until the input ends. No error but the engine's death ends it."""
    from ridgeline.cli.output import print_status
    from ridgeline.cli.run_input import LineEditor, from_terminal, messages
    from ridgeline.config.env import history_file

    editor = LineEditor(history_file())
    _print_note(f"{session.llm.config.model}, {session.llm.limits.max_model_len:,} tokens of context. /help lists commands, Ctrl+D ends.")
    while True:
        try:
            for message in messages(from_terminal, lambda: session.multiline):
                editor.remember(message)
                try:
                    if not _take(session, message, editor):
                        return 0
                except EngineDeadError:
                    raise
                except RidgelineError as error:
                    print_status(str(error))
            print(file=sys.stderr)
            return 0
        except KeyboardInterrupt:
            print("\n(Ctrl+D or /bye ends)", file=sys.stderr)


def _take(session: Any, text: str, editor: Any) -> bool:
    """Runs a command or answers a message; False ends the session. Raises RidgelineError."""
    from ridgeline.cli.run_commands import is_command, run_command

    if not is_command(text):
        _print_answer(session, session.answer(text[1:] if text.startswith("//") else text))
        return True
    reply = run_command(text, session)
    if reply.text:
        _print_note(reply.text)
    if reply.draft is not None:
        if editor is None:
            raise ConfigError("/edit takes the new text where there is no terminal, as in /edit TEXT")
        editor.offer(reply.draft)
    if reply.message is not None:
        _print_answer(session, session.answer(reply.message))
    if reply.goes_on:
        _print_answer(session, session.go_on())
    return not reply.is_exit


def _print_answer(session: Any, pieces: Iterator[str]) -> None:
    """Prints the answer as it is generated, then with --verbose its statistics."""
    on_terminal = sys.stdout.isatty()
    if on_terminal and session.mode == "completion" and session.unanswered is not None:
        print(f"{DIM}{session.unanswered}{PLAIN}", end="", flush=True)
    try:
        with _interruptible(session.llm):
            for piece in pieces:
                print(piece.translate(CONTROL_CHARACTERS) if on_terminal else piece, end="", flush=True)
    except RequestError as error:
        raise _with_advice(error, session) from None
    print(flush=True)
    stats = session.stats
    if session.verbose:
        _print_note(_format_stats(stats))
    if stats.finish_reason == "length" and stats.prompt_tokens + stats.tokens >= session.llm.limits.max_model_len:
        raise ConfigError(f"the answer is cut off: {_context_full_message(session)}")
    if stats.finish_reason == "length" and sys.stdin.isatty():
        _print_note("(cut at max_tokens; /more goes on)")


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
    parts = [f"{stats.tokens} tokens", f"{rate:.1f} tok/s" if rate else "", f"first token {stats.first * 1000:.0f} ms"]
    parts += [f"{stats.cached_tokens} of {stats.prompt_tokens} prompt tokens cached"]
    parts += ["stopped" if stats.finish_reason == "abort" else ""]
    return " · ".join(part for part in parts if part)
