"""Where a step's time goes on the device: kernels by their seconds, of replayed decode steps and of one prompt."""

from typing import Any

import torch
from machine import TINY, open_machine
from say import say
from tiny_sizes import TINY_CONFIG

from ridgeline.compute.cuda.bench.model import RandomModel, Types
from ridgeline.compute.cuda.device import Device
from ridgeline.facts.headers.checkpoint import read_config_facts
from ridgeline.facts.headers.read import find_config
from ridgeline.models.table import MEASURED

BATCHES = (1,) if TINY else (1, 32, 256)
PROMPT = 4 if TINY else 2048
CONTEXT = 8 if TINY else 1024
TYPES = ("f32",) if TINY else ("bf16", "fp8")
REPLAYS = 3
KERNELS = 24


def profiled(model: RandomModel, device: Device) -> dict[str, Any]:
    """The last step, replayed: seconds of all kernels and launches of one replay, and the longest kernels."""
    from torch.profiler import ProfilerActivity, profile

    activity = ProfilerActivity.CUDA if device.real else ProfilerActivity.CPU
    model.runner.replay()
    device.settle()
    with profile(activities=[activity]) as taken:
        for _ in range(REPLAYS):
            model.runner.replay()
        device.settle()
    events = [
        (each.key, each.count, each.self_device_time_total if device.real else each.self_cpu_time_total) for each in taken.key_averages()
    ]
    events.sort(key=lambda event: -event[2])
    kernels = [[name[:90], count / REPLAYS, round(us / REPLAYS, 1)] for name, count, us in events[:KERNELS]]
    return {
        "seconds": sum(us for *_, us in events) / REPLAYS / 1e6, "launches": sum(count for _, count, _ in events) / REPLAYS,
        "kernels": kernels,
    }  # fmt: skip


def main() -> None:
    device = open_machine()
    facts = read_config_facts(TINY_CONFIG if TINY else find_config(MEASURED))
    for dtype in TYPES:
        kv = "fp8" if dtype == "fp8" else dtype
        model = RandomModel(facts, Types(dtype, kv), device, tokens=PROMPT, rows=max(BATCHES), positions=max(CONTEXT + 16, PROMPT))
        if device.real:
            model.runner.warm_up(lambda stage, part: None, BATCHES, ())
        for batch in BATCHES:
            model.decode(batch, CONTEXT, 4)
            say({"profile": "decode", "dtype": dtype, "batch": batch}, lambda model=model: profiled(model, device))
        model.prefill(PROMPT, 1)
        say({"profile": "prompt", "dtype": dtype, "tokens": PROMPT}, lambda model=model: profiled(model, device))
        del model
        if device.real:
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
