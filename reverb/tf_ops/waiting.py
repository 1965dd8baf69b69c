# SPDX-License-Identifier: Apache-2.0
"""Waiting for a call that goes on in the background.

An op of the client waits for a moment only. If the call is not done then, it returns a handle
under which the call goes on, and the rest of its outputs mean nothing. A handle of 0 says that it
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

    Args:
      outputs: What the first op returned: the handle, then the results.
      resume: Waits for another moment; gets the handle and returns the same outputs.
      result_specs: Specs of the results.

    Returns:
      The handle, 0 now, and the results.
    """
    if tf.executing_eagerly():
        return _finish_eagerly(outputs, resume)
    specs = [tf.TensorSpec([], tf.int64), *result_specs]
    _set_shapes(outputs, specs)
    return finish_in_graph(outputs, lambda handle: _wait_in_graph(handle, resume, specs))


def finish_in_graph(outputs: _Outputs, wait: Callable[[Any], _Outputs]) -> _Outputs:
    """Adds ops that wait for a call if it is not done yet.

    Args:
      outputs: What the first op returned: the handle, then the results.
      wait: Gets the handle, returns the outputs once the call is done; captures no tensors.

    Returns:
      The outputs.
    """
    is_done = tf.equal(outputs[0], 0)
    if is_eager_program():
        return tf.cond(
            is_done,
            lambda: [tf.identity(output) for output in outputs],
            lambda: wait(outputs[0]),
        )
    specs = [tf.TensorSpec(output.shape, output.dtype) for output in outputs]
    # What `tf.cond` adds, without the eager context.
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
        while int(outputs[0]) != 0:  # Between two moments, Ctrl-C is heard.
            outputs = resume(handle)
    except BaseException:
        ops.reverb_replay_abandon(handle)
        raise
    return outputs


def _wait_in_graph(handle: Any, resume: _Resume, specs: Sequence[Any]) -> _Outputs:
    """Waits without a thread of the pool that runs the ops of all functions.

    That pool has as many threads as the machine has cores, so that a few waiting ops, or loops of
    them, would stop every function of the process, perhaps the very one that they wait for. An
    element of a dataset is waited for in a thread of its own.
    """

    def take(handle: Any) -> _Outputs:
        outputs = resume(handle)
        _set_shapes(outputs, specs)
        return outputs

    def is_done(pending: Any, *_: Any) -> Any:
        return tf.equal(pending, 0)

    moments = generator_dataset([handle], tf.identity, take, ops.reverb_replay_abandon, specs)
    return list(filtered(moments, is_done).take(1).get_single_element())


def _set_shapes(outputs: _Outputs, specs: Sequence[Any]) -> None:
    for output, spec in zip(outputs, specs, strict=True):
        output.set_shape(spec.shape)
