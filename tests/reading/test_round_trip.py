# SPDX-License-Identifier: Apache-2.0
"""Whatever a writer is given comes back as it was: nests, dtypes and layouts, by every way to read.

Each property runs with few examples in the fast suite and with many in the slow one.
"""

import collections
import string
import types

import attr
import numpy as np
import pytest
import tree
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as st_numpy

import reverb
from reverb import testing
from reverb.errors import InvalidArgumentError
from reverb.specs import TensorSpec
from support.examples import fast_and_thorough
from support.hosts import on_both_hosts

Pair = collections.namedtuple("Pair", ["second", "first"])

NUMBERS = [
    np.dtype(name)
    for name in (
        ["bool", "float16", "float32", "float64", "complex64", "complex128"]
        + [f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)]
    )
]

TEXT = st.text(st.characters(exclude_categories=("Cs",)), max_size=6)


def property_test(**strategies):
    """Runs the test for many generated arguments, on both paths."""

    def decorate(test):
        @fast_and_thorough(20, 1_500)
        @on_both_hosts
        def run(host, max_examples):
            check = given(host=st.just(host), **strategies)(test)
            settings(max_examples=max_examples)(check)()

        run.__name__ = test.__name__
        run.__doc__ = test.__doc__
        return run

    return decorate


# Values ------------------------------------------------------------------------------------------


def stored(value):
    """The stored form of a value: an array in native byte order and C order; strings as bytes."""
    if isinstance(value, str | bytes):  # NumPy would cut off trailing zeros.
        array = np.empty((), object)
        array[()] = value
    else:
        array = np.asarray(value)
    if array.dtype.kind in "OSU":
        as_bytes = [x.encode() if isinstance(x, str) else x for x in array.ravel().tolist()]
        result = np.empty(len(as_bytes), object)
        result[:] = as_bytes
        return result.reshape(array.shape)
    return np.array(array, array.dtype.newbyteorder("="), order="C")


@st.composite
def arrays(draw, dtype, shape):
    """Arrays of one dtype and shape in any layout that NumPy has."""
    array = draw(st_numpy.arrays(dtype, shape))
    layout = draw(st.sampled_from(["C", "F", "swapped", "strided", "reversed", "read-only"]))
    if layout == "F":
        return np.asfortranarray(array) if array.ndim else array
    if layout == "swapped":
        return array.astype(array.dtype.newbyteorder("S"))
    if layout == "strided" and array.ndim:
        wide = np.empty((*array.shape[:-1], 2 * array.shape[-1]), array.dtype)
        wide[..., ::2] = array
        return wide[..., ::2]
    if layout == "reversed" and array.ndim:
        return np.ascontiguousarray(array[::-1])[::-1]
    if layout == "read-only":
        array.flags.writeable = False
    return array


@st.composite
def strings(draw, shape):
    """Arrays of strings of one shape, as every kind of array that holds them."""
    count = int(np.prod(shape, dtype=int))
    kind = draw(st.sampled_from("SUO"))
    element = {"S": st.binary(max_size=5), "U": TEXT, "O": st.one_of(TEXT, st.binary(max_size=5))}
    elements = draw(st.lists(element[kind], min_size=count, max_size=count))
    flat = np.empty(count, object)
    flat[:] = elements
    array = flat.reshape(shape)
    return array if kind == "O" else array.astype(kind)


SHAPES = st_numpy.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3)


@st.composite
def leaf_strategies(draw):
    """A strategy whose values all have one dtype and shape, so that they fit into one column."""
    kind = draw(st.sampled_from(["array", "array", "array", "string", "scalar"]))
    if kind == "scalar":
        return draw(
            st.sampled_from(
                [
                    st.integers(-(2**63), 2**63 - 1),
                    st.floats(),
                    st.booleans(),
                    st.complex_numbers(),
                    TEXT,
                    st.binary(max_size=6),
                    st.floats(width=32).map(np.float32),
                    st.integers(0, 255).map(np.uint8),
                ]
            )
        )
    shape = draw(SHAPES)
    return strings(shape) if kind == "string" else arrays(draw(st.sampled_from(NUMBERS)), shape)


