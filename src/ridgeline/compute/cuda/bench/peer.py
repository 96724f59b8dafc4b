"""transformers at its best on the same device: a static cache and a compiled step, greedy, the model's shape with random weights.

Owns how it is called. Loaded in a process of its own: nothing else here imports transformers.
"""

import inspect
import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
import transformers

from ridgeline.compute.cuda.device import DTYPES, Device


def build(config: Path, dtype: str, device: Device) -> Any:
    """The model of a config.json, with weights of the library's own chance, made on the device."""
    fields = json.loads(config.read_text())
    kind = fields.pop("model_type")
    described = transformers.AutoConfig.for_model(kind, **{name: value for name, value in fields.items() if name != "auto_map"})
    with device.torch:
        model = transformers.AutoModelForCausalLM.from_config(described, dtype=DTYPES[dtype], attn_implementation="sdpa")
    return model.eval()


def cache_name(model: Any) -> str:
    """Name of the cache for the model's step: releases since 5.24 say `cache`, those before `past_key_values`."""
    return "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"


def step_of(model: Any, mode: str | None) -> Callable[[torch.Tensor, Any], torch.Tensor]:
    """One token for each sequence: ids [B, 1] and a cache to the next ids [B, 1]. mode: of torch.compile; None: not compiled."""

    named = cache_name(model)

    def step(ids: torch.Tensor, cache: Any) -> torch.Tensor:
        logits = model(input_ids=ids, use_cache=True, logits_to_keep=1, **{named: cache}).logits
        return logits[:, -1:].argmax(-1)

    return step if mode is None else torch.compile(step, mode=mode, fullgraph=True)


@torch.no_grad()
def decode(model: Any, device: Device, mode: str | None, batch: int, context: int, steps: int) -> dict[str, Any]:
    """`steps` steps of `batch` sequences around `context` positions. Nothing is read between them: as fast as it can be.

    start_seconds  of the prompts, and of compiling        cache  positions of the static cache, all of which each step looks at
    """
    config = model.config
    start, warm = max(1, context - steps // 2), max(3, steps // 2)
    cache = transformers.StaticCache(config=config, max_cache_len=start + warm + steps)
    ids = torch.randint(0, config.vocab_size, (batch, start), device=device.torch)
    step = step_of(model, mode)
    began = perf_counter()
    token = step_of(model, None)(ids, cache)
    for _ in range(warm):  # compiled in the first, captured in the second and third
        token = _next(step, token, cache, mode)
    device.settle()
    warmed = perf_counter()
    for _ in range(steps):
        token = _next(step, token, cache, mode)
    device.settle()
    seconds = (perf_counter() - warmed) / steps
    return {"tokens_per_second": batch / seconds, "step_seconds": seconds, "start_seconds": warmed - began, "cache": start + warm + steps}


def _next(step: Callable[[torch.Tensor, Any], torch.Tensor], token: torch.Tensor, cache: Any, mode: str | None) -> torch.Tensor:
    """The next ids, copied: a compiled step's output lies where its next one writes."""
    if mode is not None:
        torch.compiler.cudagraph_mark_step_begin()
    return step(token, cache).clone()


def cases(model: Any, device: Device, settings: Any) -> Iterator[tuple[dict[str, Any], Callable[[], dict[str, Any]]]]:
    """(names, what measures) of every batch size under every way to compile; what another left is forgotten first."""
    for mode in settings["modes"]:
        for batch in settings["batches"]:
            names = {"batch": batch, "mode": mode or "not compiled", "transformers": transformers.__version__}
            yield names, partial(_fresh, partial(decode, model, device, mode, batch, settings["context"], settings["steps"]), device)


def _fresh(measure: Callable[[], dict[str, Any]], device: Device) -> dict[str, Any]:
    torch.compiler.reset()
    if device.real:
        torch.cuda.empty_cache()
    return measure()
