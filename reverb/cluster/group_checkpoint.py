# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of a whole group: one checkpoint of each shard, and a manifest that appears last.

    <root>/group-2026-11-22T03:57:00.123456789Z/
        shard-0/<checkpoint>   shard-1/<checkpoint>   ...
        GROUP

A shard saves like every server, to its own directory `<root>/shard-<index>`. Then the files of
that checkpoint are linked into the directory of the group, which takes no space and no time. So a
shard that restarts alone finds all its checkpoints in one directory, and its own saves never delete
a part of a group. Every part is an ordinary checkpoint that any server can load, also one of
dm-reverb.

The manifest `GROUP` is renamed into place when all parts are complete and on disk. A directory
without it is no checkpoint.
"""

import calendar
import concurrent.futures
import contextlib
import errno
import logging
import os
import pathlib
import re
import shutil
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from reverb._checks.plain_files import append_to_file, open_file, read_file
from reverb.cluster.group_manifest import DONE, MANIFEST, GroupCheckpoint, Part, read, to_text
from reverb.errors import DataLossError, FailedPreconditionError, InvalidArgumentError

__all__ = [
    "GroupCheckpoint",
    "Part",
    "has_complete",
    "latest",
    "read",
    "save",
    "shard_directory",
    "shards_alone",
]

_PREFIX = "group-"
_LOCK = ".group.lock"
_TIME = "%Y-%m-%dT%H:%M:%S"
_NAME = re.compile(r"group-(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)\.(\d{9})Z")
# The files of a checkpoint; nothing else is ever deleted.
_FILES = ("tables.tfrecord", "items.tfrecord", "chunks.tfrecord", DONE)
# Errors of file systems without hard links.
_NO_LINKS = {errno.EPERM, errno.EXDEV, errno.EMLINK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS}
# Interval of queries until all shards have taken their snapshots.
_POLL_S = 0.002

_logger = logging.getLogger(__name__)


class SavingShard(Protocol):
    """The methods of a shard that `save` needs; a `reverb.Client` of one server has them."""

    def checkpoint(self) -> str:
        """Saves, and returns the path of the checkpoint."""
        ...

    def checkpoint_status(self) -> Any:
        """Returns a `CheckpointStatus`."""
        ...


def shard_directory(root: str | os.PathLike[str], index: int) -> pathlib.Path:
    """Returns the directory of a shard's own checkpoints."""
    return pathlib.Path(root) / f"shard-{index}"


def save(
    root: str | os.PathLike[str],
    group: str,
    shards: Mapping[int, SavingShard],
    *,
    epoch: int,
    slots: Sequence[Mapping[str, Any]],
    tables: Sequence[Mapping[str, Any]] = (),
    keep_latest: int = 1,
    freeze: Callable[[], None] | None = None,
    unfreeze: Callable[[], None] | None = None,
) -> GroupCheckpoint:
    """Saves all shards at the same time, and writes the manifest when all are complete.

    Blocks until that is done. Afterwards older checkpoints of the group are deleted.

    Args:
      root: Directory of the group's checkpoints, in storage that all shards and this process see
        under the same path.
      group: Name of the group.
      shards: The shards, by index.
      epoch: Epoch of the group's map.
      slots: The map's ranges of slots, see `GroupCheckpoint`.
      tables: Settings of the whole group's tables, as plain values.
      keep_latest: Number of checkpoints of the group to keep, at least 1.
      freeze: Stops the coordinator, so that no budget is in transit between shards while they take
        their snapshots.
      unfreeze: Starts it again; called when all shards have taken their snapshots, or have failed.

    Returns:
      The new checkpoint.

    Raises:
      InvalidArgumentError: If there is no shard, or if `keep_latest` is below 1.
      FailedPreconditionError: If a shard could not save (the text names it), if its checkpoint is
        not visible here, or if another process saves the group now. Earlier checkpoints stay.
    """
    if not shards:
        raise InvalidArgumentError("shards must not be empty: there is nothing to save")
    if keep_latest < 1:
        raise InvalidArgumentError(f"keep_latest must be at least 1, got {keep_latest}")
    root = pathlib.Path(root)
    root.mkdir(parents=True, exist_ok=True)
    with _locked(root):
        saved = _save_shards(shards, freeze, unfreeze)
        directory = root / _next_name(root)
        directory.mkdir()
        try:
            parts = {}
            for index, path in saved.items():
                parts[index] = _add_part(directory, index, pathlib.Path(path))
            checkpoint = GroupCheckpoint(
                path=directory,
                group=group,
                epoch=epoch,
                slots=[dict(it) for it in slots],
                parts=parts,
                tables=[dict(it) for it in tables],
            )
            _publish(checkpoint)
        except BaseException:
            _delete(directory)
            raise
        _prune(root, group, keep_latest)
    return checkpoint


