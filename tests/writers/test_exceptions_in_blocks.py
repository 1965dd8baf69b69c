# SPDX-License-Identifier: Apache-2.0
"""Writers whose block an exception leaves: what is flushed, what the log says, what is raised."""

import asyncio
import time

import numpy as np
import pytest

import reverb
from reverb import errors
from reverb._writers import leaving
from support.waiting import DEADLINE_S, Background
from support.writer_kinds import batched, each_of, legacy, sequence, structured, trajectory

# More than one flush after an exception takes, and far less than a wait without a limit.
MANY_SECONDS = DEADLINE_S


WRITERS = [trajectory, batched, sequence, structured, legacy]
# Those that the end of a block leaves open.
STAY_OPEN = [trajectory, structured]

EXCEPTIONS = [KeyError("mine"), RuntimeError("mine"), AssertionError("mine"), StopIteration(1)]
NO_EXCEPTIONS = [
    KeyboardInterrupt("mine"),
    SystemExit(3),
    GeneratorExit("mine"),
    asyncio.CancelledError("mine"),
]


@pytest.fixture(params=WRITERS, ids=lambda it: it.__name__)
def make(request):
    """Makes a writer and what adds an item: `writer, add = make(client, table)`."""
    return request.param


@pytest.fixture
def short_flush(monkeypatch):
    """A flush after an exception takes 0.1 s at most."""
    monkeypatch.setattr(leaving, "FLUSH_TIMEOUT_MS", 100)


def leave(writer, add, error, num_items=1):
    """Leaves a block by `error`, and asserts that the block raises it and nothing else."""
    before = error.__context__

    def block():
        with writer:
            for _ in range(num_items):
                add()
            raise error

    with pytest.raises(type(error)) as caught:
        block()
    assert caught.value is error
    assert error.__context__ is before


def full_queue():
    return reverb.Table.queue("full", 1)


@pytest.mark.parametrize("error", EXCEPTIONS, ids=lambda it: type(it).__name__)
def test_items_are_confirmed_after_an_exception(serve, make, left_writers, error):
    client = serve()
    writer, add = make(client, "table")
    leave(writer, add, error, num_items=3)
    assert client.server_info()["table"].current_size == 3
    assert not left_writers()


@pytest.mark.parametrize("kind", [errors.SignatureMismatchError, errors.FailedPreconditionError])
def test_a_builtin_of_dm_reverb_is_an_exception_like_others(serve, kind):
    client = serve()
    writer, add = trajectory(client)
    leave(writer, add, kind("mine"), num_items=3)
    assert client.size("table") == 3


@pytest.mark.parametrize("error", NO_EXCEPTIONS, ids=lambda it: type(it).__name__)
def test_nothing_is_flushed_after_what_is_no_exception(serve, make, left_writers, until, error):
    client = serve(full_queue())
    writer, add = make(client, "full")
    began = time.monotonic()
    leave(writer, add, error, num_items=3)
    assert time.monotonic() - began < MANY_SECONDS
    until(left_writers)
    (line,) = left_writers()
    assert "items of table full" in line
    assert client.server_address in line


def test_a_blocked_table_holds_an_exception_for_one_flush(
    serve, make, short_flush, left_writers, until, caplog
):
    client = serve(full_queue())
    writer, add = make(client, "full")
    began = time.monotonic()
    leave(writer, add, KeyError("mine"), num_items=3)
    assert 0.1 <= time.monotonic() - began < MANY_SECONDS
    until(left_writers)
    assert left_writers() == [
        "a writer was left with items of table full that "
        f"{client.server_address} has not confirmed: an exception left its block."
    ]
    assert [record.items for record in caplog.records if hasattr(record, "items")] == [2]


def test_a_flush_after_an_exception_takes_2_s_at_most():
    assert leaving.FLUSH_TIMEOUT_MS == 2_000


