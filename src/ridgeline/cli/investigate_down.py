"""`ridgeline investigate Down`: a server that does not answer, by what is left of it: its process, its end, its last incident."""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ridgeline.cli.admin_client import ask_admin
from ridgeline.cli.ps import describe_server
from ridgeline.errors import ConfigError, ModelFormatError, ModelNotFoundError

if TYPE_CHECKING:
    from ridgeline.observe.investigate import Finding
    from ridgeline.server.running import EndedServer, RunningServer

ANSWER_SECONDS: Final = 5.0


def investigate_down(server: str | None, key_file: Path | None) -> "Finding":
    """Finds it for the server that is named, by process, port or model, else for the one that runs, else for the last that has ended.
    Raises ConfigError where there was none."""
    from ridgeline.config.env import cache_directory, state_directory
    from ridgeline.observe.absence import investigate_end, investigate_process
    from ridgeline.observe.starts import usual_seconds
    from ridgeline.server.running import ended_servers, process_state, running_servers

    state = state_directory()
    ended = [each for each in ended_servers(state) if server in (None, str(each.pid), each.model)]
    running = [each for each in running_servers(state) if server in (None, str(each.pid), each.model, each.url.rpartition(":")[2])]
    if running:
        last, letter = running[-1], process_state(running[-1].pid)
        looked = describe_server(last)
        status = None if letter in ("T", "t") else _status(last, key_file, looked)
        told = f"{last.model}, process {last.pid}, {last.url}: {looked['state']}"
        return investigate_process(last.pid, letter, status, (told, *_incident(state)))
    if not ended:
        raise ConfigError("no server of yours runs, and none has ended since this machine started; `ridgeline serve MODEL` starts one")
    usual = usual_seconds(cache_directory(), ended[-1].model)
    started = (f"a start of {ended[-1].model} takes {usual:,.0f} s",) if usual else ()
    return investigate_end(ended[-1].end, (_told(ended[-1]), *_again(ended), *_incident(state), *started))


def _status(server: "RunningServer", key_file: Path | None, looked: Mapping[str, Any]) -> Any:
    """The status of a server, or of one whose socket does not say it, what HTTP does; None where neither answers."""
    try:
        return ask_admin(str(server.pid), key_file, "GET", "/status", seconds=ANSWER_SECONDS)
    except ConfigError:
        if looked["state"] == "no answer":
            return None
    reason = None if looked["state"] == "ready" else "it answers that it is not ready, and the admin socket does not say why"
    return {
        "not_ready": reason, "draining": False, "last_failure": None, "usual_start_seconds": None,
        "startup": {"elapsed_seconds": looked["uptime_seconds"]},
    }  # fmt: skip


def _told(ended: "EndedServer") -> str:
    ran, ago = ended.ended - ended.started, time.time() - ended.ended
    who = f"{ended.model}, process {ended.pid}"
    if ended.end == "gone":
        return f"{who}, left without a word: it was killed, or the machine went down"
    return f"{who}, ended {ago:,.0f} s ago after {ran:,.0f} s: {ended.reason or 'it was asked to'}"


def _again(ended: list["EndedServer"]) -> tuple[str, ...]:
    """Says of how many of the last starts the end was this one's, of the same model."""
    alike = [each for each in ended if each.model == ended[-1].model and each.end == ended[-1].end != "asked"]
    return (f"{len(alike)} of its last {len(ended)} starts ended so",) if len(alike) > 1 else ()


def _incident(state: Path) -> tuple[str, ...]:
    """The last incident that a server recorded, in a sentence."""
    from ridgeline.facts.files.json_file import read_object

    for folder in sorted((state / "incidents").glob("incident-*"), reverse=True):
        try:
            found = read_object(folder / "incident.json", 1 << 20)
            return (f"incident {folder.name}: {found['kind']}, {found['reason']}",)
        except (ModelFormatError, ModelNotFoundError, KeyError):
            continue
    return ()
