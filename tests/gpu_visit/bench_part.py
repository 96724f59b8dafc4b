"""A part of `ridgeline bench gpu`, of settings as JSON. On the device "cpu" kernels are interpreted, and the GPU's doors open on it."""

import json
import sys
from typing import Any

from machine import install

from ridgeline.bench import gpu_part


def stand_in() -> None:
    """Lets an engine start over the interpreter, without HTTP."""
    import ridgeline.bench.gpu_serving
    from ridgeline.compute.cuda import backend
    from ridgeline.compute.cuda.bench.parts import device_of
    from ridgeline.compute.runtime import worker

    install()
    backend.open_device = lambda: device_of("cpu")
    worker.gpu_missing = lambda: None
    ridgeline.bench.gpu_serving.WARM_STEPS = 1  # type: ignore[misc]
    for name in gpu_part.SERVER_PACKAGES:
        sys.modules[name] = None  # type: ignore[assignment]


if __name__ == "__main__":
    settings: dict[str, Any] = json.loads(sys.argv[1])
    if settings["device"] == "cpu" and settings["part"] != "host":
        stand_in()
    gpu_part.main()
