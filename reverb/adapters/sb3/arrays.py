# SPDX-License-Identifier: Apache-2.0
"""The arrays that other buffers have, and a buffer over a table does not."""

from collections.abc import Callable
from typing import Any, NoReturn

__all__ = ["Ends", "no_attribute"]

_ARRAYS = ("observations", "next_observations", "actions", "rewards", "dones", "timeouts")


def no_attribute(owner: str, name: str) -> str:
    """Returns what the error says if `owner` is asked for an attribute that it does not have."""
    if name not in _ARRAYS:
        return f"{owner} has no attribute {name}"
    return (
        f"{owner} has no array {name}: its transitions are items of a Reverb table. sample() "
        "returns some of them, and reverb.Client.scan reads all items of a table"
    )


class Ends:
    """Stands for the array `dones`, which Stable-Baselines3 sets to end the newest episodes."""

    def __init__(self, end_episodes: Callable[[], None]) -> None:
        self._end_episodes = end_episodes

    def __setitem__(self, places: Any, value: Any) -> None:
        """Ends the episodes of all environments, as a time limit does."""
        del places
        if value:
            self._end_episodes()

    def __getitem__(self, places: Any) -> NoReturn:
        """Not to be read.

        Raises:
          AttributeError: Always.
        """
        raise AttributeError(no_attribute("ReverbReplayBuffer", "dones"))

    def __getattr__(self, name: str) -> NoReturn:
        raise AttributeError(no_attribute("ReverbReplayBuffer", "dones"))
