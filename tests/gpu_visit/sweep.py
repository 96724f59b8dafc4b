"""What else could be chosen, timed: launches that wait for the end of the one ahead, and other tiles than the tables have: of attention, of
products with fp8 and gated units, and where these give way to the library."""

from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from typing import Any

from machine import TINY, open_machine
from say import say
from smoke import two_layers
from tiny_sizes import TINY_CONFIG

from ridgeline.compute.cuda import linear
from ridgeline.compute.cuda.bench import kernels
from ridgeline.compute.cuda.bench.model import RandomModel, Types
from ridgeline.compute.cuda.bench.timing import seconds_of
from ridgeline.compute.cuda.device import Device
from ridgeline.compute.cuda.triton import attention, matmul
from ridgeline.compute.cuda.triton import launch as launches
from ridgeline.compute.cuda.triton.launch import capability
from ridgeline.facts.headers.checkpoint import read_config_facts
from ridgeline.facts.headers.read import find_config
from ridgeline.facts.model import ModelFacts
from ridgeline.models.table import MEASURED

ROWS = (1,) if TINY else (1, 32, 256)
CONTEXT, PROMPT = (8, 8) if TINY else (1024, 2048)
KEYS, STAGES, WARPS = ((32,), (2,), (4,)) if TINY else ((32, 64, 128), (3, 4, 5), (4, 8))
OUTPUTS, DEPTHS = ((32,), (2,)) if TINY else ((32, 64, 128), (3, 4))
LIBRARY_ROWS = (2,) if TINY else (16, 32, 64, 128, 256)
COPIES = 1 if TINY else 4
STEPS = 2 if TINY else 64
NEVER = 1000
"""A capability that no device has."""

Make = Callable[[], Callable[[], None]]


def timed(device: Device, make: Make) -> dict[str, Any]:
    """Best seconds of a launch."""
    return {"seconds": seconds_of(device, [make() for _ in range(COPIES)], 1 if TINY else 3).best}


def overlapping(device: Device, *, overlaps: bool) -> dict[str, Any]:
    """Seconds of decode steps of two layers, whose launches come before the one ahead of them has ended, or do not."""
    own = launches.PROGRAMMATIC_FROM
    launches.PROGRAMMATIC_FROM = own if overlaps else NEVER  # type: ignore[misc]
    try:
        kind = "f32" if TINY else "bf16"
        model = RandomModel(
            two_layers(MEASURED), Types(kind, kind), device, tokens=max(ROWS), rows=max(ROWS), positions=CONTEXT + STEPS
        )  # fmt: skip
        if device.real:
            model.runner.warm_up(lambda stage, part: None, ROWS, ())
        return {"seconds": {rows: model.decode(rows, CONTEXT, STEPS)["device_seconds"] for rows in ROWS}}
    finally:
        launches.PROGRAMMATIC_FROM = own  # type: ignore[misc]


def attentions(facts: ModelFacts, device: Device) -> Iterator[tuple[dict[str, Any], Make]]:
    """Decode and a prompt, each with its tile in the table, and then others."""
    key = (attention.table_row(capability(device.torch)), 128 if facts.head_dim <= 128 else 256)
    cases = [("decode", attention.DECODE_TILES, 16, rows, 1, CONTEXT) for rows in ROWS]
    for name, tiles, queries, rows, tokens, context in (*cases, ("prompt", attention.PREFILL_TILES, 128, 1, PROMPT, PROMPT)):
        own = tiles[key]
        others = [attention.Tile(queries, keys, warps, stages) for keys, stages, warps in product(KEYS, STAGES, WARPS)]
        for tile in dict.fromkeys((own, *others)):
            tiles[key] = tile
            names = {"sweep": f"attention {name}", "rows": rows, "tile": [tile.queries, tile.keys, tile.warps, tile.stages]}
            yield {**names, "own": tile == own}, partial(kernels._attend, facts, device, "bf16", rows, tokens, context)
        tiles[key] = own


def products(facts: ModelFacts, device: Device) -> Iterator[tuple[dict[str, Any], Make]]:
    """Gated units and products of floats with fp8, up to so many rows."""
    shapes = {
        "GLU_TILES": partial(kernels._gated, "bf16", outputs=2 * facts.ffn, inputs=facts.hidden, device=device),
        "FP8_GLU_TILES": partial(kernels._gated, "fp8", outputs=2 * facts.ffn, inputs=facts.hidden, device=device),
        "FLOATS_FP8_TILES": partial(kernels._quantising, outputs=facts.hidden, inputs=facts.ffn, device=device),
    }
    for (name, make), rows in product(shapes.items(), ROWS):
        own = getattr(matmul, name)
        m = min(128, max(16, rows))
        others = (matmul.Tile(m, n, 128, 8 if m * n > 4096 else 4, stages) for n, stages in product(OUTPUTS, DEPTHS))
        for tile in (None, *others):
            setattr(matmul, name, own if tile is None else ((1 << 20, tile),))
            yield {"sweep": name, "rows": rows, "tile": tile and [*tile], "own": tile is None}, partial(make, rows=rows)
        setattr(matmul, name, own)


def limits(facts: ModelFacts, device: Device) -> Iterator[tuple[dict[str, Any], Make]]:
    """One launch beside several and the library's product: where the first stops to pay."""
    cases = {
        "GATED_ROWS": partial(kernels._gated, "fp8", outputs=2 * facts.ffn, inputs=facts.hidden, device=device),
        "QUANTISED_ROWS": partial(kernels._quantising, outputs=facts.hidden, inputs=facts.ffn, device=device),
    }
    for (name, make), rows in product(cases.items(), LIBRARY_ROWS):
        own = getattr(linear, name)
        for most in (own, 0):
            setattr(linear, name, most)
            yield {"sweep": name, "rows": rows, "library": not most}, partial(make, rows=rows)
        setattr(linear, name, own)


if __name__ == "__main__":
    machine = open_machine()
    model = read_config_facts(TINY_CONFIG if TINY else find_config(MEASURED))
    for each in (True, False):
        say({"sweep": "overlapping launches", "overlaps": each}, lambda each=each: overlapping(machine, overlaps=each))
    for of in (limits, attentions, products):
        for case, launch in of(model, machine):
            say(case, partial(timed, machine, launch))
