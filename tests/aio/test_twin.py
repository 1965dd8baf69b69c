# SPDX-License-Identifier: Apache-2.0
"""Every call of `reverb.aio.Client` does what that of `reverb.Client` does."""

import asyncio
import copy
import inspect
import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import reverb
from reverb import aio, errors
from support.aio_tables import tables


def test_every_public_name_has_its_twin():
    ours = {name for name in vars(aio.Client) if not name.startswith("_")}
    theirs = {name for name in vars(reverb.Client) if not name.startswith("_")}
    # Writers of dm-reverb whose every call may block.
    assert ours == theirs - {"structured_writer", "writer"}


METHODS = sorted(
    name
    for name, value in vars(aio.Client).items()
    if not name.startswith("_") and callable(value) and name != "close"
)


@pytest.mark.parametrize("name", METHODS)
def test_arguments_are_those_of_the_twin(name):
    twin = getattr(reverb.Client, name)
    ours, theirs = (inspect.signature(it).parameters for it in (getattr(aio.Client, name), twin))
    assert [(it.name, it.kind, it.default) for it in ours.values()] == [
        (it.name, it.kind, it.default) for it in theirs.values()
    ]


def test_calls_are_coroutines_and_the_rest_is_awaited_in_parts():
    coroutines = {name for name in METHODS if inspect.iscoroutinefunction(vars(aio.Client)[name])}
    assert set(METHODS) - coroutines == {
        "batch_sampler",
        "batches",
        "batched_trajectory_writer",
        "open_item",
        "rate_limiter_off",
        "sample",
        "scan",
        "sequence_writer",
        "trajectory_writer",
    }
    assert not {
        name for name in METHODS if inspect.iscoroutinefunction(getattr(reverb.Client, name))
    }


def test_options_of_the_constructor_are_those_of_the_twin():
    assert inspect.signature(aio.Client.__init__) == inspect.signature(reverb.Client.__init__)


async def test_calls(client):
    await client.insert([np.zeros(2), 1.0], {"table": 2.0, "queue": 1.0})
    await client.insert_batch([np.ones((3, 2)), np.arange(3.0)], {"table": [1.0, 2.0, 3.0]})
    batch = await client.sample_batch("table", 2)
    assert batch.data[0].shape == (2, 1, 2)
    assert (await client.sample_batch("queue", 1)).info.priority.tolist() == [1.0]
    steps = [steps async for steps in client.sample("table", 3)]
    assert [len(it) for it in steps] == [1, 1, 1]
    assert steps[0][0].data[1].shape == ()
    scanned = [item async for item in client.scan("table")]
    assert [float(item.data[1][0]) for item in scanned] == [1.0, 0.0, 1.0, 2.0]
    keys = [item.info.key for item in scanned]
    await client.update_priorities("table", keys[:2], [7.0, 8.0])
    await client.mutate_priorities("table", updates={keys[2]: 9.0}, deletes=[keys[3]])
    scanned = [item async for item in client.scan("table")]
    assert [item.info.priority for item in scanned] == [7.0, 8.0, 9.0]
    where = reverb.Where(priority=(8, None))
    chosen = [item async for item in client.scan("table", where=where, columns=[1])]
    assert [item.data[0].tolist() for item in chosen] == [[0.0], [1.0]]
    fetched = await client.fetch("table", keys[::-1])
    assert fetched.info.key.tolist() == keys[2::-1]
    assert (await client.fetch("table", [1])).data == []
    await client.insert_batch([np.ones((2, 2)), np.arange(2.0)], {"table": 20.0})
    assert await client.delete_items("table", where=reverb.Where(priority=(20, None))) == 2
    assert await client.delete_items("table", [1]) == 0
    info = await client.server_info()
    assert info["table"].current_size == 3
    assert (await client.status()).tables["table"].items == 3
    assert (await client.diagnose("table")).state
    assert (await client.configure_table("table", max_size=2)).max_size == 2
    changes = await client.configure_tables({"table": reverb.TableChange(max_size=3)})
    assert len(changes) == 1
    await client.pause_table("table")
    with pytest.raises(errors.DeadlineExceededError, match="paused"):
        await client.sample_batch("table", 1, timeout_ms=10)
    await client.resume_table("table")
    async with client.rate_limiter_off("queue"):
        await client.insert([np.zeros(2), 1.0], {"queue": 1.0})
    await client.reset("table")
    assert (await client.server_info(timeout=5))["table"].current_size == 0
    assert await client.directory() is None
    with pytest.raises(errors.InvalidArgumentError, match="shards:///"):
        await client.shard_info()


