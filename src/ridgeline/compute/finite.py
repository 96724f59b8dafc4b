"""Whether a step's numbers are finite, row by row. Owns nothing; runners ask it about what they have of each token."""

from math import isfinite

import numpy as np
from numpy.typing import NDArray


def finite_rows(values: NDArray[np.float32], row: NDArray[np.int32], rows: int) -> NDArray[np.bool_]:
    """[rows]: whether all `values` [N, D] that belong to a row are finite; `row` [N] says to which row each of the N does."""
    finite = np.ones(rows, np.bool_)
    if values.size and not (isfinite(values.max()) and isfinite(values.min())):  # both are NaN where one number is; mostly all is well
        finite[row[~np.isfinite(values).all(axis=1)]] = False
    return finite
