"""`ridgeline admin`: look at a running server of one's own and change it, over its Unix socket."""

from typing import Annotated, Any, Final

import typer

from ridgeline.cli.admin_client import KeyOption, ServerOption, ask_admin, of_model
from ridgeline.cli.main import group
from ridgeline.cli.output import print_json, print_status, print_table
from ridgeline.errors import ConfigError

VERBS: Final[dict[str, str]] = {
    "status": "Say what a server does now: state, start, engine, requests.",
    "cost": "Say what tenants and the last requests cost, and what was idle.",
    "knobs": "List the settings that can change now, or change one.",
    "swap": "Put another model in the place of the one that serves.",
    "models": "List several models: which are loaded, what they take.",
    "load": "Load one of several models.",
    "unload": "Unload one of several models behind its requests.",
    "profile": "Profile front end and engine, or trace the next steps.",
    "drain": "Take no new request, and end when the open ones have ended.",
}

LOAD_SECONDS: Final = 86_400.0
ModelOption = Annotated[str | None, typer.Option("--model", help="Which of several models [the first].")]

admin = group(VERBS, dict.fromkeys(VERBS, "admin") | {"profile": "profile"})
Json = Annotated[bool, typer.Option("--json", help="One JSON object.")]


@admin.callback()
def _admin() -> None:
    """Look at a running server and change it."""


def status(server: ServerOption = None, key_file: KeyOption = None, model: ModelOption = None, as_json: Json = False) -> None:
    """Say what a server does now: state, start, engine, requests."""
    found = ask_admin(server, key_file, "GET", of_model("/status", model))
    if as_json:
        print_json(found)
        return
    startup = found.pop("startup")
    found["start"] = f"{startup['stage']} {startup['progress']:.0%} after {startup['elapsed_seconds']:.1f} s"
    if startup["eta_seconds"]:
        found["start"] += f", {startup['eta_seconds']:.0f} s left"
    found["start_seconds"] = ", ".join(f"{name} {seconds:.2f}" for name, seconds in found["start_seconds"].items())
    found["knobs"] = ", ".join(f"{name}={value}" for name, value in found["knobs"].items())
    width = max(map(len, found))
    print("\n".join(f"{name.replace('_', ' '):<{width}}  {'–' if value is None else value}" for name, value in found.items()))


def cost(
    requests: Annotated[int, typer.Option(min=0, max=1_000, help="Of the last requests, so many.")] = 10,
    server: ServerOption = None,
    key_file: KeyOption = None,
    model: ModelOption = None,
    as_json: Json = False,
) -> None:
    """Say what tenants and the last requests cost, and what was idle: seconds of the engine, processor time, dollars, joules."""
    found = ask_admin(server, key_file, "GET", of_model("/cost", model))
    if as_json:
        print_json(found)
        return
    total = found["total"]["seconds"] or 1.0
    rows = [(name or "(no key)", each["spent"], f"{each['kv_token_seconds']:,.0f}") for name, each in found["tenants"].items()]
    rows += [("under way, or nobody's", found["open"], ""), ("idle", found["idle"], ""), ("all", found["total"], "")]
    heads = ("", "seconds", "share", "processor", "dollars", "joules", "KV token-seconds")
    print_table("Since the start", heads, [(name, *_amount(spent, total), held) for name, spent, held in rows])
    last = found["requests"][-requests:] if requests else []
    if last:
        columns = ("request", "tenant", "in", "out", "seconds", "share", "processor", "dollars", "joules")
        print_table("Last requests", columns, [
            (each["request_id"], each["tenant"], str(each["prompt_tokens"]), str(each["completion_tokens"]), *_amount(each["spent"], total))
            for each in last
        ])  # fmt: skip


def _amount(spent: dict[str, Any], total: float) -> tuple[str, ...]:
    dollars, joules = spent["dollars"], spent["joules"]
    return (
        f"{spent['seconds']:,.3f}", f"{spent['seconds'] / total:.1%}", f"{spent['processor_ms']:,.0f} ms",
        "–" if dollars is None else f"${dollars:,.6f}", "–" if joules is None else f"{joules:,.1f}",
    )  # fmt: skip


