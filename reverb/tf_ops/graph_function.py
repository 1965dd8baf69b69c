# SPDX-License-Identifier: Apache-2.0
"""Functions for ops that take a function, such as those of `tf.data`.

`tf.function` registers functions with TensorFlow's eager context, and so initialises it. After that
a program can no longer configure virtual devices. In a program without eager execution nothing else
initialises the context, so there functions are only added to the graph.
"""

import hashlib
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf  # pyright: ignore[reportMissingImports]

__all__ = ["is_eager_program", "traced"]

# A function with this attribute runs on one device, where `tf.data` needs no optimizer, placer and
# partitioner for it. They take longer than all else that a new iterator costs, for each function.
_ON_ONE_DEVICE = "experimental_ints_on_device"

# `tf.function` of TensorFlow 2.12 refuses the attribute.
_ATTRIBUTES = None if tf.__version__.startswith("2.12.") else {_ON_ONE_DEVICE: True}


def is_eager_program() -> bool:
    """Whether code outside of functions and graphs executes eagerly."""
    return tf.compat.v1.executing_eagerly_outside_functions()


def traced(
    function: Callable[..., Any], specs: Sequence[Any], *, on_one_device: bool = False
) -> Any:
    """Traces a function for an argument of an op in `tf.raw_ops`; it captures no tensors.

    With `on_one_device` it runs on the CPU, as cheap as `tf.data` can. That is for pipelines of
    Python iterators: TensorFlow's optimizer of a graph with `interleave` refuses such a function.
    """
    graph_only = tf.autograph.experimental.do_not_convert(function)
    if is_eager_program():
        # Names that TensorFlow makes itself would cause warnings.
        named = (
            tf.TensorSpec(spec.shape, spec.dtype, f"argument_{i}") for i, spec in enumerate(specs)
        )
        attributes = _ATTRIBUTES if on_one_device else None
        annotated = tf.function(graph_only, experimental_attributes=attributes)
        return annotated.get_concrete_function(*named)
    return _defined(graph_only, specs)


def _defined(function: Callable[..., Any], specs: Sequence[Any]) -> str:
    """Adds the definition of a function to the current graph; returns its name."""
    with tf.Graph().as_default() as body:
        arguments = [tf.compat.v1.placeholder(spec.dtype, spec.shape) for spec in specs]
        results = tf.nest.flatten(function(*arguments))
    library = body.as_graph_def().library  # The functions that this one calls.
    definition = _definition(body, arguments, results)
    # In one graph, functions with the same name must be equal.
    digest = hashlib.sha256(definition.SerializeToString(deterministic=True)).hexdigest()
    definition.signature.name = f"reverb_{digest[:16]}"
    library.function.append(definition)
    versions = tf.compat.v1.GraphDef().versions
    versions.producer = tf.version.GRAPH_DEF_VERSION
    tf.graph_util.import_graph_def(
        tf.compat.v1.GraphDef(library=library, versions=versions), name=""
    )
    return definition.signature.name


def _definition(body: Any, arguments: Sequence[Any], results: Sequence[Any]) -> Any:
    """Converts a graph to a `FunctionDef` without a name."""
    definition = tf.compat.v1.GraphDef().library.function.add()
    signature = definition.signature
    names = {}  # Names of tensors in the definition, by their names in the graph.
    for i, argument in enumerate(arguments):
        names[argument.name] = f"argument_{i}"
        signature.input_arg.add(name=f"argument_{i}", type=argument.dtype.as_datatype_enum)
    given = {argument.op.name for argument in arguments}
    for op in body.get_operations():
        if op.name in given:
            continue
        names |= zip((tensor.name for tensor in op.outputs), _output_names(op), strict=True)
        node = definition.node_def.add()
        node.CopyFrom(op.node_def)
        del node.input[:]
        node.input.extend(names[tensor.name] for tensor in op.inputs)
        node.input.extend(f"^{before.name}" for before in op.control_inputs)
        signature.is_stateful |= op.op_def.is_stateful
    for i, result in enumerate(results):
        signature.output_arg.add(name=f"result_{i}", type=result.dtype.as_datatype_enum)
        definition.ret[f"result_{i}"] = names[result.name]
    return definition


def _output_names(op: Any) -> list[str]:
    """Returns `node:output:index` for each tensor; an output that is a list has several."""
    names = []
    for output in op.op_def.output_arg:
        count = 1
        if output.number_attr:
            count = op.get_attr(output.number_attr)
        elif output.type_list_attr:
            count = len(op.get_attr(output.type_list_attr))
        names.extend(f"{op.name}:{output.name}:{i}" for i in range(count))
    return names
