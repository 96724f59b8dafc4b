"""`ridgeline config explain`: each effective setting of a server, its origin, reason and cost, and the metric that shows a wrong value."""

import json
import shutil
import textwrap
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from ridgeline.cli.output import print_status
from ridgeline.cli.setting_flags import located, read_flags, with_setting_flags
from ridgeline.config.groups import public_fields
from ridgeline.config.setting import setting_of
from ridgeline.config.sources import GROUPS, Settings, show_value
from ridgeline.config.values import unknown_name
from ridgeline.errors import ConfigError

if TYPE_CHECKING:
    from ridgeline.config.groups import EngineConfig
    from ridgeline.config.resolve import Decision
    from ridgeline.facts.model import ModelFacts
    from ridgeline.planning.deployment import Deployment
    from ridgeline.planning.heads import PlannedHeads

MAX_WIDTH: Final = 100


@with_setting_flags("--device")
def config(
    what: Annotated[str, typer.Argument(help="What to do: explain.")],
    model: Annotated[str | None, typer.Argument(help="`demo`, the path of a GGUF file, or a directory.")] = None,
    change: Annotated[list[str] | None, typer.Option("--set", help="A setting of serve, name=value.")] = None,
    on: Annotated[str, typer.Option("--device", help="Device that it would run on; `this` is this machine.")] = "this",
    as_json: Annotated[bool, typer.Option("--json", help="One JSON list: bytes and seconds.")] = False,
    **given: Any,
) -> None:
    """Explain each setting: value, origin, reason, cost, and the metric that shows it is wrong."""
    if what != "explain":
        raise ConfigError(f"config {what[:40]!r} is not known; write config explain MODEL", fix={what: "explain"})
    settings = read_flags(given, model, _parse_changes(change or []))
    for note in settings.notes:
        print_status(f"note: {note}")
    with located(settings):
        rows = _explain(settings, on)
    if as_json:
        print(json.dumps([asdict(row) for row in rows]))
    else:
        _print(rows)


def _parse_changes(changes: list[str]) -> dict[str, str]:
    """Settings of --set. Raises ConfigError."""
    known = [name for name in public_fields(*GROUPS) if name != "model"]
    values: dict[str, str] = {}
    for change in changes:
        name, equals, text = change.partition("=")
        name = name.replace("-", "_")
        if not equals:
            raise ConfigError(f"--set {change[:60]!r} is not understood; write name=value with one of: {', '.join(known)}")
        if name not in known:
            raise unknown_name(name, known, "--set")
        values[name] = text
    return values


def _explain(settings: Settings, device_name: str) -> list[Any]:
    from ridgeline.config.env import model_stores
    from ridgeline.config.resolve import MEMORY_SHARE, resolve
    from ridgeline.config.runner import resolve_runner
    from ridgeline.engine.compose import prefill_budget
    from ridgeline.facts.hardware.gpu import gpu_missing, read_gpus
    from ridgeline.facts.hardware.machine import extension_missing, machine_facts
    from ridgeline.facts.headers.read import describe_files, model_headers, read_model_facts
    from ridgeline.planning.arguments import THIS_MACHINE, PlanOptions, deployment_of, device_of
    from ridgeline.planning.deployment import rank_kv_budget
    from ridgeline.planning.memory import RESERVE_SHARE, kv_costs
    from ridgeline.planning.settings import CostInput, explain
    from ridgeline.planning.step import step_seconds

    requested, machine, is_this = settings.engine, machine_facts(), device_name.lower() == THIS_MACHINE
    with model_headers(requested.model, model_stores()) as path:
        facts, described = read_model_facts(path), describe_files(path)
    if facts.activation_scales:
        print_status(f"note: {facts.activation_note}")
    device = device_of(PlanOptions(device=device_name))
    no_gpu = None if device.is_gpu else gpu_missing() if is_this else f"{device.name} is none"
    config, decisions = resolve_runner(requested, no_extension=extension_missing(), no_gpu=no_gpu, cpu_cores=machine.cpu_cores)
    if config.runner == "cuda" and not device.is_gpu:  # the table of devices does not have it
        device = replace(device, memory_bytes=int(next(iter(read_gpus())).memory or 0) << 20)
    context = max(2, min(config.max_model_len or facts.context, facts.context))
    options = PlanOptions(device=device_name, kv_dtype=config.kv_dtype, context=context, chunk=config.tokens)
    deployment = replace(deployment_of(described, options), device=device)
    costs = kv_costs(facts, config)
    memory, share, host = device.memory_bytes, MEMORY_SHARE, None
    if config.runner == "cuda":
        memory, share, host = int(rank_kv_budget(replace(deployment, utilisation=1 - RESERVE_SHARE))), 1.0, machine.memory_bytes
    resolved = resolve(config, context=facts.context, memory_bytes=memory, costs=costs, share=share, host_bytes=host)
    resolved = replace(resolved, decisions=decisions + resolved.decisions)
    deployment = replace(deployment, context=resolved.config.max_model_len or deployment.context)
    budget = prefill_budget(resolved.config, step_seconds(deployment, config.tokens))
    if resolved.config.speculative != "off":
        drafts = _drafter(resolved.config, facts, deployment)
        resolved = replace(resolved, decisions=(*resolved.decisions, _speculation(resolved.config, replace(deployment, draft=drafts))))
    return explain(settings, resolved, CostInput(resolved.config, resolved.blocks, costs, facts, deployment, budget))


