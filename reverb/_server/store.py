# SPDX-License-Identifier: Apache-2.0
"""The directory on disk of a server whose tables are larger than its memory."""

import dataclasses
import os
from typing import ClassVar

from reverb._checkpoints.stored import absolute_path
from reverb._checks.arguments import as_path
from reverb._checks.byte_sizes import parse_byte_size_on_disk
from reverb.errors import UnimplementedError
from reverb.shown_text import hidden, shows_no_token

__all__ = ["Store"]


@shows_no_token
@dataclasses.dataclass(frozen=True)
class Store:
    """A directory for data that does not fit into a server's memory, for `Server(store=...)`.

    `Server(max_bytes=...)` bounds the memory. Above 80 % of it the server writes payloads of chunks
    to files in the directory, the oldest first, and frees their memory; samples read them back. So
    tables hold what the disk has room for. Chunks of at most 1 KiB, items, and about 144 bytes of
    each chunk on disk stay in memory. Clients notice nothing but the time that a read takes.

    Nothing in the directory outlives its server: the files are deleted at the next start. Save
    checkpoints to keep the items.

    Example:
      >>> store = Store("/scratch/replay", max_bytes="200GiB", journal=False)
      >>> store.max_bytes
      214748364800

    Attributes:
      path: A directory of its own, on a local disk; made if it is missing. One server at a time can
        use it. `~` is the home directory.
      max_bytes: Size of all its files: bytes, or a size such as "200GiB". At the limit, tables
        evict items, or let inserts wait (`when_full`). `None`: the size of the file system less
        5 %.
      journal: Whether the items outlive a crash of the server. `True` is not supported yet.

    Raises:
      InvalidArgumentError: If the path is empty or has a zero byte, or if `max_bytes` is below 1 or
        not a size. Whether the directory can be used is checked when the server starts.
      TypeError: If an attribute has the wrong type.
      UnimplementedError: If `journal` is `True`.
    """

    path: str | os.PathLike[str]
    max_bytes: int | str | None = dataclasses.field(default=None, kw_only=True)
    journal: bool = dataclasses.field(default=True, kw_only=True)

    # Whether payloads leave memory at once, also while there is room: for tests of this package.
    _forgets_at_once: ClassVar[bool] = False

    def __post_init__(self) -> None:
        path = as_path("Store.path", hidden(self.path), of="directory")
        object.__setattr__(self, "path", absolute_path(path))
        size = parse_byte_size_on_disk("Store.max_bytes", hidden(self.max_bytes))
        object.__setattr__(self, "max_bytes", size)
        if not isinstance(self.journal, bool):
            raise TypeError(f"Store.journal must be a bool, got {hidden(self.journal)!r}")
        if self.journal:
            raise UnimplementedError(
                "Store(journal=True) is not there yet: give journal=False, or save checkpoints"
            )


# The public import path.
Store.__module__ = "reverb"
