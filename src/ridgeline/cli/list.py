"""`ridgeline list`: the models on this machine, whatever program fetched them, and the short names that can be pulled."""

import time
from typing import Annotated, Any, Final

import typer

from ridgeline.cli.library import format_bytes
from ridgeline.cli.output import print_json, print_status, print_table

ORIGINS: Final = {"hub": "Hugging Face cache", "package": "Python package"}
UNITS: Final = ((86_400.0, "day"), (3_600.0, "hour"), (60.0, "minute"))


def list(
    all_names: Annotated[bool, typer.Option("--all", "-a", help="Also the short names that can be pulled.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object: names, paths, bytes, origins, times.")] = False,
) -> None:
    """List the models on this machine: name, size, quantisation, where they lie, last use."""
    from ridgeline.config.env import model_stores
    from ridgeline.facts.hub.library import list_models
    from ridgeline.facts.hub.names import short_names, starters

    entries = list_models(model_stores())
    short = {name: entry for name, entry in short_names().items() if ":" in name} if all_names else {}
    if as_json:
        known = {"short_names": [_short_as_dict(entry) for entry in short.values()]} if all_names else {}
        print_json({"models": [_as_dict(entry) for entry in entries], **known})
        return
    if entries:
        print_table("", ("name", "size", "format", "origin", "used"), [_row(entry) for entry in entries])
    else:
        small = ", ".join(f"{entry.name} ({_about(entry)})" for entry in starters())
        print_status(f"There is no model on this machine yet. `ridgeline pull NAME` fetches one: {small}; `list --all` shows more.")
    if short:
        rows = [(name, _about(each), each.title, each.licence, "yes" if each.hub.sha256 else "no") for name, each in short.items()]
        print_table("\nTo pull (`show NAME` says where from)", ("short name", "size, about", "model", "licence", "digest known"), rows)


def _row(entry: Any) -> tuple[str, ...]:
    model, origin = entry.model, ORIGINS.get(entry.model.origin, entry.model.origin)
    return model.name, format_bytes(model.bytes), model.quantisation or "–", origin, describe_use(entry.record)


def _about(entry: Any) -> str:
    """A size of two digits, as it is in the table."""
    return f"{entry.about_bytes / 1e9:.2g} GB"


def describe_use(record: Any) -> str:
    """The time since a model's last use, in words."""
    if record is None:
        return "never"
    passed = max(0.0, time.time() - record.used)
    for seconds, unit in UNITS:
        if passed >= seconds:
            count = int(passed / seconds)
            return f"{count} {unit}{'s' * (count > 1)} ago"
    return "just now"


def _as_dict(entry: Any) -> dict[str, object]:
    model, record = entry.model, entry.record
    return {
        "name": model.name,
        "path": str(model.path),
        "bytes": model.bytes,
        "quantisation": model.quantisation,
        "origin": model.origin,
        "commit": model.commit,
        "used": record.used if record else None,
        "fetched_here": entry.is_own,
    }


def _short_as_dict(entry: Any) -> dict[str, object]:
    hub = entry.hub
    return {
        "name": entry.name,
        "title": entry.title,
        "hub": str(hub),
        "about_bytes": entry.about_bytes,
        "kind": entry.kind,
        "licence": entry.licence,
        "sha256": dict(hub.sha256),
    }
