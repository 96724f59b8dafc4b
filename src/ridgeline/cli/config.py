"""`ridgeline config explain`: each effective setting of an engine, its origin, reason and cost, and the metric that shows a wrong value."""

import json
from dataclasses import asdict, fields, replace
from typing import Annotated, Any

import typer

from ridgeline.config.groups import EngineConfig
from ridgeline.errors import ConfigError


def config(
    what: Annotated[str, typer.Argument(help="What to do: explain.")],
    model: Annotated[str, typer.Argument(help="`demo`, the path of a GGUF file, or a directory.")],
    change: Annotated[list[str] | None, typer.Option("--set", help="A setting of serve, name=value.")] = None,
    device: Annotated[str, typer.Option(help="Device for costs in milliseconds; `this` is this machine.")] = "this",
    as_json: Annotated[bool, typer.Option("--json", help="One JSON list: bytes and seconds.")] = False,
) -> None:
    """Explain each setting: value, origin, reason, cost, and the metric that shows it is wrong."""
    if what != "explain":
        raise ConfigError(f"config {what[:40]!r} is not known; write config explain MODEL")
    rows = _explain(_parse_settings(model, change or []), device)
    if as_json:
        print(json.dumps([asdict(row) for row in rows]))
    else:
        _print_table(rows)


def _parse_settings(model: str, changes: list[str]) -> EngineConfig:
    """The requested settings. Raises ConfigError."""
    known = {field.name: field.type for field in fields(EngineConfig) if field.name != "model"}
    values: dict[str, Any] = {}
    for change in changes:
        name, equals, text = change.partition("=")
        name = name.replace("-", "_")
        if not equals or name not in known:
            raise ConfigError(f"--set {change[:60]!r} is not understood; write name=value with one of: {', '.join(known)}")
        values[name] = _parse_value(name, str(known[name]), text)
    return replace(EngineConfig(model), **values)


def _parse_value(name: str, kind: str, text: str) -> Any:
    if "bool" in kind and text in ("true", "false"):
        return text == "true"
    try:
        return text if "str" in kind else float(text) if "float" in kind else int(text)
    except ValueError:
        raise ConfigError(f"--set {name}={text[:40]} is not a number") from None


def _explain(requested: EngineConfig, device: str) -> list[Any]:
    from ridgeline.config.env import model_stores
    from ridgeline.config.resolve import resolve
    from ridgeline.config.runner import resolve_runner
    from ridgeline.engine.compose import prefill_budget
    from ridgeline.facts.hardware.gpu import gpu_missing
    from ridgeline.facts.hardware.machine import extension_missing, machine_facts
    from ridgeline.facts.headers.read import describe_model, read_model_facts
    from ridgeline.facts.hub.source import resolve_model
    from ridgeline.planning.arguments import PlanOptions, deployment_of
    from ridgeline.planning.memory import kv_costs
    from ridgeline.planning.settings import CostInput, explain
    from ridgeline.planning.step import step_seconds

    facts = read_model_facts(resolve_model(requested.model, model_stores()))
    machine = machine_facts()
    config, decisions = resolve_runner(requested, no_extension=extension_missing(), no_gpu=gpu_missing(), cpu_cores=machine.cpu_cores)
    costs = kv_costs(facts, requested.block_size, config.tokens, config.kv_dtype)
    resolved = resolve(config, context=facts.context, memory_bytes=machine.memory_bytes, costs=costs)
    resolved = replace(resolved, decisions=decisions + resolved.decisions)
    options = PlanOptions(device=device, kv_dtype=config.kv_dtype, context=resolved.config.max_model_len, chunk=config.tokens)
    deployment = deployment_of(describe_model(requested.model, model_stores()), options)
    budget = prefill_budget(resolved.config, step_seconds(deployment, config.tokens))
    return explain(requested, resolved, CostInput(resolved.config, resolved.blocks, costs, facts, deployment, budget))


def _print_table(rows: list[Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=200)
    table = Table(show_lines=True)
    for name in ("setting", "value", "origin", "why", "costs", "wrong if"):
        table.add_column(name, overflow="fold")
    for row in rows:
        costs = [f"{row.bytes / 1e9:.3f} GB" if row.bytes >= 1e6 else f"{row.bytes:,} B"] if row.bytes is not None else []
        costs += [f"{row.seconds * 1e3:.1f} ms"] if row.seconds is not None else []
        value = "–" if row.value is None else f"{row.value:,}" if type(row.value) is int else str(row.value)
        table.add_row(row.name, value, row.origin, row.reason, "\n".join(costs), row.metric)
    console.print(table)
