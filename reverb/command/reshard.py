# SPDX-License-Identifier: Apache-2.0
"""`reverb reshard`: rewrites the checkpoints of a group for another number of shards."""

import argparse
import contextlib
import dataclasses
import os
import pathlib
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from reverb import rate_limiters
from reverb._checkpoints.stored import Checkpoint, read
from reverb._checks.plain_files import read_file
from reverb._server.shard import Shard
from reverb._server.split_table import check_parts
from reverb._server.table import arguments_of
from reverb._server.table_part import take_numbers
from reverb.checkpointers import DefaultCheckpointer
from reverb.client import Client
from reverb.cluster import group_checkpoint
from reverb.cluster.directory import Directory, slots_as_values
from reverb.cluster.shard_calls import move_items, set_map
from reverb.cluster.shard_tables import serialize_tables, tables_as_values, tables_from_values
from reverb.command import group_parts, text
from reverb.command.group_parts import PartsError
from reverb.command.progress import Progress
from reverb.command.server_arguments import Commands, add_no_progress, size
from reverb.core import protos
from reverb.errors import FailedPreconditionError
from reverb.reverb_types import TableInfo
from reverb.server import Server, Table
from reverb.server_executable.server_config import read_config
from reverb.server_executable.server_from_proto import tables_from_proto
from reverb.shown_text import without_tokens

__all__ = ["add_parser"]

_USAGE_ERROR = 2

# Limits of tables while items are moved, so that all items fit.
_MAX_SIZE = 2**31 - 1
_MAX_BYTES = 2**62

# A number of samples that no table reaches.
_MAX_ALLOWANCE = 2.0**40

_NO_BOUND = sys.float_info.max

_NUMBERED = re.compile(r"(.*?)(\d+)")


@dataclasses.dataclass(frozen=True)
class _Group:
    """The group whose number of shards changes.

    Attributes:
      parts: The checkpoints of the shards, by index, in the order in which they are moved.
      tables: The tables of the whole group.
      allowances: Number of samples that the limiters allow, see `group_parts.allowance_of`.
      totals: Number of inserted and of sampled items, see `group_parts.totals_of`.
    """

    parts: Mapping[int, Checkpoint]
    tables: Sequence[Table]
    allowances: Mapping[str, float]
    totals: Mapping[str, tuple[int, int]]

    @classmethod
    def of(cls, parts: Mapping[int, Checkpoint], tables: Sequence[Table]) -> "_Group":
        """Makes a group with the numbers of its parts."""
        return cls(parts, tables, group_parts.allowance_of(parts), group_parts.totals_of(parts))

    def tables_of(self, index: int, num_shards: int) -> list[Table]:
        """The tables of a new shard: room for all items, and its share of the totals."""
        tables = []
        for whole in self.tables:
            allowance = self.allowances.get(whole.name, 0.0) / num_shards
            table = _roomy(whole, _part(whole, index, num_shards), allowance)
            shares = [
                total // num_shards + (index < total % num_shards)
                for total in self.totals.get(whole.name, (0, 0))
            ]
            table.internal_table.count_from(*shares)
            tables.append(table)
        return tables


def add_parser(commands: Commands) -> None:
    """Adds the command."""
    parser = commands.add_parser(
        "reshard",
        help="make the checkpoints of a group into those for another number of shards",
        description="Makes the checkpoints of a group of servers into those for another number of "
        "shards. No server needs to run. All items keep their keys, priorities, contents, times of "
        "insertion and sample counts; of an item in two parts, the newer one is kept. The rate "
        "limiters allow as many samples as before, and the totals of inserts and samples continue. "
        "Needs memory for all items of the group. Warns of items for which the new servers have no "
        "room. The exit code is 2 if the checkpoints are not all the parts of one group.",
    )
    parser.add_argument("--shards", required=True, type=size, metavar="N")
    parser.add_argument(
        "--config-file",
        type=pathlib.Path,
        metavar="TABLES",
        help="the config of the new servers, with the numbers of the whole group (default: what "
        "the parts add up to)",
    )
    parser.add_argument(
        "sources",
        type=pathlib.Path,
        nargs="+",
        metavar="DIR",
        help="one directory of checkpoints for each shard; or one directory with shard-0, shard-1, "
        "...; or a checkpoint of a group that Ray made: .../group-<time>",
    )
    parser.add_argument(
        "out",
        type=pathlib.Path,
        metavar="OUT",
        help="a directory that has no checkpoints; OUT/shard-0, OUT/shard-1, ... are what the new "
        "servers' --checkpoint-dir names",
    )
    add_no_progress(parser)
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    try:
        _reshard(arguments)
    except PartsError as error:
        _tell("error", " ".join(str(error).split()))
        return _USAGE_ERROR
    return 0


