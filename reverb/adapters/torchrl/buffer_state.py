# SPDX-License-Identifier: Apache-2.0
"""The state of a buffer, as a dict and as files."""

import contextlib
import copy
import json
import pathlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from reverb.adapters.torchrl.library import torch
from reverb.adapters.torchrl.table_access import TableAccess, alpha_of
from reverb.adapters.torchrl.table_fields import fields_table
from reverb.checkpointers import open_file
from reverb.errors import DataLossError, InvalidArgumentError

__all__ = ["BufferState"]

_ITEMS, _TRANSFORMS, _NUMBERS = "checkpoint.tar", "transform.t", "buffer_metadata.json"
_MAX_NUMBERS_BYTES = 1024 * 1024
# Whether items are whole episodes.
_EPISODES = "episodes"
# Types of the numbers in a state; each may also be `None`.
_KINDS: dict[str, type | tuple[type, ...]] = {
    "batch_size": int,
    "sequence_length": int,
    "consume_after_n_samples": int,
    "alpha": (int, float),
    "beta": (int, float),
}


class BufferState:
    """Saves and loads transforms, numbers, and the items of the buffer's own server."""

    def __init__(self, buffer: Any, access: TableAccess) -> None:
        self._buffer = buffer
        self._access = access

    def as_dict(self) -> dict[str, Any]:
        """Returns the state."""
        state = {"_transforms": self._buffer.transform.state_dict(), **self._numbers()}
        if self._access.own is not None:
            packed = np.frombuffer(self._access.own.pack(), np.uint8)
            state["_checkpoint"] = torch.from_numpy(packed.copy())
        return state

    def take(self, state: dict[str, Any]) -> None:
        """Takes over a result of `as_dict`; an error leaves the buffer unchanged.

        Raises:
          InvalidArgumentError: If it is no such state, if it is of another kind of buffer, if it
            has items and this buffer's are on a server, or if it has none and they are not.
          DataLossError: If the items are damaged.
        """
        if not isinstance(state, dict):
            raise _foreign("state_dict", f"it is a {type(state).__name__}")
        missing = [name for name in ("_transforms", *_KINDS) if name not in state]
        if missing:
            raise _foreign("state_dict", f"it has no {', '.join(missing)}")
        items = state.get("_checkpoint")
        if items is not None:
            if not isinstance(items, torch.Tensor) or items.dtype != torch.uint8:
                found = getattr(items, "dtype", type(items).__name__)
                raise _foreign("state_dict", f"_checkpoint must be a tensor of bytes, got {found}")
            items = items.cpu().numpy().tobytes()
        self._replace("state_dict", items, state["_transforms"], state)

    def write(self, path: pathlib.Path) -> None:
        """Saves the state in a directory, which is created if it is missing."""
        numbers = self._numbers()
        path.mkdir(parents=True, exist_ok=True)
        # The numbers are written last; an incomplete state without them is refused.
        path.joinpath(_NUMBERS).unlink(missing_ok=True)
        path.joinpath(_ITEMS).unlink(missing_ok=True)
        if self._access.own is not None:
            path.joinpath(_ITEMS).write_bytes(self._access.own.pack())
        torch.save(self._buffer.transform.state_dict(), path / _TRANSFORMS)
        path.joinpath(_NUMBERS).write_text(json.dumps(numbers))

    def read(self, path: pathlib.Path) -> None:
        """Loads a state that `write` saved; an error leaves the buffer unchanged.

        Raises:
          InvalidArgumentError: As `take`.
          DataLossError: If a file is damaged.
          OSError: If a file cannot be read, or is a pipe or a device.
        """
        there = {it.name for it in path.iterdir()}
        missing = [it for it in (_NUMBERS, _TRANSFORMS) if it not in there]
        if missing:
            raise _foreign(path, f"it has no {', '.join(missing)}")
        numbers = self._read_numbers(path / _NUMBERS)
        if not isinstance(numbers, dict):
            raise _foreign(path / _NUMBERS, f"it has a {type(numbers).__name__}")
        if left := [it for it in _KINDS if it not in numbers]:
            raise _foreign(path / _NUMBERS, f"it has no {', '.join(left)}")
        with open_file(path / _TRANSFORMS) as file:
            try:
                transforms = torch.load(file, weights_only=True)
            # Damaged files may raise any error in the readers of archives and pickles.
            except Exception as error:
                raise DataLossError(f"{path / _TRANSFORMS} is damaged: {error}") from error
        items = path / _ITEMS if _ITEMS in there else None
        self._replace(str(path), items, transforms, numbers)

    # ---- Numbers ---------------------------------------------------------------------------------

    def _numbers(self) -> dict[str, Any]:
        buffer, alpha = self._buffer, alpha_of(self._access.info())
        return {
            "batch_size": buffer.batch_size,
            "sequence_length": buffer.sequence_length,
            _EPISODES: buffer.window is not None,
            "consume_after_n_samples": self._access.max_times_sampled or None,
            "alpha": alpha,
            "beta": None if alpha is None else buffer.sampler.beta,
        }

    def _read_numbers(self, path: pathlib.Path) -> Any:
        with open_file(path) as file:
            text = file.read(_MAX_NUMBERS_BYTES + 1)
        try:
            if len(text) > _MAX_NUMBERS_BYTES:
                raise ValueError(f"it has more than {_MAX_NUMBERS_BYTES} bytes")
            return json.loads(text)
        except (ValueError, RecursionError) as error:
            raise DataLossError(f"{path} is damaged: {error}") from error

    def _check_numbers(self, name: str, numbers: dict[str, Any]) -> None:
        """Compares the kind of the buffer in the state with this one."""
        for key, kind in _KINDS.items():
            value = numbers[key]
            if value is not None and (not isinstance(value, kind) or isinstance(value, bool)):
                raise _foreign(name, f"its {key} is {value!r}")
        own = self._numbers()
        for key in ("alpha", "beta", "consume_after_n_samples"):
            if (numbers[key] is None) != (own[key] is None):
                raise InvalidArgumentError(
                    f"{name} is of another kind of sampler: its {key} is {numbers[key]}, and this "
                    f"buffer's is {own[key]}"
                )
        if numbers["sequence_length"] != own["sequence_length"]:
            raise InvalidArgumentError(
                f"sequence_length={own['sequence_length']} must be that of {name}, which is "
                f"{numbers['sequence_length']}"
            )
        # States of earlier releases do not have it.
        if numbers.get(_EPISODES, False) != own[_EPISODES]:
            kind, other = "whole episodes, for a window", "items without a window"
            if own[_EPISODES]:
                kind, other = other, kind
            raise InvalidArgumentError(f"{name} has {kind}, and this buffer has {other}")

    # ---- Loading ---------------------------------------------------------------------------------

    def _replace(
        self,
        name: str,
        items: bytes | pathlib.Path | None,
        transforms: Any,
        numbers: dict[str, Any],
    ) -> None:
        """Checks the whole state, then takes it over."""
        self._check_numbers(name, numbers)
        with contextlib.ExitStack() as stack:
            stored = None
            own = self._access.own
            if own is None and items is not None:
                raise InvalidArgumentError(
                    "the state has the items of a buffer's own server, and the items of this one "
                    f"are on server {self._access.address}, which loads its checkpoints itself"
                )
            if own is not None and items is None:
                raise InvalidArgumentError(
                    f"{name} has no items: a buffer with a server saved it, and the items are in "
                    "the checkpoints of that server; make a buffer with that server"
                )
            if own is not None and items is not None:
                stored = stack.enter_context(own.unpacked(items))
                self._check_tables(name, stored)
            stack.enter_context(self._with_transforms(name, transforms))
            if stored is not None:
                self._buffer.drop_sequences()
                self._access.replace_items(stored)
        self._buffer._batch_size = numbers["batch_size"]
        if numbers["beta"] is not None:
            self._buffer.sampler.beta = numbers["beta"]

    def _check_tables(self, name: str, stored: Any) -> None:
        names = sorted([self._access.table, fields_table(self._access.table)])
        if sorted(stored.tables) != names:
            raise InvalidArgumentError(
                f"{name} has the tables {sorted(stored.tables)}, and this buffer has {names}"
            )
        if (alpha_of(stored.tables[self._access.table]) is None) != (self._access.alpha is None):
            raise InvalidArgumentError(
                f"{name} is of another kind of sampler: the exponent of its table is "
                f"{alpha_of(stored.tables[self._access.table])}, and this buffer's is "
                f"{self._access.alpha}"
            )

    @contextlib.contextmanager
    def _with_transforms(self, name: str, state: Any) -> Iterator[None]:
        """Loads the state of transforms; restores the earlier one if that or the body fails."""
        transform = self._buffer.transform
        before = copy.deepcopy(transform.state_dict())
        try:
            try:
                transform.load_state_dict(state)
            except Exception as error:
                raise InvalidArgumentError(
                    f"{name} does not fit the transforms of this buffer: {error}"
                ) from error
            yield
        except BaseException:
            transform.load_state_dict(before)
            raise


def _foreign(name: Any, why: str) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"{name} is not the state of a ReverbReplayBuffer: {why}. A buffer of the class that saved "
        "it can load it, and its items may be given to extend"
    )
