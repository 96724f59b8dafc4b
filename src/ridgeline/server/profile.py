"""A profile of a running server: the functions of the front end's loop and of the engine's for some seconds, by cProfile; or the next
steps of the engine, phase by phase and thread by thread.

Owns where the files lie and how long it lasts. A loop is slower while it is profiled, and is so only when an admin asks.
"""

import asyncio
import cProfile
import io
import os
import pstats
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from ridgeline.config.env import state_directory
from ridgeline.engine.client import EngineClient
from ridgeline.engine.messages import Profile, TraceSteps
from ridgeline.errors import ConfigError
from ridgeline.server.admin_shapes import Profiled, ProfileReport, ProfileRequest, StepsReport
from ridgeline.server.service import Service

MAX_SECONDS: Final = 60.0
MAX_STEPS: Final = 1_000
"""Steps of a trace: its file has up to a few hundred lines for each."""
TRACED_RUNNERS: Final = ("native", "numpy", "cuda")
"""Runners that compute, by the first word of `ExecutorInfo.runner`."""
LOOK_SECONDS: Final = 0.05
"""Between two looks whether a file is there."""
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

    async def report(self, asked: ProfileRequest) -> Profiled:
        """The report that was asked for. Raises ConfigError."""
        if asked.steps is not None:
            return await self.trace(asked.steps, asked.seconds)
        return await self.profile(asked.seconds)

    async def profile(self, seconds: float) -> ProfileReport:
        """Profiles both loops for so long, and writes a file for each, which `python -m pstats` reads. Raises ConfigError."""
        with self._alone(seconds):
            return await self._profile(seconds, self._service.deployment.engine)

    async def trace(self, steps: int, seconds: float) -> StepsReport:
        """Tells of the next `steps` steps of the engine in a file that Perfetto opens; of fewer, where fewer run within `seconds`. Raises
        ConfigError."""
        runner = self._service.model.engine.info.runner
        if not 1 <= steps <= MAX_STEPS:
            raise ConfigError(f"steps is {steps}, outside 1 … {MAX_STEPS}")
        if runner.partition(",")[0] not in TRACED_RUNNERS:
            raise ConfigError(f"the runner is {runner!r:.100}, which computes nothing; steps are traced of {', '.join(TRACED_RUNNERS)}")
        with self._alone(seconds):
            return await self._trace(steps, seconds, self._service.deployment.engine)

    @contextmanager
    def _alone(self, seconds: float) -> Iterator[None]:
        if not 0 < seconds <= MAX_SECONDS:
            raise ConfigError(f"seconds is {seconds}, outside 0 … {MAX_SECONDS:g}")
        if self._is_busy:
            raise ConfigError("the server is being profiled; wait for its end")
        self._is_busy = True
        try:
            yield
        finally:
            self._is_busy = False

    async def _trace(self, steps: int, seconds: float, engine: EngineClient) -> StepsReport:
        (file,) = self._files("steps.json")
        engine.send(TraceSteps(str(file), steps))
        try:
            whole = await _exists(file, seconds)
        finally:
            if not file.exists():
                engine.send(TraceSteps(str(file), 0))
        return StepsReport(steps, str(file) if whole or await _exists(file, WRITE_SECONDS) else None)

    def _files(self, *names: str) -> list[Path]:
        """New files in the folder of profiles, which do not exist yet. Raises ConfigError."""
        folder = state_directory() / "profiles"
        self._count += 1
        kinds = (name.rpartition(".") for name in names)
        found = [folder / f"{name}-{os.getpid()}-{self._count}.{kind}" for name, _, kind in kinds]
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            for file in found:  # of a server before this one that had its number, as servers in containers have
                file.unlink(missing_ok=True)
        except OSError as error:
            raise ConfigError(f"a profile cannot be written to {str(folder)!r:.200}: {error.strerror}") from None
        return found

    async def _profile(self, seconds: float, engine: EngineClient) -> ProfileReport:
        front_end, loop = self._files("front-end.pstats", "engine.pstats")
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
        if not await _exists(loop, WRITE_SECONDS):
            return ProfileReport(seconds, str(front_end), None, _top(front_end), [])
        return ProfileReport(seconds, str(front_end), str(loop), _top(front_end), _top(loop))


async def _exists(file: Path, seconds: float) -> bool:
    """True if the file is there within so many seconds."""
    ends = time.monotonic() + seconds
    while not file.exists():
        if time.monotonic() >= ends:
            return False
        await asyncio.sleep(LOOK_SECONDS)
    return True


def _top(file: Path) -> list[str]:
    """Functions of most time of their own, as lines."""
    text = io.StringIO()
    pstats.Stats(str(file), stream=text).sort_stats("tottime").print_stats(TOP)
    return [line for line in text.getvalue().splitlines() if line.strip()][-TOP - 1 :]
