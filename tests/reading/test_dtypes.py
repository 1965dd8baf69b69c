# SPDX-License-Identifier: Apache-2.0
"""Values of every dtype come back bit for bit: by every writer, by every way to read.

The values are random bits, so that all kinds of NaN, infinities and denormal numbers are among
them, and the unused bits of numbers that are narrower than a byte.
"""

import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import reverb
from reverb import testing
from reverb._nests import dtypes
from reverb.errors import InvalidArgumentError, SignatureMismatchError
from reverb.specs import TensorSpec
from support.dtypes import EXTENSIONS
from support.examples import fast_and_thorough
from support.hosts import on_both_hosts


def every_dtype():
    """All that `reverb.dtypes` numbers, without strings and the quantized types."""
    found = []
    for number in range(1, 100):
        try:
            dtype = dtypes.from_number(number)
        except KeyError:
            continue
        if dtype.kind != "O" and not dtype.metadata:
            found.append(dtype)
    return found


DTYPES = every_dtype()
QUANTIZED = ["qint8", "quint8", "qint16", "quint16", "qint32"]


def raw(name, width):
    """The replacement of a type of `ml_dtypes` where that package is not installed."""
    return np.dtype(f"V{width}", metadata={"reverb_dtype": name})


def test_every_dtype_is_tested():
    names = {dtype.name for dtype in DTYPES}
    assert set(EXTENSIONS) < names
    assert len(names) == len(DTYPES) == 19


# Values ------------------------------------------------------------------------------------------


@st.composite
def arrays(draw, dtype, shape):
    """Arrays of random bits in any layout that NumPy has."""
    size = int(np.prod(shape)) * dtype.itemsize
    seed = draw(st.integers(0, 2**32 - 1))
    bits = np.random.default_rng(seed).integers(0, 256, size, np.uint8)
    if dtype.kind == "b":
        bits &= 1
    array = bits.view(dtype).reshape(shape)
    layout = draw(st.sampled_from(["C", "F", "swapped", "strided", "reversed", "unaligned"]))
    if layout == "F":
        return np.asfortranarray(array)
    if layout == "swapped":
        return array.byteswap().view(dtype.newbyteorder("S"))
    if layout == "strided":
        wide = np.zeros((*shape[:-1], 2 * shape[-1]), dtype)
        wide[..., ::2] = array
        return wide[..., ::2]
    if layout == "reversed":
        return np.ascontiguousarray(array[::-1])[::-1]
    if layout == "unaligned":
        return np.frombuffer(b"\0" + array.tobytes(), np.uint8)[1:].view(dtype).reshape(shape)
    return array


def bits_of(array):
    """The elements in native byte order and C order."""
    return np.array(array, array.dtype.newbyteorder("="), order="C").tobytes()


# Writing: each writes the steps `[T, ...]` as items whose columns are these steps, in order -------


def write_with_insert(client, steps):
    # The ellipsis keeps arrays: `ml_dtypes` makes wrong arrays of scalars in another byte order.
    for i in range(len(steps)):
        client.insert({"x": steps[i, ...]}, {"table": 1.0})


def write_with_insert_batch(client, steps):
    client.insert_batch({"x": steps}, {"table": np.ones(len(steps))})


def write_with_the_legacy_writer(client, steps):
    with client.writer(len(steps)) as writer:
        for step in steps:
            writer.append({"x": step})
        writer.create_item("table", len(steps), 1.0)


def write_delta_encoded(client, steps):
    with client.writer(len(steps), delta_encoded=True) as writer:
        writer.append_sequence({"x": steps})
        writer.create_item("table", len(steps), 1.0)


def write_with_a_trajectory_writer(client, steps):
    with client.trajectory_writer(len(steps)) as writer:
        for step in steps:
            writer.append({"x": step})
        column = writer.history["x"][:]
        assert column.dtype == steps.dtype.newbyteorder("=")
        assert column.numpy().tobytes() == bits_of(steps)
        writer.create_item("table", 1.0, {"x": column})


def write_with_a_batched_writer(client, steps):
    with client.batched_trajectory_writer(len(steps), 1) as writer:
        writer.append({"x": steps})
        column = writer.history["x"][-1:]
        assert column.dtype == steps.dtype.newbyteorder("=")
        assert column.numpy().tobytes() == bits_of(steps)
        writer.create_items("table", 1.0, {"x": column})


def write_with_a_sequence_writer(client, steps):
    with client.sequence_writer("table", sequence_length=len(steps)) as writer:
        for step in steps:
            writer.append({"x": step})


def write_with_a_structured_writer(client, steps):
    pattern = {"x": reverb.structured_writer.create_reference_step({"x": None})["x"][-1:]}
    config = reverb.structured_writer.create_config(pattern, "table")
    writer = client.structured_writer([config])
    for step in steps:
        writer.append({"x": step})
    writer.flush()


