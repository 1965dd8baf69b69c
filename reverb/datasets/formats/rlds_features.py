# SPDX-License-Identifier: Apache-2.0
"""The features of a dataset of RLDS: what `features.json` says of the values of a step."""

import dataclasses
import math
import pathlib
import re
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from reverb import errors
from reverb.datasets.episode import row_problem
from reverb.datasets.formats.damage import reading
from reverb.datasets.formats.files import parsed
from reverb.datasets.formats.images import decoded, decoded_all
from reverb.datasets.formats.limits import MAX_DEPTH, MAX_FIELDS
from reverb.datasets.formats.rlds_records import Example
from reverb.datasets.left_out import remedy

__all__ = ["Feature", "steps_of"]

# Classes of TensorFlow Datasets, by their last names. Nothing is imported for a name.
_CLASS = re.compile(r"tensorflow_datasets\.core\.features\.(?:\w+\.)*(\w+)")
_DTYPES = {
    name: np.dtype(name)
    for name in (
        *("bool", "float16", "float32", "float64"),
        *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)),
    )
}
_DAMAGED = (KeyError, ValueError, TypeError, AttributeError, OverflowError)


@dataclasses.dataclass(frozen=True)
class Feature:
    """A field of the steps.

    Attributes:
      key: Its name in a record.
      kind: Name of its kind, for errors.
      dtype: The dtype of its values; `None` if they are not read.
      shape: Shape of a value; those of images may have `None`.
      encoding: "none", "bytes", "zlib" or "image".
    """

    key: str
    kind: str
    dtype: np.dtype[Any] | None = None
    shape: tuple[int | None, ...] = ()
    encoding: str = "none"

    @property
    def is_number(self) -> bool:
        """Whether a value is one number."""
        return not self.shape and self.encoding != "image"

    def read(self, example: Example, where: str, num_rows: int | None) -> np.ndarray:
        """Reads the values of all steps, `[num_rows, ...]`.

        Raises:
          InvalidArgumentError: If they are too large.
          DataLossError: If they are damaged.
        """
        if self.dtype is None:
            raise errors.InternalError(f"{where}: is not a feature that is read")
        if self.encoding == "none":
            values = example.numbers(self.key, self.dtype, where)
            wanted = math.prod(it or 0 for it in self.shape)
            if num_rows is not None and len(values) != num_rows * wanted:
                raise errors.DataLossError(
                    f"{where}: has {len(values)} numbers, and not {wanted} in each of {num_rows} "
                    f"rows{remedy(self.key.removeprefix('steps/'))}"
                )
            return values.reshape(len(values) if num_rows is None else num_rows, *self.shape)
        parts = example.texts(self.key, where)
        if num_rows is not None and len(parts) != num_rows:
            problem = row_problem(len(parts), num_rows)
            advice = remedy(self.key.removeprefix("steps/"))
            raise errors.DataLossError(f"{where}: {problem}{advice}")
        if self.encoding == "image":
            return self._images(example, parts, where)
        size = self.dtype.itemsize * math.prod(it or 0 for it in self.shape)
        example.take(where, size * len(parts))
        found = np.empty((len(parts), size), np.uint8)
        for row, part in enumerate(parts):
            if self.encoding == "zlib":
                with reading(where, (zlib.error,)):
                    part = zlib.decompressobj().decompress(part, size + 1)
            if len(part) != size:
                raise errors.DataLossError(f"{where}: row {row} has not the {size} bytes of one")
            found[row] = np.frombuffer(part, np.uint8)
        return found.reshape(-1).view(self.dtype).reshape(len(parts), *self.shape)

    def _images(self, example: Example, parts: list[memoryview], where: str) -> np.ndarray:
        if not parts:
            raise errors.DataLossError(f"{where}: has no images")
        images = [bytes(it) for it in parts]
        size = decoded(images[0], where, "rlds").nbytes
        example.take(where, size * len(images))
        found = decoded_all(images, where, "rlds")
        if self.dtype == np.float32:  # Four bytes of a pixel are a number.
            found = found.view(np.float32)
        height, width, channels = self.shape
        wanted = (height or found.shape[1], width or found.shape[2], channels)
        if found.dtype != self.dtype or found[0].size != np.prod([it or 0 for it in wanted]):
            raise errors.DataLossError(
                f"{where}: has images of dtype {found.dtype} and shape {list(found.shape[1:])}, "
                f"and the feature has {self.dtype} and {list(self.shape)}"
            )
        return found.reshape(len(images), *(it or 0 for it in wanted))


