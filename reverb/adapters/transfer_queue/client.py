# SPDX-License-Identifier: Apache-2.0
"""`TransferQueueClient`: the calls on keys, fields and tags, over two tables."""

import asyncio
import functools
import time
import uuid
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import numpy as np

import reverb
from reverb.adapters.transfer_queue.columns import as_field, fields_of, schema_of
from reverb.adapters.transfer_queue.entries import Entries, Known, Layout
from reverb.adapters.transfer_queue.keyed_items import row_key
from reverb.adapters.transfer_queue.library import tensordict
from reverb.adapters.transfer_queue.metadata import BatchMeta
from reverb.adapters.transfer_queue.saved_tables import load_tables, save_tables
from reverb.adapters.transfer_queue.storage.simple_storage import StorageUnitData
from reverb.adapters.transfer_queue.values import Values
from reverb.errors import UnimplementedError
from reverb.shown_text import shown

__all__ = ["TransferQueueClient"]

_NOT_FOUND = "keys or partition were not found!"


class TransferQueueClient:
    """TransferQueue's client; each method has an `async_` twin, which runs in a thread.

    A global index is the number of a key: the same in all processes, and for a key that comes again
    after it was cleared. Nothing is cached: what one process has put, all others see at once.
    """

    def __init__(self, client: reverb.Client) -> None:
        self.reverb_client = client
        self._entries, self._values = Entries(client), Values(client)
        self._start = self._newest_start()

    @shown
    def __repr__(self) -> str:
        return f"TransferQueueClient(server_address={self.reverb_client.server_address!r})"

    # ---- Puts ------------------------------------------------------------------------------------

    def put_rows(
        self,
        partition_id: str,
        keys: Sequence[str] | None,
        rows: np.ndarray,
        fields: dict[str, Any],
        tags: Sequence[dict[str, Any]],
        data_parser: Callable[[Any], Any] | None = None,
    ) -> list[str]:
        """Stores fields, then tags, of rows; returns the fields that all of them have now.

        `keys` are the names of the rows; `None`: they are known already. If the server goes back to
        a checkpoint meanwhile, a part of the put may be lost: then it is done again.
        """
        if data_parser is not None:
            fields = data_parser(fields)
        while True:
            before = self._start
            names = self._put_once(partition_id, keys, rows, fields, tags)
            self._start = now = self._newest_start()
            if now[0] == before[0] and now[1] >= before[1]:
                return names

    def _newest_start(self) -> tuple[float | None, int]:
        """Returns the moment to which the server went back at its start, and its saves since."""
        status = self.reverb_client.checkpoint_status()
        return status.restored_saved_at, status.num_saved

    def _put_once(
        self,
        partition_id: str,
        keys: Sequence[str] | None,
        rows: np.ndarray,
        fields: dict[str, Any],
        tags: Sequence[dict[str, Any]],
    ) -> list[str]:
        layouts, known = self._entries.read(partition_id, rows)
        if keys is not None:
            now = time.time_ns()
            for index, (it, key) in enumerate(zip(known, keys, strict=True)):
                it.key, it.created = key, it.created or now + index
        elif any(it.key is None for it in known):
            raise ValueError(_NOT_FOUND)
        unit = StorageUnitData(len(rows))
        unit.put_data(fields, rows.tolist())
        for name, values in unit.fields.items():
            self._values.write(name, rows, values)
        forms = unit.forms(len(rows))
        by_tags: dict[tuple[str, ...], list[int]] = {}
        for index, tag in enumerate(tags):
            by_tags.setdefault(tuple(sorted(tag)), []).append(index)
        for tag_names, indices in by_tags.items():
            layout = Layout(tuple(unit.fields), tag_names)
            if layout not in layouts:
                self._entries.add(partition_id, layout)
            self._entries.write(
                [known[index] for index in indices],
                rows[indices],
                layout,
                [forms[index] for index in indices],
                [tags[index] for index in indices],
            )
        common = set.intersection(*(set(it.fields) for it in known)) if known else set()
        return sorted(common.union(unit.fields))

    def put(
        self,
        data: Any,
        metadata: BatchMeta | None = None,
        partition_id: str | None = None,
        data_parser: Callable[[Any], Any] | None = None,
    ) -> BatchMeta:
        """Stores a TensorDict `[B]` for the samples of `metadata`; `None`: for new keys.

        Raises:
          ValueError: If there is neither metadata nor a partition, or if sizes differ.
        """
        if metadata is None:
            if partition_id is None:
                raise ValueError("put needs metadata or partition_id, got neither")
            names = [uuid.uuid4().hex for _ in range(data.batch_size[0])]
            metadata = self.kv_retrieve_meta(names, partition_id, create=True)
        if len(metadata) != data.batch_size[0]:
            raise ValueError(
                f"data has batch size {data.batch_size[0]}, but metadata {len(metadata)} samples"
            )
        fields = fields_of(data)
        for partition, rows, indices in _by_partition(metadata):
            some = {name: _chosen(value, indices) for name, value in fields.items()}
            tags = [metadata.custom_meta[index] for index in indices]
            self.put_rows(partition, None, rows, some, tags, data_parser)
        return metadata.copy().add_fields(data)

    def set_custom_meta(self, metadata: BatchMeta) -> None:
        """Stores the tags of the samples of `metadata`."""
        for partition, rows, indices in _by_partition(metadata):
            tags = [metadata.custom_meta[index] for index in indices]
            self.put_rows(partition, None, rows, {}, tags)

    # ---- Gets ------------------------------------------------------------------------------------

    def get_rows(self, partition_id: str, rows: np.ndarray, names: Sequence[str] | None) -> Any:
        """Reads the fields of rows into a TensorDict `[B]`; `None`: those that all rows have.

        Rows that are not there are left out, and so are fields that no put of the partition had.

        Raises:
          ValueError: If no row is there, or if a field is missing in some of them.
        """
        layouts, known = self._entries.read(partition_id, rows)
        found = [index for index, it in enumerate(known) if it.key is not None]
        if not found:
            raise ValueError(_NOT_FOUND)
        known = [known[index] for index in found]
        if names is None:
            names = sorted(set.intersection(*(set(it.fields) for it in known)))
        else:
            put = {name for layout in layouts for name in layout.fields}
            names = [name for name in names if name in put]
            if not names:
                return tensordict.TensorDict({}, batch_size=[0])
        lacking = [name for name in names if any(name not in it.fields for it in known)]
        if lacking or not names:
            which = f" These are missing: {', '.join(lacking)}." if lacking else ""
            raise ValueError(f"Some fields are not ready in all the requested keys!{which}")
        rows = rows[found]
        fields = {
            name: as_field(
                self._values.read(name, rows, [it.fields[name] for it in known]), len(rows)
            )
            for name in names
        }
        return tensordict.TensorDict(fields, batch_size=[len(rows)])

    def get_data(self, metadata: BatchMeta) -> Any:
        """Reads the fields of `metadata` for its samples, in their order, as a TensorDict `[B]`."""
        parts = [
            (self.get_rows(partition, rows, metadata.field_names), indices)
            for partition, rows, indices in _by_partition(metadata)
        ]
        if len(parts) == 1:
            return parts[0][0]
        values: dict[str, list[Any]] = {
            name: [None] * len(metadata) for name in metadata.field_names
        }
        for data, indices in parts:
            for name, value in fields_of(data).items():
                for index, row in zip(indices, value, strict=True):
                    values[name][index] = row
        everything = np.arange(len(metadata))
        fields = {name: as_field([(everything, of)], len(metadata)) for name, of in values.items()}
        return tensordict.TensorDict(fields, batch_size=[len(metadata)])

    def kv_retrieve_meta(
        self, keys: Sequence[str] | str, partition_id: str, create: bool = False
    ) -> BatchMeta:
        """Returns the metadata of keys: their numbers, tags, and the fields that all have.

        Keys that are not there are made if `create`, else left out.
        """
        names = checked_keys(keys)
        rows = rows_in(partition_id, names)
        _, known = self._entries.read(partition_id, rows)
        missing = [index for index, it in enumerate(known) if it.key is None]
        if create and missing:
            new = [names[index] for index in missing]
            self.put_rows(partition_id, new, rows[missing], {}, [{}] * len(new))
            for index in missing:
                known[index].key = names[index]
        return _meta_of([(row, it) for row, it in zip(rows, known, strict=True) if it.key])

    def kv_retrieve_keys(self, global_indexes: Sequence[int] | int, partition_id: str) -> list[str]:
        """Returns the names of keys by their numbers.

        Raises:
          RuntimeError: If a number is of no key of the partition.
        """
        numbers = [global_indexes] if isinstance(global_indexes, int) else list(global_indexes)
        _, known = self._entries.read(partition_id, np.array(numbers, np.uint64))
        unknown = [n for n, it in zip(numbers, known, strict=True) if it.key is None]
        if unknown:
            raise RuntimeError(f"partition {partition_id} has no keys for the indexes {unknown}")
        return [str(it.key) for it in known]

    def kv_list(self, partition_id: str | None = None) -> dict[str, dict[str, Any]]:
        """Returns the tags of all keys, by partition and key, in the order of their first puts."""
        found = self._entries.tags()
        if partition_id is None:
            return found
        return {partition_id: found[partition_id]} if partition_id in found else {}

    def get_partition_list(self) -> list[str]:
        """Returns the names of the partitions that were put to and not cleared as a whole."""
        return list(self._entries.tags())

    def snapshot(self, partition_id: str) -> dict[int, Known]:
        """Returns what is known of the keys of a partition, by their numbers."""
        known = self._entries.known(partition_id)
        return {row_key(partition_id, str(it.key)): it for it in known}

    def get_meta(
        self,
        data_fields: Sequence[str],
        batch_size: int,
        partition_id: str,
        mode: str = "fetch",
        task_name: str | None = None,
        sampling_config: dict[str, Any] | None = None,
    ) -> BatchMeta:
        """Returns an empty batch for a partition without keys; there are no consumers.

        Raises:
          UnimplementedError: If the partition has keys.
        """
        del batch_size, task_name, sampling_config
        if mode == "fetch" and not self.kv_list(partition_id).get(partition_id):
            return BatchMeta.empty()
        refuse(
            f"get_meta(mode={mode!r}) of fields {list(data_fields)}: this module has no consumers. "
            "List the keys by kv_list and read them by kv_batch_get, or use a table with rollouts "
            "and Client.take, which gives each item to one learner"
        )

    # ---- Clears ----------------------------------------------------------------------------------

    def clear_rows(self, partition_id: str, rows: np.ndarray) -> None:
        """Deletes all that belongs to rows; those that are not there are ignored."""
        layouts = self._entries.layouts(partition_id)
        self._entries.delete(rows, layouts)
        self._values.delete(rows, sorted({it for layout in layouts for it in layout.fields}))

    def clear_samples(self, metadata: BatchMeta) -> None:
        """Deletes the samples of `metadata`."""
        for partition, rows, _ in _by_partition(metadata):
            self.clear_rows(partition, rows)

    def clear_partition(self, partition_id: str) -> None:
        """Deletes a partition. No process may put into it meanwhile."""
        keys = list(self.kv_list(partition_id).get(partition_id, ()))
        if keys:
            self.clear_rows(partition_id, rows_in(partition_id, keys))
        self._entries.forget(partition_id)

    # ---- Checkpoints -----------------------------------------------------------------------------

    def save_storage_checkpoint(self, checkpoint_dir: str) -> None:
        """Writes both tables into a directory of this machine."""
        save_tables(self.reverb_client, checkpoint_dir)

    def load_storage_checkpoint(self, checkpoint_dir: str) -> None:
        """Replaces the content of both tables by that of a directory."""
        load_tables(self.reverb_client, checkpoint_dir)

    def close(self) -> None:
        """Does nothing: connections end with the client."""


