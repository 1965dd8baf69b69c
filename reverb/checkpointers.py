# SPDX-License-Identifier: Apache-2.0
"""Checkpointers: where a server saves its tables, and the checkpoint it loads at its start.

`read` opens a checkpoint without a server.
"""

import abc
import dataclasses
import operator
import os
import tempfile

from reverb._checkpoints.packed import pack, unpack
from reverb._checkpoints.stored import Checkpoint, TableStatistics, absolute_path, read
from reverb._checks.plain_files import open_file
from reverb.core import native
from reverb.errors import InvalidArgumentError
from reverb.shown_text import shown

__all__ = [
    "Checkpoint",
    "CheckpointerBase",
    "CheckpointerOptions",
    "DefaultCheckpointer",
    "TableStatistics",
    "TempDirCheckpointer",
    "default_checkpointer",
    "open_file",
    "pack",
    "read",
    "unpack",
]


@dataclasses.dataclass(frozen=True, repr=False)
class CheckpointerOptions:
    """The options of a checkpointer, as the server reads them.

    Example:
      >>> CheckpointerOptions(path="/tmp/checkpoints", keep_latest=3).keep_latest
      3

    Attributes:
      path: Directory of checkpoints; `None`: a temporary directory, made by the first save.
      group: Must be empty for saving; groups are not supported.
      fallback_checkpoint_path: A checkpoint to load if `path` holds none.
      keep_latest: Number of checkpoints to keep.
      restore_settings: Whether loading replaces the tables' settings by the stored ones.
      name: Name of the server in `path`; `None`: no name.
      load: The checkpoint to load, and no other; `None`: the latest one in `path`.
      keep_signatures: Whether a stored signature that differs from the table's is an error.
    """

    path: str | None
    group: str = ""
    fallback_checkpoint_path: str | None = None
    keep_latest: int = 1
    restore_settings: bool = False
    name: str | None = None
    load: str | None = None
    keep_signatures: bool = False

    @shown
    def __repr__(self) -> str:
        """Equal to dm-reverb's text, which programs print, plus the name if there is one."""
        name = "" if self.name is None else f", name={self.name}"
        return f"TFRecordCheckpointer(root_dir={self.path or ''}, group={self.group}{name})"


class CheckpointerBase(abc.ABC):
    """The base of all checkpointers.

    Example:
      >>> isinstance(DefaultCheckpointer(path="/tmp/checkpoints"), CheckpointerBase)
      True
    """

    @abc.abstractmethod
    def internal_checkpointer(self) -> CheckpointerOptions:
        """Returns the options for the server."""