def _reshard(arguments: argparse.Namespace) -> None:
    sources, out, num_shards = arguments.sources, arguments.out, arguments.shards
    config = _tables_of_config(arguments.config_file)
    if len(sources) == 1 and _is_group_checkpoint(sources[0]):
        old, num_items, where = _reshard_group(
            sources[0], config, num_shards, out, arguments.progress
        )
    else:
        old, num_items, where = _reshard_parts(sources, config, num_shards, out, arguments.progress)
    print(
        f"{text.plural(num_items, 'item')} of {text.plural(old, 'shard')} in {where}, for "
        f"{text.plural(num_shards, 'shard')}"
    )


# ---- Checkpoints of a group, with a manifest -----------------------------------------------------


def _is_group_checkpoint(path: pathlib.Path) -> bool:
    return path.name.startswith("group-") or os.path.lexists(path / group_checkpoint.MANIFEST)


def _reshard_group(
    path: pathlib.Path,
    config: Sequence[Table] | None,
    num_shards: int,
    out: pathlib.Path,
    progress: bool | None,
) -> tuple[int, int, pathlib.Path]:
    source = group_checkpoint.read(path)
    source.check()
    if group_checkpoint.has_complete(out):
        raise FailedPreconditionError(
            f"{out} has a checkpoint of a group already: name a directory that has none"
        )
    directory = Directory(source.group)
    directory.lay_out(range(num_shards))
    slots = directory.slots()
    parts = {index: read(source.path_of(index)) for index in source.parts}
    infos = [protos.TableInfo.FromString(it) for it in tables_from_values(source.tables)]
    of_group = {info.name: info for info in infos}
    configs = group_parts.added_up(parts)
    for table in configs:
        if table.table_name in of_group:
            take_numbers(table, of_group[table.table_name])
    group = _Group.of(parts, _whole(configs, config))
    names = {index: f"reshard.{index}" for index in range(num_shards)}
    with _moved(group, num_shards, slots, out, names, progress) as (targets, num_items):
        saved = group_checkpoint.save(
            out,
            source.group,
            {index: server.localhost_client() for index, server in targets.items()},
            epoch=source.epoch + 1,
            slots=slots,
            tables=source.tables if config is None else _values(directory, group.tables),
        )
    return len(source.parts), num_items, saved.path


# ---- Checkpoints that shards saved by themselves -------------------------------------------------


def _reshard_parts(
    sources: Sequence[pathlib.Path],
    config: Sequence[Table] | None,
    num_shards: int,
    out: pathlib.Path,
    progress: bool | None,
) -> tuple[int, int, pathlib.Path]:
    parts = group_parts.find_parts(sources)
    tables = _whole(group_parts.added_up(parts), config)
    found = sorted(out.glob("shard-*")) if out.exists() else []
    if found:
        raise FailedPreconditionError(f"{found[0]} exists: name a directory without shards")
    name = group_parts.group_of(parts)
    places = {i: Shard(i, num_shards, name).place(tables) for i in range(num_shards)}
    slots = slots_as_values(protos.ShardMap.FromString(places[0].map))
    span = group_parts.span_of(parts)
    if span is not None:
        _tell("warning", span)
    # If two shards have an item with the same time, the one of the later checkpoint stays.
    order = sorted(parts, key=lambda index: -(parts[index].taken_at or 0.0))
    group = _Group.of({index: parts[index] for index in order}, tables)
    names = _names({index: part.server_name for index, part in parts.items()}, num_shards)
    out.mkdir(parents=True, exist_ok=True)
    partial = pathlib.Path(tempfile.mkdtemp(prefix=".partial-", dir=out))
    try:
        with _moved(group, num_shards, slots, partial, names, progress) as (targets, num_items):
            for index, server in targets.items():
                client = server.localhost_client()
                set_map(client, places[index].map, index)
                client.checkpoint()
        for index in range(num_shards):
            group_checkpoint.shard_directory(partial, index).rename(
                group_checkpoint.shard_directory(out, index)
            )
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return len(parts), num_items, out