@st.composite
def nests(draw, leaves, max_leaves=5):
    """Nests of `leaves` with at least one leaf."""
    nest = draw(
        st.recursive(
            leaves,
            lambda children: st.one_of(
                st.lists(children, max_size=3),
                st.lists(children, max_size=3).map(tuple),
                st.builds(Pair, children, children),
                st.dictionaries(
                    st.text(string.ascii_letters, min_size=1, max_size=3), children, max_size=3
                ),
            ),
            max_leaves=max_leaves,
        ).filter(lambda nest: 1 <= len(tree.flatten(nest)) <= 2 * max_leaves)
    )
    return nest


class Slot:
    """Stands in a nest for a leaf whose values come later."""

    def __init__(self, values):
        self.values = values


STRUCTURES = nests(leaf_strategies().map(Slot))


@st.composite
def episodes(draw, min_steps=1, max_steps=6, structure=STRUCTURES):
    """Lists of steps of one structure whose leaves keep their dtype and shape."""
    slots = draw(structure)
    count = draw(st.integers(min_steps, max_steps))
    return [tree.map_structure(lambda slot: draw(slot.values), slots) for _ in range(count)]


@st.composite
def selections(draw, num_steps):
    """An index into a history of `num_steps` steps, and the steps that it selects."""
    if draw(st.booleans()):
        at = draw(st.integers(-num_steps, num_steps - 1))
        return at, range(num_steps)[at]
    if draw(st.booleans()):
        chosen = draw(st.lists(st.integers(-num_steps, num_steps - 1), min_size=1, max_size=6))
        return chosen, [range(num_steps)[at] for at in chosen]
    start = draw(st.integers(0, num_steps - 1))
    stop = draw(st.integers(start + 1, num_steps))
    step = draw(st.integers(1, 3))
    index = slice(
        start - draw(st.sampled_from([0, num_steps])),
        draw(st.sampled_from([stop, stop - num_steps])) if stop < num_steps else None,
        step,
    )
    return index, list(range(start, stop, step))


# Reading -----------------------------------------------------------------------------------------


def assert_same(actual, expected):
    """The same type, shape and bits; NaNs too."""
    assert isinstance(actual, np.ndarray)
    assert (actual.dtype, actual.shape) == (expected.dtype, expected.shape)
    if expected.dtype == object:
        assert actual.ravel().tolist() == expected.ravel().tolist()
    else:
        assert actual.tobytes() == expected.tobytes()


def assert_sampled(client, expected, nest):
    """The one item of `table` comes back by every way to read it.

    Args:
      client: A client of a server with tables `table` and `signed`, each with only this item.
      expected: The columns in flat order, squeezed ones without a leading dimension.
      nest: A nest with the structure of the signature.
    """
    (whole,) = client.sample("table", emit_timesteps=False)
    assert len(whole.data) == len(expected)
    for column, array in zip(whole.data, expected, strict=True):
        assert_same(column, array)

    if {array.shape[:1] for array in expected} == {expected[0].shape[:1]} != {()}:
        (steps,) = client.sample("table")
        assert len(steps) == len(expected[0])
        for i, step in enumerate(steps):
            for column, array in zip(step.data, expected, strict=True):
                # Indexing an array of objects would take its elements apart.
                assert_same(column, array[i : i + 1].reshape(array.shape[1:]))
    else:
        with pytest.raises(InvalidArgumentError, match="emit_timesteps=False"):
            next(client.sample("table"))

    batch = client.sample_batch("table", 3)
    for column, array in zip(batch.data, expected, strict=True):
        assert_same(column, np.stack([array] * 3))

    options = {"unpack_as_table_signature": True}
    (nested,) = client.sample("signed", emit_timesteps=False, **options)
    for data in (nested.data, client.sample_batch("signed", 1, **options).data):
        tree.assert_same_structure(data, nest)
    for column, array in zip(tree.flatten(nested.data), expected, strict=True):
        assert_same(column, array)


