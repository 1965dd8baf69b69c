# SPDX-License-Identifier: Apache-2.0
"""The episodes that a table has already, so that an import can continue where one was cut off."""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import numpy as np

from reverb import errors
from reverb._recording.items import Items, Sequences, Transitions
from reverb.client import Client
from reverb.datasets.table_columns import EPISODE_ID

__all__ = ["PresentEpisodes", "num_items_of"]

# Number of keys that a call deletes.
_KEYS_AT_ONCE = 4096


def num_items_of(items: Items, num_steps: int) -> int:
    """Returns how many items an episode of so many steps makes."""
    if isinstance(items, Transitions):
        return num_steps
    if isinstance(items, Sequences):
        rest = num_steps - items.num_steps
        if rest < 0:
            return 1 if items.short_episodes == "keep" else 0
        stride = items.length if items.stride is None else items.stride
        return rest // stride + 1 + (rest % stride != 0)
    return 1 if num_steps <= items.max_length else 0


class PresentEpisodes:
    """Counts the items of each episode in a table by the column `episode_id`.

    Only an episode whose items are all there is present: one that an import was writing when it was
    killed has fewer. Where columns have no names, a column is a position.

    Args:
      client: The client to read through.
      table: The table.
      columns: The column `episode_id`, and `values_digest` if the table has it.

    Raises:
      FailedPreconditionError: If an item has something else there.
    """

    def __init__(self, client: Client, table: str, columns: Sequence[str | int]) -> None:
        self._client = client
        self._table = table
        self._columns = columns
        self._counts: Counter[int] = Counter()
        # The digests of the items of each episode: one, unless a program has mixed them.
        self._digests: defaultdict[int, set[int]] = defaultdict(set)
        for episode, digests, _ in self._scan():
            self._counts[episode] += 1
            if digests:
                self._digests[episode].update(digests)
        self._by_digest: defaultdict[int, set[int]] = defaultdict(set)
        for episode, own in self._digests.items():
            for digest in own:
                self._by_digest[digest].add(episode)
        # Episodes that were found whole, whose keys are of no interest.
        self._whole: set[int] = set()
        self._keys: defaultdict[int, list[int]] | None = None

    def __len__(self) -> int:
        return len(self._counts)

    def __contains__(self, episode: int) -> bool:
        """Whether the table has any item of an episode."""
        return episode in self._counts

    def has_whole(self, episode: int, num_items: int) -> bool:
        """Whether the table has all items of an episode."""
        if self._counts[episode] < num_items:
            return False
        self._whole.add(episode)
        return True

    def has_digest(self, episode: int, digest: int) -> bool:
        """Whether the items of an episode have this digest, and no other."""
        return self._digests.get(episode) == {digest}

    def with_digest(self, digest: int) -> set[int]:
        """The episodes that have this digest."""
        return self._by_digest.get(digest, set())

    def forget(self, episode: int) -> None:
        """Lets the values of an episode be those of no other one."""
        for digest in self._digests.pop(episode, ()):
            self._by_digest[digest].discard(episode)

    def remove(self, episode: int) -> None:
        """Deletes the items of an episode. Blocks until they are deleted."""
        self._counts.pop(episode, None)
        self.forget(episode)
        if self._keys is None or episode in self._whole:
            self._whole.discard(episode)
            self._keys = self._keys_except(self._whole)
        keys = self._keys.pop(episode, [])
        for start in range(0, len(keys), _KEYS_AT_ONCE):
            part = np.array(keys[start : start + _KEYS_AT_ONCE], np.uint64)
            self._client.delete_items(self._table, part)

    def _keys_except(self, whole: Collection[int]) -> defaultdict[int, list[int]]:
        keys: defaultdict[int, list[int]] = defaultdict(list)
        for episode, _, key in self._scan():
            if episode not in whole:
                keys[episode].append(key)
        return keys

    def _scan(self) -> Iterator[tuple[int, list[int], int]]:
        """The episode, the digests and the key of each item."""
        for sample in self._client.scan(self._table, columns=list(self._columns)):
            episode, *digests = map(_number, sample.data)
            if episode is None or None in digests:
                raise errors.FailedPreconditionError(
                    f"item {sample.info.key} of table {self._table} has no column {EPISODE_ID}, so "
                    "it is unknown which episodes are in the table. Reset it, or pass resume=False "
                    "to write all episodes beside the items"
                )
            yield episode, digests, sample.info.key


def _number(column: np.ndarray) -> Any:
    """The number that all steps have; `None` if they have none."""
    if column.dtype != np.int64:
        return None
    if not column.ndim:
        return column.item()
    return None if (column != column[0]).any() else column[0].item()
