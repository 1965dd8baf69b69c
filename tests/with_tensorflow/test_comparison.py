# SPDX-License-Identifier: Apache-2.0
"""The datasets inside random pipelines give what `tf.data` gives over the same elements."""

import collections
import dataclasses
import functools

import numpy as np
import pytest
import tensorflow as tf
import tree
from hypothesis import example, given, settings
from hypothesis import strategies as st

import reverb
from reverb import testing
from support.examples import fast_and_thorough

Pair = collections.namedtuple("Pair", ["left", "right"])

# Steps of each nest: a number says which one it is, so that no two are the same.
NESTS = {
    "number": lambda i: [np.int64(i)],
    "nest": lambda i: {"x": Pair(np.float32([i, -i]), np.int64(i)), "b": (np.uint8(i % 256),)},
    # Chunks of it are compressed, so that a step cannot be read without those around it.
    "compressed": lambda i: {"frame": np.full([30, 30], i % 256, np.uint8), "i": np.int64(i)},
    "strings": lambda i: {"text": np.array([str(i), "x" * (i % 40)], dtype=object)},
    "empty": lambda i: (np.zeros([0, 3], np.float32), np.int64(i)),
}

# Errors that may end a run.
FAILURE = "InvalidArgumentError"


@dataclasses.dataclass(frozen=True)
class Step:
    """A transformation: `batch`, `take`, `unbatch` or `prefetch`."""

    name: str
    size: int = 0
    drop_remainder: bool = False

    def __call__(self, dataset):
        if self.name == "unbatch":
            return dataset.unbatch()
        if self.name == "batch":
            return dataset.batch(self.size, drop_remainder=self.drop_remainder)
        return getattr(dataset, self.name)(self.size)


@dataclasses.dataclass(frozen=True)
class Chain:
    """Transformations of each of two sources, which are then interleaved, or of one."""

    inner: tuple[Step, ...]
    interleaves: bool
    outer: tuple[Step, ...]

    def __call__(self, source):
        """The pipeline; `source` makes the dataset of a number, which may be a tensor."""

        def one(number):
            return functools.reduce(lambda dataset, step: step(dataset), self.inner, source(number))

        if not self.interleaves:
            return one(0)
        dataset = tf.data.Dataset.range(2).interleave(one, cycle_length=2)
        return functools.reduce(lambda dataset, step: step(dataset), self.outer, dataset)


@st.composite
def chains(draw, unbatches=True):
    """Chains that unbatch only what was batched."""
    depth = 0

    def steps():
        nonlocal depth
        result = []
        for _ in range(draw(st.integers(0, 3))):
            names = ["batch", "batch", "take", "prefetch"]
            name = draw(st.sampled_from(names + ["unbatch"] * (unbatches and depth > 0)))
            depth += {"batch": 1, "unbatch": -1}.get(name, 0)
            size = 0 if name == "unbatch" else draw(st.integers(1, 7))
            result.append(Step(name, size, name == "batch" and draw(st.booleans())))
        return tuple(result)

    inner = steps()
    interleaves = draw(st.booleans())
    return Chain(inner, interleaves, steps() if interleaves else ())


def run_eagerly(make):
    """Element spec, elements and how it ended, of the dataset that a function makes."""
    dataset = make()
    elements = []
    try:
        for element in dataset:
            elements.append([leaf.numpy() for leaf in tf.nest.flatten(element)])
    except tf.errors.InvalidArgumentError:
        return dataset.element_spec, elements, FAILURE
    return dataset.element_spec, elements, None


def run_in_function(make):
    """The same, where a `tf.function` makes the dataset and reads it."""
    elements, specs = [], []

    def keep(*leaves):
        elements.append([np.array(leaf) for leaf in leaves])

    @tf.function
    def read():
        dataset = make()
        specs.append(dataset.element_spec)
        for element in dataset:
            leaves = tf.nest.flatten(element)
            shapes = [leaf.shape for leaf in tf.nest.flatten(dataset.element_spec)]
            assert [leaf.shape.as_list() for leaf in leaves] == [s.as_list() for s in shapes]
            tf.numpy_function(keep, leaves, [])

    try:
        read()
    except tf.errors.InvalidArgumentError:
        # TensorFlow reads ahead, also beyond the element that failed.
        return specs[0], [], FAILURE
    return specs[0], elements, None


