"""Tensors of experts whose parts take turns along the outputs, as gate and up of gpt-oss do; and those stored as MXFP4.

Owns where the elements of each part lie.
"""

from collections.abc import Mapping
from dataclasses import replace
from math import prod

from ridgeline.errors import ModelFormatError
from ridgeline.facts.files.formats import FORMATS
from ridgeline.facts.files.values import quoted
from ridgeline.facts.model import TensorFacts


def split_alternating(tensor: TensorFacts, parts: tuple[str, ...], shapes: Mapping[str, tuple[int, ...]]) -> list[TensorFacts]:
    """The parts of a stored tensor: output i of it is output i // n of part i % n, of n parts.

    Stored are a bias [E, n · F]; floats [E, K, n · F]; or MXFP4 [E, n · F, K]. Raises ModelFormatError for another shape.
    """
    turns, shape = len(parts), shapes[parts[0]]
    experts, outputs = shape[0], turns * shape[1]
    rest = shape[2:]
    whole = (experts, *rest, outputs) if tensor.quantised is None else (experts, outputs, *rest)
    if len(shape) not in (2, 3) or any(shapes[part] != shape for part in parts) or tensor.shape != whole:
        raise ModelFormatError(f"tensor {quoted(tensor.name)} has shape {tensor.shape}, the header says {whole}")
    if tensor.quantised is not None:
        return [_mxfp4(tensor, part, shape, turn, turns) for turn, part in enumerate(parts)]
    form = FORMATS.get(tensor.kind)
    if form is None or form.block_elements != 1:
        raise ModelFormatError(f"tensor {quoted(tensor.name)} is stored as {tensor.kind}, which cannot be split; F32, F16 and BF16 can")
    size = form.block_bytes
    step, row = turns * size, outputs * size
    found = []
    for turn, part in enumerate(parts):
        own = replace(tensor, name=part, shape=shape, offset=tensor.offset + turn * size, bytes=prod(shape) * size, transform="transposed")
        if not rest:
            found.append(replace(own, stride=step, row_stride=row))
            continue
        matrix = replace(own, shape=shape[1:], bytes=prod(shape[1:]) * size, stride=row, row_stride=step)
        every = tuple(replace(matrix, offset=own.offset + expert * rest[0] * row) for expert in range(experts))
        found.append(replace(own, transform="", experts=every))
    return found


def _mxfp4(tensor: TensorFacts, part: str, shape: tuple[int, ...], turn: int, turns: int) -> TensorFacts:
    assert tensor.quantised is not None
    experts, outputs = shape[:2]
    stored, size = tensor.quantised, tensor.bytes // (experts * turns)
    every = tuple(
        replace(
            tensor, name=part, shape=shape[1:], bytes=size, quantised=replace(stored, first=expert * outputs * turns + turn, step=turns)
        )
        for expert in range(experts)
    )
    return TensorFacts(part, tensor.kind, shape, tensor.file, tensor.offset, experts * size, experts=every)
