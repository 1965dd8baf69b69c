# SPDX-License-Identifier: Apache-2.0
"""Scenarios: the written data, and the data that must come back.

A scenario uses only the public interface of dm-reverb, so that either package can write it to
either server. Items come back in the order in which they were written.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

TABLE = "table"

Items = list[list[np.ndarray]]


@dataclasses.dataclass(frozen=True)
class Scenario:
    """Something to write.

    Attributes:
      write: Writes the items with a client.
      items: Returns them as they should come back: for each item its columns.
      as_timesteps: Whether all columns of an item have the same length, so that it can be read step
        by step.
      cut_alike: Whether all columns of an item are made of slices of the same lengths, however the
        writer chooses its chunks. The peer's `TimestepDataset` refuses other items.
    """

    write: Callable[[Any], None]
    items: Callable[[], Items]
    as_timesteps: bool = True
    cut_alike: bool = True


def every_dtype(i: int) -> dict[str, np.ndarray]:
    """Returns step `i` of a nest that holds every dtype."""
    leaves: dict[str, Any] = {
        "bool": np.asarray([i % 2 == 0, True]),
        "complex64": np.asarray([i + 2j], np.complex64),
        "complex128": np.asarray([i - 0.5j], np.complex128),
        "float16": np.asarray([i + 0.5, -2], np.float16),
        "float32": np.asarray([i + 0.25, -3], np.float32),
        "float64": np.asarray([i + 0.125, np.inf], np.float64),
        "int8": np.asarray([i - 128, 127], np.int8),
        "int16": np.asarray([i - 2**15, 2**15 - 1], np.int16),
        "int32": np.asarray([i - 2**31, 2**31 - 1], np.int32),
        "int64": np.asarray([i - 2**63, 2**63 - 1], np.int64),
        "uint8": np.asarray([i, 255], np.uint8),
        "uint16": np.asarray([i, 2**16 - 1], np.uint16),
        "uint32": np.asarray([i, 2**32 - 1], np.uint32),
        "uint64": np.asarray([i, 2**64 - 1], np.uint64),
        "scalar": np.asarray(i, np.int64),
        "string_bytes": np.asarray([f"{i}".encode(), b"", b"\x00\xff"], object),
        "string_scalar": np.asarray(f"größe {i}", object),
        "string_table": np.asarray([["a", "bc"], ["", f"{i}" * 300]], object),
        "zero_floats": np.zeros((0, 3), np.float32),
        "zero_strings": np.zeros((2, 0), object),
    }
    return leaves


def _columns(steps: list[dict[str, np.ndarray]]) -> list[np.ndarray]:
    """Returns the columns of steps in the order in which they are flattened."""
    return [np.stack([_stored(step[name]) for step in steps]) for name in sorted(steps[0])]


def _stored(array: np.ndarray) -> np.ndarray:
    """Text comes back as UTF-8."""
    if array.dtype != object:
        return array
    flat = [x.encode() if isinstance(x, str) else x for x in array.reshape(-1)]
    stored = np.empty(len(flat), object)
    stored[:] = flat
    return stored.reshape(array.shape)


def _insert_every_dtype(client: Any) -> None:
    for i in range(3):
        client.insert(every_dtype(i), {TABLE: 1.0})


def _insert_every_dtype_items() -> Items:
    return [_columns([every_dtype(i)]) for i in range(3)]


def _trajectory_every_dtype(client: Any) -> None:
    with client.trajectory_writer(3) as writer:
        for i in range(5):
            writer.append(every_dtype(i))
            if i >= 2:
                history = writer.history
                writer.create_item(TABLE, 1.0, {name: history[name][-3:] for name in history})
    writer.close()


def _trajectory_every_dtype_items() -> Items:
    return [_columns([every_dtype(j) for j in range(i - 2, i + 1)]) for i in range(2, 5)]


def _legacy_every_dtype(client: Any) -> None:
    with client.writer(max_sequence_length=4, chunk_length=3) as writer:
        for i in range(7):
            writer.append(every_dtype(i))
            if i >= 3:
                writer.create_item(TABLE, 4, 1.0)


def _legacy_every_dtype_items() -> Items:
    return [_columns([every_dtype(j) for j in range(i - 3, i + 1)]) for i in range(3, 7)]


def _delta_step(i: int) -> dict[str, np.ndarray]:
    """Integers that jump over the whole range, so that differences wrap around."""
    random = np.random.default_rng(i)
    leaves: dict[str, np.ndarray] = {}
    for dtype in ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"):
        limits = np.iinfo(dtype)
        values = random.integers(limits.min, limits.max, (2, 2), dtype, endpoint=True)
        leaves[dtype] = values
        leaves[dtype + "_scalar"] = values[0, 0]
    leaves["bool"] = np.asarray([i % 2 == 0])
    leaves["complex64"] = np.asarray([i + 1j], np.complex64)
    leaves["float32"] = random.standard_normal(3, np.float32)
    leaves["string"] = np.asarray([f"step {i}"], object)
    return leaves


def _legacy_delta(client: Any) -> None:
    with client.writer(max_sequence_length=4, chunk_length=3, delta_encoded=True) as writer:
        for i in range(9):
            writer.append(_delta_step(i))
            if i >= 3:
                writer.create_item(TABLE, 4, 1.0)


def _legacy_delta_items() -> Items:
    return [_columns([_delta_step(j) for j in range(i - 3, i + 1)]) for i in range(3, 9)]


_IMAGE_BYTES = 64


def _chunked_step(i: int) -> dict[str, Any]:
    step: dict[str, Any] = {
        "action": np.asarray(i, np.int32),
        "image": np.full(_IMAGE_BYTES, i, np.uint8),
        "rare": np.asarray([i, i], np.int64) if i % 2 == 0 else None,
    }
    return step


def _trajectory_chunks(client: Any) -> None:
    """Columns with chunks of their own lengths, one of them sparse, and a squeezed one."""
    with client.trajectory_writer(6) as writer:
        lengths = {"action": 3, "image": 2, "rare": 1}
        for name, length in lengths.items():
            writer.configure((name,), num_keep_alive_refs=6, max_chunk_length=length)
        for i in range(12):
            writer.append(_chunked_step(i))
            if i >= 5 and i % 2 == 0:
                history = writer.history
                trajectory = {
                    "action": history["action"][-5:],
                    "image": history["image"][-4:-1],
                    "rare": history["rare"][-1],
                }
                writer.create_item(TABLE, 1.0, trajectory)
    writer.close()


def _trajectory_chunks_items() -> Items:
    return [
        [
            np.arange(i - 4, i + 1, dtype=np.int32),
            np.stack([np.full(_IMAGE_BYTES, j, np.uint8) for j in range(i - 3, i)]),
            np.asarray([i, i], np.int64),
        ]
        for i in (6, 8, 10)
    ]


def _trajectory_auto(client: Any) -> None:
    """Lets the writer tune its chunks while it writes, over two episodes."""
    with client.trajectory_writer(8) as writer:
        for i in range(120):
            if i == 60:
                writer.end_episode()
            writer.append([np.asarray(i, np.int32), np.arange(i, i + 6, dtype=np.float32)])
            if i % 60 >= 4:
                history = writer.history
                writer.create_item(TABLE, 1.0, [history[0][-5:], history[1][-5:]])
            if i % 25 == 0:
                writer.flush()
    writer.close()


def _trajectory_auto_items() -> Items:
    ends = [i for i in range(120) if i % 60 >= 4]
    return [
        [
            np.arange(i - 4, i + 1, dtype=np.int32),
            np.arange(i - 4, i + 1, dtype=np.float32)[:, None] + np.arange(6, dtype=np.float32),
        ]
        for i in ends
    ]


_STRIDED = [[0, 2, 4], [5, 0], [4]]
_REPEATED = [[3, 3, 3], [5, 4, 3, 3, 4, 0]]


def _write_selections(client: Any, selections: list[list[int]], chunk_length: int) -> None:
    """Items of chosen steps out of six."""
    with client.trajectory_writer(6) as writer:
        writer.configure((0,), num_keep_alive_refs=6, max_chunk_length=chunk_length)
        for i in range(6):
            writer.append([np.asarray([i, 10 * i], np.int32)])
        column = writer.history[0]
        for rows in selections:
            writer.create_item(TABLE, 1.0, [column[[row - 6 for row in rows]]])
        writer.create_item(TABLE, 1.0, [column[-6::3]])
    writer.close()


def _selected_items(selections: list[list[int]]) -> Items:
    return [[np.asarray([[i, 10 * i] for i in rows], np.int32)] for rows in [*selections, [0, 3]]]


def _structured(client: Any) -> None:
    from reverb import structured

    step = {"a": np.zeros((), np.int64), "b": np.zeros(3, np.float32)}
    transforms = [
        lambda x: {"last": x["a"][-1:], "window": x["b"][-1:]},
        lambda x: {"last": x["a"][-3:], "window": x["b"][-4:-1]},
    ]
    configs = [
        structured.create_config(structured.pattern_from_transform(step, transform), TABLE)
        for transform in transforms
    ]
    writer = client.structured_writer(configs)
    for i in range(6):
        writer.append({"a": np.asarray(i), "b": None}, partial_step=True)
        writer.append({"a": None, "b": np.full(3, i, np.float32)})
    writer.end_episode()


def _structured_items() -> Items:
    def generated() -> Iterator[list[np.ndarray]]:
        for i in range(6):
            if i >= 3:
                # It needs only `a` of the open step, so it arrives before the step is closed.
                window = np.repeat(np.arange(i - 3, i, dtype=np.float32)[:, None], 3, axis=1)
                yield [np.arange(i - 2, i + 1), window]
            yield [np.asarray([i]), np.full((1, 3), i, np.float32)]

    return list(generated())


def _large_step(i: int, size: int) -> np.ndarray:
    return np.random.default_rng(i).integers(0, 256, size, np.uint8)


def _write_large(client: Any, sizes: list[int]) -> None:
    """One item of steps that are a chunk each."""
    with client.trajectory_writer(len(sizes)) as writer:
        for i, size in enumerate(sizes):
            writer.append([_large_step(i, size)])
        writer.create_item(TABLE, 1.0, [writer.history[0][-len(sizes) :]])
    writer.close()


_SPLIT = [600 * 1024] * 7
_ONE_BIG = [5 * 1024 * 1024]
_OVER_FORTY_MEBIBYTES = [1024 * 1024] * 45


def _large_items(sizes: list[int]) -> Items:
    return [[np.stack([_large_step(i, size) for i, size in enumerate(sizes)])]]


def _compressible_step(i: int) -> dict[str, np.ndarray]:
    return {
        "pattern": np.tile(np.arange(7, dtype=np.int32) + i, 9_000),
        "zeros": np.zeros((300, 300), np.float64),
    }


def _compressible(client: Any) -> None:
    with client.writer(max_sequence_length=2, chunk_length=2) as writer:
        for i in range(4):
            writer.append(_compressible_step(i))
            if i % 2:
                writer.create_item(TABLE, 2, 1.0)


def _compressible_items() -> Items:
    return [_columns([_compressible_step(j) for j in (i, i + 1)]) for i in (0, 2)]


def _legacy_forty_mebibytes(client: Any) -> None:
    with client.writer(max_sequence_length=45, chunk_length=1) as writer:
        for i, size in enumerate(_OVER_FORTY_MEBIBYTES):
            writer.append([_large_step(i, size)])
        writer.create_item(TABLE, 45, 1.0)


def _many_items_in_flight(client: Any) -> None:
    """More items than one message or one response holds."""
    with client.trajectory_writer(1) as writer:
        for i in range(1_000):
            writer.append([np.asarray([i], np.int32)])
            writer.create_item(TABLE, float(i), [writer.history[0][-1:]])
    writer.close()


def _many_items_in_flight_items() -> Items:
    return [[np.asarray([[i]], np.int32)] for i in range(1_000)]


SCENARIOS: dict[str, Scenario] = {
    "insert_every_dtype": Scenario(_insert_every_dtype, _insert_every_dtype_items),
    "trajectory_every_dtype": Scenario(_trajectory_every_dtype, _trajectory_every_dtype_items),
    "legacy_every_dtype": Scenario(_legacy_every_dtype, _legacy_every_dtype_items),
    "legacy_delta": Scenario(_legacy_delta, _legacy_delta_items),
    "trajectory_chunks": Scenario(_trajectory_chunks, _trajectory_chunks_items, as_timesteps=False),
    "trajectory_auto": Scenario(_trajectory_auto, _trajectory_auto_items, cut_alike=False),
    "strided": Scenario(
        lambda client: _write_selections(client, _STRIDED, chunk_length=1),
        lambda: _selected_items(_STRIDED),
    ),
    "strided_in_one_chunk": Scenario(
        lambda client: _write_selections(client, _STRIDED + _REPEATED, chunk_length=6),
        lambda: _selected_items(_STRIDED + _REPEATED),
    ),
    "structured": Scenario(_structured, _structured_items, cut_alike=False),
    "compressible": Scenario(_compressible, _compressible_items),
    "many_items": Scenario(_many_items_in_flight, _many_items_in_flight_items),
    "split_responses": Scenario(
        lambda client: _write_large(client, _SPLIT), lambda: _large_items(_SPLIT)
    ),
    "one_big_chunk": Scenario(
        lambda client: _write_large(client, _ONE_BIG), lambda: _large_items(_ONE_BIG)
    ),
    "over_40_mib": Scenario(
        lambda client: _write_large(client, _OVER_FORTY_MEBIBYTES),
        lambda: _large_items(_OVER_FORTY_MEBIBYTES),
    ),
    "legacy_over_40_mib": Scenario(
        _legacy_forty_mebibytes, lambda: _large_items(_OVER_FORTY_MEBIBYTES)
    ),
}
