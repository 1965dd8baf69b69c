# SPDX-License-Identifier: Apache-2.0
"""Items whose numbers are false, read by datasets: an error, and no memory for what is absent."""

import numpy as np
import pytest
import tensorflow as tf

import reverb
from support.wire import messages
from support.wire.scripted_server import ScriptedServer

FAMILIES = [reverb.TrajectoryDataset, reverb.TimestepDataset]
# A step of this many bytes in each item of a batch is more than is taken without a look.
LARGE_STEP = 20 << 20
BATCH = 4


def entry(key, shape, num_bytes, steps=1):
    """An item of one column whose chunk claims this shape of uint8, and holds so many bytes."""
    chunk = messages.chunk(key, np.zeros((1, num_bytes), np.uint8))
    dims = chunk.data.tensors[0].tensor_shape.dim
    del dims[:]
    for size in shape:
        dims.add(size=size)
    made = messages.item(key, "t", (key, 0, steps, 0))
    return messages.entry(messages.sample_info(made), [chunk])


@pytest.fixture
def serve_entries():
    """Starts servers that answer with given items and then go on with the last one."""
    servers = []

    def serve(*entries):
        server = ScriptedServer("t")

        def answer(requests, context):
            sent = 0
            for request in requests:
                for _ in range(request.num_samples):
                    yield messages.response(entries[min(sent, len(entries) - 1)])
                    sent += 1

        server.on_sample = answer
        servers.append(server)
        return server.address

    yield serve
    for server in servers:
        server.stop()


def dataset(address, family, shape, **options):
    step = list(shape) if family is reverb.TimestepDataset else [None, *shape]
    options = {"max_in_flight_samples_per_worker": BATCH} | options
    return family(address, "t", [tf.uint8], [tf.TensorShape(step)], **options)


HOSTILE = {
    "a step of a terabyte": ([1, 2**40], 4),
    "no room for the size of all": ([1, 2**31, 2**31, 2**31], 4),
    "more steps than bytes": ([2**40, 4], 4),
}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("batch_size", [None, BATCH])
@pytest.mark.parametrize("kind", HOSTILE)
def test_an_item_that_claims_too_much_is_an_error(serve_entries, family, batch_size, kind):
    shape, num_bytes = HOSTILE[kind]
    steps = min(shape[0], 2**31 - 1)
    address = serve_entries(entry(1, shape, num_bytes, steps))
    step = [None] * (len(shape) - 1)
    elements = dataset(address, family, step, batch_size=batch_size)
    with pytest.raises((tf.errors.DataLossError, tf.errors.InvalidArgumentError)):
        next(iter(elements))


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("place", [1, BATCH - 1])
def test_a_lie_behind_a_large_item(serve_entries, family, place):
    good = entry(1, [1, LARGE_STEP], LARGE_STEP)
    lie = entry(2, [1, LARGE_STEP], 4)
    address = serve_entries(*[good] * place, lie)
    with pytest.raises(tf.errors.DataLossError, match="shorter or longer than its shape says"):
        next(iter(dataset(address, family, [LARGE_STEP], batch_size=BATCH)))


@pytest.mark.parametrize("family", FAMILIES)
def test_large_items_that_differ_are_told(serve_entries, family):
    """The items before the one that differs are whole, and come, unless a batch is asked for."""
    good = entry(1, [1, LARGE_STEP], LARGE_STEP)
    other = entry(2, [1, LARGE_STEP - 1], LARGE_STEP - 1)
    address = serve_entries(good, good, good, other)
    elements = dataset(address, family, [None], batch_size=BATCH)
    with pytest.raises(tf.errors.InvalidArgumentError):
        next(iter(elements))
    elements = iter(dataset(address, family, [None]))
    sizes = [int(tf.size(next(elements).data[0])) for _ in range(BATCH)]
    assert sizes == [LARGE_STEP] * (BATCH - 1) + [LARGE_STEP - 1]
