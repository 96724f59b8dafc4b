"""Whether a step's numbers are finite, token by token. Owns nothing; runners ask it about what they have of each token."""

from math import isfinite

import numpy as np
from numpy.typing import NDArray


def finite_tokens(values: NDArray[np.float32]) -> NDArray[np.bool_]:
    """[N]: whether all `values` [N, D] of a token are finite."""
    if values.size and not (isfinite(values.max()) and isfinite(values.min())):  # both are NaN where one number is; mostly all is well
        found: NDArray[np.bool_] = np.isfinite(values).all(axis=1)
        return found
    return np.ones(len(values), np.bool_)
