# SPDX-License-Identifier: Apache-2.0
"""One episode of a dataset, and the checks that all formats share."""

import dataclasses
import hashlib
from collections.abc import Iterator, Mapping
from typing import Any, Literal

import numpy as np

from reverb import errors
from reverb._recording.nests import map_nest
from reverb.datasets.left_out import remedy

__all__ = [
    "Episode",
    "Unfinished",
    "checked",
    "hash63",
    "id_of",
    "leaves",
    "native_order",
    "row_problem",
]

# Treatment of an episode without an end; see `reverb.datasets.episodes`.
Unfinished = Literal["error", "truncate", "drop"]

_ID_BITS = 63


@dataclasses.dataclass(frozen=True, eq=False)
class Episode:
    """A whole episode of `T` steps: from the first observation to a termination or truncation.

    Example:
      >>> from reverb import datasets
      >>> episode = datasets.Episode(
      ...     observations=np.zeros((3, 4), np.float32),
      ...     actions=np.zeros(2, np.int64),
      ...     rewards=np.ones(2, np.float32),
      ...     terminated=np.array([False, True]),
      ...     truncated=np.array([False, False]),
      ... )
      >>> len(episode)
      2

    Attributes:
      observations: Nest of dicts and tuples of arrays `[T + 1, ...]`: the first observation, and
        the one after each step.
      actions: Nest of arrays `[T, ...]`.
      rewards: Numbers `[T]`.
      terminated: Bools `[T]`; only the last can be true.
      truncated: Bools `[T]`; only the last can be true.
      infos: Arrays `[T + 1, ...]`, or nests of them, by name: further values of a dataset. Row `t +
        1` belongs to the outcome of step `t`, and the first row to the reset. A dataset without
        values of the reset has `[T, ...]`.
      metadata: Facts of the whole episode that are no arrays, such as `seed`.
      number: Number of the episode in its dataset, from 0, with the files in the order of their
        texts.
      key: Identifies the episode in its dataset, whatever is added to it or removed: of several
        files it is the file and the number in it, such as `a/b.npz#3`; where rows have
        `episode_index`, that; empty where the number does it, as in a single file.
      source: Identifies the dataset.
      place: Where the episode is, for errors: a file, or the dataset.
      left_out: Names of `leave_out` that were there and were not read.
    """

    observations: Any
    actions: Any
    rewards: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    infos: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    metadata: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    number: int = 0
    key: str = ""
    source: str = ""
    place: str = ""
    left_out: tuple[str, ...] = ()

    def __len__(self) -> int:
        """Number of steps, `T`."""
        return len(self.rewards)

    @property
    def id(self) -> int:
        """Identifies the episode in tables.

        The first 63 bits of the SHA-256 of `source`, a zero byte, and `key`, or `number` in
        decimals if there is no key.
        """
        return id_of(self.source, self.key or self.number)

    @property
    def num_bytes(self) -> int:
        """Size of all arrays, in bytes."""
        return sum(array.nbytes for _, array in self._arrays())

    def fault(self, field: str, problem: str) -> errors.InvalidArgumentError:
        """Makes the error for a field of this episode."""
        return errors.InvalidArgumentError(self.text(field, problem))

    def text(self, field: str, problem: str) -> str:
        """The text of an error: the place, the episode, the field and the problem."""
        place = self.place or self.source or "episodes"
        return f"{place}: episode {self.number}, field {field}: {problem}"

    def _arrays(self) -> Iterator[tuple[str, np.ndarray]]:
        for name in ("observations", "actions", "rewards", "terminated", "truncated", "infos"):
            yield from leaves(name, getattr(self, name))


def id_of(source: str, key: str | int) -> int:
    """Returns `Episode.id`."""
    return hash63(f"{source}\0{key}")


def hash63(text: str) -> int:
    """Returns the first 63 bits of the SHA-256 of a text."""
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
    return int.from_bytes(digest[:8], "big") >> (64 - _ID_BITS)


def leaves(name: str, nest: object) -> Iterator[tuple[str, Any]]:
    """Yields the path of each leaf of a nest, such as `observations/a/0`, and the leaf.

    Keys are in the order of the nest.
    """
    if isinstance(nest, Mapping):
        for key, value in nest.items():
            yield from leaves(f"{name}/{key}", value)
    elif isinstance(nest, tuple):
        for index, value in enumerate(nest):
            yield from leaves(f"{name}/{index}", value)
    else:
        yield name, nest


