# SPDX-License-Identifier: Apache-2.0
"""Names of fields in files, and the parts of an episode that they are.

Files with a table's columns, as `reverb export` writes them, have `observation` and
`next_observation` `[T, ...]`; other files have `observations` `[T + 1, ...]`. Both are read.
"""

import dataclasses
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from reverb import errors
from reverb._recording.nests import map_nest
from reverb.datasets.episode import Episode, leaves
from reverb.datasets.formats.limits import MAX_DEPTH, MAX_FIELDS

__all__ = [
    "INDEX",
    "Names",
    "episode_of",
    "is_left_out",
    "with_reset_rows",
    "with_tuples",
    "without",
]

# Other names of the parts, as D4RL, Minari and others write them.
_PARTS = {
    "observation": "observations",
    "observations": "observations",
    "obs": "observations",
    "next_observation": "next_observations",
    "next_observations": "next_observations",
    "next_obs": "next_observations",
    "action": "actions",
    "actions": "actions",
    "reward": "rewards",
    "rewards": "rewards",
    "terminated": "terminated",
    "terminations": "terminated",
    "terminals": "terminated",
    "truncated": "truncated",
    "truncations": "truncated",
    "timeouts": "truncated",
}
# The field that tells the episode of a step, and by which the episode is known.
INDEX = "episode_index"
# Columns of items that follow from the others.
_IGNORED = {"discount", "episode_id", "values_digest"}
_ITEM = "item"
_NEEDED = ("observations", "actions", "rewards", "terminated")
_FLAT = ("rewards", "terminated", "truncated")

# Size of the rows that are compared at a time.
_COMPARED_BYTES = 1 << 20


@dataclasses.dataclass(frozen=True)
class Names:
    """The fields of a file, by the parts of an episode.

    Attributes:
      parts: The part and the path below it for each field that is read: `("observations", ("a",))`.
    """

    parts: Mapping[str, tuple[str, tuple[str, ...]]]

    @classmethod
    def of(cls, place: str, fields: list[str], leave_out: Collection[str] = ()) -> "Names":
        """Sorts the names of a file; infos of `leave_out` are not read.

        Raises:
          InvalidArgumentError: If a part is missing, or is there twice, if a field is in too many
            nests, or if two fields are one, or one is in the other.
        """
        parts: dict[str, tuple[str, tuple[str, ...]]] = {}
        spelled: dict[str, str] = {}
        if len(fields) > MAX_FIELDS:
            raise errors.InvalidArgumentError(
                f"{place}: has {len(fields)} fields, more than {MAX_FIELDS}"
            )
        for field in fields:
            if field.count("/") > MAX_DEPTH:
                raise errors.InvalidArgumentError(
                    f"{place}: field {field[:80]}...: is in more than {MAX_DEPTH} nests"
                )
            first, *rest = field.split("/")
            if first in _IGNORED or first == _ITEM:
                continue
            part = _PARTS.get(first)
            if part is None:
                info = tuple(rest) if first == "infos" and rest else (first, *rest)
                if not is_left_out("/".join(info), leave_out):
                    parts[field] = ("infos", info)
                continue
            if spelled.setdefault(part, first) != first:
                raise errors.InvalidArgumentError(
                    f"{place}: fields {spelled[part]} and {first} are both {part}; a dataset has "
                    "one of them"
                )
            parts[field] = (part, tuple(rest))
        missing = [part for part in _NEEDED if part not in spelled]
        if missing:
            raise errors.InvalidArgumentError(
                f"{place}: field {missing[0]} is missing; the file has {sorted(fields)}. A dataset "
                "has observations, actions, rewards, terminated and truncated; also the names of "
                "Minari and D4RL are read, and those of an export"
            )
        _check_paths(place, parts)
        return cls(parts)

    def fields_of(self, part: str) -> list[str]:
        """The fields of a part."""
        return [field for field, (it, _) in self.parts.items() if it == part]


def _check_paths(place: str, parts: Mapping[str, tuple[str, tuple[str, ...]]]) -> None:
    fields: dict[tuple[str, ...], str] = {}
    for field, (part, path) in parts.items():
        if path and part in _FLAT:
            raise errors.InvalidArgumentError(
                f"{place}: field {field}: {part} must be an array, and not a nest"
            )
        other = fields.setdefault((part, *path), field)
        if other != field:
            raise errors.InvalidArgumentError(f"{place}: fields {other} and {field} are the same")
    for path, field in fields.items():
        for length in range(1, len(path)):
            if path[:length] in fields:
                raise errors.InvalidArgumentError(
                    f"{place}: field {field}: is in {fields[path[:length]]}, which is an array"
                )


