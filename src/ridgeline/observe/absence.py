"""Findings behind a server that does not answer: how it ended, what its start is at, or what holds up a process that lives."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from ridgeline.observe.failures import EngineTold, engine_lever
from ridgeline.observe.investigate import DOWN, Finding

START_AGAIN: Final = "start it again, and have a service manager do so from now on (deploy/ridgeline.service)"
ENDS: Final = {
    "asked": ("stopped", f"ask who ended it; {START_AGAIN}"),
    "failed": ("failed", "mend what it says; then start it again"),
    "gone": (
        "killed",
        "look for out of memory in the kernel's log (`dmesg`), and lower --kv-cache-memory-bytes or --max-num-seqs if it is there; "
        f"{START_AGAIN}",
    ),
}
"""End of a server → cause and lever."""
SUSPENDED: Final = frozenset("Tt")
"""States of a process, as the system tells them, in which it is stopped or traced."""


def investigate_end(end: str, evidence: Sequence[str]) -> Finding:
    """Finds why a server that has ended is down. `end`: one of `ENDS`."""
    cause, lever = ENDS[end]
    return Finding(DOWN, "host", cause, tuple(evidence), lever)


def investigate_process(pid: int, state: str, status: Mapping[str, Any] | None, evidence: Sequence[str]) -> Finding:
    """Finds why a server whose process lives does not answer. `state`: the system's letter for it; `status`: as the admin socket has it,
    None where it does not answer either."""
    if state in SUSPENDED:
        said = f"process {pid} is suspended (state {state})"
        return Finding(DOWN, "host", "suspended", (said, *evidence), f"let it go on: kill -CONT {pid}; a debugger or SIGSTOP held it")
    if status is None:
        said = f"process {pid} lives, and its admin socket does not answer"
        return Finding(DOWN, "host", "hung", (said, *evidence), f"read the end of its log; end it (kill -9 {pid}), and {START_AGAIN}")
    if status["not_ready"] is None:
        said = "it takes requests on this machine: what asks from elsewhere does not reach it"
        return Finding(
            DOWN, "ingress", "network", (said, *evidence), "look between the two: --host, ports, proxies, certificates, the scraper's key"
        )
    evidence = (status["not_ready"], *evidence)
    if status["draining"]:
        return Finding(DOWN, "host", "stopped", tuple(evidence), ENDS["asked"][1])
    if status["last_failure"] is not None:
        engine = EngineTold(status["engine_starts"], status["last_failure"], status["not_ready"])
        return Finding(DOWN, "host", "restart", (status["last_failure"], *evidence), engine_lever(engine))
    start, usual = status["startup"], status["usual_start_seconds"]
    took = f"it has started for {start['elapsed_seconds']:,.0f} s" + (f"; {usual:,.0f} s are usual" if usual else "")
    lever = "wait, and let probes ask /startupz; weights in the page cache and --kv-cache-dir make the next start shorter"
    return Finding(DOWN, "start", "start", (took, *evidence), lever)
