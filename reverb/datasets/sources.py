# SPDX-License-Identifier: Apache-2.0
"""Sources of episodes by their names, such as `minari:pen/human-v2`."""

import dataclasses
import itertools
from collections.abc import Collection, Iterator
from typing import Any, Protocol

from reverb import errors
from reverb._checks.byte_sizes import parse_byte_size
from reverb._recording.checks import check_at_least, check_choice
from reverb.datasets.episode import Episode, Unfinished, checked
from reverb.datasets.formats import FORMATS, imported, split_format
from reverb.datasets.formats.limits import MAX_BYTES, Limits
from reverb.datasets.left_out import LeftOut

__all__ = ["Source", "episodes", "open_source"]


class Source(Protocol):
    """A dataset that is open for reading.

    The class of a format makes it of the whole name, of what follows the format in it, and of the
    arguments `leave_out` (a `LeftOut`), `limits` and, if datasets have splits, `split` of
    `episodes`. It asks `leave_out` for each field that it finds, before it reads the values, and
    checks in the end that the parts it names are there.

    Attributes:
      name: Name of the source for people.
      identity: Identifies the source: its absolute path or its id, and the split.
      num_episodes: Number of episodes; `None`: unknown.
    """

    name: str
    identity: str
    num_episodes: int | None

    def episodes(self, start: int) -> Iterator[Episode]:
        """Yields the episodes from this position on, not checked."""
        ...


def open_source(name: str, split: str | None = None, **options: object) -> Source:
    """Opens a dataset by its name; see `episodes`.

    Raises:
      InvalidArgumentError: If no format has this prefix, if its datasets have no splits, or if
        there is no such dataset.
      FailedPreconditionError: If the format needs a library that is not installed.
    """
    prefix, rest = split_format("source", name, FORMATS)
    if FORMATS[prefix].has_splits:
        options["split"] = split
    elif split is not None:
        raise errors.InvalidArgumentError(
            f"split must be None for {prefix}:, whose datasets have no splits, got {split!r}"
        )
    return imported(FORMATS[prefix].source)(name, rest, **options)


def episodes(
    source: str,
    *,
    skip: int = 0,
    limit: int | None = None,
    unfinished: Unfinished = "error",
    leave_out: Collection[str] = (),
    source_id: str | None = None,
    split: str | None = None,
    max_length: int | None = None,
    max_bytes: int | str = MAX_BYTES,
) -> Iterator[Episode]:
    """Reads the episodes of a dataset, one after another.

    A dataset is data: no program in it is run, and no file outside of it is read. Nothing is
    downloaded, except a dataset of Hugging Face by its id. Memory is 64 MiB, one episode, and one
    unit of the file, such as a row group.

    Example:
      >>> from reverb import datasets
      >>> datasets.episodes("npz:/no/such/file.npz")
      Traceback (most recent call last):
      ...
      reverb.errors.InvalidArgumentError: npz:/no/such/file.npz: there is no file or directory ...

    Args:
      source: The format, a colon, and a path or an id: `npz:PATH` and `parquet:PATH` (a file, or a
        directory of them), `minari:ID_OR_PATH`, `hf:ID_OR_PATH`, `rlds:ID_OR_PATH`,
        `lerobot:ID_OR_PATH`.
      skip: Number of episodes to leave out, from the first on.
      limit: Largest number of episodes; `None`: all.
      unfinished: Treatment of an episode whose last step is neither terminated nor truncated.
        "error": an error. "truncate": its last step becomes truncated. "drop": it is left out.
      leave_out: Names of fields that are not read, for example because they are text: infos, and
        parts of observations and actions, such as "observation/image". Columns of items are good
        names, too, and are for `write`. "episode_index": episodes are not known by it.
      source_id: Identifies the dataset in `Episode.id`; `None`: its id, or its absolute path.
      split: The split, for `hf:` and `rlds:`; `None`: the only one, or "train".
      max_length: Largest number of steps of an episode; a longer one is an error before it is read.
        `None`: as many as `max_bytes` holds.
      max_bytes: Largest size in bytes of an episode, and of a unit of a file, such as a row group
        of Parquet, or a text such as "4GiB". What claims to be larger is an error before memory is
        taken for it.

    Returns:
      An iterator of episodes. Its length hint (`operator.length_hint`) is their number, or 0 if
      only reading them all would show it.

    Raises:
      InvalidArgumentError: At once, if an argument is out of its range or there is no such dataset,
        and, but for Minari, if a part of observations or actions that `leave_out` names is missing;
        from the iterator, if an episode is not whole or too large, if a field has no numbers, or
        if a file leads out of the dataset. The text names file, episode and field.
      DataLossError: If a file is damaged.
      FailedPreconditionError: If the format needs a library that is not installed.
    """
    check_at_least(0, "skip", skip)
    if limit is not None:
        check_at_least(0, "limit", limit)
    check_choice("unfinished", unfinished, ("error", "truncate", "drop"))
    left_out = LeftOut(leave_out)
    if max_length is not None:
        check_at_least(1, "max_length", max_length)
    limits = Limits(parse_byte_size("max_bytes", max_bytes) or MAX_BYTES, max_length)
    opened = open_source(source, split, leave_out=left_out, limits=limits)
    return _Episodes(opened, skip, limit, unfinished, source_id, limits, left_out)


class _Episodes(Iterator[Episode]):
    """Checked episodes of a source; its length hint is their number, or 0 if it is unknown."""

    def __init__(
        self,
        source: Source,
        skip: int,
        limit: int | None,
        unfinished: Unfinished,
        source_id: str | None,
        limits: Limits,
        left_out: LeftOut,
    ) -> None:
        self._source = source
        self._limits = limits
        self._rest = itertools.islice(source.episodes(skip), limit)
        self._unfinished: Unfinished = unfinished
        self._source_id = source_id
        self._left_out = left_out
        known = 0 if source.num_episodes is None else max(source.num_episodes - skip, 0)
        self._hint = known if limit is None else min(limit, known or limit)

    def __length_hint__(self) -> int:
        return self._hint

    def again(self) -> "_Episodes":
        """All episodes of the source, from the first on."""
        facts = (self._unfinished, self._source_id, self._limits, self._left_out)
        return _Episodes(self._source, 0, None, *facts)

    def __next__(self) -> Episode:
        for episode in self._rest:
            facts: dict[str, Any] = {}
            if self._source_id is not None:
                facts["source"] = self._source_id
            if self._left_out.names:
                facts["left_out"] = self._left_out.used
            if facts:
                episode = dataclasses.replace(episode, **facts)
            whole = checked(episode, self._unfinished)
            if whole is not None:
                where = f"{whole.place}: episode {whole.number}"
                self._limits.check_length(where, len(whole))
                self._limits.check(where, "it", whole.num_bytes)
                return whole
        raise StopIteration
