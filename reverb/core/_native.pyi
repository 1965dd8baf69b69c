# SPDX-License-Identifier: Apache-2.0
"""Types of the native module, and its contract with the Python files that use it.

Every class here is defined in the Rust crate `reverb-bindings`. The Python files flatten nests and
check arguments where that needs no state. Blocking calls release the GIL and can be
interrupted by Ctrl-C. Errors are the classes of `reverb.errors`; an argument of the wrong Python
type raises `TypeError`. A timeout of `None` means "no limit", 0 means "one attempt, do not wait".
"""

import os
import pathlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, final

import numpy as np
from numpy.typing import DTypeLike, NDArray

_Path = tuple[str | int, ...]

# --- Tables ---------------------------------------------------------------------------------------

# A NaN that means the largest priority of a table.
MAX_PRIORITY: float
NUM_SLOTS: int
TABLE_STATES: list[str]
DTYPES: list[tuple[int, str, str, int, bool]]

class ItemSelector:
    def to_options(self) -> bytes:
        """A serialized `deepmind.reverb.KeyDistributionOptions`."""

@final
class FifoSelector(ItemSelector):
    def __new__(cls) -> FifoSelector: ...

@final
class LifoSelector(ItemSelector):
    def __new__(cls) -> LifoSelector: ...

@final
class UniformSelector(ItemSelector):
    def __new__(cls, *, over: str = ...) -> UniformSelector: ...

@final
class PrioritizedSelector(ItemSelector):
    def __new__(
        cls, priority_exponent: float, *, draw: str = "independent"
    ) -> PrioritizedSelector: ...

@final
class ShuffleSelector(ItemSelector):
    def __new__(cls, seed: int | None = None) -> ShuffleSelector: ...

@final
class RecentSelector(ItemSelector):
    def __new__(cls, expected_age: float) -> RecentSelector: ...

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
    """A table for a server.

    Raises `InvalidArgumentError` if a selector was given to another table before (as sampler or as
    remover), or if the rate limiter belongs to a table that still exists.
    """

    def __new__(
        cls,
        name: str,
        *,
        sampler: ItemSelector,
        remover: ItemSelector,
        max_size: int,
        max_times_sampled: int,
        rate_limiter: RateLimiter,
        signature: bytes | None,
        seed: int | None,
        options: bytes,
    ) -> Table:
        """`options` is a `PriorityTableCheckpoint` with what dm-reverb's tables do not have."""

    def name(self) -> str: ...
    def count_from(self, inserts: int, samples: int) -> None:
        """Makes a table without a server count on from these numbers of its items."""
    def check_in_group(self) -> None:
        """Raises `InvalidArgumentError` if a group of servers cannot have its sampler."""

    def why_never(self) -> str | None: ...
    def can_sample(self, num_samples: int) -> bool: ...
    def can_insert(self, num_inserts: int) -> bool: ...
    def info(self) -> bytes:
        """A serialized `deepmind.reverb.TableInfo`."""

    def settings(self) -> bytes:
        """A serialized `PriorityTableCheckpoint` without items."""

@final
class Server:
    """Serves from construction until `stop` or until it is dropped. Port 0: any free port."""

    def __new__(cls, tables: Sequence[Table], config: Any) -> Server:
        """Loads the latest checkpoint, then serves. `config` is a `StartConfig` of `_server`."""
    def reload_security(self) -> list[str]:
        """Reads certificates and tokens again; returns a line for each thing that changed."""
    def status(self, with_streams: bool) -> bytes:
        """A serialized `StatusResponse`."""
    def port(self) -> int: ...
    def http_port(self) -> int | None: ...
    def unix_address(self) -> str | None: ...
    def checkpoint(self) -> str:
        """Saves all tables; returns the path."""
    def configure_tables(self, request: bytes) -> bytes:
        """Takes a `ConfigureTablesRequest`, returns a `ConfigureTablesResponse`, serialized."""
    def sync(self, request: bytes) -> bytes:
        """Takes a `SyncRequest`, returns a `SyncResponse`, serialized."""
    def drain(self, timeout_s: float, is_final: bool) -> int:
        """Ends all streams; returns how many were still open after `timeout_s`."""
    def stop(self, is_final: bool) -> None:
        """With `is_final` clients learn that the server does not come back."""
    def wait(self) -> None:
        """Blocks until the server is stopped; Ctrl-C raises `KeyboardInterrupt`."""

