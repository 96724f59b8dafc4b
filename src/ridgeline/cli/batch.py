"""`ridgeline batch`: a file of requests in OpenAI's form, answered by a model in this process. Killed, the same command goes on."""

import asyncio
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from ridgeline.cli.output import print_status
from ridgeline.cli.setting_flags import located, read_engine_flags, with_engine_flags
from ridgeline.errors import ConfigError

if TYPE_CHECKING:
    from ridgeline.config.sources import Settings
    from ridgeline.server.batch import Answers, Line

PER_ROW: Final = 2
"""Requests under way for each row of the engine, so that none waits for the front end."""
STEP_MS: Final = 60_000
"""Nobody waits for a token of a file: prompts fill steps however long that makes them, unless --step-ms says otherwise."""


@with_engine_flags()
def batch(
    requests: Annotated[str, typer.Argument(help="File with a request per line: custom_id, method, url, body.", metavar="IN.jsonl")],
    output: Annotated[str, typer.Argument(help="File to write answers to, when all are there.", metavar="OUT.jsonl")],
    model: Annotated[str, typer.Option(help="`demo`, a GGUF file, a model directory, or a name of the hub (org/name).")],
    served_model_name: Annotated[str | None, typer.Option(help="Name of the model in the requests [the model's].")] = None,
    **given: Any,
) -> None:
    """Answer a file of requests with a model, in this process."""
    from ridgeline.server.batch import open_answers, read_lines

    settings = read_engine_flags(given, model)
    source, target = Path(requests).expanduser(), Path(output).expanduser()
    check_files(source, target)
    lines = read_lines(source, model)
    if not lines:
        raise ConfigError(f"{source.name} has no requests")
    with located(settings), open_answers(target) as answers:
        kept = answers.keep({line.custom_id: line for line in lines})
        if kept:
            print_status(f"{kept} of {len(lines)} requests were answered before")
        failed = asyncio.run(_run(settings, served_model_name, source, lines, answers, kept)) if kept < len(lines) else 0
        answers.finish(lines)
    print_status(f"{len(lines)} answers in {target}" + (f", {failed} of them errors" if failed else ""))


def check_files(source: Path, target: Path) -> None:
    """Raises ConfigError for files that cannot be these."""
    if not source.is_file():
        raise ConfigError(f"there is no file {str(source)!r:.200}")
    if not target.parent.is_dir():
        raise ConfigError(f"there is no folder {str(target.parent)!r:.200}")
    if target.exists():
        raise ConfigError(f"{target.name} is there already; remove it, or name another file")


async def _run(settings: "Settings", name: str | None, source: Path, lines: "list[Line]", answers: "Answers", kept: int) -> int:
    """Answers what is left; returns the number of errors."""
    from dataclasses import replace

    from ridgeline.cli.output import LoadingProgress
    from ridgeline.server.app import build_app
    from ridgeline.server.batch import answer_all
    from ridgeline.server.service import Service

    config = replace(settings.server, response_store="none", served_model_name=name, host="127.0.0.1", api_key=None, api_key_file=None)
    failed = 0
    engine = settings.engine if "step_ms" in settings.origins else replace(settings.engine, step_ms=STEP_MS)
    with LoadingProgress() as loading:
        service = Service(engine, config, loading.show)
        try:
            app = build_app(service)
            loaded = await service.start()
            loading.close()
            at_once = min(len(lines) - kept, PER_ROW * loaded.engine.info.rows)
            with _progress(len(lines), kept) as advance:

                def note(status: int) -> None:
                    nonlocal failed
                    failed += status != 200
                    advance()

                await answer_all(app, source, lines, answers, at_once, note)
        finally:
            await service.stop()
    return failed


@contextmanager
def _progress(total: int, kept: int) -> Iterator[Callable[[], None]]:
    """A bar on a terminal, elsewhere a line at the end. Yields what is called with each answer."""
    if not sys.stderr.isatty():
        began, count = time.monotonic(), 0

        def note() -> None:
            nonlocal count
            count += 1

        yield note
        print_status(f"{count} requests in {time.monotonic() - began:.1f} s")
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("requests", total=total, completed=kept)
        yield lambda: bar.advance(task)