def test_the_lines_name_all_tables(serve, left_writers, until):
    client = serve(full_queue(), reverb.Table.queue("other", 1))
    writer = client.trajectory_writer(1)

    def add():
        writer.append([1])
        for table in ["full", "full", "other"]:
            writer.create_item(table, 1.0, [writer.history[0][-1:]])

    leave(writer, add, KeyboardInterrupt(), num_items=5)
    until(left_writers)
    assert "of tables full, other that" in left_writers()[0]


def test_items_that_are_confirmed_within_2_s_are_not_told(serve, make, left_writers):
    client = serve(full_queue())
    writer, add = make(client, "full")
    leaving = Background(leave, writer, add, KeyError("mine"), 3)
    assert len(list(client.sample("full", 3))) == 3
    leaving.result()
    assert not left_writers()


@pytest.mark.parametrize("error", [reverb.ReverbError("x"), reverb.DeadlineExceededError("x")])
def test_a_reverb_error_is_raised_without_a_flush(serve, left_writers, error):
    client = serve(full_queue())
    for make in (trajectory, structured):  # They stay open.
        writer, add = make(client, "full")
        leave(writer, add, error, num_items=3)
        error.__context__ = None
    assert not left_writers()


@each_of(batched, sequence)
def test_what_a_reverb_error_abandons_is_counted(serve, make, left_writers, until):
    writer, add = make(serve(full_queue()), "full")
    leave(writer, add, reverb.ReverbError("x"), num_items=3)
    until(left_writers)


@each_of(trajectory, batched, structured, legacy)
def test_an_error_of_the_writer_itself_is_the_one_raised(serve, make):
    client = serve()
    writer, add = make(client, "no such table")

    def block():
        with writer:
            add()
            writer.flush()

    with pytest.raises(errors.TableNotFoundError) as caught:
        block()
    assert caught.value.__context__ is None


def test_a_server_that_stopped_in_the_block_masks_nothing(start, connect, make, short_flush):
    server = start()
    writer, add = make(connect(server), "table")

    def add_and_stop():
        add()
        server.stop()
        add()

    began = time.monotonic()
    leave(writer, add_and_stop, KeyError("mine"))
    assert time.monotonic() - began < MANY_SECONDS


def test_a_server_that_stopped_for_good_masks_nothing(
    start, connect, make, short_flush, left_writers, until
):
    server = start()
    writer, add = make(connect(server, connect_timeout_s=0.5), "table")

    def add_and_stop():
        add()
        server.stop()
        add()

    leave(writer, add_and_stop, KeyError("mine"))
    until(left_writers)
    assert "of table table that" in left_writers()[0]


def test_an_exception_in_an_append_that_blocks(serve, short_flush, left_writers, until):
    client = serve(full_queue())
    writer = client.trajectory_writer(1, max_pending_bytes="64KiB")

    def add():
        for step in range(100):
            if step == 50:
                raise KeyError("mine")
            writer.append([np.random.default_rng(step).integers(0, 256, 4000, np.uint8)])
            writer.create_item("full", 1.0, [writer.history[0][-1:]])

    def block():
        with writer:
            add()

    blocked = Background(block)
    until(lambda: client.status().tables["full"].inserting.waiting)
    assert len(list(client.sample("full", 30))) == 30
    assert blocked.running
    # The writer now ends the block while items still wait.
    assert len(list(client.sample("full", 15))) == 15
    with pytest.raises(KeyError, match="mine"):
        blocked.result()
    until(left_writers)
    assert "of table full" in left_writers()[0]


def test_the_end_of_a_block_after_an_exception(serve, make):
    """Trajectory and structured writers stay open, as in dm-reverb; the others are closed."""
    writer, add = make(serve(), "table")
    leave(writer, add, KeyError("mine"))
    if make in STAY_OPEN:
        add()
        writer.flush()
    else:
        with pytest.raises(errors.FailedPreconditionError, match="closed"):
            add()


def test_a_structured_writer_has_a_block(serve):
    client = serve()
    writer, add = structured(client, "table")
    with writer as entered:
        add()
    assert entered is writer
    assert client.server_info()["table"].current_size == 1
