"""A profile of a running server for some seconds: the functions of the front end's loop and of the engine's, by cProfile.

Owns where the files lie and how long it lasts. A loop is slower while it is profiled, and is so only when an admin asks.
"""

import asyncio
import cProfile
import io
import os
import pstats
from pathlib import Path
from typing import Final

from ridgeline.config.env import state_directory
from ridgeline.engine.client import EngineClient
from ridgeline.engine.messages import Profile
from ridgeline.errors import ConfigError
from ridgeline.server.admin_shapes import ProfileReport
from ridgeline.server.service import Service

MAX_SECONDS: Final = 60.0
WRITE_SECONDS: Final = 5.0
"""Time for the engine to write its file."""
TOP: Final = 15
"""Functions that the report lists, by their own time."""


class Profiler:
    """One profile at a time."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._is_busy = False
        self._count = 0

    async def profile(self, seconds: float) -> ProfileReport:
        """Profiles both loops for so long, and writes a file for each, which `python -m pstats` reads. Raises ConfigError."""
        if not 0 < seconds <= MAX_SECONDS:
            raise ConfigError(f"seconds is {seconds}, outside 0 … {MAX_SECONDS:g}")
        if self._is_busy:
            raise ConfigError("the server is being profiled; wait for its end")
        self._is_busy = True
        try:
            return await self._profile(seconds, self._service.deployment.engine)
        finally:
            self._is_busy = False

    async def _profile(self, seconds: float, engine: EngineClient) -> ProfileReport:
        folder = state_directory() / "profiles"
        self._count += 1
        front_end, loop = (folder / f"{name}-{os.getpid()}-{self._count}.pstats" for name in ("front-end", "engine"))
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            for file in (front_end, loop):  # of a server before this one that had its number, as servers in containers have
                file.unlink(missing_ok=True)
        except OSError as error:
            raise ConfigError(f"a profile cannot be written to {str(folder)!r:.200}: {error.strerror}") from None
        profile = cProfile.Profile()
        profile.enable()
        engine.send(Profile(None))
        try:
            await asyncio.sleep(seconds)
        finally:
            profile.disable()
            engine.send(Profile(str(loop)))
        profile.dump_stats(front_end)
        front_end.chmod(0o600)
        waited = 0.0
        while not loop.exists() and waited < WRITE_SECONDS:
            await asyncio.sleep(0.05)
            waited += 0.05
        if not loop.exists():
            return ProfileReport(seconds, str(front_end), None, _top(front_end), [])
        return ProfileReport(seconds, str(front_end), str(loop), _top(front_end), _top(loop))


def _top(file: Path) -> list[str]:
    """Functions of most time of their own, as lines."""
    text = io.StringIO()
    pstats.Stats(str(file), stream=text).sort_stats("tottime").print_stats(TOP)
    return [line for line in text.getvalue().splitlines() if line.strip()][-TOP - 1 :]
