# SPDX-License-Identifier: Apache-2.0
"""Waits for calls that continue in the background.

An op of the client waits only for a short time. If the call is not done by then, the op returns a
handle of the pending call, and its other outputs are undefined. A handle of 0 means that the call
is done.
"""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf  # pyright: ignore[reportMissingImports]

from reverb.tf_ops import ops
from reverb.tf_ops.generator import generator_dataset
from reverb.tf_ops.graph_function import is_eager_program, traced
from reverb.tf_ops.transformations import filtered

__all__ = ["finish", "finish_in_graph"]

_Outputs = Sequence[Any]
_Resume = Callable[[Any], _Outputs]


def finish(outputs: _Outputs, resume: _Resume, result_specs: Sequence[Any]) -> _Outputs:
    """Blocks until a call is done; in a graph, adds ops that do so.

    The outputs of the first op are the handle, then the results. `resume` gets the handle, waits
    again for a short time, and returns the same outputs.

    Returns:
      The handle, which is 0, and the results.
    """
    if tf.executing_eagerly():
        return _finish_eagerly(outputs, resume)
    specs = [tf.TensorSpec([], tf.int64), *result_specs]
    _set_shapes(outputs, specs)
    return finish_in_graph(outputs, lambda handle: _wait_in_graph(handle, resume, specs))


def finish_in_graph(outputs: _Outputs, wait: Callable[[Any], _Outputs]) -> _Outputs:
    """Adds ops that wait for a call if it is not done yet; returns its outputs.

    `wait` gets the handle and returns the outputs once the call is done; it must not capture
    tensors.
    """
    is_done = tf.equal(outputs[0], 0)
    if is_eager_program():
        return tf.cond(
            is_done,
            lambda: [tf.identity(output) for output in outputs],
            lambda: wait(outputs[0]),
        )
    specs = [tf.TensorSpec(output.shape, output.dtype) for output in outputs]
    # The ops that `tf.cond` adds, without its use of the eager context.
    finished = tf.raw_ops.If(
        cond=is_done,
        input=outputs,
        Tout=[output.dtype for output in outputs],
        then_branch=traced(lambda *outputs: outputs, specs),
        else_branch=traced(lambda handle, *_: wait(handle), specs),
    )
    _set_shapes(finished, specs)
    return finished


def _finish_eagerly(outputs: _Outputs, resume: _Resume) -> _Outputs:
    handle = outputs[0]
    try:
        while int(outputs[0]) != 0:  # Ctrl-C is handled between two calls.
            outputs = resume(handle)
    except BaseException:
        ops.reverb_replay_abandon(handle)
        raise
    return outputs


def _wait_in_graph(handle: Any, resume: _Resume, specs: Sequence[Any]) -> _Outputs:
    """Waits without occupying a thread of the pool that runs the ops of all functions.

    That pool has as many threads as the machine has cores. A few waiting ops, or loops of them,
    would stop every function of the process, possibly the function that they wait for. The wait
    for an element of a dataset has its own thread.
    """

    def take(handle: Any) -> _Outputs:
        outputs = resume(handle)
        _set_shapes(outputs, specs)
        return outputs

    def is_done(pending: Any, *_: Any) -> Any:
        return tf.equal(pending, 0)

    polls = generator_dataset([handle], tf.identity, take, ops.reverb_replay_abandon, specs)
    return list(filtered(polls, is_done).take(1).get_single_element())


def _set_shapes(outputs: _Outputs, specs: Sequence[Any]) -> None:
    for output, spec in zip(outputs, specs, strict=True):
        output.set_shape(spec.shape)
