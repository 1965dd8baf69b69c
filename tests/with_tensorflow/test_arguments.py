# SPDX-License-Identifier: Apache-2.0
"""Arguments of datasets: checks, signatures, and the spec of elements."""

import collections
import re

import numpy as np
import pytest
import tensorflow as tf

import reverb
from reverb import errors, testing

FAMILIES = [reverb.TrajectoryDataset, reverb.TimestepDataset]
ARGUMENTS = {
    "server_address": "localhost:1",
    "table": "table",
    "dtypes": [tf.int64],
    "shapes": [tf.TensorShape([1])],
    "max_in_flight_samples_per_worker": 1,
}
# In the order in which they are checked.
WRONG = {
    "max_in_flight_samples_per_worker": (0, "(0) must be a positive integer"),
    "num_workers_per_iterator": (0, "(0) must be a positive integer or -1"),
    "max_samples_per_stream": (-2, "(-2) must be a positive integer or -1"),
    "rate_limiter_timeout_ms": (-2, "(-2) must be an integer >= -1"),
    "max_samples": (0, "(0) must be a positive integer or -1"),
}


@pytest.fixture(params=FAMILIES, ids=lambda family: family.__name__)
def family(request):
    return request.param


@pytest.mark.parametrize("name", WRONG)
def test_numbers_out_of_range_are_named(family, name, error_says):
    value, text = WRONG[name]
    error_says(
        lambda: family(**(ARGUMENTS | {name: value})),
        errors.InvalidArgumentError,
        f"{name} {text}",
    )


@pytest.mark.parametrize("first", range(len(WRONG)))
def test_numbers_are_checked_in_order(family, first):
    wrong = dict(list(WRONG.items())[first:])
    with pytest.raises(ValueError, match=next(iter(wrong))):
        family(**(ARGUMENTS | {name: value for name, (value, _) in wrong.items()}))


@pytest.mark.parametrize("shapes", [[], [[1]], [tf.TensorShape([1])] * 2])
def test_structures_are_compared_before_anything_else(family, shapes):
    with pytest.raises(ValueError, match="nested structure"):
        family(**(ARGUMENTS | {"shapes": shapes, "max_in_flight_samples_per_worker": 0}))


@pytest.mark.parametrize("name", [*WRONG, "batch_size"])
def test_numbers_must_be_integers(family, name):
    with pytest.raises(TypeError):
        family(**(ARGUMENTS | {name: "1"}))


def test_integers_of_numpy_will_do(family):
    family(**(ARGUMENTS | {name: np.int32(1) for name in WRONG}))


@pytest.mark.parametrize("name", ["server_address", "table"])
def test_addresses_and_tables_are_one_string(family, name, error_says):
    error_says(
        lambda: family(**(ARGUMENTS | {name: tf.constant(["a", "b"])})),
        errors.InvalidArgumentError,
        f"{name} must be one string, or a scalar string tensor, got shape (2,)",
    )
    with pytest.raises(TypeError):
        family(**(ARGUMENTS | {name: 3}))


def test_batch_sizes_are_checked(family, error_says):
    error_says(
        lambda: family(**ARGUMENTS, batch_size=0),
        errors.InvalidArgumentError,
        "batch_size must be at least 1, got 0",
    )
    error_says(
        lambda: family(**ARGUMENTS, drop_remainder=True),
        errors.InvalidArgumentError,
        "drop_remainder=True needs a batch_size, got None",
    )


def test_nobody_connects_when_a_dataset_is_made(family):
    dataset = family(**ARGUMENTS)
    assert isinstance(dataset, tf.data.Dataset)
    assert isinstance(dataset, tf.compat.v1.data.Dataset)
    assert int(dataset.cardinality()) == tf.data.UNKNOWN_CARDINALITY


def test_the_spec_of_an_element(family):
    Pair = collections.namedtuple("Pair", ["left", "right"])
    dtypes = {"b": [tf.int64, tf.string], "a": Pair(tf.bfloat16, [tf.float32])}
    shapes = {
        "b": [tf.TensorShape([None, 3]), tf.TensorShape(None)],
        "a": Pair(tf.TensorShape([2]), [None]),
    }
    spec = family(**(ARGUMENTS | {"dtypes": dtypes, "shapes": shapes})).element_spec
    assert spec == reverb.ReplaySample(
        info=reverb.SampleInfo(
            key=tf.TensorSpec([], tf.uint64),
            probability=tf.TensorSpec([], tf.float64),
            table_size=tf.TensorSpec([], tf.int64),
            priority=tf.TensorSpec([], tf.float64),
            times_sampled=tf.TensorSpec([], tf.int32),
        ),
        data={
            "b": (tf.TensorSpec([None, 3], tf.int64), tf.TensorSpec(None, tf.string)),
            "a": Pair(tf.TensorSpec([2], tf.bfloat16), (tf.TensorSpec(None, tf.float32),)),
        },
    )
    assert [leaf.name for leaf in tf.nest.flatten(spec)] == [None] * 9


