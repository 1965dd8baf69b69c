# SPDX-License-Identifier: Apache-2.0
"""Types of the compiled module, and what each side may expect of the other.

Every class here is made by the Rust crate `reverb-bindings`; the Python files around it turn nests
into flat lists and check arguments whose checks need no state. All waiting happens without the GIL
and answers Ctrl-C. Errors are the classes of `reverb.errors`; an argument of the wrong Python type
is a `TypeError`. Timeouts of `None` mean "no limit", of `0` "one attempt, do not wait".
"""

import os
import pathlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, final, overload

import numpy as np
from numpy.typing import DTypeLike, NDArray

_Path = tuple[str | int, ...]

# --- Tables ---------------------------------------------------------------------------------------

class ItemSelector: ...

@final
class FifoSelector(ItemSelector):
    def __new__(cls) -> FifoSelector: ...

@final
class LifoSelector(ItemSelector):
    def __new__(cls) -> LifoSelector: ...

@final
class UniformSelector(ItemSelector):
    def __new__(cls) -> UniformSelector: ...

@final
class PrioritizedSelector(ItemSelector):
    def __new__(cls, priority_exponent: float) -> PrioritizedSelector: ...

@final
class HeapSelector(ItemSelector):
    def __new__(cls, min_heap: bool) -> HeapSelector: ...

@final
class RateLimiter:
    def __new__(
        cls, samples_per_insert: float, min_size_to_sample: int, min_diff: float, max_diff: float
    ) -> RateLimiter: ...

@final
class Table:
    """A table that a server may serve.

    Raises `InvalidArgumentError` if a selector object was given to a table before (as sampler or
    as remover), or if the limiter belongs to a table that is still alive.
    """

    def __new__(
        cls,
        name: str,
        sampler: ItemSelector,
        remover: ItemSelector,
        max_size: int,
        max_times_sampled: int,
        rate_limiter: RateLimiter,
        signature: bytes | None,
        seed: int | None,
    ) -> Table: ...
    def name(self) -> str: ...
    def can_sample(self, num_samples: int) -> bool: ...
    def can_insert(self, num_inserts: int) -> bool: ...
    def info(self) -> bytes:
        """A serialized `deepmind.reverb.TableInfo`."""

@final
class Server:
    """Serves from construction until `stop` or until dropped. Port 0: the system chooses one."""

    def __new__(
        cls,
        tables: Sequence[Table],
        port: int,
        host: str | None,
        checkpoints: Any,
        checkpoint_interval_s: float | None,
        keepalive_s: float | None,
        keepalive_timeout_s: float,
    ) -> Server:
        """Loads the latest checkpoint first. `checkpoints` looks like `CheckpointerOptions`."""
    def port(self) -> int: ...
    def checkpoint(self) -> str:
        """Saves all tables; returns the path."""
    def stop(self) -> None: ...
    def wait(self) -> None:
        """Blocks until stopped; Ctrl-C raises `KeyboardInterrupt`."""

@final
class StoredCheckpoint:
    """A complete checkpoint on disk, or the latest one in a directory of them."""

    def __new__(cls, path: str | os.PathLike[str], server_name: str | None) -> StoredCheckpoint: ...
    def path(self) -> pathlib.Path: ...
    def server_name(self) -> str | None: ...
    def tables(self) -> list[bytes]:
        """One serialized `TableInfo` a table."""
    def statistics(self, progress: Callable[[int, int], Any] | None) -> list[tuple[Any, ...]]:
        """Name, items, chunks, encoded and decoded bytes, summaries, and priorities of 0, a table.

        The summaries are `(min, median, mean, max)` of time of insertion, priority, times sampled
        and length; `None` without items.
        """
    def scanner(
        self,
        table: str,
        with_inserted_at: bool,
        info_type: Callable[..., Any],
        sample_type: Callable[..., Any],
        unflatten: Callable[[list[Any]], Any] | None,
    ) -> Sampler:
        """Yields what `Client.scanner` does."""

def masked_crc32c(data: bytes) -> int:
    """The checksum of a record in TensorFlow's format."""

def check_server_name(name: str) -> None:
    """Raises `InvalidArgumentError` for a name that no server may have in its checkpoints."""

