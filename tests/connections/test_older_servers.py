# SPDX-License-Identifier: Apache-2.0
"""Before servers that do not know what is new, such as dm-reverb's: an error, not half of it."""

import contextlib
import re

import numpy as np
import pytest

import reverb
from reverb import testing
from reverb.cluster.shard_calls import move_items
from reverb.errors import UnimplementedError
from support.wire.scripted_server import ScriptedServer

STEP = np.int64(0)


@pytest.fixture
def server():
    """A server that announces nothing, with a table `t`."""
    server = ScriptedServer("t")
    yield server
    server.stop()


@pytest.fixture
def client(server):
    return reverb.Client(server.address)


def refused(server, what, instead=""):
    """The text of the error."""
    text = (
        f"Server {server.address} (dm-reverb, or older) does not know {what}; start "
        f"reverb_server >= {reverb.__version__}{instead}."
    )
    return pytest.raises(UnimplementedError, match=re.escape(text))


def test_steps_with_the_largest_priority(server, client):
    """Such a server would give them the priority 1."""
    instead = ", or give a number as the priority"
    with refused(server, "MAX_PRIORITY", instead):
        client.insert(STEP, {"t": reverb.MAX_PRIORITY})
    with refused(server, "MAX_PRIORITY", instead):
        client.insert_batch(np.arange(3), {"t": [1.0, reverb.MAX_PRIORITY, 2.0]})
    assert not any(request.items for request in server.received)
    client.insert(STEP, {"t": 2.0})
    assert [item.priority for it in server.received for item in it.items] == [2.0]


def test_steps_with_a_removal_priority(server, client):
    with refused(server, "removal priorities"):
        client.insert(STEP, {"t": 1.0}, removal_priorities={"t": 2.0})
    with refused(server, "removal priorities"):
        client.insert_batch(np.arange(2), {"t": 1.0}, removal_priorities={"t": 2.0})
    assert not any(request.items for request in server.received)


def whole_steps(client, priority, removal):
    writer = client.writer(max_sequence_length=1)
    writer.append(STEP)
    writer.create_item("t", 1, priority, removal_priority=removal)
    return writer


def trajectories(client, priority, removal, **options):
    writer = client.trajectory_writer(num_keep_alive_refs=1, **options)
    writer.append(STEP)
    writer.create_item("t", priority, writer.history[-1:], removal_priority=removal)
    return writer


def trajectories_without_validation(client, priority, removal):
    return trajectories(client, priority, removal, validate_items=False)


def batched_trajectories(client, priority, removal):
    writer = client.batched_trajectory_writer(batch_size=2, num_keep_alive_refs=1)
    writer.append(np.arange(2))
    writer.create_items("t", priority, writer.history[-1:], removal_priorities=removal)
    return writer


def sequences(client, priority, removal):
    writer = client.sequence_writer("t", sequence_length=1)
    writer.append(STEP, priorities=priority, removal_priorities=removal)
    return writer


def patterns(client, priority, removal):
    from reverb import structured_writer as structured

    config = structured.create_config(
        structured.pattern_from_transform(STEP, lambda ref: ref[-1:]),
        "t",
        priority=structured.constant_priority_fn(priority),
        removal_priority=None if removal is None else structured.constant_priority_fn(removal),
    )
    writer = client.structured_writer([config])
    writer.append(STEP)
    return writer


@pytest.mark.parametrize(
    "write",
    [
        whole_steps,
        trajectories,
        trajectories_without_validation,
        batched_trajectories,
        sequences,
        patterns,
    ],
)
@pytest.mark.parametrize(
    ("priority", "removal", "what", "instead"),
    [
        (reverb.MAX_PRIORITY, None, "MAX_PRIORITY", ", or give a number as the priority"),
        (1.0, 3.0, "removal priorities", ""),
    ],
    ids=["largest", "removal"],
)
def test_writers(server, client, write, priority, removal, what, instead):
    writer = write(client, priority, removal)
    with refused(server, what, instead):
        # The writer of whole steps only begins to send.
        for _ in range(2):
            writer.flush()
    assert not any(request.items for request in server.received)
    # One of patterns is closed by its deletion.
    with contextlib.suppress(UnimplementedError):
        getattr(writer, "close", lambda: None)()


def test_items_that_move_to_such_a_shard_with_a_removal_priority(server, client):
    """It would forget the priorities, and remove other items than the shard they came from."""
    with testing.server([testing.table("t")]) as source:
        source.insert(STEP, {"t": 1.0}, removal_priorities={"t": 2.0})
        with refused(server, "removal priorities"):
            move_items(source, client, "t", ())
        assert source.server_info()["t"].current_size == 1


