# SPDX-License-Identifier: Apache-2.0
"""A process that does what it is told, with whichever `reverb` its interpreter imports."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
from arrays import encode
from calls import answer_calls, offer
from scenarios import SCENARIOS, TABLE
from specs import INFO_FIELDS, INFO_MESSAGES, build_table, describe

import reverb

_state: dict[str, Any] = {}


@offer
def start_server(
    tables: list[dict[str, Any]],
    port: int | None = None,
    checkpoints: dict[str, Any] | None = None,
) -> int:
    """Starts the server of this process and returns its port; `checkpoints`: where it saves."""
    stop_server()
    checkpointer = checkpoints and reverb.checkpointers.DefaultCheckpointer(**checkpoints)
    _state["tables"] = [build_table(spec) for spec in tables]
    _state["server"] = reverb.Server(_state["tables"], port=port, checkpointer=checkpointer)
    return _state["server"].port


@offer
def give_stores(tests: str, directory: str) -> None:
    """Gives a store below a directory to the servers of this process; `tests`: path of `tests/`."""
    sys.path.append(tests)
    forgetting_store = importlib.import_module("support.forgetting_store")
    forgetting_store.give_stores(directory)


@offer
def stop_server() -> None:
    """Stops the server of this process if there is one."""
    if "server" in _state:
        _state.pop("server").stop()
        _state.pop("tables")


@offer
def table_counts(table: int = 0) -> dict[str, int]:
    """Returns the counters of a table of the server of this process."""
    info = _state["tables"][table].info
    return {
        "size": info.current_size,
        "inserts": info.rate_limiter_info.insert_stats.completed,
        "samples": info.rate_limiter_info.sample_stats.completed,
    }


@offer
def write(address: str, scenario: str) -> None:
    """Writes a scenario."""
    SCENARIOS[scenario].write(reverb.Client(address))


@offer
def checkpoint(address: str) -> str:
    """Makes a server save; returns the path."""
    return reverb.Client(address).checkpoint()


@offer
def drain(address: str, table: str) -> list[dict[str, Any]]:
    """Samples a table until it is empty, and deletes each item; returns info and columns."""
    client = reverb.Client(address)
    drained = []
    for _ in range(client.server_info()[table].current_size):
        (sample,) = client.sample(table, 1, emit_timesteps=False)
        client.mutate_priorities(table, deletes=[sample.info.key])
        columns = [encode(column) for column in sample.data]
        drained.append({"info": _info(sample.info), "columns": columns})
    return drained


@offer
def peek(address: str, table: str, count: int) -> list[dict[str, Any]]:
    """Samples a table and leaves the items there; returns info and columns."""
    return [
        {"info": _info(sample.info), "columns": [encode(column) for column in sample.data]}
        for sample in reverb.Client(address).sample(table, count, emit_timesteps=False)
    ]


@offer
def read(address: str, count: int, how: str, scenario: str | None = None) -> list[dict[str, Any]]:
    """Reads `count` items and returns info and columns of each."""
    steps = {
        "sample": _read_sample,
        "sample_timesteps": _read_sample_timesteps,
        "trajectory_dataset": _read_trajectory_dataset,
        "timestep_dataset": _read_timestep_dataset,
        "tf_client": _read_tf_client,
    }
    samples = list(steps[how](address, count, scenario))
    return [
        {"info": _info(info), "columns": [encode(column) for column in columns]}
        for info, columns in samples
    ]


def _read_sample(address: str, count: int, _: str | None) -> Iterator[tuple[Any, list[Any]]]:
    for sample in reverb.Client(address).sample(TABLE, count, emit_timesteps=False):
        yield sample.info, sample.data


def _read_sample_timesteps(
    address: str, count: int, _: str | None
) -> Iterator[tuple[Any, list[Any]]]:
    for steps in reverb.Client(address).sample(TABLE, count):
        yield steps[0].info, _stacked([step.data for step in steps])


def _read_trajectory_dataset(
    address: str, count: int, scenario: str | None
) -> Iterator[tuple[Any, list[Any]]]:
    dataset = reverb.TrajectoryDataset(
        address,
        TABLE,
        **_dataset_specs(scenario, timesteps=False),
        max_in_flight_samples_per_worker=10,
        max_samples=count,
    )
    for sample in dataset:
        yield sample.info, [column.numpy() for column in sample.data]


def _read_timestep_dataset(
    address: str, count: int, scenario: str | None
) -> Iterator[tuple[Any, list[Any]]]:
    dataset = reverb.TimestepDataset(
        address,
        TABLE,
        **_dataset_specs(scenario, timesteps=True),
        max_in_flight_samples_per_worker=10,
        max_samples=count,
    )
    # An item's end is not marked: its steps are those with the same key.
    info, rows = None, []
    for step in dataset:
        if info is not None and step.info.key.numpy() != info.key.numpy():
            yield info, _stacked(rows)
            rows = []
        info = step.info
        rows.append([leaf.numpy() for leaf in step.data])
    if rows:
        yield info, _stacked(rows)


def _read_tf_client(
    address: str, count: int, scenario: str | None
) -> Iterator[tuple[Any, list[Any]]]:
    """Yields items of one step: `TFClient.sample` returns only the first of each."""
    client = reverb.TFClient(address)
    dtypes = _dataset_specs(scenario, timesteps=True)["dtypes"]
    for _ in range(count):
        sample = client.sample(TABLE, dtypes)
        yield sample.info, [leaf.numpy()[None] for leaf in sample.data]


def _dataset_specs(scenario: str | None, *, timesteps: bool) -> dict[str, Any]:
    import tensorflow as tf

    columns = SCENARIOS[scenario or ""].items()[0]
    dtypes = tuple(
        tf.string if column.dtype == object else tf.as_dtype(column.dtype) for column in columns
    )
    leading = [] if timesteps else [None]
    shapes = tuple(
        tf.TensorShape(leading + list(column.shape[1:]) if column.ndim else [])
        for column in columns
    )
    if not timesteps:
        # A squeezed column has no leading axis; leave every rank open.
        shapes = tuple(tf.TensorShape(None) for _ in columns)
    return {"dtypes": dtypes, "shapes": shapes}


def _stacked(rows: list[list[Any]]) -> list[np.ndarray]:
    """Stacks rows into columns; a string leaf becomes one cell of an object array."""
    columns = []
    for cells in zip(*rows, strict=True):
        arrays = [np.asarray(cell, object if isinstance(cell, bytes) else None) for cell in cells]
        columns.append(np.stack(arrays))
    return columns


def _info(info: Any) -> dict[str, Any]:
    return {
        "key": int(info.key),
        "probability": float(info.probability),
        "table_size": int(info.table_size),
        "priority": float(info.priority),
        "times_sampled": int(info.times_sampled),
    }


@offer
def sample_batch(address: str, batch_size: int) -> list[dict[str, Any]]:
    """Returns the columns `[B, T, ...]` of `Client.sample_batch`, which only one package has."""
    batch = reverb.Client(address).sample_batch(TABLE, batch_size)
    return [encode(column) for column in batch.data]


@offer
def sample_nested(address: str) -> list[Any]:
    """Samples one item in the structure of the table's signature; returns its paths and values."""
    import tree

    (sample,) = reverb.Client(address).sample(
        TABLE, 1, emit_timesteps=False, unpack_as_table_signature=True
    )
    return [[[*map(str, path)], encode(leaf)] for path, leaf in tree.flatten_with_path(sample.data)]


