# SPDX-License-Identifier: Apache-2.0
"""A checkpoint as bytes: for the state of a program that has a server of its own."""

import io
import pathlib
import tarfile
from typing import Any

__all__ = ["pack_checkpoint", "unpack_checkpoint"]


def pack_checkpoint(path: str) -> bytes:
    """Returns the files of a checkpoint, as an archive."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        archive.add(path, arcname=pathlib.Path(path).name)
    return packed.getvalue()


def unpack_checkpoint(packed: bytes, directory: str) -> None:
    """Writes the files of `pack_checkpoint` where a checkpointer of that directory finds them."""
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        # Python has filters from 3.10.12 and 3.11.4 on.
        safe: dict[str, Any] = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
        archive.extractall(directory, **safe)
