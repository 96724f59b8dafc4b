"""Hidden states of rows that outlive their step: heads that draft find there what the target, or their own last pass, has left."""

import triton
import triton.language as tl
from torch import Tensor

from ridgeline.compute.cuda.triton.dependent import after_previous
from ridgeline.compute.cuda.triton.launch import BoundLaunch, ceil_div

BLOCK = 1024
"""Numbers of a state per program."""


@triton.jit
def take_states_kernel(
    states, out, state_ids, ids, positions, source, row_of_token, kv_len, shifts, places, window, width, state_stride, out_stride,
    BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Each program: `BLOCK` numbers of one token."""
    after_previous(PDL)
    token, at = tl.program_id(0), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    row, own = tl.load(row_of_token + token), tl.load(positions + token)
    position = own + tl.load(shifts + token)
    first = tl.load(source + token).to(tl.int64) * window
    state = first + (position + window - 1) % window
    number = tl.load(states + state * state_stride + at, mask=at < width, other=0.0)
    tl.store(out + token.to(tl.int64) * out_stride + at, number, mask=at < width)
    if own + 1 == tl.load(kv_len + row):
        tl.store(places + row, position + 1)
    else:
        tl.store(ids + token, tl.load(state_ids + first + position % window))


@triton.jit
def keep_states_kernel(
    values, states, ids, state_ids, positions, source, row_of_token, kv_len, shifts, window, most, width, value_stride, state_stride,
    SHIFTED: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Each program: `BLOCK` numbers of one token."""
    after_previous(PDL)
    token, at = tl.program_id(0), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    row, position = tl.load(row_of_token + token), tl.load(positions + token)
    keeps = position + most >= tl.load(kv_len + row)
    if SHIFTED:
        position += tl.load(shifts + token)
    state = tl.load(source + token).to(tl.int64) * window + position % window
    if not SHIFTED:
        tl.store(state_ids + state, tl.load(ids + token), mask=keeps)
    number = tl.load(values + token.to(tl.int64) * value_stride + at, mask=at < width, other=0.0)
    tl.store(states + state * state_stride + at, number, mask=(at < width) & keeps)


def take_states(
    states: Tensor, out: Tensor, state_ids: Tensor, ids: Tensor, positions: Tensor, source: Tensor, row_of_token: Tensor, kv_len: Tensor,
    shifts: Tensor, places: Tensor,
) -> BoundLaunch:  # fmt: skip
    """The launch that takes a hidden state for each token of heads: that of the position in front of it in the target's sequence.

    states        [rows, window, ≥ D] by permanent row and position modulo window; out: [T, D]
    state_ids     int32 [rows, window]: ids at these positions
    ids           int32 [T] of the tokens: all but a row's last become what the target has had there
    positions     int32 [T] in the heads' own sequences, of permanent rows `source` [T]
    row_of_token  int32 [T]
    kv_len        int32 [R]: positions of the heads' own sequences
    shifts        int32 [T]: how far these lie behind the target's
    places        int32 [R], becomes the target's position behind each row's last token
    """
    _, window, _ = states.shape
    count, width = out.shape
    columns = (state_ids, ids, positions, source, row_of_token, kv_len, shifts, places)
    arguments = (states, out, *columns, window, width, states.stride(1), out.stride(0))
    return BoundLaunch(take_states_kernel, (count, ceil_div(width, BLOCK)), arguments, {"BLOCK": BLOCK})


def keep_states(
    values: Tensor, states: Tensor, ids: Tensor, state_ids: Tensor, positions: Tensor, source: Tensor, row_of_token: Tensor, kv_len: Tensor,
    shifts: Tensor | None = None,
) -> BoundLaunch:  # fmt: skip
    """The launch that keeps hidden states [T, D] by position: of the target (shifts: None), with the tokens' ids, those of a row's last
    `window` tokens; of heads that of the last one, which stands for the token itself. The others as `take_states` has them."""
    _, window, _ = states.shape
    count, width = values.shape
    columns = (ids, state_ids, positions, source, row_of_token, kv_len, kv_len if shifts is None else shifts)
    sizes = (window, window if shifts is None else 1, width, values.stride(0), states.stride(1))
    constants = {"SHIFTED": shifts is not None, "BLOCK": BLOCK}
    return BoundLaunch(keep_states_kernel, (count, ceil_div(width, BLOCK)), (values, states, *columns, *sizes), constants)
