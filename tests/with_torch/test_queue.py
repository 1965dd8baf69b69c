# SPDX-License-Identifier: Apache-2.0
"""Tensors in the items of a `reverb.adapters.queue.Queue`."""

import collections

import pytest
import torch

from reverb import Table
from reverb.adapters.queue import Queue

Point = collections.namedtuple("Point", "x y")
DTYPES = [
    torch.bool,
    torch.uint8,
    torch.int64,
    torch.float16,
    torch.bfloat16,
    torch.float8_e4m3fn,
    torch.float64,
    torch.complex64,
]


@pytest.fixture
def values(serve):
    return Queue(serve(Table.queue("queue", 100)), "queue")


def same(one, other):
    return (one.dtype, one.shape) == (other.dtype, other.shape) and one.contiguous().view(
        -1
    ).tolist() == other.contiguous().view(-1).tolist()


@pytest.mark.parametrize("shape", [(), (0,), (3, 2)])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_tensors_come_back_as_they_were(values, monkeypatch, dtype, shape):
    def refuse(*_, **__):
        raise AssertionError("pickle was used")

    tensor = torch.arange(6).reshape(3, 2).to(dtype)[tuple(slice(it) for it in shape) or (1, 1)]
    with monkeypatch.context() as patch:
        patch.setattr("reverb.adapters.queue_values.pickle.loads", refuse)
        values.put({"a": [tensor, (tensor.transpose(0, -1),)]})
        got = values.get()
    assert same(got["a"][0], tensor)
    assert same(got["a"][1][0], tensor.transpose(0, -1))
    got["a"][0].fill_(1)  # It is the getter's own.


def test_tensors_in_objects_are_not_copied_into_a_pickle(values):
    tensor = torch.arange(100_000)
    values.put(Point(tensor, [tensor.bfloat16()]))
    (item,) = values._client.scan("queue")
    sizes = sorted(column.nbytes for column in item.data)
    assert sizes[-2:] == [200_000, 800_000]
    assert sum(sizes[:-2]) < 1000
    got = values.get()
    assert type(got) is Point
    assert same(got.x, tensor)
    assert same(got.y[0], tensor.bfloat16())


def test_other_tensors_are_pickled(values):
    parameter = torch.nn.Parameter(torch.ones(3))
    tensors = [
        parameter,
        torch.ones(3, requires_grad=True),
        torch.ones(3).to_sparse(),
        torch.ones(3, dtype=torch.complex64).conj(),
        torch.ones(3, device="meta"),
    ]
    for tensor in tensors:
        values.put(tensor)
        got = values.get()
        assert type(got) is type(tensor)
        assert (got.device, got.layout) == (tensor.device, tensor.layout)
        assert got.requires_grad == tensor.requires_grad
        if tensor.device.type == "cpu":
            assert torch.equal(got.to_dense().resolve_conj(), tensor.to_dense().resolve_conj())