WRITERS = [
    write_with_insert,
    write_with_insert_batch,
    write_with_the_legacy_writer,
    write_delta_encoded,
    write_with_a_trajectory_writer,
    write_with_a_batched_writer,
    write_with_a_sequence_writer,
    write_with_a_structured_writer,
]


def assert_read(client, steps):
    """The items of the table have these steps, for every reader."""
    dtype = steps.dtype.newbyteorder("=")
    columns = {sample.info.key: sample.data[0] for sample in client.scan("table")}
    length = len(steps) // len(columns)
    for column in columns.values():
        assert (column.dtype, column.shape) == (dtype, (length, *steps.shape[1:]))
    assert b"".join(column.tobytes() for column in columns.values()) == bits_of(steps)

    for sample in client.sample("table", 3, emit_timesteps=False):
        assert_same(sample.data[0], columns[sample.info.key])
    for timesteps in client.sample("table", 3):
        assert len(timesteps) == length
        for i, step in enumerate(timesteps):
            assert_same(step.data[0], columns[step.info.key][i, ...])
    batch = client.sample_batch("table", 3)
    for key, row in zip(batch.info.key, batch.data[0], strict=True):
        assert_same(row, columns[key])


def assert_same(actual, expected):
    assert isinstance(actual, np.ndarray)
    assert (actual.dtype, actual.shape) == (expected.dtype, expected.shape)
    assert actual.tobytes() == expected.tobytes()


@fast_and_thorough(25, 300)
@on_both_hosts
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.name)
def test_it_comes_back_bit_for_bit(dtype, host, max_examples):
    @settings(max_examples=max_examples)
    @given(data=st.data())
    def check(data):
        write = data.draw(st.sampled_from(WRITERS))
        shape = data.draw(st.lists(st.integers(0, 3), max_size=2))
        steps = data.draw(arrays(dtype, (data.draw(st.integers(1, 4)), *shape)))
        signature = {"x": TensorSpec([None, *shape], dtype)}
        uniform = reverb.selectors.Uniform()
        with testing.server([testing.table(sampler=uniform, signature=signature)]) as made:
            client = reverb.Client(made.server_address.replace("127.0.0.1", host))
            write(client, steps)
            assert_read(client, steps)

    check()


# The types of ml_dtypes --------------------------------------------------------------------------


@pytest.mark.parametrize("name", EXTENSIONS)
def test_scalars_and_lists_of_them(serve, name):
    scalar = getattr(ml_dtypes, name)
    client = serve(testing.table())
    client.insert([scalar(1), [scalar(2), scalar(3)]], {"table": 1.0})
    (sample,) = client.sample("table")
    for column, value in zip(sample[0].data, (1, 2, 3), strict=True):
        assert (column.dtype, column.shape) == (np.dtype(scalar), ())
        assert column == scalar(value)


@pytest.mark.parametrize("name", EXTENSIONS)
def test_raw_bytes_with_the_name_of_the_type_are_values_of_it(serve, name):
    dtype = np.dtype(getattr(ml_dtypes, name))
    client = serve(testing.table())
    values = np.arange(12, dtype=np.uint8).repeat(dtype.itemsize).view(raw(name, dtype.itemsize))
    with client.trajectory_writer(2) as writer:
        writer.append(values[::2])
        writer.append(values.view(dtype)[::2])
        writer.create_item("table", 1.0, writer.history[:])
    (sample,) = client.sample("table", emit_timesteps=False)
    assert sample.data[0].dtype == dtype
    assert sample.data[0].tobytes() == 2 * values[::2].tobytes()


@pytest.mark.parametrize("name", EXTENSIONS)
def test_a_signature_refuses_others(serve, name):
    dtype = np.dtype(getattr(ml_dtypes, name))
    client = serve(testing.table(signature=TensorSpec([None, 2], dtype)))
    other = np.uint16 if dtype.itemsize == 2 else np.uint8
    with client.trajectory_writer(1) as writer:
        writer.append(np.zeros(2, other))
        with pytest.raises(SignatureMismatchError, match=name):
            writer.create_item("table", 1.0, writer.history[-1:])
    client.insert(np.zeros([2], dtype), {"table": 1.0})
    assert client.server_info()["table"].signature.dtype == dtype


