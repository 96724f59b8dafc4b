"""`ridgeline bench`: measurements as verbs. Owns their names; each is a file `bench_<verb>.py`."""

from typing import Final

from ridgeline.cli.verbs import group

VERBS: Final[dict[str, str]] = {
}

bench = group(VERBS, "bench_")


@bench.callback()
def _bench() -> None:
    """Measure servers, kernels and this machine."""