def knobs(
    change: Annotated[str | None, typer.Argument(help="name=value; without one the knobs are listed.")] = None,
    watch: Annotated[float, typer.Option(min=0, max=600, help="Seconds; a loss of goodput takes the change back.")] = 30.0,
    server: ServerOption = None,
    key_file: KeyOption = None,
    model: ModelOption = None,
    as_json: Json = False,
) -> None:
    """List the settings that can change now, or change one."""
    if change is None:
        found: dict[str, Any] = ask_admin(server, key_file, "GET", of_model("/knobs", model))
        if as_json:
            print_json(found)
        else:
            print_table("", ("knob", "value"), [(name, str(value)) for name, value in found.items()])
        return
    name, equals, value = change.partition("=")
    if not equals:
        raise ConfigError(f"{change[:60]!r} is not understood; write name=value, as step_ms=30")
    found = ask_admin(server, key_file, "POST", of_model("/knobs", model), {"name": name, "value": value, "watch_seconds": watch})
    if as_json:
        print_json(found)
    else:
        print_status(f"{found['name']}: {found['old']} → {found['new']}")


def drain(
    timeout: Annotated[float | None, typer.Option(min=0, max=86_400, help="Seconds that open requests have [--shutdown-timeout].")] = None,
    server: ServerOption = None,
    key_file: KeyOption = None,
    as_json: Json = False,
) -> None:
    """Take no new request, and end when the open ones have ended."""
    found = ask_admin(server, key_file, "POST", "/drain", {"timeout_seconds": timeout})
    if as_json:
        print_json(found)
    else:
        print_status(f"The server ends: {found['open_requests']} open requests have {found['timeout_seconds']:g} s.")


def swap(
    model: Annotated[str, typer.Argument(help="The new model, as `serve` takes it.")],
    drain_timeout: Annotated[float | None, typer.Option(min=0, max=86_400, help="Seconds for open requests [--shutdown-timeout].")] = None,
    server: ServerOption = None,
    key_file: KeyOption = None,
    watch: Annotated[float, typer.Option(min=0, max=600, help="Seconds; a loss of goodput brings the old model back.")] = 30.0,
    of: Annotated[str | None, typer.Option("--of", help="Which of several models it replaces [the first].")] = None,
    as_json: Json = False,
) -> None:
    """Put another model in the place of the one that serves: it loads beside it, is checked, and takes the requests that come then."""
    body = {"model": model, "drain_seconds": drain_timeout, "watch_seconds": watch}
    found = ask_admin(server, key_file, "POST", of_model("/swap", of), body, LOAD_SECONDS)
    if as_json:
        print_json(found)
        return
    print_status(f"{found['new']} serves since {found['load_seconds']:.1f} s after the command, in the place of {found['old']}")
    print_status(f"{found['open_requests']} requests ended with the old one, {found['aborted']} of them by its end")
    if found["watch_seconds"]:
        seconds = found["watch_seconds"]
        print_status(f"The old one is kept for {seconds:g} s, and comes back if goodput falls; the log says what becomes of it")


def models(server: ServerOption = None, key_file: KeyOption = None, as_json: Json = False) -> None:
    """List the models of a server that has several: which are loaded, what they take, how often they were loaded."""
    found: Any = ask_admin(server, key_file, "GET", "/models")
    if as_json:
        print_json(found)
    elif not found:
        print_status("This server has one model, which stays; `ridgeline admin status` tells of it.")
    else:
        heads = ("model", "state", "idle", "requests", "waiting", "memory", "loads", "seconds")
        print_table("", heads, [
            (each["model"], each["state"], f"{each['idle_seconds']:,.0f} s", str(each["requests"]), str(each["waiting"]),
             "–" if each["memory_bytes"] is None else f"{each['memory_bytes'] / 1e9:,.2f} GB", str(each["loads"]),
             f"{each['load_seconds']:,.1f}")
            for each in found
        ])  # fmt: skip


def load(
    model: Annotated[str, typer.Argument(help="Its name.")], server: ServerOption = None, key_file: KeyOption = None, as_json: Json = False
) -> None:
    """Load one of several models; others make room for it if they have to."""
    _change("load", model, server, key_file, as_json)


def unload(
    model: Annotated[str, typer.Argument(help="Its name.")], server: ServerOption = None, key_file: KeyOption = None, as_json: Json = False
) -> None:
    """Unload one of several models behind its requests; the next request for it loads it again."""
    _change("unload", model, server, key_file, as_json)


def _change(action: str, model: str, server: str | None, key_file: Any, as_json: bool) -> None:
    found = ask_admin(server, key_file, "POST", f"/{action}", {"model": model}, LOAD_SECONDS)
    if as_json:
        print_json(found)
    else:
        print_status(f"{found['model']} is {found['state']}")
