"""`ridgeline investigate`: an alert of a running server, or of an incident that one recorded: phase, evidence, first lever."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from ridgeline.cli.admin_client import KeyOption, ServerOption, ask_admin
from ridgeline.cli.explain import make_query
from ridgeline.cli.output import print_json, print_notes
from ridgeline.errors import ConfigError, nearest

ALERT_HELP: Final = "The alert, as deploy/alerts.yml names it: FirstTokenLate, Down …; or ThroughputLow, PrefixMisses, AnswersDiffer."


def investigate(
    alert: Annotated[str, typer.Argument(help=ALERT_HELP)] = "FirstTokenLate",
    incident: Annotated[Path | None, typer.Option(help="A folder that the flight recorder wrote [a running server].")] = None,
    window: Annotated[str, typer.Option(help="How far back: 30s, 5m, 2h.")] = "5m",
    server: ServerOption = None,
    key_file: KeyOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
) -> None:
    """Take an alert; say its phase, the evidence and the first lever."""
    from ridgeline.observe import investigate as causes

    check(alert, incident, window)
    asked = f"window_seconds={make_query(None, None, window)['window_seconds']}"
    if alert == causes.DOWN and incident is None:
        from ridgeline.cli.investigate_down import investigate_down

        found: causes.Finding | None = investigate_down(server, key_file)
    elif alert == causes.PREFIXES:
        found = causes.investigate_prefixes(ask_admin(server, key_file, "GET", f"/prefix?{asked}"))
    elif alert in (causes.ANSWERS, causes.ODD):
        status = ask_admin(server, key_file, "GET", "/status")
        found = causes.investigate_answers(status) if alert == causes.ANSWERS else causes.investigate_odd(status)
    else:
        found = _by_time(alert, server, key_file, asked, incident)
    if found is None:
        raise ConfigError(f"nothing of the kind has happened within {window}: nothing can be said of {alert}; widen --window")
    if as_json:
        print_json(asdict(found))
    else:
        print_notes(f"{found.alert}: {found.phase}, {found.cause}", *(f"  {each}" for each in found.evidence), f"First: {found.lever}")


def _by_time(alert: str, server: str | None, key_file: Path | None, asked: str, incident: Path | None) -> Any:
    """The finding of an alert about how long requests take, or how they end; of a recorded incident, or of a window of a server."""
    from ridgeline.observe import failures
    from ridgeline.observe.investigate import COUNTED, DOWN
    from ridgeline.observe.investigate import investigate as by_time

    told = ask_admin(server, key_file, "GET", f"/explain?{asked}") if incident is None else read_incident(incident)
    ttft, total = (_distribution(told.get(part)) for part in ("ttft", "total"))
    if alert not in COUNTED | {DOWN}:
        return by_time(alert, ttft, total)
    if incident is None:
        status = ask_admin(server, key_file, "GET", "/status")
        engine = failures.EngineTold(status["engine_starts"], status["last_failure"], status["not_ready"])
    else:
        engine = failures.EngineTold(reason=told.get("reason") if told.get("kind") == "engine" else None)
    counts = {str(name): count for name, count in (told.get("counts") or {}).items() if isinstance(count, int)}
    return failures.investigate_counts(alert, counts, engine, ttft, total)


def check(alert: str, incident: Path | None, window: str) -> None:
    """Raises ConfigError for an alert that there is none of, and for a folder that is no incident."""
    from ridgeline.observe.investigate import ALERTS, ANSWERS, ODD, PREFIXES, QUESTIONS

    make_query(None, None, window)
    known = sorted(ALERTS | QUESTIONS)
    if alert not in known:
        near = nearest(alert, known)
        hint = f"; did you mean {near}?" if near else ""
        raise ConfigError(f"{alert[:60]!r} is no alert that can be investigated{hint} (known: {', '.join(known)})")
    if incident is not None:
        read_incident(incident)
        if alert in (PREFIXES, ANSWERS, ODD):
            raise ConfigError(f"a recorded incident has no texts: {alert} asks a running server", fix={"--incident": None})


def read_incident(incident: Path) -> dict[str, Any]:
    """Reads what the flight recorder told of an incident. Raises ConfigError."""
    from ridgeline.errors import ModelFormatError, ModelNotFoundError
    from ridgeline.facts.files.json_file import read_object

    try:
        return read_object(incident / "incident.json", 1 << 20)
    except (ModelFormatError, ModelNotFoundError) as error:
        raise ConfigError(f"{str(incident)!r:.200} is no incident: {error}") from None


def _distribution(found: dict[str, Any] | None) -> Any:
    from ridgeline.observe.shares import Distribution

    if not found:
        return None
    causes = {each["cause"]: (each["median_ms"] / 1e3, each["slow_ms"] / 1e3) for each in found["causes"]}
    return Distribution(found["requests"], found["p50_ms"] / 1e3, found["p95_ms"] / 1e3, causes)
