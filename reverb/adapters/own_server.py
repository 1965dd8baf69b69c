# SPDX-License-Identifier: Apache-2.0
"""A server in the process of a replay buffer, used by this buffer only, and its packed items."""

import contextlib
import logging
import mmap
import os
import pathlib
import shutil
import tempfile
import weakref
from collections.abc import Callable, Iterator
from typing import Literal

import reverb
from reverb.checkpointers import DefaultCheckpointer, pack, unpack
from reverb.errors import FailedPreconditionError, InvalidArgumentError

__all__ = ["OwnServer"]

_logger = logging.getLogger("reverb")

# A buffer that takes at most this part of the memory when it is full is not compressed.
_MAX_RAW_PART = 1 / 4


class OwnServer:
    """A server that lives as long as its buffer, in the process that made it.

    Attributes:
      client: A client of the server; another one after `choose_compression`.
    """

    def __init__(
        self, make_tables: Callable[[], list[reverb.Table]], packed: bytes | None = None
    ) -> None:
        """Starts the server at any free port.

        `make_tables` is called again when items are loaded; `packed` is a result of `pack` with the
        items to start with.

        Raises:
          DataLossError: If `packed` is damaged.
        """
        self._make_tables = make_tables
        self._owner = os.getpid()
        self._root = tempfile.mkdtemp(prefix="reverb-buffer-")
        self._remove = weakref.finalize(self, _remove, self._root, self._owner)
        # Shared with forked copies of the buffer, which notice by it that items were replaced.
        self._num_loads = memoryview(mmap.mmap(-1, mmap.PAGESIZE)).cast("Q")
        self._known_loads = 0
        self._compression: Literal["auto", "none"] | None = None
        directory = tempfile.mkdtemp(dir=self._root)
        if packed is not None:
            unpack(packed, directory)
        self._start(directory, None)

    def check_not_replaced(self) -> None:
        """Refuses a forked copy of the buffer after the buffer has loaded other items.

        Its writers refer to items that are gone, and its settings may have changed.

        Raises:
          FailedPreconditionError: If the items were replaced.
        """
        if self._num_loads[0] != self._known_loads and os.getpid() != self._owner:
            raise FailedPreconditionError(
                f"load_state_dict or loads in process {self._owner} has replaced the items of this "
                f"buffer after it was forked into process {os.getpid()}; fork it again, or give "
                "processes a pickle of it, which stays valid"
            )

    def choose_compression(self, max_bytes: float) -> None:
        """Makes `client` one that does not compress, if `max_bytes` of all items fit into memory.

        The first call decides, and logs it. Call it before the first item.
        """
        if self._compression is not None:
            return
        memory = reverb.Server.process_memory()
        self._compression = "auto"
        if memory is not None and max_bytes <= memory * _MAX_RAW_PART:
            self._compression = "none"
            self.client = self._server.localhost_client(compression="none")
            _logger.info(
                "This replay buffer stores its data without compression: it takes at most %.3g MB "
                "of %.3g MB of memory.",
                *(max_bytes / 1e6, memory / 1e6),
            )

    def pack(self) -> bytes:
        """Makes a checkpoint and returns its files."""
        path = self.client.checkpoint()
        packed = pack(path)
        shutil.rmtree(path, ignore_errors=True)
        return packed

    @contextlib.contextmanager
    def unpacked(self, packed: bytes | pathlib.Path) -> Iterator[reverb.checkpointers.Checkpoint]:
        """Unpacks a result of `pack`, or a file of it, to temporary files; changes nothing else.

        Raises:
          DataLossError: If it is damaged.
          OSError: If the file cannot be read, or is not a plain file.
        """
        directory = tempfile.mkdtemp(dir=self._root)
        try:
            unpack(packed, directory)
            stored = reverb.checkpointers.read(directory)
            stored.statistics()  # Checks every record.
            yield stored
        finally:
            if directory != self._directory:
                shutil.rmtree(directory, ignore_errors=True)

    def start_again(self, stored: reverb.checkpointers.Checkpoint) -> None:
        """Replaces the server by one with the items of `unpacked`, at the same address."""
        port, before = self._server.port, self._directory
        self._known_loads += 1
        self._num_loads[0] = self._known_loads
        self._server.stop()
        shutil.rmtree(before, ignore_errors=True)
        directory = str(pathlib.Path(stored.path).parent)
        try:
            self._start(directory, port)
        except InvalidArgumentError as error:
            # Another process has taken the port meanwhile.
            self._start(directory, None)
            _logger.warning(
                "The server of a replay buffer moved from port %d to %d, so earlier pickles of the "
                "buffer cannot find it: %s",
                *(port, self._server.port, error),
            )

    def stop(self) -> None:
        """Stops the server, if it runs in this process; calls that wait end with an error."""
        if self._owner == os.getpid():
            self._server.stop(final=True)
            self._remove()

    def _start(self, directory: str, port: int | None) -> None:
        checkpointer = DefaultCheckpointer(directory)
        self._server = reverb.Server(self._make_tables(), port=port, checkpointer=checkpointer)
        self._directory = directory
        self.client = self._server.localhost_client(compression=self._compression or "auto")


def _remove(directory: str, owner: int) -> None:
    """Removes a directory when the process that made it ends, but not when a forked child does."""
    if os.getpid() == owner:
        shutil.rmtree(directory, ignore_errors=True)
