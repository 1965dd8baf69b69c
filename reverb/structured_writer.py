# SPDX-License-Identifier: Apache-2.0
"""The structured writer, which makes items wherever a pattern applies and its conditions hold."""

from reverb._checks.arguments import check_at_least, clamped_timeout_ms
from reverb._checks.pickles import OF_CLIENTS, not_pickled
from reverb._nests.flat import flatten_with_labels, flatten_with_path
from reverb._writers.conditions import Condition
from reverb._writers.leaving import leave, report_at_exit
from reverb._writers.patterns import (
    ConditionProto,
    Config,
    Pattern,
    PatternTransform,
    ReferenceStep,
    constant_priority_fn,
    create_config,
    create_reference_step,
    infer_signature,
    pattern_from_transform,
    td_error,
    unpack_pattern,
)
from reverb.core import native
from reverb.errors import InvalidArgumentError, ReverbError

__all__ = [
    "Condition",
    "ConditionProto",
    "Config",
    "Pattern",
    "PatternTransform",
    "ReferenceStep",
    "StructuredWriter",
    "constant_priority_fn",
    "create_config",
    "create_reference_step",
    "infer_signature",
    "pattern_from_transform",
    "td_error",
    "unpack_pattern",
]


class StructuredWriter:
    """Appends steps, and makes items by the patterns of its configs.

    Made by `Client.structured_writer`. Not thread-safe. Deleting a writer waits for at most 1 s
    until its items are confirmed, and not at all while a table delays them. The remaining items are
    sent in the background, before those of the client's next structured writer.

    Example:
      >>> step = create_reference_step({"observation": None, "action": None})
      >>> config = create_config(
      ...     pattern={"observation": step["observation"][-3:], "action": step["action"][-1]},
      ...     table="table",
      ...     conditions=[Condition.step_index() % 2 == 0],
      ... )
      >>> writer = client.structured_writer([config])
      >>> for step in range(10):
      ...     writer.append({"observation": np.zeros(4), "action": step})
      >>> writer.end_episode()
    """

    def __init__(self, internal_writer: native.StructuredWriter) -> None:
        self._writer = internal_writer
        report_at_exit(self)
        self._flattener = native.NestFlattener(flatten_with_labels)
        # Labels of the columns of the first step.
        self._labels: list[str] | None = None

    __reduce__ = not_pickled(OF_CLIENTS)

    def __repr__(self) -> str:
        if "_writer" not in self.__dict__:
            return "StructuredWriter(not made)"
        return f"StructuredWriter(step_is_open={self._writer.step_is_open})"

    @property
    def step_is_open(self) -> bool:
        """Whether the last `append` left its step open."""
        return self._writer.step_is_open

    def append(self, data: object, *, partial_step: bool = False) -> None:
        """Appends one step, or a part of one, and makes the items that it completes.

        The first call waits for the signatures of the server's tables, which the client caches.
        Later ones block only for back-pressure, while tens of megabytes are in transit to tables
        that accept them; never for a rate limiter.

        Args:
          data: Nest of arrays, with the same number of leaves in every call; `None`: no value in
            this call. Columns that no pattern reads are dropped.
          partial_step: Leaves the step open, so that a later call can fill other columns of it.

        Raises:
          SignatureMismatchError: If a leaf's shape or dtype differs from its column's, or if an
            item does not match the signature of its table. Columns are matched by position; names
            that differ are logged once.
          TableNotFoundError: If the server did not have the table of an earlier item.
          UnavailableError: If no server answers the first call.
          InvalidArgumentError: If the number of leaves differs from the first call's, or if the
            column of a `td_error` cannot be used.
          FailedPreconditionError: If a column already has a value in the open step.
          ReverbError: If the connection failed permanently.
        """
        leaves, _ = self._flattener.flatten(data)
        if self._labels is None:
            self._writer.set_column_paths([path for path, _ in flatten_with_path(data)])
            self._labels = flatten_with_labels(data)[0]
        elif len(leaves) != len(self._labels):
            labels = flatten_with_labels(data)[0]
            lacking = [label for label in self._labels if label not in labels]
            more = [label for label in labels if label not in self._labels]
            raise InvalidArgumentError(
                f"Flattened data has an unexpected length, got {len(leaves)} but wanted "
                f"{len(self._labels)}. Compared with the first step, columns {lacking} are "
                f"missing, and {more} are new."
            )
        self._writer.append(leaves, partial_step)

    def flush(self, block_until_num_items: int = 0, timeout_ms: int | None = None) -> None:
        """Sends all items, and blocks until all but a few are confirmed by the server.

        Args:
          block_until_num_items: How many items may still be unconfirmed on return.
          timeout_ms: How long to block, in milliseconds; `None`: no limit; 0: do not wait.

        Raises:
          DeadlineExceededError: After `timeout_ms`; the items remain queued.
          InvalidArgumentError: If `block_until_num_items` is negative.
          ReverbError: If the connection failed permanently.
        """
        self._writer.flush(
            check_at_least(0, "block_until_num_items", block_until_num_items, allows_bool=True),
            clamped_timeout_ms(timeout_ms, allows_bool=True),
        )

    def end_episode(self, clear_buffers: bool = True, timeout_ms: int | None = None) -> None:
        """Makes the items that are due at the end, flushes, and starts a new episode.

        Blocks until all items are confirmed.

        Args:
          clear_buffers: Clears the steps. If False, later items may use steps of this episode.
          timeout_ms: As in `flush`.

        Raises:
          DeadlineExceededError: After `timeout_ms`; call again.
          ReverbError: If the connection failed permanently.
        """
        self._writer.end_episode(clear_buffers, clamped_timeout_ms(timeout_ms, allows_bool=True))

    def __enter__(self) -> "StructuredWriter":
        return self

    def __exit__(self, exc_type: type[BaseException] | None, *exc: object) -> None:
        """Flushes. The writer stays open, and no episode ends.

        Does not flush after a `ReverbError`. Flushes for at most 2 s after any other `Exception`,
        and not at all after a `KeyboardInterrupt`, a `SystemExit` and the like; then the log says
        how many items are not confirmed.
        """
        if exc_type is None:
            self.flush()
        elif not issubclass(exc_type, ReverbError):
            leave(exc_type, self._writer, lambda limit: self._writer.flush(0, limit))