@final
class StoredCheckpoint:
    """A complete checkpoint on disk, or the latest one in a directory of checkpoints."""

    def __new__(cls, path: str | os.PathLike[str], server_name: str | None) -> StoredCheckpoint: ...
    def path(self) -> pathlib.Path: ...
    def server_name(self) -> str | None: ...
    def place(self) -> tuple[str, int, int] | None:
        """Group of the server, index of its shard, and number of shards."""
    def taken_at(self) -> float | None:
        """The time of the snapshot, in seconds since 1970."""
    def is_in_use(self) -> bool:
        """Whether a running server saved or loaded it."""
    def num_bytes(self) -> int:
        """Size of its files, compared with what the checkpoint says."""
    def tables(self) -> list[bytes]:
        """One serialized `TableInfo` per table."""
    def configs(self) -> list[bytes]:
        """One serialized `PriorityTableCheckpoint` per table, without items."""
    def statistics(self, progress: Callable[[int, int], Any] | None) -> list[tuple[Any, ...]]:
        """One tuple per table.

        It holds the name, the number of items and of chunks, the encoded and decoded bytes, the
        summaries, and the number of items with priority 0. The summaries are
        `(min, median, mean, max)` of time of insertion, priority, times sampled and length; `None`
        without items.
        """
    def scanner(self, table: str, with_inserted_at: bool) -> Sampler:
        """Yields the same as `Client.scanner`, with flat lists as data."""

def as_array(value: Any, name: str) -> NDArray[Any]:
    """Converts a value to a NumPy array; a tensor of another library is shared, by DLPack.

    Raises `InvalidArgumentError` with the name if the memory is not on the CPU.
    """

def masked_crc32c(data: bytes) -> int:
    """The checksum of a record in TensorFlow's format."""

def max_batch_bytes(given: int | None) -> int:
    """Limit of the memory of a batch, in bytes: as given, or the default."""

def process_memory() -> int | None:
    """Bytes that this process may use; `None` if the system does not report it."""

def check_server_name(name: str) -> None:
    """Raises `InvalidArgumentError` if the name is invalid as a server's name in checkpoints."""

def check_limits(limits: object) -> None:
    """Raises `InvalidArgumentError` if a limit of `reverb.Limits` is out of its range."""

def check_unix_path(path: str | os.PathLike[str]) -> None:
    """Raises `InvalidArgumentError` if no Unix socket can have the path."""

def table_part(table: bytes, index: int, num_shards: int) -> bytes:
    """The part of a shard; all are `PriorityTableCheckpoint` messages."""

def table_whole(parts: list[bytes]) -> bytes | None:
    """The table that has these parts; `None` without parts."""

def table_narrowness(table: bytes, num_shards: int) -> tuple[str | None, str | None]:
    """An error and a warning about the rate limiters of the parts."""

# --- Tokens and certificates ----------------------------------------------------------------------

def call_rights() -> list[tuple[str, str]]:
    """Each call of a server, and the right that it needs, as in `docs/howto/securing.md`."""

def new_token() -> str:
    """A random token."""

def token_hash(token: str) -> str:
    """The form of a token in a file of tokens: `sha256:` and hexadecimal digits."""

def check_tokens_file(path: str) -> None:
    """Raises `InvalidArgumentError` with all problems of a file of tokens."""

def check_tls_files(cert: str, key: str, client_ca: str | None) -> None:
    """Raises `InvalidArgumentError` if a server could not use the files."""

def self_signed(directory: str, names: list[str], days: int) -> list[str]:
    """Writes an authority and a certificate of it with keys; returns the paths.

    They are `ca.crt`, `ca.key`, `tls.crt` and `tls.key`. Refuses to replace a file.
    """