def assert_items(client, items):
    """The items of `table` in order of insertion; deletes them."""
    for columns in items:
        (whole,) = client.sample("table", emit_timesteps=False)
        for column, array in zip(whole.data, columns, strict=True):
            assert_same(column, array)
        client.mutate_priorities("table", deletes=[whole.info.key])
    assert client.server_info()["table"].current_size == 0


class Served:
    """A client of a new server, by the way that `host` leads."""

    def __init__(self, host, nest, expected):
        specs = [TensorSpec(array.shape, array.dtype) for array in expected]
        signature = tree.unflatten_as(nest, specs)
        self._server = reverb.Server(
            [testing.table("table"), testing.table("signed", signature=signature)]
        )
        self._client = reverb.Client(f"{host}:{self._server.port}", connect_timeout_s=20)

    def __enter__(self):
        return self._client

    def __exit__(self, *_):
        self._server.stop()


BOTH = {"table": 1.0, "signed": 1.0}


@on_both_hosts
def test_strings_keep_their_trailing_zeros(host):
    step = {"text": "a\0", "data": b"\x89PNG\0\0"}
    expected = [stored(leaf)[np.newaxis] for leaf in tree.flatten(step)]
    with Served(host, step, expected) as client:
        client.insert(step, BOTH)
        assert_sampled(client, expected, step)


# Writers -----------------------------------------------------------------------------------------


@attr.s
class Attributes:
    b = attr.ib()
    a = attr.ib()


class OwnTuple(tuple):
    __slots__ = ()


@on_both_hosts
@pytest.mark.parametrize(
    ("step", "flat"),
    [
        (collections.OrderedDict(b=1, a=2), [2, 1]),
        (collections.defaultdict(list, b=1, a=2), [2, 1]),
        (types.MappingProxyType({"b": 1, "a": 2}), [2, 1]),
        ({10: 1, 9: 2}, [2, 1]),
        (Pair(second=1, first=2), [1, 2]),
        (Attributes(b=1, a=2), [1, 2]),
        (OwnTuple([1, 2]), [1, 2]),
        ({"c": [], "b": {}, "a": (1, [(2,)])}, [1, 2]),
        (np.str_("text"), [b"text"]),
    ],
    ids=lambda value: type(value).__name__,
)
def test_every_kind_of_container(host, step, flat):
    with reverb.Server([testing.table("table")]) as server:
        client = reverb.Client(f"{host}:{server.port}", connect_timeout_s=20)
        client.insert(step, types.MappingProxyType({"table": 1.0}))
        with client.writer(2) as writer:
            writer.append(step)
            writer.create_item("table", 1, 1.0)
        with client.trajectory_writer(2) as trajectory_writer:
            for _ in range(2):
                trajectory_writer.append(step)
            columns = tree.map_structure(lambda column: column[-1:], trajectory_writer.history)
            trajectory_writer.create_item("table", 1.0, columns)
        assert_items(client, [[stored([leaf]) for leaf in flat]] * 3)


@property_test(steps=episodes(max_steps=1))
def test_insert(host, steps):
    (step,) = steps
    expected = [stored(leaf)[np.newaxis] for leaf in tree.flatten(step)]
    with Served(host, step, expected) as client:
        client.insert(step, BOTH)
        assert_sampled(client, expected, step)


@property_test(steps=episodes(max_steps=5, structure=nests(leaf_strategies().map(Slot))))
def test_insert_batch(host, steps):
    rows = [[stored(leaf) for leaf in tree.flatten(step)] for step in steps]
    columns = [np.stack(column) for column in zip(*rows, strict=True)]
    expected = [column[:1] for column in columns]
    with Served(host, steps[0], expected) as client:
        priorities = np.arange(len(steps)) + 1.0
        client.insert_batch(tree.unflatten_as(steps[0], columns), {"table": priorities})
        info, batch = client.sample_batch("table", 1)
        assert info.priority == [1.0]
        assert info.table_size == [len(steps)]
        for column, array in zip(batch, expected, strict=True):
            assert_same(column, array[np.newaxis])
        rows = ([column[i : i + 1] for column in columns] for i in range(len(steps)))
        assert_items(client, rows)


