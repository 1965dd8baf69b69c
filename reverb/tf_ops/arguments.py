# SPDX-License-Identifier: Apache-2.0
"""Checks of the arguments of datasets, in the order and with the texts of dm-reverb."""

import dataclasses
import operator
from typing import Any

import tensorflow as tf  # pyright: ignore[reportMissingImports]

from reverb.errors import InvalidArgumentError

__all__ = ["SamplerOptions", "checked_batch_size", "checked_sampler_options", "one_string"]


def one_string(name: str, value: Any) -> Any:
    """Returns `value` if it is a string or a scalar string tensor.

    Raises:
      InvalidArgumentError: If it is a tensor of another shape.
      TypeError: If it is not a string.
    """
    tensor = tf.convert_to_tensor(value, tf.string)
    if tensor.shape.rank not in (0, None):
        raise InvalidArgumentError(
            f"{name} must be one string, or a scalar string tensor, got shape {tensor.shape}"
        )
    # A tensor of a graph can only be used in that graph; a string can be used everywhere.
    return tensor if tf.is_tensor(value) else value


@dataclasses.dataclass(frozen=True)
class SamplerOptions:
    """The numbers that a sampler is made with, under the names of a dataset's arguments.

    Attributes:
      max_in_flight_samples_per_worker: Number of items that a worker asks for at once.
      num_workers_per_iterator: Number of workers; -1: one.
      max_samples_per_stream: Number of items after which a worker opens a new stream; -1: 10,000.
      rate_limiter_timeout_ms: How long the rate limiter may delay a sample; -1: no limit.
      max_samples: Number of items after which the sampler ends; -1: no limit.
    """

    max_in_flight_samples_per_worker: int
    num_workers_per_iterator: int
    max_samples_per_stream: int
    rate_limiter_timeout_ms: int
    max_samples: int


def checked_sampler_options(
    *,
    max_in_flight_samples_per_worker: Any,
    num_workers_per_iterator: Any,
    max_samples_per_stream: Any,
    rate_limiter_timeout_ms: Any,
    max_samples: Any,
) -> SamplerOptions:
    """Checks the numbers among a dataset's arguments, in this order.

    Raises:
      InvalidArgumentError: If one is out of its range.
      TypeError: If one is not an integer.
    """
    in_flight = operator.index(max_in_flight_samples_per_worker)
    if in_flight < 1:
        raise InvalidArgumentError(
            f"max_in_flight_samples_per_worker ({in_flight}) must be a positive integer"
        )
    num_workers = _positive_or_minus_one("num_workers_per_iterator", num_workers_per_iterator)
    per_stream = _positive_or_minus_one("max_samples_per_stream", max_samples_per_stream)
    timeout_ms = operator.index(rate_limiter_timeout_ms)
    if timeout_ms < -1:
        raise InvalidArgumentError(
            f"rate_limiter_timeout_ms ({timeout_ms}) must be an integer >= -1"
        )
    return SamplerOptions(
        max_in_flight_samples_per_worker=in_flight,
        num_workers_per_iterator=num_workers,
        max_samples_per_stream=per_stream,
        rate_limiter_timeout_ms=timeout_ms,
        max_samples=_positive_or_minus_one("max_samples", max_samples),
    )


def checked_batch_size(batch_size: Any, drop_remainder: bool) -> int | None:
    """Returns the size of batches as an int; `None`: single elements.

    Raises:
      InvalidArgumentError: If it is out of its range.
      TypeError: If it is not an integer.
    """
    if batch_size is None:
        if drop_remainder:
            raise InvalidArgumentError("drop_remainder=True needs a batch_size, got None")
        return None
    batch_size = operator.index(batch_size)
    if batch_size < 1:
        raise InvalidArgumentError(f"batch_size must be at least 1, got {batch_size}")
    return batch_size


def _positive_or_minus_one(name: str, value: Any) -> int:
    value = operator.index(value)
    if value < 1 and value != -1:
        raise InvalidArgumentError(f"{name} ({value}) must be a positive integer or -1")
    return value