def examine_store(
    path: str | os.PathLike[str], repairs: bool, bytes_per_second: int
) -> dict[str, Any]:
    """Checks the journal of a stopped server, and repairs it if `repairs` is true.

    Of the result, `at` is in seconds since 1970, `tables` are `(name, items, lost)` with `lost` a
    list of reasons and numbers of items, `notes` are `(at, client, note)`, `shard` is `(index,
    num_shards, group)` or `None`, `files` are numbers and bytes of data files, logs and bases,
    `damage` is a text and a number of lost records, or `None`.
    """

def open_file(path: str | os.PathLike[str], append: bool) -> int:
    """Opens a file to read it or to append to it; returns its descriptor.

    Raises `OSError` for a pipe or a device.
    """

def read_file(path: str | os.PathLike[str], max_bytes: int) -> bytes:
    """The content of a file; `OSError` if it is not a plain file, or has more bytes."""

# --- Clients --------------------------------------------------------------------------------------

@final
class ColumnNames:
    """The names of the columns of a nest, for `insert` and the writers."""

    def __new__(cls, labels: Sequence[str]) -> ColumnNames:
        """Labels are paths, joined with `/`."""

@final
class NestFlattener:
    """Flattens nests; structures that it has seen take no Python code."""

    def __new__(
        cls, flatten_any: Callable[[Any], tuple[Sequence[str], Sequence[Any]]]
    ) -> NestFlattener:
        """`flatten_any` returns labels and leaves of any nest."""
    def flatten(self, data: Any) -> tuple[list[Any], ColumnNames]:
        """The leaves in the order of `tree.flatten`, and the names of their columns."""

