# SPDX-License-Identifier: Apache-2.0
"""The sizes that the footer and the pages of a Parquet file claim.

A page of a few bytes may claim 2 GiB, or billions of values that are all alike, and the footer
need not mention it. So the heads of the pages are read before the library reads the pages. They and
the footer are structures of Thrift in its compact encoding. pyarrow ends the process at some
damaged footers when it is asked for a column, so it is not.
"""

import dataclasses
from typing import Any, BinaryIO

from reverb.datasets.formats.limits import MAX_DEPTH

__all__ = ["Chunk", "RowGroup", "row_groups_of", "sizes_of"]

# Sizes of the part of a file that is read for the head of a page, one after another.
_HEAD_BYTES = (1 << 8, 1 << 16, 1 << 24)
# Bytes of a value by its physical type. INT96 become timestamps.
_WIDTHS = {"BOOLEAN": 1, "INT32": 4, "INT64": 8, "INT96": 8, "FLOAT": 4, "DOUBLE": 8}
# Memory of the levels of a value, which describe lists and missing values.
_LEVEL_BYTES = 4
_DICTIONARY_PAGE = 2
# Fields of the description of a column: number of values, bytes in the file, and where they begin.
_VALUES, _COMPRESSED, _DATA, _DICTIONARY = 5, 7, 9, 11
# The fields that are read, by their numbers: those of the footer, and those of the head of a page.
_FOOTER = {4: {1: {3: {_VALUES: {}, _COMPRESSED: {}, _DATA: {}, _DICTIONARY: {}}}, 3: {}}}
_PAGE = {1: {}, 2: {}, 3: {}, 5: {1: {}}, 8: {1: {}}}


@dataclasses.dataclass(frozen=True)
class Chunk:
    """Claims of the pages of a column in a row group.

    Attributes:
      page_bytes: Size of its largest page.
      dictionary_bytes: Size of its dictionary, of which each value may be any part; 0 for values of
        a fixed width.
      num_values: Number of its values.
      num_bytes: Size of its values, where each is in the dictionary once at most.
    """

    page_bytes: int
    dictionary_bytes: int
    num_values: int
    num_bytes: int


@dataclasses.dataclass(frozen=True)
class RowGroup:
    """A row group.

    Attributes:
      num_rows: Number of its rows.
      columns: Description of each of its columns in the footer.
    """

    num_rows: int
    columns: list[dict[int, Any]]


def row_groups_of(footer: bytes) -> list[RowGroup]:
    """Reads the row groups in a footer.

    Raises:
      ValueError: If it is damaged.
    """
    try:
        groups = _Compact(footer).struct(_FOOTER).get(4, [])
        return [
            RowGroup(_size(group, 3), [column.get(3, {}) for column in group.get(1, [])])
            for group in groups
        ]
    except (IndexError, AttributeError, TypeError):
        raise ValueError("the footer is damaged") from None


def sizes_of(
    file: BinaryIO, file_bytes: int, column: dict[int, Any], physical_type: str, length: int
) -> Chunk:
    """Reads the heads of all pages of a column of a row group.

    Args:
      file: The file.
      file_bytes: Its size.
      column: Description of the column in the footer.
      physical_type: Type of its values.
      length: Bytes of a value, if the type has a length of its own.

    Raises:
      ValueError: If the pages are not in the file.
    """
    width = _WIDTHS.get(physical_type, length or None)
    at = _size(column, _DATA)
    if 0 < (first := column.get(_DICTIONARY) or 0) < at:
        at = first
    end = at + _size(column, _COMPRESSED)
    if end > file_bytes:
        raise ValueError(f"a column ends at byte {end:,} of {file_bytes:,}")
    largest = dictionary = num_bytes = num_values = 0
    # A reader stops at the number of values that the footer has.
    while at < end and num_values < _size(column, _VALUES):
        head, head_bytes = _head(file, at)
        at += head_bytes + _size(head, 3)
        size = _size(head, 2)
        largest = max(largest, size)
        if head.get(1) == _DICTIONARY_PAGE:
            dictionary = size if width is None else 0
            continue
        count = _size(head.get(5) or head.get(8) or {}, 1)
        num_values += count
        num_bytes += count * _LEVEL_BYTES + (size if width is None else count * width)
    return Chunk(largest, dictionary, num_values, num_bytes)


def _head(file: BinaryIO, at: int) -> tuple[dict[int, Any], int]:
    for size in _HEAD_BYTES:
        file.seek(at)
        data = file.read(size)
        reader = _Compact(data)
        try:
            return reader.struct(_PAGE), reader.at
        except IndexError:
            if len(data) < size:
                break
    raise ValueError("the head of a page is damaged")


def _size(fields: object, field: int) -> int:
    value = fields.get(field) if isinstance(fields, dict) else None
    if not isinstance(value, int) or value < 0:
        raise ValueError("the head of a page is damaged")
    return value


class _Compact:
    """Reads structures; a reader that needs more bytes raises `IndexError`."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.at = 0

    def struct(self, wanted: dict[int, Any], depth: int = 0) -> dict[int, Any]:
        """The wanted fields of a structure: numbers, structures, and lists of structures."""
        if depth > MAX_DEPTH:
            raise ValueError("a structure is too deep")
        found: dict[int, Any] = {}
        field = 0
        while head := self._byte():
            delta, kind = head >> 4, head & 15
            field = field + delta if delta else self._zigzag()
            value = self._value(kind, wanted.get(field, {}), depth)
            if field in wanted:
                found[field] = value
        return found

    def _value(self, kind: int, wanted: dict[int, Any], depth: int) -> object:
        if kind in (1, 2):
            return kind == 1
        if kind == 3:
            return self._byte()
        if kind in (4, 5, 6):
            return self._zigzag()
        if kind == 7:
            self._skip(8)
        elif kind == 8:
            self._skip(self._varint())
        elif kind in (9, 10):
            return self._list(wanted, depth)
        elif kind == 12:
            return self.struct(wanted, depth + 1)
        else:
            raise ValueError("a structure is damaged")
        return None

    def _list(self, wanted: dict[int, Any], depth: int) -> list[Any] | None:
        count, kind = self._list_head()
        found = []
        for _ in range(count):
            if kind in (1, 2):
                self._skip(1)
                continue
            value = self._value(kind, wanted, depth + 1)
            if wanted:
                found.append(value)
        return found if wanted else None

    def _list_head(self) -> tuple[int, int]:
        head = self._byte()
        count = head >> 4
        return (self._varint() if count == 15 else count), head & 15

    def _byte(self) -> int:
        self.at += 1
        return self._data[self.at - 1]

    def _skip(self, num_bytes: int) -> None:
        self.at += num_bytes
        if self.at > len(self._data):
            raise IndexError

    def _varint(self) -> int:
        value = shift = 0
        while True:
            byte = self._byte()
            value |= (byte & 127) << shift
            if byte < 128:
                return value
            shift += 7
            if shift > 63:
                raise ValueError("a number is too long")

    def _zigzag(self) -> int:
        value = self._varint()
        return (value >> 1) ^ -(value & 1)
