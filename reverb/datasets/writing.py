# SPDX-License-Identifier: Apache-2.0
"""Writes episodes into a table."""

import contextlib
import functools
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any

import numpy as np

from reverb import errors
from reverb._batches.importance import MAX_PRIORITY
from reverb._recording.checks import check_choice
from reverb._recording.item_makers import factor, num_rows
from reverb._recording.items import Episodes, Items, Sequences, Transitions
from reverb._recording.nests import map_nest, without
from reverb.client import Client
from reverb.datasets.episode import Episode
from reverb.datasets.lanes import NUM_LANES, Lanes
from reverb.datasets.missing import Changed, KnownBy, MissingEpisodes, Rules, Written
from reverb.datasets.present import PresentEpisodes, num_items_of
from reverb.datasets.table_columns import EPISODE_ID, TableColumns, info_rows

__all__ = ["write"]

# How long a hold of the rate limiter may take to end: a server sees within moments that an import
# was killed, whose hold it was.
HOLD_PATIENCE_S = 5.0
_HOLD_POLL_S = 0.05

# Size of the rows of a group of episodes side by side. Beside it are the episodes themselves.
_GROUP_BYTES = 16 << 20


def write(
    client: Client,
    table: str,
    episodes: Iterable[Episode],
    items: Items,
    *,
    priority: float | str = 1.0,
    leave_out: Collection[str] = (),
    episode_ids: bool | None = None,
    resume: bool = True,
    known_by: KnownBy | None = None,
    changed: Changed = "error",
    keep_limiter: bool = False,
    dry_run: bool = False,
    progress: Callable[[Written], Any] | None = None,
) -> Written:
    """Writes episodes into a table, as items of transitions, of sequences or of whole episodes.

    The items are those of a recorder for Gymnasium, with the same columns. Infos of the episodes
    are columns, too. During the import the table's rate limiter is off for inserts, see
    `Client.rate_limiter_off`, and these inserts do not count for its ratio.

    If the table has the column `episode_id` (`reverb.datasets.signature` makes it), a second import
    writes only what is missing: episodes of which all items are there are left as they are, and of
    one that an import was writing when it was killed, the items are deleted and written again. With
    the column `values_digest`, too, it sees episodes that have changed. Without `episode_id` only
    an empty table is written to, unless `resume` is false.

    Blocks until the server has confirmed all items. Needs memory for 64 MiB of data and one
    episode, and some 100 bytes for each episode.

    Example:
      >>> from reverb import datasets
      >>> episode = datasets.Episode(
      ...     observations=np.zeros((3, 4), np.float32),
      ...     actions=np.zeros(2, np.int64),
      ...     rewards=np.ones(2, np.float32),
      ...     terminated=np.array([False, True]),
      ...     truncated=np.array([False, False]),
      ... )
      >>> datasets.write(client, "replay", [episode], datasets.Transitions()).num_items
      2

    Args:
      client: The client to write through.
      table: Name of the table.
      episodes: The episodes, as from `episodes` or of the program's own. With `episode_id` each has
        its own `source` and `key`, or `number` without a key.
      items: `Transitions`, `Sequences` or `Episodes`.
      priority: Priority of all items; "max" is `reverb.MAX_PRIORITY`.
      leave_out: Fields that do not become columns: columns such as "next_observation", parts of
        observations and actions such as "observation/image", names of infos, or "infos" for all
        infos that the table has no column for.
      episode_ids: Whether items have the column `episode_id`; `None`: if the signature has it. Pass
        `True` for a table without a signature, that is imported into more than once; such
        items have a column more than those of a recorder.
      resume: Whether to leave out episodes that the table has. `False`: all are written beside what
        is there.
      known_by: Identity of episodes that have a `key`: the "key", or the "number", as in tables
        that older versions of this package filled. `None`: the key, and an error if the table has
        the numbers.
      changed: Treatment of an episode of which the table has other values, or which it has under
        another key, because its file was renamed; only a table with `values_digest` shows it.
        "error": an error. "keep": what the table has stays, and the episode is not written.
        "replace": what the table has is deleted, and the episode is written.
      keep_limiter: Whether the rate limiter stays on, so that inserts wait for it and count. To
        turn it off needs the right `admin`.
      dry_run: Whether to check everything and count, without writing.
      progress: Called after each group of episodes, and for each that is there already.

    Returns:
      The counts.

    Raises:
      InvalidArgumentError: If an episode is not whole, or is longer than `max_length` of
        `Episodes`; the text names place, episode and field. Episodes before it are written.
      SignatureMismatchError: If an episode does not have the columns of the table.
      FailedPreconditionError: If the table has items and no column `episode_id`, or episodes by
        their numbers, see `known_by`, or of other values, see `changed`; or if another client has
        turned its rate limiter off for more than 5 s, such as another import.
      TableNotFoundError: If there is no such table.
      UnavailableError: If no server answers.
    """
    num_rows(items, None)  # Checks the type.
    info = client.server_info()
    if table not in info:
        raise errors.TableNotFoundError(f"the server has no table {table!r}; it has {sorted(info)}")
    columns = TableColumns(table, info[table].signature, items, leave_out, episode_ids)
    if resume and not columns.has_ids and info[table].current_size:
        raise errors.FailedPreconditionError(
            f"table {table} has {info[table].current_size} items, and no column {EPISODE_ID}, so "
            "it is unknown which episodes are among them. Reset the table and give it this column "
            "(reverb.datasets.signature, or episode_ids=True without a signature), or pass "
            "resume=False to write all episodes beside the items"
        )
    if known_by is not None:
        check_choice("known_by", known_by, ("key", "number"))
    check_choice("changed", changed, ("error", "keep", "replace"))
    number = _number(priority)
    counts = Written()
    with contextlib.nullcontext() if dry_run or keep_limiter else _limiter_off(client, table):
        look = functools.partial(PresentEpisodes, client, table) if resume else None
        rules = Rules(known_by, changed, dry_run)
        missing = MissingEpisodes(episodes, items, columns, look, rules, counts, progress)
        if dry_run:
            for episode in missing:
                _count(counts, [episode], items, progress)
        elif isinstance(items, Episodes):
            for episode in missing:
                client.insert_sequence(_item_of(episode, items, columns), {table: number})
                _count(counts, [episode], items, progress)
        else:
            _write_lanes(client, table, items, columns, priority, missing, counts, progress)
    return counts


