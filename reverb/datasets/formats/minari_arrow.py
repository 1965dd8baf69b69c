# SPDX-License-Identifier: Apache-2.0
"""Episodes of Minari in files of Arrow or Parquet, a directory an episode."""

import dataclasses
import pathlib
import re
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from reverb import errors
from reverb._recording.nests import map_nest
from reverb.datasets.episode import leaves
from reverb.datasets.formats.arrow_columns import numbers_of
from reverb.datasets.formats.arrow_files import ArrowFile
from reverb.datasets.formats.damage import reading
from reverb.datasets.formats.fields import with_tuples
from reverb.datasets.formats.files import object_of
from reverb.datasets.formats.images import decoded, decoded_all
from reverb.datasets.formats.limits import MAX_DEPTH, Limits
from reverb.datasets.formats.links import visible
from reverb.datasets.formats.minari_spaces import Space
from reverb.datasets.formats.parquet_files import ParquetFile, import_pyarrow
from reverb.datasets.left_out import LeftOut, remedy

__all__ = ["ArrowStorage"]

# The name of the directory of an episode.
_EPISODE = re.compile("0|[1-9][0-9]{0,17}")
_DAMAGED = (KeyError, ValueError, TypeError, AttributeError)
_FIELDS = ("observations", "actions", "rewards", "terminations", "truncations")


@dataclasses.dataclass(frozen=True)
class ArrowStorage:
    """The episodes of a dataset.

    Attributes:
      data: The directory of the data.
      suffix: That of the files.
      spaces: The spaces of the fields.
      leave_out: Names of fields that are not read.
      check: Checks the path of a file.
      limits: Bounds an episode.
      pa: The module pyarrow.
    """

    data: pathlib.Path
    suffix: str
    spaces: Mapping[str, Space]
    leave_out: LeftOut
    check: Callable[[pathlib.Path], Any]
    limits: Limits
    pa: types.ModuleType = dataclasses.field(default_factory=import_pyarrow)

    def __enter__(self) -> "ArrowStorage":
        return self

    def __exit__(self, *exc: object) -> None:
        pass

    def numbers(self) -> Iterable[int]:
        """The numbers of the episodes that are there."""
        names = (it.name for it in self.data.iterdir() if it.is_dir())
        return [int(it) for it in names if _EPISODE.fullmatch(it)]

    def read(self, number: int) -> tuple[dict[str, Any], dict[str, Any]]:
        """Returns the fields of an episode, with Minari's names, and its seed and options."""
        directory = self.data / str(number)
        paths = list(visible(directory, self.suffix))
        if not paths:
            raise errors.DataLossError(
                f"{self.data}: episode {number} cannot be read: {directory} has no "
                f"{self.suffix} file"
            )
        parts = []
        size = 0
        for path in paths:
            self.check(path)
            for batch in self._batches(path):
                where = f"{path}: episode {number}"
                with reading(where, (*_DAMAGED, self.pa.ArrowException)):
                    parts.append(self._part(batch, where))
                size += sum(getattr(it, "nbytes", 0) for _, it in leaves("", parts[-1]))
                self.limits.check(where, "it", size)
        if not parts:
            raise errors.DataLossError(f"{directory}: episode {number} has no rows")
        with reading(str(directory), (KeyError, ValueError)):
            fields = parts[0]
            if len(parts) > 1:
                fields = map_nest(lambda *arrays: np.concatenate(arrays), *parts)
        # The last row has the last observation, and nothing else of its own.
        ended = map_nest(lambda it: it[:-1], {name: fields[name] for name in _FIELDS[1:]})
        return fields | ended, self._facts(directory)

    def _facts(self, directory: pathlib.Path) -> dict[str, Any]:
        path = directory / "metadata.json"
        self.check(path)
        facts = object_of(path)
        return {it: facts[it] for it in ("seed", "options") if facts.get(it) is not None}

    def _batches(self, path: pathlib.Path) -> Iterator[Any]:
        opener = ArrowFile if self.suffix == ".arrow" else ParquetFile
        with opener(self.pa, path, self.limits) as file:
            names = [it for it in (*_FIELDS, "infos") if it in file.schema.names]
            yield from file.batches(names)

    def _part(self, batch: Any, where: str) -> dict[str, Any]:
        part = {}
        for name in _FIELDS:
            if batch.schema.names.count(name) != 1:
                raise errors.DataLossError(f"{where}, field {name}: is missing")
            space = self.spaces.get(name, Space())
            array = batch.column(batch.schema.get_field_index(name))
            part[name] = self._values(space, array, where, name)
        part["infos"] = {}
        if "infos" in batch.schema.names:
            infos = batch.column(batch.schema.get_field_index("infos"))
            part["infos"] = self._infos(infos, where, "infos", 0)
        return part

    def _values(self, space: Space, array: Any, place: str, field: str) -> Any:
        if space.nest is not None:
            nest = {
                key: self._values(inner, array.field(key), place, f"{field}/{key}")
                for key, inner in space.nest.items()
                if not self.leave_out.has(f"{field}/{key}")
            }
            if not nest and field in ("observations", "actions"):
                self.leave_out.refuse_all(str(self.data), field)
            return with_tuples(nest) if space.is_tuple else nest
        where = f"{place}, field {field}"
        if space.is_image:
            images = array.to_pylist()
            if not images:
                return np.zeros((0,), np.uint8)
            size = decoded(images[0], where, "minari").nbytes * len(images)
            self.limits.check(where, "it", size)
            return decoded_all(images, where, "minari")
        if space.shape is None:
            raise _text(where, field)
        values = numbers_of(self.pa, array, where)
        return values.reshape(len(array), *space.shape)

    def _infos(self, array: Any, place: str, above: str, depth: int) -> dict[str, Any]:
        if not self.pa.types.is_struct(array.type) or depth > MAX_DEPTH:
            raise errors.DataLossError(
                f"{place}, field {above}: is not a nest, or one of more than {MAX_DEPTH}"
            )
        found: dict[str, Any] = {}
        for index, field in enumerate(array.type):
            inner, path = array.field(index), f"{above}/{field.name}"
            if self.leave_out.has(path):
                continue
            if self.pa.types.is_struct(field.type):
                found[field.name] = self._infos(inner, place, path, depth + 1)
                continue
            where = f"{place}, field {path}"
            if self.pa.types.is_string(field.type):
                raise _text(where, path)
            values = numbers_of(self.pa, inner, where)
            shape = (field.metadata or {}).get(b"shape")
            if shape is not None:
                sizes = [int(it) for it in shape.split(b",") if it]
                values = values.reshape(len(inner), *sizes)
            found[field.name] = values
        return found


def _text(where: str, field: str) -> errors.InvalidArgumentError:
    return errors.InvalidArgumentError(f"{where}: must be numbers, got text{remedy(field)}")