@pytest.mark.parametrize(("drop_remainder", "size"), [(True, 7), (False, None)])
def test_the_spec_of_a_batch(family, drop_remainder, size):
    plain = family(**ARGUMENTS).element_spec
    spec = family(**ARGUMENTS, batch_size=7, drop_remainder=drop_remainder).element_spec
    tf.nest.assert_same_structure(plain, spec)
    for one, many in zip(tf.nest.flatten(plain), tf.nest.flatten(spec), strict=True):
        assert many == tf.TensorSpec([size, *one.shape], one.dtype)


def test_a_signature_gives_dtypes_and_shapes(family, start, values):
    signature = {"x": tf.TensorSpec([None], tf.int64, "x"), "y": [tf.TensorSpec([], tf.float32)]}
    server = start(testing.table(signature=signature))
    address = f"localhost:{server.port}"
    dataset = family.from_table_signature(address, "table", 3, rate_limiter_timeout_ms=0)
    assert dataset.element_spec.data == {
        "x": tf.TensorSpec([None], tf.int64),
        "y": (tf.TensorSpec([], tf.float32),),
    }
    assert list(dataset) == []


def test_a_signature_of_this_package_does_as_well(start):
    server = start(testing.table(signature=[reverb.specs.TensorSpec([3], np.uint8)]))
    dataset = reverb.TrajectoryDataset.from_table_signature(
        f"localhost:{server.port}", "table", 1, batch_size=2, drop_remainder=True
    )
    assert dataset.element_spec.data == (tf.TensorSpec([2, 3], tf.uint8),)


def test_a_table_without_signature_says_so(family, start, error_says):
    address = f"localhost:{start(testing.table('b'), testing.table('a')).port}"
    error_says(
        lambda: family.from_table_signature(address, "a", 1),
        errors.InvalidArgumentError,
        f"Table a at {address} does not have a signature.",
    )
    error_says(
        lambda: family.from_table_signature(address, "c", 1),
        errors.TableNotFoundError,
        f"Server at {address} does not contain any table named c. Found: a, b.",
    )


def test_in_a_function_errors_keep_their_class(family, start):
    """TensorFlow raises them once more with a longer text, and knows few classes that it can."""
    address = f"localhost:{start(testing.table('b'), testing.table('a')).port}"

    @tf.function
    def read(table):
        return family.from_table_signature(address, table, 1)

    with pytest.raises(errors.InvalidArgumentError, match=r"Table a at .* does not have a sig"):
        read("a")
    with pytest.raises(errors.TableNotFoundError, match="does not contain any table named c"):
        read("c")


def test_a_signature_is_waited_for_as_long_as_told(family):
    with pytest.raises(reverb.DeadlineExceededError):
        family.from_table_signature("localhost:1", "table", 1, get_signature_timeout_secs=1)


MISMATCHES = {
    "count": (
        [tf.int64] * 2,
        [[3]] * 2,
        "Requested 2 tensors, but table signature shows 1 tensors",
    ),
    "dtype": (
        [tf.float32],
        [[3]],
        "Requested (dtype, shape): (float, [3]).  Signature (dtype, shape): (int64, [?])",
    ),
    "rank": ([tf.int64], [[3, 1]], "Requested (dtype, shape): (int64, [3,1])"),
}


@pytest.mark.parametrize("name", MISMATCHES)
@pytest.mark.parametrize("batch_size", [None, 2])
def test_a_signature_that_differs_raises_from_iter(serve, name, batch_size):
    dtypes, shapes, text = MISMATCHES[name]
    client = serve(testing.table(signature=[tf.TensorSpec([None], tf.int64, "x")]))
    dataset = reverb.TrajectoryDataset(
        client.server_address,
        "table",
        dtypes,
        [tf.TensorShape(s) for s in shapes],
        1,
        batch_size=batch_size,
    )
    with pytest.raises(tf.errors.InvalidArgumentError, match=re.escape(text)) as error:
        iter(dataset)
    assert "from table 'table'" in str(error.value)
    with pytest.raises(tf.errors.InvalidArgumentError, match=re.escape(text)):
        next(iter(dataset.map(lambda sample: sample.data)))
