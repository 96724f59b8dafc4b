"""Two hosts on this machine, each with namespaces of its own: network, processes and mounts. Between them is a link that nobody else is
on; a second link leads from the first one to where its clients are. Needs root.
"""

import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, sleep

INSIDE, FRONT = ("10.77.0.1", "10.77.0.2"), ("10.78.0.1", "10.78.0.2")
"""Addresses of the hosts on the link between them; of the first host on the link to clients, and of these."""
SHM_BYTES = 1 << 30


@dataclass(frozen=True)
class Listener:
    """A TCP port that is listened on: its address, as text, and who has it."""

    address: str
    port: int
    command: str


@dataclass(frozen=True)
class Host:
    """A host: `pid` of its first process, with which all others end."""

    name: str
    address: str
    pid: int

    def command(self, *words: str) -> list[str]:
        """What runs a command there, in a session of its own: Ray ends groups of processes, and those from outside have no number there."""
        return ["nsenter", "-t", str(self.pid), "-n", "-m", "-p", "setsid", "--wait", *words]

    def run(self, *words: str, check: bool = True) -> str:
        """The output of a command there. Raises CalledProcessError, with what it said printed."""
        done = subprocess.run(self.command(*words), capture_output=True, text=True, check=False, timeout=180)
        if check and done.returncode:
            print(done.stdout, done.stderr)
            done.check_returncode()
        return done.stdout

    def processes(self, *parts: str) -> list[int]:
        """Ids, as they are there, of processes whose command line has all of these parts."""
        return [pid for pid, words in self._commands().items() if all(part in words for part in parts)]

    def kill(self, pid: int) -> None:
        """SIGKILL, to a process by its id there."""
        self.run("kill", "-9", str(pid))

    def listeners(self) -> list[Listener]:
        """All ports that are listened on there."""
        commands, found = self._commands(), []
        for line in self.run("ss", "-ltnpH").splitlines():
            local, rest = line.split()[3], line.partition('users:(("')[2]
            pid = rest.partition("pid=")[2].partition(",")[0]
            address, _, port = local.rpartition(":")
            found.append(Listener(address.partition("%")[0].strip("[]"), int(port), commands.get(int(pid or 0), rest.partition('"')[0])))
        return found

    def _commands(self) -> dict[int, str]:
        rows = (line.strip().partition(" ") for line in self.run("ps", "-eww", "-o", "pid=,args=").splitlines())
        return {int(pid): words.strip() for pid, _, words in rows if pid.isdigit()}


@contextmanager
def made_hosts() -> Iterator[tuple[Host, Host, Host]]:
    """Two hosts, and one for clients."""
    with ExitStack() as stack:
        own = {"head": INSIDE[0], "other": INSIDE[1], "client": FRONT[1]}
        head, other, client = (stack.enter_context(_made(name, address)) for name, address in own.items())
        _link(head, INSIDE[0], other, INSIDE[1], "inside")
        _link(head, FRONT[0], client, FRONT[1], "front")
        yield head, other, client


@contextmanager
def _made(name: str, address: str) -> Iterator[Host]:
    """A host without a link. Its first process is a shell, which buries what others leave behind; /tmp/ray and /dev/shm are its own."""
    mounts = f"mkdir -p /tmp/ray && mount -t tmpfs tmpfs /tmp/ray && mount -t tmpfs -o size={SHM_BYTES} tmpfs /dev/shm"
    waits = f"{mounts} && ip link set lo up && echo ready && while :; do sleep 5; done"
    namespaces = ["unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
    command = ["setpriv", "--pdeathsig", "KILL", *namespaces, "sh", "-c", waits]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as outer:
        assert outer.stdout is not None
        try:
            assert outer.stdout.readline() == "ready\n", "hosts are namespaces, which need root, unshare and ip"
            inner = int(Path(f"/proc/{outer.pid}/task/{outer.pid}/children").read_text().split()[0])
            yield Host(name, address, inner)
        finally:
            outer.kill()  # and with it all that runs there


def _link(one: Host, address: str, other: Host, others: str, name: str) -> None:
    """A cable: a pair of interfaces, one at each host."""
    ends = (["netns", str(one.pid), "type", "veth"], ["peer", "name", name, "netns", str(other.pid)])
    subprocess.run(["ip", "link", "add", name, *ends[0], *ends[1]], check=True)
    for host, own in ((one, address), (other, others)):
        host.run("ip", "addr", "add", f"{own}/24", "dev", name)
        host.run("ip", "link", "set", name, "up")


def wait_for(what: str, seconds: float, condition: Callable[[], bool], pause: float = 0.2) -> float:
    """Waits for a condition; the seconds that it took. Raises AssertionError."""
    began = monotonic()
    while not condition():
        assert monotonic() - began < seconds, f"not within {seconds:g} s: {what}"
        sleep(pause)
    return monotonic() - began
