# SPDX-License-Identifier: Apache-2.0
"""The writer of `add_batch`: a sequence writer that is made with the first frames."""

import threading
from typing import Any

import reverb
from reverb import errors
from reverb.adapters.tf_agents.data_spec import DataSpec
from reverb.adapters.tf_agents.remote_table import RemoteTable

__all__ = ["FrameWriter"]


class FrameWriter:
    """Writes frames `[B, ...]` of `B` environments as sequences into one table."""

    def __init__(
        self,
        table: RemoteTable,
        spec: DataSpec,
        *,
        sequence_length: int | None,
        batch_size: int | None,
        max_sequence_length: int,
    ) -> None:
        """Makes a writer; does not connect yet.

        Without `sequence_length`, items are whole episodes of at most `max_sequence_length` frames;
        without `batch_size`, the first frames give the number of environments.
        """
        self._table = table
        self._spec = spec
        self._sequence_length = sequence_length
        self._batch_size = batch_size
        self._max_sequence_length = max_sequence_length
        self._lock = threading.Lock()
        self._writer: Any = None
        self._tf_writer: Any = None
        self._closed = False

    def append(self, frames: Any) -> Any:
        """Appends one frame of each environment, `[B, ...]`; in a graph, of symbolic tensors.

        Returns:
          The result of `reverb.TFSequenceWriter.append`.

        Raises:
          FailedPreconditionError: If the writer is closed.
          InvalidArgumentError: If `B` is unknown, or if items are episodes and frames have no
            `step_type`.
          SignatureMismatchError: If the frames do not match the spec or the number of environments.
        """
        frames, found = self._spec.checked_frames(frames)
        self._open(found)
        if found not in (None, self._batch_size):
            raise errors.SignatureMismatchError(
                f"items must be frames of {self._batch_size} environments, as in the first call, "
                f"got {found}; a buffer serves one driver, others need buffers of their own"
            )
        return self._tf_writer.append(frames, self._spec.is_last(frames))

    def flush(self, timeout_ms: int | None) -> None:
        """Blocks until all items are confirmed; does nothing before the first `append`.

        Raises:
          DeadlineExceededError: After `timeout_ms`; a rate limiter may delay inserts.
        """
        if self._writer is not None and not self._closed:
            self._writer.flush(0, timeout_ms=timeout_ms)

    def forget_episodes(self) -> None:
        """Drops frames that are in no item yet."""
        if self._writer is not None and not self._closed:
            self._writer.end_episode()

    def close(self) -> None:
        """Closes without a flush; may be called more than once."""
        self._closed = True
        if self._writer is not None:
            self._writer.close(flush=False)

    def leave(self, exc_type: type[BaseException]) -> None:
        """Closes at the end of a block that an exception has left, as a sequence writer does."""
        self._closed = True
        if self._writer is not None:
            self._writer.__exit__(exc_type)

    def _open(self, found: int | None) -> None:
        with self._lock:
            if self._closed:
                raise errors.FailedPreconditionError("the replay buffer is closed")
            if self._writer is not None:
                return
            batch_size = self._batch_size or found
            if batch_size is None:
                raise errors.InvalidArgumentError(
                    "the number of environments is unknown in this graph: give the replay buffer "
                    "its batch_size"
                )
            if self._sequence_length is None and not self._spec.has_episodes:
                raise errors.InvalidArgumentError(
                    "sequence_length must be a number to add frames without a step_type: the ends "
                    "of their episodes are unknown"
                )
            self._writer = self._table.client.sequence_writer(
                self._table.name,
                self._sequence_length,
                batch_size,
                max_sequence_length=(
                    self._max_sequence_length if self._sequence_length is None else None
                ),
            )
            self._tf_writer = reverb.TFSequenceWriter(self._writer)
            self._batch_size = batch_size
