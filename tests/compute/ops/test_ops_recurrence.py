"""Recurrences: the reference is the published formula, and has the same bits however a sequence is cut and whoever is beside it."""

import numpy as np
import pytest
import torch
from recurrent import RECURRENCES, Layer, reference_step
from transformers.models.qwen3_next.modeling_qwen3_next import torch_recurrent_gated_delta_rule

from ridgeline.compute.graph import TOKENS, Handle, Weight
from ridgeline.compute.ops.recurrence import gated_delta, short_conv, take_heads
from ridgeline.compute.runner import relative_error

LENGTH = 23


def test_convolution_is_that_of_torch() -> None:
    layer = Layer("short_conv", length=LENGTH, rows=1, positions=1)
    (found,) = layer.run(reference_step(layer.definition, layer.given), [(0, 0, LENGTH)])
    x, weight = (torch.from_numpy(array).double() for array in (layer.sequences[0]["x"], layer.given["weight"]))
    sums = torch.nn.functional.conv1d(x.T[None], weight[:, None], padding=weight.shape[1] - 1, groups=len(weight))[0, :, :LENGTH]
    assert relative_error(found, torch.nn.functional.silu(sums).T.float().numpy()) < 1e-6


def test_gated_delta_is_that_of_transformers() -> None:
    layer = Layer("gated_delta", length=LENGTH, rows=1, positions=1)
    (found,) = layer.run(reference_step(layer.definition, layer.given), [(0, 0, LENGTH)])
    own = {name: torch.from_numpy(array) for name, array in layer.sequences[0].items()}
    a, dt = torch.from_numpy(layer.given["a"]), torch.from_numpy(layer.given["dt"])
    q, k, v = own["x"].split([10, 10, 80], dim=1)
    heads = (q.reshape(1, LENGTH, 1, 10), k.reshape(1, LENGTH, 1, 10), v.reshape(1, LENGTH, 2, 40))
    decay, beta = a * torch.nn.functional.softplus(own["alpha"] + dt), own["beta"].sigmoid()
    theirs, state = torch_recurrent_gated_delta_rule(*heads, decay[None], beta[None], None, True, use_qk_l2norm_in_kernel=True)
    assert relative_error(found, theirs.reshape(LENGTH, 80).numpy()) < 2e-6
    assert state is not None and relative_error(layer.kept[0], state.numpy()) < 2e-6


@pytest.mark.parametrize("positions", [1, 3])
@pytest.mark.parametrize("name", RECURRENCES)
def test_cuts_and_company_change_no_bit(name: str, positions: int) -> None:
    layer = Layer(name, length=LENGTH, rows=3, positions=positions)
    layer.sequences[1] = layer.sequences[0]
    step = reference_step(layer.definition, layer.given)
    (whole,) = layer.run(step, [(0, 0, LENGTH)])
    for size in (1, 2, 3, 7, LENGTH - 1):
        layer.kept[1:] = np.nan
        found = []
        for start in range(0, LENGTH, size):
            end = min(start + size, LENGTH)
            found.append(layer.run(step, [(2, start, end), (1, start, end)])[1])
        assert np.concatenate(found).tobytes() == whole.tobytes()
        kept = min(positions, end - start)
        assert layer.last(1, LENGTH, kept).tobytes() == layer.last(0, LENGTH, kept).tobytes()


def test_parts_of_heads() -> None:
    x = np.arange(24, dtype=np.float32).reshape(2, 12)
    assert take_heads(x, heads=3, first=1, width=2).tolist() == [[1, 2, 5, 6, 9, 10], [13, 14, 17, 18, 21, 22]]  # type: ignore[union-attr]


def test_what_does_not_fit_is_refused() -> None:
    x, gate, four, three = Handle("x", TOKENS, 40), Handle("g", TOKENS, 4), Weight("w", (4,)), Weight("w", (3,))
    for heads, first, width in ((7, 0, 1), (4, 5, 6), (4, -1, 2), (4, 3, 0)):
        with pytest.raises(ValueError, match="take_heads"):
            take_heads.record(x, heads=heads, first=first, width=width)
    with pytest.raises(ValueError, match="short_conv"):
        short_conv.record(x, Weight("w", (41, 4)), layer=0)
    assert gated_delta.record(x, gate, gate, four, four, key_heads=2, key_dim=4, layer=0).made[0].width == 24
    bad = [(gate, three, 2, 4), (gate, four, 3, 4), (gate, four, 2, 10), (gate, four, 1, 3), (Handle("g", TOKENS, 3), three, 2, 4)]
    for values, dt, keys, width in bad:
        with pytest.raises(ValueError, match="gated_delta"):
            gated_delta.record(x, values, gate, dt, dt, key_heads=keys, key_dim=width, layer=0)
