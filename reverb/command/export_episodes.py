# SPDX-License-Identifier: Apache-2.0
"""`reverb export` to the formats of datasets: each item is a whole episode."""

import argparse
import itertools
import pathlib

from reverb import datasets
from reverb.command.progress import Progress
from reverb.command.server_arguments import option
from reverb.command.source import Source, check_table
from reverb.datasets.formats import SAVED
from reverb.datasets.stored_episodes import episodes_of_items
from reverb.errors import InvalidArgumentError

__all__ = ["OPTIONS", "add_options", "export_episodes"]

OPTIONS = {name: it for own in SAVED.values() for name, it in own.options.items()}


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the formats."""
    group = parser.add_argument_group("formats of whole episodes")
    by_id = " and ".join(it for it in SAVED if SAVED[it].by_id)
    group.add_argument("--dataset-id", help=f"id of the dataset, for {by_id}")
    for name, it in OPTIONS.items():
        formats = " and ".join(own for own in SAVED if name in SAVED[own].options)
        group.add_argument(option(name), type=it.parse, help=f"{it.help}, for {formats}")


def export_episodes(source: Source, arguments: argparse.Namespace) -> tuple[int, str]:
    """Writes the items of a table as the episodes of a dataset, oldest first.

    Options of a format that are `None` are not given.

    Returns:
      The number of episodes, and the dataset for people.

    Raises:
      TableNotFoundError: If there is no such table.
      InvalidArgumentError: If an option is missing or belongs to another format, if the dataset
        exists, or if an item is not a whole episode.
      FailedPreconditionError: If the format needs a library that is not installed.
    """
    table, format_, max_items = arguments.table, arguments.format, arguments.max_items
    check_table(source, table)
    target = _target(format_, arguments.dataset_id, arguments.output)
    options = {name: getattr(arguments, name) for name in OPTIONS}
    given = {name: value for name, value in options.items() if value is not None}
    for name in OPTIONS:
        own = SAVED[format_].options.get(name)
        if own is None and name in given:
            raise InvalidArgumentError(f"{option(name)} is not for --format {format_}")
        if own is not None and own.is_needed and name not in given:
            raise InvalidArgumentError(f"{option(name)} is needed for --format {format_}")
    info = source.tables[table]
    total = info.current_size if max_items is None else min(info.current_size, max_items)
    columns = (item.columns for item in itertools.islice(source.scan(table), max_items))
    episodes = episodes_of_items(table, info.signature, columns)
    with Progress("exporting", enabled=arguments.progress, noun="episodes") as bar:
        count = datasets.save(
            episodes, target, progress=lambda it: bar(it, max(total, it)), **given
        )
    return count, target


def _target(format_: str, dataset_id: str | None, output: pathlib.Path | None) -> str:
    by_id = SAVED[format_].by_id
    wanted, other = ("--dataset-id", "--output") if by_id else ("--output", "--dataset-id")
    if (output if by_id else dataset_id) is not None:
        raise InvalidArgumentError(f"{other} is not for --format {format_}, which has {wanted}")
    value = dataset_id if by_id else output
    if value is None:
        raise InvalidArgumentError(f"{wanted} is needed for --format {format_}")
    return f"{format_}:{value}"
