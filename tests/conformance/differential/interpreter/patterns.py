# SPDX-License-Identifier: Apache-2.0
"""Steps that run structured writers' patterns inside of a `tf.data` pipeline."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
import tree
from structured import build_config
from values import describe_specs, encode_nest
from values import step as step_of
from world import World, raised

import reverb
from reverb import pattern_dataset


def _patterns(world: World, step: dict[str, Any]) -> Any:
    # Whether an episode ends is one more leaf, behind those of the schema.
    schema = {"dict": {"data": world.schema, "end": {"leaf": ["bool", []]}}}
    rows = [
        {"data": step_of(world.schema, number), "end": np.asarray(number in step["ends"])}
        for number in step["numbers"]
    ]
    stacked = tree.map_structure(lambda *cells: np.stack(cells), *rows)
    seen: dict[str, Any] = {"elements": [], "spec": None}
    try:
        dataset = tf.data.Dataset.from_tensor_slices(stacked)
        make = (
            pattern_dataset.pattern_dataset_with_info
            if step["with_info"]
            else reverb.PatternDataset
        )
        dataset = make(
            dataset,
            [build_config(schema, config) for config in step["configs"]],
            respect_episode_boundaries=step["respect"],
            is_end_of_episode=lambda row: row["end"],
        )
        for name, *arguments in step["pipeline"]:
            dataset = getattr(dataset, name)(*arguments)
        seen["spec"] = describe_specs(dataset.element_spec)
        for element in dataset:
            arrays = tree.map_structure(lambda leaf: leaf.numpy(), element)
            seen["elements"].append(encode_nest(arrays))
    except Exception as error:
        seen["raised"], seen["text"] = raised(error), str(error)[-300:]
    return seen


PATTERNS: dict[str, Callable[[World, dict[str, Any]], Any]] = {"pattern_dataset": _patterns}
