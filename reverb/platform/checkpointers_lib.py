# SPDX-License-Identifier: Apache-2.0
"""Where a server saves its tables.

A server accepts these objects and remembers them; it does not save yet.
"""

import abc
import dataclasses
import tempfile

__all__ = ["CheckpointerBase", "CheckpointerOptions", "DefaultCheckpointer", "TempDirCheckpointer"]


@dataclasses.dataclass(frozen=True)
class CheckpointerOptions:
    """What the engine needs to know to save and to load.

    Attributes:
      path: Directory that holds the checkpoints.
      group: Unused; kept for callers of the original.
      fallback_checkpoint_path: A checkpoint to load if `path` holds none.
    """

    path: str
    group: str = ""
    fallback_checkpoint_path: str | None = None


class CheckpointerBase(abc.ABC):
    """The base of all checkpointers."""

    @abc.abstractmethod
    def internal_checkpointer(self) -> CheckpointerOptions:
        """What the server hands to the engine."""


class DefaultCheckpointer(CheckpointerBase):
    """Saves to, and loads from, a directory.

    Example:
      >>> checkpointer = DefaultCheckpointer(path="/tmp/checkpoints")

    Attributes:
      path: Directory that holds the checkpoints.
      group: Unused; kept for callers of the original.
      fallback_checkpoint_path: A checkpoint to load if `path` holds none.
    """

    def __init__(
        self, path: str, group: str = "", fallback_checkpoint_path: str | None = None
    ) -> None:
        self.path = path
        self.group = group
        self.fallback_checkpoint_path = fallback_checkpoint_path

    def internal_checkpointer(self) -> CheckpointerOptions:
        """What the server hands to the engine."""
        return CheckpointerOptions(self.path, self.group, self.fallback_checkpoint_path)


class TempDirCheckpointer(DefaultCheckpointer):
    """Saves to a new temporary directory, which is not removed."""

    def __init__(self) -> None:
        super().__init__(tempfile.mkdtemp())
