# SPDX-License-Identifier: Apache-2.0
"""The functions of TransferQueue's key-value interface."""

import asyncio
import functools
import json
import os
import pathlib
import shutil
import threading
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from reverb.adapters.transfer_queue.client import (
    TransferQueueClient,
    checked_keys,
    refuse,
    rows_in,
)
from reverb.adapters.transfer_queue.columns import fields_of, rows_of
from reverb.adapters.transfer_queue.metadata import KVBatchMeta
from reverb.adapters.transfer_queue.server import Connection

__all__ = [
    "close",
    "get_client",
    "init",
    "kv_batch_get",
    "kv_batch_get_by_meta",
    "kv_batch_put",
    "kv_clear",
    "kv_list",
    "kv_put",
    "kv_update",
    "load_checkpoint",
    "save_checkpoint",
]

# The connection of this process, under the name that programs of TransferQueue look at.
_TQ_CONTROLLER: Connection | None = None
_client: TransferQueueClient | None = None
_lock = threading.Lock()


def init(conf: Any = None) -> Any:
    """Connects this process to the server, and starts one if there is none; see `Connection`.

    Does nothing if it is connected. Blocks until the server answers.

    Args:
      conf: A mapping, such as a `DictConfig`; `backend.Reverb` is read, all else is ignored.

    Returns:
      `conf`.
    """
    global _TQ_CONTROLLER, _client
    with _lock:
        if _TQ_CONTROLLER is None:
            _TQ_CONTROLLER = Connection(conf)
            _client = TransferQueueClient(_TQ_CONTROLLER.client)
    return conf


def close() -> None:
    """Disconnects, and stops the server if this process has started it: its data are gone."""
    global _TQ_CONTROLLER, _client
    with _lock:
        connection, _TQ_CONTROLLER, _client = _TQ_CONTROLLER, None, None
        if connection is not None:
            connection.close()


def get_client() -> TransferQueueClient:
    """Returns the client of this process.

    Raises:
      RuntimeError: If `init` was not called.
    """
    if _TQ_CONTROLLER is None or _client is None:
        raise RuntimeError("TransferQueue is not initialized in this process; call init() first")
    return _client


def kv_put(
    key: str,
    partition_id: str,
    fields: Any = None,
    tag: dict[str, Any] | None = None,
    data_parser: Callable[[Any], Any] | None = None,
) -> KVBatchMeta:
    """Stores fields of a key, its tag, or both; what the key has besides stays.

    Args:
      key: The key.
      partition_id: Its partition.
      fields: A dict of values without batch dimension, or a TensorDict of batch size 1.
      tag: Entries of the tag that are new or change.
      data_parser: Called with the fields, as a dict `[1, ...]`; returns those to store.

    Returns:
      The key with all fields that it has now.

    Raises:
      ValueError: If there are neither fields nor a tag, or if the batch size is not 1.
    """
    if isinstance(fields, dict):
        return _put(
            [key], partition_id, rows_of(fields), None if tag is None else [tag], data_parser
        )
    return kv_batch_put([key], partition_id, fields, None if tag is None else [tag], data_parser)


def kv_batch_put(
    keys: list[str],
    partition_id: str,
    fields: Any = None,
    tags: list[dict[str, Any]] | None = None,
    data_parser: Callable[[Any], Any] | None = None,
) -> KVBatchMeta:
    """Stores fields of keys, their tags, or both, in one call a field.

    Args:
      keys: The keys, `[B]`.
      partition_id: Their partition.
      fields: A TensorDict of batch size `B`.
      tags: Entries of each tag that are new or change.
      data_parser: As in `kv_put`, with fields `[B, ...]`, or lists for nested and other values.

    Returns:
      The keys with the fields that all of them have now.

    Raises:
      ValueError: If there are neither fields nor tags, if a key is there twice, or if sizes differ.
    """
    if fields is not None and tuple(fields.batch_size) != (len(keys),):
        raise ValueError(
            f"fields must have batch size [{len(keys)}], one for each key, got "
            f"{list(fields.batch_size)}"
        )
    return _put(
        keys, partition_id, None if fields is None else fields_of(fields), tags, data_parser
    )


def _put(
    keys: Sequence[str],
    partition_id: str,
    fields: dict[str, Any] | None,
    tags: Sequence[dict[str, Any]] | None,
    data_parser: Callable[[Any], Any] | None,
) -> KVBatchMeta:
    names = checked_keys(keys)
    if fields is None and tags is None:
        raise ValueError("a put needs fields or tags, got neither")
    tags = [{} for _ in names] if tags is None else [dict(tag or {}) for tag in tags]
    # Checks that keys are distinct, and that there are as many tags.
    meta = KVBatchMeta(names, tags, partition_id)
    rows = rows_in(partition_id, names)
    client = get_client()
    meta.fields = client.put_rows(partition_id, names, rows, fields or {}, tags, data_parser)
    return meta