@offer
def insert(address: str, values: list[int], priorities: dict[str, float]) -> None:
    """Inserts one item per value."""
    client = reverb.Client(address)
    for value in values:
        client.insert([np.asarray(value, np.int64)], priorities)


@offer
def produce(address: str, table: str, count: int, num_bytes: int) -> None:
    """Inserts `count` numbered items of noise as fast as it can."""
    rng = np.random.default_rng(0)
    with reverb.Client(address).trajectory_writer(1) as writer:
        for number in range(count):
            noise = rng.integers(0, 256, num_bytes, dtype=np.uint8)
            writer.append([np.asarray(number, np.int64), noise])
            writer.create_item(table, 1.0, [column[-1:] for column in writer.history])
        writer.flush()


@offer
def mutate(address: str, table: str, updates: list[list[float]], deletes: list[int]) -> None:
    """Changes priorities and deletes items."""
    client = reverb.Client(address)
    client.mutate_priorities(table, updates={int(k): p for k, p in updates}, deletes=deletes)


@offer
def reset(address: str, table: str) -> None:
    """Empties a table."""
    reverb.Client(address).reset(table)


@offer
def server_info(address: str, timeout: int | None = None) -> dict[str, Any]:
    """Returns what the server says about its tables, except how busy their workers were."""
    infos = reverb.Client(address).server_info(timeout)
    return {
        name: {
            **{field: getattr(info, field) for field in INFO_FIELDS},
            **{
                message: getattr(info, message).SerializeToString().hex()
                for message in INFO_MESSAGES
            },
            "signature": describe(info.signature),
        }
        for name, info in infos.items()
    }


