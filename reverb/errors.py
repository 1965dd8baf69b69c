# SPDX-License-Identifier: Apache-2.0
"""Every exception class of the package.

A class has two kinds of parents: `ReverbError`, for new programs to catch, and the builtin that
dm-reverb raises in the same place, so that `except` clauses of existing programs keep working.

Errors that are no `ReverbError`:

* `TypeError`: an argument of a wrong type, an unknown argument, or an object that cannot be
  pickled. For `rate_limiter`, `extensions`, `checkpointer` and `configs` it is `AttributeError`, as
  in dm-reverb.
* `ValueError` and `OverflowError` of Python and NumPy: an array where a bool, a number or a name is
  expected, a text that is no Unicode, an integer of more than 64 bits.
* `OSError`: a file that cannot be read or written; `ImportError`: a library that is not installed.
* `StopIteration` and `StopAsyncIteration`: the end of an iterator. `RuntimeError`: two tasks await
  one iterator of `reverb.aio`, and what the library of an adapter raises there, such as TorchRL for
  an empty buffer.
* A class of `tf.errors`: from datasets, and from calls of `TFClient`, also outside of a graph.
* `KeyboardInterrupt`, `asyncio.CancelledError`, and what a function of the program raises.
"""

from collections.abc import Sequence
from typing import Any

from reverb.shown_text import without_tokens

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

    Example:
      >>> try:
      ...     client.sample_batch("no_such_table", 1)
      ... except reverb.ReverbError as error:
      ...     print(type(error).__name__)
      TableNotFoundError

    Attributes:
      samples: In an error of `Client.sample_batch` or `Client.sample`: the items that were sampled
        and not returned, a list of `ReplaySample`. Otherwise empty.
      is_partial: Whether some shards of a group have done what others have not; the text names
        both.
    """

    samples: Sequence[Any] = ()
    is_partial: bool = False

    @property
    def keys(self) -> list[int]:
        """The keys of `samples`: these items count as sampled."""
        return [int(sample.info.key) for sample in self.samples if hasattr(sample, "info")]

    # In a `tf.function`, TensorFlow raises errors again with a longer text. It keeps an error's
    # class only if the class has this initialiser; others become a TensorFlow error.
    __init__ = Exception.__init__

    # Texts contain paths and addresses, in which a token may have been typed by mistake.
    def __str__(self) -> str:
        return without_tokens(super().__str__())

    def __repr__(self) -> str:
        return without_tokens(super().__repr__())


class DeadlineExceededError(ReverbError, RuntimeError):
    """The deadline of a call or of a rate limiter passed; the text says what it waited for.

    Example:
      >>> try:
      ...     client.sample_batch("replay", 1, timeout_ms=0)
      ... except DeadlineExceededError:
      ...     print("the table is empty")
      the table is empty

    Attributes:
      result: In the error of a recorder's `step_timeout_s`: what the environment returned.
        Otherwise `None`.
    """

    result: Any = None


class InvalidArgumentError(ReverbError, ValueError):
    """A value that is invalid in any state of the system."""


class SignatureMismatchError(InvalidArgumentError):
    """Shape, dtype or number of columns differ from the signature, or from earlier steps."""


class TableNotFoundError(ReverbError, RuntimeError, ValueError):
    """No table has that name; the text lists the tables of the server.

    It has both builtin parents because in dm-reverb a writer raises `ValueError`, other calls
    `RuntimeError`.
    """


class FailedPreconditionError(ReverbError, RuntimeError):
    """The state of the object does not allow the call: it is closed or expired, or it failed."""


class PermissionDeniedError(ReverbError, RuntimeError):
    """The token of the client lacks a right, or a proxy in front of the server denied the call.

    The text names the call, the table, the missing right and the rights of the token. It is the
    same for a table that does not exist. The call is not retried. If a token loses its right, its
    writers raise this error at the next item or flush.
    """


class UnauthenticatedError(ReverbError, RuntimeError):
    """The server requires a token, and the client has no valid one.

    The text names the call and shows only the beginning of a token. The call is not retried. A
    proxy in front of the server may also be the cause.
    """


class ResourceExhaustedError(ReverbError, IndexError):
    """A limit of memory or size was reached."""


class UnimplementedError(ReverbError, NotImplementedError):
    """The server or this package does not support the call or option."""


class UnavailableError(ReverbError, RuntimeError):
    """No server answers at the address, or the connection to it failed."""


class CancelledError(ReverbError, RuntimeError):
    """The call was cancelled: the server is stopping, or the iterator was closed."""


class DataLossError(ReverbError, RuntimeError):
    """Stored or received bytes are damaged."""


class InternalError(ReverbError, RuntimeError):
    """A bug in this package; please report it."""