def kv_batch_get(
    keys: list[str] | str, partition_id: str, select_fields: list[str] | str | None = None
) -> Any:
    """Reads fields of keys into a TensorDict `[B]`, in the order of `keys`.

    Keys that are not there are left out. A field is one tensor `[B, ...]` if its values have one
    shape, else a nested tensor, jagged or strided, or a `NonTensorStack`. The memory is the
    caller's.

    Args:
      keys: A key, or several.
      partition_id: Their partition.
      select_fields: A field, or several; those that no key of the partition ever had are left out.
        `None`: all fields that all keys have.

    Raises:
      ValueError: If no key is there, or if some of them lack a field.
    """
    names = [select_fields] if isinstance(select_fields, str) else select_fields
    return get_client().get_rows(partition_id, rows_in(partition_id, checked_keys(keys)), names)


def kv_batch_get_by_meta(meta: KVBatchMeta, select_fields: list[str] | str | None = None) -> Any:
    """Reads the fields of a batch that a put has returned, or some of them.

    Raises:
      ValueError: If a field is not one of `meta`; otherwise as `kv_batch_get`.
    """
    names = [select_fields] if isinstance(select_fields, str) else select_fields
    missing = [name for name in names or () if name not in (meta.fields or names or ())]
    if missing:
        raise ValueError(f"select_fields {missing} were not found in meta.fields {meta.fields}")
    return kv_batch_get(meta.keys, str(meta.partition_id), meta.fields if names is None else names)


def kv_list(partition_id: str | None = None) -> dict[str, dict[str, Any]]:
    """Returns the tags of all keys, `{partition: {key: tag}}`, in the order of their first puts.

    A partition without keys is there until it is cleared as a whole; an unknown one is not.
    """
    return get_client().kv_list(partition_id)


def kv_clear(keys: list[str] | str, partition_id: str) -> None:
    """Deletes keys with their fields and tags; those that are not there are ignored."""
    get_client().clear_rows(partition_id, rows_in(partition_id, checked_keys(keys)))


def kv_update(*arguments: Any, **options: Any) -> NoReturn:
    """Is not there.

    Raises:
      UnimplementedError: Always.
    """
    del arguments, options
    refuse(
        "kv_update, which lists, reads and marks keys in one call, is not part of this module. Use "
        "kv_list and kv_batch_get, or a table with rollouts and Client.take, which gives each item "
        "to one learner and knows what became of it"
    )


def save_checkpoint(
    checkpoint_dir: str | os.PathLike[str],
    *,
    include_storage: bool = True,
    metadata: dict[str, Any] | None = None,
) -> None:
    """Writes all keys, fields and tags to a directory of this machine, whole or not at all.

    Puts that run meanwhile may be in it or not. A directory of that name is replaced.

    Args:
      checkpoint_dir: The directory.
      include_storage: Ignored; the values are always saved.
      metadata: Written to `metadata.json`, as `user_metadata`.

    Raises:
      OSError: If it cannot be written.
      RuntimeError: If `init` was not called.
    """
    del include_storage
    client = get_client()
    path = pathlib.Path(checkpoint_dir)
    partial = path.with_name(f"{path.name}.tmp")
    shutil.rmtree(partial, ignore_errors=True)
    try:
        partial.mkdir(parents=True)
        client.save_storage_checkpoint(str(partial / "tables"))
        about = {"storage_saved": True, "user_metadata": metadata or {}}
        (partial / "metadata.json").write_text(json.dumps(about), encoding="utf-8")
        shutil.rmtree(path, ignore_errors=True)
        partial.rename(path)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise


def load_checkpoint(checkpoint_dir: str | os.PathLike[str]) -> None:
    """Replaces everything on the server by what `save_checkpoint` has written.

    Raises:
      FileNotFoundError: If the directory, or a file of it, is not there.
      RuntimeError: If `init` was not called.
    """
    client = get_client()
    path = pathlib.Path(checkpoint_dir)
    if not (about := path / "metadata.json").is_file():
        raise FileNotFoundError(f"{about} is not there: it is no checkpoint of save_checkpoint")
    client.load_storage_checkpoint(str(path / "tables"))


def _twin(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    async def twin(*arguments: Any, **options: Any) -> Any:
        return await asyncio.to_thread(function, *arguments, **options)

    twin.__name__ = twin.__qualname__ = f"async_{function.__name__}"
    return twin


async_kv_put = _twin(kv_put)
async_kv_batch_put = _twin(kv_batch_put)
async_kv_batch_get = _twin(kv_batch_get)
async_kv_batch_get_by_meta = _twin(kv_batch_get_by_meta)
async_kv_list = _twin(kv_list)
async_kv_clear = _twin(kv_clear)
async_kv_update = _twin(kv_update)
__all__ += [name for name in dir() if name.startswith("async_")]