async def test_trajectory_writer(client):
    async with client.trajectory_writer(3) as writer:
        for step in range(5):
            writer.append({"a": np.full(2, step), "b": step})
            if step >= 2:
                history = writer.history
                await writer.create_item(
                    "table", step, {"a": history["a"][-3:], "b": history["b"][-1]}
                )
        await writer.flush()
        assert writer.episode_steps == 5
        await writer.end_episode()
        assert writer.episode_steps == 0
    writer = await client.trajectory_writer(1, validate_items=False)
    writer.append([1.0])
    await writer.create_item("queue", 1.0, [writer.history[0][-1:]])
    await writer.flush(timeout_ms=10_000)
    await writer.close()
    with pytest.raises(errors.FailedPreconditionError, match="closed"):
        writer.append([1.0])
    batch = await client.sample_batch("table", 3)
    assert batch.data[0][:, 0, 0].tolist() == [0, 0, 0]
    assert (await client.server_info())["queue"].current_size == 1


async def test_out_columns_and_padding_are_as_in_the_twin(client, watcher):
    with watcher.trajectory_writer(4) as writer:
        for step in range(4):
            writer.append([np.full(2, step, np.float32), step])
            for table in ("table", "queue"):
                writer.create_item(table, 1.0, [writer.history[0][:], writer.history[1][-1]])
    batch = await client.sample_batch("table", 4, ragged="pad", pad=-1, pad_to_multiple_of=8)
    twin = watcher.sample_batch("table", 4, ragged="pad", pad=-1, pad_to_multiple_of=8)
    assert batch.lengths[1].tolist() == [1, 1, 1, 1]
    np.testing.assert_array_equal(batch.data[0], twin.data[0])
    np.testing.assert_array_equal(batch.lengths[0], twin.lengths[0])
    packed = await client.sample_batch("table", 2, ragged="packed", columns=[0])
    assert len(packed.data) == 1
    out = np.zeros((1, 1, 2), np.float32)
    batch = await client.sample_batch("table", 1, columns=[0], out=[out])
    assert batch.data[0] is out
    with pytest.raises(errors.InvalidArgumentError) as raised:
        await client.sample_batch("table", 2, out=[np.zeros((2, 1, 2)), np.zeros(2, int)])
    assert len(raised.value.keys) == 2
    with pytest.raises(errors.InvalidArgumentError, match="batch_size must be at least 1"):
        await client.sample_batch("table", 0)


async def test_data_is_nested_as_the_signature(start):
    signature = {"x": reverb.specs.TensorSpec((1, 2), np.float64)}
    server = start(reverb.Table.queue("nested", 10, signature=signature))
    async with aio.Client(f"localhost:{server.port}") as client:
        await client.insert_batch({"x": np.zeros((2, 2))}, {"nested": 1.0})
        batch = await client.sample_batch("nested", 1, unpack_as_table_signature=True)
        assert batch.data["x"].shape == (1, 1, 2)
        async for item in client.sample(
            "nested", 1, emit_timesteps=False, unpack_as_table_signature=True
        ):
            assert item.data["x"].shape == (1, 2)
        with pytest.raises(errors.TableNotFoundError, match="Found: nested"):
            await client.sample_batch("other", 1, columns=["x"])
        with pytest.raises(errors.SignatureMismatchError):
            await client.insert({"x": np.zeros(3)}, {"nested": 1.0})


async def awaited(client, name, *args, **kwargs):
    answer = getattr(client, name)(*args, **kwargs)
    if hasattr(answer, "__aiter__"):
        return [it async for it in answer]
    return await answer


@pytest.mark.parametrize(
    ("name", "args"),
    [
        ("insert", ([1.0], {})),
        ("insert", ([1.0], {"no": 1.0})),
        ("insert", ([1.0], {"table": float("nan")})),
        ("insert_batch", ([np.ones(2), np.ones(3)], {"table": 1.0})),
        ("insert_batch", ([], {"table": 1.0})),
        ("sample_batch", ("no", 1)),
        ("sample_batch", ("table", -1)),
        ("sample", ("no",)),
        ("sample", ("table", 0)),
        ("scan", ("no",)),
        ("fetch", ("no", [])),
        ("fetch", ("table", [1.5])),
        ("delete_items", ("no", [])),
        ("delete_items", ("table",)),
        ("mutate_priorities", ("no",)),
        ("mutate_priorities", ("table", {-(2**63) - 1: 1.0})),
        ("update_priorities", ("table", [1.5], [1.0])),
        ("update_priorities", ("table", [1], [1.0, 2.0])),
        ("reset", ("no",)),
        ("diagnose", ("no",)),
        ("server_info", (1.5,)),
        ("configure_table", ("no",)),
        ("pause_table", ("no",)),
        ("drain", (-1.0,)),
    ],
)
async def test_errors_are_those_of_the_twin(client, watcher, name, args):

    def blocking():
        answer = getattr(watcher, name)(*args)
        return list(answer) if inspect.isgenerator(answer) else answer

    with pytest.raises((errors.ReverbError, TypeError)) as theirs:
        blocking()
    with pytest.raises(type(theirs.value)) as ours:
        await awaited(client, name, *args)
    assert str(ours.value) == str(theirs.value)


