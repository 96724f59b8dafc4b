"""What a machine is, and what the code takes for granted of torch there: products in fp8, index ops in graphs, one pool after another."""

import os
import platform
import subprocess
import sys
from importlib.metadata import distributions
from typing import Any

import torch
from machine import TINY, open_machine
from say import say

from ridgeline.compute.cuda.bench.parts import about
from ridgeline.compute.cuda.device import DTYPES, Device
from ridgeline.compute.cuda.linear import linear
from ridgeline.compute.cuda.weights import Fp8Matrix

WANTED = ("torch", "triton", "numpy", "transformers", "msgspec", "starlette", "uvicorn", "gguf", "grimp", "llguidance", "pytest")
SMI = ("nvidia-smi", "--query-gpu=name,driver_version,persistence_mode,clocks.sm,clocks.mem,power.limit,temperature.gpu", "--format=csv")
ROWS = (1, 17) if TINY else (1, 16, 17, 32, 256, 2048)
WIDTH = 64 if TINY else 4096


def versions() -> dict[str, Any]:
    """Of what matters; None: not there."""
    there = {each.name: each.version for each in distributions()}
    found = {name: there.get(name) for name in WANTED}
    return {"python": sys.version.split()[0], "kernel": platform.release(), "cores": os.cpu_count(), "packages": found}


def driver() -> dict[str, Any]:
    return {"says": subprocess.run(SMI, capture_output=True, text=True, check=True).stdout.strip()}


def fp8_product(device: Device, rows: int) -> dict[str, Any]:
    """The product with scales over six decades, beside fp64: the largest error of a row and column in units of its own largest value."""
    codes = device.empty(rows, WIDTH, dtype=DTYPES["f32"]).normal_().to(DTYPES["f8"])
    values = device.empty(WIDTH, WIDTH, dtype=DTYPES["f32"]).normal_().to(DTYPES["f8"])
    mine, theirs = (torch.logspace(-3, 3, count, device=device.torch) for count in (rows, WIDTH))
    out = device.empty(rows, WIDTH, dtype=DTYPES["bf16"])
    linear((codes, mine), Fp8Matrix(values, theirs[:, None].contiguous(), (1, WIDTH)), out, device.empty(0, dtype=torch.uint8))()
    exact = codes.double() @ values.double().t()
    found = out.double() / mine.double()[:, None] / theirs.double()
    error = float((found - exact).abs().max() / exact.abs().max())
    assert error <= 0.01, f"off by {error:.3g} of the largest"
    return {"share_off": error}


def index_ops(device: Device) -> dict[str, Any]:
    """What steps capture outside of kernels, replayed over other numbers."""
    source, target = device.zeros(8, dtype=torch.int32), device.zeros(8, dtype=torch.int32)
    picked, order = device.zeros(8, dtype=torch.int32), torch.arange(7, -1, -1, device=device.torch)

    def run() -> None:
        torch.index_select(source, 0, order, out=picked)
        target.index_copy_(0, order, picked)

    run()
    device.settle()
    graph = device.capture(run, device.graph_pool()) if device.real else None
    source.copy_(torch.arange(8, dtype=torch.int32, device=device.torch))
    graph.replay() if graph else run()
    device.settle()
    assert target.tolist() == list(range(8)), target.tolist()
    return {"equal": True}


def pool_again(device: Device) -> dict[str, Any]:
    """Graphs that are dropped, and others in a pool of their own."""
    x = device.zeros(1 << 16, dtype=torch.int32)
    x.add_(1).mul_(0)  # libraries load a kernel where it first runs, which a capture may not
    for number in range(2):
        graph = device.capture(lambda: x.add_(1).mul_(1), device.graph_pool()) if device.real else None
        graph.replay() if graph else x.add_(1)
        device.settle()
        assert int(x[0]) == number + 1, int(x[0])
        del graph
    return {"equal": True}


def main() -> None:
    say({"fact": "versions"}, versions)
    if not TINY:
        say({"fact": "driver"}, driver)
    device = open_machine()
    say({"fact": "device"}, lambda: about(device))
    for rows in ROWS:
        say({"fact": "fp8 product", "rows": rows}, lambda rows=rows: fp8_product(device, rows))
    say({"fact": "index ops in a graph"}, lambda: index_ops(device))
    say({"fact": "a pool after another"}, lambda: pool_again(device))


if __name__ == "__main__":
    main()
