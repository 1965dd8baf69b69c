# SPDX-License-Identifier: Apache-2.0
"""Format parquet: Parquet files. A row is an episode, as `reverb export` writes it, or a step."""

import pathlib

from reverb.datasets.formats.files import files_of
from reverb.datasets.formats.limits import Limits
from reverb.datasets.formats.row_files import RowFiles
from reverb.datasets.left_out import LeftOut

__all__ = ["ParquetSource"]


class ParquetSource(RowFiles):
    """A Parquet file, or a directory of them; see `Source`."""

    def __init__(self, name: str, path: str, leave_out: LeftOut, limits: Limits) -> None:
        identity = f"parquet:{pathlib.Path(path).expanduser().resolve()}"
        super().__init__(name, identity, files_of(name, path, ".parquet"), leave_out, limits)