@contextlib.contextmanager
def _limiter_off(client: Client, table: str) -> Iterator[None]:
    """`Client.rate_limiter_off`, after a wait for the end of another client's."""
    deadline = time.monotonic() + HOLD_PATIENCE_S
    with contextlib.ExitStack() as stack:
        while True:
            try:
                stack.enter_context(client.rate_limiter_off(table))
                break
            except errors.FailedPreconditionError:
                if time.monotonic() >= deadline:
                    raise
            time.sleep(_HOLD_POLL_S)
        yield


def _count(
    counts: Written,
    group: list[Episode],
    items: Items,
    progress: Callable[[Written], Any] | None,
) -> None:
    counts.num_episodes += len(group)
    for episode in group:
        counts.num_steps += len(episode)
        counts.num_items += num_items_of(items, len(episode))
    if progress is not None:
        progress(counts)


def _write_lanes(
    client: Client,
    table: str,
    items: Transitions | Sequences,
    columns: TableColumns,
    priority: float | str,
    episodes: Iterable[Episode],
    counts: Written,
    progress: Callable[[Written], Any] | None,
) -> None:
    lanes: dict[int, Lanes] = {}
    with contextlib.ExitStack() as stack:
        for group in _groups(episodes):
            size = _num_lanes(len(group))
            if size not in lanes:
                lanes[size] = Lanes(client, table, items, columns, priority, size)
                stack.push(lambda exc_type, *_, own=lanes[size]: own.leave(exc_type))
            lanes[size].write(group)
            _count(counts, group, items, progress)
            del group  # Otherwise it is in memory while the next one is read.


def _groups(episodes: Iterable[Episode]) -> Iterator[list[Episode]]:
    """Groups episodes, so that their rows side by side take `_GROUP_BYTES` at most, or one.

    Where an episode cannot be read, those before it are a group first.
    """
    group: list[Episode] = []
    longest = 0
    row_bytes = 0
    failure: errors.ReverbError | None = None
    rest = iter(episodes)
    while True:
        try:
            episode = next(rest, None)
        except errors.ReverbError as error:
            failure = error
            break
        if episode is None:
            break
        row_bytes = max(row_bytes, -(-episode.num_bytes // len(episode)))
        after = max(longest, len(episode))
        size = _num_lanes(len(group) + 1) * after * row_bytes
        if group and (size > _GROUP_BYTES or len(group) == NUM_LANES):
            ready, group, after = [group], [], len(episode)
            yield ready.pop()
        group.append(episode)
        longest = after
    if group:
        yield group
    if failure is not None:
        raise failure


def _num_lanes(num_episodes: int) -> int:
    """The power of 2 from which so many episodes have their lanes."""
    return 1 << (num_episodes - 1).bit_length()


def _item_of(episode: Episode, items: Episodes, columns: TableColumns) -> dict[str, Any]:
    """The columns of a whole episode, `[T, ...]`."""
    item: dict[str, Any] = {
        "observation": map_nest(lambda leaf: leaf[:-1], episode.observations),
        "next_observation": map_nest(lambda leaf: leaf[1:], episode.observations),
        "action": episode.actions,
        "reward": episode.rewards.astype(columns.reward_dtype, copy=False),
        "discount": factor(items.discount, episode.terminated),
        "terminated": episode.terminated,
        "truncated": episode.truncated,
    }
    item = without(item, columns.left_out.__contains__)
    for name, array in columns.infos(episode).items():
        item[name] = info_rows(array, len(episode))
    for name, number in zip(columns.of_episode, columns.numbers(episode), strict=True):
        item[name] = np.full(len(episode), number, np.int64)
    return item


def _number(priority: float | str) -> float:
    if priority is MAX_PRIORITY or priority == "max":
        return MAX_PRIORITY
    try:
        return float(priority)
    except (TypeError, ValueError):
        raise errors.InvalidArgumentError(
            f'priority must be a number or "max", got {priority!r}'
        ) from None
