# SPDX-License-Identifier: Apache-2.0
"""Images of datasets: PNG and JPEG alone, whose sizes are checked before they are decoded.

Pillow reads dozens of formats, some by other programs; a dataset does not choose among them.
"""

import io
import struct
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from reverb import errors
from reverb.datasets.formats.damage import reading
from reverb.datasets.formats.limits import MAX_IMAGE_BYTES
from reverb.datasets.library import library

__all__ = ["decoded", "decoded_all"]

_FORMATS = ("PNG", "JPEG")
# Errors of Pillow for damaged images; they have no class in common.
_DAMAGED = (
    OSError,
    ValueError,
    SyntaxError,
    EOFError,
    IndexError,
    KeyError,
    TypeError,
    OverflowError,
    struct.error,
    zlib.error,
)
_WIDE = {"I": 4, "F": 4, "I;16": 2, "I;16B": 2, "I;16L": 2}


def decoded_all(images: Sequence[Any], where: str, format_: str) -> np.ndarray:
    """Decodes images of one size, `[R, height, width, ...]`.

    Args:
      images: Bytes of each.
      where: Names them, for errors.
      format_: The format of the dataset, which needs Pillow.

    Raises:
      InvalidArgumentError: If one has another size than the first, or is too large.
      DataLossError: If one is damaged.
      FailedPreconditionError: If Pillow is not installed.
    """
    first = decoded(images[0], where, format_)
    found = np.empty((len(images), *first.shape), first.dtype)
    found[0] = first
    for index in range(1, len(images)):
        found[index] = decoded(images[index], where, format_, like=first)
    return found


def decoded(data: object, where: str, format_: str, like: np.ndarray | None = None) -> np.ndarray:
    """Decodes an image, `[height, width, ...]`; see `decoded_all`."""
    module = library("PIL", "pillow>=10", format_, "PIL.Image")
    if not isinstance(data, bytes):
        raise errors.InvalidArgumentError(
            f"{where}: must be the bytes of an image, got a {type(data).__name__}; a path or an "
            "address is not followed"
        )
    damages = (*_DAMAGED, module.DecompressionBombError, module.DecompressionBombWarning)
    problem = "is not a PNG or JPEG image that can be decoded"
    with (
        reading(where, damages, problem),
        module.open(io.BytesIO(data), formats=_FORMATS) as image,
    ):
        width, height = image.size
        depth = len(image.getbands()) * _WIDE.get(image.mode, 1)
        if width * height * depth > MAX_IMAGE_BYTES:
            raise errors.InvalidArgumentError(
                f"{where}: is an image of {width} x {height} pixels, which take "
                f"{width * height * depth:,} bytes, more than {MAX_IMAGE_BYTES:,}"
            )
        if like is not None and (height, width) != like.shape[:2]:
            raise errors.InvalidArgumentError(
                f"{where}: has images of different sizes, {like.shape[1]} x {like.shape[0]} "
                f"and {width} x {height}"
            )
        found = np.asarray(image)
    if like is not None and (found.shape, found.dtype) != (like.shape, like.dtype):
        raise errors.InvalidArgumentError(f"{where}: has images of different kinds")
    return found
