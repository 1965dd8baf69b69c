# SPDX-License-Identifier: Apache-2.0
"""A replay buffer for TF-Agents whose items are in a table of a server.

Replaces `tf_agents.replay_buffers.reverb_replay_buffer`.
"""

import logging
from collections.abc import Callable, Iterator
from typing import Any

import gin  # pyright: ignore[reportMissingImports]
import numpy as np
import tensorflow as tf  # pyright: ignore[reportMissingImports]
import tree
from tf_agents.replay_buffers import (  # pyright: ignore[reportMissingImports]
    replay_buffer,
)

import reverb
from reverb import errors
from reverb.adapters.tf_agents import next_batch, single_pass
from reverb.adapters.tf_agents.data_spec import DataSpec
from reverb.adapters.tf_agents.experience_dataset import (
    ItemSource,
    check_sizes,
    experience_dataset,
    make_reverb_dataset,
    sampler_source,
    truncate_reshape_rows_by_num_steps,
)
from reverb.adapters.tf_agents.frame_writer import FrameWriter
from reverb.adapters.tf_agents.observer import at_least_one
from reverb.adapters.tf_agents.remote_table import RemoteTable

__all__ = [
    "DEFAULT_TABLE",
    "ReverbReplayBuffer",
    "make_reverb_dataset",
    "truncate_reshape_rows_by_num_steps",
]

DEFAULT_TABLE = "experience"

# How long a call that reads the table waits for frames of `add_batch` to arrive there. They take
# longer only if a rate limiter delays them, and reading must not wait for that.
_OWN_FRAMES_TIMEOUT_MS = 1_000

# How long `close` waits for them.
_CLOSE_TIMEOUT_MS = 10_000

_LOGGER = logging.getLogger(__name__)


