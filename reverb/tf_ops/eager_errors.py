# SPDX-License-Identifier: Apache-2.0
"""Converts errors of this package to the errors that TensorFlow ops raise."""

import contextlib
from collections.abc import Iterator

import tensorflow as tf  # pyright: ignore[reportMissingImports]

from reverb import errors

__all__ = ["as_tensorflow_errors"]

# The same mapping as in the ops; the first match is used.
_CLASSES = (
    (errors.InvalidArgumentError, tf.errors.InvalidArgumentError),
    (errors.TableNotFoundError, tf.errors.NotFoundError),
    (errors.DeadlineExceededError, tf.errors.DeadlineExceededError),
    (errors.FailedPreconditionError, tf.errors.FailedPreconditionError),
    (errors.PermissionDeniedError, tf.errors.PermissionDeniedError),
    (errors.UnauthenticatedError, tf.errors.UnauthenticatedError),
    (errors.ResourceExhaustedError, tf.errors.ResourceExhaustedError),
    (errors.UnimplementedError, tf.errors.UnimplementedError),
    (errors.UnavailableError, tf.errors.AbortedError),
    (errors.CancelledError, tf.errors.CancelledError),
    (errors.DataLossError, tf.errors.DataLossError),
    (errors.ReverbError, tf.errors.InternalError),
)


@contextlib.contextmanager
def as_tensorflow_errors() -> Iterator[None]:
    """Converts errors of a plain call to those of the corresponding op."""
    try:
        yield
    except errors.ReverbError as error:
        kind = next(theirs for ours, theirs in _CLASSES if isinstance(error, ours))
        raise kind(None, None, str(error)) from error
