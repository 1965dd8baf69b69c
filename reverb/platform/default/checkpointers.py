# SPDX-License-Identifier: Apache-2.0
"""Old import path of the checkpointers, the choice of a default, and reading without a server."""

from reverb.platform.checkpointers_lib import (
    CheckpointerBase,
    DefaultCheckpointer,
    TempDirCheckpointer,
)
from reverb.stored_checkpoint import Checkpoint, TableStatistics, read

__all__ = [
    "Checkpoint",
    "CheckpointerBase",
    "DefaultCheckpointer",
    "TableStatistics",
    "TempDirCheckpointer",
    "default_checkpointer",
    "read",
]


def default_checkpointer(group: str | None = None) -> CheckpointerBase:
    """The checkpointer for a server that was given none.

    Args:
      group: Unused; kept for callers of the original.
    """
    del group
    return TempDirCheckpointer()
