# SPDX-License-Identifier: Apache-2.0
"""`reverb reshard`: a checkpoint of a group, made into one for another number of shards."""

import argparse
import contextlib
import pathlib
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

from reverb import item_selectors, rate_limiters
from reverb.checkpointers import DefaultCheckpointer
from reverb.cluster import group_checkpoint
from reverb.cluster.directory import Directory
from reverb.cluster.shard_calls import move_items
from reverb.cluster.shard_tables import tables_from_values
from reverb.command import text
from reverb.command.progress import Progress
from reverb.command.server_arguments import Commands
from reverb.errors import FailedPreconditionError
from reverb.reverb_types import TableInfo
from reverb.server import Server, Table

__all__ = ["add_parser", "reshard"]


def add_parser(commands: Commands) -> None:
    """Adds the command."""
    parser = commands.add_parser(
        "reshard",
        help="make a checkpoint of a group into one for another number of shards",
        description="Makes a checkpoint of a group of servers into one for another number of "
        "shards. No server needs to run. All items keep their keys, priorities, contents, times of "
        "insertion and how often they were sampled; those of one old shard keep their order. The "
        "counters of the rate limiters begin anew. Needs memory for all items of the group.",
    )
    parser.add_argument("--shards", required=True, type=_positive, metavar="N")
    parser.add_argument(
        "group", type=pathlib.Path, metavar="GROUP", help="a checkpoint: .../group-<time>"
    )
    parser.add_argument(
        "out",
        type=pathlib.Path,
        metavar="OUT",
        help="a directory for checkpoints of a group; it must hold none",
    )
    parser.add_argument(
        "--no-progress", action="store_true", help="no progress bar, not even on a terminal"
    )
    parser.set_defaults(run=_run)


def reshard(
    source: group_checkpoint.GroupCheckpoint,
    num_shards: int,
    out: pathlib.Path,
    progress: bool | None = None,
) -> tuple[group_checkpoint.GroupCheckpoint, int]:
    """Makes a checkpoint of a group into one for another number of shards.

    Args:
      source: The checkpoint; it stays as it is.
      num_shards: The new number of shards.
      out: A directory for checkpoints of a group.
      progress: Whether to draw a progress bar; `None`: only on a terminal.

    Returns:
      The new checkpoint, and its number of items.

    Raises:
      FailedPreconditionError: If `out` has a checkpoint of a group.
      InvalidArgumentError: If there cannot be so many shards.
      DataLossError: If a part of the checkpoint is missing or damaged.
    """
    source.check()
    if group_checkpoint.latest(out) is not None:
        raise FailedPreconditionError(
            f"{out} has a checkpoint of a group already: name a directory that has none"
        )
    directory = Directory(source.group)
    directory.lay_out(range(num_shards))
    slots = directory.slots()
    num_items = 0
    with contextlib.ExitStack() as stack:
        targets: dict[int, Server] = {}
        for index in range(num_shards):
            checkpointer = DefaultCheckpointer(
                str(group_checkpoint.shard_directory(out, index)), name=f"reshard.{index}"
            )
            targets[index] = stack.enter_context(
                Server(_tables(source.tables), checkpointer=checkpointer, host="127.0.0.1")
            )
        with Progress("moving", enabled=progress) as bar:
            for done, index in enumerate(source.parts):
                num_items += _move_part(source, index, targets, slots)
                bar(done + 1, len(source.parts))
        saved = group_checkpoint.save(
            out,
            source.group,
            {index: server.localhost_client() for index, server in targets.items()},
            epoch=source.epoch + 1,
            slots=slots,
            tables=source.tables,
        )
    return saved, num_items


def _move_part(
    source: group_checkpoint.GroupCheckpoint,
    index: int,
    targets: Mapping[int, Server],
    slots: Sequence[Mapping[str, Any]],
) -> int:
    """Adds the items of one old shard to the new ones; returns how many."""
    num_items = 0
    with tempfile.TemporaryDirectory() as empty:
        checkpointer = DefaultCheckpointer(
            empty, fallback_checkpoint_path=str(source.path_of(index))
        )
        with Server(_tables(source.tables), checkpointer=checkpointer, host="127.0.0.1") as server:
            client = server.localhost_client()
            for table in server.server_info():
                for entry in slots:
                    its = range(entry["first"], entry["first"] + entry["count"])
                    target = targets[entry["owner"]].localhost_client()
                    num_items += move_items(client, target, table, its)[0]
    return num_items


def _tables(values: Sequence[Mapping[str, Any]]) -> list[Table]:
    """Makes the tables of a whole group, of which no shard has too little room."""
    infos = [TableInfo.from_serialized_proto(proto) for proto in tables_from_values(values)]
    return [
        Table(
            name=info.name,
            sampler=item_selectors.from_options(info.sampler_options),
            remover=item_selectors.from_options(info.remover_options),
            max_size=info.max_size,
            rate_limiter=rate_limiters.RateLimiter(
                samples_per_insert=info.rate_limiter_info.samples_per_insert,
                min_size_to_sample=info.rate_limiter_info.min_size_to_sample,
                min_diff=info.rate_limiter_info.min_diff,
                max_diff=info.rate_limiter_info.max_diff,
            ),
            max_times_sampled=info.max_times_sampled,
            signature=info.signature,
        )
        for info in infos
    ]


def _positive(value: str) -> int:
    number = int(value)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {number}")
    return number


def _run(arguments: argparse.Namespace) -> None:
    source = group_checkpoint.read(arguments.group)
    saved, num_items = reshard(
        source, arguments.shards, arguments.out, False if arguments.no_progress else None
    )
    print(
        f"{text.plural(num_items, 'item')} of {text.plural(len(source.parts), 'shard')} in "
        f"{saved.path}, for {text.plural(len(saved.parts), 'shard')}"
    )