def refuse(text: str) -> NoReturn:
    """Raises the error for a name of TransferQueue that this module does not have."""
    raise UnimplementedError(text)


def checked_keys(keys: Sequence[str] | str) -> list[str]:
    """Returns keys as a list.

    Raises:
      TypeError: If they are not text.
      ValueError: If there are none, or if one is there twice.
    """
    names = [keys] if isinstance(keys, str) else keys
    if not isinstance(names, list | tuple) or not all(isinstance(it, str) for it in names):
        raise TypeError(f"keys must be a str or a list of str, got {keys!r:.200}")
    if not names:
        raise ValueError("keys must have at least one key, got an empty list")
    return list(names)


def rows_in(partition_id: str, keys: Sequence[str]) -> np.ndarray:
    """Returns the numbers of keys, uint64 `[N]`."""
    return np.array([row_key(partition_id, key) for key in keys], np.uint64)


def _meta_of(rows: list[tuple[Any, Known]]) -> BatchMeta:
    known = [it for _, it in rows]
    names = sorted(set.intersection(*(set(it.fields) for it in known))) if known else []
    return BatchMeta(
        global_indexes=[int(row) for row, _ in rows],
        partition_ids=[it.partition for it in known],
        field_schema={name: schema_of([it.fields[name] for it in known]) for name in names},
        production_status=np.full(len(known), 1 if names else 0, np.int8),
        custom_meta=[it.tag for it in known],
    )


