# SPDX-License-Identifier: Apache-2.0
"""Episodes of Minari in a file of HDF5, a group an episode.

A file of HDF5 may refer to others, by links, external storage and virtual datasets; none of them is
followed. A dataset may claim any size, which is checked before it is read.
"""

import math
import pathlib
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from reverb import errors
from reverb._checks.plain_files import open_file
from reverb.datasets.formats.damage import reading
from reverb.datasets.formats.fields import put, with_tuples
from reverb.datasets.formats.hdf5_heap import REFERENCE, objects_of
from reverb.datasets.formats.images import decoded
from reverb.datasets.formats.limits import MAX_DEPTH, MAX_EPISODES, MAX_FIELDS, Limits
from reverb.datasets.formats.minari_spaces import Space
from reverb.datasets.left_out import LeftOut, remedy
from reverb.datasets.library import library

__all__ = ["Hdf5Storage"]

# Errors of h5py for damaged files; they have no class in common.
_DAMAGED = (
    OSError,
    RuntimeError,
    ValueError,
    KeyError,
    TypeError,
    AttributeError,
    OverflowError,
    zlib.error,
)
# The filters that are applied to a chunk, in this order; others are programs of their own.
_FILTERS = ("shuffle", "deflate", "fletcher32")
# The name of the group of an episode.
_EPISODE = re.compile("episode_(0|[1-9][0-9]{0,17})")
# Chunks of a dataset, of which the library makes a list.
_MAX_CHUNKS = 1 << 17