def _drafter(config: "EngineConfig", facts: "ModelFacts", deployment: "Deployment") -> "ModelFacts | PlannedHeads | None":
    """The drafter beside the model of these facts, to plan with; None where nothing does. Raises ConfigError where heads do not fit."""
    from ridgeline.config.env import model_stores
    from ridgeline.facts.headers.heads import read_heads
    from ridgeline.facts.headers.predictor import find_predictor, read_predictor
    from ridgeline.facts.headers.read import describe_files, model_headers
    from ridgeline.planning.heads import plan_heads

    if config.draft_model is None and config.speculative not in ("mtp", "auto"):
        return None
    with model_headers(config.draft_model or config.model, model_stores()) as path:
        if config.draft_model is None:
            found = (read_predictor if config.speculative == "mtp" else find_predictor)(path, facts)
        else:
            found = read_heads(path, facts)
            if found is None:
                return describe_files(path)
    native, model, dtype = not deployment.device.is_gpu, deployment.model, deployment.dtype
    return None if found is None else replace(plan_heads(model, found.kind, dtype, native=native), most=found.most)


def _speculation(config: "EngineConfig", deployment: "Deployment") -> "Decision":
    """The decision on drafts that an engine's start would take, by the planner's seconds."""
    from ridgeline.engine.drafting import DraftPrices, speculation_decision
    from ridgeline.planning.heads import PlannedHeads
    from ridgeline.sim.fleet.drafts import draft_prices
    from ridgeline.sim.fleet.durations import RooflineDurations, verification_prices
    from ridgeline.sim.fleet.scenario import HOST_SECONDS

    device, drafting, most = deployment.device, draft_prices(deployment), config.num_speculative_tokens
    if isinstance(deployment.draft, PlannedHeads):
        most = min(most, deployment.draft.most or most)
    steps = verification_prices(RooflineDurations(deployment, device.host_seconds or HOST_SECONDS[device.is_gpu]))
    hides = device.is_gpu and drafting is not None and config.speculative != "auto"
    prices = DraftPrices(steps, most, config.depth > 1 and not hides, "predicted", None if drafting is None else drafting.pass_seconds)
    return speculation_decision(config, prices, config.rows)


def _print(rows: list[Any]) -> None:
    """A paragraph per setting: name, value and origin, then reason, cost and the sign of a wrong value."""
    known = public_fields(*GROUPS)
    width = max(40, min(MAX_WIDTH, shutil.get_terminal_size().columns))
    wrapper = textwrap.TextWrapper(width, initial_indent="    ", subsequent_indent="      ", break_long_words=False, break_on_hyphens=False)
    for row in rows:
        origin = f"{row.origin}: {row.place}" if row.place and row.origin != "flag" else row.place or row.origin
        value = row.value if setting_of(known[row.name]).secret else show_value(row.value, setting_of(known[row.name]))
        costs = [f"{row.bytes / 1e9:.3f} GB" if row.bytes >= 1e6 else f"{row.bytes:,} B"] if row.bytes else []
        costs += [f"{row.seconds * 1e3:.1f} ms"] if row.seconds is not None else []
        print(f"{row.name} {value}  ({origin})")
        for line in (row.reason, f"costs {', '.join(costs)}" if costs else "", f"wrong if {row.metric}" if row.metric else ""):
            print("\n".join(wrapper.wrap(line)), end="\n" if line else "")
