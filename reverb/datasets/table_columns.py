# SPDX-License-Identifier: Apache-2.0
"""The columns of a table, and what an episode has for them."""

import dataclasses
import weakref
from collections.abc import Collection, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import tree

from reverb import errors, specs
from reverb._recording.item_columns import COLUMNS
from reverb._recording.item_makers import time_of
from reverb._recording.items import Items
from reverb.core import native
from reverb.datasets.episode import Episode, hash63, leaves
from reverb.datasets.left_out import LeftOut, name_of

__all__ = ["DIGEST", "EPISODE_ID", "FIELDS", "Leaf", "TableColumns", "info_rows"]

# The column with `Episode.id` in every step.
EPISODE_ID = "episode_id"
# The one with `TableColumns.digest`. It is the last by name, so that those of a recorder keep their
# positions.
DIGEST = "values_digest"
# Size of the values that are summed at a time.
_SUMMED_BYTES = 1 << 20

# The field of an episode that a column is made of.
FIELDS = {
    "observation": "observations",
    "next_observation": "observations",
    "action": "actions",
    "reward": "rewards",
    "terminated": "terminated",
    "truncated": "truncated",
}


class Leaf(NamedTuple):
    """A column of the rows of an episode: its field, dtype, and shape of a row."""

    column: str
    field: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]


