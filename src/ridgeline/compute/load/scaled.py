"""`ScaledWeight` from the tensors of fp8 checkpoints: codes stay in the file, scales are read now.

Owns the layouts "e4m3" of `facts.model.QuantisedParts`.
"""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from ridgeline.compute.load.grouped import elements
from ridgeline.compute.quant.bits import Bytes
from ridgeline.compute.quant.scaled import ScaledWeight
from ridgeline.errors import ModelFormatError
from ridgeline.facts.model import TensorFacts


def scaled_weight(tensor: TensorFacts, maps: Mapping[Path, Bytes]) -> ScaledWeight:
    """The matrix that `tensor` describes; `maps` are its files, uint8.

    Raises ModelFormatError where a projection that is stored with others begins inside a block.
    """
    parts = tensor.quantised
    assert parts is not None
    (rows, columns), group_rows, group = tensor.shape, parts.group_rows, parts.group
    whole = group_rows >= parts.rows
    if parts.first % group_rows and not whole:
        raise ModelFormatError(f"{tensor.name} begins with row {parts.first} inside a block of {group_rows} rows, which is not supported")
    stored = elements(parts.scales, maps).reshape(-1, -(-columns // group))
    scales = (stored.astype(np.uint32) << np.uint32(16)).view(np.float32) if parts.scales.kind == "BF16" else stored.astype(np.float32)
    mine = scales if whole else scales[parts.first // group_rows : -(-(parts.first + rows) // group_rows)]
    codes = elements(parts.codes, maps)[parts.first : parts.first + rows]
    return ScaledWeight(codes, np.ascontiguousarray(mine), (rows if whole else group_rows, group))
