# SPDX-License-Identifier: Apache-2.0
"""The episodes of an import that a table lacks."""

import dataclasses
import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Literal, NamedTuple

from reverb import errors
from reverb._recording.items import Episodes, Items
from reverb.datasets.episode import Episode, checked, id_of
from reverb.datasets.present import PresentEpisodes, num_items_of
from reverb.datasets.table_columns import TableColumns

__all__ = ["Changed", "KnownBy", "MissingEpisodes", "Rules", "Written"]

# See `reverb.datasets.write`.
KnownBy = Literal["key", "number"]
Changed = Literal["error", "keep", "replace"]


@dataclasses.dataclass
class Written:
    """Counts of an import.

    Attributes:
      num_episodes: Number of episodes that were written.
      num_steps: Number of their steps.
      num_items: Number of their items.
      num_present: Number of episodes that the table had already, and that were left as they are.
      num_repaired: Number of the written episodes of which the table had a part, because an earlier
        import was cut off. That part was deleted first.
      num_changed: Number of episodes of which the table had other values, or that it had under
        another key; `changed` decides what becomes of them.
      num_dropped: Number of episodes that are in no item, because of their length.
    """

    num_episodes: int = 0
    num_steps: int = 0
    num_items: int = 0
    num_present: int = 0
    num_repaired: int = 0
    num_changed: int = 0
    num_dropped: int = 0


class Rules(NamedTuple):
    """Arguments of `reverb.datasets.write` that decide which episodes the table lacks."""

    known_by: KnownBy | None
    changed: Changed
    dry_run: bool


