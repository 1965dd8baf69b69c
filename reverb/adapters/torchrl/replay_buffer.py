# SPDX-License-Identifier: Apache-2.0
"""A replay buffer for TorchRL whose data is in a table."""

import contextlib
import pathlib
from collections.abc import Callable, Iterator
from typing import Any, Literal

import numpy as np

import reverb
from reverb.adapters.torchrl.arguments import check_parts, check_settings, open_table
from reverb.adapters.torchrl.buffer_state import BufferState
from reverb.adapters.torchrl.episodes import writer_of_steps
from reverb.adapters.torchrl.item_reader import ItemReader
from reverb.adapters.torchrl.library import as_one_step, tensordict, torch, torchrl_data
from reverb.adapters.torchrl.priorities import Priorities
from reverb.adapters.torchrl.sequence_keys import INIT_KEY, TRUNCATED_KEY, SequenceKeys
from reverb.adapters.torchrl.table_parts import (
    PrioritizedTableSampler,
    TableSampler,
    TableStorage,
    TableWriter,
    refuse_part,
    refuse_write,
)
from reverb.errors import InvalidArgumentError

__all__ = ["ReverbReplayBuffer"]

_DEFAULT_BETA = 0.4


class ReverbReplayBuffer(torchrl_data.TensorDictReplayBuffer):
    """A `TensorDictReplayBuffer` for TorchRL's collectors and trainers, over a table.

        buffer = ReverbReplayBuffer("localhost:8000", table="replay", batch_size=256, prefetch=2)

    A pickled buffer holds the address of the table, so that collectors in other processes and on
    other machines write to the same table, and learners read from it, also by priority. An index is
    the key of an item, int64 with its bits: it is never used again for another item.

    The server draws the samples. An empty table raises `RuntimeError`, as in TorchRL; if the rate
    limiter is closed, `sample` waits. Batches that `prefetch` fetches ahead count as sampled.

    Items do not change and have no positions: `buffer[a:b]` and `buffer["name"]` read items, the
    oldest one first; calls that read or write by index raise `UnimplementedError`.
    """

    __setitem__ = set_ = set_at_ = update_ = write_all = refuse_write
    set_storage = set_sampler = set_writer = refuse_part

    def __init__(
        self,
        server: str | reverb.Client | None = None,
        *,
        table: str = "replay",
        batch_size: int | None = None,
        max_size: int | None = None,
        alpha: float | None = None,
        beta: float | None = None,
        eps: float = 1e-8,
        priority_key: Any = "td_error",
        reduction: Literal["max", "min", "mean", "median", "sum"] = "max",
        sequence_length: int | None = None,
        end_key: Any = None,
        end_keys: Any = None,
        traj_key: Any = None,
        truncated_key: Any = TRUNCATED_KEY,
        init_key: Any = INIT_KEY,
        window: reverb.Window | None = None,
        consume_after_n_samples: int | None = None,
        prefetch: int | None = None,
        transform: Any = None,
        transform_factory: Callable[[], Any] | None = None,
        pin_memory: bool = False,
        device: Any = "cpu",
        shared: bool = False,
        timeout_ms: int | None = None,
        generator: Any = None,
        **parts: Any,
    ) -> None:
        """Makes a buffer; asks the server for its table.

        Args:
          server: Address of a server with the table, or a client; `None`: a server in this process,
            to which pickles of the buffer connect as long as it lives.
          table: Name of the table; see `tables`.
          batch_size: Number of items in a sample; may be given to `sample` instead.
          max_size: Maximum number of items; `None`: 1,000,000. Only without `server`.
          alpha: Exponent of the priorities. With `server` it must be that of the table, or `None`
            for that of the table. Without `server`, `None` samples uniformly.
          beta: Exponent of the importance weights, `priority_weight` in samples; `None`: 0.4. May
            be changed as `buffer.sampler.beta`.
          eps: Number that is added to every priority.
          priority_key: Key of priorities in data and samples.
          reduction: Reduction of several priorities of an item to one.
          sequence_length: Items are this many consecutive steps of an episode; see `extend`.
          end_key: A flag in the data that ends an episode; `None`: ("next", "done"). This argument
            and the next four require `sequence_length` or `window`, and are those of TorchRL's
            `SliceSampler`.
          end_keys: Several such flags, of which the data may lack some; instead of `end_key`.
          traj_key: A field whose change begins another episode. If the data has it, `end_key` and
            `end_keys` are ignored. `None`: without these two, ("collector", "traj_ids") or
            "episode" if the data has it.
          truncated_key: Key of a flag in samples, bool `[B, 1]`, that is set at the last step of
            each sequence, as is "done" beside it. `None`: no flags.
          init_key: Key of a flag that is also set at the first step of each sampled sequence, if
            the data has it, so that recurrent modules start again; `None`: it is not changed.
          window: Items are whole episodes, and a sample is a random window of the steps of each:
            samples are `[B, before + length]`. Without spans.
          consume_after_n_samples: An item is removed after it was sampled this often. With `server`
            it must be that of the table.
          prefetch: Number of batches that threads fetch ahead.
          transform: As in `TensorDictReplayBuffer`; applied in this process.
          transform_factory: As in `TensorDictReplayBuffer`; called at once.
          pin_memory: Whether samples are in pinned memory.
          device: Device of samples.
          shared: Ignored: a table may always be shared.
          timeout_ms: How long `sample` waits for the rate limiter, in milliseconds; `None`: no
            limit.
          generator: A `torch.Generator` that draws the seed of the table; `None`: PyTorch's own, so
            that `torch.manual_seed` makes samples reproducible. Only without `server`.
          **parts: Other arguments of `TensorDictReplayBuffer`, such as `storage` and `sampler`;
            must have their default.

        Raises:
          InvalidArgumentError: If a number is out of its range, if the table differs from the
            arguments, or if keys exclude each other.
          UnavailableError: If no server answers.
          ValueError: If `prefetch` is given without `batch_size`, or with
            `consume_after_n_samples`.
        """
        check_parts(type(self).__name__, parts)
        self._settings: dict[str, Any] = {
            "table": table,
            "eps": eps,
            "priority_key": priority_key,
            "reduction": reduction,
            "sequence_length": sequence_length,
            "end_key": end_key,
            "end_keys": end_keys,
            "traj_key": traj_key,
            "truncated_key": truncated_key,
            "init_key": init_key,
            "window": window,
            "consume_after_n_samples": consume_after_n_samples,
            "prefetch": prefetch,
            "pin_memory": pin_memory,
            "device": device,
            "shared": shared,
            "timeout_ms": timeout_ms,
        }
        check_settings(self._settings, server, max_size, batch_size, generator)
        keys = SequenceKeys(end_key, end_keys, traj_key, truncated_key, init_key)
        self._access = open_table(server, self._settings, max_size, alpha, beta, generator)
        self._device = torch.device(device)
        self._timeout_ms = timeout_ms
        self._sequence_length = sequence_length
        self._window = window
        self._reader = ItemReader(self._access, sequence_length, window, keys, self._device)
        new_item = 1.0 if self.alpha is None else reverb.MAX_PRIORITY
        self._priorities = Priorities(reduction, eps, sequence_length, new_item)
        self._state = BufferState(self, self._access)
        self._sequences = writer_of_steps(self._settings, self._access, keys, self._priorities)
        sampler: Any = TableSampler()
        if self.alpha is not None:
            beta = _DEFAULT_BETA if beta is None else beta
            sampler = PrioritizedTableSampler(self, self._access.max_size, beta, eps, reduction)
        super().__init__(
            priority_key=priority_key,
            storage=TableStorage(self, self._access.max_size, self._device),
            sampler=sampler,
            writer=TableWriter(self._access),
            collate_fn=lambda data: data,
            pin_memory=pin_memory,
            prefetch=prefetch,
            transform=transform,
            transform_factory=transform_factory,
            batch_size=batch_size,
            delayed_init=False,
        )
        self.shared = shared
        self._consume_after_n_samples = consume_after_n_samples

    @property
    def server(self) -> str:
        """Address of the server."""
        return self._access.address

    @property
    def table(self) -> str:
        """Name of the table."""
        return self._access.table

    @property
    def sequence_length(self) -> int | None:
        """Number of steps of an item, if items are sequences."""
        return self._sequence_length

    @property
    def window(self) -> reverb.Window | None:
        """Steps of each item that are sampled, if items are whole episodes."""
        return self._window

    @property
    def alpha(self) -> float | None:
        """The exponent of the table; `None` if it does not sample by priority."""
        return self._access.alpha

    # ---- Writing ---------------------------------------------------------------------------------

    @as_one_step
    def add(self, data: Any) -> int:
        """Adds one item, and waits until the server has it.

        Args:
          data: TensorDict of one item, `[]`, or `[T]` for a trajectory; it gets the key "index".
            With `sequence_length` or `window`, one step, `[]`, or `[N]` of `N` environments.

        Returns:
          The index; -1 if it is unknown, as in `extend`.

        Raises:
          SignatureMismatchError: As `extend`.
          InvalidArgumentError: As `extend`.
        """
        if len(self._transform):
            data = self._transform.inv(data)
        if data is None:
            return torch.zeros((0, 1), dtype=torch.long)
        if self._sequences is not None:
            self._sequences.write(data.unsqueeze(-1), self._priorities_in(data, True))
            return -1
        return int(self._insert(data.unsqueeze(0), data, True)[0])

    @as_one_step
    def extend(self, tensordicts: Any, *, update_priority: bool | None = None) -> Any:
        """Adds items, and waits until the server has all of them.

        Without `sequence_length`, each row of `[B, ...]` is an item. With it, data is `[T]` or
        `[N, T]`, steps of one or of `N` environments, and every `sequence_length` consecutive steps
        of an episode are an item; steps are stored once. With `window`, an item is an episode that
        has ended. `traj_key`, `end_key` and `end_keys` mark the ends of episodes; an episode
        without an end continues with the next call.

        Args:
          tensordicts: TensorDict. Each leaf must be a tensor; "index" is not stored.
          update_priority: Whether values at `priority_key` are the priorities of the new items;
            `None`: yes. Those of the steps of a sequence are reduced to one. New items without such
            values get the largest priority so far.

        Returns:
          The indices of the items, int64 `[B]`, which are also stored in the data as "index". -1
          where they are unknown: with `sequence_length` or `window`, and in a group of servers.

        Raises:
          SignatureMismatchError: If the fields are not those of the table; they are compared by
            their names.
          InvalidArgumentError: If a value is no tensor, if data of steps has no field that marks
            the ends of episodes, or with `window` if an episode has more than 65,536 steps.
          ValueError: If it is no TensorDict.
        """
        if not isinstance(tensordicts, tensordict.TensorDictBase):
            raise ValueError(
                f"{type(self).__name__} takes TensorDicts, got {type(tensordicts).__name__}"
            )
        data = self._transform.inv(tensordicts) if len(self._transform) else tensordicts
        if data is None:
            return torch.zeros((0, 1), dtype=torch.long)
        if self._sequences is not None:
            self._sequences.write(data, self._priorities_in(data, update_priority is not False))
            return torch.full((data.shape.numel(),), -1, dtype=torch.long)
        return self._insert(data, data, update_priority is not False)

    def _insert(self, rows: Any, data: Any, takes_priority: bool) -> Any:
        """Inserts rows `[B, ...]`, and stores their indices in the user's data."""
        if not len(rows):
            return torch.zeros(0, dtype=torch.long)
        values = self._priorities_in(rows, takes_priority)
        keys = self._access.insert(rows, self._priorities.of_items(values, len(rows)))
        if keys is None:
            return torch.full((len(rows),), -1, dtype=torch.long)
        index = torch.from_numpy(keys.view(np.int64))
        if not data.is_locked:
            self._set_index_in_td(data, index if data is rows else index[0])
        return index

    def _initialize_prioritized_sampler(self) -> None:
        """Does nothing: the items of a table have their priorities."""

    def _priorities_in(self, data: Any, takes_priority: bool) -> Any:
        if not takes_priority or self.alpha is None:
            return None
        return data.get(self.priority_key, None)

    # ---- Sampling --------------------------------------------------------------------------------

    sample = as_one_step(torchrl_data.TensorDictReplayBuffer.sample)

    def _sample(self, batch_size: int) -> tuple[Any, dict[str, Any]]:
        """A batch and its info; runs in threads of `prefetch`."""
        length = self._sequence_length or 1
        if batch_size % length:
            raise InvalidArgumentError(
                f"batch_size must be a multiple of sequence_length={length}, got {batch_size}"
            )
        batch = self._access.sample(batch_size // length, self._timeout_ms, self._window)
        beta = None if self.alpha is None else self._sampler.beta
        data, info = self._reader.of_batch(batch, beta)
        if len(self._transform):
            data = self._transform(data)
        if self._pin_memory:
            data = data.pin_memory()
        return data, info

    def __iter__(self) -> Iterator[Any]:
        """Samples batches for ever; with `consume_after_n_samples`, until the table is empty.

        Raises:
          RuntimeError: If the constructor got no `batch_size`.
        """
        batches = super().__iter__()
        while self._consume_after_n_samples is None or len(self):
            yield next(batches)

    # ---- Reading ---------------------------------------------------------------------------------

    def scan(self) -> Iterator[Any]:
        """Reads all items, the oldest one first, as TensorDicts `[...]`; does not sample.

        With `sequence_length` or `window` they are `[T]`.
        """
        return self._reader.scan()

    def read(self, places: slice = slice(None)) -> Any:
        """Reads items as one TensorDict `[N, ...]`, the oldest one first; does not sample.

        `buffer[places]` does the same, and applies transforms. Reads the whole table. With
        `sequence_length` or `window` the result is `[N, T]`.

        Raises:
          FailedPreconditionError: If the table is empty.
          InvalidArgumentError: If the items have different numbers of steps.
        """
        return self._reader.read(places)

    # ---- Priorities ------------------------------------------------------------------------------

    @as_one_step
    def update_priority(self, index: Any, priority: Any) -> None:
        """Updates priorities; indices of items that have left the table are ignored.

        Args:
          index: int64 `[B]`, or a single index: "index" of a sample.
          priority: `[B]`, or `[B, ...]` to be reduced; or one for all. `eps` is added.

        Raises:
          InvalidArgumentError: If there is not one priority for each index, if one is negative or
            no number, or with `sequence_length` if the sequences are not complete.
        """
        if self.alpha is None:
            # Raises the warning of TorchRL.
            self._sampler.update_priority(index, priority)
            return
        keys, priorities = self._priorities.updates(index, priority)
        if len(keys):
            self._access.update_priorities(keys, priorities)

    @as_one_step
    def update_tensordict_priority(self, data: Any) -> None:
        """Updates priorities from a sample with values at `priority_key`.

        Without such values, the items get the priority 1. Does nothing if the table does not sample
        by priority.

        Raises:
          InvalidArgumentError: As `update_priority`.
        """
        if self.alpha is None:
            return
        index = data.get("index")
        if self._sequence_length is None and data.ndim:
            # One index for each item, not one for each of its steps.
            index = index.reshape(len(data), -1)[:, 0]
        self.update_priority(index, data.get(self.priority_key, torch.ones(())))

    def set_alpha(self, alpha: float) -> None:
        """Changes the exponent of the table, for all programs that sample from it."""
        self._access.set_alpha(alpha)

    # ---- Sizes -----------------------------------------------------------------------------------

    def __len__(self) -> int:
        """Number of items in the table; asks the server."""
        return self._access.info().current_size

    def stats(self) -> dict[str, int | float | bool]:
        """Returns sizes and counters, as `ReplayBuffer.stats`; asks the server once."""
        ahead = len(self._prefetch_queue)
        return {**self._access.sizes(), "prefetch_queue_size": ahead, "initialized": True}

    def empty(self, empty_write_count: bool = True) -> None:
        """Removes all items, of all processes, and drops batches that were fetched ahead.

        Args:
          empty_write_count: Whether to reset the counters of the table. If not, items are removed
            one by one, which takes longer.
        """
        with self._futures_lock:
            self._clear_prefetch_queue_locked()
        self.drop_sequences()
        self._access.remove_all(keep_counters=not empty_write_count)

    def drop_sequences(self) -> None:
        """Makes the next steps begin new episodes, because the steps before them are gone."""
        if self._sequences is not None:
            self._sequences.drop()

    # ---- Files -----------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Returns the state.

        Without `server` it contains all items, as a checkpoint; with `server` it contains none.
        """
        return self._state.as_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Takes over a state of `state_dict`, and drops batches that were fetched ahead.

        Its items replace the present ones, and the table gets the `alpha` of the state. An error
        leaves the buffer unchanged. Calls of forked copies of the buffer raise
        `FailedPreconditionError` from then on; pickles stay valid.

        Raises:
          InvalidArgumentError: If it is not the state of a `ReverbReplayBuffer` of the same kind,
            if it has items and this buffer has a `server`, or if it has none and this buffer has
            no `server`.
          DataLossError: If the items are damaged.
        """
        with self._futures_lock:
            self._clear_prefetch_queue_locked()
            self._state.take(state_dict)

    def dumps(self, path: Any) -> None:
        """Saves the state in a directory, which is created if it is missing."""
        self._state.write(pathlib.Path(path).absolute())

    def loads(self, path: Any) -> None:
        """Loads a state that `dumps` saved, like `load_state_dict`.

        Raises:
          InvalidArgumentError: As `load_state_dict`.
          DataLossError: If a file is damaged.
          OSError: If a file cannot be read, or is not a plain file.
        """
        with self._futures_lock:
            self._clear_prefetch_queue_locked()
            self._state.read(pathlib.Path(path).absolute())

    def shutdown(self, timeout: float | None = None) -> None:
        """Waits until running fetches have ended, then closes the buffer."""
        try:
            super().shutdown(timeout)
        finally:
            self.close()

    def close(self) -> None:
        """Ends the writer, and the server if it runs in this process."""
        if self._sequences is not None:
            self._sequences.close()
        self._access.close()

    # ---- Other processes -------------------------------------------------------------------------

    def __getstate__(self) -> dict[str, Any]:
        """Returns the address of the table and the arguments; the table itself has `alpha`."""
        return {
            **self._settings,
            "server": self._access.for_others(),
            "beta": self._sampler.beta if self.alpha is not None else None,
            "batch_size": self._batch_size,
            "transform": self._transform,
            "_fields": self._access.fields.known(),
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        arguments = dict(state)
        fields = arguments.pop("_fields")
        # Even within this process, the copy does not own the server.
        self.__init__(arguments.pop("server"), **arguments)  # pyright: ignore
        self._access.fields.remember(fields)

    def __del__(self) -> None:
        with contextlib.suppress(Exception):
            self.close()
