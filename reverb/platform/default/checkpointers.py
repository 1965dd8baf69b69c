# SPDX-License-Identifier: Apache-2.0
"""Old import path of the checkpointers, and the choice of a default."""

from reverb.platform.checkpointers_lib import (
    CheckpointerBase,
    DefaultCheckpointer,
    TempDirCheckpointer,
)

__all__ = ["CheckpointerBase", "DefaultCheckpointer", "TempDirCheckpointer", "default_checkpointer"]


def default_checkpointer(group: str | None = None) -> CheckpointerBase:
    """The checkpointer for a server that was given none.

    Args:
      group: Unused; kept for callers of the original.
    """
    del group
    return TempDirCheckpointer()