def steps_of(path: pathlib.Path, described: Mapping[str, Any]) -> dict[str, Any] | None:
    """Returns the features of the steps, a nest of dicts; `None` if there are no steps.

    Args:
      path: The file, for errors.
      described: The object in it.

    Raises:
      InvalidArgumentError: If a feature is of a class that is not known.
      DataLossError: If the file is damaged.
    """
    with reading(str(path), _DAMAGED, "is damaged"):
        kind, content = _class_of(path, described)
        if kind != "FeaturesDict" or "steps" not in (fields := content.get("features", content)):
            return None
        kind, content = _class_of(path, fields["steps"])
        if kind not in ("Dataset", "Sequence"):
            return None
        count = [0]
        steps = _nest(path, content["feature"], "steps", count)
        return steps if isinstance(steps, dict) else None


def _nest(path: pathlib.Path, described: Any, key: str, count: list[int]) -> Any:
    kind, content = _class_of(path, described)
    count[0] += 1
    if key.count("/") > MAX_DEPTH or count[0] > MAX_FIELDS:
        raise ValueError(f"there are more than {MAX_FIELDS} features, or {MAX_DEPTH} nests")
    if kind == "FeaturesDict":
        fields = content.get("features", content)
        return {it: _nest(path, inner, f"{key}/{it}", count) for it, inner in fields.items()}
    if kind in ("Tensor", "Scalar"):
        shape = _shape(content.get("shape"))
        dtype = _DTYPES.get(content["dtype"])
        if dtype is None or None in shape:
            return Feature(key, f"{content['dtype']} of shape {list(shape)}")
        return Feature(key, kind, dtype, shape, _encoding(content))
    if kind == "ClassLabel":
        return Feature(key, kind, np.dtype(np.int64))
    if kind == "Image":
        shape, dtype = _shape(content["shape"]), _DTYPES.get(content.get("dtype") or "uint8")
        if len(shape) != 3 or shape[2] is None:
            raise ValueError(f"the image {key} has the shape {shape}")
        return Feature(key, kind, dtype, shape, "image")
    return Feature(key, "text" if kind == "Text" else f"a {kind}")


def _class_of(path: pathlib.Path, described: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
    """The class of a feature and what is said of it, of the new form and of the old one."""
    name = described.get("pythonClassName", described.get("type"))
    match = _CLASS.fullmatch(name) if isinstance(name, str) else None
    if match is None:
        raise errors.InvalidArgumentError(
            f"{path}: has a feature of the class {name!r:.200}, and no class is imported that a "
            "dataset names; those of tensorflow_datasets are read"
        )
    if "type" in described:
        content = described["content"]
        return match[1], parsed(content, str(path)) if isinstance(content, str) else content
    rest = [it for key, it in described.items() if isinstance(it, dict)]
    content = rest[0] if rest else {}
    return match[1], parsed(content["json"], str(path)) if "json" in content else content


def _shape(given: Any) -> tuple[int | None, ...]:
    dimensions = given.get("dimensions", ()) if isinstance(given, Mapping) else given or ()
    shape = tuple(None if it is None or int(it) < 0 else int(it) for it in dimensions)
    if len(shape) > 32:
        raise ValueError(f"a shape has {len(shape)} dimensions")
    return shape


def _encoding(content: Mapping[str, Any]) -> str:
    encoding = str(content.get("encoding") or "none").lower()
    if encoding not in ("none", "bytes", "zlib"):
        raise ValueError(f"the encoding {encoding!r:.80} is not known")
    return encoding