def latest(root: str | os.PathLike[str], group: str | None = None) -> GroupCheckpoint | None:
    """Returns the latest complete checkpoint of a group, or of any group; `None` if there is none.

    The directory need not exist.

    Raises:
      FailedPreconditionError: If the checkpoint is of another group.
      DataLossError: If its manifest is damaged, or if a part is missing; the text names shard and
        path.
    """
    complete = _complete(pathlib.Path(root))
    if not complete:
        return None
    checkpoint = read(complete[-1])
    if group is not None and checkpoint.group != group:
        raise FailedPreconditionError(
            f"{checkpoint.path} is a checkpoint of the group '{checkpoint.group}', not of "
            f"'{group}': each group needs a checkpoint_directory of its own"
        )
    checkpoint.check()
    return checkpoint


def has_complete(root: str | os.PathLike[str]) -> bool:
    """Whether a directory has a complete checkpoint of a group."""
    return bool(_complete(pathlib.Path(root)))


def shards_alone(root: str | os.PathLike[str]) -> dict[int, pathlib.Path]:
    """Returns the latest complete checkpoint that each shard saved by itself, by index.

    They are from different times. A group starts from them if it has no complete checkpoint. The
    directory need not exist.
    """
    found = {}
    for directory in pathlib.Path(root).glob("shard-*"):
        index = directory.name.removeprefix("shard-")
        complete = sorted(
            done.parent for done in directory.glob(f"*/{DONE}") if done.parent.name[0] != "."
        )
        if index.isdecimal() and complete:
            found[int(index)] = complete[-1]
    return dict(sorted(found.items()))


# ---- Saving --------------------------------------------------------------------------------------


def _save_shards(
    shards: Mapping[int, SavingShard],
    freeze: Callable[[], None] | None,
    unfreeze: Callable[[], None] | None,
) -> dict[int, str]:
    if freeze is not None:
        freeze()
    with concurrent.futures.ThreadPoolExecutor(len(shards), "save-shard") as pool:
        try:
            saves = {index: pool.submit(it.checkpoint) for index, it in sorted(shards.items())}
            without_snapshot = list(saves)
            while without_snapshot:
                time.sleep(_POLL_S)
                without_snapshot = [
                    index
                    for index in without_snapshot
                    if not (saves[index].done() or _has_snapshot(shards[index]))
                ]
        finally:
            if unfreeze is not None:
                unfreeze()
    failed = {index: error for index, it in saves.items() if (error := it.exception())}
    if failed:
        reasons = "; ".join(f"shard {index}: {error}" for index, error in failed.items())
        raise FailedPreconditionError(
            f"the group is not saved, because {len(failed)} of {len(shards)} shards could not save "
            f"({reasons}). Earlier checkpoints are kept"
        ) from next(iter(failed.values()))
    return {index: str(it.result()) for index, it in saves.items()}


def _has_snapshot(shard: SavingShard) -> bool:
    """Whether the shard has taken the snapshot that it saves."""
    try:
        status = shard.checkpoint_status()
    except Exception:
        return False  # The save will fail too, and has the error.
    return status.is_saving and status.items_total > 0


def _add_part(directory: pathlib.Path, index: int, checkpoint: pathlib.Path) -> Part:
    """Links the files of a shard's checkpoint into the directory of the group."""
    if not (checkpoint / DONE).exists():
        raise FailedPreconditionError(
            f"the group is not saved, because shard {index} saved {checkpoint}, which is not "
            "visible here: all shards and the directory of the group need storage that they share, "
            "under the same path. The shard itself will find it when it restarts there"
        )
    path = directory / f"shard-{index}" / checkpoint.name
    path.mkdir(parents=True)
    # `DONE` comes last: an unfinished copy is no checkpoint.
    for file in sorted(checkpoint.iterdir(), key=lambda file: file.name == DONE):
        _link_or_copy(file, path / file.name)
    _sync(path)
    _sync(path.parent)
    done = read_file(path / DONE)
    return Part(index, path.relative_to(directory).as_posix(), len(done), zlib.crc32(done))