def run_in_session(make):
    """The same, in a session of `tf.compat.v1`."""
    elements = []
    with tf.Graph().as_default():
        dataset = make()
        iterator = tf.compat.v1.data.make_initializable_iterator(dataset)
        leaves = tf.nest.flatten(iterator.get_next())
        shapes = [spec.shape.as_list() for spec in tf.nest.flatten(dataset.element_spec)]
        assert [leaf.shape.as_list() for leaf in leaves] == shapes
        with tf.compat.v1.Session() as session:
            session.run(iterator.initializer)
            try:
                while True:
                    elements.append([np.array(value) for value in session.run(leaves)])
            except tf.errors.OutOfRangeError:
                return dataset.element_spec, elements, None
            except tf.errors.InvalidArgumentError:
                return dataset.element_spec, elements, FAILURE


WAYS = {"eager": run_eagerly, "function": run_in_function, "session": run_in_session}


@dataclasses.dataclass(frozen=True)
class Program:
    """Two tables, and a pipeline over datasets of them."""

    family: type
    nest: str
    lengths: tuple[tuple[int, ...], ...]
    in_flight: int
    max_samples: int
    chain: Chain


@st.composite
def programs(draw):
    family = draw(st.sampled_from([reverb.TrajectoryDataset, reverb.TimestepDataset]))
    nest = draw(st.sampled_from(sorted(NESTS)))
    length = st.integers(1, 9)
    if family is reverb.TrajectoryDataset or draw(st.booleans()):
        length = st.just(draw(length))
    lengths = st.lists(length, min_size=1, max_size=8).map(tuple)
    return Program(
        family,
        nest,
        (draw(lengths), draw(lengths)),
        draw(st.sampled_from([1, 2, 100])),
        draw(st.sampled_from([-1, 1, 3])),
        # TensorFlow's own `unbatch` ends the process at a tensor without values.
        draw(chains(unbatches=nest != "empty")),
    )


def fill(client, program):
    """Writes the items; returns them, for each table, with what is known of each."""
    client.reset("0")
    client.reset("1")
    items = []
    count = 0
    for table, lengths in zip("01", program.lengths, strict=True):
        with client.trajectory_writer(max(lengths)) as writer:
            for length in lengths:
                for _ in range(length):
                    writer.append(NESTS[program.nest](count))
                    count += 1
                columns = tree.map_structure(lambda c, n=length: c[-n:], writer.history)
                writer.create_item(table, 1.0 + count, columns)
            writer.flush()
        items.append([(sample.info, sample.data) for sample in client.scan(table)])
    return items


def elements(items, program):
    """The elements of a table's dataset, flat, one after another."""
    for number, (info, columns) in enumerate(items):
        if number == program.max_samples:
            return
        info = (info.key, 1.0, 0, info.priority, 1)
        if program.family is reverb.TrajectoryDataset:
            yield (*info, *columns)
            continue
        for step in range(len(columns[0])):
            yield (*info, *(column[step] for column in columns))


