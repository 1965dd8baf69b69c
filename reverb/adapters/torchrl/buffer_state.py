# SPDX-License-Identifier: Apache-2.0
"""The state of a buffer, as a dict and as files."""

import json
import pathlib
from typing import Any

import numpy as np

from reverb._checks.plain_files import open_file, read_file
from reverb.adapters.torchrl.library import torch
from reverb.adapters.torchrl.table_access import TableAccess
from reverb.errors import InvalidArgumentError

__all__ = ["BufferState"]

# It has two numbers.
_MAX_METADATA_BYTES = 1024 * 1024


class BufferState:
    """Saves and loads transforms, numbers, and the items of a server of the buffer's own."""

    def __init__(self, buffer: Any, access: TableAccess) -> None:
        self._buffer = buffer
        self._access = access

    def as_dict(self) -> dict[str, Any]:
        """Returns the state."""
        state = {"_transforms": self._buffer.transform.state_dict(), **self._metadata()}
        if self._access.is_own:
            packed = np.frombuffer(self._access.packed(), np.uint8)
            state["_checkpoint"] = torch.from_numpy(packed.copy())
        return state

    def take(self, state: dict[str, Any]) -> None:
        """Takes over what `as_dict` returned.

        Raises:
          InvalidArgumentError: If it has items and this buffer's are on a server.
        """
        checkpoint = state.get("_checkpoint")
        if checkpoint is not None:
            self._load_items(checkpoint.numpy().tobytes())
        self._buffer.transform.load_state_dict(state["_transforms"])
        self._load_metadata(state)

    def write(self, path: pathlib.Path) -> None:
        """Saves the state in a directory, which is made if it is not there."""
        path.mkdir(parents=True, exist_ok=True)
        if self._access.is_own:
            path.joinpath("checkpoint.tar").write_bytes(self._access.packed())
        if transforms := self._buffer.transform.state_dict():
            torch.save(transforms, path / "transform.t")
        path.joinpath("buffer_metadata.json").write_text(json.dumps(self._metadata()))

    def read(self, path: pathlib.Path) -> None:
        """Loads what `write` saved.

        Raises:
          InvalidArgumentError: As `take`.
          DataLossError: If the items are damaged.
          OSError: If a file cannot be read, or is a pipe or a device.
        """
        if path.joinpath("checkpoint.tar").exists():
            self._load_items(path / "checkpoint.tar")
        if path.joinpath("transform.t").exists():
            with open_file(path / "transform.t") as file:
                self._buffer.transform.load_state_dict(torch.load(file))
        self._load_metadata(
            json.loads(read_file(path / "buffer_metadata.json", _MAX_METADATA_BYTES))
        )

    def _metadata(self) -> dict[str, Any]:
        buffer = self._buffer
        beta = buffer.sampler.beta if self._access.alpha is not None else None
        return {"batch_size": buffer.batch_size, "beta": beta}

    def _load_metadata(self, metadata: dict[str, Any]) -> None:
        self._buffer._batch_size = metadata["batch_size"]
        if self._access.alpha is not None and metadata["beta"] is not None:
            self._buffer.sampler.beta = metadata["beta"]

    def _load_items(self, checkpoint: bytes | pathlib.Path) -> None:
        if not self._access.is_own:
            raise InvalidArgumentError(
                "the state has the items of a buffer's own server, and the items of this one are "
                f"on server {self._access.address}, which loads its checkpoints itself"
            )
        self._access.unpack(checkpoint)