class MissingEpisodes(Iterator[Episode]):
    """Checks the episodes of an import, and yields those to write.

    Args:
      given: The episodes.
      items: The kind of items.
      columns: The columns of the table.
      look: Counts the episodes in the table by some columns; `None`: all episodes are written.
      rules: Rules of what is missing.
      counts: Counts those that are not yielded.
      progress: Called for each that is there already.
    """

    def __init__(
        self,
        given: Iterable[Episode],
        items: Items,
        columns: TableColumns,
        look: Callable[[Sequence[str | int]], PresentEpisodes] | None,
        rules: Rules,
        counts: Written,
        progress: Callable[[Written], Any] | None,
    ) -> None:
        self._given = given
        self._items = items
        self._columns = columns
        self._look = look if columns.has_ids else None
        self._rules = rules
        self._counts = counts
        self._progress = progress
        self._present: PresentEpisodes | None = None
        self._seen: set[int] = set()
        # Sources whose numbers were looked for in the table.
        self._sources: set[str] = set()
        # The id and the digest of each episode of the dataset.
        self._all: set[tuple[int, int]] | None = None
        self._found = self._missing()

    def __next__(self) -> Episode:
        return next(self._found)

    def _missing(self) -> Iterator[Episode]:
        for episode in map(self._prepared, self._given):
            if episode is None:
                continue
            self._columns.check(episode)
            look, self._look = self._look, None
            if look is not None:
                self._present = look(self._columns.id_columns)
            if self._columns.has_ids:
                self._check_unique(episode)
            num_items = num_items_of(self._items, len(episode))
            if not num_items:
                self._drop(episode)
            elif self._present and self._is_there(episode, num_items, self._present):
                self._counts.num_present += 1
                if self._progress is not None:
                    self._progress(self._counts)
            else:
                yield episode
            del episode  # Otherwise it is in memory while the next one is read.

    def _prepared(self, given: Episode) -> Episode | None:
        episode = checked(self._columns.prepared(given))
        if episode is not None and self._rules.known_by == "number":
            return dataclasses.replace(episode, key="")
        return episode

    def _check_unique(self, episode: Episode) -> None:
        if episode.id in self._seen:
            raise episode.fault(
                "key" if episode.key else "number",
                f"{episode.key or episode.number} is also that of an earlier episode of the same "
                f"source, {episode.source!r}; each must have its own, because episode_id is made "
                "of it. leave_out=('episode_index',) lets an episode be known by its file, if the "
                "indices of several files are alike",
            )
        self._seen.add(episode.id)

    def _drop(self, episode: Episode) -> None:
        if isinstance(self._items, Episodes) and self._items.long_episodes == "raise":
            raise episode.fault(
                "rewards",
                f"has {len(episode)} steps, more than max_length = {self._items.max_length}; pass "
                'a larger max_length, or long_episodes="drop"',
            )
        self._counts.num_dropped += 1

    def _is_there(self, episode: Episode, num_items: int, present: PresentEpisodes) -> bool:
        """Whether the table has an episode; what it has of another form is deleted."""
        digest = self._columns.digest(episode) if self._columns.has_digests else None
        self._check_old_ids(episode, digest, present)
        is_known = episode.id in present
        if digest is not None and not present.has_digest(episode.id, digest):
            others = {episode.id} if is_known else set()
            if self._rules.changed != "error" or not is_known:
                others |= self._moved(episode.id, digest, present)
            if others:
                return self._is_kept(episode, others, present, is_known)
        if present.has_whole(episode.id, num_items):
            return True
        if is_known:
            self._counts.num_repaired += 1
            if not self._rules.dry_run:
                present.remove(episode.id)
        return False

    def _moved(self, episode: int, digest: int, present: PresentEpisodes) -> set[int]:
        """An episode of the table with these values that the dataset does not have any more."""
        found = {it for it in present.with_digest(digest) if it != episode}
        again = getattr(self._given, "again", None)
        if again is None or not found:
            return set()
        if self._all is None:
            whole = filter(None, map(self._prepared, again()))
            self._all = {(it.id, self._columns.digest(it)) for it in whole}
        gone = [it for it in found if (it, digest) not in self._all]
        if not gone:
            return set()
        # One that the dataset has no values for at all goes first.
        ids = {it for it, _ in self._all}
        return {min(gone, key=lambda it: (it in ids, it))}

    def _is_kept(
        self, episode: Episode, others: set[int], present: PresentEpisodes, is_known: bool
    ) -> bool:
        """Whether what the table has stays there instead of an episode that has changed."""
        if self._rules.changed == "error":
            raise errors.FailedPreconditionError(
                episode.text(
                    "key" if episode.key else "number",
                    f"the table has other values of {self._name(episode)}, so the dataset has "
                    "changed since it was imported"
                    if is_known
                    else f"the table has the values of {self._name(episode)} as another episode, "
                    "which the dataset does not have any more: its file was renamed, or others "
                    "were removed",
                )
                + '. changed="keep" leaves the table as it is, changed="replace" deletes the items '
                "of that episode and writes those of this one"
            )
        self._counts.num_changed += 1
        if self._rules.changed == "keep":
            # Another file may have the values that stay under this key: it was renamed.
            for other in others - {episode.id}:
                present.forget(other)
            return True
        for other in others:
            if self._rules.dry_run:
                present.forget(other)
            else:
                present.remove(other)
        return False

    @staticmethod
    def _name(episode: Episode) -> str:
        return repr(episode.key) if episode.key else f"number {episode.number}"

    def _check_old_ids(
        self, episode: Episode, digest: int | None, present: PresentEpisodes
    ) -> None:
        """Checks that the table has no ids of older imports, which were made of numbers."""
        old = id_of(episode.source, episode.number)
        if self._rules.known_by is not None or old == episode.id:
            return
        numbers: Iterable[int] = [episode.number]
        if episode.key.isdecimal():
            # Keys are made of numbers, too, so that such an id may be that of another key.
            if episode.id in present or not (digest is None or present.has_digest(old, digest)):
                return
        elif episode.source not in self._sources:
            self._sources.add(episode.source)
            hint = episode.number + operator.length_hint(self._given) + 1
            numbers = range(max(hint, len(present)))
        if any(id_of(episode.source, it) in present for it in numbers):
            raise errors.FailedPreconditionError(
                episode.text(
                    "key",
                    f"is {episode.key!r}, and the table has episodes of {episode.source!r} by "
                    'their numbers in it, as older versions wrote them. known_by="number" '
                    "continues with these, if no file was added, removed or renamed since; "
                    'known_by="key" writes all episodes beside them, so reset the table first',
                )
            )


# The public import path.
Written.__module__ = "reverb.datasets"
