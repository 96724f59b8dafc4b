"""A trace of steps on a GPU by torch.profiler: kernels of the device under ranges named after the ops that launch them.

A step that is traced is launched op by op, also where graphs of it exist: a graph's kernels belong to no op. So it takes longer than
others, and its kernels do not.
"""

import os
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path

import torch

from ridgeline.compute.cuda.buckets import Bucket
from ridgeline.compute.cuda.device import Device
from ridgeline.compute.cuda.graphs import Launch


class DeviceTrace:
    """Tells of the next `steps` steps in a file at `path`, which Perfetto opens. Ranges have NVTX names too, for Nsight, on a GPU."""

    def __init__(self, device: Device, path: Path, steps: int) -> None:
        self._device, self._path, self._left = device, path, steps
        activities = [torch.profiler.ProfilerActivity.CPU]
        if device.real:
            activities.append(torch.profiler.ProfilerActivity.CUDA)
        self._profiler = torch.profiler.profile(activities=activities)
        self._profiler.start()

    def run(self, bucket: Bucket, body: Sequence[Launch], tail: Sequence[Launch]) -> None:
        """Launches a step, each op in a range of its name."""
        with self._range(f"step of {bucket.tokens} tokens, {bucket.rows} rows"):
            for launch in (*body, *tail):
                name = launch.name.replace("→", "->")  # torch leaves out names that are not ASCII
                with torch.profiler.record_function(name), self._range(name):
                    launch.run()
        self._left -= 1

    @property
    def is_whole(self) -> bool:
        """True where as many steps have been launched as were asked for."""
        return self._left <= 0

    def close(self) -> None:
        """Waits for the device and writes the file, for its owner alone, whole or not at all. Raises OSError. Once."""
        self._device.settle()
        self._profiler.stop()
        part = self._path.with_name(f"{self._path.name}.part.json")
        os.close(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600))
        self._profiler.export_chrome_trace(str(part))
        part.chmod(0o600)
        os.replace(part, self._path)

    def _range(self, name: str) -> "nullcontext[None] | torch.cuda.nvtx.range":
        return torch.cuda.nvtx.range(name) if self._device.real else nullcontext()
