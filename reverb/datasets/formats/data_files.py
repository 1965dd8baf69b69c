# SPDX-License-Identifier: Apache-2.0
"""The files of a dataset that has several."""

import dataclasses
import pathlib
from collections.abc import Callable, Sequence
from typing import BinaryIO

__all__ = ["DataFile", "after_files", "old_numbers"]


@dataclasses.dataclass(frozen=True)
class DataFile:
    """A file of a dataset.

    Attributes:
      path: Its path; of a file of the hub, its name.
      name: Its path in the directory of the dataset, by which its episodes are known; empty where
        their number identifies them, because the file is the whole dataset, or one of the hub.
      open: Opens a file of the hub; `None` for one of this machine.
      damages: Errors of a file of the hub.
    """

    path: pathlib.Path
    name: str = ""
    open: Callable[[], BinaryIO] | None = None
    damages: tuple[type[BaseException], ...] = ()


def old_numbers(
    files: Sequence[DataFile], count: Callable[[DataFile], int]
) -> dict[str, int] | None:
    """Returns the number of the first episode of each file, with files in the order of their texts.

    Ids of older imports are made of these numbers. `None`: the files are in this order anyway.
    """
    ordered = sorted(files, key=lambda it: it.name.split("/"))
    if ordered == list(files):
        return None
    numbers = {}
    total = 0
    for file in ordered:
        numbers[file.name] = total
        total += count(file)
    return numbers


def after_files(
    files: Sequence[DataFile], count: Callable[[DataFile], int], start: int
) -> tuple[int, list[DataFile]]:
    """Leaves out the files before the one that has the episode at position `start`.

    Returns the position of the first episode of the rest, and the rest.
    """
    position = 0
    for index, file in enumerate(files):
        after = position + count(file)
        if after > start:
            return position, list(files[index:])
        position = after
    return position, []