class TableColumns:
    """Decides which columns items get, and checks episodes against a table.

    A table without a signature takes any items. `leave_out` and `episode_ids` are those of `write`.

    Attributes:
      left_out: The paths of the columns of `COLUMNS` that items do not have.
      reward_dtype: Dtype of the column `reward`.
      has_ids: Whether items have the column `episode_id`.
      has_digests: Whether they have `values_digest`, too.
    """

    def __init__(
        self,
        table: str,
        signature: object,
        items: Items,
        leave_out: Collection[str],
        episode_ids: bool | None = None,
    ) -> None:
        self._table = table
        self._items = items
        self._leave_out = LeftOut(leave_out)
        self.left_out = [name for name in COLUMNS if self._leave_out.has_column(name)]
        self._specs: dict[str, specs.TensorSpec | None] | None = None
        if signature is not None:
            self._specs = {
                "/".join(map(str, path)): None if leaf is None else specs.as_spec(leaf)
                for path, leaf in tree.flatten_with_path(signature)
            }
        self.has_ids = EPISODE_ID in (self._specs or ()) if episode_ids is None else episode_ids
        self.has_digests = self.has_ids and DIGEST in (self._specs or ())
        spec = (self._specs or {}).get("reward")
        self.reward_dtype = np.dtype(np.float32) if spec is None else np.dtype(spec.dtype)
        # An import asks for a digest when it looks for an episode, and again when it writes it.
        self._digests = weakref.WeakKeyDictionary[Episode, int]()
        # The leaves of the first episode.
        self._leaves: list[Leaf] | None = None

    @property
    def id_columns(self) -> Sequence[str | int]:
        """The columns `of_episode` by their names, or by the position if columns have none.

        Positions are known after the first `check`.
        """
        if self._specs is not None:
            return self.of_episode
        infos = [leaf.column for leaf in self._leaves or () if leaf.field.startswith("infos/")]
        keys = [
            leaf.column if leaf.column in infos else leaf.column.partition("/")[0]
            for leaf in self._leaves or ()
        ]
        return [sum(key < EPISODE_ID for key in keys)]

    @property
    def of_episode(self) -> list[str]:
        """The columns that have one number for all steps of an episode, in this order."""
        return [EPISODE_ID] * self.has_ids + [DIGEST] * self.has_digests

    def numbers(self, episode: Episode) -> list[int]:
        """The numbers of the columns `of_episode`."""
        return [episode.id] * self.has_ids + ([self.digest(episode)] if self.has_digests else [])

    def digest(self, episode: Episode) -> int:
        """Identifies the values that the table gets of an episode, among others of its source."""
        if episode not in self._digests:
            self._digests[episode] = self._new_digest(episode)
        return self._digests[episode]

    def _new_digest(self, episode: Episode) -> int:
        fields = {FIELDS[it] for it in FIELDS if it not in self.left_out}
        values = {path: it for own in fields for path, it in leaves(own, getattr(episode, own))}
        values |= {f"infos/{name}": it for name, it in self.infos(episode).items()}
        texts = [
            f"{path} {it.dtype.kind}{it.dtype.itemsize} {it.shape} {_sums(it)}"
            for path, it in values.items()
        ]
        return hash63("\0".join([episode.source, *sorted(texts)]))

    def infos(self, episode: Episode) -> dict[str, np.ndarray]:
        """The infos that become columns, flat, `[T + 1, ...]` or `[T, ...]`."""
        return {
            path.partition("/")[2]: leaf
            for path, leaf in leaves("infos", episode.infos)
            if self._takes_info(path.partition("/")[2])
        }

    def prepared(self, episode: Episode) -> Episode:
        """Returns the episode without the parts that are left out.

        Raises:
          InvalidArgumentError: If `leave_out` has a name that is not there, in the first episode.
        """
        if not self._leave_out.has_parts:
            return episode
        nests = {
            field: self._leave_out.without(field, getattr(episode, field))
            for field in ("observations", "actions", "infos")
        }
        if self._leaves is None:
            nexts = [path for path, _ in leaves("next_observation", nests["observations"])]
            self.left_out += [it for it in nexts if self._leave_out.has(it)]
            self._leave_out.check(
                episode.place or episode.source or "episodes",
                [it for field in nests for it, _ in leaves(field, getattr(episode, field))],
                episode.left_out,
            )
        return dataclasses.replace(episode, **nests)

    def check(self, episode: Episode) -> None:
        """Checks that the episode has the columns of the table, and those of the first episode.

        Raises:
          SignatureMismatchError: If not; the text names place, episode and field.
        """
        found = list(self._leaves_of(episode))
        if self._leaves is None:
            self._check_specs(episode, found)
            self._leaves = found
        elif found != self._leaves:
            self._tell_difference(episode, found, self._leaves)

    def _leaves_of(self, episode: Episode) -> Iterator[Leaf]:
        for column, field in FIELDS.items():
            if column in self.left_out:
                continue
            for path, leaf in leaves(field, getattr(episode, field)):
                name = column + path[len(field) :]
                if column == "next_observation" and self._leave_out.has(name):
                    continue
                dtype = self.reward_dtype if column == "reward" else leaf.dtype
                yield Leaf(name, path, dtype, leaf.shape[1:])
        if "discount" not in self.left_out:
            yield Leaf("discount", "rewards", np.dtype(np.float32), ())
        for name, leaf in self.infos(episode).items():
            yield Leaf(name, f"infos/{name}", leaf.dtype, leaf.shape[1:])
        for name in self.of_episode:
            yield Leaf(name, "number", np.dtype(np.int64), ())

    def _takes_info(self, name: str) -> bool:
        return not self._leave_out.has_column("infos") or name in (self._specs or ())

    def _check_specs(self, episode: Episode, found: list[Leaf]) -> None:
        names = [leaf.column for leaf in found]
        for leaf in found:
            if names.count(leaf.column) > 1:
                raise self._mismatch(
                    episode,
                    leaf.field,
                    f"two fields are the column {leaf.column}; leave_out one, an info as "
                    "'infos/NAME'",
                )
        if self._specs is None:
            return
        for leaf in found:
            if leaf.column not in self._specs:
                raise self._mismatch(
                    episode,
                    leaf.field,
                    f"table {self._table} has no column {leaf.column}; it has "
                    f"{sorted(self._specs)}. leave_out=({self._name_of(leaf)!r},) leaves the field "
                    "out",
                )
            self._check_spec(episode, leaf, self._specs[leaf.column])
        for name in self._specs:
            if name not in names:
                raise self._mismatch(
                    episode,
                    name,
                    f"table {self._table} has the column {name}, and the episode has nothing for "
                    f"it; it has {sorted(names)}",
                )

    def _name_of(self, leaf: Leaf) -> str:
        """The name to leave out, if the table has no column for a leaf."""
        if leaf.field.startswith("infos/"):
            return name_of(leaf.field)
        column = leaf.column.partition("/")[0]
        has_some = any(it.partition("/")[0] == column for it in self._specs or ())
        return leaf.column if has_some else column

    def _check_spec(self, episode: Episode, leaf: Leaf, spec: specs.TensorSpec | None) -> None:
        if spec is None:
            return
        if leaf.column == "reward":
            given = episode.rewards.dtype
            fits = spec.dtype == given or np.dtype(spec.dtype).kind == "f"
        else:
            given, fits = leaf.dtype, spec.dtype == leaf.dtype
        if not fits:
            raise self._mismatch(
                episode,
                leaf.field,
                f"has dtype {given}, and column {leaf.column} of table {self._table} has "
                f"{np.dtype(spec.dtype)}",
            )
        if spec.shape is None:
            return
        shape = (*time_of(self._items), *leaf.shape)
        if len(shape) != len(spec.shape) or any(
            size is not None and wanted is not None and size != wanted
            for size, wanted in zip(shape, spec.shape, strict=True)
        ):
            text = ["T" if size is None else size for size in shape]
            raise self._mismatch(
                episode,
                leaf.field,
                f"makes a column of shape {text}, and column {leaf.column} of table "
                f"{self._table} has {list(spec.shape)}",
            )

    def _tell_difference(self, episode: Episode, found: list[Leaf], first: list[Leaf]) -> None:
        known = {leaf.column: leaf for leaf in first}
        for leaf in found:
            other = known.pop(leaf.column, None)
            if other is None:
                raise self._mismatch(
                    episode, leaf.field, "is a field that earlier episodes do not have"
                )
            if leaf != other:
                raise self._mismatch(
                    episode,
                    leaf.field,
                    f"has dtype {leaf.dtype} and rows of shape {list(leaf.shape)}, and "
                    f"earlier episodes have {other.dtype} and {list(other.shape)}",
                )
        for leaf in known.values():
            raise self._mismatch(episode, leaf.field, "is missing, and earlier episodes have it")

    @staticmethod
    def _mismatch(episode: Episode, field: str, text: str) -> errors.SignatureMismatchError:
        return errors.SignatureMismatchError(episode.text(field, text))


def _sums(array: np.ndarray) -> int | list[int]:
    """The checksum of an array, or those of its parts."""
    if array.nbytes <= _SUMMED_BYTES:
        return native.masked_crc32c(array.tobytes())
    step = max(1, _SUMMED_BYTES // max(1, array[:1].nbytes))
    return [
        native.masked_crc32c(array[start : start + step].tobytes())
        for start in range(0, len(array), step)
    ]


def info_rows(array: np.ndarray, num_steps: int) -> np.ndarray:
    """Returns the rows of an info that belong to the outcomes of steps, `[T, ...]`."""
    return array[len(array) - num_steps :]
