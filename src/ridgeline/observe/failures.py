"""Findings behind alerts about how requests end: failed, refused, late. The counts of a window say which kind it is; the ledger's causes,
or what the engine's end left behind, say why.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from ridgeline.observe.investigate import DOWN, LEVERS, Finding, investigate
from ridgeline.observe.metrics import REJECTIONS
from ridgeline.observe.requests import Result
from ridgeline.observe.shares import Distribution

KILLED: Final = "status -9"
"""Words of an engine's end by a signal that nobody can refuse, as the system sends where memory runs out."""
CLIENTS_OWN: Final = "deadline_exceeded"
"""The one error of status 500 and above that is a client's own wish."""
OF_ENGINE: Final = frozenset({"engine_failed", "engine_unavailable"})
BAD: Final = (Result.LATE_FIRST_TOKEN, Result.SLOW_TOKENS, Result.FAILED, Result.ABORTED)
REFUSALS: Final = {
    "overloaded": ("queue", "rows", LEVERS["rows"]),
    "rate_limit_exceeded": (
        "ingress", "quota", "raise the rates of its key (--api-key-file), or have its client wait for as long as Retry-After says"
    ),
    "too_many_connections": (
        "ingress", "connections", "raise --max-connections or --max-connections-per-client, or have clients use connections again"
    ),
}  # fmt: skip
"""Code of a refusal → phase, cause, lever; of a full queue where nothing is known of those who waited."""
ENGINE_LEVERS: Final = {
    "killed": "look for out of memory in the kernel's log (`dmesg`); lower --kv-cache-memory-bytes or --max-num-seqs, or give it memory",
    "hung": "look at `incidents` in the state folder for its last steps; a machine that stands still needs a longer --step-timeout",
    "restart": LEVERS["restart"],
}


@dataclass(frozen=True, slots=True)
class EngineTold:
    """Traces of the engine's end. `starts`: engines so far, the first included; `reason`: why the last one ended, None: none has;
    `not_ready`: why no request is taken now, None: they are."""

    starts: int = 1
    reason: str | None = None
    not_ready: str | None = None


def investigate_counts(
    alert: str, counts: Mapping[str, int], engine: EngineTold, ttft: Distribution | None, total: Distribution | None
) -> Finding | None:
    """Finds what is behind one of `investigate.COUNTED`; None where nothing of the kind has happened in the window."""
    if alert == "Errors":
        return _errors(counts, engine)
    if alert in ("EngineRestarts", DOWN):
        return None if engine.reason is None else replace(_engine_ended(engine), alert=alert)
    if alert == "Rejections":
        return _rejections(counts, ttft, total)
    return _goodput(counts, engine, ttft, total)


def _errors(counts: Mapping[str, int], engine: EngineTold) -> Finding | None:
    errors = {name: count for name, count in counts.items() if name[:1] == "5" and not name.endswith(CLIENTS_OWN)}
    if not errors:
        return None
    most = max(errors, key=lambda name: errors[name])
    listed = ", ".join(f"{count:,} × {name}" for name, count in sorted(errors.items(), key=lambda each: -each[1]))
    if most.rpartition(" ")[2] in OF_ENGINE:
        found = _engine_ended(engine) if engine.reason is not None else _engine_absent(engine)
        return replace(found, evidence=(listed, *found.evidence))
    return Finding(
        "Errors", "ingress", "bug", (listed, "the server's own code failed on these requests"),
        "look in the log for the incident that the answer names: its traceback says what failed, and on which request",
    )  # fmt: skip


def engine_lever(engine: EngineTold) -> str:
    """Advice about an engine's end, by how it ended."""
    reason = engine.reason or ""
    return ENGINE_LEVERS["hung" if "hung" in reason else "killed" if KILLED in reason else "restart"]


def _engine_ended(engine: EngineTold) -> Finding:
    evidence = (engine.reason or "", f"engines so far: {engine.starts}", *((engine.not_ready,) if engine.not_ready else ()))
    return Finding("Errors", "host", "restart", evidence, engine_lever(engine))


def _engine_absent(engine: EngineTold) -> Finding:
    why = engine.not_ready or "requests came before the first engine was ready, or behind the begin of the end; they are taken now"
    return Finding("Errors", "host", "start", (why,), "send requests where /readyz answers 200, and wait for as long as Retry-After says")


def _rejections(counts: Mapping[str, int], ttft: Distribution | None, total: Distribution | None) -> Finding | None:
    refused = {code: sum(count for name, count in counts.items() if name.endswith(f" {code}")) for code in REJECTIONS}
    code = max(refused, key=lambda each: refused[each])
    if not refused[code]:
        return None
    listed = ", ".join(f"{count:,} × {name}" for name, count in refused.items() if count)
    phase, cause, lever = REFUSALS[code]
    found = investigate("QueueGrows", ttft, total) if code == "overloaded" else None
    if found is not None and found.phase in ("queue", "KV cache"):
        phase, cause, lever = found.phase, found.cause, found.lever
    return Finding("Rejections", phase, cause, (f"refused: {listed}", *(found.evidence if found else ())), lever)


def _goodput(counts: Mapping[str, int], engine: EngineTold, ttft: Distribution | None, total: Distribution | None) -> Finding | None:
    """Finds it by the kind of most requests that were not good."""
    bad = {each: counts.get(each, 0) for each in BAD}
    most, ended = max(BAD, key=lambda each: bad[each]), sum(counts.get(each, 0) for each in Result)
    if not bad[most]:
        return None
    listed = ", ".join(f"{count:,} {each.replace('_', ' ')}" for each, count in bad.items() if count)
    if most is Result.FAILED:
        found = _engine_ended(engine) if engine.reason is not None else _engine_absent(engine)
    else:
        found = investigate("TokensSlow" if most is Result.SLOW_TOKENS else "FirstTokenLate", ttft, total) or Finding(
            "", "egress", "aborted", (), "raise the clients' own timeouts: they went before the first token"
        )
    said = f"{ended - counts.get(Result.GOOD, 0):,} of {ended:,} requests were not good: {listed}"
    return replace(found, alert="GoodputLow", evidence=(said, *found.evidence))
