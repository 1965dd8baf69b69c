# SPDX-License-Identifier: Apache-2.0
"""The directory on disk of a server whose tables survive a crash, or are larger than its memory."""

import dataclasses
import os
from typing import ClassVar

from reverb._checkpoints.stored import absolute_path
from reverb._checks.arguments import as_path, check_number
from reverb._checks.byte_sizes import parse_byte_size_on_disk
from reverb.errors import InvalidArgumentError
from reverb.shown_text import hidden, shows_no_token

__all__ = ["MAX_SYNC_INTERVAL_S", "MIN_SYNC_INTERVAL_S", "Store", "parse_store_bytes"]

MIN_SYNC_INTERVAL_S = 0.1
MAX_SYNC_INTERVAL_S = 60


# Eight data files of the smallest size, as the core checks too.
_MIN_BYTES = 64 << 20


def parse_store_bytes(name: str, size: int | str | None) -> int | None:
    """Returns the size of a store's files in bytes.

    Raises:
      InvalidArgumentError: If it is no size, or less than 64 MiB.
      TypeError: If it has the wrong type.
    """
    parsed = parse_byte_size_on_disk(name, size)
    if parsed is not None and parsed < _MIN_BYTES:
        raise InvalidArgumentError(f"{name} must be at least 64 MiB, got {parsed:,} bytes")
    return parsed


@shows_no_token
@dataclasses.dataclass(frozen=True)
class Store:
    """A directory for a server's tables, for `Server(store=...)`.

    With a journal, all that happens to the tables is recorded there. A server that starts with the
    directory of one that was killed has its tables again as they were at one moment, at most two
    seconds before: items, priorities, counters and order. Confirmations mean what they mean without
    a store; `Client.sync` waits until all that was confirmed is on the disk. While the disk is more
    than two seconds behind, inserts wait.

    `Server(max_bytes=...)` bounds the memory. Above 80 % of it the server writes payloads of chunks
    to the directory, the oldest first, and frees their memory; samples read them back. So tables
    hold what the disk has room for. Chunks of at most 1 KiB, items, and about 144 bytes of each
    chunk on disk stay in memory. Clients notice nothing but the time that a read takes. Without
    `max_bytes` of the server all data stays in memory as well.

    A store with tables wins over checkpoints: they are newer. To go back to a checkpoint, move the
    directory away.

    Example:
      >>> store = Store("/data/replay", max_bytes="200GiB")
      >>> store.max_bytes
      214748364800

    Attributes:
      path: A directory of its own, on a local disk; made if it is missing. One server at a time can
        use it. `~` is the home directory.
      max_bytes: Size of all its files, at least 64 MiB: bytes, or a size such as "200GiB". At the
        limit, tables evict items, or let inserts wait (`when_full`). `None`: the size of the file
        system less 5 %.
      journal: Whether the tables outlive a crash of the server. `False` needs `max_bytes` of the
        server, and its files are deleted at the next start.
      sync_interval_s: Time between two commits of the journal, in seconds, from 0.1 to 60. A crash
        loses at most two seconds' worth of confirmed inserts, or twice this time if that is more.
      restore_settings: Whether tables get the settings that the journal has, as with
        `DefaultCheckpointer`. Otherwise those in code win, and each difference is logged.

    Raises:
      InvalidArgumentError: If the path is empty or has a zero byte, if `max_bytes` is below 64 MiB
        or not a size, or if `sync_interval_s` is out of range. Whether the directory can be used is
        checked when the server starts.
      TypeError: If an attribute has the wrong type.
    """

    path: str | os.PathLike[str]
    max_bytes: int | str | None = dataclasses.field(default=None, kw_only=True)
    journal: bool = dataclasses.field(default=True, kw_only=True)
    sync_interval_s: float = dataclasses.field(default=1.0, kw_only=True)
    restore_settings: bool = dataclasses.field(default=False, kw_only=True)

    # Whether payloads leave memory at once, also while there is room: for tests of this package.
    _forgets_at_once: ClassVar[bool] = False

    def __post_init__(self) -> None:
        path = as_path("Store.path", hidden(self.path), of="directory")
        object.__setattr__(self, "path", absolute_path(path))
        size = parse_store_bytes("Store.max_bytes", hidden(self.max_bytes))
        object.__setattr__(self, "max_bytes", size)
        for name in ("journal", "restore_settings"):
            if not isinstance(getattr(self, name), bool):
                value = hidden(getattr(self, name))
                raise TypeError(f"Store.{name} must be a bool, got {value!r}")
        interval = check_number("Store.sync_interval_s", hidden(self.sync_interval_s))
        if not MIN_SYNC_INTERVAL_S <= interval <= MAX_SYNC_INTERVAL_S:
            raise InvalidArgumentError(
                f"Store.sync_interval_s must be from {MIN_SYNC_INTERVAL_S:g} to "
                f"{MAX_SYNC_INTERVAL_S:g}, got {interval:g}"
            )
        object.__setattr__(self, "sync_interval_s", interval)


# The public import path.
Store.__module__ = "reverb"