# --- Clients --------------------------------------------------------------------------------------

@final
class Client:
    """Connects on first use; an address where no server answers for `connect_timeout_s` raises."""

    def __new__(
        cls,
        server_address: str,
        connect_timeout_s: float,
        keepalive_s: float | None,
        keepalive_timeout_s: float,
    ) -> Client: ...
    def server_info(self, timeout_s: float | None) -> list[bytes]:
        """One serialized `TableInfo` a table."""
    def mutate_priorities(
        self, table: str, updates: Mapping[int, float] | None, deletes: Sequence[int] | None
    ) -> None: ...
    def update_priorities(
        self, table: str, keys: NDArray[np.uint64], priorities: NDArray[np.float64]
    ) -> None:
        """Both `[N]`."""
    def reset(self, table: str) -> None: ...
    def checkpoint(self) -> str: ...
    def checkpoint_status(self) -> bytes:
        """A serialized `CheckpointStatusResponse`."""
    def insert(self, leaves: Sequence[Any], priorities: Mapping[str, float]) -> None:
        """One step, one item a table over it; returns when every item is confirmed."""
    def insert_batch(
        self, leaves: Sequence[Any], priorities: Mapping[str, NDArray[np.float64]]
    ) -> None:
        """`B` steps from leaves `[B, ...]`, `B` items a table; returns when all are confirmed."""
    def writer(
        self,
        max_sequence_length: int,
        chunk_length: int,
        delta_encoded: bool,
        max_in_flight_items: int,
    ) -> Writer: ...
    @overload
    def trajectory_writer(
        self, num_keep_alive_refs: int, validate_items: bool, batch_size: None
    ) -> TrajectoryWriter: ...
    @overload
    def trajectory_writer(
        self, num_keep_alive_refs: int, validate_items: bool, batch_size: int
    ) -> BatchedTrajectoryWriter: ...
    def sequence_writer(
        self,
        tables: Sequence[str],
        batch_size: int | None,
        sequence_length: int,
        stride_length: int,
    ) -> SequenceWriter: ...
    def episode_writer(
        self,
        tables: Sequence[str],
        batch_size: int | None,
        max_sequence_length: int,
        drop_long_episodes: bool,
    ) -> SequenceWriter:
        """A sequence writer whose items are whole episodes."""
    def structured_writer(self, configs: Sequence[bytes]) -> StructuredWriter: ...
    def sampler(
        self,
        table: str,
        max_samples: int,
        emit_timesteps: bool,
        timeout_ms: int | None,
        info_type: Callable[..., Any],
        sample_type: Callable[..., Any],
        unflatten: Callable[[list[Any]], Any] | None,
    ) -> Sampler:
        """Yields `sample_type(info_type(...), data)`, or lists of them, one a timestep."""
    def scanner(
        self,
        table: str,
        with_inserted_at: bool,
        info_type: Callable[..., Any],
        sample_type: Callable[..., Any],
        unflatten: Callable[[list[Any]], Any] | None,
    ) -> Sampler:
        """Yields `sample_type(info_type(...), data)` for every item of the table.

        With `with_inserted_at`, a pair of the time of insertion in seconds since 1970 and that.
        """
    def sample_batch(
        self, table: str, batch_size: int, timeout_ms: int | None
    ) -> tuple[
        tuple[
            NDArray[np.uint64],
            NDArray[np.float64],
            NDArray[np.int64],
            NDArray[np.float64],
            NDArray[np.int32],
        ],
        list[NDArray[Any]],
    ]:
        """Five arrays `[B]` in the order of `SampleInfo`, and the columns `[B, T, ...]`.

        An exception has what was sampled as `samples`: pairs of the five numbers and the columns.
        """

@final
class Sampler(Iterator[Any]):
    NUM_INFO_TENSORS: ClassVar[int]
    def __iter__(self) -> Sampler: ...
    def __next__(self) -> Any: ...

# --- Writers --------------------------------------------------------------------------------------

@final
class Writer:
    def append(self, leaves: Sequence[Any]) -> None: ...
    def append_sequence(self, leaves: Sequence[Any]) -> None: ...
    def create_item(self, table: str, num_timesteps: int, priority: float) -> None: ...
    def flush(self) -> None: ...
    def close(self, retry_on_unavailable: bool) -> None: ...

