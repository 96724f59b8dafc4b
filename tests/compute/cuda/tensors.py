"""Tensors of tests: where they live, poisoned outputs, errors in units of the largest value."""

from typing import Any

import numpy as np
import torch

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def on_device(array: Any, dtype: torch.dtype | None = None) -> torch.Tensor:
    """A numpy array as a tensor of `dtype` where kernels run."""
    return torch.from_numpy(np.array(array)).to(device=DEVICE, dtype=dtype)


def poisoned(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """NaN in every floating type (all bits set), 0x7F in every byte of an integer."""
    size, byte = dtype.itemsize, 0xFF if dtype.is_floating_point else 0x7F
    return torch.full((*shape[:-1], shape[-1] * size), byte, dtype=torch.uint8, device=DEVICE).view(dtype)


def within(wide: torch.Tensor, *, left: int = 3, right: int = 5) -> torch.Tensor:
    """The same numbers as a view into the columns of a wider, poisoned buffer."""
    buffer = poisoned(len(wide), left + wide.shape[1] + right, dtype=wide.dtype)
    view = buffer[:, left : left + wide.shape[1]]
    view.copy_(wide)
    return view


def numbers(tensor: torch.Tensor) -> np.ndarray:
    """A tensor's numbers as fp32 of numpy; integers as they are."""
    return (tensor.float() if tensor.is_floating_point() else tensor).cpu().numpy()


def error(ours: torch.Tensor, theirs: np.ndarray) -> float:
    """The greatest difference in units of the reference's largest value; infinite where something was not written."""
    got = numbers(ours).astype(np.float64).reshape(theirs.shape)
    if not got.size:
        return 0.0
    if not np.array_equal(np.isfinite(got), np.isfinite(theirs)):
        return float("inf")
    largest = np.nanmax(np.abs(theirs), initial=0)
    return float(np.nanmax(np.abs(got - theirs), initial=0) / (largest or 1))