@final
class Client:
    """Connects on first use. Calls raise if no server answers within `connect_timeout_s`."""

    def __new__(
        cls,
        server_address: str,
        connect_timeout_s: float,
        keepalive_s: float | None,
        keepalive_timeout_s: float,
        credentials: Any,
        compresses: bool,
        is_for_operators: bool = False,
    ) -> Client:
        """`credentials` is a `reverb._server.credentials.ClientCredentials` or `None`.

        Values in it that are `None` come from the environment. A client for operators may use the
        connections that a full server keeps for them.
        """
    def close(self) -> None:
        """Ends calls that wait; later calls raise `FailedPreconditionError`.

        Writers, samplers and batches that were made of it keep its connections.
        """
    def lasting(self) -> Client:
        """Returns the same client for objects that outlive it: `close` does not end its calls."""
    def give_up_on_silence(self, limit_s: float) -> None:
        """Ends small calls when the server is silent for `limit_s` seconds. Not after a fork."""
    def is_local(self) -> bool:
        """Whether the server is in this process now."""
    def call(self, name: str, request: bytes, timeout_s: float | None = None) -> bytes:
        """Makes a call of one request and one answer: `Reset`, `Status` (`wire/src/calls.rs`).

        Takes and returns serialized messages.
        """
    def mutate_priorities(
        self, table: str, updates: Mapping[int, float] | None, deletes: Sequence[int] | None
    ) -> None: ...
    def update_priorities(
        self, table: str, keys: NDArray[np.uint64], priorities: NDArray[np.float64]
    ) -> None:
        """Keys and priorities are `[N]`."""
    def hold_rate_limiter(self, table: str, count: bool) -> RateLimiterHold: ...
    def shard_info(self) -> list[ShardRow]:
        """One row for each shard of the group."""
    def updates_missed(self) -> int: ...
    def transfer(self, table: str, slots: Sequence[int], target: Client) -> tuple[int, int]:
        """Copies items of these slots to another server.

        Returns the number of copied items, and of those that the server had already.
        """
    def change_items(self, changes: Any) -> list[bytes]:
        """Adds or changes items with rollouts; returns those that were refused, serialized.

        `changes` is a `reverb._client.rollout_items.Changes`.
        """
    def new_lease(self) -> tuple[int, int]:
        """Returns the holder of the leases of this client, and the number of the next one."""
    def take(self, request: bytes, number: int) -> bytes:
        """Takes items with rollouts, for the lease of this number."""
    def give_up_lease(self, table: str, number: int) -> None:
        """Releases a lease of this client some time; does not wait for it."""
    def insert(
        self,
        leaves: Sequence[Any],
        names: ColumnNames,
        priorities: dict[str, float],
        removal_priorities: dict[str, float] | None,
        is_sequence: bool = False,
        options: object = None,
    ) -> None:
        """Inserts one item per table; returns when every item is confirmed.

        The leaves are those of a step, or of a sequence, `[T, ...]`; `T` may differ between leaves.
        """
    def insert_batch(
        self,
        leaves: Sequence[Any],
        names: ColumnNames,
        priorities: Mapping[str, NDArray[np.float64]],
        removal_priorities: dict[str, NDArray[np.float64]] | None,
        options: object = None,
    ) -> NDArray[np.uint64]:
        """Inserts `B` items per table from leaves `[B, ...]`; returns when all are confirmed.

        All arrays must have the same length.

        Returns their keys, those of one row side by side; none for a group of servers.
        """
    def writer(
        self,
        max_sequence_length: int,
        chunk_length: int,
        delta_encoded: bool,
        max_in_flight_items: int,
        compresses: bool,
    ) -> Writer: ...
    def trajectory_writer(
        self,
        num_keep_alive_refs: int,
        validate_items: bool,
        match_names: bool,
        compresses: bool,
    ) -> TrajectoryWriter: ...
    def batched_trajectory_writer(
        self, batch_size: int, num_keep_alive_refs: int, validate_items: bool, compresses: bool
    ) -> BatchedTrajectoryWriter: ...
    def sequence_writer(self, options: Any, compresses: bool) -> SequenceWriter:
        """`options` is a `reverb._writers.sequence.SequenceOptions`."""
    def structured_writer(self, configs: Sequence[bytes], compresses: bool) -> StructuredWriter: ...
    def sampler(
        self,
        table: str,
        max_samples: int,
        emit_timesteps: bool,
        timeout_ms: int | None,
        unflatten: Callable[[list[Any]], Any] | None,
        window: tuple[Any, ...] | None = None,
    ) -> Sampler:
        """Yields a `ReplaySample`, or lists of them with one per timestep.

        The window is that of `reverb.Window.to_native`.
        """
    def scanner(
        self,
        table: str,
        columns: Sequence[int],
        condition: bytes,
        partial: bool,
        with_inserted_at: bool,
        unflatten: Callable[[list[Any]], Any] | None,
    ) -> Sampler:
        """Yields a `ReplaySample` for every item of the table that fulfils a condition.

        `columns` are positions, increasing; empty for all. `condition` is a serialized
        `reverb.ItemCondition`. With `partial`, shards of a group that do not answer are left out.

        With `with_inserted_at` it yields pairs `(inserted_at, sample)`, with the time of insertion
        in seconds since 1970.
        """
    def fetch(self, request: Any, keys: NDArray[np.uint64]) -> BatchAnswer:
        """Reads the items of these keys `[N]`; of the request, table, columns and form count."""
    def sample_batch(self, request: Any) -> BatchAnswer:
        """Samples the batch that a `reverb._client.batch_request.BatchRequest` describes.

        The items that were sampled before an exception are in its `samples`: pairs of the numbers
        in `SampleInfo` and the columns.
        """

@final
class BatchAnswer:
    """A batch that was sampled."""

    @property
    def infos(self) -> tuple[NDArray[Any], ...]:
        """Arrays `[B]` in the order of `BatchInfo`, and `()` as lengths; those of `out`, if any.

        The smallest probability and the epoch are 0 if the server does not report them.
        """
    @property
    def columns(self) -> list[NDArray[Any]]:
        """One array for each column; none with `out`."""
    @property
    def lengths(self) -> list[NDArray[np.int32] | None]:
        """Lengths `[B]` of the items of each column if they are padded.

        If they are packed, offsets `[B + 1]`; `None` for a column that is a single step.
        """
    @property
    def num_items(self) -> int: ...

@final
class ShardRow:
    """One shard of a group."""

    @property
    def index(self) -> int: ...
    @property
    def address(self) -> str: ...
    @property
    def server_id(self) -> int | None: ...
    @property
    def num_slots(self) -> int: ...
    @property
    def state(self) -> str: ...
    @property
    def error(self) -> str: ...
    @property
    def last_seen_s(self) -> float | None:
        """Seconds since its last answer."""
    @property
    def tables(self) -> bytes:
        """A serialized `WatchResponse`."""

