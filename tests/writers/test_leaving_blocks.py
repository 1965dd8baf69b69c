# SPDX-License-Identifier: Apache-2.0
"""Writers at the end of their `with` block: those that were closed in it have nothing to do."""

import pytest

from reverb import errors
from support.writer_kinds import batched, each_of, legacy, sequence, trajectory

every_writer = each_of(trajectory, batched, sequence, legacy)


@every_writer
def test_a_writer_that_was_closed_in_its_block_leaves_it(serve, make):
    client = serve()
    for num_items in (1, 0):
        writer, add = make(client)
        with writer:
            for _ in range(num_items):
                add()
            writer.close()


@every_writer
def test_an_error_after_close_is_the_one_that_is_raised(serve, make):
    client = serve()
    error = KeyError("the body")

    writer, add = make(client)

    def block():
        with writer:
            add()
            writer.close()
            raise error

    with pytest.raises(KeyError) as caught:
        block()
    assert caught.value is error


@every_writer
def test_a_call_after_close_raises_what_it_raises_elsewhere(serve, make):
    client = serve()

    def block():
        writer, add = make(client)
        with writer:
            writer.close()
            add()

    writer, add = make(client)
    writer.close()
    with pytest.raises(errors.FailedPreconditionError) as outside:
        add()
    with pytest.raises(errors.FailedPreconditionError) as inside:
        block()
    assert str(inside.value) == str(outside.value)
    assert inside.value.__context__ is None, "the block had nothing to say of its own"


@each_of(trajectory, batched, sequence)
def test_a_writer_that_failed_and_was_closed_leaves_its_block(start, connect, make):
    server = start()
    writer, add = make(connect(server, connect_timeout_s=0.2))
    with writer:
        server.stop()
        add()
        with pytest.raises(errors.UnavailableError):
            writer.flush()
        writer.close(flush=False)
