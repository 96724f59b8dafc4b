"""`ridgeline show`: what is known about one model, here or on the hub: facts, template, licence, provenance, fit."""

from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ridgeline.cli.library import MODEL_HELP, describe_fit, format_bytes, plan_here
from ridgeline.cli.list import ORIGINS, describe_use
from ridgeline.cli.output import print_json
from ridgeline.errors import ModelFormatError, ModelNotFoundError

if TYPE_CHECKING:
    from ridgeline.config.env import ModelStores

TEMPLATE_KEY = "tokenizer.chat_template"
MAX_TEMPLATE_BYTES = 1 << 20


def show(
    model: Annotated[str, typer.Argument(help=f"`demo`, a file, a directory, a name as `list` shows it. {MODEL_HELP}")],
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object, the chat template included.")] = False,
) -> None:
    """Show a model: facts, chat template, licence, where it comes from, whether it fits. Of one that is not here the header is read."""
    from ridgeline.config.env import model_stores

    with ExitStack() as stack:
        found = _describe(model, model_stores(), stack)
    if as_json:
        print_json(found)
        return
    for key, value in found.items():
        if key == "bytes":
            key, value = "size", format_bytes(value)
        if key == "chat_template":
            value = f"its own, {len(value):,} characters (--json prints it)" if value else "none"
        if value not in (None, "", [], {}):
            print(f"{key.replace('_', ' '):<16} {_text(value)}")


def _text(value: Any) -> str:
    if isinstance(value, Mapping):
        return "\n                 ".join(f"{digest}  {name}" for name, digest in value.items())
    return f"{value:,}" if isinstance(value, int) else str(value)


def _describe(name: str, stores: "ModelStores", stack: ExitStack) -> dict[str, Any]:
    """The lines that `show` prints, in order. Files of a hub's headers live as long as `stack`."""
    from ridgeline.facts.headers.read import describe_files, read_model_facts
    from ridgeline.facts.hub.digests import weight_files
    from ridgeline.facts.hub.source import find_here

    path = find_here(name, stores)
    if path is not None:
        provenance = _local(name, path, stores)
    else:
        path, provenance = _remote(name, stores, stack)
    facts, files = describe_files(path), weight_files(path)
    report = plan_here(facts)
    return {
        "name": name,
        **provenance,
        "bytes": sum(file.stat().st_size for file in files),
        "architecture": facts.architecture,
        "runs_here": _reason(path, read_model_facts),
        "parameters": facts.total_parameters,
        "format": facts.format_name,
        "layers": facts.layers,
        "context": facts.context,
        "attention": f"{facts.attention_kind}, {facts.heads} query heads, {facts.kv_heads} KV heads of {facts.head_dim}",
        "kv_per_token": format_bytes(report.kv_bytes_per_token),
        "chat_template": read_template(path),
        "fit": describe_fit(report),
    }


def _reason(path: Path, read: Any) -> str:
    try:
        read(path)
    except ModelFormatError as error:
        return f"no: {error}"
    return "yes"


def _remote(name: str, stores: "ModelStores", stack: ExitStack) -> tuple[Path, dict[str, Any]]:
    """(path of the headers, provenance) of a model that only the hub has."""
    from ridgeline.facts.hub.remote import remote_headers
    from ridgeline.facts.hub.source import find_remote

    client, selection = find_remote(name, stores)
    repository = selection.repository
    return stack.enter_context(remote_headers(client, selection)), {
        "origin": f"not here; {client.endpoint}/{repository.name.repository} at {repository.commit}",
        "pinned": _pinned(name),
        "licence": repository.licence,
        "digests": {file.path: file.digest for file in selection.files},
    }


def _local(name: str, path: Path, stores: "ModelStores") -> dict[str, Any]:
    """Provenance of a model on this machine."""
    from ridgeline.facts.hub.library import find_entry
    from ridgeline.facts.hub.names import short_name
    from ridgeline.facts.hub.packaged import PACKAGED, packaged_digest

    entry, short = find_entry(name, stores), short_name(name)
    record = entry.record if entry is not None else None
    origin = ORIGINS.get(entry.model.origin, entry.model.origin) if entry is not None else "a file"
    return {
        "path": str(path),
        "origin": f"{origin}{f', from {record.source}' if record is not None and record.source else ''}",
        "pinned": _pinned(name),
        "used": describe_use(record) if entry is not None else "",
        "licence": (record.licence if record is not None else "") or (short.licence if short is not None else "") or _own_licence(path),
        "digests": packaged_digest(name) if name in PACKAGED else dict(record.digests) if record is not None else {},
    }


def _pinned(name: str) -> str:
    """The note of the table of short names about the digests of `name`; "" for other names."""
    from ridgeline.facts.hub.names import short_name

    entry = short_name(name)
    if entry is None:
        return ""
    return f"{entry.hub}, by SHA-256" if entry.hub.sha256 else f"{entry.hub}; no digest is known, the hub's own is checked"


def _own_licence(path: Path) -> str:
    """The licence that a GGUF file states."""
    from ridgeline.facts.files.gguf import read_header

    value = read_header(path).metadata.get("general.license") if path.is_file() else None
    return value[:60] if isinstance(value, str) and value.isprintable() else ""


def read_template(path: Path) -> str:
    """The chat template of a model's own files; "" without one."""
    from ridgeline.facts.files.gguf import read_header
    from ridgeline.facts.files.json_file import read_object, read_text

    if path.is_file():
        value = read_header(path).metadata.get(TEMPLATE_KEY)
        return value if isinstance(value, str) else ""
    try:
        if (path / "chat_template.jinja").is_file():
            return read_text(path / "chat_template.jinja", MAX_TEMPLATE_BYTES)
        value = read_object(path / "tokenizer_config.json", MAX_TEMPLATE_BYTES).get("chat_template")
    except (ModelFormatError, ModelNotFoundError):
        return ""
    return value if isinstance(value, str) else ""