@offer
def tf_insert(address: str, values: list[int], tables: list[str], priorities: list[float]) -> None:
    """Inserts through the TensorFlow op: bfloat16 and strings beside integers."""
    import tensorflow as tf

    client = reverb.TFClient(address)
    for value in values:
        data = [
            tf.constant([value, -value], tf.bfloat16),
            tf.constant([value], tf.int32),
            tf.constant([f"value {value}"]),
        ]
        client.insert(data, tf.constant(tables), tf.constant(priorities, tf.float64))


@offer
def tf_sample(address: str, count: int) -> list[Any]:
    """Samples what `tf_insert` wrote."""
    import tensorflow as tf

    client = reverb.TFClient(address)
    samples = []
    for _ in range(count):
        half, number, text = client.sample(TABLE, [tf.bfloat16, tf.int32, tf.string]).data
        samples.append(
            [
                [float(x) for x in tf.cast(half, tf.float32)],
                number.numpy().tolist(),
                [x.decode() for x in text.numpy().tolist()],
            ]
        )
    return samples


@offer
def tf_insert_bits(address: str, dtype: str, bits: str) -> None:
    """Inserts a vector of a type that NumPy lacks, given by its bytes."""
    import tensorflow as tf

    values = np.frombuffer(bytes.fromhex(bits), tf.as_dtype(dtype).as_numpy_dtype)
    reverb.TFClient(address).insert(
        [tf.constant(values)], tf.constant([TABLE]), tf.constant([1.0], tf.float64)
    )


@offer
def tf_sample_bits(address: str, dtype: str, length: int) -> list[list[Any]]:
    """Samples such a vector by the client's op and by a dataset; returns dtypes and bytes."""
    import tensorflow as tf

    (row,) = reverb.TFClient(address).sample(TABLE, [tf.as_dtype(dtype)]).data
    dataset = reverb.TrajectoryDataset(
        address,
        TABLE,
        dtypes=[tf.as_dtype(dtype)],
        shapes=[tf.TensorShape([None, length])],
        max_in_flight_samples_per_worker=1,
        max_samples=1,
    )
    (sample,) = dataset
    return [[x.dtype.name, x.numpy().tobytes().hex()] for x in (row, sample.data[0])]


@offer
def tf_update_priorities(
    address: str, table: str, keys: list[int], priorities: list[float]
) -> None:
    """Changes priorities through the TensorFlow op."""
    import tensorflow as tf

    reverb.TFClient(address).update_priorities(
        table, tf.constant(keys, tf.uint64), tf.constant(priorities, tf.float64)
    )


@offer
def open_dataset(address: str, **arguments: Any) -> None:
    """Opens an iterator over what `insert` wrote, to be read step by step."""
    import tensorflow as tf

    dataset = reverb.TrajectoryDataset(
        address, TABLE, dtypes=[tf.int64], shapes=[tf.TensorShape([1])], **arguments
    )
    _state["iterator"] = (int(element.data[0][0]) for element in dataset)


@offer
def open_samples(address: str, count: int) -> None:
    """Opens a generator over what `insert` wrote, to be read step by step."""
    samples = reverb.Client(address).sample(TABLE, count)
    _state["iterator"] = (int(steps[0].data[0]) for steps in samples)


@offer
def take(count: int | None = None) -> list[int]:
    """Returns the next values of what was opened, or all the rest."""
    if count is None:
        return list(_state.pop("iterator"))
    return [next(_state["iterator"]) for _ in range(count)]


@offer
def open_writer(address: str, validate_items: bool = True) -> None:
    """Opens a trajectory writer, to be used step by step."""
    client = reverb.Client(address)
    _state["writer"] = client.trajectory_writer(5, validate_items=validate_items)


@offer
def configure_writer(max_chunk_length: int) -> None:
    """Sets the chunk length of the writer's only column."""
    _state["writer"].configure((0,), num_keep_alive_refs=5, max_chunk_length=max_chunk_length)


@offer
def write_values(values: list[int]) -> None:
    """Appends one step per value and creates an item of each."""
    writer = _state["writer"]
    for value in values:
        writer.append([np.asarray(value, np.int64)])
        writer.create_item(TABLE, 1.0, [writer.history[0][-1:]])


@offer
def write_selection(values: list[int], selection: list[int]) -> None:
    """Appends one step per value and creates one item of chosen ones."""
    writer = _state["writer"]
    for value in values:
        writer.append([np.asarray(value, np.int64)])
    writer.create_item(TABLE, 1.0, [writer.history[0][selection]])


@offer
def flush_writer(timeout_ms: int | None = None) -> None:
    """Waits until the server has everything."""
    _state["writer"].flush(timeout_ms=timeout_ms)


@offer
def close_writer() -> None:
    """Closes the writer."""
    _state.pop("writer").close()


if __name__ == "__main__":
    answer_calls()
