# SPDX-License-Identifier: Apache-2.0
"""Measures windows that are cut when they are sampled, beside other ways to the same batches.

    python benchmarks/windows.py                  # NumPy; TorchRL where it is installed
    python benchmarks/windows.py --rounds 41 --length 64 --frame-episodes 64

Batches `[B, T, ...]` of windows of T steps of episodes of 1,000 steps, in one process: float32[4]
and four small columns, then uint8[64, 64, 3] of noise in place of the floats. All subjects take
turns; the table shows medians, and medians of the ratios to the first subject in the same round
(above 1: faster than items that have the length of a window). A batch of each subject is checked.

The last tables are the cost of a cut alone: items of 8 columns, with 100 and with 10,000 slices for
each column, because their chunks have 10 steps or one.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

import reverb

_STEPS = 1_000
_STREAM_CHUNK = 1_024
_CUT_COLUMNS = 8
_CUT_EPISODES = 16
# Seconds of the calls of a subject in a round, at least.
_ROUND_S = 0.02

_Batch = dict[str, Any]
_Subject = tuple[str, Callable[[], _Batch]]


def main() -> None:
    """Prints a table for each kind of steps, and one for the cost of a cut."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--batch", type=int, default=16, help="windows of a batch, B")
    parser.add_argument("--length", type=int, default=50, help="steps of a window, T")
    parser.add_argument("--episodes", type=int, default=64, help="of small steps")
    parser.add_argument("--frame-episodes", type=int, default=16, help="of frames, 12 MB each")
    parser.add_argument("--only", choices=("small", "frames", "cuts"))
    arguments = parser.parse_args()
    size = arguments.batch, arguments.length
    kinds = {"small": arguments.episodes, "frames": arguments.frame_episodes}
    for kind, count in kinds.items():
        if arguments.only in (None, kind):
            title = f"{count} episodes, {'float32[4]' if kind == 'small' else 'uint8[64, 64, 3]'}"
            columns = _columns(kind, count)
            with contextlib.ExitStack() as stack:
                subjects = list(_subjects(stack, columns, *size))
                _compare(title, subjects, *size, arguments.rounds)
    if arguments.only in (None, "cuts"):
        for length, chunk in ((_STEPS, 10), (10_000, 1)):
            title = f"{length // chunk:,} slices a column, {_CUT_COLUMNS} columns"
            with contextlib.ExitStack() as stack:
                subjects = list(_cuts(stack, length, chunk, *size))
                _compare(title, subjects, *size, arguments.rounds)


# ---- Measuring -----------------------------------------------------------------------------------


def _compare(title: str, subjects: list[_Subject], batch: int, length: int, rounds: int) -> None:
    """Prints a line for each subject: microseconds a batch, items a second, and the ratio."""
    calls, sizes = {}, {}
    for name, call in subjects:
        steps = np.asarray(call()["number"])
        if steps.shape[1] == length:  # Else whole episodes, for comparison.
            assert steps.shape == (batch, length), (name, steps.shape)
        assert (np.diff(steps, axis=1) == 1).all(), name
        sizes[name] = len(steps)
        calls[name] = max(1, round(_ROUND_S / min(_seconds(call, 1) for _ in range(3))))
    times: dict[str, list[float]] = {name: [] for name, _ in subjects}
    for _ in range(rounds):
        for name, call in subjects:
            times[name].append(_seconds(call, calls[name]))
    print(f"{f'{title}, B={batch}, T={length}':52}{'us':>10}{'items/s':>12}{'ratio':>8}")
    first = times[subjects[0][0]]
    for name, found in times.items():
        ratio = statistics.median(a / b for a, b in zip(first, found, strict=True))
        median = statistics.median(found)
        print(
            f"  {name:50}{median * 1e6:10,.0f}{sizes[name] / median:12,.0f}{ratio:8.2f}", flush=True
        )


def _seconds(call: Callable[[], Any], count: int) -> float:
    """Returns the time of a call, the mean of `count`."""
    started = time.perf_counter()
    for _ in range(count):
        call()
    return (time.perf_counter() - started) / count


# ---- The same data in every subject --------------------------------------------------------------


