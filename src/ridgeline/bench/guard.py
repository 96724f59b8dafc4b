"""Ends a group of processes when this one is gone, however it went: who is killed ends nothing any more.

Owns a shell that waits for a pipe to close. It stands in a session of its own, so that what ends this process does not reach it.
"""

import subprocess
from contextlib import suppress
from typing import Final

WATCH: Final = 'read -r word || kill -s KILL -- "-$0"'
"""A line means that the group has ended; the end of the pipe without one, that nobody is left to end it."""


class Guard:
    """Of the process group with this number, until it is released."""

    def __init__(self, group: int) -> None:
        self._watcher = subprocess.Popen(
            ["/bin/sh", "-c", WATCH, str(group)],
            stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip

    def release(self) -> None:
        """The group has ended: its number may become another's."""
        with suppress(BrokenPipeError):
            self._watcher.communicate(b"ended\n")