def test_pickles_and_copies_are_clients():
    client = aio.Client("localhost:1", connect_timeout_s=5.0)
    for other in (pickle.loads(pickle.dumps(client)), copy.copy(client), copy.deepcopy(client)):
        assert type(other) is aio.Client
        assert other.server_address == "localhost:1"
        assert pickle.dumps(other) == pickle.dumps(client)
    assert "localhost:1" in repr(client)


# An operation of a random program: a call, and its arguments.
CALLS = st.one_of(
    st.tuples(st.just("insert"), st.integers(0, 9), st.sampled_from(["table", "queue"])),
    st.tuples(st.just("insert_batch"), st.integers(1, 5), st.sampled_from(["table"])),
    st.tuples(st.just("update"), st.integers(0, 30), st.integers(0, 9)),
    st.tuples(st.just("delete"), st.integers(0, 30), st.just(0)),
    st.tuples(st.just("sample_batch"), st.integers(1, 4), st.sampled_from(["table", "queue"])),
    st.tuples(st.just("sample"), st.integers(1, 4), st.just("table")),
    st.tuples(st.just("reset"), st.just(0), st.sampled_from(["table", "queue"])),
)


def steps_of(program, keys):
    """The program as calls: a name, arguments, and options."""
    for name, number, other in program:
        if name == "insert":
            yield name, ([float(number)], {other: float(number)}), {}
        elif name == "insert_batch":
            yield name, ([np.arange(float(number))], {other: np.arange(float(number))}), {}
        elif name in ("update", "delete"):
            known = keys()
            if not known:
                continue
            key = known[number % len(known)]
            yield (
                "mutate_priorities",
                ("table",),
                {"updates": {key: other}} if name == "update" else {"deletes": [key]},
            )
        elif name == "reset":
            yield name, (other,), {}
        else:
            yield name, (other, number), {"timeout_ms": 0}


def outcome(answer):
    """The result of a call, without its keys."""
    if isinstance(answer, reverb.ReplaySample):
        return answer.data[0].tolist(), answer.info.priority.tolist()
    if isinstance(answer, list):
        return [[step.data[0].tolist() for step in item] for item in answer]
    if isinstance(answer, dict):
        return {table: len(keys) for table, keys in answer.items()}
    return answer


@settings(max_examples=60)
@given(st.lists(CALLS, max_size=25))
def test_the_same_program_gives_the_same_tables(program):
    servers = [reverb.Server(tables()) for _ in range(2)]
    clients = [reverb.Client(f"localhost:{server.port}") for server in servers]
    twin = clients[0]

    def contents(client):
        rows = {}
        for table in ("table", "queue"):
            rows[table] = [
                (item.data[0].tolist(), item.info.priority, item.info.times_sampled)
                for item in client.scan(table)
            ]
        return rows

    results = []
    for name, args, options in steps_of(program, lambda: [i.info.key for i in twin.scan("table")]):
        try:
            answer = getattr(twin, name)(*args, **options)
            results.append(outcome(list(answer) if name == "sample" else answer))
        except errors.DeadlineExceededError:
            results.append("deadline")

    async def asynchronous():
        theirs = []
        blocking = clients[1]
        keys = lambda: [i.info.key for i in blocking.scan("table")]  # noqa: E731
        async with aio.Client(blocking.server_address) as client:
            for name, args, options in steps_of(program, keys):
                try:
                    theirs.append(outcome(await awaited(client, name, *args, **options)))
                except errors.DeadlineExceededError:
                    theirs.append("deadline")
        return theirs

    assert asyncio.run(asynchronous()) == results
    assert contents(clients[1]) == contents(clients[0])
    for server in servers:
        server.stop()
