# SPDX-License-Identifier: Apache-2.0
"""Converts errors of this package to the errors that TensorFlow ops raise."""

import contextlib
from collections.abc import Iterator
from typing import Any

import tensorflow as tf  # pyright: ignore[reportMissingImports]

from reverb import errors

__all__ = ["as_tensorflow_errors"]

# Classes that TensorFlow names differently, as the ops do. The others have the same name.
_OTHER_NAMES = {"TableNotFoundError": "NotFoundError", "UnavailableError": "AbortedError"}


@contextlib.contextmanager
def as_tensorflow_errors() -> Iterator[None]:
    """Converts errors of a plain call to those of the corresponding op."""
    try:
        yield
    except errors.ReverbError as error:
        raise _class_of(error)(None, None, str(error)) from error


def _class_of(error: errors.ReverbError) -> Any:
    """The class of TensorFlow for an error, or for the nearest of its parents."""
    for parent in type(error).__mro__:
        name = _OTHER_NAMES.get(parent.__name__, parent.__name__)
        if hasattr(tf.errors, name):
            return getattr(tf.errors, name)
    return tf.errors.InternalError
