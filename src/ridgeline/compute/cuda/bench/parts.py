"""The parts of `ridgeline bench gpu` that stand on the device alone: each is a run of rows, plain numbers by name.

Owns what is measured of a model, and that one case's error does not end the others. `bench/gpu_part.py` calls a part by its name.
"""

import importlib
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any, Final

import torch

from ridgeline.compute.cuda.bench.kernels import CEILINGS, FULL, SMALL, Case, Sizes, cases, ceiling
from ridgeline.compute.cuda.bench.model import RandomModel, Types
from ridgeline.compute.cuda.bench.timing import seconds_of
from ridgeline.compute.cuda.device import Device, interpreted, open_device
from ridgeline.facts.model import ModelFacts

Row = dict[str, Any]
Settings = Mapping[str, Any]
"""dtype, kv_dtype, and of the steps: batches, context, prompts, steps, repeats, adapters, rank; of kernels: tokens, contexts, prompts."""

PEER: Final = "ridgeline.compute.cuda.bench.peer"
INTERPRETED_BYTES: Final = 256 << 20
FEW_STEPS: Final = 8
TOP_P: Final = 0.9
"""Without graphs."""


def device_of(kind: str) -> Device:
    """The first GPU, or for tests ("cpu") the interpreter. Raises ConfigError where there is no GPU."""
    return interpreted(INTERPRETED_BYTES) if kind == "cpu" else open_device()


def about(device: Device) -> Row:
    """The device and the versions of the libraries."""
    found = {"device": device.name, "capability": ".".join(map(str, device.capability)), "memory_bytes": device.memory_bytes}
    return {**found, "free_bytes": device.free_bytes(), "torch": torch.__version__, "cuda": torch.version.cuda}


def ceilings(facts: ModelFacts, device: Device, settings: Settings) -> Iterator[Row]:
    """Ceilings of the device."""
    for name in CEILINGS:
        yield _row({"ceiling": name}, partial(_ceiling, name, device))


def _ceiling(name: str, device: Device) -> Row:
    return {"per_second": ceiling(name, device, FULL if device.real else SMALL)}


def kernels(facts: ModelFacts, device: Device, settings: Settings) -> Iterator[Row]:
    """Every kernel, and the ceilings, which are measured first."""
    ceiling_of = {}
    for row in ceilings(facts, device, settings):
        yield row
        ceiling_of[row["ceiling"]] = row.get("per_second", 0.0)
    sizes = Sizes(tuple(settings["tokens"]), tuple((rows, context) for rows, context in settings["contexts"]), tuple(settings["prompts"]))
    for case in cases(facts, device, sizes):
        yield _row({"op": case.op, "shape": case.shape}, partial(_timed, case, device, ceiling_of))
        if device.real:
            torch.cuda.empty_cache()


def _timed(case: Case, device: Device, ceiling_of: Mapping[str, float]) -> Row:
    seconds = seconds_of(device, case.runs(device.real)) if device.real else seconds_of(device, case.runs(False), 1)
    memory = case.bytes / ceiling_of[case.memory] if ceiling_of[case.memory] else 0.0
    arithmetic = case.flops / ceiling_of[case.ceiling] if ceiling_of[case.ceiling] else 0.0
    return {
        "seconds": seconds.best, "median_seconds": seconds.median, "bytes_per_second": case.bytes / seconds.best,
        "flops_per_second": case.flops / seconds.best, "share_of_ceiling": max(memory, arithmetic) / seconds.best,
        "bottleneck": "memory" if memory >= arithmetic else "arithmetic",
    }  # fmt: skip


