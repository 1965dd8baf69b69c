# SPDX-License-Identifier: Apache-2.0
"""Errors of this package as the errors that TensorFlow's ops raise."""

import contextlib
from collections.abc import Iterator

import tensorflow as tf  # pyright: ignore[reportMissingImports]

from reverb import errors

__all__ = ["as_tensorflow_errors"]

# As the ops map them; the first class that fits counts.
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
    """Raises the errors of a call that is no op as the op for it would raise them."""
    try:
        yield
    except errors.ReverbError as error:
        kind = next(theirs for ours, theirs in _CLASSES if isinstance(error, ours))
        raise kind(None, None, str(error)) from error
