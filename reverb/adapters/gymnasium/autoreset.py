# SPDX-License-Identifier: Apache-2.0
"""Autoreset modes of vector environments, and the rows that a recorder makes in each."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from reverb import errors
from reverb._recording import nests
from reverb._recording.checks import check_choice

__all__ = ["DISABLED", "NEXT_STEP", "SAME_STEP", "mode_of"]

# The values of `gymnasium.vector.AutoresetMode`, which Gymnasium 1.0 does not have.
NEXT_STEP = "NextStep"
SAME_STEP = "SameStep"
DISABLED = "Disabled"
MODES = (NEXT_STEP, SAME_STEP, DISABLED)


def mode_of(env: Any, given: Any) -> str:
    """Returns the mode of a vector environment; `given` wins over the environment's own metadata.

    Raises:
      InvalidArgumentError: If there is neither, or if `given` is no mode.
    """
    mode = (env.metadata or {}).get("autoreset_mode") if given is None else given
    mode = getattr(mode, "value", mode)  # A member of the enum, or its value.
    if mode is None:
        raise errors.InvalidArgumentError(
            f"{type(env.unwrapped).__name__} does not declare how it resets "
            '(metadata["autoreset_mode"]); pass autoreset_mode="NextStep", "SameStep" or "Disabled"'
        )
    if mode not in MODES:
        check_choice("autoreset_mode", mode, MODES)
    return mode


def rows_that_begin(mode: str, ended: np.ndarray) -> np.ndarray:
    """Returns the rows of a step that are first observations instead of steps, booleans `[B]`.

    With NEXT_STEP, an environment that ended ignores its next action and resets instead. `ended`
    `[B]` are the episodes that had ended before the step.
    """
    return ended if mode == NEXT_STEP else np.zeros_like(ended)


def rows_to_reset(num_envs: int, options: Mapping[str, Any] | None) -> np.ndarray:
    """Returns the environments that a `reset` with these options resets, booleans `[B]`."""
    if options is not None and "reset_mask" in options:
        return np.array(options["reset_mask"], np.bool_)
    return np.ones(num_envs, np.bool_)


def with_final_observations(observation: Any, infos: Mapping[str, Any], ended: np.ndarray) -> Any:
    """Returns the observations after a step, also of environments that have already reset.

    With SAME_STEP the last observation of an episode is in `infos["final_obs"]`: an array of
    objects with one for each environment that ended, or a nest of arrays `[B, ...]` as in the
    vector environment of ALE.

    Raises:
      FailedPreconditionError: If an ended environment has none.
    """
    final = infos.get("final_obs")
    present = infos.get("_final_obs", np.full(ended.shape, final is not None))
    if final is None or not present[ended].all():
        missing = np.flatnonzero(ended if final is None else ended & ~present)
        raise errors.FailedPreconditionError(
            f"environment {missing[0]} ended, and infos has no final_obs for it: the environment "
            "does not reset in the same step; pass its real autoreset_mode"
        )
    return nests.with_rows(observation, final, np.flatnonzero(ended))