def is_left_out(info: str, leave_out: Collection[str]) -> bool:
    """Whether an info, such as `a/b`, or a nest above it is one of these names."""
    parts = info.split("/")
    return any("/".join(parts[: i + 1]) in leave_out for i in range(len(parts)))


def without(
    infos: Mapping[str, Any], leave_out: Collection[str], above: str = ""
) -> dict[str, Any]:
    """Returns infos without those that are left out."""
    kept = {}
    for name, value in infos.items():
        path = f"{above}{name}"
        if path in leave_out:
            continue
        kept[name] = without(value, leave_out, f"{path}/") if isinstance(value, Mapping) else value
    return kept


def episode_of(names: Names, arrays: Mapping[str, Any], **facts: Any) -> Episode:
    """Makes an episode of the arrays of its fields, without checking it.

    Arrays are `[T, ...]`, and of observations also `[T + 1, ...]`. `facts` are `number`, `source`
    and `place`.

    Raises:
      InvalidArgumentError: If the last observation is missing, or if the next observations are not
        those of the next step.
    """
    nests: dict[str, Any] = {}
    for field, (part, path) in names.parts.items():
        if not path:
            nests[part] = arrays[field]
            continue
        nest = nests.setdefault(part, {})
        for key in path[:-1]:
            nest = nest.setdefault(key, {})
        nest[path[-1]] = arrays[field]
    rewards = np.asarray(nests["rewards"])
    nothing = np.zeros(len(rewards), np.bool_)
    following = nests.pop("next_observations", None)
    episode = Episode(
        observations=with_tuples(nests["observations"]),
        actions=with_tuples(nests["actions"]),
        rewards=rewards,
        terminated=np.asarray(nests["terminated"]),
        truncated=np.asarray(nests.get("truncated", nothing)),
        infos=nests.get("infos", {}),
        **facts,
    )
    return dataclasses.replace(episode, observations=_whole(episode, with_tuples(following)))


def with_tuples(nest: Any) -> Any:
    """Replaces dicts with the keys 0, 1, ... by tuples: names of fields do not tell the two."""
    if not isinstance(nest, dict):
        return nest
    children = {key: with_tuples(value) for key, value in nest.items()}
    if children and set(children) == {str(i) for i in range(len(children))}:
        return tuple(children[str(i)] for i in range(len(children)))
    return children


def with_reset_rows(infos: Any, num_steps: int) -> Any:
    """Returns infos of `T + 1` rows: those without a row for the reset get one of zeros."""

    def whole(leaf: np.ndarray) -> np.ndarray:
        missing = np.zeros_like(leaf[: num_steps + 1 - len(leaf)])
        return np.concatenate([missing, leaf]) if len(missing) else leaf

    return map_nest(whole, infos)


def _whole(episode: Episode, following: Any) -> Any:
    """Returns the observations `[T + 1, ...]`."""
    num_steps = len(episode.rewards)

    def joined(path: str, first: Any, after: Any) -> Any:
        if isinstance(first, Mapping):
            return {
                key: joined(f"{path}/{key}", value, None if after is None else after.get(key))
                for key, value in first.items()
            }
        if isinstance(first, tuple):
            return tuple(
                joined(f"{path}/{i}", value, None if after is None else after[i])
                for i, value in enumerate(first)
            )
        if len(first) == num_steps + 1:
            return first
        if after is None:
            raise episode.fault(
                path,
                f"has {len(first)} rows for {num_steps} steps, and there is no next_observations: "
                "the observation after the last step is missing; a dataset has observations of "
                "T + 1 rows, or next_observations",
            )
        if len(first) != len(after) or len(first) != num_steps:
            return first  # `checked` tells the number of rows.
        if not _same(first[1:], after[:-1]):
            differs = [not _same(a, b) for a, b in zip(first[1:], after[:-1], strict=True)]
            step = int(np.argmax(differs))
            raise episode.fault(
                f"next_{path}",
                f"that of step {step} is not the observation of step {step + 1}, so these are not "
                "the steps of one episode, in order",
            )
        return np.concatenate([first, after[-1:]])

    if following is not None:
        keys = sorted(path for path, _ in leaves("", episode.observations))
        others = sorted(path for path, _ in leaves("", following))
        if keys != others:
            raise episode.fault(
                "next_observations", f"has the parts {others}, and observations {keys}"
            )
    return joined("observations", episode.observations, following)


def _same(first: np.ndarray, second: np.ndarray) -> bool:
    """Whether two arrays are equal bit for bit, NaN included."""
    if first.dtype != second.dtype or first.shape != second.shape:
        return False
    step = max(1, _COMPARED_BYTES // max(1, first[:1].nbytes))
    return all(
        first[start : start + step].tobytes() == second[start : start + step].tobytes()
        for start in range(0, len(first), step)
    )
