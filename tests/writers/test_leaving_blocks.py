# SPDX-License-Identifier: Apache-2.0
"""Writers at the end of their `with` block: those that were closed in it have nothing to do."""

import threading

import numpy as np
import pytest

import reverb
from reverb import errors, testing


def add_trajectory(writer):
    writer.append([1])
    writer.create_item("table", 1.0, [writer.history[0][-1:]])


def add_batched(writer):
    writer.append([np.arange(2)])
    writer.create_items("table", 1.0, [writer.history[0][-1:]])


def add_legacy(writer):
    writer.append([1])
    writer.create_item("table", 1, 1.0)


# How a writer is made, what makes an item, and what a closed one refuses.
WRITERS = {
    "trajectory": (
        lambda client: client.trajectory_writer(1),
        add_trajectory,
        lambda writer: writer.end_episode(),
    ),
    "batched": (
        lambda client: client.batched_trajectory_writer(2, 1),
        add_batched,
        lambda writer: writer.end_episode(),
    ),
    "sequence": (
        lambda client: client.sequence_writer("table", 1),
        lambda writer: writer.append([1]),
        lambda writer: writer.end_episode(),
    ),
    "legacy": (
        lambda client: client.writer(1, chunk_length=1),
        add_legacy,
        lambda writer: writer.append([1]),
    ),
}

every_writer = pytest.mark.parametrize(
    ("make", "add", "refused"), WRITERS.values(), ids=WRITERS.keys()
)


@every_writer
def test_a_writer_that_was_closed_in_its_block_leaves_it(serve, make, add, refused):
    client = serve()
    with make(client) as writer:
        add(writer)
        writer.close()
    with make(client) as writer:  # Without any item.
        writer.close()


@every_writer
def test_an_error_after_close_is_the_one_that_is_raised(serve, make, add, refused):
    client = serve()
    error = KeyError("the body")

    def block():
        with make(client) as writer:
            add(writer)
            writer.close()
            raise error

    with pytest.raises(KeyError) as caught:
        block()
    assert caught.value is error


@every_writer
def test_a_call_after_close_raises_what_it_raises_elsewhere(serve, make, add, refused):
    client = serve()

    def block():
        with make(client) as writer:
            writer.close()
            refused(writer)

    writer = make(client)
    writer.close()
    with pytest.raises(errors.FailedPreconditionError) as outside:
        refused(writer)
    with pytest.raises(errors.FailedPreconditionError) as inside:
        block()
    assert str(inside.value) == str(outside.value)
    assert inside.value.__context__ is None, "the block had nothing to say of its own"


@pytest.mark.parametrize("name", ["trajectory", "batched", "sequence"])
def test_a_close_without_flush_abandons_what_waits(serve, name):
    make, add, _ = WRITERS[name]
    client = serve(reverb.Table.queue("table", 1))
    with make(client) as writer:
        for _ in range(3):
            add(writer)
        writer.close(flush=False)  # A flush would wait for ever.


@pytest.mark.parametrize("name", ["trajectory", "batched", "sequence"])
def test_a_writer_that_another_thread_closed_leaves_its_block(serve, name):
    make, add, _ = WRITERS[name]
    with make(serve()) as writer:
        add(writer)
        closing = threading.Thread(target=writer.close)
        closing.start()
        closing.join()


@pytest.mark.parametrize("name", ["trajectory", "batched", "sequence"])
def test_a_writer_that_failed_and_was_closed_leaves_its_block(start, connect, name):
    make, add, _ = WRITERS[name]
    server = start()
    with make(connect(server, connect_timeout_s=0.2)) as writer:
        server.stop()
        add(writer)
        with pytest.raises(errors.UnavailableError):
            writer.flush()
        writer.close(flush=False)


@every_writer
def test_a_writer_that_was_not_closed_flushes(serve, make, add, refused):
    client = serve(testing.table())
    with make(client) as writer:
        add(writer)
    assert client.server_info()["table"].current_size > 0
