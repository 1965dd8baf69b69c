# SPDX-License-Identifier: Apache-2.0
"""Tables and signatures as JSON, built with whichever package is installed."""

from __future__ import annotations

import collections
from typing import Any

import numpy as np
import tree

import reverb

# The fields of `TableInfo` except for the signature and the worker's times.
INFO_FIELDS = (
    "name",
    "max_size",
    "max_times_sampled",
    "current_size",
    "num_episodes",
    "num_deleted_episodes",
    "num_unique_samples",
)
INFO_MESSAGES = ("sampler_options", "remover_options", "rate_limiter_info")


def build_table(spec: dict[str, Any]) -> Any:
    """Returns the `reverb.Table` of a JSON object; see `tables` of the tests."""
    return reverb.Table(
        name=spec.get("name", "table"),
        sampler=_selector(spec.get("sampler", "Fifo")),
        remover=_selector(spec.get("remover", "Fifo")),
        max_size=spec.get("max_size", 10_000),
        max_times_sampled=spec.get("max_times_sampled", 0),
        rate_limiter=_limiter(spec.get("limiter", ["MinSize", 1])),
        signature=_nest(spec.get("signature")),
        # Options that dm-reverb does not have.
        **spec.get("ours", {}),
    )


def _selector(text: str) -> Any:
    """`Fifo` or `Prioritized 0.8`."""
    name, *arguments = text.split()
    return getattr(reverb.selectors, name)(*map(float, arguments))


def _limiter(words: list[Any]) -> Any:
    return getattr(reverb.rate_limiters, words[0])(*words[1:])


def _nest(value: Any) -> Any:
    """An object of one key: `dict`, `list`, `tuple`, `named` or `spec`."""
    if value is None:
        return None
    ((kind, content),) = value.items()
    if kind == "dict":
        return {key: _nest(part) for key, part in content.items()}
    if kind == "list":
        return [_nest(part) for part in content]
    if kind == "tuple":
        return tuple(_nest(part) for part in content)
    if kind == "named":
        cls = collections.namedtuple("Named", content)
        return cls(**{key: _nest(part) for key, part in content.items()})
    return _spec(*content)


def _spec(shape: list[int | None], dtype: str, name: str | None = None, *bounds: float) -> Any:
    if hasattr(reverb, "specs"):
        if bounds:
            return reverb.specs.BoundedTensorSpec(shape, np.dtype(dtype), *bounds, name=name)
        return reverb.specs.TensorSpec(shape, np.dtype(dtype), name)
    import tensorflow as tf
    from tensorflow.python.framework import tensor_spec

    if bounds:
        return tensor_spec.BoundedTensorSpec(shape, np.dtype(dtype), *bounds, name=name)
    return tf.TensorSpec(shape, np.dtype(dtype), name)


def describe(signature: Any) -> Any:
    """Returns a signature as something that JSON and `==` know."""
    if signature is None:
        return None
    return [
        [list(map(str, path)), *_described(leaf)]
        for path, leaf in tree.flatten_with_path(signature)
    ]


def _described(leaf: Any) -> list[Any]:
    shape = None if _rank_is_unknown(leaf.shape) else list(leaf.shape)
    dtype = getattr(leaf.dtype, "as_numpy_dtype", leaf.dtype)
    bounds = [
        None if not hasattr(leaf, bound) else np.asarray(getattr(leaf, bound)).tolist()
        for bound in ("minimum", "maximum")
    ]
    return [shape, np.dtype(dtype).name, leaf.name, bounds]


def _rank_is_unknown(shape: Any) -> bool:
    return shape is None or getattr(shape, "rank", 0) is None
