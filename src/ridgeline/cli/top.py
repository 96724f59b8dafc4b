"""`ridgeline top`: what a server does now, drawn anew every second: load, latencies, the verdict, levers, tenants."""

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import ProxyHandler, Request, build_opener

import typer

from ridgeline.cli.output import make_console, print_json
from ridgeline.errors import ConfigError

if TYPE_CHECKING:
    from rich.console import Group

ANSWER_SECONDS: Final = 5.0
MAX_ANSWER_BYTES: Final = 4 << 20
BLOCKS: Final = "▁▂▃▄▅▆▇█"
SHOWN_SECONDS: Final = 60


def top(
    url: Annotated[str | None, typer.Argument(help="Address of the server [this user's only one].")] = None,
    key_file: Annotated[Path | None, typer.Option(help="File with the API key, where the server asks for one.")] = None,
    interval: Annotated[float, typer.Option(min=0.2, max=60, help="Seconds between two looks.")] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="Look once, and end.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object per look.")] = False,
) -> None:
    """Watch a server: running and waiting requests, latencies, its bottleneck, the lever that helps."""
    address, key = find_url(url), _read_key(key_file)
    if as_json or once:
        while True:
            found = ask_live(address, key)
            if as_json:
                print_json(found)
            else:
                make_console().print(draw(found))
            if once:
                return
            time.sleep(interval)
    from rich.live import Live

    with Live(draw(ask_live(address, key)), console=make_console(), auto_refresh=False, screen=True) as live:
        while True:
            time.sleep(interval)
            live.update(draw(ask_live(address, key)), refresh=True)


def find_url(url: str | None) -> str:
    """The address of a server: as given, or that of the only one that this user runs. Raises ConfigError."""
    if url is not None:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        if parts.scheme not in ("http", "https") or not parts.netloc:
            raise ConfigError(f"{url[:100]!r} is no address of a server; write http://HOST:PORT", fix={"URL": None})
        return f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/').removesuffix('/v1')}"
    from ridgeline.config.env import state_directory
    from ridgeline.server.running import running_servers

    found = running_servers(state_directory())
    if len(found) != 1:
        listed = ", ".join(each.url for each in found) or "none"
        raise ConfigError(f"{len(found)} servers of yours run ({listed}); give the address of one")
    return found[0].url


def _read_key(file: Path | None) -> str | None:
    if file is None:
        return None
    from ridgeline.cli.admin_client import read_key

    return read_key(file)


def ask_live(url: str, key: str | None) -> dict[str, Any]:
    """The answer of `GET /live`. Raises ConfigError."""
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    try:
        with build_opener(ProxyHandler({})).open(Request(f"{url}/live", headers=headers), timeout=ANSWER_SECONDS) as answer:
            found = json.loads(answer.read(MAX_ANSWER_BYTES))
    except HTTPError as error:
        said = {401: "it asks for an API key: give --key-file", 404: "it is no server of Ridgeline", 503: "it is not ready"}
        raise ConfigError(f"{url} answers {error.code}: {said.get(error.code, error.reason)}") from None
    except (OSError, ValueError) as error:
        raise ConfigError(f"{url} does not answer: {error!s:.200}") from None
    if not isinstance(found, dict) or "verdict" not in found:
        raise ConfigError(f"{url} is no server of Ridgeline")
    return found


def draw(found: dict[str, Any]) -> "Group":
    """The tables of one look."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    verdict, kv, rates = found["verdict"], found["kv"], found["rates"]
    head = Text.assemble((found["model"], "bold"), f"  Ridgeline {found['version']}" + ("" if found["ready"] else "  not ready"))
    facts = Table.grid(padding=(0, 3))
    facts.add_row(f"running {found['running']} of {found['rows']}", f"waiting {found['waiting']}",
                  f"decode {rates['decode_tokens']:,.0f} tok/s", f"prefill {rates['prefill_tokens']:,.0f} tok/s")  # fmt: skip
    facts.add_row(f"KV held {kv['held'] / max(1, kv['blocks']):.0%}", f"cached {kv['cached'] / max(1, kv['blocks']):.0%}",
                  f"TTFT {_latency(found['ttft'])}", f"ITL {_latency(found['itl'])}")  # fmt: skip
    history = Table.grid(padding=(0, 2))
    for name in ("decode_tokens", "waiting", "kv"):
        values = found["history"][name][-SHOWN_SECONDS:]
        history.add_row(name.replace("_", " "), spark(values), f"at most {max(values, default=0):,.3g}")
    parts: list[Any] = [head, facts, Text(""), Text(f"verdict: {verdict['text']}", "bold")]
    if found.get("speculation"):
        parts.append(Text(f"speculation: {found['speculation']}"))
    parts.append(history)
    if verdict["levers"]:
        levers = Table("lever", "better", "by", "why", box=None, pad_edge=False, title="Levers", title_justify="left")
        for lever in verdict["levers"]:
            levers.add_row(lever["name"], lever["figure"], f"× {lever['gain']:.2f}", lever["why"])
        parts += [Text(""), levers]
    if found["tenants"]:
        tenants = Table("tenant", "open", "in", "out", "seconds", box=None, pad_edge=False, title="Tenants", title_justify="left")
        for each in found["tenants"]:
            tenants.add_row(each["name"] or "(no key)", str(each["open_choices"]), f"{each['prompt_tokens']:,}",
                            f"{each['generation_tokens']:,}", f"{each['seconds']:,.1f}")  # fmt: skip
        parts += [Text(""), tenants]
    return Group(*parts)


def _latency(found: dict[str, float] | None) -> str:
    return "–" if found is None else " / ".join(f"{found[name] * 1e3:,.0f}" for name in ("p50", "p90", "p99")) + " ms"


def spark(values: list[float]) -> str:
    """The values as bars of the height of a line."""
    most = max(values, default=0) or 1
    return "".join(BLOCKS[min(len(BLOCKS) - 1, int(value / most * len(BLOCKS)))] for value in values)
