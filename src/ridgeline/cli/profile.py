"""`ridgeline profile`: what a running server's next steps do, for Perfetto; or the functions of its loops of most time."""

import json
from collections import defaultdict
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from ridgeline.cli.admin_client import KeyOption, ServerOption, ask_admin
from ridgeline.cli.output import print_json, print_status, print_table

ANSWER_SECONDS: Final = 60.0
TOP: Final = 15
"""Phases or ops that are listed, by time."""
OUTER: Final = ("step", "run")
"""Spans that hold the others."""


def profile(
    steps: Annotated[
        int | None, typer.Option(min=1, max=1_000, help="Trace so many steps, phase by phase [functions are profiled].")
    ] = None,
    seconds: Annotated[float, typer.Option(min=0.1, max=60, help="How long, at most; the server is slower meanwhile.")] = 10.0,
    server: ServerOption = None,
    key_file: KeyOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
) -> None:
    """Trace the next steps of a server's engine, or profile the functions of front end and engine: files, and what took most time."""
    body = {"seconds": seconds} | ({} if steps is None else {"steps": steps})
    found = ask_admin(server, key_file, "POST", "/profile", body, seconds + ANSWER_SECONDS)
    if as_json:
        print_json(found)
    elif steps is None:
        for name, lines in (("front end", found["front_end_top"]), ("engine", found["engine_top"])):
            print_status("\n".join([f"{name}: {found[name.replace(' ', '_')] or 'it wrote no file in time'}", *lines]))
    elif found["file"] is None:
        print_status("the engine wrote no file in time")
    else:
        print_steps(Path(found["file"]), seconds)


def print_steps(file: Path, seconds: float) -> None:
    """Prints where the time of traced steps went, a line for each phase or op, and the file."""
    read = json.loads(file.read_text("utf-8"))
    events: list[dict[str, Any]] = [event for event in (read if isinstance(read, list) else read["traceEvents"]) if event.get("ph") == "X"]
    if not events:
        print_status(f"no step ran within {seconds:g} s; send requests meanwhile, or give more --seconds")
        return
    taken: dict[str, float] = defaultdict(float)
    calls: dict[str, int] = defaultdict(int)
    for event in events:
        name = "; ".join(op.partition(" → ")[0] for op in event["name"].split("; "))  # of all layers together
        taken[name] += event["dur"] / 1e3
        calls[name] += 1
    whole = taken.get("step", 0.0) or sum(taken.values()) or 1.0
    names = sorted(taken.keys() - {*OUTER}, key=taken.__getitem__, reverse=True)[:TOP]
    rows = [
        (name[:50], f"{calls[name]:,}", f"{taken[name]:,.2f}", f"{taken[name] / whole:.0%}") for name in (*OUTER, *names) if name in taken
    ]
    print_table("", ("step, or phase on all threads", "times", "ms", "of steps"), rows)
    print_status(f"{file}: open it with https://ui.perfetto.dev")
