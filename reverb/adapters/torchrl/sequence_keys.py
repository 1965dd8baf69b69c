# SPDX-License-Identifier: Apache-2.0
"""Fields that mark episodes, and the flags at both ends of sampled sequences."""

from collections.abc import Sequence
from typing import Any

from reverb.adapters.torchrl.library import tensordict, torch
from reverb.errors import InvalidArgumentError

__all__ = ["INIT_KEY", "TRUNCATED_KEY", "SequenceKeys"]

TRUNCATED_KEY = ("next", "truncated")
INIT_KEY = "is_init"
_TRAJECTORIES = (("collector", "traj_ids"), ("episode",))
_DONE = ("next", "done")
# Data without the default key has at least one of these.
_OTHER_ENDS = (("next", "terminated"), ("next", "truncated"))

Path = tuple[str, ...]


class SequenceKeys:
    """Keys with the meaning and the defaults of TorchRL's `SliceSampler`.

    A flag of `end_keys`, of which the data may lack some, ends an episode, and so does a change of
    `traj_key`. If the data has both, the trajectory key decides, and the flags of ends are ignored.
    A given key that the data lacks is replaced by one that it has. Samples have flags at the last
    step of a sequence, `truncated_key`, and at the first, `init_key`, if the data has that field.

    Raises:
      InvalidArgumentError: If both `end_key` and `end_keys` are given, or if a value is no key.
    """

    def __init__(
        self, end_key: Any, end_keys: Any, traj_key: Any, truncated_key: Any, init_key: Any
    ) -> None:
        if end_key is not None and end_keys is not None:
            raise InvalidArgumentError(
                f"end_key={end_key!r} and end_keys={end_keys!r} exclude each other; leave one out"
            )
        if end_keys is not None and (isinstance(end_keys, str) or not len(end_keys)):
            raise InvalidArgumentError(
                f"end_keys must be a sequence of at least one key, got {end_keys!r}"
            )
        name, ends = ("end_key", [end_key]) if end_keys is None else ("end_keys", end_keys)
        self._ends = [path for it in ends if (path := _path(name, it)) is not None]
        self._trajectory = _path("traj_key", traj_key)
        self._truncated = _path("truncated_key", truncated_key)
        self._init = _path("init_key", init_key)

    def find(self, data: Any) -> tuple[Any, Any]:
        """Finds the fields that mark the episodes of steps `[T, N]`.

        Returns:
          The numbers of trajectories `[T, N, ...]` and `None`, or `None` and whether an episode
          ends with a step, bool `[T, N]`.

        Raises:
          InvalidArgumentError: If there is no such field.
        """
        looked_for = []
        for is_trajectory, paths in self._candidates():
            if not is_trajectory:
                if (ends := self._flags(data, paths)) is not None:
                    return None, ends
            elif isinstance(ids := data.get(paths[0], None), torch.Tensor):
                return ids.reshape(*data.shape, -1), None
            looked_for += paths
        raise InvalidArgumentError(
            "data must mark the ends of episodes, so that sequences do not cross them, and has "
            f"none of {['.'.join(path) for path in looked_for]}; name its field with end_key or "
            "traj_key"
        )

    def find_whole(self, data: Any) -> tuple[Any, Any]:
        """Finds the fields that mark the episodes of steps `[T, N]`, which are written whole.

        Flags count beside the default fields of trajectories. So the last episode of all is
        written, too, after which no other trajectory begins.

        Returns:
          As `find`, or both: the numbers of trajectories, and whether an episode ends.

        Raises:
          InvalidArgumentError: As `find`.
        """
        ids, ends = self.find(data)
        if ids is not None and self._trajectory is None:
            ends = self._flags(data, (_DONE, *_OTHER_ENDS))
        return ids, ends

    @staticmethod
    def _flags(data: Any, paths: Sequence[Path]) -> Any:
        """Whether a flag is set at each step, bool `[T, N]`; `None` if the data has none."""
        found = [it for path in paths if isinstance(it := data.get(path, None), torch.Tensor)]
        if not found:
            return None
        ends = torch.zeros(data.shape, dtype=torch.bool, device=found[0].device)
        for flag in found:
            ends |= flag.reshape(*data.shape, -1).any(-1)
        return ends

    def marks(self, data: Any, begins: Any, ends: Any) -> dict[Any, Any]:
        """Fields that are added to samples of sequences; `begins` and `ends` are bool `[...]`."""
        marks = {}
        if self._truncated is not None:
            path = self._truncated
            done = data.get((*path[:-1], "done"), None)
            terminated = data.get((*path[:-1], "terminated"), None)
            shape = (*data.shape, 1) if done is None else done.shape
            truncated = torch.zeros(shape, dtype=torch.bool, device=data.device)
            truncated[ends] = True
            marks[path] = truncated
            marks[(*path[:-1], "done")] = truncated.clone() if done is None else done | truncated
            if terminated is None:
                terminated = torch.zeros_like(truncated)
            marks[(*path[:-1], "terminated")] = terminated
        if self._init is not None:
            flags = data.get(self._init, None)
            if flags is not None:
                marks[self._init] = flags = flags.clone()
                flags[begins] = True
        return marks

    def _candidates(self) -> list[tuple[bool, Sequence[Path]]]:
        """Kinds of fields to look for; the first one in the data decides."""
        known = [(True, [path]) for path in _TRAJECTORIES]
        ends = [(False, [_DONE]), (False, _OTHER_ENDS)]
        if self._trajectory is not None:
            return [(True, [self._trajectory]), *([(False, self._ends)] if self._ends else ends)]
        return [(False, self._ends), *known] if self._ends else [*known, *ends]


def _path(name: str, key: Any) -> Path | None:
    if key is None:
        return None
    try:
        path = tensordict.utils.unravel_key(key)
    except (TypeError, ValueError, RuntimeError):
        path = None
    if not path:
        raise InvalidArgumentError(f"{name} must be a name or a tuple of names, got {key!r}")
    return (path,) if isinstance(path, str) else tuple(path)
