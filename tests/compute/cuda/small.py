"""Two layers of the three shapes of network, small enough for kernels that are interpreted; a GPU runs the same."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from serving import SETTINGS
from tensors import DEVICE
from tiny import Driver, Tiny, open_tiny

from ridgeline.compute.cuda import backend
from ridgeline.compute.cuda.adapters import DeviceAdapterSlots
from ridgeline.compute.cuda.cache import DeviceKVCache, allocate_device_kv
from ridgeline.compute.cuda.device import DTYPES, Device, interpreted, open_device
from ridgeline.compute.cuda.load import place_weights
from ridgeline.compute.cuda.runner import CudaRunner
from ridgeline.compute.load.record import record
from ridgeline.compute.quant.weight import Weight
from ridgeline.compute.runtime import worker
from ridgeline.facts.model import ModelFacts

SIZE = Tiny(layers=2, hidden=32, heads=4, kv_heads=2, head_dim=16, ffn=48, vocab=300, window=4, context=64)
ARCHITECTURES = ("gemma3", "llama", "qwen3")


def device() -> Device:
    """The GPU if there is one, else the interpreter."""
    return open_device() if DEVICE.type == "cuda" else interpreted(256 << 20)


@contextmanager
def served_on_device(**settings: object) -> Iterator[None]:
    """Within the context engines run in fp32 on the GPU, or interpreted, with these settings."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(worker, "gpu_missing", lambda: None)
        patch.setattr(backend, "open_device", device)
        before = dict(SETTINGS)
        SETTINGS.update(settings | {"runner": "cuda", "dtype": "f32", "kv_dtype": "f32"})
        yield
        SETTINGS.clear()
        SETTINGS.update(before)


def small(folder: Path, architecture: str) -> tuple[ModelFacts, dict[str, Weight]]:
    """The weights of a tiny Gemma 3 in another network: Llama has no norms of heads, Qwen 3 none behind attention and network."""
    facts, weights = open_tiny(folder / "small.gguf", SIZE)
    kinds = ("full", "full") if architecture != "gemma3" else ("window", "full")
    rope = {"full": facts.rope["full"], "window": facts.rope["window"]}
    return replace(facts, architecture=architecture, layer_kinds=kinds, rope=rope), weights


class DeviceDriver(Driver):
    """Steps a runner of a device by hand, beside the numpy runner of `Driver`. slots: for adapters of rank 16 at most."""

    def __init__(
        self, facts: ModelFacts, weights: dict[str, Weight], *, kv: str = "f32", dtype: str = "f32", slots: int = 0, **options: Any
    ) -> None:
        self.slots = slots
        self.options = {"tokens": 8, "rows": 3, "positions": 64, "vocab": facts.tokens, "cached": facts.cached, **options}
        self.kv_type, self.dtype = kv, dtype
        super().__init__(facts, weights, block_tokens=4, blocks=60)

    def open(self) -> None:
        """Both runners and both caches; nothing that was there before is fit to be read."""
        super().open()
        self.device = device()
        torch_dtype = DTYPES["bf16" if self.dtype == "fp8" else self.dtype]
        step = record(self.facts)["step"]
        oplist, placed = place_weights(self.weights, step, self.device, torch_dtype, fp8=self.dtype == "fp8", adapters=self.slots > 0)
        adapters = DeviceAdapterSlots(oplist, self.slots, 16, torch_dtype, self.device) if self.slots else None
        self.cuda = CudaRunner(oplist, placed, self.shape, self.device, torch_dtype, adapters=adapters, **self.options)
        self.cuda.plan._memory.fill_(0xFF)
        self.cuda.plan.scratch.fill_(0xFF)
        self.cache = self.new_cache()

    def new_cache(self) -> DeviceKVCache:
        """An empty cache: everything but block 0 is NaN."""
        cache = allocate_device_kv(self.shape, self.facts.cached, self.kv_type, self.device.torch)
        cache.pool[:, :, 1:].fill_(0xFF)
        return cache
