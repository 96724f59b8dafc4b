"""`ridgeline replay`: decides a recording again and says whether the decisions are the same; turns it into a trace and a step log."""

import json
from pathlib import Path
from typing import Annotated

import typer


def replay(
    recording: Annotated[Path, typer.Argument(help="What `ridgeline serve MODEL --record FILE` wrote.")],
    trace: Annotated[Path | None, typer.Option(help="Write its requests here, for `sim --trace` and `whatif`: lengths, never ids.")] = None,
    step_log: Annotated[Path | None, typer.Option(help="Write its steps here, for `sim --set step_time=FILE`.")] = None,
) -> None:
    """Decide a recording again with this version's scheduler and compare."""
    from ridgeline.cli.main import fail
    from ridgeline.sim.fleet import replay as recorded

    compared, difference = recorded.replay(recording)
    if trace is not None:
        _write(trace, [{name: getattr(each, name) for name in ("time", "prompt", "output", "prefix", "shared")}
                       for each in recorded.arrivals(recording)])  # fmt: skip
    if step_log is not None:
        _write(step_log, [{"tokens": each.tokens, "cached": each.cached, "seconds": each.seconds} for each in recorded.steps(recording)])
    if difference is not None:
        fail(f"decision {difference.number} differs: recorded {difference.recorded!r:.200}, decided now {difference.replayed!r:.200}")
    print(f"{compared} decisions, all as recorded")


def _write(path: Path, entries: list[dict[str, float]]) -> None:
    path.write_text("".join(json.dumps(entry) + "\n" for entry in entries), encoding="utf-8")