def compare(client, program, way):
    items = fill(client, program)
    step = NESTS[program.nest](0)
    lead = []
    if program.family is reverb.TrajectoryDataset:
        lead = [program.lengths[0][0] if program.lengths[0][0] == program.lengths[1][0] else None]
    is_text = program.nest == "strings"

    def ours(number):
        return program.family(
            client.server_address,
            tf.strings.as_string(number),
            tree.map_structure(lambda x: tf.string if is_text else tf.as_dtype(x.dtype), step),
            tree.map_structure(lambda x: tf.TensorShape([*lead, *x.shape]), step),
            program.in_flight,
            max_samples=program.max_samples,
            rate_limiter_timeout_ms=20,
        )

    with tf.Graph().as_default():
        spec = ours(0).element_spec
    leaves = tf.nest.flatten(spec)

    def values(number):
        for element in elements(items[int(number)], program):
            yield tf.nest.pack_sequence_as(spec, element)

    def theirs(number):
        if not tf.is_tensor(number):
            number = tf.constant(number)
        return tf.data.Dataset.from_generator(values, output_signature=spec, args=[number])

    expected_spec, expected, expected_end = way(lambda: program.chain(theirs))
    found_spec, found, end = way(lambda: program.chain(ours))
    assert found_spec == expected_spec
    assert end == expected_end
    assert len(found) == len(expected)
    for i, (element, expected_element) in enumerate(zip(found, expected, strict=True)):
        pairs = zip(leaves, element, expected_element, strict=True)
        for j, (leaf, value, expected_value) in enumerate(pairs):
            assert value.dtype == expected_value.dtype, (i, leaf)
            assert value.shape == expected_value.shape, (i, leaf)
            if j == 2:  # How full the table was depends on how far ahead was read.
                assert np.all((value >= 0) & (value <= 8))
                continue
            np.testing.assert_array_equal(value, expected_value)


@pytest.fixture(scope="module")
def client(reach):
    """A client of a server whose two tables give every item once, in order."""
    tables = [testing.table(name, max_times_sampled=1) for name in "01"]
    with testing.server(tables) as made:
        yield reach(made)


def timesteps(*lengths, chain, nest="number", max_samples=-1):
    chain = Chain(tuple(chain), False, ())
    return Program(reverb.TimestepDataset, nest, (lengths, (1,)), 100, max_samples, chain)


@pytest.mark.parametrize("way", WAYS)
@fast_and_thorough(12, 400, timeout_s=3_600)
def test_sampled_items_and_steps(client, way, max_examples):
    @settings(max_examples=max_examples)
    @example(timesteps(2, 2, 2, chain=[Step("batch", 2)]))
    @example(timesteps(10, chain=[Step("batch", 2, True)]))
    @example(timesteps(3, 5, 1, 1, 9, chain=[Step("batch", 4)], nest="compressed"))
    @example(timesteps(3, 5, 1, 1, 9, chain=[Step("batch", 4, True)], nest="strings"))
    @example(timesteps(2, 5, chain=[Step("batch", 3), Step("unbatch"), Step("batch", 2)]))
    @example(timesteps(5, 6, chain=[Step("batch", 2, True), Step("batch", 2)], max_samples=1))
    @given(programs())
    def check(program):
        compare(client, program, WAYS[way])

    check()


@settings(max_examples=25)
@given(
    st.integers(1, 4),
    st.lists(st.integers(1, 6), min_size=1, max_size=5),
    chains(),
    st.sampled_from([run_eagerly, run_in_function]),
)
def test_items_of_patterns(reach_length, episodes, chain, way):
    ends = np.cumsum(episodes) - 1
    windows = [
        np.arange(last - reach_length + 1, last + 1)
        for first, end in zip([0, *(ends + 1)], ends, strict=False)
        for last in range(first + reach_length - 1, end + 1)
    ]
    steps = tf.data.Dataset.range(int(ends[-1]) + 1)
    reference = reverb.structured.create_reference_step(steps.element_spec)
    config = reverb.structured.create_config(reference[-reach_length:], table="unused")

    def is_last(step):
        return tf.reduce_any(tf.equal(step, tf.constant(ends, tf.int64)))

    ours = reverb.PatternDataset(steps, [config], True, is_last)
    theirs = tf.data.Dataset.from_generator(
        lambda: iter(windows), output_signature=tf.TensorSpec([reach_length], tf.int64)
    )
    expected_spec, expected, expected_end = way(lambda: chain(lambda _: theirs))
    spec, found, end = way(lambda: chain(lambda _: ours))
    assert (spec, end, len(found)) == (expected_spec, expected_end, len(expected))
    for element, expected_element in zip(found, expected, strict=True):
        np.testing.assert_array_equal(element[0], expected_element[0])
