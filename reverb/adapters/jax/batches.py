# SPDX-License-Identifier: Apache-2.0
"""Batches of a table as arrays of JAX, fetched ahead."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

import reverb
from reverb import BatchIterator
from reverb.adapters.jax.library import jax
from reverb.client import Client
from reverb.errors import InvalidArgumentError
from reverb.replay_sample import ReplayBatch

__all__ = ["batches"]


def batches(
    client: Client | str,
    table: str | Mapping[str, float],
    batch_size: int,
    *,
    sharding: Any = None,
    prefetch: int = 2,
    transform: Callable[[ReplayBatch], Any] | None = None,
    pad_to: int | None = None,
    **options: Any,
) -> BatchIterator:
    """Samples batches without end, and puts them on devices ahead of the program.

    Every batch has `batch_size` rows. Items of one length, windows, and items that are padded to
    `pad_to` steps have one shape in all batches, so that a compiled step is never compiled again.
    On the CPU, JAX uses the memory that the batch was decoded into, which no other batch uses.

    Example:
      >>> from reverb.adapters import jax as reverb_jax
      >>> with reverb_jax.batches("localhost:8000", "replay", 256) as batches:
      ...     for sample in batches:
      ...         params, td_error = step(params, sample.data)
      ...         batches.update_priorities(sample.info.key, abs(td_error))

    Args:
      client: A client, or the address of a server.
      table: Name of a table, or weights by name, see `reverb.batches`.
      batch_size: Number of items in a batch of all processes, `B`.
      sharding: Destination of the data: a device, or a `jax.sharding.Sharding` that divides the
        first axis. With several processes, each one samples its part of the rows, and the batch is
        the global array. `None`: the default device.
      prefetch: Number of batches to fetch ahead, at least 1.
      transform: Called in the background thread with every batch of NumPy arrays, before it goes to
        the device; returns a `ReplayBatch`.
      pad_to: Number of steps of all columns, `T`: shorter items are padded with zeros, or with
        `pad`, and `sample.lengths` has their lengths. Use it for whole episodes, whose longest one
        in a batch would else decide the shape. `None`: items have one length, or the shape of
        batches with `ragged` differs.
      **options: Other arguments of `reverb.batches`: `mix`, `seed`, `timeout_ms`,
        `end_after_ms`, `epochs` (with `drop_last=True`), `container_types`, and those of
        `Client.sample_batch`.

    Returns:
      A `reverb.BatchIterator`. Each element is a `ReplayBatch`: `data` has `jax.Array`s `[B, ...]`;
      `info` has NumPy arrays with the rows of this process, because JAX has only integers of 32
      bits by default. Columns that JAX cannot hold stay NumPy arrays too: strings, and int64 and
      uint64 unless `jax_enable_x64` is set.

    Raises:
      InvalidArgumentError: If `batch_size` does not divide into the shards, or another argument is
        out of its range. Raised by `next`: if an item is longer than `pad_to`; and errors of the
        server.
    """
    if pad_to is not None:
        options |= _padding(pad_to, options)
    if options.pop("partial", False):
        raise InvalidArgumentError(
            "partial must be False: a batch of another size would cause a recompilation"
        )
    if options.get("epochs") is not None and not options.get("drop_last"):
        raise InvalidArgumentError(
            "drop_last must be True with epochs: a shorter last batch would cause a recompilation"
        )
    BatchIterator.check_arguments(table, batch_size)
    rows = _rows_of_process(batch_size, sharding)
    if options.get("epochs") is not None and rows != batch_size:
        raise InvalidArgumentError(
            "epochs are for one reader of a table, and several processes read this one: each "
            f"samples {rows} of {batch_size} rows"
        )
    is_divided = isinstance(sharding, jax.sharding.Sharding)
    if is_divided and options.get("ragged") == "packed":
        raise InvalidArgumentError(
            "a packed batch has no first axis that a sharding could divide; use ragged='pad' with "
            "pad_to_multiple_of"
        )

    def put(value: Any) -> Any:
        array = np.asarray(value)
        if not _is_for_jax(array.dtype):
            return array
        # JAX may keep this memory, so it must not be written any more.
        array.flags.writeable = False
        if not is_divided:
            return jax.device_put(array, sharding)
        shape = (batch_size, *array.shape[1:])
        return jax.make_array_from_process_local_data(sharding, array, shape)

    def on_device(sample: ReplayBatch) -> ReplayBatch:
        if pad_to is not None:
            _check_lengths(table, sample.lengths, pad_to)
        if transform is not None:
            sample = transform(sample)
        data = jax.tree_util.tree_map(put, sample.data)
        leaves = jax.tree_util.tree_leaves(data)
        jax.block_until_ready([leaf for leaf in leaves if isinstance(leaf, jax.Array)])
        return ReplayBatch(sample.info, data)

    return reverb.batches(client, table, rows, prefetch=prefetch, transform=on_device, **options)


def _padding(pad_to: int, options: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the options of `sample_batch` that pad all columns to one length."""
    if isinstance(pad_to, bool) or not isinstance(pad_to, int | np.integer):
        raise TypeError(f"pad_to must be an integer, got {type(pad_to).__name__}")
    if pad_to < 1:
        raise InvalidArgumentError(f"pad_to must be at least 1, got {pad_to}")
    for name in ("window", "squeeze", "pad_to_multiple_of"):
        if options.get(name):
            raise InvalidArgumentError(
                f"pad_to is for whole items, which it pads to one length: leave {name} out, got "
                f"{options[name]!r}"
            )
    if options.get("ragged", "pad") != "pad":
        raise InvalidArgumentError(f"pad_to needs ragged='pad', got {options['ragged']!r}")
    # The multiple is the length itself, as long as no item is longer.
    return {"ragged": "pad", "pad_to_multiple_of": int(pad_to)}


def _check_lengths(table: str | Mapping[str, float], lengths: Any, pad_to: int) -> None:
    longest = max(int(of.max(initial=0)) for of in jax.tree_util.tree_leaves(lengths))
    if longest > pad_to:
        name = table if isinstance(table, str) else ", ".join(table)
        raise InvalidArgumentError(
            f"an item of table {name} has {longest} steps, more than pad_to, {pad_to}. Pass the "
            "largest length of its items, or sample a part of each by window="
        )


def _is_for_jax(dtype: np.dtype[Any]) -> bool:
    """Whether JAX arrays can hold all values of a dtype, except for the precision of floats."""
    if dtype.kind in "OSU":
        return False
    return dtype.kind not in "iu" or dtype.itemsize < 8 or jax.config.jax_enable_x64


def _rows_of_process(batch_size: int, sharding: Any) -> int:
    """Checks that the rows divide into shards; returns how many this process samples."""
    if not isinstance(sharding, jax.sharding.Sharding):
        return batch_size
    num_shards = _num_shards_of_rows(sharding)
    if batch_size % num_shards:
        raise InvalidArgumentError(
            f"batch_size {batch_size} does not divide into {num_shards} shards of the first axis"
        )
    num_processes = len({device.process_index for device in sharding.device_set})
    if num_shards < num_processes:
        raise InvalidArgumentError(
            f"sharding has {num_shards} shards of the first axis for {num_processes} processes: "
            "each process samples by itself, so no row can be in two of them"
        )
    return batch_size // num_processes


def _num_shards_of_rows(sharding: Any) -> int:
    spec = getattr(sharding, "spec", None)
    if spec is None:
        return len(sharding.device_set)
    names = spec[0] if len(spec) else None
    names = () if names is None else (names if isinstance(names, tuple) else (names,))
    return int(np.prod([sharding.mesh.shape[name] for name in names], dtype=np.int64))
