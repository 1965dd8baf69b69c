# SPDX-License-Identifier: Apache-2.0
"""Writes Parquet files with an episode a row."""

import pathlib
from collections.abc import Callable
from typing import Any

import numpy as np

from reverb.datasets.episode import Episode, leaves
from reverb.datasets.formats.nested_lists import list_type, lists, nested_rows

__all__ = ["EpisodeRows", "check_dtype"]

# Limits of a row group; memory is a few times this size.
_GROUP_BYTES = 16 << 20
_GROUP_ROWS = 4096

_FIELDS = ("observations", "actions", "rewards", "terminated", "truncated", "infos")


def check_dtype(episode: Episode, path: str, array: np.ndarray) -> None:
    """Raises `InvalidArgumentError` if Parquet files have no such numbers."""
    if array.dtype.kind not in "biuf" or array.dtype.itemsize > 8:
        raise episode.fault(
            path, f"has dtype {array.dtype}, which this format lacks; npz and parquet have it"
        )


class EpisodeRows:
    """A series of Parquet files; a field is a list of its rows.

    Attributes:
      of_schema: Makes the schema of the files of one with these fields.

    Args:
      pa: The module pyarrow.
      file_bytes: Size of the data of a file.
      new_path: Returns the path of the file with a number.
    """

    def __init__(self, pa: Any, file_bytes: int, new_path: Callable[[int], pathlib.Path]) -> None:
        self._pa = pa
        self._file_bytes = file_bytes
        self._new_path = new_path
        self.of_schema: Callable[[Any], Any] = lambda schema: schema
        self._schema: Any = None
        self._pending: list[dict[str, np.ndarray]] = []
        self._pending_bytes = 0
        self._written_bytes = 0
        self._num_files = 0
        self._file: Any = None

    def __enter__(self) -> "EpisodeRows":
        return self

    def __exit__(self, exc_type: type[BaseException] | None, *exc: object) -> None:
        if exc_type is None:
            self._flush()
        if self._file is not None:
            self._file.close()

    def add(self, episode: Episode) -> None:
        """Appends an episode.

        Raises:
          InvalidArgumentError: If it has other fields than those before, or a dtype that the format
            lacks.
        """
        arrays = {
            path: leaf for field in _FIELDS for path, leaf in leaves(field, getattr(episode, field))
        }
        for path, array in arrays.items():
            check_dtype(episode, path, array)
        pa = self._pa
        types = {
            path: list_type(pa, pa.from_numpy_dtype(array.dtype), array.shape[1:])
            for path, array in arrays.items()
        }
        schema = pa.schema([pa.field(path, pa.list_(type_)) for path, type_ in types.items()])
        if self._schema is None:
            self._schema = schema
        for path, type_ in zip(schema.names, schema.types, strict=True):
            index = self._schema.get_field_index(path)
            if index < 0 or self._schema.field(index).type != type_:
                raise episode.fault(path, "has another dtype or shape than in the first episode")
        for path in self._schema.names:
            if path not in arrays:
                raise episode.fault(path, "is missing, and the first episode has it")
        self._pending.append(arrays)
        self._pending_bytes += episode.num_bytes
        if self._pending_bytes >= _GROUP_BYTES or len(self._pending) >= _GROUP_ROWS:
            self._flush()

    def _flush(self) -> None:
        if not self._pending:
            return
        if self._file is None:
            schema = self.of_schema(self._schema)
            path = self._new_path(self._num_files)
            self._file = self._pa.parquet.ParquetWriter(str(path), schema)
            self._num_files += 1
        columns = [self._column(path) for path in self._schema.names]
        batch = self._pa.record_batch(columns, schema=self._file.schema)
        self._file.write_batch(batch)
        self._written_bytes += self._pending_bytes
        self._pending, self._pending_bytes = [], 0
        if self._written_bytes >= self._file_bytes:
            self._file.close()
            self._file, self._written_bytes = None, 0

    def _column(self, path: str) -> object:
        arrays = [it[path] for it in self._pending]
        return lists(
            self._pa, list(map(len, arrays)), nested_rows(self._pa, np.concatenate(arrays))
        )
