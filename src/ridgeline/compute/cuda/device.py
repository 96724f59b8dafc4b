"""The torch device of a runner and its capabilities.

Owns the names of data types, and the calls that differ between a GPU and the interpreter (device "cpu", for tests): pinned memory, events,
graphs. Triton decides when a kernel is defined whether it is interpreted, by TRITON_INTERPRET; nothing here reads the environment.
"""

from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter
from typing import Any, Final, Protocol

import torch

from ridgeline.errors import ConfigError

DTYPES: Final[dict[str, torch.dtype]] = {
    "f32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "f8": torch.float8_e4m3fn,
    "i32": torch.int32,
    "i64": torch.int64,
}

MIN_CAPABILITY: Final = (8, 0)
"""Ampere: bf16 on tensor cores."""


class Graph(Protocol):
    """A captured CUDA graph."""

    def replay(self) -> None:
        """Launches the captured kernels again, over the same addresses."""


class Event(Protocol):
    """A CUDA event."""

    def record(self) -> None:
        """Places the event behind all launches so far."""

    def synchronize(self) -> None:
        """Waits until the device reaches the event."""

    def query(self) -> bool:
        """True if the device has reached the event, or if it was never recorded."""


@dataclass(frozen=True, slots=True)
class Device:
    """One device. `capability` is (0, 0) and there are no graphs where kernels are interpreted."""

    torch: torch.device
    name: str
    capability: tuple[int, int]
    memory_bytes: int

    @property
    def real(self) -> bool:
        """True where it is a GPU."""
        return self.torch.type == "cuda"

    def empty(self, *shape: int, dtype: torch.dtype) -> torch.Tensor:
        """Uninitialised memory of the device."""
        return torch.empty(shape, dtype=dtype, device=self.torch)

    def zeros(self, *shape: int, dtype: torch.dtype) -> torch.Tensor:
        """Zeroed memory of the device."""
        return torch.zeros(shape, dtype=dtype, device=self.torch)

    def host(self, *shape: int, dtype: torch.dtype) -> torch.Tensor:
        """Zeroed pinned memory of the host, for asynchronous copies."""
        return torch.zeros(shape, dtype=dtype, pin_memory=self.real)

    def event(self, *, timed: bool = False) -> Event:
        """An event. Waiting for it blocks without spinning; one that was never recorded is not waited for. `timed`: can be used in
        `seconds`."""
        return torch.cuda.Event(blocking=True, enable_timing=timed) if self.real else _HostEvent()

    def seconds(self, first: Event, last: Event) -> float:
        """Seconds on the device between two timed events that are complete."""
        if isinstance(first, _HostEvent) and isinstance(last, _HostEvent):
            return last.time - first.time
        return float(first.elapsed_time(last)) / 1e3  # type: ignore[attr-defined]

    def free_bytes(self) -> int:
        """Free memory in bytes, with what this process has reserved and does not use."""
        if not self.real:
            return self.memory_bytes
        torch.cuda.empty_cache()
        free, _ = torch.cuda.mem_get_info(self.torch)
        return int(free)

    def memory(self) -> dict[str, int]:
        """Bytes `allocated` and `reserved` by torch in this process, and `used` by all, as the driver counts. Waits for nothing."""
        if not self.real:
            return {"allocated": 0, "reserved": 0, "used": 0}
        free, total = torch.cuda.mem_get_info(self.torch)
        own = {"allocated": torch.cuda.memory_allocated(self.torch), "reserved": torch.cuda.memory_reserved(self.torch)}
        return {**own, "used": int(total - free)}

    def settle(self) -> None:
        """Waits for all launches. Only during the start, and for results that the host asks for."""
        if self.real:
            torch.cuda.synchronize(self.torch)

    def capture(self, run: Callable[[], None], pool: Any) -> Graph:
        """A graph of what `run` launches, with memory from `pool` (of `graph_pool`). All kernels in it must have run once before."""
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool):
            run()
        return graph

    def graph_pool(self) -> Any:
        """A memory pool that graphs share, as only one of them runs at a time; None where there are no graphs."""
        return torch.cuda.graph_pool_handle() if self.real else None


class _HostEvent:
    """An event of the interpreter, which computes synchronously."""

    time = 0.0

    def record(self) -> None:
        self.time = perf_counter()

    def synchronize(self) -> None:
        pass

    def query(self) -> bool:
        return True


def open_device() -> Device:
    """The first GPU that this process may use. Raises ConfigError where there is none, or where it is too old."""
    if not torch.cuda.is_available():
        raise ConfigError(
            f"--runner cuda: torch {torch.__version__} finds no CUDA device; look at `ridgeline doctor`, or use --runner auto",
            fix={"--runner": "auto"},
        )
    properties = torch.cuda.get_device_properties(0)
    capability = (properties.major, properties.minor)
    if capability < MIN_CAPABILITY:
        needed = ".".join(map(str, MIN_CAPABILITY))
        raise ConfigError(
            f"--runner cuda: {properties.name} has compute capability {properties.major}.{properties.minor}, {needed} is needed; "
            "use --runner auto",
            fix={"--runner": "auto"},
        )
    return Device(torch.device("cuda", 0), properties.name, capability, int(properties.total_memory))


def interpreted(memory_bytes: int) -> Device:
    """The device "cpu", on which Triton's kernels run interpreted: for tests, thousands of times slower than a GPU."""
    return Device(torch.device("cpu"), "interpreter", (0, 0), memory_bytes)


def use_one_copy_thread() -> None:
    """Lets torch use one thread: copies between host buffers stand for copies that a GPU makes by itself."""
    torch.set_num_threads(1)
