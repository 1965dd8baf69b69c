# SPDX-License-Identifier: Apache-2.0
"""`PatternDataset`: what patterns make of a dataset of steps."""

import collections

import numpy as np
import pytest
import tensorflow as tf

import reverb
from reverb import errors

structured = reverb.structured

STEP = {"a": tf.TensorSpec([], tf.int64), "b": tf.TensorSpec([2], tf.float32)}


def steps(count=8):
    """Steps whose `a` counts from 0 and whose `b` is twice the same."""
    return tf.data.Dataset.range(count).map(
        lambda i: {"a": i, "b": tf.fill([2], tf.cast(i, tf.float32))}
    )


def config(transform, conditions=(), step=STEP, **options):
    pattern = structured.pattern_from_transform(step, transform)
    return structured.create_config(pattern, "table", conditions, **options)


def fourth(step):
    """Whether a step is the last of four."""
    return step["a"] % 4 == 3


def items(configs, dataset=None, respect=True, end=fourth):
    found = reverb.PatternDataset(steps() if dataset is None else dataset, configs, respect, end)
    return [
        tf.nest.map_structure(lambda x: np.asarray(x).tolist(), item)
        for item in found.as_numpy_iterator()
    ]


def test_items_are_nested_like_the_pattern():
    dataset = reverb.PatternDataset(
        steps(), [config(lambda s: {"x": s["a"][-3:], "y": [s["b"][-1]]})], True, fourth
    )
    assert isinstance(dataset, tf.data.Dataset)
    assert dataset.element_spec == {
        "x": tf.TensorSpec([3], tf.int64),
        "y": (tf.TensorSpec([2], tf.float32),),
    }
    first = next(iter(dataset))
    assert first["x"].numpy().tolist() == [0, 1, 2]
    assert first["y"][0].numpy().tolist() == [2.0, 2.0]


def test_items_keep_to_their_episode_if_told():
    pairs = [config(lambda s: s["a"][-2:])]
    assert items(pairs) == [[0, 1], [1, 2], [2, 3], [4, 5], [5, 6], [6, 7]]


def test_items_reach_over_the_end_of_an_episode_if_told():
    pairs = [config(lambda s: s["a"][-2:])]
    assert items(pairs, respect=False) == [[i, i + 1] for i in range(7)]


def test_items_of_different_lengths():
    configs = [config(lambda s: {"x": s["a"][-3:]}), config(lambda s: {"x": s["a"][-2:]})]
    dataset = reverb.PatternDataset(steps(4), configs, True, fourth)
    assert dataset.element_spec == {"x": tf.TensorSpec([None], tf.int64)}
    assert [x["x"].tolist() for x in dataset.as_numpy_iterator()] == [
        [0, 1, 2], [1, 2], [1, 2, 3], [2, 3],
    ]  # fmt: skip


def test_strings_and_scalars():
    words = tf.data.Dataset.from_tensor_slices({"w": [b"a" * n for n in (0, 22, 23, 5000)]})
    spec = words.element_spec
    found = items([config(lambda s: s["w"][-2:], step=spec)], words, end=lambda s: False)
    assert [[len(word) for word in item] for item in found] == [[0, 22], [22, 23], [23, 5000]]
    found = items([config(lambda s: s["w"][-1], step=spec)], words, end=lambda s: False)
    assert [len(word) for word in found] == [0, 22, 23, 5000]


def test_steps_without_shape():
    ragged = tf.data.Dataset.from_generator(
        lambda: (np.zeros(n, np.float32) for n in (1, 2, 3)),
        output_signature=tf.TensorSpec([None], tf.float32),
    )
    dataset = reverb.PatternDataset(
        ragged, [config(lambda s: s[-1], step=0)], True, lambda step: False
    )
    with pytest.raises(tf.errors.InvalidArgumentError):
        list(dataset)  # Cells of a column have one shape.


@pytest.mark.parametrize("kind", ["tuple", "named tuple", "one tensor", "list in dict"])
def test_steps_of_any_structure(kind):
    Step = collections.namedtuple("Step", ["a", "b"])
    make, end = {
        "tuple": (lambda i: (i, i * 10), lambda a, b: a % 4 == 3),
        "named tuple": (lambda i: Step(i, i * 10), lambda step: step.a % 4 == 3),
        "one tensor": (lambda i: i, lambda step: step % 4 == 3),
        "list in dict": (lambda i: {"l": (i, i * 10)}, lambda step: step["l"][0] % 4 == 3),
    }[kind]
    dataset = tf.data.Dataset.range(4).map(make)
    spec = dataset.element_spec
    pattern = [column[-1] for column in tf.nest.flatten(structured.create_reference_step(spec))]
    found = items([structured.create_config(pattern, "table")], dataset, end=end)
    expected = [(i,) if kind == "one tensor" else (i, i * 10) for i in range(4)]
    assert found == expected


