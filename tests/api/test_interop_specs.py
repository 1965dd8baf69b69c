# SPDX-License-Identifier: Apache-2.0
"""Signatures made from other libraries' specs, and the checks of items against them."""

import collections
import re

import dm_env.specs
import numpy as np
import pytest
import tree

from reverb import testing
from reverb.errors import InvalidArgumentError, SignatureMismatchError
from reverb.specs import BoundedTensorSpec, TensorSpec
from support.one_step_items import batched, insert, insert_batch, legacy, trajectory

Step = collections.namedtuple("Step", ["observation", "action"])


def signature_of(client, table="table"):
    return client.server_info()[table].signature


class Shaped:
    """The least that makes a spec."""

    def __init__(self, shape, dtype):
        self.shape, self.dtype = shape, dtype


def test_an_environments_specs_make_a_signature(serve):
    spec = Step(
        observation={"pixels": dm_env.specs.BoundedArray((4, 4), np.uint8, 0, 255)},
        action=dm_env.specs.DiscreteArray(3),
    )
    client = serve(testing.table(signature=spec))
    step = tree.map_structure(lambda leaf: leaf.generate_value(), spec)
    client.insert(step, {"table": 1.0})
    (steps,) = client.sample("table", unpack_as_table_signature=True)
    assert steps[0].data._fields == Step._fields
    assert steps[0].data.observation["pixels"].dtype == np.uint8
    with pytest.raises(SignatureMismatchError, match="column observation/pixels"):
        client.insert(
            step._replace(observation={"pixels": np.zeros((4, 5), np.uint8)}), {"table": 1.0}
        )


@pytest.mark.parametrize("bad", [Shaped((1,), "no dtype"), Shaped((1,), "M8[s]")])
def test_a_dtype_that_cannot_be_stored_is_named_by_its_path(bad):
    with pytest.raises(InvalidArgumentError, match=r"leaf \('a', 1\) of the signature: "):
        testing.table(signature={"a": [np.zeros(1), bad]})


@pytest.mark.parametrize(
    ("bad", "shown"),
    [
        (3, "int 3"),
        (True, "bool True"),
        (2.5, "float 2.5"),
        ("float32", "str 'float32'"),
        (b"x", "bytes b'x'"),
        (None, "NoneType None"),
        (int, "type <class 'int'>"),
        (range(3), "range range(0, 3)"),
        ("rvb_" + "a" * 20, "str 'rvb_aaaa…'"),
    ],
)
def test_what_is_no_spec_is_named_by_its_path(bad, shown):
    text = "must be a spec, such as reverb.specs.TensorSpec((), np.float32), got " + shown
    # A `ValueError`, as in dm-reverb, although the type is wrong.
    of_leaf = re.escape("leaf ('a', 1) of the signature " + text)
    with pytest.raises(InvalidArgumentError, match=of_leaf):
        testing.table(signature={"a": [np.zeros(1), bad]})
    with pytest.raises(InvalidArgumentError, match=re.escape("the signature " + text)):
        testing.table(signature=bad) if bad is not None else testing.table(signature=[None])


# ---- Matching values -----------------------------------------------------------------------------

FITTING = [
    pytest.param([TensorSpec([1], np.int64)], [1], id="exactly"),
    pytest.param([TensorSpec([None], np.int64)], [1], id="unknown length"),
    pytest.param([TensorSpec(None, np.int64)], [np.zeros((2, 3), np.int64)], id="unknown rank"),
    pytest.param([TensorSpec([1, None], np.str_)], [np.asarray(["x", "y"])], id="strings"),
    pytest.param(
        {"b": TensorSpec([1], np.int64), "a": TensorSpec([1], np.float64)},
        (1.0, 1),
        id="other nest, same leaves",
    ),
    pytest.param([BoundedTensorSpec([1], np.int64, 0, 1)], [7], id="out of bounds"),
    pytest.param([TensorSpec([1], np.int64, "name")], {"other": 1}, id="other name"),
]

NOT_FITTING = [
    pytest.param([TensorSpec([1], np.int64)], [1.0], "dtype int64", id="dtype"),
    pytest.param([TensorSpec([1, 2], np.int64)], [1], r"shape \[1,2\]", id="rank"),
    pytest.param(
        [TensorSpec([1, 2], np.int64)], [np.zeros(3, np.int64)], r"\[1,3\]|\[3\]", id="size"
    ),
    pytest.param([TensorSpec([1], np.int64)] * 2, [1], "2", id="too few columns"),
    pytest.param([TensorSpec([1], np.int64)], [1, 2], "2 columns", id="too many columns"),
    pytest.param([TensorSpec([1], np.str_)], [1], "dtype string", id="no string"),
]


WRITERS = [insert, insert_batch, legacy, trajectory, batched]


@pytest.mark.parametrize("writer", WRITERS)
@pytest.mark.parametrize(("signature", "data"), FITTING)
def test_what_fits_is_accepted(serve, writer, signature, data):
    client = serve(testing.table(signature=signature))
    writer(client, data)
    assert client.server_info()["table"].current_size >= 1


@pytest.mark.parametrize("writer", WRITERS)
@pytest.mark.parametrize(("signature", "data", "text"), NOT_FITTING)
def test_what_does_not_fit_is_refused_and_not_sent(serve, writer, signature, data, text):
    client = serve(testing.table(signature=signature))
    with pytest.raises(ValueError, match=f"Unable to create an item in table 'table'.*{text}"):
        writer(client, data)
    assert client.server_info()["table"].rate_limiter_info.insert_stats.completed == 0


@pytest.mark.parametrize("steps", [1, 3])
def test_an_older_writers_steps_fit_without_their_number_too(serve, steps):
    shapes = {"with": [3, 2], "without": [2], "unknown": [None, 2]}
    client = serve(
        *(
            testing.table(name, signature=[TensorSpec(shape, np.int64)])
            for name, shape in shapes.items()
        )
    )
    with client.writer(3) as writer:
        for _ in range(3):
            writer.append([np.zeros(2, np.int64)])
        writer.create_item("without", steps, 1.0)
        writer.create_item("unknown", steps, 1.0)
        if steps == 3:
            writer.create_item("with", steps, 1.0)
        else:
            with pytest.raises(SignatureMismatchError):
                writer.create_item("with", steps, 1.0)


def test_a_squeezed_column_has_the_shape_of_its_step(serve):
    client = serve(testing.table(signature=[TensorSpec([2], np.int64)]))
    with client.trajectory_writer(2) as writer:
        writer.append([np.zeros(2, np.int64)])
        (column,) = writer.history
        writer.create_item("table", 1.0, [column[-1]])
        with pytest.raises(SignatureMismatchError, match=r"got dtype int64 and shape \[1,2\]"):
            writer.create_item("table", 1.0, [column[-1:]])


def test_who_does_not_validate_may_write_anything(serve):
    client = serve(testing.table(signature=[TensorSpec([7], np.str_)]))
    writer = client.trajectory_writer(1, validate_items=False)
    writer.append([1])
    writer.create_item("table", 1.0, [writer.history[0][:]])
    writer.flush()
    assert client.server_info()["table"].current_size == 1


def test_info_of_a_table_and_of_its_server_agree(start, connect):
    table = testing.table(signature={"x": (TensorSpec([None], np.int8, "x"),), "y": np.zeros(2)})
    client = connect(start(table))
    assert signature_of(client) == table.info.signature
