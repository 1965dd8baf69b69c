# SPDX-License-Identifier: Apache-2.0
# Design: docs/design/adapters.md.
"""TransferQueue's key-value interface over two tables of a server.

    import reverb.adapters.transfer_queue as tq

    tq.init()                               # or REVERB_TQ_ADDRESS=host:8000
    tq.kv_batch_put(keys, "train", fields=batch, tags=tags)
    done = [key for key, tag in tq.kv_list("train")["train"].items() if tag["status"] == "done"]
    batch = tq.kv_batch_get(done, "train", select_fields=["input_ids", "reward"])

Names and behaviour are those of TransferQueue 0.1.11. Programs that import `transfer_queue` get
this module by `reverb.adapters.transfer_queue.install`.
"""

from reverb.adapters.transfer_queue.client import TransferQueueClient
from reverb.adapters.transfer_queue.interface import (
    async_kv_batch_get,
    async_kv_batch_get_by_meta,
    async_kv_batch_put,
    async_kv_clear,
    async_kv_list,
    async_kv_put,
    async_kv_update,
    close,
    get_client,
    init,
    kv_batch_get,
    kv_batch_get_by_meta,
    kv_batch_put,
    kv_clear,
    kv_list,
    kv_put,
    kv_update,
    load_checkpoint,
    save_checkpoint,
)
from reverb.adapters.transfer_queue.metadata import BatchMeta, KVBatchMeta
from reverb.adapters.transfer_queue.server import make_tables

# The release of TransferQueue whose names and behaviour these are.
__version__ = "0.1.11"

__all__ = [
    "BatchMeta",
    "KVBatchMeta",
    "TransferQueueClient",
    "async_kv_batch_get",
    "async_kv_batch_get_by_meta",
    "async_kv_batch_put",
    "async_kv_clear",
    "async_kv_list",
    "async_kv_put",
    "async_kv_update",
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
    "make_tables",
    "save_checkpoint",
]
