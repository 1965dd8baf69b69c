# SPDX-License-Identifier: Apache-2.0
"""The arguments of datasets, checked in the order and with the words of the original."""

import operator
from typing import Any

import tensorflow as tf  # pyright: ignore[reportMissingImports]

from reverb.errors import InvalidArgumentError

__all__ = ["checked_batch_size", "one_string", "sampler_options"]


def one_string(name: str, value: Any) -> Any:
    """`value`, which may be a string or a scalar string tensor.

    Raises:
      InvalidArgumentError: If it is a tensor of another shape.
      TypeError: If it is no string.
    """
    tensor = tf.convert_to_tensor(value, tf.string)
    if tensor.shape.rank not in (0, None):
        raise InvalidArgumentError(
            f"{name} must be one string, or a scalar string tensor, got shape {tensor.shape}"
        )
    # A tensor of a graph can be used in that graph only; a string everywhere.
    return tensor if tf.is_tensor(value) else value


def sampler_options(arguments: dict[str, Any]) -> dict[str, int]:
    """The numbers that a sampler is made with, checked, by the names that the op has for them.

    Raises:
      InvalidArgumentError: If one is out of its range.
      TypeError: If one is no integer.
    """
    in_flight = operator.index(arguments["max_in_flight_samples_per_worker"])
    if in_flight < 1:
        raise InvalidArgumentError(
            f"max_in_flight_samples_per_worker ({in_flight}) must be a positive integer"
        )
    workers = _positive_or_minus_one("num_workers_per_iterator", arguments)
    per_stream = _positive_or_minus_one("max_samples_per_stream", arguments)
    timeout_ms = operator.index(arguments["rate_limiter_timeout_ms"])
    if timeout_ms < -1:
        raise InvalidArgumentError(
            f"rate_limiter_timeout_ms ({timeout_ms}) must be an integer >= -1"
        )
    return {
        "max_in_flight_samples_per_worker": in_flight,
        "num_workers": workers,
        "max_samples_per_stream": per_stream,
        "rate_limiter_timeout_ms": timeout_ms,
        "max_samples": _positive_or_minus_one("max_samples", arguments),
    }


def _positive_or_minus_one(name: str, arguments: dict[str, Any]) -> int:
    value = operator.index(arguments[name])
    if value < 1 and value != -1:
        raise InvalidArgumentError(f"{name} ({value}) must be a positive integer or -1")
    return value


def checked_batch_size(batch_size: Any, drop_remainder: bool) -> int | None:
    """The size of batches, checked; `None` for elements one by one.

    Raises:
      InvalidArgumentError: If it is out of its range.
      TypeError: If it is no integer.
    """
    if batch_size is None:
        if drop_remainder:
            raise InvalidArgumentError("drop_remainder=True needs a batch_size, got None")
        return None
    batch_size = operator.index(batch_size)
    if batch_size < 1:
        raise InvalidArgumentError(f"batch_size must be at least 1, got {batch_size}")
    return batch_size
