# SPDX-License-Identifier: Apache-2.0
"""Finds and compares the checkpoints of a group whose shards saved by themselves."""

import datetime
import os
import pathlib
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from reverb._checkpoints.stored import Checkpoint, read
from reverb._server.table_part import DIVIDED, part_of, whole_of
from reverb.cluster import group_checkpoint
from reverb.command import text
from reverb.core import protos
from reverb.errors import FailedPreconditionError, InvalidArgumentError

__all__ = [
    "PartsError",
    "added_up",
    "allowance_of",
    "configs_of",
    "find_parts",
    "group_of",
    "span_of",
]

_SHARD = re.compile(r"shard-(\d+)")
_NAME = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(\.\d+)?([+-]\d\d:\d\d)")
_MAX = sys.float_info.max


class PartsError(InvalidArgumentError):
    """The checkpoints are not all the parts of one group."""


def find_parts(paths: Sequence[pathlib.Path]) -> dict[int, Checkpoint]:
    """Opens the latest complete checkpoint of each shard of a group, by index from 0 on.

    A checkpoint contains the index of its shard. For one of an earlier release, the index is in the
    name of the directory, `shard-<index>`, or else is the position among `paths`. These are a
    directory with `shard-*`, or one to which each shard saves under its own name; or a checkpoint,
    or a directory of checkpoints, for each shard.

    Raises:
      PartsError: If a shard is missing or is given twice, or if they are of two groups.
      DataLossError: If the tables of a checkpoint are damaged.
    """
    if len(paths) == 1:
        paths = _shards_in(paths[0]) or _latest_by_name(paths[0]) or paths
    parts: dict[int, Checkpoint] = {}
    for position, path in enumerate(paths):
        try:
            checkpoint = read(path)
        except FailedPreconditionError as error:
            raise PartsError(
                f"shard {_index_by_name(path, position)} is missing: {error}"
            ) from None
        index = _index_by_name(path, position)
        if checkpoint.place is not None:
            index = checkpoint.place[1]
        if index in parts:
            raise PartsError(
                f"shard {index} is given twice: {parts[index].path} and {checkpoint.path}; name "
                "one directory for each shard"
            )
        parts[index] = checkpoint
    parts = dict(sorted(parts.items()))
    _check_indices(parts)
    _check_tables(parts)
    return parts


def group_of(parts: Mapping[int, Checkpoint]) -> str:
    """Returns the name of the group; empty if no checkpoint has it."""
    return next((part.place[0] for part in parts.values() if part.place is not None), "")


def span_of(parts: Mapping[int, Checkpoint]) -> str | None:
    """Returns a text about the time between the checkpoints; `None` for a single one."""
    if len(parts) < 2:
        return None
    times = {index: _taken_at(part) for index, part in parts.items()}
    known = {index: at for index, at in times.items() if at is not None}
    unknown = [str(index) for index in times if index not in known]
    if unknown:
        return f"it is unknown when shards {', '.join(unknown)} saved: their moments may differ"
    first, last = min(known, key=known.__getitem__), max(known, key=known.__getitem__)
    return (
        f"the shards saved at moments that are {_span(known[last] - known[first])} apart: "
        f"shard {first} at {_moment(known[first])}, shard {last} at {_moment(known[last])}. What "
        "was inserted or updated between them may be in some parts only"
    )


def added_up(parts: Mapping[int, Checkpoint]) -> list[Any]:
    """Returns the tables of the whole group, which `whole_of` makes of their parts.

    Returns:
      `PriorityTableCheckpoint` messages, with the signatures that were saved.
    """
    tables = [configs_of(part) for part in parts.values()]
    return [whole_of([configs[name] for configs in tables]) for name in tables[0]]


def allowance_of(parts: Mapping[int, Checkpoint]) -> dict[str, float]:
    """Returns by how much the cursor of each table exceeds its lower bound, summed over all parts.

    The rate limiter allows that many samples. Tables without a lower bound are left out.
    """
    found: dict[str, float] = {}
    for part in parts.values():
        for name, config in configs_of(part).items():
            limiter = config.rate_limiter
            if limiter.min_diff > -_MAX:
                cursor = limiter.insert_count * limiter.samples_per_insert - limiter.sample_count
                found[name] = found.get(name, 0.0) + cursor - limiter.min_diff
    return found


def totals_of(parts: Mapping[int, Checkpoint]) -> dict[str, tuple[int, int]]:
    """Returns how many items were inserted into each table and sampled, summed over all parts."""
    found: dict[str, tuple[int, int]] = {}
    for part in parts.values():
        for name, config in configs_of(part).items():
            limiter = config.rate_limiter
            # A total is stored where the limiter has counted something else.
            has_inserts, has_samples = map(config.HasField, ("total_inserts", "total_samples"))
            inserts = config.total_inserts if has_inserts else limiter.insert_count
            samples = config.total_samples if has_samples else limiter.sample_count
            before = found.get(name, (0, 0))
            found[name] = (before[0] + inserts, before[1] + samples)
    return found