def _columns(kind: str, episodes: int) -> dict[str, np.ndarray]:
    """Columns `[episodes, 1000, ...]`; `number` counts the steps of all episodes."""
    random = np.random.default_rng(0)
    size = (episodes, _STEPS)
    if kind == "small":
        observation = random.standard_normal((*size, 4)).astype(np.float32)
    else:
        observation = random.integers(0, 256, (*size, 64, 64, 3), np.uint8)
    is_first = np.zeros(size, bool)
    is_first[:, 0] = True
    return {
        "observation": observation,
        "action": random.integers(0, 9, size, np.int32),
        "reward": random.standard_normal(size).astype(np.float32),
        "is_first": is_first,
        "number": np.arange(episodes * _STEPS).reshape(size),
    }


def _subjects(
    stack: contextlib.ExitStack, columns: dict[str, np.ndarray], batch: int, length: int
) -> Iterator[_Subject]:
    yield from _reverb(stack, columns, batch, length)
    yield "NumPy, a ring indexed by steps", _ring(columns, batch, length)
    yield f"NumPy, chunks of {_STREAM_CHUNK:,} steps", _streams(columns, batch, length)
    if importlib.util.find_spec("torchrl"):
        yield "TorchRL, SliceSampler", _torchrl(columns, batch, length)
    else:
        print("skipped: TorchRL's SliceSampler, because TorchRL is not installed")


def _client(
    stack: contextlib.ExitStack, columns: dict[str, np.ndarray], *names: str
) -> reverb.Client:
    """A client of tables whose items have these columns, `[E, T, ...]`, and any number of steps."""
    signature = {
        key: reverb.specs.TensorSpec([None, *column.shape[2:]], column.dtype)
        for key, column in columns.items()
    }
    uniform, fifo = reverb.selectors.Uniform, reverb.selectors.Fifo
    min_size = reverb.rate_limiters.MinSize
    tables = [
        reverb.Table(name, uniform(), fifo(), 1_000_000, min_size(1), signature=signature)
        for name in names
    ]
    return stack.enter_context(reverb.Server(tables)).localhost_client()


def _sample(client: reverb.Client, table: str, batch: int, **options: Any) -> Callable[[], _Batch]:
    """A call that samples a batch of a table."""
    return lambda: client.sample_batch(table, batch, unpack_as_table_signature=True, **options).data


def _window(client: reverb.Client, table: str, batch: int, length: int) -> Iterator[_Subject]:
    """A subject that cuts windows of whole episodes, where the package can."""
    if hasattr(reverb, "Window"):
        window = reverb.Window(length)
        yield "windows of whole episodes", _sample(client, table, batch, window=window)
    else:
        print("skipped: windows of whole episodes, because this reverb has no reverb.Window")


def _reverb(
    stack: contextlib.ExitStack, columns: dict[str, np.ndarray], batch: int, length: int
) -> Iterator[_Subject]:
    """Items of the length of a window, one after another or at each step; and whole episodes."""
    client = _client(stack, columns, "items", "each", "episodes")
    writers: dict[str, tuple[int | None, dict[str, Any]]] = {
        "items": (length, {"stride_length": length}),
        "each": (length, {"stride_length": 1}),
        "episodes": (None, {"max_sequence_length": _STEPS}),
    }
    for table, (steps, options) in writers.items():
        with client.sequence_writer(table, steps, **options) as writer:
            for episode in range(len(columns["number"])):
                for t in range(_STEPS):
                    step = {key: column[episode, t] for key, column in columns.items()}
                    writer.append(step, is_last=t == _STEPS - 1)
    yield "items of the length, one after another", _sample(client, "items", batch)
    yield "items of the length, one at each step", _sample(client, "each", batch)
    yield from _window(client, "episodes", batch, length)


def _ring(columns: dict[str, np.ndarray], batch: int, length: int) -> Callable[[], _Batch]:
    """Rows of arrays by their numbers; no window spans two episodes."""
    random = np.random.default_rng(1)
    rings = {key: column.reshape(-1, *column.shape[2:]) for key, column in columns.items()}
    offsets = np.arange(length)

    def sample() -> _Batch:
        episodes = random.integers(0, len(columns["number"]), batch)
        starts = episodes * _STEPS + random.integers(0, _STEPS - length + 1, batch)
        steps = starts[:, None] + offsets
        return {key: ring[steps] for key, ring in rings.items()}

    return sample