@gin.configurable(module="reverb.adapters.tf_agents.reverb_replay_buffer")
class ReverbReplayBuffer(replay_buffer.ReplayBuffer):
    """A replay buffer over one table of a server, local or remote.

    Items are sequences of frames, usually single-step `Trajectory`s. A driver writes them with an
    observer (`reverb_utils`) or with `add_batch`; a learner reads `as_dataset`.

    Samples are pairs `(data, info)`. `info` is a `reverb.SampleInfo` whose leaves are repeated for
    every time step, `[B, T]`; `update_priorities` accepts its `key`.

    Example:
      >>> buffer = ReverbReplayBuffer(
      ...     agent.collect_data_spec, table_name="replay", sequence_length=2, local_server=server
      ... )
      >>> driver = DynamicStepDriver(environment, policy, observers=[buffer.add_batch])
      >>> driver.run()
      >>> dataset = buffer.as_dataset(sample_batch_size=64, num_steps=2).prefetch(3)
      >>> for experience, info in dataset.take(100):
      ...     agent.train(experience)
    """

    def __init__(
        self,
        data_spec: Any,
        table_name: str,
        sequence_length: int | None,
        server_address: str | None = None,
        local_server: Any = None,
        dataset_buffer_size: int | None = None,
        max_cycle_length: int = 32,
        num_workers_per_iterator: int = -1,
        max_samples_per_stream: int = -1,
        rate_limiter_timeout_ms: int = -1,
        *,
        batch_size: int | None = None,
        max_sequence_length: int = 10_000,
        drop_remainder: bool = True,
        connect_timeout_s: float = 60.0,
    ) -> None:
        """Makes a buffer; blocks until the server has answered.

        Args:
          data_spec: Nest of specs of one frame.
          table_name: Name of the table.
          sequence_length: Length of the table's items, `T`; `None`: items differ in length.
          server_address: Address of the server; exclusive with `local_server`.
          local_server: A `reverb.Server` of this process. `close` does not stop it.
          dataset_buffer_size: Number of items that a dataset prefetches; `None`: twice
            `sample_batch_size`. With more, priorities are older.
          max_cycle_length: Ignored: one sampler does the work of several interleaved ones.
          num_workers_per_iterator: As in `reverb.TrajectoryDataset`. With more than one, items
            come in no particular order.
          max_samples_per_stream: As in `reverb.TrajectoryDataset`.
          rate_limiter_timeout_ms: As in `reverb.TrajectoryDataset`; also applies to `get_next`.
          batch_size: Number of environments whose frames `add_batch` adds; `None`: taken from the
            first call.
          max_sequence_length: Number of frames of the longest episode for `add_batch`, if
            `sequence_length` is `None`.
          drop_remainder: Drops a last batch that is not full. If False, a single deterministic
            pass includes all items, and the batch size in `element_spec` is unknown.
          connect_timeout_s: How long to wait for the server, in seconds.

        Raises:
          ValueError: Unless exactly one of `server_address` and `local_server` is given.
          KeyError: If there is no such table; an `UnknownTableError`.
          UnavailableError: If no server answers.
        """
        if (server_address is None) == (local_server is None):
            raise errors.InvalidArgumentError(
                "Exactly one of the server_address or local_server must be provided, got "
                + ("neither" if server_address is None else "both")
            )
        if local_server is not None:
            server_address = f"localhost:{local_server.port}"
        assert server_address is not None
        if sequence_length is not None:
            sequence_length = at_least_one("sequence_length", sequence_length)
        del max_cycle_length
        self._table = RemoteTable(server_address, table_name, connect_timeout_s)
        self._sequence_length = sequence_length
        self._local_server = local_server
        self._dataset_buffer_size = dataset_buffer_size
        self._num_workers_per_iterator = num_workers_per_iterator
        self._max_samples_per_stream = max_samples_per_stream
        self._rate_limiter_timeout_ms = rate_limiter_timeout_ms
        self._drop_remainder = drop_remainder
        self._spec = DataSpec(data_spec)
        self._tf_client = reverb.TFClient(server_address, "rb_tf_client")
        info = self._table.first_info()
        self._ordered = single_pass.is_deterministic(info)
        mismatch = self._spec.mismatch(info.signature, sequence_length)
        if mismatch is not None:
            _LOGGER.warning("items of table %s cannot be read: %s", table_name, mismatch)
        self._writer = FrameWriter(
            self._table,
            self._spec,
            sequence_length=sequence_length,
            batch_size=None if batch_size is None else at_least_one("batch_size", batch_size),
            max_sequence_length=at_least_one("max_sequence_length", max_sequence_length),
        )
        super().__init__(data_spec, info.max_size, stateful_dataset=True)

    @property
    def table_name(self) -> str:
        """Name of the table."""
        return self._table.name

    @property
    def py_client(self) -> reverb.Client:
        """A client of the server."""
        return self._table.client

    @property
    def tf_client(self) -> Any:
        """A `reverb.TFClient` of the server."""
        return self._tf_client

    @property
    def local_server(self) -> Any:
        """The `local_server` of the constructor, or `None`."""
        return self._local_server

    def get_table_info(self) -> reverb.reverb_types.TableInfo:
        """Returns the current settings and counters of the table.

        Raises:
          KeyError: If the table no longer exists; an `UnknownTableError`.
          UnavailableError: If no server answers.
        """
        return self._table.info()

    def update_priorities(self, keys: Any, priorities: Any) -> Any:
        """Updates priorities of items; keys of items that are no longer in the table are ignored.

        Blocks until the server has answered. Works eagerly and in graphs.

        Args:
          keys: uint64 `[B]`; or `[B, T]` like `info.key`, of which the first in each row is used.
          priorities: Numbers `[B]`, one for each item.

        Returns:
          `None` eagerly; in a graph the operation that updates.

        Raises:
          InvalidArgumentError: If there is not one priority for each item.
          tf.errors.InvalidArgumentError: If the table rejects a priority.
        """
        keys = tf.convert_to_tensor(keys, tf.uint64)
        priorities = tf.cast(tf.convert_to_tensor(priorities), tf.float64)
        if keys.shape.rank == 2:
            keys = keys[:, 0]
        if priorities.shape.rank not in (1, None) or not keys.shape.is_compatible_with(
            priorities.shape
        ):
            raise errors.InvalidArgumentError(
                "priorities must have the shape [B], one number for each item, got "
                f"{priorities.shape} for keys of {keys.shape[0]} items"
            )
        return self._tf_client.update_priorities(self._table.name, keys, priorities)

    def flush(self, timeout_ms: int | None = None) -> None:
        """Blocks until all items that `add_batch` completed are confirmed.

        Args:
          timeout_ms: How long to block, in milliseconds; `None`: no limit; 0: do not wait.

        Raises:
          DeadlineExceededError: After `timeout_ms`; the text says what it waited for.
        """
        self._writer.flush(timeout_ms)

    def close(self) -> None:
        """Closes the writer of `add_batch`: drops frames that are in no item yet, and flushes.

        Blocks until all items are confirmed, ten seconds at most. Reading still works, and the
        server keeps running. May be called more than once.

        Raises:
          DeadlineExceededError: If a rate limiter delays items longer; they are abandoned.
        """
        try:
            self._writer.flush(_CLOSE_TIMEOUT_MS)
        finally:
            self._writer.close()

    def __enter__(self) -> "ReverbReplayBuffer":
        return self

    def __exit__(self, exc_type: type[BaseException] | None, *exc: object) -> None:
        """Closes. After an exception in the block it flushes as a writer does.

        That is for 2 s at most, and not after a `ReverbError`, a `KeyboardInterrupt` and the like.
        """
        if exc_type is None:
            self.close()
        else:
            self._writer.leave(exc_type)

    def _num_frames(self) -> Any:
        """Number of items (sequences, not frames), as in TF-Agents' own buffer.

        Waits a second at most until items of `add_batch` are confirmed and counted.
        """

        def count() -> int:
            self._wait_for_own_frames()
            return self.get_table_info().current_size

        if tf.executing_eagerly():
            return count()
        number = tf.numpy_function(lambda: np.int64(count()), [], tf.int64)
        number.set_shape([])
        return number

    def _clear(self) -> Any:
        """Removes all items, and drops frames that are in no item yet."""

        def clear() -> None:
            self._writer.forget_episodes()
            self._wait_for_own_frames()  # Otherwise they would arrive after the reset.
            self._table.client.reset(self._table.name)

        return clear() if tf.executing_eagerly() else tf.numpy_function(clear, [], [])

    def _add_batch(self, items: Any) -> Any:
        """Adds a frame of each environment, `[B, ...]`; an observer of a driver.

        Every `sequence_length` consecutive frames of an episode become an item, or the whole
        episode if that is `None`. Episodes end with the frame whose `step_type` is LAST; frames
        without a `step_type` are one endless episode. Never blocks for a rate limiter. Works
        eagerly and in graphs.
        """
        return self._writer.append(items)

    def _get_next(
        self, sample_batch_size: int | None, num_steps: int | None, time_stacked: bool
    ) -> Any:
        """Samples data `[B, T, ...]` and info `[B, T]`; without batch size `[T, ...]`.

        Blocks while the table's rate limiter allows no sample. With `num_steps`, that many
        consecutive steps of each item are taken, from a random start; otherwise items are whole.
        The server draws the start, and items that are shorter again; it sends these steps only. One
        that does not know windows (dm-reverb, or older) sends whole items, which are cut here, and
        a shorter one is an error.
        If `time_stacked` is False, the data are a tuple of `T` nests, `[B, ...]` each.
        """
        check_sizes(self._sequence_length, sample_batch_size, num_steps)
        options: dict[str, Any] = {
            "sequence_length": self._sequence_length,
            "batch_size": sample_batch_size,
            "num_steps": num_steps,
        }
        timeout_ms = self._rate_limiter_timeout_ms
        if tf.executing_eagerly():
            options["timeout_ms"] = None if timeout_ms < 0 else timeout_ms
            pair = next_batch.sampled_eagerly(self._table, self._spec, **options)
        else:
            options["rate_limiter_timeout_ms"] = timeout_ms
            pair = next_batch.sampled_in_graph(self._table, self._spec, **options)
        return (
            pair if time_stacked else next_batch.unstacked(pair, int(sample_batch_size is not None))
        )

    def _gather_all(self) -> Any:
        """Returns all items in the order of insertion, `[N, T, ...]`; they do not count as sampled.

        Raises:
          InvalidArgumentError: If the items differ in length.
        """

        def gather() -> list[Any]:
            name, length = self._table.name, self._sequence_length
            return tree.flatten(single_pass.all_items(self._scan(), self._spec, name, length))

        dtypes = tree.flatten(self._spec.dtypes)
        if tf.executing_eagerly():
            return self._spec.nested(list(map(tf.constant, gather(), dtypes)))
        columns = tf.numpy_function(gather, [], dtypes)
        shapes = tree.flatten(self._spec.shapes(None, self._sequence_length))
        for column, shape in zip(columns, shapes, strict=True):
            column.set_shape(shape)
        return self._spec.nested(columns)

    def _as_dataset(self, **arguments: Any) -> Any:
        """Makes a dataset of sampled items; see `ReplayBuffer.as_dataset`."""
        source = self._sampler_source(
            max_in_flight=self._dataset_buffer_size,
            num_workers_per_iterator=self._num_workers_per_iterator,
            rate_limiter_timeout_ms=self._rate_limiter_timeout_ms,
        )
        return self._dataset_of(source, shuffle=True, **arguments)

    def _single_deterministic_pass_dataset(self, **arguments: Any) -> Any:
        """Makes a dataset of every item once, in the order of the table's sampler.

        A table with `max_times_sampled=1` is consumed: the pass ends when it allows no sample for
        `rate_limiter_timeout_ms`, or at once if that is not set. Items of other tables do not count
        as sampled.

        Raises:
          ValueError: If sampler or remover are not deterministic.
        """
        info = self.get_table_info()
        if not single_pass.is_deterministic(info):
            raise errors.InvalidArgumentError(
                "Unable to perform a single deterministic pass over the dataset, since either the "
                "sampler or the remover is not deterministic (FIFO, LIFO or heap).  Table info: "
                f"{info}"
            )
        if info.max_times_sampled == 1:
            source = self._sampler_source(
                max_in_flight=1,
                num_workers_per_iterator=1,
                rate_limiter_timeout_ms=max(0, self._rate_limiter_timeout_ms),
            )
            source = single_pass.calling_first(self._wait_for_own_frames, source)
        else:
            source = single_pass.scan_source(
                lambda: single_pass.in_sampler_order(self._scan(), info.sampler_options),
                self._spec,
                self._table.name,
                self._sequence_length,
            )
        return self._dataset_of(source, shuffle=False, **arguments)

    def _dataset_of(
        self,
        source: ItemSource,
        shuffle: bool,
        sample_batch_size: int | None,
        num_steps: int | None,
        sequence_preprocess_fn: Callable[[Any], Any] | None,
        num_parallel_calls: Any,
    ) -> Any:
        check_sizes(self._sequence_length, sample_batch_size, num_steps, num_parallel_calls)
        return experience_dataset(
            source,
            sequence_length=self._sequence_length,
            batch_size=sample_batch_size,
            num_steps=num_steps,
            preprocess_fn=sequence_preprocess_fn,
            num_parallel_calls=num_parallel_calls,
            shuffle=shuffle,
            drop_remainder=self._drop_remainder,
        )

    def _sampler_source(self, **options: Any) -> Any:
        return sampler_source(
            self._table.server_address,
            self._table.name,
            self._spec.dtypes,
            self._spec.shapes(self._sequence_length),
            max_samples_per_stream=self._max_samples_per_stream,
            ordered=self._ordered,
            **options,
        )

    def _scan(self) -> Iterator[Any]:
        self._wait_for_own_frames()
        return self._table.client.scan(self._table.name)

    def _wait_for_own_frames(self) -> None:
        try:
            self._writer.flush(_OWN_FRAMES_TIMEOUT_MS)
        except errors.DeadlineExceededError as error:
            _LOGGER.info("continuing without frames that were added: %s", error)