@final
class CellRef:
    """One value of one column, as long as the writer keeps it."""

    @property
    def expired(self) -> bool: ...
    @property
    def shape(self) -> list[int]: ...
    @property
    def dtype(self) -> np.dtype[Any]: ...
    def numpy(self) -> NDArray[Any]: ...

@final
class TrajectoryColumn:
    """References to values of one column, in the order in which a sampler will see them.

    A leaf for `tree` and `tf.nest`, although it can be indexed and iterated.
    """

    def __new__(
        cls,
        data_references: Sequence[CellRef | None],
        *,
        squeeze: bool = False,
        path: _Path | None = None,
    ) -> TrajectoryColumn: ...
    @property
    def is_squeezed(self) -> bool: ...
    @property
    def _data_references(self) -> tuple[CellRef, ...]:
        """A private attribute of the original that programs look at."""
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def dtype(self) -> np.dtype[Any]: ...
    def numpy(self) -> NDArray[Any]: ...
    def __array__(
        self, dtype: DTypeLike | None = None, copy: bool | None = None
    ) -> NDArray[Any]: ...
    def __len__(self) -> int: ...
    def __getitem__(self, index: int | slice | list[int]) -> TrajectoryColumn: ...
    def __iter__(self) -> Iterator[CellRef]: ...

@final
class ColumnHistory:
    """What a writer still holds of one column. A leaf for `tree` and `tf.nest`."""

    @property
    def _data_references(self) -> list[CellRef | None]:
        """As in `TrajectoryColumn`: from the oldest value that is kept on."""
    def __len__(self) -> int: ...
    def __getitem__(self, index: int | slice | list[int]) -> TrajectoryColumn: ...
    def __iter__(self) -> Iterator[CellRef | None]: ...

@final
class TrajectoryWriter:
    """Dropping it closes it: what was not flushed is abandoned."""

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
    @property
    def episode_steps(self) -> int: ...
    def append(self, data: Any, partial_step: bool) -> bool:
        """Appends a nest whose structure was remembered; False, and nothing done, if it was not.

        A structure is: the types of the containers, their keys or lengths. `None` may stand in for
        any leaf: the column is absent in this step.
        """
    def append_flat(
        self, columns: Sequence[int], leaves: Sequence[Any], partial_step: bool
    ) -> None:
        """Appends `leaves[i]` to column `columns[i]`. Either all leaves are taken or none."""
    def register_columns(self, paths: Sequence[_Path]) -> list[int]:
        """The columns' numbers, in the order of `paths`; a path seen before keeps its number."""
    def column_history(self, column: int) -> ColumnHistory: ...
    def remember_structure(self, data: Any, columns: Sequence[int]) -> None:
        """Lets `append` recognise nests like `data`; `columns` in the order of `tree.flatten`.

        Does nothing for containers other than dict, list, tuple and named tuples.
        """
    def create_item(self, table: str, priority: float, trajectory: Any) -> bool:
        """Makes an item of a nest of columns; False, and nothing done, if `tree` must look."""
    def create_item_flat(
        self, table: str, priority: float, columns: Sequence[TrajectoryColumn]
    ) -> None: ...
    def flush(self, block_until_num_items: int, timeout_ms: int | None) -> None: ...
    def end_episode(self, clear_buffers: bool, timeout_ms: int | None) -> None: ...
    def configure(
        self, path: _Path, num_keep_alive_refs: int, max_chunk_length: int | None
    ) -> None:
        """Options of one column; a path that was not seen yet is remembered until it is."""
    def close(self) -> None: ...

@final
class BatchedTrajectoryColumn:
    """One index, applied to the history of each of `B` environments. A leaf for `tree`."""

    @property
    def is_squeezed(self) -> bool: ...
    @property
    def dtype(self) -> np.dtype[Any]: ...
    @property
    def shape(self) -> tuple[int, ...]:
        """`[B, ...]` if squeezed, else `[B, T, ...]`; raises if the environments differ in `T`."""
    def numpy(self) -> NDArray[Any]: ...
    def __len__(self) -> int: ...