@final
class BatchesAhead:
    """Whole batches of one table, which the core samples ahead."""

    def __new__(cls, client: Client, request: Any, num_ahead: int) -> BatchesAhead: ...
    def start(self) -> None: ...
    def next(self, timeout_s: float | None) -> tuple[BatchAnswer, float, float] | None:
        """The answer of `Client.sample_batch`, its age, and the time spent waiting for it."""
    def waits_for(self) -> str | None: ...
    def is_ready(self) -> bool: ...
    def num_ready(self) -> int: ...
    def close(self) -> None: ...

@final
class Outputs:
    """Arrays that batches are written to: a nest of dicts, lists and tuples, and optionally infos.

    Raises `InvalidArgumentError` if an array is not C-contiguous, writable and `[B, ...]`, or if
    two share memory.
    """

    def __new__(
        cls, name: str, nest: Any, infos: Sequence[Any] | None, batch_size: int
    ) -> Outputs: ...
    def arrays(self) -> list[NDArray[Any]]:
        """The arrays of the columns."""

@final
class AsyncClient:
    """The calls of a client for one event loop, in its thread.

    A call returns its result if that is available immediately, else a `Call`. Arguments and results
    are those of `Client`.
    """

    def __new__(cls, client: Client, event_loop: Any) -> AsyncClient: ...
    def fileno(self) -> int:
        """The descriptor that the event loop watches; -1 after `close`."""
    def wake(self) -> None:
        """Wakes the coroutines whose calls have ended; for the event loop."""
    def should_yield(self) -> bool:
        """Whether the event loop should run now, after many results without a wait."""
    def num_waiting(self) -> int: ...
    def cancel(self, call: Call) -> list[Any]:
        """Ends a call; returns the items that it has sampled: info and columns of each."""
    def close(self) -> None:
        """Ends all calls, cancels the tasks that await them, and closes the descriptors."""
    def call(self, name: str, request: bytes, timeout_s: float | None = None) -> Call | bytes: ...
    def mutate_priorities(
        self, table: str, updates: Mapping[int, float] | None, deletes: Sequence[int] | None
    ) -> Call | None: ...
    def update_priorities(
        self, table: str, keys: NDArray[np.uint64], priorities: NDArray[np.float64]
    ) -> Call | None: ...
    def hold_rate_limiter(self, table: str, count: bool) -> Call | RateLimiterHold: ...
    def release_rate_limiter(self, hold: RateLimiterHold) -> Call | None: ...
    def shard_info(self) -> Call | list[ShardRow]: ...
    def start_insert(self) -> Call | Insertion: ...
    def change_items(self, insertion: Insertion, changes: Any) -> Any: ...
    def take(self, request: bytes, number: int) -> Any: ...
    def insert(
        self,
        insertion: Insertion,
        leaves: Sequence[Any],
        names: ColumnNames,
        priorities: dict[str, float],
        removal_priorities: dict[str, float] | None,
        is_sequence: bool = False,
        options: object = None,
    ) -> Call | None: ...
    def insert_batch(
        self,
        insertion: Insertion,
        leaves: Sequence[Any],
        names: ColumnNames,
        priorities: Mapping[str, NDArray[np.float64]],
        removal_priorities: dict[str, NDArray[np.float64]] | None,
        options: object = None,
    ) -> Call | NDArray[np.uint64]: ...
    def sample_batch(self, request: Any) -> Call | BatchAnswer: ...
    def batch_arrival(self, ahead: BatchesAhead) -> Call | None:
        """Waits until `next` of these batches would return or raise at once."""
    def fetch(self, request: Any, keys: NDArray[np.uint64]) -> Call | BatchAnswer: ...
    def next_sample(self, sampler: Sampler) -> Any:
        """The next item, `None` after the last."""
    def trajectory_writer(
        self,
        num_keep_alive_refs: int,
        validate_items: bool,
        match_names: bool,
        compresses: bool,
    ) -> Call | TrajectoryWriter:
        """A writer whose calls never block; see `throttle`."""
    def batched_trajectory_writer(
        self, batch_size: int, num_keep_alive_refs: int, validate_items: bool, compresses: bool
    ) -> Call | BatchedTrajectoryWriter: ...
    def sequence_writer(self, options: Any, compresses: bool) -> Call | SequenceWriter: ...
    def flush(
        self,
        writer: QueuedWriter,
        block_until_num_items: int,
        timeout_ms: int | None,
    ) -> Call | None: ...
    def end_episode(
        self, writer: TrajectoryWriter, clear_buffers: bool, timeout_ms: int | None
    ) -> Call | None: ...
    def throttle(self, writer: QueuedWriter) -> Call | None:
        """Waits while a writer is faster than its connection."""

