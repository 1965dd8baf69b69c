# SPDX-License-Identifier: Apache-2.0
"""Steps that sample through a `tf.data` pipeline: eagerly, in a `tf.function`, in a session."""

from __future__ import annotations

import functools
import gc
import json
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
import tree
from arrays import encode
from values import describe_specs, encode_nest, specs
from world import SKIPPED, World, raised

import reverb


def _dataset(world: World, step: dict[str, Any]) -> Any:
    table, options = step["table"], step["options"]
    if table in world.unsettled:
        return SKIPPED
    waits = options.get("rate_limiter_timeout_ms", -1) == -1
    if waits and not _may_sample(world, step):
        return SKIPPED
    build = functools.partial(_pipeline, world, step)
    seen: dict[str, Any] = {"elements": [], "spec": None}
    try:
        _MODES[step["mode"]](build, seen)
    except Exception as error:
        seen["raised"], seen["text"] = raised(error), str(error)[-300:]
        del error
        # In the server's process, an iterator that outlives the server hangs in the original.
        gc.collect()
    if "raised" in seen or any(stage[0] == "take" for stage in step["pipeline"]):
        # The sampler may have fetched more than was taken.
        world.unsettled.add(table)
    if "raised" in seen and step["mode"] == "function":
        # TensorFlow may run the loop's body for elements behind the error, too.
        seen["elements"] = []
    elif not step["unordered"]:
        seen["elements"] = [_element(world, table, element) for element in seen["elements"]]
    else:
        # The elements before an error depend on the workers.
        seen["elements"] = [] if "raised" in seen else _items(seen["elements"])
    return seen


def _may_sample(world: World, step: dict[str, Any]) -> bool:
    count = step["options"].get("max_samples", 1)
    if step["interleave"] and step["sources"] == "servers":
        return all(world.may_sample(step["table"], count, client) for client in world.clients)
    return world.may_sample(step["table"], count * (step["sources"] if step["interleave"] else 1))


def _items(elements: list[Any]) -> list[Any]:
    """Returns elements grouped by item and sorted, without the items' numbers.

    Several workers give items in any order, and the steps of one item in theirs.
    """
    items: dict[tuple[int, int], list[Any]] = {}
    for element in elements:
        info = element.info._replace(key=np.uint64(0))
        encoded = encode_nest(element._replace(info=info))
        items.setdefault((int(element.info.key), int(info.times_sampled)), []).append(encoded)
    return sorted(items.values(), key=json.dumps)


def _pipeline(world: World, step: dict[str, Any]) -> Any:
    source = functools.partial(_source, world, step)
    options = step["interleave"]
    if not options:
        dataset = source(world.address)
    elif step["sources"] == "servers":
        addresses = tf.data.Dataset.from_tensor_slices(
            [client.server_address for client in world.clients]
        )
        dataset = addresses.interleave(source, **options)
    else:
        numbers = tf.data.Dataset.range(step["sources"])
        dataset = numbers.interleave(lambda _: source(world.address), **options)
    for name, *arguments in step["pipeline"]:
        dataset = getattr(dataset, name)(*arguments)
    return dataset


def _source(world: World, step: dict[str, Any], address: Any) -> Any:
    kind = getattr(reverb, step["kind"])
    if step["specs"] == "signature":
        return kind.from_table_signature(world.address, step["table"], **step["options"])
    nest = specs(world.schema, step["specs"])
    return kind(
        address,
        step["table"],
        dtypes=tree.map_structure(lambda spec: spec.dtype, nest),
        shapes=tree.map_structure(lambda spec: spec.shape, nest),
        **step["options"],
    )


def _eager(build: Callable[[], Any], seen: dict[str, Any]) -> None:
    dataset = build()
    seen["spec"] = describe_specs(dataset.element_spec)
    for element in dataset:
        seen["elements"].append(tree.map_structure(lambda leaf: leaf.numpy(), element))


def _function(build: Callable[[], Any], seen: dict[str, Any]) -> None:
    structures = []

    def collect(*leaves: Any) -> np.ndarray:
        seen["elements"].append(tree.unflatten_as(structures[0], leaves))
        return np.zeros([], np.int64)

    @tf.function
    def read() -> None:
        dataset = build()
        seen["spec"] = describe_specs(dataset.element_spec)
        structures[:] = [dataset.element_spec]
        for element in dataset:
            tf.numpy_function(collect, tree.flatten(element), tf.int64)

    read()


def _session(build: Callable[[], Any], seen: dict[str, Any]) -> None:
    with tf.Graph().as_default():
        dataset = build()
        seen["spec"] = describe_specs(tf.compat.v1.data.get_output_shapes(dataset))
        iterator = tf.compat.v1.data.make_initializable_iterator(dataset)
        element = iterator.get_next()
        seen["spec"] = describe_specs(element)
        with tf.compat.v1.Session() as session:
            session.run(iterator.initializer)
            while True:
                try:
                    seen["elements"].append(session.run(element))
                except tf.errors.OutOfRangeError:
                    return


_MODES = {"eager": _eager, "function": _function, "session": _session}


def _element(world: World, table: str, element: Any) -> Any:
    return [
        [[*map(str, path)], _leaf(world, table, path, leaf)]
        for path, leaf in tree.flatten_with_path(element)
    ]


def _leaf(world: World, table: str, path: tuple[Any, ...], leaf: Any) -> Any:
    if path[-2:] != ("info", "key"):
        return encode(leaf)
    keys = [world.key(table, int(key)) for key in np.reshape(leaf, -1)]
    return {"dtype": np.asarray(leaf).dtype.name, "shape": list(np.shape(leaf)), "keys": keys}


DATASETS: dict[str, Callable[[World, dict[str, Any]], Any]] = {
    "dataset": _dataset,
}