def test_conditions():
    at_the_end = [structured.Condition.is_end_episode()]
    assert items([config(lambda s: s["a"][-1], at_the_end)]) == [3, 7]
    even = [structured.Condition.step_index() % 2 == 0]
    assert items([config(lambda s: s["a"][-1], even)]) == [0, 2, 4, 6]
    large = [structured.Condition.data(STEP)["a"] >= 5]
    assert items([config(lambda s: s["a"][-1], large)]) == [5, 6, 7]


def test_the_callers_configs_learn_how_long_the_history_must_be():
    configs = [
        config(lambda s: {"x": s["a"][-3:], "y": s["a"][-1]}),
        config(lambda s: {"x": s["a"][-1], "y": s["a"][-4:]}),
    ]
    with pytest.raises(errors.InvalidArgumentError):
        reverb.PatternDataset(steps(), configs, True, fourth)
    configs = [config(lambda s: s["a"][-3:]), config(lambda s: s["a"][-2:])]
    reverb.PatternDataset(steps(), configs, True, fourth)
    assert [[c.ge for c in it.conditions if c.buffer_length] for it in configs] == [[3], [3]]
    reverb.PatternDataset(steps(), configs, True, fourth)
    assert [len(it.conditions) for it in configs] == [1, 1]


def test_a_td_error_that_cannot_be_computed_is_an_error():
    priority = structured.td_error(0.9, STEP, lambda step: step["b"])
    dataset = reverb.PatternDataset(
        steps(), [config(lambda s: s["b"][-1], priority=priority)], True, fourth
    )
    with pytest.raises(tf.errors.InvalidArgumentError):
        list(dataset)


def test_configs_are_checked_when_the_dataset_is_made(error_says):
    error_says(
        lambda: reverb.PatternDataset(steps(), [], True, fourth),
        errors.InvalidArgumentError,
        "At least one config must be provided.",
    )
    with pytest.raises(errors.InvalidArgumentError):
        reverb.PatternDataset(steps(), [config(lambda s: s["a"][:])], True, fourth)
    configs = [config(lambda s: s["a"][-1]), config(lambda s: {"x": s["a"][-1]})]
    with pytest.raises(errors.InvalidArgumentError, match="same pattern_structure"):
        reverb.PatternDataset(steps(), configs, True, fourth)


@pytest.mark.parametrize("end", [lambda step: step["a"], lambda step: step["b"] > 0])
def test_the_end_of_an_episode_is_a_bool(end):
    with pytest.raises(ValueError, match="`is_end_of_episode` must return `bool`"):
        reverb.PatternDataset(steps(), [config(lambda s: s["a"][-1])], True, end)


def test_cardinality():
    configs = [config(lambda s: s["a"][-1])]
    finite = reverb.PatternDataset(steps(), configs, True, fourth)
    assert int(finite.cardinality()) == tf.data.UNKNOWN_CARDINALITY
    endless = reverb.PatternDataset(steps().repeat(), configs, True, fourth)
    assert int(endless.cardinality()) == tf.data.INFINITE_CARDINALITY
    assert len(list(endless.take(20))) == 20


def test_each_iterator_starts_anew():
    dataset = reverb.PatternDataset(steps(), [config(lambda s: s["a"][-3:])], False, fourth)
    first, second = iter(dataset), iter(dataset)
    for _ in range(2):
        next(first)
    assert next(second).numpy().tolist() == [0, 1, 2]
    assert next(first).numpy().tolist() == [2, 3, 4]
    assert [x.tolist() for x in dataset.repeat(2).as_numpy_iterator()] == [
        [i, i + 1, i + 2] for i in range(6)
    ] * 2


def test_with_info():
    pattern = config(lambda s: {"x": s["a"][-2:]})
    dataset = reverb.pattern_dataset_with_info(steps(), [pattern], True, fourth)
    info, data = next(iter(dataset))
    assert [field.dtype for field in info] == [
        tf.int32, tf.float32, tf.int32, tf.float32, tf.int32,
    ]  # fmt: skip
    assert [float(field) for field in info] == [0.0] * 5
    assert data["x"].numpy().tolist() == [0, 1]
    assert reverb.pattern_dataset.pattern_dataset_with_info is reverb.pattern_dataset_with_info


def test_with_info_a_pattern_may_be_a_tuple():
    pattern = config(lambda s: (s["a"][-1], s["b"][-1]))
    dataset = reverb.pattern_dataset_with_info(steps(), [pattern], True, fourth)
    sample = next(iter(dataset))
    assert isinstance(sample, reverb.ReplaySample)
    assert [x.numpy().tolist() for x in sample.data] == [0, [0.0, 0.0]]