@final
class Call:
    """A call that had to wait."""

    @property
    def future(self) -> Any:
        """A future of the event loop that is done when there is an answer."""
    def result(self) -> Any:
        """The result or the exception; asked once, when `future` is done."""
    def is_answered(self) -> bool:
        """Whether the answer has come, and `result` has not returned it yet."""

@final
class Insertion:
    """A started insert; used once."""

@final
class RateLimiterHold:
    """Keeps a rate limiter off until it is released or deleted."""

    def release(self) -> None:
        """Turns the limiter on again; `UnavailableError` if that happened before."""

@final
class Coordinator:
    """Moves the windows of a group's rate limiters until it is stopped."""

    def __new__(cls, address: str, credentials: Any) -> Coordinator: ...
    def is_running(self) -> bool: ...
    def freeze(self, is_frozen: bool) -> None:
        """While it is frozen, no window grows."""
    def stop(self) -> None: ...

@final
class Sampler(Iterator[Any]):
    NUM_INFO_TENSORS: ClassVar[int]
    def __iter__(self) -> Sampler: ...
    def __next__(self) -> Any: ...

# --- Writers --------------------------------------------------------------------------------------

class QueuedWriter:
    """A writer of any class: its items wait for their confirmation."""

    def flush(self, block_until_num_items: int, timeout_ms: int | None) -> None: ...
    def close(self) -> None: ...
    def report_unconfirmed(self, how: str) -> None:
        """Logs how many items are not confirmed, if any."""
    def limit_pending(self, max_pending_bytes: int) -> None:
        """Makes calls that create items wait while so many bytes are unconfirmed."""
    @property
    def is_over_limit(self) -> bool:
        """Whether an event loop should let the writer wait; see `AsyncClient.throttle`."""
    @property
    def num_pending(self) -> int:
        """Number of items that are not confirmed yet."""
    @property
    def closed(self) -> bool:
        """Whether `close` was called."""

@final
class Writer(QueuedWriter):
    def append(self, leaves: Sequence[Any], names: ColumnNames) -> None: ...
    def append_sequence(self, leaves: Sequence[Any], names: ColumnNames) -> None: ...
    def create_item(
        self, table: str, num_timesteps: int, priority: float, removal_priority: float | None
    ) -> None: ...
    def flush(self) -> None: ...  # type: ignore[override]
    def confirm(self, timeout_ms: int) -> None:
        """Sends waiting items, and waits for all confirmations."""
    def abandon(self) -> None:
        """Closes at once, without a wait."""
    def close(  # type: ignore[override]
        self, retry_on_unavailable: bool
    ) -> None: ...

@final
class CellRef:
    """One value of one column. It expires when the writer no longer keeps the value."""

    @property
    def expired(self) -> bool: ...
    @property
    def shape(self) -> list[int]: ...
    @property
    def dtype(self) -> np.dtype[Any]: ...
    def numpy(self) -> NDArray[Any]: ...