def selected_columns(steps, chosen):
    """The columns of an item with these selections of steps, one for each leaf."""
    columns = []
    for at, (_, selected) in enumerate(chosen):
        column = [stored(tree.flatten(step)[at]) for step in steps]
        if isinstance(selected, int):
            columns.append(column[selected])
        else:
            columns.append(np.stack([column[i] for i in selected]))
    return columns


@property_test(data=st.data())
def test_trajectory_writer(host, data):
    steps = data.draw(episodes(max_steps=8))
    chosen = [data.draw(selections(len(steps))) for _ in tree.flatten(steps[0])]
    expected = selected_columns(steps, chosen)
    nest = steps[0]
    with (
        Served(host, nest, expected) as client,
        client.trajectory_writer(len(steps)) as writer,
    ):
        if data.draw(st.booleans()):
            for path, _ in tree.flatten_with_path(nest):
                length = data.draw(st.one_of(st.none(), st.integers(1, len(steps))))
                writer.configure(path, num_keep_alive_refs=len(steps), max_chunk_length=length)
        for step in steps:
            if data.draw(st.booleans()):
                writer.append(step)
            else:
                # The same step in two parts.
                first = [data.draw(st.booleans()) for _ in chosen]
                _append_parts(writer, step, first)
        columns = [
            history[index]
            for history, (index, _) in zip(tree.flatten(writer.history), chosen, strict=True)
        ]
        for column, array in zip(columns, expected, strict=True):
            assert_same(np.asarray(column.numpy()), array)
        for table in BOTH:
            writer.create_item(table, 1.0, tree.unflatten_as(nest, columns))
        writer.flush()
        assert_sampled(client, expected, nest)


def _append_parts(writer, step, first):
    leaves = tree.flatten(step)
    for is_first in (True, False):
        part = [leaf if of == is_first else None for leaf, of in zip(leaves, first, strict=True)]
        writer.append(tree.unflatten_as(step, part), partial_step=is_first)


@property_test(steps=episodes(max_steps=6), data=st.data())
def test_steps_without_a_value(host, steps, data):
    """Columns keep what they were given, however many steps left them out."""
    num_columns = len(tree.flatten(steps[0]))
    present = [[data.draw(st.booleans()) for _ in range(num_columns)] for _ in steps[1:]]
    present.append([True] * num_columns)
    expected = []
    for at in range(num_columns):
        values = [step for step, has in zip(steps, present, strict=True) if has[at]]
        expected.append(np.stack([stored(tree.flatten(step)[at]) for step in values]))
    with Served(host, steps[0], expected) as client, client.trajectory_writer(10) as writer:
        for step, has in zip(steps, present, strict=True):
            leaves = [
                leaf if here else None for leaf, here in zip(tree.flatten(step), has, strict=True)
            ]
            writer.append(tree.unflatten_as(step, leaves))
        columns = []
        for at, history in enumerate(tree.flatten(writer.history)):
            indices = [i for i, has in enumerate(present) if has[at]]
            columns.append(history[indices])
        for table in BOTH:
            writer.create_item(table, 1.0, tree.unflatten_as(steps[0], columns))
        writer.flush()
        assert_sampled(client, expected, steps[0])


@property_test(steps=episodes(max_steps=8), data=st.data())
def test_legacy_writer(host, steps, data):
    max_length = data.draw(st.integers(1, len(steps)))
    length = data.draw(st.integers(1, max_length))
    options = {
        "chunk_length": data.draw(st.one_of(st.none(), st.integers(1, max_length))),
        "delta_encoded": data.draw(st.booleans()),
        "max_in_flight_items": data.draw(st.sampled_from([None, 1, 25])),
    }
    expected = [
        np.stack([stored(leaf) for leaf in column])
        for column in zip(*map(tree.flatten, steps[-length:]), strict=True)
    ]
    with Served(host, steps[0], expected) as client:
        with client.writer(max_length, **options) as writer:
            if data.draw(st.booleans()):
                for step in steps:
                    writer.append(step)
            else:
                rows = [[stored(leaf) for leaf in tree.flatten(step)] for step in steps]
                columns = [np.stack(column) for column in zip(*rows, strict=True)]
                writer.append_sequence(tree.unflatten_as(steps[0], columns))
            for table in BOTH:
                writer.create_item(table, length, 1.0)
        assert_sampled(client, expected, steps[0])