async def test_calls_of_asyncio_programs(server):
    """`reverb.aio` asks as the blocking client does."""
    async with reverb.aio.Client(server.address) as client:
        with refused(server, "MAX_PRIORITY", ", or give a number as the priority"):
            await client.insert(STEP, {"t": reverb.MAX_PRIORITY})
        with refused(server, "removal priorities"):
            await client.insert(STEP, {"t": 1.0}, removal_priorities={"t": 2.0})
        with refused(server, "removal priorities"):
            await client.insert_batch(np.arange(2), {"t": 1.0}, removal_priorities={"t": 2.0})
        with refused(server, "batches without repetition (distinct)"):
            await client.sample_batch("t", 2, distinct=True)
        writer = await client.trajectory_writer(num_keep_alive_refs=1)
        writer.append(STEP)
        await writer.create_item("t", 1.0, writer.history[-1:], removal_priority=3.0)
        with refused(server, "removal priorities"):
            await writer.flush()
        await writer.close(flush=False)
        sequences = await client.sequence_writer("t", 1)
        with refused(server, "removal priorities"):
            await sequences.append(STEP, removal_priorities=3.0)
            await sequences.flush()
        await sequences.close(flush=False)
    assert not any(request.items for request in server.received)


def test_a_batch_without_repetition(server, client):
    with refused(server, "batches without repetition (distinct)"):
        client.sample_batch("t", 2, distinct=True)


WINDOW = reverb.Window(3)


@pytest.mark.parametrize(
    "read",
    [
        lambda client: client.sample_batch("t", 2, window=WINDOW),
        lambda client: next(client.batch_sampler("t", 2, window=WINDOW)),
        lambda client: next(client.batches("t", 2, window=WINDOW)),
        lambda client: next(reverb.batches(client, {"t": 0.5, "u": 0.5}, 2, window=WINDOW)),
        lambda client: next(client.batches("t", 2, window=WINDOW, transform=lambda it: it)),
        lambda client: next(client.batches("t", 2, window=WINDOW, end_after_ms=1_000)),
        lambda client: next(client.sample("t", 2, emit_timesteps=False, window=WINDOW)),
    ],
    ids=["batch", "sampler", "core", "mixture", "thread", "end", "items"],
)
def test_windows(server, client, read):
    """Such a server would send whole items."""
    with pytest.raises(UnimplementedError, match=r"\(dm-reverb, or older\) does not know windows;"):
        read(client)


def test_items_that_replace_others(server, client):
    """Such a server would keep the old data; keys it knows."""
    what = "items that replace others (replace=True)"
    with refused(server, what):
        client.insert_batch(np.arange(2), {"t": 1.0}, keys=[1, 2], replace=True)
    with refused(server, what):
        client.insert_sequence(np.arange(2), {"t": 1.0}, key=1, replace=True)
    assert not any(request.items for request in server.received)
    client.insert_batch(np.arange(2), {"t": 1.0}, keys=[1, 2])
    assert [item.key for it in server.received for item in it.items] == [1, 2]


def test_a_program_can_ask_before(server, client):
    assert client.capabilities() == frozenset()
    with testing.server([testing.table("t")]) as new:
        known = new.capabilities()
        assert {"windows", "distinct", "chosen_items"} <= known
        assert reverb.Client(f"shards:///{new.server_address}").capabilities() == known


@pytest.mark.parametrize("options", [{}, {"transform": lambda it: it}], ids=["core", "thread"])
async def test_windows_of_asyncio_programs(server, options):
    async with reverb.aio.Client(server.address) as client:
        with refused(server, "windows"):
            await client.sample_batch("t", 2, window=WINDOW)
        with refused(server, "windows"):
            await anext(client.batch_sampler("t", 2, window=WINDOW))
        with refused(server, "windows"):
            await anext(client.sample("t", 2, emit_timesteps=False, window=WINDOW))
        text = "does not know windows; start reverb_server"
        async with client.batches("t", 2, window=WINDOW, **options) as batches:
            with pytest.raises(UnimplementedError, match=text):
                await anext(batches)


def test_another_draw_of_a_sampler(server, client):
    with refused(server, "selectors beyond dm-reverb's"):
        client.configure_table("t", sampler=reverb.selectors.Prioritized(1.0, draw="stratified"))


def test_settings_of_rollouts(server, client):
    with refused(server, "rollouts"):
        client.configure_table("t", rollouts=reverb.Rollouts(2, item=()))


async def test_items_that_are_chosen_by_key_or_condition(server, client):
    """Such a server would ignore the choice, and send all items."""
    where = reverb.Where(priority=(1, None))
    choice = "a choice of items (fetch, scan with columns or where)"
    for call in (
        lambda: client.fetch("t", [1]),
        lambda: next(client.scan("t", where=where)),
        lambda: next(client.scan("t", columns=[0])),
    ):
        with refused(server, choice):
            call()
    text = "does not delete items by a condition, or report how many it deleted: it is a server of"
    for arguments in ({"keys": [1]}, {"where": where}):
        with pytest.raises(UnimplementedError, match=text):
            client.delete_items("t", **arguments)
    async with reverb.aio.Client(server.address) as client:
        with refused(server, choice):
            await client.fetch("t", [1])
        with pytest.raises(UnimplementedError, match=text):
            await client.delete_items("t", [1])