def _link_or_copy(source: pathlib.Path, target: pathlib.Path) -> None:
    try:
        os.link(source, target)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        with open_file(source) as original, target.open("xb") as copy:
            shutil.copyfileobj(original, copy)
            copy.flush()
            os.fsync(copy.fileno())


def _publish(checkpoint: GroupCheckpoint) -> None:
    """Completes the checkpoint: syncs all parts to disk, then gives the manifest its name."""
    checkpoint.check()
    _sync(checkpoint.path)
    partial = checkpoint.path / f".{MANIFEST}"
    with partial.open("w", encoding="utf-8") as file:
        file.write(to_text(checkpoint))
        file.flush()
        os.fsync(file.fileno())
    partial.rename(checkpoint.path / MANIFEST)
    _sync(checkpoint.path)
    _sync(checkpoint.path.parent)


def _sync(path: pathlib.Path) -> None:
    file = os.open(path, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)


@contextlib.contextmanager
def _locked(root: pathlib.Path) -> Iterator[None]:
    """Keeps other processes from saving to a root. The lock ends with the process."""
    import fcntl  # Only on Unix, where servers run.

    try:
        opened = append_to_file(root / _LOCK)
    except OSError as error:
        raise FailedPreconditionError(f"{root} cannot be locked: {error}") from None
    with opened as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise FailedPreconditionError(
                f"another process saves the group to {root} now; try again when it is done"
            ) from None
        except OSError as error:
            _logger.warning(
                "%s cannot be locked, so two saves at the same time would not be noticed: %s",
                root,
                error,
            )
        yield


def _next_name(root: pathlib.Path) -> str:
    """A name for the present time, which sorts after all existing ones."""
    now = time.time_ns()
    name = _name_at(now)
    last = max((path.name for path in _directories(root)), default="")
    match = _NAME.fullmatch(last)
    if last >= name and match:  # The clock was set back.
        seconds = calendar.timegm(time.strptime(match[1], _TIME))
        name = _name_at(seconds * 10**9 + int(match[2]) + 1)
    return name


def _name_at(time_ns: int) -> str:
    seconds, rest = divmod(time_ns, 10**9)
    return f"{_PREFIX}{time.strftime(_TIME, time.gmtime(seconds))}.{rest:09d}Z"


# ---- Existing checkpoints ------------------------------------------------------------------------


def _directories(root: pathlib.Path) -> list[pathlib.Path]:
    """The directories of checkpoints, complete or not, oldest first."""
    try:
        entries = sorted(root.iterdir())
    except FileNotFoundError:
        return []
    return [path for path in entries if _NAME.fullmatch(path.name) and path.is_dir()]


def _complete(root: pathlib.Path) -> list[pathlib.Path]:
    return [path for path in _directories(root) if (path / MANIFEST).exists()]


def _prune(root: pathlib.Path, group: str, keep_latest: int) -> None:
    """Deletes older checkpoints of the group, and the remains of interrupted saves."""
    complete = _complete(root)
    unfinished = [path for path in _directories(root) if path not in complete]
    surplus = complete[:-keep_latest]
    for path in [it for it in unfinished if it < complete[-1]]:
        _delete(path)
    for path in surplus:
        try:
            is_ours = read(path).group == group
        except (DataLossError, FailedPreconditionError) as error:
            _logger.warning("%s is kept: %s", path, error)
            continue
        if is_ours:
            _delete(path)


def _delete(directory: pathlib.Path) -> None:
    """Deletes the files of a checkpoint that this module wrote, the manifest first."""
    try:
        for name in (MANIFEST, f".{MANIFEST}"):
            (directory / name).unlink(missing_ok=True)
        for shard in sorted(directory.glob("shard-*")):
            for checkpoint in sorted(shard.iterdir()):
                for name in reversed(_FILES):
                    (checkpoint / name).unlink(missing_ok=True)
                checkpoint.rmdir()
            shard.rmdir()
        directory.rmdir()
    except OSError as error:
        _logger.warning("%s cannot be deleted: %s", directory, error)