@final
class BatchedColumnHistory:
    """What a batched writer still holds of one column. A leaf for `tree`."""

    def __len__(self) -> int:
        """Steps of the environment that has the most."""
    def __getitem__(
        self, index: int | slice | list[int] | NDArray[np.integer[Any]]
    ) -> BatchedTrajectoryColumn: ...

@final
class BatchedTrajectoryWriter:
    """`B` trajectory writers stepped by one call; environment `i` owns row `i` of every leaf."""

    @property
    def closed(self) -> bool: ...
    @property
    def episode_steps(self) -> NDArray[np.int64]:
        """`[B]`"""
    def append(self, data: Any, partial_step: bool) -> bool: ...
    def append_flat(
        self, columns: Sequence[int], leaves: Sequence[Any], partial_step: bool
    ) -> None: ...
    def register_columns(self, paths: Sequence[_Path]) -> list[int]: ...
    def column_history(self, column: int) -> BatchedColumnHistory: ...
    def remember_structure(self, data: Any, columns: Sequence[int]) -> None: ...
    def create_items_flat(
        self,
        table: str,
        priorities: NDArray[np.float64],
        columns: Sequence[BatchedTrajectoryColumn],
        where: NDArray[np.bool_] | None,
    ) -> int:
        """One item for each environment of `where` (if None, for all with enough steps).

        Priorities `[B]`. Returns the number of items.
        """
    def flush(self, block_until_num_items: int, timeout_ms: int | None) -> None: ...
    def end_episode(self, where: NDArray[np.bool_] | None, clear_buffers: bool) -> None:
        """Ends the episodes of `where` (all if None). Never waits."""
    def configure(
        self, path: _Path, num_keep_alive_refs: int, max_chunk_length: int | None
    ) -> None: ...
    def close(self) -> None: ...

@final
class SequenceWriter:
    """Dropping it closes it: what was not flushed is abandoned. May be shared by threads."""

    @property
    def closed(self) -> bool: ...
    @property
    def episode_steps(self) -> NDArray[np.int64]:
        """`[B]`; `[1]` without a batch size."""
    @property
    def num_dropped_episodes(self) -> int: ...
    def append(
        self, data: Any, is_last: bool | NDArray[np.bool_], priorities: float | NDArray[np.float64]
    ) -> int | None:
        """Appends a nest whose structure was remembered; None, and nothing done, if it was not.

        `is_last` and `priorities` are `[B]`, or one value for all. Returns the number of items.
        """
    def append_flat(
        self,
        labels: Sequence[str],
        leaves: Sequence[Any],
        is_last: bool | NDArray[np.bool_],
        priorities: float | NDArray[np.float64],
    ) -> int:
        """Appends leaves; the labels of the first step must be those of all others."""
    def remember_structure(self, data: Any) -> None:
        """Lets `append` recognise nests like `data`, which was appended."""
    def columns(self) -> list[tuple[str, int, list[int]]]:
        """Label, number of the dtype, shape of a row's value; none before the first step."""
    def flush(self, block_until_num_items: int, timeout_ms: int | None) -> None: ...
    def end_episode(self, where: bool | NDArray[np.bool_]) -> None: ...
    def tensorflow_handle(self) -> int:
        """What the ops of TensorFlow know the writer by."""
    def close(self) -> None: ...

@final
class StructuredWriter:
    """Dropping it flushes what it holds, for a bounded time."""

    @property
    def step_is_open(self) -> bool: ...
    def set_column_paths(self, paths: Sequence[_Path]) -> None:
        """Called once, before the first `append`: error texts say `column 3 (path=('a', 0))`."""
    def append(self, leaves: Sequence[Any], partial_step: bool) -> None: ...
    def flush(self, block_until_num_items: int, timeout_ms: int | None) -> None: ...
    def end_episode(self, clear_buffers: bool, timeout_ms: int | None) -> None: ...

def tensorflow_register_address() -> int:
    """The address of the function that registers TensorFlow's ops."""

def close_parked_samplers(dataset_key: int, keep: int) -> None:
    """Closes samplers started for a dataset of which `keep` iterators are left. Never blocks."""