def _streams(columns: dict[str, np.ndarray], batch: int, length: int) -> Callable[[], _Batch]:
    """Chunks of a stream of steps, which goes on over the ends of episodes.

    A window begins at any step, and may need the end of a chunk and the beginning of the next one.
    """
    random = np.random.default_rng(1)
    stream = {key: column.reshape(-1, *column.shape[2:]) for key, column in columns.items()}
    total = len(stream["number"])
    chunks = [
        {key: column[first : first + _STREAM_CHUNK].copy() for key, column in stream.items()}
        for first in range(0, total, _STREAM_CHUNK)
    ]

    def window(start: int) -> _Batch:
        number, first = divmod(start, _STREAM_CHUNK)
        chunk, left = chunks[number], first + length - _STREAM_CHUNK
        if left <= 0:
            return {key: column[first : first + length] for key, column in chunk.items()}
        following = chunks[number + 1]
        return {
            key: np.concatenate([column[first:], following[key][:left]])
            for key, column in chunk.items()
        }

    def sample() -> _Batch:
        starts = random.integers(0, total - length + 1, batch).tolist()
        windows = [window(start) for start in starts]
        return {key: np.stack([it[key] for it in windows]) for key in stream}

    return sample


def _torchrl(columns: dict[str, np.ndarray], batch: int, length: int) -> Callable[[], _Batch]:
    """Slices of the episodes of a storage in memory; batches are tensors."""
    import torch  # pyright: ignore[reportMissingImports]
    from tensordict import TensorDict  # pyright: ignore[reportMissingImports]
    from torchrl import data  # pyright: ignore[reportMissingImports]

    torch.set_num_threads(1)
    total = columns["number"].size
    steps = {
        key: torch.from_numpy(column.reshape(-1, *column.shape[2:]))
        for key, column in columns.items()
    }
    steps["episode"] = torch.arange(total) // _STEPS
    buffer = data.TensorDictReplayBuffer(
        storage=data.LazyTensorStorage(total),
        sampler=data.SliceSampler(slice_len=length, traj_key="episode", cache_values=True),
        batch_size=batch * length,
    )
    buffer.extend(TensorDict(steps, [total]))
    return lambda: buffer.sample().reshape(batch, length)


# ---- The cost of a cut ---------------------------------------------------------------------------


def _cuts(
    stack: contextlib.ExitStack, steps: int, chunk: int, batch: int, length: int
) -> Iterator[_Subject]:
    """Items of the length, one after another and at each step, windows, and whole episodes, all in
    chunks of `chunk` steps.
    """
    names = [f"c{at}" for at in range(_CUT_COLUMNS - 1)]
    shape = (_CUT_EPISODES, steps)
    random = np.random.default_rng(0)
    columns: dict[str, np.ndarray] = {
        name: random.standard_normal(shape).astype(np.float32) for name in names
    }
    columns["number"] = np.arange(_CUT_EPISODES * steps).reshape(shape)
    begins = set(random.choice(np.arange(length, steps), 500, replace=False).tolist())
    client = _client(stack, columns, "items", "each", "episodes")
    with client.trajectory_writer(num_keep_alive_refs=steps) as writer:
        for name in columns:
            writer.configure((name,), num_keep_alive_refs=steps, max_chunk_length=chunk)
        for episode in range(_CUT_EPISODES):
            for t in range(steps):
                writer.append({name: column[episode, t] for name, column in columns.items()})
                # As many items at random steps as windows need to meet other steps each time.
                tables = ["items"] * ((t + 1) % length == 0) + ["each"] * (t in begins)
                for table in tables:
                    last = {name: writer.history[name][-length:] for name in columns}
                    writer.create_item(table, 1.0, last)
            whole = {name: writer.history[name][:] for name in columns}
            writer.create_item("episodes", 1.0, whole)
            writer.end_episode()
    yield "items of the length, one after another", _sample(client, "items", batch)
    yield "items of the length, at random steps", _sample(client, "each", batch)
    yield from _window(client, "episodes", batch, length)
    yield "whole episodes, one", _sample(client, "episodes", 1)


if __name__ == "__main__":
    main()
