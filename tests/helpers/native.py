"""The native runner stepped by hand."""

from dataclasses import dataclass

from tiny import Driver

from ridgeline.compute.cpu.cache import allocate_native_kv
from ridgeline.compute.cpu.runner import NativeRunner
from ridgeline.compute.load.record import record


@dataclass
class NativeDriver(Driver):
    """As `Driver`, over packed weights; a step has at most `tokens` tokens, any of which may be selected."""

    kv_dtype: str = "bf16"
    tokens: int = 2048

    def open(self) -> None:
        """Makes the runner and its cache; block 0 holds what no sequence may read."""
        self.runner = NativeRunner(
            record(self.facts)["step"],
            self.weights,
            self.shape,
            tokens=self.tokens,
            selected=self.tokens,
            vocab=self.facts.tokens,
            threads=self.threads,
        )
        self.kv = allocate_native_kv(self.shape, self.facts.cached, self.kv_dtype, self.states())
        self.kv.pool.view("u1")[:, :, : self.block_tokens] = 0xFF  # NaN as fp32, as bf16 and as a scale
