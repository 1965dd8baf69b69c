# SPDX-License-Identifier: Apache-2.0
"""Names of fields in files, and the parts of an episode that they are.

Files with a table's columns, as `reverb export` writes them, have `observation` and
`next_observation` `[T, ...]`; other files have `observations` `[T + 1, ...]`. Both are read.
"""

import collections
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from reverb import errors
from reverb._recording.nests import map_nest
from reverb.datasets.episode import Episode, native_order, row_problem
from reverb.datasets.formats.limits import MAX_DEPTH, MAX_FIELDS
from reverb.datasets.left_out import NOTHING, PARTS, LeftOut

__all__ = [
    "INDEX",
    "Names",
    "episode_of",
    "put",
    "with_reset_rows",
    "with_tuples",
]

# The field with the episode of a step, by which the episode is known.
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
    def of(cls, place: str, fields: list[str], leave_out: LeftOut = NOTHING) -> "Names":
        """Sorts the names of a file, without those that are left out.

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
            part = PARTS.get(first)
            if part is None:
                info = tuple(rest) if first == "infos" and rest else (first, *rest)
                if not leave_out.has("/".join(("infos", *info))):
                    parts[field] = ("infos", info)
                continue
            if spelled.setdefault(part, first) != first:
                raise errors.InvalidArgumentError(
                    f"{place}: fields {spelled[part]} and {first} are both {part}; a dataset has "
                    "one of them"
                )
            # Next observations are the same parts as observations.
            if not leave_out.has("/".join((part.removeprefix("next_"), *rest))):
                parts[field] = (part, tuple(rest))
        for part in ("observations", "actions"):
            if part in spelled and part not in {it for it, _ in parts.values()}:
                leave_out.refuse_all(place, part)
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


def episode_of(names: Names, arrays: Mapping[str, Any], **facts: Any) -> Episode:
    """Makes an episode of the arrays of its fields, without checking it.

    Arrays are `[T, ...]`, and of observations also `[T + 1, ...]`. `facts` are `number`, `source`
    and `place`.

    Raises:
      InvalidArgumentError: If the last observation is missing, or if the next observations are not
        those of the next step.
    """
    nests: dict[str, dict[tuple[str, ...], Any]] = collections.defaultdict(dict)
    for field, (part, path) in names.parts.items():
        nests[part][path] = arrays[field]
    rewards, terminated = (np.asarray(nests[part][()]) for part in ("rewards", "terminated"))
    nothing = np.zeros(len(rewards), np.bool_)
    episode = Episode(
        observations={},
        actions=_nest_of(nests["actions"]),
        rewards=rewards,
        terminated=terminated,
        truncated=np.asarray(nests["truncated"].get((), nothing)),
        infos=_nest_of(nests["infos"], tuples=False),
        **facts,
    )
    whole = _whole(episode, nests["observations"], nests["next_observations"])
    return dataclasses.replace(episode, observations=_nest_of(whole))


def put(nest: dict[str, Any], path: Sequence[str], value: object) -> None:
    """Puts a value into a nest of dicts, which are made where they are missing."""
    *above, last = path
    for key in above:
        nest = nest.setdefault(key, {})
    nest[last] = value


def with_tuples(nest: object) -> object:
    """Replaces dicts with the keys 0, 1, ... by tuples, which have the same names of fields."""
    if not isinstance(nest, dict):
        return nest
    children = {key: with_tuples(value) for key, value in nest.items()}
    if children and set(children) == {str(i) for i in range(len(children))}:
        return tuple(children[str(i)] for i in range(len(children)))
    return children


def with_reset_rows(infos: object, num_steps: int) -> Any:
    """Returns infos of `T + 1` rows: those without a row for the reset get one of zeros."""

    def whole(leaf: np.ndarray) -> np.ndarray:
        missing = np.zeros_like(leaf[: num_steps + 1 - len(leaf)])
        return np.concatenate([missing, leaf]) if len(missing) else leaf

    return map_nest(whole, infos)


def _nest_of(values: Mapping[tuple[str, ...], Any], *, tuples: bool = True) -> Any:
    """The nest of some values by their paths; one without a path is the nest."""
    if () in values:
        return values[()]
    nest: dict[str, Any] = {}
    for path, value in values.items():
        put(nest, path, value)
    return with_tuples(nest) if tuples else nest


def _whole(
    episode: Episode,
    observed: Mapping[tuple[str, ...], Any],
    following: Mapping[tuple[str, ...], Any],
) -> dict[tuple[str, ...], Any]:
    """Returns the observations `[T + 1, ...]` by their paths, of those before and after steps."""
    if following and following.keys() != observed.keys():
        keys, others = (
            sorted("".join(f"/{it}" for it in path) for path in own)
            for own in (observed, following)
        )
        raise episode.fault("next_observations", f"has the parts {others}, and observations {keys}")
    return {
        path: _joined(episode, "/".join(("observations", *path)), first, following.get(path))
        for path, first in observed.items()
    }


def _joined(episode: Episode, path: str, first: Any, after: Any) -> np.ndarray:
    """The rows of an observation before each step, and the last one of those after them."""
    num_steps = len(episode.rewards)
    if len(first) not in (num_steps, num_steps + 1):
        return first  # `checked` reports the number of rows.
    if after is None:
        if len(first) == num_steps:
            raise episode.fault(
                path,
                f"has {len(first)} rows for {num_steps} steps, and there is no "
                "next_observations: the observation after the last step is missing; a dataset "
                "has observations of T + 1 rows, or next_observations",
            )
        return first
    if len(after) != num_steps:
        raise episode.fault(f"next_{path}", row_problem(len(after), num_steps))
    first, after = native_order(first), native_order(after)
    if (first.dtype, first.shape[1:]) != (after.dtype, after.shape[1:]):
        raise episode.fault(
            f"next_{path}",
            f"has dtype {after.dtype} and rows of shape {list(after.shape[1:])}, and {path} "
            f"has {first.dtype} and {list(first.shape[1:])}; the two are the same values, one "
            "step apart",
        )
    shared = after[: len(first) - 1]
    if not _same(first[1:], shared):
        differs = [not _same(a, b) for a, b in zip(first[1:], shared, strict=True)]
        step = int(np.argmax(differs))
        raise episode.fault(
            f"next_{path}",
            f"that of step {step} is not the observation of step {step + 1}, so these are not "
            "the steps of one episode, in order",
        )
    return np.concatenate([first, after[len(first) - 1 :]])


def _same(first: np.ndarray, second: np.ndarray) -> bool:
    """Whether two arrays have equal values: zeros of any sign are, and NaN is equal to NaN."""
    step = max(1, _COMPARED_BYTES // max(1, first[:1].nbytes))
    for start in range(0, len(first), step):
        ours, theirs = first[start : start + step], second[start : start + step]
        # The comparison of the bytes is the fast one.
        if ours.tobytes() == theirs.tobytes():
            continue
        if not ((ours == theirs) | ((ours != ours) & (theirs != theirs))).all():
            return False
    return True
