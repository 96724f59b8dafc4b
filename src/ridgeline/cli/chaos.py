"""`ridgeline chaos`: inject a fault into a running server of one's own, and say what came of it."""

from typing import Annotated, Final

import typer

from ridgeline.cli.admin_client import KeyOption, ServerOption, ask_admin
from ridgeline.cli.output import print_json, print_status, print_table

PATIENCE_SECONDS: Final = 240.0
FAULTS: Final = {
    "kill-engine": "SIGKILL of the engine's process",
    "stop-engine": "SIGSTOP of the engine for --seconds, or until it is found to hang",
    "end-server": "SIGTERM of the server, which ends behind its open requests; told when they have, or after --seconds",
    "slow-engine": "the engine stands still for half of --seconds, so that steps take twice as long",
    "drop-connections": "every connection of a client is closed",
    "full-disk": "for --seconds no file of the server can grow",
    "stall-readers": "four clients that ask and read nothing, for --seconds or until they are closed (--send-timeout)",
}


def chaos(
    fault: Annotated[str | None, typer.Argument(help="Name of the fault; without one they are listed.")] = None,
    seconds: Annotated[float, typer.Option(min=0.1, max=60, help="How long it lasts.")] = 10.0,
    server: ServerOption = None,
    key_file: KeyOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
) -> None:
    """Inject a fault into a server that allows it (--allow-chaos), and say what came of it."""
    if fault is None:
        if as_json:
            print_json({"faults": FAULTS})
        else:
            print_table("", ("fault", "what it is"), list(FAULTS.items()))
        return
    found = ask_admin(server, key_file, "POST", "/chaos", {"fault": fault, "seconds": seconds}, PATIENCE_SECONDS)
    if as_json:
        print_json(found)
        return
    print_status(f"{found['what']}; {found['open_requests']} requests were open")
    well = f"takes requests, {found['seconds']:.1f} s later" if found["recovered"] else f"takes no requests {found['seconds']:.1f} s later"
    counts = f"{found['continued']} requests went on in another engine, {found['failed']} failed, {found['aborted']} were left by clients"
    print_status(f"the server {well}: {counts}")
