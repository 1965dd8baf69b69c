# SPDX-License-Identifier: Apache-2.0
"""Checks of values."""

from typing import Any

import numpy as np

from reverb import errors

__all__ = ["as_row"]


def as_row(name: str, value: Any, num_envs: int) -> np.ndarray:
    """Returns numbers of a step, one for each environment, `[B]`.

    For one environment, a number without a dimension is allowed too.

    Raises:
      InvalidArgumentError: If `value` has another shape, or has no numbers.
    """
    array = np.asarray(value)
    if array.shape == (num_envs,) and array.dtype.kind in "biuf":
        return array
    if num_envs == 1 and array.shape == () and array.dtype.kind in "biuf":
        return array.reshape(1)
    shapes = "a number or an array of shape [1]" if num_envs == 1 else f"of shape [{num_envs}]"
    raise errors.InvalidArgumentError(
        f"{name} of a step must be {shapes}, got dtype {array.dtype} and shape "
        f"{list(array.shape)}; convert it in a wrapper below the recorder"
    )
