# SPDX-License-Identifier: Apache-2.0
"""Checkpointers: where a server saves its tables, and the checkpoint it loads at its start.

`read` opens a checkpoint without a server.
"""

import abc
import dataclasses
import operator
import os
import tempfile

from reverb.core import native
from reverb.errors import InvalidArgumentError
from reverb.stored_checkpoint import Checkpoint, TableStatistics, read

__all__ = [
    "Checkpoint",
    "CheckpointerBase",
    "CheckpointerOptions",
    "DefaultCheckpointer",
    "TableStatistics",
    "TempDirCheckpointer",
    "default_checkpointer",
    "read",
]


@dataclasses.dataclass(frozen=True, repr=False)
class CheckpointerOptions:
    """What the engine needs to know to save and to load.

    Attributes:
      path: Directory that holds the checkpoints; `None`: a temporary one, made by the first save.
      group: Must be empty for saving; there are no groups.
      fallback_checkpoint_path: A checkpoint to load if `path` holds none.
      keep_latest: Number of checkpoints that are kept.
      restore_settings: Whether tables get the stored settings.
      name: Name of the server in `path`; `None`: it has none.
    """

    path: str | None
    group: str = ""
    fallback_checkpoint_path: str | None = None
    keep_latest: int = 1
    restore_settings: bool = False
    name: str | None = None

    def __repr__(self) -> str:
        """As the original's, which programs print, and the name if there is one."""
        name = "" if self.name is None else f", name={self.name}"
        return f"TFRecordCheckpointer(root_dir={self.path or ''}, group={self.group}{name})"


class CheckpointerBase(abc.ABC):
    """The base of all checkpointers."""

    @abc.abstractmethod
    def internal_checkpointer(self) -> CheckpointerOptions:
        """What the server hands to the engine."""


class DefaultCheckpointer(CheckpointerBase):
    """Saves to, and loads from, a directory.

    A server loads the latest complete checkpoint when it starts: the one whose name is the last,
    which begins with the time. Checkpoints of dm-reverb are loaded like its own.

    Several servers may save to one directory if each has a name, which stays the same when it is
    started again: it then loads the latest checkpoint that a server of its name saved, and deletes
    no others. A server without a name loads the latest of all. No server starts with a checkpoint
    that another one has which is still running: the two would hold the same data.

    Example:
      >>> checkpointer = DefaultCheckpointer(path="/tmp/checkpoints", keep_latest=3)
      >>> checkpointer = DefaultCheckpointer(path="/tmp/checkpoints", name="replay-0")

    Attributes:
      path: Directory that holds the checkpoints.
      group: As given.
      fallback_checkpoint_path: A checkpoint to load if `path` holds none.
      keep_latest: Number of checkpoints that are kept.
      restore_settings: Whether tables get the stored settings.
      name: Name of the server among those that save to `path`.
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
    ) -> None:
        """Touches no file yet.

        Args:
          path: Directory that holds the checkpoints. It is made by the first save, or by the start
            of a server that has a name.
          group: Kept for callers of the original. There are no groups: saving fails unless it is
            empty.
          fallback_checkpoint_path: A checkpoint, not a directory of them, to load if `path` holds
            none. Nothing is saved to it.
          keep_latest: Number of checkpoints that are kept, at least 1. Older ones that this package
            wrote for a server of the same name are deleted after a save. Other files are never
            touched.
          restore_settings: Whether tables get the stored selectors, sizes, limits and signatures
            when a checkpoint is loaded. Otherwise the settings given in code stay, and each that
            differs is logged.
          name: Name of the server, which it keeps when it is started again: 1 to 64 characters of
            A-Z, a-z, 0-9, `_`, `-`, `.`. Only checkpoints that a server of this name saved are
            loaded, else the fallback; that there are others is logged. `None`: the latest one is
            loaded, whoever saved it.

        Raises:
          InvalidArgumentError: If `path` is empty, `keep_latest` is below 1, or `name` has another
            length or other characters.
        """
        if not os.fspath(path):
            raise InvalidArgumentError("path must not be empty")
        if operator.index(keep_latest) < 1:
            raise InvalidArgumentError(f"keep_latest must be at least 1, got {keep_latest}")
        if name is not None:
            native.check_server_name(name)
        self.path = path
        self.group = group
        self.fallback_checkpoint_path = fallback_checkpoint_path
        self.keep_latest = operator.index(keep_latest)
        self.restore_settings = bool(restore_settings)
        self.name = name

    def internal_checkpointer(self) -> CheckpointerOptions:
        """What the server hands to the engine."""
        return CheckpointerOptions(
            os.fspath(self.path),
            self.group,
            self.fallback_checkpoint_path,
            self.keep_latest,
            self.restore_settings,
            self.name,
        )

    def __repr__(self) -> str:
        name = "" if self.name is None else f", name={self.name!r}"
        return f"{type(self).__name__}(path={self.path!r}{name})"


class TempDirCheckpointer(DefaultCheckpointer):
    """Saves to a new temporary directory, which is not removed."""

    def __init__(self) -> None:
        super().__init__(tempfile.mkdtemp())


def default_checkpointer(group: str | None = None) -> CheckpointerBase:
    """Makes the checkpointer that dm-reverb's servers use by default: a `TempDirCheckpointer`.

    Args:
      group: Unused; kept for callers of dm-reverb.
    """
    del group
    return TempDirCheckpointer()
