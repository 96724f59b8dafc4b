"""`ridgeline bench`: measurements as verbs. Owns their names and the modules where they are."""

from typing import Final

from ridgeline.cli.main import group

VERBS: Final[dict[str, str]] = {
    "serve": "Put load on an OpenAI-compatible server and measure what its users see.",
    "compare": "Measure servers in turn, on the same prompts, and say by what ratio they differ.",
    "roofline": "Measure what this machine can do at most.",
    "kernels": "Time products with packed weights beside what the machine allows.",
    "gpu": "Measure a GPU: ceilings, kernels, decoding, prompts and serving, in under ten minutes.",
    "offline": "Run batches through the engine alone, without HTTP.",
}
HOMES: Final[dict[str, str]] = {
    "serve": "bench_serve",
    "compare": "bench_serve",
    "roofline": "bench_machine",
    "kernels": "bench_machine",
    "gpu": "bench_gpu",
    "offline": "bench_machine",
}

bench = group(VERBS, HOMES)


@bench.callback()
def _bench() -> None:
    """Measure servers, kernels and this machine."""