class Hdf5Storage:
    """The episodes of a dataset.

    Args:
      path: The file.
      spaces: The spaces of the fields.
      leave_out: Names of fields that are not read.
      limits: Bounds an episode.
    """

    def __init__(
        self,
        path: pathlib.Path,
        spaces: Mapping[str, Space],
        leave_out: LeftOut,
        limits: Limits,
    ) -> None:
        self._path = path
        self._spaces = spaces
        self._leave_out = leave_out
        self._limits = limits
        self._h5py = library("h5py", "h5py>=3.8", "minari")
        self._file: Any = None
        # Facts of the episode that is being read.
        self._where = ""
        self._num_bytes = self._num_fields = 0

    def __enter__(self) -> "Hdf5Storage":
        return self

    def __exit__(self, *exc: object) -> None:
        if self._file is not None:
            self._file.close()

    def numbers(self) -> Iterable[int]:
        """The numbers of the episodes that are there."""
        with reading(str(self._path.parent), _DAMAGED, "episode 0 cannot be read"):
            self._file = self._h5py.File(self._path, "r")
            if len(self._file) > MAX_EPISODES:
                raise errors.InvalidArgumentError(
                    f"{self._path}: has {len(self._file)} episodes, more than {MAX_EPISODES}"
                )
            names = map(_EPISODE.fullmatch, self._file)
            return [int(found[1]) for found in names if found]

    def read(self, number: int) -> tuple[dict[str, Any], dict[str, Any]]:
        """Returns the fields of an episode, with Minari's names, and its seed and options."""
        self._where = f"{self._path}: episode {number}"
        self._num_bytes = self._num_fields = 0
        with reading(str(self._path.parent), _DAMAGED, f"episode {number} cannot be read"):
            group = self._child(self._file, f"episode_{number}", "")
            fields = {
                name: self._values(group, name, self._spaces.get(name, Space()), name)
                for name in ("observations", "actions", "rewards", "terminations", "truncations")
            }
            fields["infos"] = {}
            if "infos" in self._names(group, ""):
                fields["infos"] = self._infos(self._child(group, "infos", "infos"), "", 0)
            return fields, self._facts(group)

    def _child(self, group: Any, name: str, field: str) -> object:
        """The group or dataset of a name, which is in this file."""
        where = f"{self._where}, field {field}" if field else self._where
        if not isinstance(group, self._h5py.Group):
            raise errors.DataLossError(f"{where}: is in an array")
        if group.id.links.get_info(name.encode()).type != self._h5py.h5l.TYPE_HARD:
            raise errors.InvalidArgumentError(
                f"{where}: is a link to another place, and links in HDF5 are not followed; write "
                "the values into this file"
            )
        found = self._h5py.h5o.open(group.id, name.encode())
        if isinstance(found, self._h5py.h5g.GroupID):
            return self._h5py.Group(found)
        if not isinstance(found, self._h5py.h5d.DatasetID):
            raise errors.DataLossError(f"{where}: is not an array")
        # Before anything asks for the shape, because that opens the files of a virtual dataset.
        plist = found.get_create_plist()
        if plist.get_layout() == self._h5py.h5d.VIRTUAL or plist.get_external_count():
            raise errors.InvalidArgumentError(
                f"{where}: has its values in other files, which are not read; write the values "
                "into this file"
            )
        return self._h5py.Dataset(found)

    def _names(self, group: Any, where: str) -> list[str]:
        if len(group) > MAX_FIELDS:
            raise errors.InvalidArgumentError(
                f"{self._where}, field {where}: has {len(group)} fields, more than {MAX_FIELDS}"
            )
        return list(group.keys())

    def _values(self, group: object, name: str, space: Space, field: str) -> object:
        """The values of a field."""
        found = self._child(group, name, field)
        if space.nest is None:
            if space.shape is None:
                raise self._text(field)
            return self._array(found, field, space.is_image)
        if not isinstance(found, self._h5py.Group):
            raise errors.DataLossError(f"{self._where}, field {field}: must be a nest")
        names = self._names(found, field)
        # Names of the file by those of the nest.
        keys = {str(i): f"_index_{i}" for i in range(len(names))} if space.is_tuple else None
        nest = {
            key: self._values(found, name, space.nest[key], f"{field}/{key}")
            for key, name in (keys or {it: it for it in names}).items()
            if not self._leave_out.has(f"{field}/{key}")
        }
        if not nest and field in ("observations", "actions"):
            self._leave_out.refuse_all(str(self._path), field)
        return with_tuples(nest) if space.is_tuple else nest

    def _text(self, field: str) -> errors.InvalidArgumentError:
        return errors.InvalidArgumentError(
            f"{self._where}, field {field}: must be numbers, got text{remedy(field)}"
        )

    def _infos(self, group: object, above: str, depth: int) -> dict[str, Any]:
        if depth > MAX_DEPTH:
            raise errors.InvalidArgumentError(
                f"{self._where}, field infos: has more than {MAX_DEPTH} nests in each other"
            )
        found: dict[str, Any] = {}
        for name in self._names(group, f"infos/{above}"):
            path = f"{above}{name}"
            if self._leave_out.has(f"infos/{path}"):
                continue
            child = self._child(group, name, f"infos/{path}")
            found[name] = (
                self._infos(child, f"{path}/", depth + 1)
                if isinstance(child, self._h5py.Group)
                else self._array(child, f"infos/{path}", False)
            )
        return found

    def _array(self, dataset: Any, field: str, is_image: bool) -> object:
        where = f"{self._where}, field {field}"
        self._num_fields += 1
        if not isinstance(dataset, self._h5py.Dataset) or self._num_fields > MAX_FIELDS:
            raise errors.DataLossError(f"{where}: must be an array, one of at most {MAX_FIELDS}")
        dtype, shape = dataset.dtype, dataset.shape
        # Values of any length are references in the file.
        value_bytes = max(dtype.itemsize, dataset.id.get_type().get_size())
        self._check_storage(dataset.id, shape, value_bytes, where)
        if self._h5py.check_string_dtype(dtype) is not None:
            raise self._text(field)
        if is_image:
            return self._images(dataset, shape or (), where)
        if dtype.kind not in "biufc" or shape is None or not shape:
            raise errors.InvalidArgumentError(
                f"{where}: must be an array of numbers, got dtype {dtype} and shape {shape}"
                f"{remedy(field)}"
            )
        self._take(where, math.prod(shape) * dtype.itemsize)
        return dataset[()]

    def _images(self, dataset: Any, shape: tuple[int, ...], where: str) -> np.ndarray:
        """Decodes the images of a dataset: rows of bytes of one length, or of any."""
        dtype = dataset.dtype
        is_any = self._h5py.check_vlen_dtype(dtype) == np.uint8 and len(shape) == 1
        if not shape or not shape[0] or not (is_any or (dtype == np.uint8 and len(shape) == 2)):
            raise errors.DataLossError(f"{where}: must be encoded images, got dtype {dtype}")
        self._limits.check(where, "it", math.prod(shape) * REFERENCE.size)
        rows = self._rows(dataset.id, shape[0], where) if is_any else map(bytes, dataset)
        first = decoded(next(rows), where, "minari")
        self._take(where, first.nbytes * shape[0])
        found = np.empty((shape[0], *first.shape), np.uint8)
        found[0] = first
        for row, data in enumerate(rows, start=1):
            found[row] = decoded(data, where, "minari", like=first)
        return found

    def _rows(self, dataset: Any, count: int, where: str) -> Iterator[bytes]:
        """The rows of a dataset whose rows are of any length."""
        plist = self._file.id.get_create_plist()
        if plist.get_sizes() != (8, 8) or plist.get_userblock() or self._filters(dataset):
            raise errors.InvalidArgumentError(
                f"{where}: images in a file of another kind than Minari writes; `h5repack -f NONE` "
                "writes it anew"
            )
        parts: list[tuple[Any, ...]] = []
        if dataset.get_create_plist().get_layout() == self._h5py.h5d.CHUNKED:
            dataset.chunk_iter(lambda it: parts.append((it.chunk_offset, it.byte_offset, it.size)))
        else:
            parts.append(((0,), dataset.get_offset() or 0, count * REFERENCE.size))
        with open_file(self._path) as file:
            data = bytearray()
            for _, at, size in sorted(parts):
                file.seek(at)
                data += file.read(size)
            data = data[: count * REFERENCE.size]
            if len(data) != count * REFERENCE.size:
                raise ValueError(f"it has {len(data)} bytes for {count} rows")
            for at, size in objects_of(file, list(REFERENCE.iter_unpack(data))):
                self._limits.check(where, "an image", size)
                file.seek(at)
                yield file.read(size)

    def _take(self, where: str, num_bytes: int) -> None:
        self._num_bytes += num_bytes
        self._limits.check(where, "the episode", self._num_bytes)

    def _check_storage(self, dataset: Any, shape: Any, value_bytes: int, where: str) -> None:
        """Checks that the values are there, and what they take when they are read."""
        h5py, plist = self._h5py, dataset.get_create_plist()
        order = [getattr(h5py.h5z, f"FILTER_{it.upper()}") for it in _FILTERS]
        filters = self._filters(dataset)
        if [it for it in order if it in filters] != filters:
            raise errors.InvalidArgumentError(
                f"{where}: has the filters {filters}, and {', '.join(_FILTERS)} are read; "
                "`h5repack -f NONE` writes it without them"
            )
        if not shape or plist.get_layout() != h5py.h5d.CHUNKED:
            if shape and 0 not in shape and not dataset.get_storage_size():
                raise errors.DataLossError(f"{where}: has no values in the file")
            return
        chunk = plist.get_chunk()
        chunk_bytes = math.prod(chunk) * value_bytes
        self._limits.check(where, "a chunk", chunk_bytes)
        wanted = math.prod(-(-a // b) for a, b in zip(shape, chunk, strict=True))
        if wanted > _MAX_CHUNKS or dataset.get_num_chunks() != wanted:
            raise errors.DataLossError(
                f"{where}: has {dataset.get_num_chunks()} chunks of shape {list(chunk)} in the "
                f"file, for shape {list(shape)}; at most {_MAX_CHUNKS} are read"
            )
        chunks: list[Any] = []
        dataset.chunk_iter(chunks.append)
        for info in chunks:
            if info.size > (self._limits.max_bytes if filters else chunk_bytes):
                raise errors.DataLossError(f"{where}: a chunk has {info.size:,} bytes in the file")
            if h5py.h5z.FILTER_DEFLATE in filters:
                _, data = dataset.read_direct_chunk(info.chunk_offset)
                # A checksum follows the data.
                if len(zlib.decompressobj().decompress(data, chunk_bytes + 8)) > chunk_bytes + 4:
                    raise errors.DataLossError(
                        f"{where}: a chunk inflates to more than its {chunk_bytes:,} bytes"
                    )

    def _filters(self, dataset: Any) -> list[int]:
        plist = dataset.get_create_plist()
        return [plist.get_filter(it)[0] for it in range(plist.get_nfilters())]

    def _facts(self, group: Any) -> dict[str, Any]:
        """The seed and the options of an episode."""
        h5py = self._h5py
        facts: dict[str, Any] = {}
        if h5py.h5a.get_num_attrs(group.id) > MAX_FIELDS:
            raise errors.DataLossError(f"{self._where}: has more than {MAX_FIELDS} attributes")
        for name in group.attrs:
            if name != "seed" and not name.startswith("options/"):
                continue
            found = group.attrs.get_id(name)
            is_text = h5py.check_string_dtype(found.dtype) is not None
            if not (is_text or found.dtype.kind in "biuf") or math.prod(found.shape) > MAX_FIELDS:
                raise errors.InvalidArgumentError(
                    f"{self._where}, attribute {name}: must be a number or a text, got dtype "
                    f"{found.dtype} and shape {list(found.shape)}"
                )
            value = group.attrs[name]
            put(facts, name.split("/")[:MAX_DEPTH], int(value) if name == "seed" else value)
        return facts
