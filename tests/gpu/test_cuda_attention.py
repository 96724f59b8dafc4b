"""Attention over the paged cache against the reference: every type of cache, every cut, and what must be equal bit for bit."""

from typing import Any

import numpy as np
import pytest
import torch
from paged import OPERANDS, attend, stored
from tensors import error, numbers, on_device

from ridgeline.compute.ops.attention import attention as definition
from ridgeline.compute.ops.definition import Sample

TOLERANCE = {"f32": 1e-5, "bf16": 1e-2, "fp16": 2e-3, "fp8": 1e-2, "int8": 1e-2}


def owned(sample: Sample) -> dict[str, Any]:
    """A sample's arguments; what no sequence owns is NaN."""
    arguments = dict(sample.arguments)
    mine = np.zeros(len(arguments["keys"]), bool)
    for table, length in zip(arguments["tables"], arguments["kv_len"], strict=True):
        at = np.arange(length)
        mine[table[at // arguments["block_tokens"]] * arguments["block_tokens"] + at % arguments["block_tokens"]] = True
    for name in ("keys", "values"):
        arguments[name] = np.where(mine[:, None, None], arguments[name], np.float32(np.nan))
    return arguments


def against_the_reference(arguments: dict[str, Any], kind: str, **how: Any) -> float:
    """The greatest error against the reference over what the cache and the queries hold once rounded."""
    dtype = OPERANDS[kind]
    cache = stored(arguments["keys"], arguments["values"], arguments["block_tokens"], kind)
    keys, values = (x.cpu().numpy() for x in cache.read(0, torch.arange(len(arguments["keys"]), device=cache.pool.device)))
    theirs = definition.reference(**{**arguments, "q": numbers(on_device(arguments["q"], dtype)), "keys": keys, "values": values})
    assert isinstance(theirs, np.ndarray)
    out = attend(arguments, cache, dtype, **how)
    assert torch.isnan(out[len(theirs) :].float()).all()  # tokens that no row owns
    return error(out[: len(theirs)], theirs)


SAMPLES = [sample for sample in definition.samples() if sample.name != "tiny"]


@pytest.mark.parametrize("sample", definition.samples(), ids=lambda sample: sample.name)
def test_equals_the_reference(sample: Sample) -> None:
    assert against_the_reference(owned(sample), "f32") < TOLERANCE["f32"]