def _by_partition(metadata: BatchMeta) -> list[tuple[str, np.ndarray, list[int]]]:
    """Returns partitions, their rows, and the positions of these in the batch."""
    indices: dict[str, list[int]] = {}
    for index, partition in enumerate(metadata.partition_ids):
        indices.setdefault(partition, []).append(index)
    rows = np.array(metadata.global_indexes, np.uint64)
    return [(partition, rows[these], these) for partition, these in indices.items()]


def _chosen(value: Any, indices: list[int]) -> Any:
    if len(indices) == len(value):
        return value
    return [value[index] for index in indices] if isinstance(value, list) else value[indices]


def _twin(name: str) -> Any:
    async def twin(self: TransferQueueClient, *arguments: Any, **options: Any) -> Any:
        return await asyncio.to_thread(getattr(self, name), *arguments, **options)

    return functools.wraps(getattr(TransferQueueClient, name))(twin)


for _name in (
    *("kv_retrieve_meta", "kv_retrieve_keys", "kv_list", "get_data", "put", "get_meta"),
    *("set_custom_meta", "clear_samples", "clear_partition", "get_partition_list"),
    *("save_storage_checkpoint", "load_storage_checkpoint"),
):
    setattr(TransferQueueClient, f"async_{_name}", _twin(_name))