def checked(
    episode: Episode, unfinished: Unfinished = "error", advises: bool = True
) -> Episode | None:
    """Returns the episode with flags as bools, or `None` if it has no end and is dropped.

    Numbers have the byte order of this machine then. `advises` decides whether errors say how to
    leave a field out.

    Raises:
      InvalidArgumentError: If a field has no numbers or another number of rows, or if the flags are
        not those of one whole episode; the text names place, episode and field.
    """
    episode = _native(episode)
    rewards = episode.rewards
    if rewards.ndim != 1 or rewards.dtype.kind not in "biuf":
        raise episode.fault("rewards", f"must be numbers of shape [T], got {_kind(rewards)}")
    num_steps = len(rewards)
    if not num_steps:
        raise episode.fault("rewards", "has no steps")
    for name, allowed in (
        ("observations", (num_steps + 1,)),
        ("actions", (num_steps,)),
        ("infos", (num_steps, num_steps + 1)),
    ):
        for path, leaf in leaves(name, getattr(episode, name)):
            _check_leaf(episode, path, leaf, allowed, remedy(path) if advises else "")
    terminated = _flags(episode, "terminated", num_steps)
    truncated = _flags(episode, "truncated", num_steps)
    for name, flags in (("terminated", terminated), ("truncated", truncated)):
        if flags[:-1].any():
            step = int(np.argmax(flags))
            raise episode.fault(
                name, f"is true at step {step} of {num_steps}, but only a last step ends an episode"
            )
    if not (terminated[-1] or truncated[-1]):
        if unfinished == "drop":
            return None
        if unfinished == "error":
            raise episode.fault(
                "truncated",
                f"the episode has no end: its last step, {num_steps - 1}, is neither terminated "
                'nor truncated; unfinished="truncate" ends such episodes by a truncation, "drop" '
                "leaves them out",
            )
        truncated = truncated.copy()
        truncated[-1] = True
    if terminated is episode.terminated and truncated is episode.truncated:
        return episode
    return dataclasses.replace(episode, terminated=terminated, truncated=truncated)


def row_problem(num_rows: int, num_steps: int) -> str:
    """Returns the text of an error: a field has not a row for each step."""
    return f"has {num_rows} rows for {num_steps} steps, but a field needs one for each step"


def _check_leaf(
    episode: Episode, path: str, leaf: object, allowed: tuple[int, ...], advice: str
) -> None:
    if not isinstance(leaf, np.ndarray) or leaf.dtype.kind in "OUSMm" or leaf.dtype.names:
        problem = f"must be an array of numbers, got {_kind(leaf)}"
    elif leaf.ndim < 1:
        problem = "must have rows, got a single value"
    elif len(leaf) not in allowed:
        problem = row_problem(len(leaf), len(episode))
        if allowed[0] > len(episode):
            problem += f"; observations have one more, {allowed[0]}"
    else:
        return
    raise episode.fault(path, problem + advice)


def _native(episode: Episode) -> Episode:
    """Returns the episode with numbers in the byte order of this machine."""
    if all(leaf.dtype.isnative for _, leaf in episode._arrays() if isinstance(leaf, np.ndarray)):
        return episode

    def native(leaf: object) -> object:
        return native_order(leaf) if isinstance(leaf, np.ndarray) else leaf

    names = ("observations", "actions", "rewards", "terminated", "truncated", "infos")
    nests = {name: map_nest(native, getattr(episode, name)) for name in names}
    return dataclasses.replace(episode, **nests)


def native_order(array: np.ndarray) -> np.ndarray:
    """Returns an array in the byte order of this machine."""
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))


def _flags(episode: Episode, name: str, num_steps: int) -> np.ndarray:
    flags = getattr(episode, name)
    if flags.shape != (num_steps,):
        raise episode.fault(name, f"must have shape [{num_steps}], got {_kind(flags)}")
    if flags.dtype == np.bool_:
        return flags
    if flags.dtype.kind not in "iuf" or not ((flags == 0) | (flags == 1)).all():
        raise episode.fault(name, f"must be bools, or numbers 0 and 1, got {_kind(flags)}")
    return flags.astype(np.bool_)


def _kind(value: object) -> str:
    """Describes a value: its dtype and shape; text is called so."""
    if not isinstance(value, np.ndarray):
        return f"a {type(value).__name__}"
    kind = "text" if value.dtype.kind in "US" else f"dtype {value.dtype}"
    return f"{kind} and shape {list(value.shape)}"


# The public import path.
Episode.__module__ = "reverb.datasets"
