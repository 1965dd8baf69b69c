# SPDX-License-Identifier: Apache-2.0
"""The spaces of a dataset of Minari, as its metadata describes them.

They describe the nests of a field, and which fields are encoded images. No space of Gymnasium is
made: the bounds of one may claim any size.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from reverb import errors
from reverb.datasets.formats.damage import reading
from reverb.datasets.formats.files import parsed
from reverb.datasets.formats.limits import MAX_DEPTH

__all__ = ["Space", "space_of"]

# Images of fewer pixels a side are not encoded.
_MIN_IMAGE_SIDE = 32


@dataclasses.dataclass(frozen=True)
class Space:
    """A space.

    Attributes:
      nest: The spaces of a nest by their names: those of a tuple are 0, 1, ...; `None` if it is
        none.
      is_tuple: Whether the nest is a tuple.
      shape: Shape of a value; `None` if it is a text.
      is_image: Whether its values are encoded as JPEG.
    """

    nest: Mapping[str, "Space"] | None = None
    is_tuple: bool = False
    shape: tuple[int, ...] | None = ()
    is_image: bool = False


def space_of(given: object, where: str, encoded: bool) -> Space:
    """Reads a space; `encoded` says whether images are.

    Raises:
      InvalidArgumentError: If it is of a kind that is not known.
      DataLossError: If it is damaged.
    """
    described = parsed(given, where) if isinstance(given, str) else given
    with reading(where, (KeyError, TypeError, ValueError, OverflowError), "is damaged"):
        return _space(described, where, encoded, 0)


def _space(given: Any, where: str, encoded: bool, depth: int) -> Space:
    if depth > MAX_DEPTH:
        raise ValueError(f"it has more than {MAX_DEPTH} nests in each other")
    kind = given["type"]
    if kind in ("Dict", "Tuple"):
        inner = given["subspaces"]
        named = inner if kind == "Dict" else {str(i): it for i, it in enumerate(inner)}
        nest = {key: _space(it, where, encoded, depth + 1) for key, it in named.items()}
        return Space(nest=nest, is_tuple=kind == "Tuple")
    if kind == "Box":
        shape = _shape(given["shape"])
        return Space(shape=shape, is_image=encoded and _is_image(given, shape))
    if kind == "Discrete":
        return Space()
    if kind == "MultiDiscrete":
        return Space(shape=np.shape(given["nvec"]))
    if kind == "MultiBinary":
        size = given["n"]
        return Space(shape=_shape(size if isinstance(size, list) else [size]))
    if kind == "Text":
        return Space(shape=None)
    raise errors.InvalidArgumentError(f"{where}: is of the kind {kind!r:.80}, which is not read")


def _shape(given: Any) -> tuple[int, ...]:
    shape = tuple(given)
    if len(shape) > 32 or any(type(it) is not int or it < 0 for it in shape):
        raise ValueError(f"the shape {shape!r:.80} is none")
    return shape


def _is_image(given: Any, shape: tuple[int, ...]) -> bool:
    return (
        given["dtype"] == "uint8"
        and len(shape) in (2, 3)
        and min(shape[:2]) >= _MIN_IMAGE_SIDE
        and bool((np.asarray(given["low"], np.float64) == 0).all())
        and bool((np.asarray(given["high"], np.float64) == 255).all())
    )
