# SPDX-License-Identifier: Apache-2.0
"""Mixtures of tables whose columns differ: the error names tables, columns and the way out."""

import collections

import numpy as np
import pytest

import reverb
from reverb import testing
from reverb.errors import InvalidArgumentError
from reverb.specs import TensorSpec


def signature(dtype=np.float32, shape=(), **columns):
    return {name: TensorSpec(columns[name] or shape, dtype, name) for name in columns}


def names(*columns, dtype=np.float32):
    return signature(dtype, **dict.fromkeys(columns, (1,)))


def fill(serve, one, other, *, signatures=(None, None)):
    """A client of the tables `demos` and `replay` with an item each."""
    given = zip(("demos", "replay"), signatures, strict=True)
    client = serve(*(testing.table(name, signature=it) for name, it in given))
    client.insert(one, {"demos": 1.0})
    client.insert(other, {"replay": 1.0})
    return client


def mixed(client, **options):
    with reverb.batches(client, {"demos": 0.5, "replay": 0.5}, 4, **options) as batches:
        return next(batches)


def fault(client, **options):
    with pytest.raises(InvalidArgumentError) as caught:
        mixed(client, **options)
    assert {sample.info.times_sampled > 0 for sample in caught.value.samples} == {True}
    return str(caught.value)


WAY_OUT = (
    " Choose columns that all tables have by columns=, or let each batch come from one table by "
    'mix="batch".'
)


@pytest.mark.parametrize(
    ("one", "other", "difference"),
    [
        ("a", "ab", "table replay has column 'b' that table demos lacks."),
        ("abc", "a", "table replay lacks columns 'b', 'c' of table demos."),
        ("ab", "ac", "table replay has column 'c' that table demos lacks and lacks column 'b' of "
         "table demos."),
    ],
)  # fmt: skip
def test_a_column_of_one_table_is_named(serve, one, other, difference):
    rows = [dict.fromkeys(columns, np.float32(0)) for columns in (one, other)]
    client = fill(serve, *rows, signatures=(names(*one), names(*other)))
    text = fault(client)
    assert text == "The tables of a mixture must have the same columns, but " + difference + WAY_OUT
    assert mixed(client, columns=["a"]).data["a"].shape == (4, 1)
    assert mixed(client, mix="batch").info.key.shape == (4,)


def test_columns_without_names_are_counted(serve):
    client = fill(serve, {"x": 0.0}, {"x": 0.0, "y": 1.0})
    assert fault(client) == (
        "The items of a batch must have the same columns, but those of table demos have 1 and "
        "those of table replay 2. Choose columns that all have by columns=, such as columns=[0]."
    )
    assert mixed(client, columns=[0]).data[0].shape == (4, 1)


Pair = collections.namedtuple("Pair", "b, a")


def test_the_order_of_columns_counts(serve):
    pair = {"a": np.float32(0), "b": np.float32(0)}
    tuples = Pair(**names("a", "b"))
    client = fill(serve, pair, Pair(**pair), signatures=(names("a", "b"), tuples))
    assert fault(client) == (
        "The tables of a mixture must have the same columns, but their order is ['a', 'b'] in "
        "table demos and ['b', 'a'] in table replay. Give both the same signature."
    )


def test_a_signature_without_names_fits_any(serve):
    pair = {"a": np.float32(0), "b": np.float32(0)}
    by_position = [TensorSpec([1], np.float32)] * 2
    client = fill(serve, pair, list(pair.values()), signatures=(names("a", "b"), by_position))
    assert mixed(client).data["b"].shape == (4, 1)


def write_steps(client, table, value, length=None):
    with client.trajectory_writer(length or 1) as writer:
        for _ in range(length or 1):
            writer.append({"x": value})
        steps = writer.history["x"]
        writer.create_item(table, 1.0, {"x": steps[-1] if length is None else steps[-length:]})
        writer.flush()


def test_a_step_and_a_sequence_of_one_step_need_squeeze(serve):
    client = serve(testing.table("demos"), testing.table("replay"))
    write_steps(client, "demos", 1.0)
    write_steps(client, "replay", 2.0, 1)
    advice = "are alike with squeeze=True and without ragged=."
    text = fault(client)
    assert "column 0 is float64 [] in items of table demos and float64 [1] in items" in text
    assert text.endswith(advice)
    for ragged in ("pad", "packed"):
        text = fault(client, ragged=ragged)
        assert "is float64 [] in items of table demos and float64 [T] in items of table re" in text
        assert text.endswith(advice)
    assert mixed(client, squeeze=True).data[0].tolist() == [1.0, 1.0, 2.0, 2.0]


def test_lengths_that_differ_need_ragged(serve):
    client = serve(testing.table("demos"), testing.table("replay"))
    write_steps(client, "demos", 1.0, 2)
    write_steps(client, "replay", 2.0, 3)
    text = fault(client)
    assert "float64 [2] in items of table demos and float64 [3] in items of table replay" in text
    assert text.endswith('Sample them with ragged="pad" or "packed".')
    assert mixed(client, ragged="pad").data[0].shape == (4, 3)


def test_dtypes_of_tables_are_both_named(serve):
    client = fill(
        serve,
        {"x": np.float32(0)},
        {"x": 0.0},
        signatures=(names("x"), names("x", dtype=np.float64)),
    )
    assert fault(client) == (
        "The items of a batch must have the same shapes and dtypes, but column 'x' is float32 [1] "
        "in items of table demos and float64 [1] in items of table replay. Leave it out by "
        "columns=, or write it in the same form."
    )


def test_texts_of_several_lengths_are_one_dtype(serve):
    client = fill(serve, {"x": "a"}, {"x": "longer"})
    assert mixed(client).data[0].ravel().tolist() == [b"a", b"a", b"longer", b"longer"]
