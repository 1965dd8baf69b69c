# SPDX-License-Identifier: Apache-2.0
"""The infos that a recorder keeps, as arrays with a row for each environment."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from reverb import errors

__all__ = ["KeptInfos"]


class KeptInfos:
    """Picks columns from the infos of steps.

    `infos[key]` is an array `[B, ...]`, padded with zeros where its mask `infos["_" + key]` is
    False. The padding is recorded, unless the program gave another value for missing infos. With
    SAME_STEP the infos of the last step of an episode are in `infos["final_info"]`.
    """

    def __init__(self, keys: Iterable[str] | Mapping[str, Any], num_envs: int) -> None:
        if isinstance(keys, str):
            raise errors.InvalidArgumentError(
                f"keep_infos must be a tuple of names, or a dict, got {keys!r}"
            )
        self.keys = tuple(keys)
        self._num_envs = num_envs
        # Replacements of missing values, `[B, ...]`, by key.
        self._missing: dict[str, np.ndarray] = {}
        self._has_own: set[str] = set()
        if isinstance(keys, Mapping):
            self._has_own = set(keys)
            for key, value in keys.items():
                self._missing[key] = np.stack([np.asarray(value)] * num_envs)

    def of_step(self, infos: Mapping[str, Any], ended: np.ndarray | None) -> dict[str, np.ndarray]:
        """Returns the columns of the infos of a vector environment's step.

        Environments that `ended`, booleans `[B]`, have infos in `final_info`.

        Raises:
          InvalidArgumentError: If a key was in no infos so far and has no replacement, or if its
            values are no arrays.
        """
        return {key: self._column(key, infos, ended) for key in self.keys}

    def of_reset(self) -> dict[str, np.ndarray]:
        """Returns the columns of a row that is no step, as far as they are known."""
        return self._missing

    def _column(self, key: str, infos: Mapping[str, Any], ended: np.ndarray | None) -> np.ndarray:
        final = infos.get("final_info")
        if ended is None or not isinstance(final, Mapping):
            return self._values(key, infos)
        column = self._values(key, infos, final).copy()
        column[ended] = self._values(key, final, infos)[ended]
        return column

    def _values(
        self, key: str, infos: Mapping[str, Any], others: Mapping[str, Any] | None = None
    ) -> np.ndarray:
        """Returns the values in `infos`; `others` gives shape and dtype if they are missing."""
        if key not in infos:
            missing = self._missing.get(key)
            if missing is None and others is not None and key in others:
                missing = np.zeros_like(self._values(key, others))
                self._missing[key] = missing
            if missing is None:
                raise errors.InvalidArgumentError(
                    f"keep_infos has {key!r}, which the infos of this step do not have; they have "
                    f"{[key for key in infos if not key.startswith('_')]}; pass the value to "
                    f"record where it is missing: keep_infos={{{key!r}: 0.0}}"
                )
            return missing
        column = np.asarray(infos[key])
        if column.dtype.kind not in "biuf" or column.shape[:1] != (self._num_envs,):
            raise errors.InvalidArgumentError(
                f"keep_infos has {key!r}, whose values have dtype {column.dtype} and shape "
                f"{list(column.shape)}; they must be numbers, one row for each of "
                f"{self._num_envs} environments"
            )
        if key not in self._missing:
            self._missing[key] = np.zeros_like(column)
        missing = self._missing[key]
        mask = infos.get(f"_{key}")
        if key in self._has_own and mask is not None:
            rows = np.reshape(mask, (-1,) + (1,) * (column.ndim - 1))
            column = np.where(rows, column, missing)
        return column.astype(missing.dtype, copy=False)
