"""The file of a router's servers: what it says, when it is read again, and what is wrong with it."""

import logging
import os
from pathlib import Path

import pytest

from ridgeline.errors import ConfigError
from ridgeline.router.roster import USUAL_SHARE, Named, Roster

FILE = """
http://127.0.0.1:1       # the first
http://127.0.0.1:2/=2.5

canary http://127.0.0.1:3
canary http://127.0.0.1:4=0.2
"""


def write(path: Path, text: str) -> str:
    """In the place of the file at once, as volumes of Kubernetes and careful editors do."""
    fresh = path.with_suffix(".new")
    fresh.write_text(text)
    os.replace(fresh, path)
    return str(path)


def test_a_file_is_read_again_when_it_changes(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "replicas"
    roster = Roster((), (), write(path, FILE))
    assert roster.named == [
        Named("http://127.0.0.1:1"), Named("http://127.0.0.1:2", 2.5),
        Named("http://127.0.0.1:3", share=USUAL_SHARE), Named("http://127.0.0.1:4", share=0.2),
    ]  # fmt: skip
    assert not roster.look()
    write(path, "http://127.0.0.1:5")
    assert roster.look() and roster.named == [Named("http://127.0.0.1:5")] and not roster.look()
    write(path, "# none, for now")
    assert roster.look() and roster.named == []
    write(path, "http://127.0.0.1:6")
    assert roster.look()
    with caplog.at_level(logging.WARNING, "ridgeline.router"):
        write(path, "http://127.0.0.1:6 and more")
        assert not any(roster.look() for _ in range(3))
        path.unlink()
        assert not any(roster.look() for _ in range(3))
    assert roster.named == [Named("http://127.0.0.1:6")] and len(caplog.records) == 2, "each mistake is said once"
    write(path, "http://127.0.0.1:7")
    assert roster.look() and roster.named == [Named("http://127.0.0.1:7")]


@pytest.mark.parametrize("text", [
    "127.0.0.1:1", "http://127.0.0.1:1=0", "http://127.0.0.1:1=x", "canary http://127.0.0.1:1=0.6", "canary", "http://a:1 http://b:1",
    "http://a:1\nhttp://a:1", "http://u:p@a:1", "http://a:1/path",
    "\n".join(f"http://a:{port}" for port in range(1, 1_026)), "a" * (2 << 20),
])  # fmt: skip
def test_what_is_no_server_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigError):
        Roster((), (), write(tmp_path / "replicas", text))


def test_servers_are_named_in_one_place(tmp_path: Path) -> None:
    path = write(tmp_path / "replicas", FILE)
    for replicas, file in (((), None), (("http://127.0.0.1:1",), path), ((), str(tmp_path / "none"))):
        with pytest.raises(ConfigError):
            Roster(replicas, (), file)