@st.composite
def patterns(draw, num_steps):
    """An index of a pattern over `num_steps` steps, and the steps that it selects."""
    back = draw(st.integers(1, num_steps))
    if draw(st.booleans()):
        return -back, num_steps - back
    stop = draw(st.integers(0, back - 1))
    step = draw(st.integers(1, 3))
    index = slice(-back, -stop or None, step if step > 1 else None)
    return index, list(range(num_steps - back, num_steps - stop, step))


@property_test(data=st.data())
def test_structured_writer(host, data):
    steps = data.draw(episodes(max_steps=6))
    chosen = [data.draw(patterns(len(steps))) for _ in tree.flatten(steps[0])]
    expected = selected_columns(steps, chosen)
    references = tree.flatten(reverb.structured.create_reference_step(steps[0]))
    pattern = tree.unflatten_as(
        steps[0],
        [reference[index] for reference, (index, _) in zip(references, chosen, strict=True)],
    )
    last_step = reverb.structured.Condition.step_index() == len(steps) - 1
    configs = [
        reverb.structured.create_config(pattern, table, conditions=[last_step]) for table in BOTH
    ]
    with Served(host, steps[0], expected) as client:
        writer = client.structured_writer(configs)
        for step in steps:
            if data.draw(st.booleans()):
                writer.append(step)
            else:
                _append_parts(writer, step, [data.draw(st.booleans()) for _ in chosen])
        writer.flush()
        assert_sampled(client, expected, steps[0])


@property_test(data=st.data())
def test_batched_writer(host, data):
    batch_size = data.draw(st.integers(1, 3))
    num_steps = data.draw(st.integers(1, 4))
    envs = data.draw(episodes(batch_size * num_steps, batch_size * num_steps))
    rows = [[stored(leaf) for leaf in tree.flatten(step)] for step in envs]
    chosen = [data.draw(patterns(num_steps)) for _ in rows[0]]
    # rows[t * batch_size + b] is step t of environment b.
    expected = []
    for b in range(batch_size):
        history = rows[b::batch_size]
        expected.append(
            [
                history[selected][at]
                if isinstance(selected, int)
                else np.stack([history[i][at] for i in selected])
                for at, (_, selected) in enumerate(chosen)
            ]
        )
    nest = envs[0]
    with (
        Served(host, nest, expected[0]) as client,
        client.batched_trajectory_writer(batch_size, num_steps) as writer,
    ):
        for t in range(num_steps):
            step = rows[t * batch_size : (t + 1) * batch_size]
            writer.append(tree.unflatten_as(nest, [np.stack(x) for x in zip(*step, strict=True)]))
        columns = [
            history[index]
            for history, (index, _) in zip(tree.flatten(writer.history), chosen, strict=True)
        ]
        trajectory = tree.unflatten_as(nest, columns)
        for table in BOTH:
            created = writer.create_items(table, 1.0, trajectory)
            assert created == batch_size
        writer.flush()
        assert_sampled(client, expected[0], nest)
        assert_items(client, expected)


# Sizes that no generator reaches ----------------------------------------------------------------


@on_both_hosts
@pytest.mark.parametrize("compresses", [True, False])
def test_big_arrays(host, compresses):
    """Values and items larger than any message that gRPC allows by default, 4 MB."""
    rng = np.random.default_rng(0)
    shape = (3, 1500, 2000)
    frames = np.zeros(shape, np.uint8) if compresses else rng.integers(0, 256, shape, np.uint8)
    frames[:, 0, 0] = [1, 2, 3]
    steps = [{"frame": frame, "text": "x" * 1_000_000} for frame in frames]
    expected = [frames, stored(np.asarray([step["text"] for step in steps]))]
    with Served(host, steps[0], expected) as client, client.trajectory_writer(3) as writer:
        for step in steps:
            writer.append(step)
        for table in BOTH:
            writer.create_item(
                table, 1.0, {name: column[-3:] for name, column in writer.history.items()}
            )
        writer.flush()
        assert_sampled(client, expected, steps[0])