def _names(names: Mapping[int, str | None], num_shards: int) -> dict[int, str | None]:
    """The names of the new servers, if every old name is one word and the index of the shard."""
    words = {
        match[1] if match and int(match[2]) == index else None
        for index, name in names.items()
        for match in [_NUMBERED.fullmatch(name or "")]
    }
    word = words.pop() if len(words) == 1 else None
    if word is None and any(names.values()):
        _tell(
            "warning",
            "the new checkpoints have no names: start the servers without --checkpoint-name, or "
            "give them names once they have loaded",
        )
    return {index: None if word is None else f"{word}{index}" for index in range(num_shards)}


# ---- Moving --------------------------------------------------------------------------------------


@contextlib.contextmanager
def _moved(
    group: _Group,
    num_shards: int,
    slots: Sequence[Mapping[str, Any]],
    out: pathlib.Path,
    names: Mapping[int, str | None],
    progress: bool | None,
) -> Iterator[tuple[dict[int, Server], int]]:
    """Moves all items to new servers that will save to `out`; returns these, and the number."""
    with contextlib.ExitStack() as stack:
        targets: dict[int, Server] = {}
        for index in range(num_shards):
            checkpointer = DefaultCheckpointer(
                str(group_checkpoint.shard_directory(out, index)), name=names[index]
            )
            tables = group.tables_of(index, num_shards)
            targets[index] = stack.enter_context(
                Server(tables, checkpointer=checkpointer, host="127.0.0.1")
            )
        with Progress("moving", enabled=progress) as bar:
            for done, part in enumerate(group.parts.values()):
                _move_part(part, targets, slots)
                bar(done + 1, len(group.parts))
        num_items = sum(
            info.current_size
            for server in targets.values()
            for info in server.server_info().values()
        )
        for table in group.tables:
            _fit(table, targets)
        yield targets, num_items


def _move_part(
    part: Checkpoint,
    targets: Mapping[int, Server],
    slots: Sequence[Mapping[str, Any]],
) -> None:
    with tempfile.TemporaryDirectory() as empty:
        checkpointer = DefaultCheckpointer(empty, fallback_checkpoint_path=part.path)
        configs = group_parts.configs_of(part).values()
        for config in configs:
            # No limit: the items fitted before, but this release may count more bytes for them.
            config.max_bytes = 0
        tables = [_table(config) for config in configs]
        with Server(tables, checkpointer=checkpointer, host="127.0.0.1") as server:
            client = server.localhost_client()
            for table in server.server_info():
                for entry in slots:
                    its = range(entry["first"], entry["first"] + entry["count"])
                    target = targets[entry["owner"]].localhost_client()
                    _, num_present = move_items(client, target, table, its)
                    if num_present and _delete_older(client, target, table):
                        move_items(client, target, table, its)


def _delete_older(source: Client, target: Client, table: str) -> int:
    """Deletes items of the target of which the source has a newer one; returns how many."""
    keys, times = _times(source, table)
    their_keys, their_times = _times(target, table)
    both, at, there = np.intersect1d(keys, their_keys, return_indices=True)
    older = both[their_times[there] < times[at]]
    target.mutate_priorities(table, deletes=[int(key) for key in older])
    return len(older)


def _times(client: Client, table: str) -> tuple[np.ndarray, np.ndarray]:
    rows = [(int(it.info.key), at) for at, it in client.scan(table, with_inserted_at=True)]
    return np.array([row[0] for row in rows], np.uint64), np.array([row[1] for row in rows])


# ---- Tables --------------------------------------------------------------------------------------


def _part(table: Table, index: int, num_shards: int) -> Any:
    return check_parts(table, index, num_shards, is_coordinated=True)


