# SPDX-License-Identifier: Apache-2.0
"""A sequence writer as an op, for use inside a `tf.function`."""

import weakref
from typing import Any

import numpy as np
import tensorflow as tf  # pyright: ignore[reportMissingImports]
import tree

from reverb._writers.sequence import SequenceWriter, column_label
from reverb.errors import InvalidArgumentError, SignatureMismatchError
from reverb.tf_ops import ops
from reverb.tf_ops.eager_errors import as_tensorflow_errors
from reverb.tf_ops.graph_function import is_eager_program
from reverb.tf_ops.pipeline import on_cpu
from reverb.tf_ops.waiting import finish, finish_in_graph

__all__ = ["TFSequenceWriter"]

# One tensor per writer: ops that use the same resource tensor run in order.
_eager_orders: weakref.WeakKeyDictionary[SequenceWriter, Any] = weakref.WeakKeyDictionary()


class TFSequenceWriter:
    """Appends to a `SequenceWriter`, eagerly and in graphs.

    Inside a `tf.function`, loops and branches included, steps are appended in program order. The
    writer can also be used from Python; `flush` and `close` are available only there. It must stay
    open as long as functions use it.

    Example:
      >>> writer = client.sequence_writer("table", sequence_length=2, batch_size=3)
      >>> tf_writer = reverb.TFSequenceWriter(writer)
      >>> @tf.function
      ... def run(num_steps):
      ...     for i in tf.range(num_steps):
      ...         tf_writer.append({"observation": tf.fill([3], i)}, is_last=tf.equal(i, 4))
      >>> run(tf.constant(10))
      >>> writer.flush()
    """

    def __init__(self, writer: SequenceWriter, name: str = "reverb_append") -> None:
        """Makes ops for a writer.

        Args:
          writer: A writer of this process.
          name: Prefix of the names of the ops.

        Raises:
          FailedPreconditionError: If the writer was made before the process forked.
        """
        self._writer = writer
        self._handle = writer._tensorflow_handle()
        self._name = name
        # Labels, dtypes and shapes of the first graph, until the writer knows those of a real step.
        self._columns: list[tuple[str, Any, Any]] | None = None

    @property
    def writer(self) -> SequenceWriter:
        """The writer that steps are appended to."""
        return self._writer

    def append(self, data: Any, is_last: Any, priorities: Any = 1.0) -> Any:
        """Appends one step of each environment; see `SequenceWriter.append`.

        Inside a `tf.function`, an append that waits for its connection does not occupy a thread
        that other functions need.

        Args:
          data: Nest of tensors `[B, ...]`, or `[...]` without batch size. Other values are
            converted by the rules of NumPy, as in `SequenceWriter.append`.
          is_last: bool `[B]`, or one for all.
          priorities: Numbers `[B]`, or one for all.

        Returns:
          Number of items that the step completed, int64 `[]`.

        Raises:
          InvalidArgumentError: When a graph is built, if `data` has other columns than earlier
            steps, or if the batch dimension is not `B`.
          SignatureMismatchError: When a graph is built, if a column has another dtype or shape.
          TypeError: If `is_last` is not bool.
          tf.errors.InvalidArgumentError: When the op runs, for the invalid arguments of
            `SequenceWriter.append`.
          tf.errors.FailedPreconditionError: If the writer is closed.
        """
        if tf.executing_eagerly():
            # The same as the op, which would wake threads of TensorFlow.
            with as_tensorflow_errors():
                count = self._writer.append(data, is_last=is_last, priorities=priorities)
            return tf.constant(count, tf.int64)
        with tf.name_scope(self._name), on_cpu():
            return self._append_in_graph(data, is_last, priorities)

    def _append_in_graph(self, data: Any, is_last: Any, priorities: Any) -> Any:
        paths_and_leaves = tree.flatten_with_path(data)
        labels = [column_label(path) for path, _ in paths_and_leaves]
        tensors = [_as_tensor(leaf) for _, leaf in paths_and_leaves]
        self._check_columns(labels, tensors)
        is_last = _as_tensor(is_last)
        if is_last.dtype != tf.bool:
            raise TypeError(f"is_last must be bool, got dtype {is_last.dtype.name}")
        priorities = tf.cast(_as_tensor(priorities), tf.float64)
        self._check_rows("is_last", is_last)
        self._check_rows("priorities", priorities)
        pending, num_items = ops.reverb_replay_append(
            writer=tf.constant(self._handle, tf.int64),
            order=self._order_in_graph(),
            is_last=is_last,
            priorities=priorities,
            data=tensors,
            labels=labels,
        )
        pending.set_shape([])
        wait = _shared_wait if is_eager_program() else _wait_until_done
        (done,) = finish_in_graph([pending], wait)
        with tf.control_dependencies([done]):
            num_items = tf.identity(num_items)
        num_items.set_shape([])
        return num_items

    def _order_in_graph(self) -> Any:
        order = _eager_order(self._writer, self._handle) if tf.inside_function() else None
        return _order_resource(self._handle) if order is None else order

    def _check_columns(self, labels: list[str], tensors: list[Any]) -> None:
        """Compares a step with earlier steps, as far as a graph knows; stores the first one."""
        if not tensors:
            raise InvalidArgumentError("data must have at least one leaf, got none")
        columns = [
            (label, tensor.dtype, self._row_shape(label, tensor))
            for label, tensor in zip(labels, tensors, strict=True)
        ]
        written = [
            (label, tf.as_dtype(number), tf.TensorShape(shape))
            for label, number, shape in self._writer._columns()
        ]
        known = written or self._columns
        if not known:
            self._columns = columns
            return
        expected = [label for label, _, _ in known]
        if labels != expected:
            raise InvalidArgumentError(
                f"data must have the columns of earlier steps, {list(map(_shown, expected))}, "
                f"got {list(map(_shown, labels))}"
            )
        for (label, dtype, shape), (_, known_dtype, known_shape) in zip(
            columns, known, strict=True
        ):
            if dtype != known_dtype or not shape.is_compatible_with(known_shape):
                raise SignatureMismatchError(
                    f"column {_shown(label)} must have dtype {known_dtype.name} and shape "
                    f"{known_shape} for each row, as in earlier steps, got dtype "
                    f"{dtype.name} and shape {shape}"
                )

    def _row_shape(self, label: str, tensor: Any) -> Any:
        batch_size = self._writer.batch_size
        if batch_size is None or tensor.shape.rank is None:
            return tensor.shape
        if tensor.shape.rank == 0 or tensor.shape[0] not in (None, batch_size):
            raise InvalidArgumentError(
                f"column {_shown(label)} must have shape [batch_size, ...] with batch_size = "
                f"{batch_size}, got shape {tensor.shape}"
            )
        return tensor.shape[1:]

    def _check_rows(self, argument: str, tensor: Any) -> None:
        rows = [] if self._writer.batch_size is None else [self._writer.batch_size]
        if tensor.shape.rank != 0 and not tensor.shape.is_compatible_with(rows):
            raise InvalidArgumentError(
                f"{argument} must have shape {rows}, one value for each row of the batch, or be "
                f"one value for all, got shape {tensor.shape}"
            )


def _wait_until_done(call: Any) -> list[Any]:
    return list(finish([call], lambda handle: [ops.reverb_replay_resume(handle)], []))


# Made once, because tracing it takes longer than tracing an append.
_shared_wait = tf.function(
    _wait_until_done, input_signature=[tf.TensorSpec([], tf.int64)], autograph=False
)


def _order_resource(handle: int) -> Any:
    """Makes a resource that is never read or written; TensorFlow orders the ops that share it."""
    return tf.raw_ops.VarHandleOp(dtype=tf.int64, shape=[], shared_name=f"reverb_writer_{handle}")


def _eager_order(writer: SequenceWriter, handle: int) -> Any:
    """Returns the resource that functions capture; `None` in programs without eager execution."""
    with tf.init_scope():
        if not tf.executing_eagerly():
            return None
        if writer not in _eager_orders:
            with on_cpu():
                _eager_orders[writer] = _order_resource(handle)
        return _eager_orders[writer]


def _shown(label: str) -> str:
    """Name of a column in an error text."""
    return label or "step"


def _as_tensor(value: Any) -> Any:
    """Converts a value to a tensor; Python numbers get the dtypes of NumPy."""
    return tf.convert_to_tensor(value if tf.is_tensor(value) else np.asarray(value))
