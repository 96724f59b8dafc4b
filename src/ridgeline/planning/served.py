"""Settings of the simulator for what `ridgeline serve` would run on this machine without flags, and for what an engine does run.

The settings go through the resolver of the engine's own start, so that neither can drift from the other.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from ridgeline.config.groups import EngineConfig
from ridgeline.config.resolve import resolve
from ridgeline.config.runner import resolve_runner
from ridgeline.facts.hardware.gpu import gpu_missing
from ridgeline.facts.hardware.machine import extension_missing, machine_facts
from ridgeline.facts.model import ModelFacts
from ridgeline.planning.memory import kv_costs

if TYPE_CHECKING:
    from ridgeline.engine.executor import ExecutorInfo

SAME: Final = ("max_num_seqs", "max_num_batched_tokens", "step_ms", "scheduling_policy", "enable_prefix_caching", "depth", "swap_space")
"""Settings whose names are those of the engine's."""


def simulated_settings(info: "ExecutorInfo", config: EngineConfig) -> dict[str, Any]:
    """Values of the simulator's settings for an engine that runs."""
    found = {name: getattr(config, name) for name in SAME}
    return (
        found
        | {
            "max_num_seqs": info.rows if config.max_num_seqs is None else min(info.rows, config.max_num_seqs),
            "max_num_batched_tokens": config.max_num_batched_tokens or info.tokens,
            "context": info.max_model_len,
            "kv_blocks": info.kv.blocks,
        }
        | ({} if config.kv_dtype == "auto" else {"kv_dtype": config.kv_dtype})
    )


def served_settings(facts: ModelFacts, given: Mapping[str, Any]) -> dict[str, Any]:
    """Values of settings that `given` leaves open, as a server of this model has them on this machine's CPU; {} on a GPU, whose memory
    is measured at the start. Raises ConfigError where no such server could start."""
    named = {name: given[name] for name in (*SAME, "kv_dtype") if given.get(name) is not None}
    config = EngineConfig(model="", **named)
    if config.kv_dtype == "f16":
        config = replace(config, kv_dtype="bf16")
    machine = machine_facts()
    config, _ = resolve_runner(config, no_extension=extension_missing(), no_gpu=gpu_missing(), cpu_cores=machine.cpu_cores)
    if config.runner == "cuda":
        return {}
    config = replace(config, max_model_len=given.get("context"))
    costs = kv_costs(facts, config)
    found = resolve(config, context=facts.context, memory_bytes=machine.memory_bytes, costs=costs)
    return {name: getattr(found.config, name) for name in (*SAME, "kv_dtype")} | {
        "context": found.config.max_model_len,
        "kv_blocks": found.blocks,
    }