class DefaultCheckpointer(CheckpointerBase):
    """Saves checkpoints to a directory, and loads them from it.

    At its start a server loads the latest complete checkpoint, that is, the last by name, because
    names begin with the time; or the one that `load` names. Checkpoints of dm-reverb are loaded
    too.

    Several servers may save to one directory if each has a name that it keeps across restarts. Such
    a server loads the latest checkpoint of its name, and deletes only checkpoints of its name. A
    server without a name loads the latest of all. A server does not start from a checkpoint that
    another running server uses, because both would hold the same data.

    Example:
      >>> checkpointer = DefaultCheckpointer(path="/tmp/checkpoints", keep_latest=3)
      >>> checkpointer = DefaultCheckpointer(path="/tmp/checkpoints", name="replay-0")

    Attributes:
      path: Directory of checkpoints.
      group: The argument of the constructor.
      fallback_checkpoint_path: A checkpoint to load if `path` holds none.
      keep_latest: Number of checkpoints to keep.
      restore_settings: Whether loading replaces the tables' settings by the stored ones.
      name: Name of the server among those that save to `path`.
      load: The checkpoint to load, and no other; `None`: the latest one.
    """

    def __init__(
        self,
        path: str,
        group: str = "",
        fallback_checkpoint_path: str | None = None,
        *,
        keep_latest: int = 1,
        restore_settings: bool = False,
        name: str | None = None,
        load: str | None = None,
    ) -> None:
        """Makes a checkpointer; accesses no file yet.

        Args:
          path: Directory of checkpoints; the first save creates it, or the start of a server that
            has a name. A relative path is resolved now; `~` is the home directory.
          group: Accepted for callers of dm-reverb. Groups are not supported: saving fails unless it
            is empty.
          fallback_checkpoint_path: A checkpoint, not a directory of them, to load if `path` holds
            none. Nothing is saved to it. Resolved like `path`.
          keep_latest: Number of checkpoints to keep, at least 1. A save deletes older checkpoints
            that this package wrote for a server of the same name. Other files are never touched.
          restore_settings: If True, loading a checkpoint replaces the tables' selectors, sizes,
            limits and signatures by the stored ones. If False, the settings in code are kept, and
            each difference is logged.
          name: Name of the server, the same across restarts: 1 to 64 characters of A-Z, a-z, 0-9,
            `_`, `-`, `.`. Only checkpoints saved under this name are loaded, else the fallback; if
            there are others, that is logged. `None`: the latest checkpoint is loaded, whichever
            server saved it.
          load: A checkpoint: a path that `Client.checkpoint` returned, or where it was moved to. It
            is loaded, whichever server saved it, and no other; a server does not start if it is
            gone. Resolved like `path`. It may be in another directory than `path`; nothing is saved
            there. No save deletes it, and it does not count for `keep_latest`. Each start with
            this argument loads it again. `None`: the latest checkpoint is loaded.

        Raises:
          InvalidArgumentError: If `path` or `load` is empty, `keep_latest` is below 1, `name` is
            invalid, or there are both `load` and `fallback_checkpoint_path`.
        """
        if not os.fspath(path):
            raise InvalidArgumentError("path must not be empty")
        if operator.index(keep_latest) < 1:
            raise InvalidArgumentError(f"keep_latest must be at least 1, got {keep_latest}")
        if name is not None:
            native.check_server_name(name)
        if load is not None and not os.fspath(load):
            raise InvalidArgumentError("load must be the path of a checkpoint, got ''")
        if load is not None and fallback_checkpoint_path:
            raise InvalidArgumentError(
                f"give only one of load and fallback_checkpoint_path, got load={str(load)!r} and "
                f"fallback_checkpoint_path={str(fallback_checkpoint_path)!r}: with load, no other "
                "checkpoint is loaded"
            )
        self.path = absolute_path(path)
        self.group = group
        fallback = fallback_checkpoint_path
        self.fallback_checkpoint_path = absolute_path(fallback) if fallback else None
        self.keep_latest = operator.index(keep_latest)
        self.restore_settings = bool(restore_settings)
        self.name = name
        self.load = None if load is None else absolute_path(load)
        # `reverb_server` sets it: its config is not code that reads what the log says.
        self.internal_keep_signatures = False

    def internal_checkpointer(self) -> CheckpointerOptions:
        """Returns the options for the server."""
        return CheckpointerOptions(
            self.path,
            self.group,
            self.fallback_checkpoint_path,
            self.keep_latest,
            self.restore_settings,
            self.name,
            self.load,
            self.internal_keep_signatures,
        )

    @shown
    def __repr__(self) -> str:
        name = "" if self.name is None else f", name={self.name!r}"
        return f"{type(self).__name__}(path={self.path!r}{name})"


class TempDirCheckpointer(DefaultCheckpointer):
    """Saves to a new temporary directory, which is not removed.

    Example:
      >>> checkpointer = TempDirCheckpointer()
      >>> table = reverb.Table.queue("queue", 10)
      >>> with reverb.Server([table], checkpointer=checkpointer) as server:
      ...     server.localhost_client().checkpoint().startswith(checkpointer.path)
      True
    """

    def __init__(self) -> None:
        super().__init__(tempfile.mkdtemp())


def default_checkpointer(group: str | None = None) -> CheckpointerBase:
    """Makes the checkpointer that dm-reverb's servers use by default: a `TempDirCheckpointer`.

    Args:
      group: Unused; kept for callers of dm-reverb.
    """
    del group
    return TempDirCheckpointer()