@final
class TrajectoryColumn:
    """References to values of one column, in the order in which they will be sampled.

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
        """A private attribute of dm-reverb that programs use."""
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
    """The values of one column that a writer keeps. A leaf for `tree` and `tf.nest`."""

    @property
    def shape(self) -> tuple[int, ...]:
        """`[steps, ...]`, with all steps of the history, also those without a value."""
    @property
    def dtype(self) -> np.dtype[Any]: ...
    @property
    def _data_references(self) -> list[CellRef | None]:
        """As in `TrajectoryColumn`; begins with the oldest value that is kept."""
    def __len__(self) -> int: ...
    def __getitem__(self, index: int | slice | list[int]) -> TrajectoryColumn: ...
    def __iter__(self) -> Iterator[CellRef | None]: ...

@final
class TrajectoryWriter(QueuedWriter):
    """Dropping it closes it; unconfirmed items are abandoned."""

    @property
    def episode_steps(self) -> int: ...
    def append(self, data: Any, partial_step: bool) -> bool:
        """Appends a nest of a known structure; returns False, and does nothing, if it is unknown.

        A structure is the types of the containers and their keys or lengths. Any leaf may be
        `None`: the column then has no value in this step.
        """
    def append_flat(
        self, columns: Sequence[int], leaves: Sequence[Any], partial_step: bool
    ) -> None:
        """Appends `leaves[i]` to column `columns[i]`; on an error none is appended."""
    def register_columns(self, paths: Sequence[_Path]) -> list[int]:
        """Returns the columns' numbers in the order of `paths`; a known path keeps its number."""
    def column_history(self, column: int) -> ColumnHistory: ...
    def remember_structure(self, data: Any, columns: Sequence[int], leaves: Sequence[Any]) -> None:
        """Makes `append` recognise nests like `data`; `columns` are those of its leaves.

        Does nothing for containers other than dict, list, tuple and named tuples.
        """
    def create_item(
        self, table: str, priority: float, trajectory: Any, removal_priority: float | None
    ) -> bool:
        """Queues an item; returns False, and does nothing, if `tree` must flatten the nest."""
    def create_item_flat(
        self,
        table: str,
        priority: float,
        columns: Sequence[Any],
        names: ColumnNames,
        removal_priority: float | None,
    ) -> None:
        """Queues an item of `TrajectoryColumn` objects and constants."""
    def end_episode(self, clear_buffers: bool, timeout_ms: int | None) -> None: ...
    def configure(
        self, path: _Path, num_keep_alive_refs: int, max_chunk_length: int | None
    ) -> None:
        """Sets the options of one column, which need not exist yet."""

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
    """The values of one column that a batched writer keeps. A leaf for `tree`."""

    @property
    def shape(self) -> tuple[int, ...]:
        """`[B, steps, ...]`, with the steps of the environment that has the most."""
    @property
    def dtype(self) -> np.dtype[Any]: ...
    def __len__(self) -> int:
        """Number of steps of the environment that has the most."""
    def __getitem__(
        self, index: int | slice | list[int] | NDArray[np.integer[Any]]
    ) -> BatchedTrajectoryColumn: ...
    def select(
        self, index: int | slice | list[int] | NDArray[np.integer[Any]], *, pad: str
    ) -> BatchedTrajectoryColumn:
        """Like `[index]`, but the first step of an environment stands for all steps before it.

        `pad` must be "first". `history["x"].select(slice(-4, None), pad="first")` has the last four
        steps; where an environment has two, the first one is there three times.
        """

@final
class BatchedTrajectoryWriter(QueuedWriter):
    """`B` trajectory writers, stepped by one call; row `i` of every leaf is environment `i`."""

    @property
    def episode_steps(self) -> NDArray[np.int64]:
        """`[B]`"""
    def append(self, data: Any, partial_step: bool, where: NDArray[np.bool_] | None = None) -> bool:
        """Appends the rows of the environments in `where`; None: of all."""
    def append_flat(
        self,
        columns: Sequence[int],
        leaves: Sequence[Any],
        partial_step: bool,
        where: NDArray[np.bool_] | None = None,
    ) -> None: ...
    def register_columns(self, paths: Sequence[_Path]) -> list[int]: ...
    def column_history(self, column: int) -> BatchedColumnHistory: ...
    def remember_structure(
        self, data: Any, columns: Sequence[int], leaves: Sequence[Any]
    ) -> None: ...
    def create_all_items(
        self,
        table: str,
        items: Sequence[
            tuple[
                Sequence[Any],
                NDArray[np.float64],
                NDArray[np.float64] | None,
                NDArray[np.bool_] | None,
            ]
        ],
        names: ColumnNames | None,
        keep: bool = False,
    ) -> int:
        """Queues items, all or none: for each element one item in each environment of its mask.

        An element has the columns and constants, the priorities `[B]`, the removal priorities
        `[B]`, and the mask; without a mask, all environments with enough steps. With `keep`, they
        may be sent later, with others or by a flush. Returns the number of items.
        """
    def is_confirmed_within(self, block_until_num_items: int, timeout_ms: int) -> bool:
        """Like `flush`, but returns false after the timeout."""
    def end_episode(self, where: NDArray[np.bool_] | None, clear_buffers: bool) -> None:
        """Ends the episodes of the environments in `where` (None: all). Never blocks."""
    def configure(
        self, path: _Path, num_keep_alive_refs: int, max_chunk_length: int | None
    ) -> None: ...

