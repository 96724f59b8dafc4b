"""`ridgeline explain`: where the time of a running server's requests went, over its admin socket."""

from typing import Annotated, Any, Final
from urllib.parse import urlencode

import typer

from ridgeline.cli.admin_client import KeyOption, ServerOption, ask_admin
from ridgeline.cli.output import print_json, print_notes, print_table
from ridgeline.errors import ConfigError

UNITS: Final = {"s": 1.0, "m": 60.0, "h": 3_600.0}
BAR: Final = 24


def explain(
    request: Annotated[str | None, typer.Argument(help="An answer's id, or its X-Request-Id [none: what all share].")] = None,
    slowest: Annotated[int | None, typer.Option(min=1, max=100, help="The slowest requests of the window, one by one.")] = None,
    prefix: Annotated[bool, typer.Option("--prefix", help="Why prompts missed the prefix cache, the dearest causes first.")] = False,
    window: Annotated[str, typer.Option(help="How far back: 30s, 5m, 2h.")] = "5m",
    server: ServerOption = None,
    key_file: KeyOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object: milliseconds.")] = False,
) -> None:
    """Say where the time of requests went: each moment has one cause, and they sum to what passed."""
    query = make_query(request, slowest, window)
    if prefix:
        _explain_prefixes(ask_admin(server, key_file, "GET", f"/prefix?window_seconds={query['window_seconds']}"), as_json)
        return
    found = ask_admin(server, key_file, "GET", f"/explain?{urlencode(query)}")
    if as_json:
        print_json(found)
        return
    if not found["requests"] and not found["total"]:
        print_notes(f"No request has ended within {window}.")
    for each in found["requests"]:
        _print_request(each)
    for name, title in (("ttft", "Time to first token"), ("total", "Whole answer")):
        if found[name]:
            _print_distribution(title, found[name])


def make_query(request: str | None, slowest: int | None, window: str) -> dict[str, Any]:
    """The query of the socket. Raises ConfigError."""
    unit = UNITS.get(window[-1:])
    try:
        seconds = float(window[:-1]) * unit if unit else -1.0
    except ValueError:
        seconds = -1.0
    if not 0 < seconds <= 86_400:
        raise ConfigError(f"--window {window!r:.40} is not understood; write 30s, 5m or 2h, at most 24h", fix={"--window": "5m"})
    if request is not None and slowest is not None:
        raise ConfigError("--slowest chooses requests by itself; give it or an id", fix={"--slowest": None})
    asked = {"id": request, "slowest": slowest, "window_seconds": seconds}
    return {name: value for name, value in asked.items() if value is not None}


def _print_request(found: dict[str, Any]) -> None:
    cached = f"{found['cached_tokens']} of them cached{_tiers(found)}"
    tokens = f"{found['prompt_tokens']} prompt tokens, {cached}, {found['output_tokens']} of output"
    of = f", tenant {found['tenant']}" if found["tenant"] else ""
    print_notes(f"{found['id']} ({found['state']}{of}): {tokens}", found["summary"])
    for title, part in (("to the first token", found["ttft"]), ("in all", found["total"])):
        if part is not None:
            rows = [
                (each["cause"], f"{each['ms']:,.1f}", f"{each['share']:.0%}", _bar(each["share"]), _what(each)) for each in part["causes"]
            ]
            heads = ("cause", "ms", "share", "", "what happened")
            print_table(f"{part['ms']:,.1f} ms {title}", heads, rows, wrapped="what happened")
    print_notes("")


def _explain_prefixes(found: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(found)
        return
    print_notes(
        f"{found['requests']} requests, {found['prompt_tokens']:,} prompt tokens, {found['cached_tokens']:,} of them cached{_tiers(found)}."
    )
    rows = [
        (each["cause"], str(each["at"]), str(each["requests"]), f"{each['tokens']:,}", f"{each['ms']:,.0f}", _example(each))
        for each in found["offenders"]
    ]
    if rows:
        print_table("Misses", ("cause", "at token", "requests", "tokens", "ms", "what it is"), rows, wrapped="what it is")


def _tiers(found: dict[str, Any]) -> str:
    return "".join(f", {tokens:,} in tier {tier}" for tier, tokens in found["cached_in"].items())


def _example(offender: dict[str, Any]) -> str:
    example = offender["example"]
    texts = f" ({example['theirs']!r:.60} → {example['mine']!r:.60})" if example and example["mine"] else ""
    return f"{offender['what']}{texts}"


def _what(cause: dict[str, Any]) -> str:
    names = [f"{each['request'][:12]}{' of ' + each['tenant'] if each['tenant'] else ''}" for each in cause["blockers"][:2]]
    more = len(cause["blockers"]) - len(names)
    return f"{cause['what']}{': ' if names else ''}{', '.join(names)}{f' and {more} more' if more > 0 else ''}"


def _bar(share: float) -> str:
    return "█" * max(1, round(share * BAR))


def _print_distribution(title: str, found: dict[str, Any]) -> None:
    rows = [
        (each["cause"], f"{each['median_ms']:,.1f}", f"{each['slow_ms']:,.1f}", f"{each['share_of_excess']:.0%}", each["what"])
        for each in found["causes"]
    ]
    heads = ("cause", "ms at the median", "ms at p95", "of the difference", "what happened")
    head = f"{title}, {found['requests']} requests: p50 {found['p50_ms']:,.1f} ms, p95 {found['p95_ms']:,.1f} ms"
    print_table(head, heads, rows, wrapped="what happened")
