# SPDX-License-Identifier: Apache-2.0
"""Tensors of other libraries as values: DLPack and the buffer protocol, by all writers.

Neither PyTorch nor JAX is installed here; stand-ins speak DLPack as theirs do.
"""

import ctypes
import gc
import weakref

import ml_dtypes
import numpy as np
import pytest

from reverb import testing
from reverb.errors import InvalidArgumentError
from support import one_step_items


class Tensor:
    """A tensor like PyTorch's: no NumPy array, and memory that it exports by DLPack."""

    def __init__(self, values, *, device=(1, 0), requires_grad=False):
        self.values = np.asarray(values)
        self.device = device
        self.requires_grad = requires_grad
        self.shape = self.values.shape

    def __dlpack_device__(self):
        return self.device

    def __dlpack__(self, **_):
        if self.requires_grad:
            raise BufferError("Can't export tensors that require gradient, use tensor.detach()")
        return self.values.__dlpack__()

    def __array__(self, *_, **__):
        raise TypeError("this tensor is no array")

    def __getitem__(self, index):
        return Tensor(self.values[index], device=self.device, requires_grad=self.requires_grad)

    def detach(self):
        return Tensor(self.values, device=self.device)


ARRAYS = {
    "float32": np.arange(6, dtype=np.float32).reshape(2, 3),
    "strided": np.arange(24, dtype=np.int16).reshape(4, 6)[::2, ::-2],
    "bool": np.array([True, False]),
    "complex64": np.array([1 + 2j], np.complex64),
    "uint64": np.array([2**63 + 1], np.uint64),
    "float16": np.array([1.5], np.float16),
    "scalar": np.array(7, np.int64),
    "empty": np.zeros((0, 3), np.float64),
}


@pytest.fixture
def client(serve):
    return serve(testing.table("table", max_size=100))


WRITERS = [
    one_step_items.insert,
    one_step_items.insert_batch,
    one_step_items.trajectory,
    one_step_items.batched,
    one_step_items.legacy,
    one_step_items.legacy_sequence,
    one_step_items.sequence,
    one_step_items.patterns,
]


def insert(client, value):
    client.insert({"obs": value}, {"table": 1.0})


def stored(client):
    (sample,) = client.sample("table", 1, emit_timesteps=False)
    return sample.data[0][0]


@pytest.mark.parametrize("write", WRITERS, ids=lambda write: write.__name__)
def test_every_writer_takes_tensors(client, write):
    values = np.arange(6, dtype=np.float32).reshape(2, 3)
    write(client, {"obs": Tensor(values, requires_grad=True)})
    np.testing.assert_array_equal(stored(client), values)


@pytest.mark.parametrize("write", WRITERS, ids=lambda write: write.__name__)
def test_every_writer_refuses_memory_of_a_gpu(client, write):
    text = (
        r"is a tensor on cuda:0; writers take CPU memory. Call .cpu\(\), or .to\(\"cpu\", "
        r"non_blocking=True\) for the whole batch before"
    )
    with pytest.raises(InvalidArgumentError, match=text) as caught:
        write(client, {"obs": Tensor(np.zeros(3), device=(2, 0))})
    assert str(caught.value).startswith("column ")


@pytest.mark.parametrize("name", ARRAYS)
def test_every_type_comes_back(client, name):
    insert(client, Tensor(ARRAYS[name]))
    found = stored(client)
    assert found.dtype == ARRAYS[name].dtype
    np.testing.assert_array_equal(found, ARRAYS[name])


@pytest.mark.parametrize(
    ("device", "name"), [((8, 0), "mps:0"), ((10, 1), "rocm:1"), ((7, 2), "device 2 of kind 7")]
)
def test_the_device_is_named(client, device, name):
    with pytest.raises(InvalidArgumentError, match=f"is a tensor on {name}; writers"):
        insert(client, Tensor(np.zeros(3), device=device))


def test_pinned_memory_is_read(client):
    insert(client, Tensor(np.arange(3.0), device=(3, 0)))
    assert stored(client).tolist() == [0, 1, 2]


def test_the_memory_is_given_back(client):
    """The tensor lives as long as it is read, and no longer."""
    values = np.arange(1000.0)
    watched = weakref.ref(values)
    insert(client, Tensor(values))
    del values
    gc.collect()
    assert watched() is None


@pytest.mark.parametrize(
    "value", [(ctypes.c_double * 2)(1, 2), (ctypes.c_int16 * 3)(4, 5, 6)], ids=["double", "int16"]
)
def test_the_buffer_protocol_will_do(client, value):
    insert(client, value)
    found = stored(client)
    assert found.tolist() == list(value)
    assert found.dtype == np.asarray(value).dtype


class Bits:
    """A tensor of bfloat16: DLPack knows the type, NumPy does not."""

    def __init__(self, bits):
        self.bits = bits

    def __dlpack_device__(self):
        return (1, 0)

    def __dlpack__(self, **_):
        return as_bfloat16(self.bits.__dlpack__(), self.bits.ndim)


def as_bfloat16(capsule, rank):
    """Says of a capsule with a tensor of uint16 that its elements are bfloat16."""

    class Header(ctypes.Structure):
        _fields_ = (
            ("data", ctypes.c_void_p),
            ("device", ctypes.c_int32 * 2),
            ("rank", ctypes.c_int32),
            ("code", ctypes.c_uint8),
            ("bits", ctypes.c_uint8),
            ("lanes", ctypes.c_uint16),
        )

    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
    header = Header.from_address(pointer(capsule, b"dltensor"))
    assert (header.rank, header.code, header.bits) == (rank, 1, 16)
    header.code = 4
    return capsule


def test_bfloat16_by_dlpack(client):
    values = np.array([[1.5, -2.0]]).astype(ml_dtypes.bfloat16)
    insert(client, Bits(values.view(np.uint16)))
    found = stored(client)
    assert found.dtype == ml_dtypes.bfloat16
    assert found.tobytes() == values.tobytes()


def test_what_is_no_tensor_is_refused(client):
    class Wrong(Tensor):
        def __dlpack__(self, **_):
            return "no capsule"

    with pytest.raises(ValueError, match="PyCapsule"):
        insert(client, Wrong(np.zeros(3)))
    with pytest.raises(TypeError, match="datetime64"):
        insert(client, np.zeros(3, "datetime64[s]"))


class TestPriorities:
    def test_keys_and_priorities_may_be_tensors(self, client):
        client.insert_batch([np.arange(4)], {"table": 1.0})
        keys = client.sample_batch("table", 1).info.key
        all_keys = np.array([s.info.key for s in client.scan("table")], np.uint64)
        client.update_priorities(
            "table",
            Tensor(all_keys.view(np.int64)),
            Tensor(np.array([5, 6, 7, 8], np.float32), requires_grad=True),
        )
        assert [s.info.priority for s in client.scan("table")] == [5, 6, 7, 8]
        client.update_priorities("table", keys, 9.0)
        assert next(client.scan("table")).info.priority == 9

    @pytest.mark.parametrize("dtype", [np.int32, np.uint32, np.int16, np.uint8, np.int64])
    def test_any_integer_dtype(self, client, dtype):
        client.update_priorities("table", np.array([1, 2], dtype), np.ones(2))

    def test_a_gpu_is_refused(self, client):
        with pytest.raises(InvalidArgumentError, match="keys is a tensor on cuda:1"):
            client.update_priorities("table", Tensor(np.zeros(2, int), device=(2, 1)), [1.0, 2.0])