REFUSED = {
    "another type of ml_dtypes": (
        np.dtype(ml_dtypes.float8_e4m3b11fnuz),
        r"Column 0: Values of NumPy dtype float8_e4m3b11fnuz cannot be stored.*"
        rf"these can be stored: {', '.join(EXTENSIONS)}\.",
    ),
    "another type in its byte order": (
        np.dtype(ml_dtypes.float8_e5m2fnuz).newbyteorder("S"),
        "Values of NumPy dtype float8_e5m2fnuz cannot be stored",
    ),
    "raw bytes": (np.dtype("V2"), r"Values of NumPy dtype \|V2 cannot be stored"),
    "a record": (np.dtype([("a", "f4")]), "cannot be stored"),
    "the name of another package": (
        np.dtype("V2", metadata={"reverb_dtype": "float128"}),
        "Values of NumPy dtype float128 cannot be stored",
    ),
    "a name that is no text": (
        np.dtype("V2", metadata={"reverb_dtype": 5}),
        r"Values of NumPy dtype \|V2 cannot be stored",
    ),
    "too few bytes": (raw("bfloat16", 1), "Values of NumPy dtype bfloat16 of 1 byte"),
    "too many bytes": (raw("int4", 4), "Values of NumPy dtype int4 of 4 byte"),
} | {
    name: (dtypes.from_number(number), f"Values of NumPy dtype {name} cannot.*TensorFlow's ops")
    for number in range(1, 100)
    for name in [dtypes._OPAQUE_NAMES.get(number, ("",))[0]]
    if name in QUANTIZED
}


@pytest.mark.parametrize(("dtype", "text"), REFUSED.values(), ids=REFUSED)
def test_other_dtypes_are_refused_by_their_name(serve, dtype, text):
    client = serve(testing.table())
    for value in (np.zeros(4, dtype), np.zeros((), dtype), np.zeros((4, 4), dtype)[:, ::2]):
        with pytest.raises(TypeError, match=text):
            client.insert([value], {"table": 1.0})
    assert client.server_info()["table"].current_size == 0


@pytest.mark.parametrize("name", EXTENSIONS)
def test_a_spec_takes_the_type_in_every_spelling(name):
    class OfTorch:
        def __str__(self):
            return f"torch.{name}"

    dtype = np.dtype(getattr(ml_dtypes, name))
    for spelling in (dtype, dtype.type, name, OfTorch()):
        assert TensorSpec([2], spelling).dtype == dtype
    with pytest.raises(InvalidArgumentError, match="float8_e4m3b11fnuz"):
        reverb.specs.as_spec(np.zeros(2, ml_dtypes.float8_e4m3b11fnuz))


@pytest.mark.parametrize("name", EXTENSIONS)
def test_a_checkpoint_keeps_it(tmp_path, name):
    dtype = np.dtype(getattr(ml_dtypes, name))
    values = np.arange(256, dtype=np.uint8).repeat(dtype.itemsize).view(dtype)
    checkpointer = reverb.checkpointers.DefaultCheckpointer(str(tmp_path))
    tables = [testing.table(signature=TensorSpec([256], dtype))]
    with reverb.Server(tables, checkpointer=checkpointer) as server:
        client = server.localhost_client()
        client.insert(values, {"table": 1.0})
        path = client.checkpoint()
    (stored,) = reverb.checkpointers.read(path).scan("table")
    with reverb.Server([testing.table()], checkpointer=checkpointer) as server:
        (loaded,) = server.localhost_client().sample("table", emit_timesteps=False)
    for sample in (stored, loaded):
        assert sample.data[0].dtype == dtype
        assert sample.data[0].tobytes() == values.tobytes()


# Without the package -----------------------------------------------------------------------------

PROGRAM = """
import sys

import reverb
from reverb import testing
assert "ml_dtypes" not in sys.modules, "reverb imports it"
sys.modules["ml_dtypes"] = None  # As if it were not installed.

import numpy as np

with testing.server() as made:
    client = reverb.Client(made.server_address.replace("127.0.0.1", HOST))
    for name, width in [("bfloat16", 2), ("float8_e5m2", 1), ("int4", 1)]:
        dtype = np.dtype(f"V{width}", metadata={"reverb_dtype": name})
        values = np.arange(8 * width, dtype=np.uint8).view(dtype).reshape(4, 2)[::2]
        client.insert([values, values[0, 1, ...]], {"table": 1.0})
        # What was read is written again.
        for _ in range(2):
            (whole,) = client.sample("table", emit_timesteps=False)
            ((step,),) = client.sample("table")
            (scanned,) = client.scan("table")
            batch = client.sample_batch("table", 1)
            for data in (step.data, [c[0] for c in whole.data], [c[0] for c in scanned.data],
                         [c[0, 0] for c in batch.data]):
                assert [d.dtype.metadata["reverb_dtype"] for d in data] == [name, name], data
                assert data[0].tobytes() == values.tobytes()
                assert data[1].tobytes() == values[0, 1].tobytes()
            client.reset("table")
            with client.batched_trajectory_writer(1, 1) as writer:
                writer.append([column[0] for column in batch.data])
                columns = [column[-1:] for column in writer.history]
                assert columns[0].dtype.metadata["reverb_dtype"] == name
                writer.create_items("table", 1.0, columns)
        client.reset("table")
"""


@on_both_hosts
def test_without_ml_dtypes_they_are_raw_bytes(host):
    program = f"HOST = {host!r}\n{PROGRAM}"
    subprocess.run([sys.executable, "-W", "error", "-c", program], check=True)