def _roomy(table: Table, part: Any, allowance: float) -> Table:
    """The part of a table, without a limit of items or memory, while items are added.

    Adding items does not move the cursor of its limiter: it is 0, and the lower bound, if there is
    one, is `allowance` below. `_fit` keeps this distance when it sets the real bounds.
    """
    bounds = part.rate_limiter
    if 0 < bounds.samples_per_insert == part.max_times_sampled:
        # In a queue, every item may be sampled, in whichever shard it is.
        allowance = _MAX_ALLOWANCE
    limiter = rate_limiters.RateLimiter(
        samples_per_insert=bounds.samples_per_insert,
        min_size_to_sample=bounds.min_size_to_sample,
        min_diff=-_NO_BOUND if bounds.min_diff <= -_NO_BOUND else -allowance,
        max_diff=_NO_BOUND,
    )
    return table.replace(max_size=_MAX_SIZE, max_bytes=_MAX_BYTES, rate_limiter=limiter)


def _fit(table: Table, targets: Mapping[int, Server]) -> None:
    """Gives a table of all new shards the size of their part; warns of items that do not fit."""
    num_shards, too_many, largest = len(targets), 0, 0
    for index, server in targets.items():
        part = _part(table, index, num_shards)
        now = server.status().tables[table.name]
        too_many += max(now.items - part.max_size, 0)
        largest = max(largest, now.items)
        arguments = arguments_of(part)
        max_bytes = arguments["max_bytes"]
        fits = arguments["when_full"] == "wait" or max_bytes is None or now.bytes <= max_bytes
        server.localhost_client().configure_table(
            table.name,
            max_size=max(part.max_size, now.items),
            max_bytes=max_bytes if fits else None,
            rate_limiter=arguments["rate_limiter"],
        )
        if not fits:
            _tell(
                "warning",
                f"table {table.name} of shard {index} takes {text.bytes_(now.bytes)}, and its part "
                f"of max_bytes is {text.bytes_(max_bytes or 0)}: the new server drops what is "
                "too much when it loads",
            )
    if too_many:
        room, enough = _part(table, 0, num_shards).max_size, (largest - 1) * num_shards + 1
        _tell(
            "warning",
            f"table {table.name}: the new servers drop {text.plural(too_many, 'item')} when they "
            f"load, because a shard would have {largest} and its part of max_size is {room}. With "
            f"a max_size of {enough} in their config (now {table.info.max_size}) they keep all",
        )


def _whole(configs: Sequence[Any], given: Sequence[Table] | None) -> list[Table]:
    """The tables of the whole group: the given settings, with the saved signatures."""
    saved = {table.name: table for table in map(_table, configs)}
    if given is None:
        return list(saved.values())
    lost = sorted(set(saved) - {table.name for table in given})
    if lost:
        raise PartsError(
            f"the config has no table {', '.join(lost)}, which the checkpoints have: name the "
            "config of this group"
        )
    signatures = {name: table.info.signature for name, table in saved.items()}
    return [table.replace(signature=signatures.get(table.name)) for table in given]


def _table(config: Any) -> Table:
    """A table with the saved settings."""
    (table,) = tables_from_proto([config])
    if not config.HasField("signature"):
        return table
    info = TableInfo.from_proto(protos.TableInfo(signature=config.signature))
    return table.replace(signature=info.signature)


def _values(directory: Directory, tables: Sequence[Table]) -> list[dict[str, Any]]:
    """The tables of a group in the form of its manifest."""
    directory.set_tables(0, serialize_tables(tables))
    return tables_as_values(directory.to_proto())


def _tables_of_config(path: pathlib.Path | None) -> list[Table] | None:
    if path is None:
        return None
    parsed = read_config(read_file(path).decode("utf-8", "replace"))
    if parsed.problems:
        raise PartsError(f"{path}, {'; '.join(map(str, parsed.problems))}")
    return tables_from_proto(parsed.config.tables)


# ---- Telling -------------------------------------------------------------------------------------


def _tell(kind: str, what: str) -> None:
    print(f"reverb: {kind}: {text.plain(without_tokens(what))}", file=sys.stderr)
