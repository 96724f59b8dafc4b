"""Hosts for tests: network namespaces that see each other over one link and nothing else. Need root."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import count

NUMBERS = count()


@dataclass(frozen=True)
class Host:
    """A network namespace, and its address on the link."""

    name: str
    address: str

    @property
    def where(self) -> list[str]:
        """What runs the command behind it there."""
        return ["ip", "netns", "exec", self.name]


@contextmanager
def two_hosts() -> Iterator[tuple[Host, Host]]:
    """A pair joined by a link of their own, gone at the end of the context; processes there are to have ended."""
    mark = f"rl{os.getpid()}-{next(NUMBERS)}"
    hosts = Host(f"{mark}a", "10.79.0.1"), Host(f"{mark}b", "10.79.0.2")
    try:
        for host in hosts:
            ip("netns", "add", host.name)
        ip("link", "add", "link0", "netns", hosts[0].name, "type", "veth", "peer", "name", "link0", "netns", hosts[1].name)
        for host in hosts:
            connect(host)
        yield hosts
    finally:
        for host in hosts:
            with suppress(subprocess.CalledProcessError):
                ip("netns", "delete", host.name)


def connect(host: Host) -> None:
    """Gives a host its address, on its end of a link."""
    ip("-n", host.name, "address", "add", f"{host.address}/24", "dev", "link0")
    for link in ("lo", "link0"):
        ip("-n", host.name, "link", "set", link, "up")


def ip(*words: str) -> None:
    """Runs `ip`. Raises CalledProcessError where it fails."""
    subprocess.run(["ip", *words], check=True, capture_output=True)