def decode(facts: ModelFacts, device: Device, settings: Settings) -> Iterator[Row]:
    """Decode batches with CUDA graphs, greedy and then with top-p; launched one by one where capturing fails, and the row says so."""
    batches, context, steps = settings["batches"], settings["context"], settings["steps"]
    types = Types(settings["dtype"], settings["kv_dtype"], settings["invariant"])
    model = RandomModel(facts, types, device, tokens=max(batches), rows=max(batches), positions=context + steps)
    yield {"weights_bytes": model.weights_bytes, "step_bytes": model.runner.nbytes}
    for batch in batches:  # without graphs first: kernels are compiled, and should capturing fail there are figures
        yield _row({"batch": batch, "graphs": False}, partial(model.decode, batch, context, min(steps, FEW_STEPS)))
    if device.real:
        yield _row({"graphs": True}, partial(_captured, model, batches, ()))
        for batch in batches:
            yield _row({"batch": batch, "graphs": model.runner.graphs > 0}, partial(model.decode, batch, context, steps))
    for batch in batches:
        names = {"batch": batch, "graphs": model.runner.graphs > 0, "top_p": TOP_P}
        yield _row(names, partial(model.decode, batch, context, max(2, steps // 2), top_p=TOP_P))


def _captured(model: RandomModel, rows: Collection[int], tokens: Collection[int]) -> Row:
    """Captures only the graphs that are measured; an engine captures all."""
    free, began = model.device.free_bytes(), perf_counter()
    model.runner.warm_up(lambda stage, part: None, rows, tokens)
    seconds = perf_counter() - began
    return {"captured": model.runner.graphs, "seconds": seconds, "graph_bytes": free - model.device.free_bytes()}


def adapters(facts: ModelFacts, device: Device, settings: Settings) -> Iterator[Row]:
    """Decode batches without adapters, and with rows that take turns at some: their speed as a share of that without."""
    batches, context, steps = settings["batches"], settings["context"], settings["steps"]
    types = Types(settings["dtype"], settings["kv_dtype"], settings["invariant"])
    alone: dict[int, float] = {}
    for count in (0, settings["adapters"]):
        own = {"adapters": count, "rank": settings["rank"]}
        model = RandomModel(facts, types, device, tokens=max(batches), rows=max(batches), positions=context + steps, **own)
        if device.real:
            yield _row(own, partial(_captured, model, batches, ()))
        for batch in batches:
            row = _row({"batch": batch, **own}, partial(model.decode, batch, context, steps))
            speed = row.get("tokens_per_second", 0.0)
            yield row | ({"ratio": speed / alone[batch]} if count and alone.get(batch) else {})
            alone[batch] = speed
        del model


def prefill(facts: ModelFacts, device: Device, settings: Settings) -> Iterator[Row]:
    """Prompts, each in one step."""
    prompts = [tokens for tokens in settings["prompts"] if tokens <= facts.context]
    types = Types(settings["dtype"], settings["kv_dtype"], settings["invariant"])
    model = RandomModel(facts, types, device, tokens=max(prompts), rows=1, positions=max(prompts))
    if device.real:  # small prompts are launched in pieces that are graphs, as they are when serving
        yield _row({"graphs": True}, partial(_captured, model, (), prompts))
    for tokens in prompts:
        yield _row({"tokens": tokens}, partial(model.prefill, tokens, settings["repeats"]))


def transformers(facts: ModelFacts, device: Device, settings: Settings) -> Iterator[Row]:
    """Decoding by the library of that name, which is loaded here alone, in the shape that `settings` name."""
    peer = importlib.import_module(PEER)
    model = peer.build(Path(settings["model"]), settings["dtype"], device)
    for names, measure in peer.cases(model, device, settings):
        yield _row(names, measure)


def _row(names: Row, measure: Callable[[], Row]) -> Row:
    """The row of a case, or its error, whatever its type: the next case may still run."""
    try:
        return names | measure()
    except Exception as error:
        return names | {"error": f"{type(error).__name__}: {error}"[:2000]}


PARTS: Final[Mapping[str, Callable[[ModelFacts, Device, Settings], Iterator[Row]]]] = {
    "ceilings": ceilings, "kernels": kernels, "decode": decode, "invariant": decode, "adapters": adapters, "experts": decode,
    "prefill": prefill, "transformers": transformers,
}  # fmt: skip
