"""Hosts for tests at the ports of a switch, as network namespaces: a port that goes down drops what is sent to it, and nobody is told.
They need root."""

import ctypes
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from hosts import NUMBERS, Host, connect, ip

CLONE_NEWNET = 0x40000000


class Switch:
    """A namespace with a bridge in it. Port n is that of host n."""

    def __init__(self, name: str, hosts: list[Host]) -> None:
        self.name, self.hosts = name, hosts

    def set_port(self, number: int, is_up: bool) -> None:
        """Joins a host to the others, or parts it from them."""
        ip("-n", self.name, "link", "set", f"port{number}", "up" if is_up else "down")


@contextmanager
def switched_hosts(count: int) -> Iterator[Switch]:
    """So many hosts, gone at the end of the context; processes there are to have ended."""
    mark = f"rl{os.getpid()}-{next(NUMBERS)}"
    switch = Switch(f"{mark}s", [Host(f"{mark}h{number}", f"10.80.0.{number + 1}") for number in range(count)])
    names = [switch.name, *(each.name for each in switch.hosts)]
    try:
        for name in names:
            ip("netns", "add", name)
        ip("-n", switch.name, "link", "add", "switch", "type", "bridge", "forward_delay", "0")
        ip("-n", switch.name, "link", "set", "switch", "up")
        for number, host in enumerate(switch.hosts):
            ip("link", "add", f"port{number}", "netns", switch.name, "type", "veth", "peer", "name", "link0", "netns", host.name)
            ip("-n", switch.name, "link", "set", f"port{number}", "master", "switch", "up")
            connect(host)
        yield switch
    finally:
        for name in names:
            with suppress(subprocess.CalledProcessError):
                ip("netns", "delete", name)


def enter(host: Host) -> None:
    """Puts the calling thread onto the host: what it connects to from now on is what the host sees."""
    with open(f"/run/netns/{host.name}", "rb") as space:
        if ctypes.CDLL(None, use_errno=True).setns(space.fileno(), CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), "setns")
