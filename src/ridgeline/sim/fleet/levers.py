"""Which settings are worth trying when a simulated server is slow, and which of them helped most for its price.

Owns the list of levers. Whether one helps is never guessed: each is simulated on the same requests.
"""

from dataclasses import dataclass

from ridgeline.sim.fleet.measures import Figures
from ridgeline.sim.fleet.scenario import Scenario

SATURATED, FULL = 0.97, 0.9
"""Shares of time computing, and of KV pages held, from which a resource counts as the one that binds."""


@dataclass(frozen=True, slots=True)
class Tried:
    """A lever, what it came to, and the devices it takes as a multiple of today's."""

    name: str
    figures: Figures
    devices: float


def candidates(now: Scenario) -> dict[str, dict[str, str]]:
    """Lever → settings that differ from today's. Levers that today's settings have pulled already, or that cannot apply, are left out."""
    deployment, knobs = now.deployment, now.knobs
    found: dict[str, dict[str, str]] = {}
    if not knobs.enable_prefix_caching:
        found["prefix caching"] = {"enable_prefix_caching": "true"}
    elif now.replicas > 1 and now.routing != "prefix":
        found["routing by prefix"] = {"routing": "prefix"}
    found["twice the sequences at once"] = {"max_num_seqs": str(min(4096, 2 * knobs.max_num_seqs))}
    found["twice the tokens a step"] = {"max_num_batched_tokens": str(2 * knobs.max_num_batched_tokens)}
    found["half the tokens a step"] = {"max_num_batched_tokens": str(max(1, knobs.max_num_batched_tokens // 2))}
    if deployment.kv_bits > 8:
        doubled = {"kv_dtype": "int8"} if knobs.kv_pages is None else {"kv_dtype": "int8", "kv_pages": str(2 * knobs.kv_pages)}
        found["KV cache in 8 bits"] = doubled
    if now.durations is None:  # constants and fits know nothing of weight formats or devices
        stored = sum(deployment.shape.class_bytes(deployment.dtype).values())
        for name, dtype in (("weights in fp8", "fp8"), ("weights in 4 bits", "awq")):
            known = dtype != "fp8" or "fp8" in deployment.device.flops_per_second
            if known and sum(deployment.shape.class_bytes(dtype).values()) < stored:
                found[name] = {"dtype": dtype}
        width = 2 * deployment.layout.tensor
        if deployment.shape.heads % width == 0:
            found[f"tensor parallel over {width}"] = {"tensor_parallel_size": str(width)}
    found["twice the replicas"] = {"replicas": str(2 * now.replicas)}
    return found


def binding(scenario: Scenario, figures: Figures) -> str:
    """What today's settings run into, in words, from what was measured; the simulated levers say whether it is so."""
    one_more = figures.kv_use * (1 + 1 / max(1.0, figures.running))
    if figures.preemptions or (figures.waiting > 0 and one_more >= FULL):
        return "KV cache"
    if figures.running >= FULL * scenario.knobs.max_num_seqs and figures.waiting > 0:
        return "sequences at once: requests wait although the KV cache has room"
    if figures.utilisation >= SATURATED:
        return "the device's time"
    return "nothing: the servers idle part of the time"


def ranked(today: Figures, tried: list[Tried], has_objective: bool) -> list[Tried]:
    """The levers, the one first that helps most for each device: by requests that meet the objective, else by mean latency."""

    def gain(lever: Tried) -> float:
        faster = today.e2e.mean / max(1e-9, lever.figures.e2e.mean)
        met = (lever.figures.met + 1e-3) / (today.met + 1e-3) if has_objective else 1.0
        return met * faster / lever.devices

    return sorted(tried, key=gain, reverse=True)
