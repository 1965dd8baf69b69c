# SPDX-License-Identifier: Apache-2.0
"""Converts values to the structure and the dtypes of their space."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from reverb import errors
from reverb._recording.nests import map_space

__all__ = ["as_rows", "dtypes_of", "of_dtypes"]

_NUMBERS = "biuf"


def dtypes_of(space: Any) -> Any:
    """Returns a nest with the dtype of each space below Dict and Tuple."""
    return map_space(lambda leaf: np.dtype(leaf.dtype), space)


def as_rows(dtypes: Any, value: Any, column: str) -> Any:
    """Returns a value of one environment as a nest of arrays `[1, ...]`, for `of_dtypes`.

    The space alone, of which `dtypes` are, says what is a nest: environments return a tuple or a
    list of numbers for a Box, too.

    Raises:
      InvalidArgumentError: If a part cannot be an array.
    """
    if isinstance(dtypes, Mapping):
        if not isinstance(value, Mapping) or value.keys() != dtypes.keys():
            return value  # Refused by `of_dtypes`.
        return {key: as_rows(it, value[key], f"{column}[{key!r}]") for key, it in dtypes.items()}
    if isinstance(dtypes, tuple):
        if not isinstance(value, tuple | list) or len(value) != len(dtypes):
            return value
        return tuple(
            as_rows(it, part, f"{column}[{at}]")
            for at, (it, part) in enumerate(zip(dtypes, value, strict=True))
        )
    try:
        return np.asarray(value)[np.newaxis]
    except ValueError:  # NumPy raises it for parts of different shapes.
        raise errors.InvalidArgumentError(
            f"{column} must be numbers of dtype {dtypes}, as its space has, got a "
            f"{type(value).__name__} whose parts have different shapes"
        ) from None


def of_dtypes(dtypes: Any, nest: Any, column: str, where: Any = None) -> Any:
    """Returns the arrays `[B, ...]` of a nest with the dtypes of another.

    Floats are cast. Integers and booleans are cast if their values fit, and floats to integers if
    they have no fraction; only values of environments in `where`, booleans `[B]`, count. A value
    that already has its dtype is returned unchanged.

    Raises:
      InvalidArgumentError: If the structure differs, or if a value does not fit.
    """
    if type(nest) is np.ndarray and nest.dtype == dtypes:
        return nest
    if isinstance(dtypes, Mapping):
        if not isinstance(nest, Mapping) or nest.keys() != dtypes.keys():
            got = list(nest) if isinstance(nest, Mapping) else type(nest).__name__
            raise errors.InvalidArgumentError(
                f"{column} must be a dict with the keys {list(dtypes)}, got {got}"
            )
        return {
            key: of_dtypes(dtype, nest[key], f"{column}[{key!r}]", where)
            for key, dtype in dtypes.items()
        }
    if isinstance(dtypes, tuple):
        if not isinstance(nest, tuple | list) or len(nest) != len(dtypes):
            raise errors.InvalidArgumentError(
                f"{column} must be a tuple of {len(dtypes)}, got {type(nest).__name__}"
            )
        return tuple(
            of_dtypes(dtype, value, f"{column}[{at}]", where)
            for at, (dtype, value) in enumerate(zip(dtypes, nest, strict=True))
        )
    return _cast(np.asarray(nest), dtypes, column, where)


def _cast(array: np.ndarray, dtype: np.dtype, column: str, where: Any) -> np.ndarray:
    if array.dtype.kind not in _NUMBERS:
        raise errors.InvalidArgumentError(
            f"{column} has values of dtype {array.dtype}, where its space has dtype {dtype}"
        )
    if dtype.kind == "f" or np.can_cast(array.dtype, dtype):
        with np.errstate(over="ignore", under="ignore"):
            return array.astype(dtype, copy=False)
    low, high = (0, 1) if dtype.kind == "b" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    if array.dtype.kind == "f":
        wide = array.astype(np.float64, copy=False)
        # `high` may have no exact float, but the power of 2 after it has one. NaN does not fit.
        fits = (wide >= low) & (wide < float(high + 1)) & (wide == np.floor(wide))
    else:
        fits = (array >= low) & (array <= high)
    if where is not None and array.shape[:1] == where.shape:
        fits[~where] = True
    if not fits.all():
        raise _no_fit(array, np.argwhere(~fits)[0], dtype, column)
    with np.errstate(invalid="ignore"):
        return array.astype(dtype)


def _no_fit(
    array: np.ndarray, at: np.ndarray, dtype: np.dtype, column: str
) -> errors.InvalidArgumentError:
    value = array[tuple(at)].item()
    problem = f"does not fit into {dtype}"
    if isinstance(value, float) and not value.is_integer() and not math.isinf(value):
        problem = f"is no integer, as {dtype} has"
    return errors.InvalidArgumentError(
        f"environment {at[0] if len(at) else 0} has the value {value!r} of dtype {array.dtype} in "
        f"{column}, which {problem}, the dtype of its space; correct the space, or cast below the "
        "recorder"
    )
