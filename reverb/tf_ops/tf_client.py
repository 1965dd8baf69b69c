# SPDX-License-Identifier: Apache-2.0
"""A client whose calls are TensorFlow ops, for use inside a `tf.function`."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf  # pyright: ignore[reportMissingImports]
import tree

from reverb._client.connecting import DEFAULT_OPTIONS
from reverb.core import native
from reverb.errors import InvalidArgumentError
from reverb.replay_sample import ReplaySample, SampleInfo
from reverb.tf_ops import ops
from reverb.tf_ops.eager_errors import as_tensorflow_errors
from reverb.tf_ops.pipeline import on_cpu
from reverb.tf_ops.waiting import finish

__all__ = ["TFClient"]


class TFClient:
    """Samples, inserts and updates priorities, eagerly and in graphs.

    Connects on first use. Calls block until they are done; inside a `tf.function`, a call that
    waits does not occupy a thread that other functions need. For training, use `TrajectoryDataset`,
    which prefetches.

    Example:
      >>> tf_client = reverb.TFClient(client.server_address)
      >>> @tf.function
      ... def update(keys, errors):
      ...     tf_client.update_priorities("table", keys, tf.abs(errors))
      >>> info, _ = tf_client.sample("table", data_dtypes=[tf.float64, tf.float64])
      >>> update(tf.expand_dims(info.key, 0), tf.constant([-0.5], tf.float64))
    """

    def __init__(
        self, server_address: str, shared_name: str | None = None, name: str = "reverb"
    ) -> None:
        """Makes a client; does not connect yet.

        Args:
          server_address: As for `reverb.Client`.
          shared_name: Ignored; accepted for programs written for dm-reverb. All clients of an
            address share one connection.
          name: Prefix of the names of the ops.
        """
        self._server_address = server_address
        self._shared_name = shared_name
        self._name = name
        self._client = native.Client(server_address, **DEFAULT_OPTIONS)
        # In eager mode, converting a string to a tensor costs as much as the call.
        self._tensors: dict[str, Any] = {}

    @property
    def server_address(self) -> str:
        """Address of the server, as given to the constructor."""
        return self._server_address

    def sample(self, table: Any, data_dtypes: Any, name: str | None = None) -> ReplaySample:
        """Samples one item, and returns its first step.

        Blocks while the table's rate limiter allows no sample.

        Args:
          table: Name of the table, a string, or a tensor of one.
          data_dtypes: Nest of the dtypes of the item's columns.
          name: Name of the ops.

        Returns:
          A `ReplaySample` of tensors: scalars in `info`; in `data`, nested like `data_dtypes`, the
          first step of each column, `[...]`.

        Raises:
          tf.errors.InvalidArgumentError: If number or dtypes of the columns do not match, if
            columns differ in length, or if `table` is not a single string.
          tf.errors.InternalError: In a graph, if dtypes of the columns do not match.
          tf.errors.NotFoundError: If there is no such table.
        """
        dtypes = [tf.as_dtype(dtype) for dtype in tree.flatten(data_dtypes)]
        unknown = tf.TensorShape(None)  # pyright: ignore[reportArgumentType]
        specs = [
            *(tf.TensorSpec([], dtype) for dtype in SampleInfo.tf_dtypes()),
            *(tf.TensorSpec(unknown, dtype) for dtype in dtypes),
        ]
        with self._name_scope(name, "sample"), on_cpu():
            first = ops.reverb_replay_sample(
                self._text(self._server_address),
                self._text(table),
                Toutput_list=dtypes,
                in_graph=not tf.executing_eagerly(),
            )

            def resume(handle: Any) -> list[Any]:
                return _flat(ops.reverb_replay_sample_resume(handle, Toutput_list=dtypes))

            _, *outputs = finish(_flat(first), resume, specs)
        info, data = outputs[: len(SampleInfo._fields)], outputs[len(SampleInfo._fields) :]
        return ReplaySample(SampleInfo(*info), tree.unflatten_as(data_dtypes, data))

    def insert(
        self, data: Sequence[Any], tables: Any, priorities: Any, name: str | None = None
    ) -> Any:
        """Inserts one step, as an item of its own in each of some tables.

        Blocks until the server has confirmed the items. The tables' rate limiters may delay that.

        Args:
          data: Tensors `[...]`, one for each column.
          tables: Names of the tables, string `[K]`.
          priorities: The item's priority in each, float64 `[K]`.
          name: Name of the ops.

        Returns:
          `None` in eager mode; in a graph the operation that inserts.

        Raises:
          InvalidArgumentError: If `tables` or `priorities` have another dtype or shape.
          tf.errors.InvalidArgumentError: If there is no such table, or if the data do not match
            its signature.
        """
        tables = tf.convert_to_tensor(tables, dtype_hint=tf.string)
        priorities = tf.convert_to_tensor(priorities, dtype_hint=tf.float64)
        if tables.dtype != tf.string or tables.shape.rank != 1:
            raise InvalidArgumentError(
                f"tables must be a string tensor of rank 1, got {tables.dtype.name} of shape "
                f"{tables.shape}"
            )
        if priorities.dtype != tf.float64 or priorities.shape.rank != 1:
            raise InvalidArgumentError(
                f"priorities must be a float64 tensor of rank 1, got {priorities.dtype.name} of "
                f"shape {priorities.shape}"
            )
        if not tables.shape.is_compatible_with(priorities.shape):
            raise InvalidArgumentError(
                f"priorities and tables must have the same shape, got {priorities.shape} and "
                f"{tables.shape}"
            )
        with self._name_scope(name, "insert"), on_cpu():
            tensors = [tf.convert_to_tensor(tensor) for tensor in data]
            return _finish_without_result(
                ops.reverb_replay_insert(
                    self._text(self._server_address), tables, priorities, tensors
                )
            )

    def update_priorities(
        self, table: Any, keys: Any, priorities: Any, name: str | None = None
    ) -> Any:
        """Updates priorities of items; keys of items that are not in the table are ignored.

        Blocks until the server has answered.

        Args:
          table: Name of the table, a string, or a tensor of one.
          keys: uint64 `[N]`, as in `SampleInfo.key`.
          priorities: float64 `[N]`.
          name: Name of the ops.

        Returns:
          `None` in eager mode; in a graph the operation that updates.

        Raises:
          ValueError: If a tensor has another dtype.
          tf.errors.InvalidArgumentError: If shapes differ or are not `[N]`, or if the table rejects
            a priority.
          tf.errors.NotFoundError: If there is no such table.
        """
        keys = tf.convert_to_tensor(keys, tf.uint64)
        priorities = tf.convert_to_tensor(priorities, tf.float64)
        if tf.executing_eagerly() and isinstance(table, str):
            # The same as the op, which would wake threads of TensorFlow.
            with as_tensorflow_errors():
                if keys.shape.rank != 1 or keys.shape != priorities.shape:
                    raise InvalidArgumentError(
                        f"keys and priorities must be of rank 1 and of the same length, got shapes "
                        f"{keys.shape} and {priorities.shape}"
                    )
                self._client.update_priorities(table, keys.numpy(), priorities.numpy())
            return None
        with self._name_scope(name, "update_priorities"), on_cpu():
            return _finish_without_result(
                ops.reverb_replay_update_priorities(
                    self._text(self._server_address), self._text(table), keys, priorities
                )
            )

    def _text(self, value: Any) -> Any:
        """Converts a string to a tensor and caches it; graphs make their own constants."""
        if not isinstance(value, str) or not tf.executing_eagerly():
            return value
        if value not in self._tensors:
            self._tensors[value] = tf.constant(value)
        return self._tensors[value]

    def _name_scope(self, name: str | None, method: str) -> Any:
        return tf.name_scope(name or f"{self._name}_{method}")


def _flat(call: Any) -> list[Any]:
    *scalars, data = call
    return [*scalars, *data]


def _finish_without_result(pending: Any) -> Any:
    (done,) = finish([pending], lambda handle: [ops.reverb_replay_resume(handle)], [])
    return None if tf.executing_eagerly() else tf.group(done)
