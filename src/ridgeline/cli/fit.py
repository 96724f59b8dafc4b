"""The fit of a second model beside the one that a server runs, by plan: weights, KV cache, and what is free now."""

from typing import Final

from ridgeline.config.env import model_stores
from ridgeline.config.groups import FAKE_PREFIX, EngineConfig
from ridgeline.config.resolve import resolve
from ridgeline.config.runner import resolve_runner
from ridgeline.errors import ConfigError
from ridgeline.facts.hardware.gpu import gpu_missing
from ridgeline.facts.hardware.machine import MachineFacts, extension_missing, machine_facts
from ridgeline.facts.headers.read import RANDOM_PREFIX, read_model_facts
from ridgeline.facts.hub.source import resolve_model
from ridgeline.planning.memory import kv_costs

WEIGHTS_FACTOR: Final = 1.25
"""Factor on the bytes of packed weights, for what fills up rows and the buffers of a step."""
GIB: Final = 1 << 30


def planned_bytes(config: EngineConfig) -> int:
    """Bytes of this machine's memory that a model will take beside others: weights and KV cache; 0 on a GPU and where it has no weights."""
    return sum(_planned(config)[:2])


def check_fit(config: EngineConfig) -> None:
    """Raises ConfigError, with the numbers, where a second engine has no room beside the one that runs."""
    weights, cache, machine = _planned(config)
    if weights + cache > machine.available_bytes:
        raise ConfigError(
            f"the new model needs {weights / GIB:.2f} GiB for weights and {cache / GIB:.2f} GiB of KV cache beside the one that serves; "
            f"{machine.available_bytes / GIB:.2f} GiB are free; take a smaller one, or start with --kv-cache-memory-bytes"
        )


def _planned(config: EngineConfig) -> tuple[int, int, MachineFacts]:
    """Bytes of weights and KV cache in this machine's memory, and the machine."""
    machine = machine_facts()
    if config.model.startswith((FAKE_PREFIX, RANDOM_PREFIX)):
        return 0, 0, machine
    resolved, _ = resolve_runner(config, no_extension=extension_missing(), no_gpu=gpu_missing(), cpu_cores=machine.cpu_cores)
    if resolved.runner == "cuda" and config.kv_cache_memory_bytes is None:
        raise ConfigError(
            "on a GPU the KV cache has all memory that is left, so no second model fits beside it; start with --kv-cache-memory-bytes"
        )
    facts = read_model_facts(resolve_model(config.model, model_stores()))
    weights = int(WEIGHTS_FACTOR * sum(facts.packed.values()))
    costs = kv_costs(facts, resolved)
    cache = resolve(resolved, context=facts.context, memory_bytes=machine.memory_bytes, costs=costs).config.kv_cache_memory_bytes or 0
    return (0, 0, machine) if resolved.runner == "cuda" else (weights, cache, machine)