def configs_of(part: Checkpoint) -> dict[str, Any]:
    """Returns the tables of a checkpoint, as it has them, by name."""
    configs = [protos.PriorityTableCheckpoint.FromString(it) for it in part._stored.configs()]
    return {config.table_name: config for config in configs}


def _shards_in(path: pathlib.Path) -> list[pathlib.Path]:
    """The directories `shard-*` of a directory, in the order of their numbers."""
    try:
        entries = list(path.iterdir())
    except OSError:
        return []
    found = [entry for entry in entries if _SHARD.fullmatch(entry.name) and entry.is_dir()]
    if found and group_checkpoint.has_complete(path):
        raise PartsError(
            f"{path} has checkpoints of the whole group beside those that its shards saved by "
            f"themselves: name one of the group ({path}/group-...), or the directories of "
            "the shards"
        )
    return sorted(found, key=lambda entry: int(entry.name.removeprefix("shard-")))


def _latest_by_name(path: pathlib.Path) -> list[pathlib.Path]:
    """The latest checkpoint of each named server that saves to a directory."""
    found: dict[str | None, pathlib.Path] = {}
    for done in sorted(path.glob(f"*/{group_checkpoint.DONE}")):
        if not done.parent.name.startswith("."):
            found[read(done.parent).server_name] = done.parent
    return list(found.values()) if len(found) > 1 else []


def _index_by_name(path: pathlib.Path, position: int) -> int:
    match = _SHARD.fullmatch(pathlib.Path(os.path.abspath(path)).name)  # noqa: PTH100
    return int(match[1]) if match else position


def _check_indices(parts: Mapping[int, Checkpoint]) -> None:
    places = {index: part.place for index, part in parts.items() if part.place is not None}
    for number, what in ((0, "of the group"), (2, "of a group of")):
        values = {place[number]: index for index, place in places.items()}
        if len(values) > 1:
            shown = [
                f"shard {index} ({parts[index].path}) is {what} {value!r}"
                for value, index in values.items()
            ]
            raise PartsError(f"the checkpoints are of different groups: {'; '.join(shown)}")
    count = max([*parts, -1]) + 1
    count = next((place[2] for place in places.values()), count)
    missing = [str(index) for index in range(count) if index not in parts]
    if missing:
        raise PartsError(
            f"the group has {text.plural(count, 'shard')}, and there is no checkpoint of "
            f"{'shard' if len(missing) == 1 else 'shards'} {', '.join(missing)}: name the "
            "directories of all"
        )
    surplus = [str(index) for index in parts if index >= count]
    if surplus:
        raise PartsError(
            f"the group has {text.plural(count, 'shard')}, numbered from 0 on; there are also "
            f"checkpoints of shards {', '.join(surplus)}"
        )


def _check_tables(parts: Mapping[int, Checkpoint]) -> None:
    """Checks that all have the same tables; their sizes and bounds may differ."""
    (first, its_part), *others = parts.items()
    wanted = configs_of(its_part)
    for index, part in others:
        for name, problem in _differences(configs_of(part), wanted):
            raise PartsError(
                f"the checkpoints are not of one group: table {name} {problem} shard {index} "
                f"({part.path}) and shard {first} ({its_part.path})"
            )


def _differences(found: Mapping[str, Any], wanted: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for name in sorted(set(found) ^ set(wanted)):
        yield name, "is in one only of"
    for name in found:
        mine, theirs = _undivided(found[name]), _undivided(wanted[name])
        for field in mine:
            if mine[field] != theirs[field]:
                yield name, f"has another {field} in"


def _undivided(config: object) -> dict[str, Any]:
    """The settings that all parts of a table have in common, without counters."""
    settings = part_of(config, 0, 1)
    values = [
        (field.name, getattr(message, field.name))
        for message in (settings, settings.rate_limiter)
        for field in message.DESCRIPTOR.fields
    ]
    return {name: it for name, it in values if name not in (*DIVIDED, "rate_limiter")}


def _taken_at(part: Checkpoint) -> float | None:
    if part.taken_at is not None:
        return part.taken_at
    # Earlier releases and dm-reverb store the time only in the name.
    match = _NAME.fullmatch(pathlib.Path(part.path).name)
    if match is None:
        return None
    seconds = datetime.datetime.fromisoformat(match[1] + match[3]).timestamp()
    return seconds + float(match[2] or 0)


def _span(seconds: float) -> str:
    return f"{seconds:.3f} s" if seconds < 60 else text.duration(seconds)


def _moment(at: float) -> str:
    moment = datetime.datetime.fromtimestamp(at, datetime.timezone.utc)
    return moment.strftime("%Y-%m-%d %H:%M:%S.%f")[:-3] + " UTC"