@final
class SequenceWriter(QueuedWriter):
    """Dropping it closes it; unconfirmed items are abandoned. Thread-safe."""

    def report_unwritten(self) -> None:
        """Logs the steps that are in no item, if any."""
    @property
    def episode_steps(self) -> NDArray[np.int64]:
        """`[B]`; `[1]` without a batch size."""
    @property
    def num_dropped_episodes(self) -> int: ...
    def append(
        self,
        data: Any,
        is_last: bool | NDArray[np.bool_],
        priorities: float | NDArray[np.float64],
        removal_priorities: float | NDArray[np.float64] | None,
    ) -> int | None:
        """Appends a nest of a known structure; returns None, and does nothing, if it is unknown.

        All but `data` are `[B]`, or one value for all. Returns the number of items.
        """
    def append_flat(
        self,
        labels: Sequence[str],
        leaves: Sequence[Any],
        is_last: bool | NDArray[np.bool_],
        priorities: float | NDArray[np.float64],
        removal_priorities: float | NDArray[np.float64] | None,
    ) -> int:
        """Appends leaves; the labels must be those of the first step."""
    def remember_structure(self, data: Any, leaves: Sequence[Any]) -> None:
        """Makes `append` recognise nests like `data`, which was appended before."""
    def columns(self) -> list[tuple[str, int, list[int]]]:
        """Label, dtype number and shape of a row of each column; empty before the first step."""
    def end_episode(self, where: bool | NDArray[np.bool_]) -> None: ...
    def tensorflow_handle(self) -> int:
        """Returns the number that identifies the writer in TensorFlow ops."""

@final
class StructuredWriter(QueuedWriter):
    """Dropping it flushes its items, for a bounded time."""

    @property
    def step_is_open(self) -> bool: ...
    def set_column_paths(self, paths: Sequence[_Path]) -> None:
        """Sets the paths for error texts: `column 3 (path=('a', 0))`.

        Called once, before the first `append`.
        """
    def append(self, leaves: Sequence[Any], partial_step: bool) -> None: ...
    def end_episode(self, clear_buffers: bool, timeout_ms: int | None) -> None: ...

# --- Logs -----------------------------------------------------------------------------------------

@final
class LogLines:
    """A queue of the core's lines for Python's logging."""

    def next(self) -> tuple[int, float, str, str, dict[str, Any]] | None:
        """Level, seconds since 1970, part of the core, message and fields of the next line.

        Blocks until there is one; `None` when there will be no more.
        """

def logs_to_queue(capacity: int) -> LogLines:
    """Sends the core's lines into a queue, and closes an earlier one."""

def report_waits(after_s: float | None, repeat_s: float) -> None:
    """Sets when calls that wait are reported."""
    ...

def logs_to_stderr() -> None:
    """Writes the core's lines to standard error, and closes the queue if there is one."""

def configure_logs(level: str, format: str | None) -> None:
    """Sets the level, unless `REVERB_LOG` has one, and the format, unless it is `None`."""

def print_log_line(level: str, message: str, fields: Sequence[tuple[str, str | int]]) -> None:
    """Logs a line of the command to standard error. Never blocks."""

def wait_for_log() -> None:
    """Waits until the lines for standard error are written, for at most a second."""

def tensorflow_register_address() -> int:
    """Returns the address of the function that registers the TensorFlow ops."""

def close_sampler(handle: int) -> None:
    """Closes the sampler of a TensorFlow op, if it is open. Never blocks."""
