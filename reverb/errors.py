# SPDX-License-Identifier: Apache-2.0
"""Every exception class of the package.

A class has two kinds of parents: `ReverbError`, which new programs catch, and the builtin that the
original raised in the same place, so that the `except` clauses of existing programs keep working.
"""

from collections.abc import Sequence
from typing import Any

__all__ = [
    "CancelledError",
    "DataLossError",
    "DeadlineExceededError",
    "FailedPreconditionError",
    "InternalError",
    "InvalidArgumentError",
    "PermissionDeniedError",
    "ResourceExhaustedError",
    "ReverbError",
    "SignatureMismatchError",
    "TableNotFoundError",
    "UnauthenticatedError",
    "UnavailableError",
    "UnimplementedError",
]


class ReverbError(Exception):
    """The base of all errors of this package.

    Attributes:
      samples: Of an error that `Client.sample_batch` or `Client.sample` raised: the items that had
        been sampled by then and were not returned, a list of `ReplaySample`. Else empty.
    """

    samples: Sequence[Any] = ()

    # In a `tf.function`, TensorFlow raises an error once more with a longer text. It keeps the
    # class of those errors only that have this initialiser; others become an error of its own.
    __init__ = Exception.__init__


class DeadlineExceededError(ReverbError, RuntimeError):
    """A timeout passed, of a call or of a rate limiter; the text says what it waited for."""


class InvalidArgumentError(ReverbError, ValueError):
    """A value that no state of the system could accept."""


class SignatureMismatchError(InvalidArgumentError):
    """Shape, dtype or number of columns differ from what was declared or appended before."""


class TableNotFoundError(ReverbError, RuntimeError, ValueError):
    """No table of that name; the text lists the tables there are.

    It has both builtin parents because the original raised `ValueError` where a writer noticed and
    `RuntimeError` where the server did.
    """


class FailedPreconditionError(ReverbError, RuntimeError):
    """The object is in a state that does not allow the call: closed, expired, failed earlier."""


class PermissionDeniedError(ReverbError, RuntimeError):
    """What stands before the server, a proxy for example, does not allow the call."""


class UnauthenticatedError(ReverbError, RuntimeError):
    """What stands before the server, a proxy for example, does not know who calls."""


class ResourceExhaustedError(ReverbError, IndexError):
    """A limit of memory or size was reached."""


class UnimplementedError(ReverbError, NotImplementedError):
    """Not offered here."""


class UnavailableError(ReverbError, RuntimeError):
    """No server answers at the address, or it went away."""


class CancelledError(ReverbError, RuntimeError):
    """The call was abandoned: the server is stopping, or the iterator was dropped."""


class DataLossError(ReverbError, RuntimeError):
    """Stored or received bytes are damaged."""


class InternalError(ReverbError, RuntimeError):
    """A fault of this package; please report it."""
