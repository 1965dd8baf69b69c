# SPDX-License-Identifier: Apache-2.0
"""Starts groups of replay servers on a Ray cluster, and finds them again."""

import contextlib
import math
import operator
import os
import pathlib
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import reverb
from reverb.adapters.ray.directory_actor import DirectoryActor
from reverb.adapters.ray.engine import ray
from reverb.adapters.ray.group_settings import GroupSettings
from reverb.adapters.ray.group_status import GroupStatus
from reverb.adapters.ray.names import (
    NAMESPACE,
    ask_directory,
    check_group_name,
    check_initialized,
    directory_name,
    find_directory,
    result_of,
    shard_indices,
    shard_name,
)
from reverb.adapters.ray.placement import check_placement, default_num_shards, nodes_of
from reverb.errors import (
    FailedPreconditionError,
    InvalidArgumentError,
    ReverbError,
    UnavailableError,
)
from reverb.shown_text import shown

__all__ = ["Group", "connect", "get_group", "start"]

MAX_PORT = 65_535
# How long a call waits while Ray restarts the directory.
_RESTART_S = 60.0
_RETRY_S = 0.2
# How long starting shards may take, in milliseconds.
_START_MS = 300_000


class Group:
    """A group of replay servers on a Ray cluster. It stays when this object is deleted.

    May be pickled and sent to other processes of the Ray cluster.

    Attributes:
      name: Name of the group.
    """

    def __init__(self, name: str) -> None:
        self.name = name

    def client(self, **options: Any) -> reverb.Client:
        """Makes a client of the group.

        It may be pickled and used outside the Ray cluster. The servers report changes of
        the group to it.

        Args:
          **options: Further arguments of `reverb.Client`.
        """
        return reverb.Client(self.address, **options)

    @property
    def address(self) -> str:
        """The address for clients, with those of all shards."""
        return self._ask("address", timeout_s=_RESTART_S)

    def status(self) -> GroupStatus:
        """Asks all shards for their status; waits at most a second for silent ones."""
        return self._ask("status", timeout_s=_RESTART_S)

    def checkpoint(self) -> str:
        """Saves the group: a checkpoint of each shard, and a manifest when all are complete.

        Blocks until that is done. Inserts and samples continue.

        Returns:
          The directory of the checkpoint.

        Raises:
          FailedPreconditionError: If the group has no `checkpoint_directory`, or if a shard cannot
            save (the text names it). Earlier checkpoints stay.
        """
        return self._ask("checkpoint", timeout_s=None, retry=False)

    def add_shards(self, count: int, *, timeout_ms: int | None = _START_MS) -> list[int]:
        """Adds shards, which take slots of the others for new items. No items are moved.

        Blocks until they serve. The sizes of the tables stay those of the whole group, so every
        shard gets a smaller part.

        Args:
          count: Number of shards to add.
          timeout_ms: How long to wait for them, in milliseconds; `None`: no limit.

        Returns:
          Indices of the new shards.

        Raises:
          InvalidArgumentError: If `count` is below 1.
          ResourceExhaustedError: If no node has room for one; the text says which resources are
            missing on which node.
          DeadlineExceededError: If they do not start in time; they are removed again.
        """
        count = operator.index(count)
        _check_at_least_one("count", count)
        limit_s = _seconds(timeout_ms)
        return self._ask("add_shards", count, limit_s, timeout_s=None, retry=False)

    def drain(self, shard: int | str, *, wait_s: float = 60.0) -> int:
        """Removes a shard from the group, and moves its items to the others.

        First, writers leave it at the end of their episodes; it does not wait for writers that have
        sent nothing for two seconds. Then its items are sent to the other shards, with their keys,
        priorities and counts, while sampling continues. Then the others own its slots, and its
        process ends. Remaining writers send their unconfirmed items again to other shards. Updates
        of priorities that arrive while the items are in transit may be lost.

        Blocks until that is done.

        Args:
          shard: Index of the shard, or "shard-<index>".
          wait_s: How long to wait at most for active writers, in seconds.

        Returns:
          Number of moved items.

        Raises:
          InvalidArgumentError: If the group has no such shard.
          FailedPreconditionError: If no other shard would be left, or if the shard lives in a
            process of the program.
          UnavailableError: If a shard died meanwhile. Then the drained shard stays in the group,
            and some of its items may be in two shards.
        """
        if isinstance(shard, str):
            number = shard.removeprefix("shard-")
            if not number.isdecimal():
                raise InvalidArgumentError(
                    f"shard must be a number or 'shard-<number>', got {shard!r}"
                )
            shard = int(number)
        index = operator.index(shard)
        return self._ask("drain", index, float(wait_s), timeout_s=None, retry=False)

    def stop(self, *, checkpoint: bool = False) -> None:
        """Ends the group: all its servers, and the directory.

        Stores have all that was confirmed; the next group of this name starts with it.

        Args:
          checkpoint: Whether to save the group first. If that fails, the group is not stopped.

        Raises:
          FailedPreconditionError: If the group could not be saved.
        """
        if checkpoint:
            self.checkpoint()
        with contextlib.suppress(ReverbError):  # It may have ended before.
            self._ask("stop_shards", timeout_s=_RESTART_S)
        _end(self.name)

    def _ask(
        self, method: str, *arguments: Any, timeout_s: float | None, retry: bool = True
    ) -> Any:
        deadline = time.monotonic() + _RESTART_S
        while True:
            try:
                return ask_directory(self.name, method, *arguments, timeout_s=timeout_s)
            except UnavailableError:
                if not retry or time.monotonic() > deadline:
                    raise
            time.sleep(_RETRY_S)

    @shown
    def __repr__(self) -> str:
        return f"Group(name={self.name!r})"


def start(
    make_tables: Callable[[], Sequence[reverb.Table]],
    *,
    num_shards: int | None = None,
    name: str = "replay",
    placement: str | Sequence[str] = "spread",
    checkpoint_directory: str | os.PathLike[str] | None = None,
    checkpoint_interval_s: float | None = None,
    keep_latest: int = 1,
    store_directory: str | os.PathLike[str] | None = None,
    store_max_bytes: int | str | None = None,
    resources_per_shard: Mapping[str, Any] | None = None,
    base_port: int | None = None,
    server_options: Mapping[str, Any] | None = None,
    runtime_env: Mapping[str, Any] | None = None,
    timeout_ms: int | None = _START_MS,
) -> Group:
    """Starts a group of replay servers on the Ray cluster that this process is connected to.

    Blocks until all shards serve. The group stays when the program ends; `Group.stop` ends it. Ray
    restarts a shard that dies. On its node it has its tables from its store; without one, or on
    another node, from its own latest checkpoint.

    A group starts with the stores that the last one of its name has left on the nodes: a shard goes
    to the node with the newest store of it. Shards without a store start from the latest checkpoint
    of the group in `checkpoint_directory`.

    Args:
      make_tables: Makes the tables, with sizes and rate limiters of the whole group. Called once in
        the process of each shard, which uses its part of them. Must return the same tables each
        time.
      num_shards: Number of shards; `None`: as many as `placement` has nodes.
      name: Name of the group on the Ray cluster: 1 to 32 characters of A-Z, a-z, 0-9, `_`, `-`,
        `.`.
      placement: Distribution of the shards over the nodes that have room for them now. "spread":
        evenly over all nodes. "per_node": one on each node. "with:<resource>": evenly over the
        nodes that have this resource of Ray. A list of ids of nodes: evenly over these. A shard
        restarts on its node if that is alive, else on another.
      checkpoint_directory: Absolute path of a directory that all nodes share under this path.
        `None`: nothing is saved, and a shard that dies restarts with its store, or empty.
      checkpoint_interval_s: Interval of saves of the group, in seconds; `None`: `Group.checkpoint`
        only.
      keep_latest: Number of checkpoints of the group to keep, at least 1.
      store_directory: Absolute path of a directory on a local disk of each node, made if it is
        missing. Shard `i` keeps a `reverb.Store` in `<store_directory>/<name>-<i>`. If its process
        dies, at most two seconds' worth of confirmed inserts are lost. `None`: no stores.
      store_max_bytes: Size of the store of each shard on disk, for example "200GiB"; the shards of
        a node need the sum. Tables larger than memory need `max_bytes` in `server_options`, too.
        `None`: the size of the file system less 5 %, for nodes with one shard.
      resources_per_shard: Resources that Ray reserves for each shard: `num_cpus` (default: 1),
        `memory` in bytes, `resources`.
      base_port: Shard `i` listens on port `base_port + i`; `None`: any free port, which a shard
        keeps when it restarts on the same node.
      server_options: More arguments of each `reverb.Server`, such as `tls`, `tokens`, `limits`.
      runtime_env: Ray's runtime environment of the servers, for example with `env_vars`.
      timeout_ms: How long to wait for the shards, which load their checkpoints meanwhile, in
        milliseconds; `None`: no limit.

    Raises:
      InvalidArgumentError: If an argument is out of its range, or if the tables differ between
        shards; the text names shard, table and field.
      FailedPreconditionError: If there is a group of this name, if a shard cannot start, for
        example because its store cannot be used (the text names shard and node), or if the
        checkpoint or the stores are of another number of shards.
      DataLossError: If a part of the checkpoint is missing; the text names shard and path.
      ResourceExhaustedError: If the nodes have no room for so many shards; for resources that
        others use, it waits ten seconds first. The text says what is missing on which node.
      DeadlineExceededError: If a shard does not start in time; the text names it.
    """
    check_initialized()
    check_group_name(name)
    check_placement(placement)
    limit_s = _seconds(timeout_ms)
    nodes = nodes_of(ray.nodes(), {})
    if num_shards is None:
        num_shards = default_num_shards(placement, nodes)
        if num_shards is None:
            raise InvalidArgumentError(
                f"num_shards must be given with placement={placement!r}; only 'per_node' and a "
                "list of nodes define the number of shards"
            )
    num_shards = operator.index(num_shards)
    _check_at_least_one("num_shards", num_shards)
    _check_at_least_one("keep_latest", operator.index(keep_latest))
    if base_port is not None and not 1 <= operator.index(base_port) <= MAX_PORT - num_shards + 1:
        raise InvalidArgumentError(
            f"base_port must be from 1 to {MAX_PORT - num_shards + 1} with {num_shards} shards, "
            f"got {base_port}"
        )
    if checkpoint_interval_s is not None and not checkpoint_interval_s > 0:
        raise InvalidArgumentError(
            f"checkpoint_interval_s must be above 0, got {checkpoint_interval_s}"
        )
    if checkpoint_interval_s is not None and checkpoint_directory is None:
        raise InvalidArgumentError(
            "checkpoint_interval_s needs checkpoint_directory, got checkpoint_directory=None"
        )
    if store_max_bytes is not None and store_directory is None:
        raise InvalidArgumentError(
            f"store_max_bytes needs store_directory, got {store_max_bytes!r} with "
            "store_directory=None"
        )
    stores = _absolute("store_directory", store_directory)
    server_options = dict(server_options or {})
    if "store" in server_options:
        raise InvalidArgumentError(
            "server_options must not have 'store', which all shards would share: use "
            "store_directory, where each shard has a store of its own"
        )
    settings = GroupSettings(
        name=name,
        run=uuid.uuid4().hex[:12],
        pickled_tables=GroupSettings.pickle_tables(make_tables),
        num_shards=num_shards,
        placement=placement if isinstance(placement, str) else list(placement),
        resources={"num_cpus": 1} | dict(resources_per_shard or {}),
        checkpoint_directory=_absolute("checkpoint_directory", checkpoint_directory),
        checkpoint_interval_s=checkpoint_interval_s,
        keep_latest=operator.index(keep_latest),
        stores=reverb.Store(stores, max_bytes=store_max_bytes) if stores else None,
        base_port=base_port,
        server_options=server_options,
        scheme="shards:///" if server_options.get("tls") is None else "shards+grpcs:///",
        runtime_env=runtime_env,
    )
    _refuse_second(name)
    _end(name)  # Shards that lost their directory for good.
    directory = _create_directory(settings, nodes[0].node_id)
    try:
        what = f"the directory of group '{name}'"
        answer_s = None if math.isinf(limit_s) else limit_s + _RESTART_S
        result_of(directory.begin.remote(limit_s), answer_s, what)
    except BaseException:
        _end(name)
        raise
    return Group(name)


def get_group(name: str) -> Group:
    """Returns a group that was started on this Ray cluster before.

    Raises:
      FailedPreconditionError: If there is no such group, or if this process is not connected to a
        Ray cluster.
    """
    find_directory(name)
    return Group(name)


def connect(name: str, **options: Any) -> reverb.Client:
    """Makes a client of a group on this Ray cluster.

    Args:
      name: Name of the group.
      **options: Further arguments of `reverb.Client`.

    Raises:
      FailedPreconditionError: If there is no such group, or if this process is not connected to a
        Ray cluster.
    """
    return get_group(name).client(**options)


def _create_directory(settings: GroupSettings, head: str) -> Any:
    affinity = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy
    actor = ray.remote(DirectoryActor).options(
        name=directory_name(settings.name),
        namespace=NAMESPACE,
        lifetime="detached",
        max_restarts=-1,
        max_concurrency=64,
        num_cpus=0,
        # If the head node ends, so does the cluster.
        scheduling_strategy=affinity(head, soft=True),
        runtime_env=settings.runtime_env,
    )
    try:
        return actor.remote(settings)
    except ValueError:  # Another program was faster.
        raise _second(settings.name) from None


def _refuse_second(name: str) -> None:
    try:
        ray.get_actor(directory_name(name), namespace=NAMESPACE)
    except ValueError:
        return
    raise _second(name)


def _second(name: str) -> FailedPreconditionError:
    return FailedPreconditionError(
        f"there is a group '{name}' on this Ray cluster already: connect('{name}') makes a client "
        f"of it, get_group('{name}').stop() ends it; another group needs another name"
    )


def _end(name: str) -> None:
    """Ends a group in any state; the directory first, so that it starts no more shards."""
    try:
        directory = ray.get_actor(directory_name(name), namespace=NAMESPACE)
        ray.kill(directory, no_restart=True)
    except ValueError:
        pass  # It is gone.
    for index in shard_indices(name):
        try:
            ray.kill(ray.get_actor(shard_name(name, index), namespace=NAMESPACE), no_restart=True)
        except ValueError:
            continue


def _absolute(argument: str, path: str | os.PathLike[str] | None) -> str:
    if path is None:
        return ""
    if not pathlib.PurePath(path).is_absolute():
        raise InvalidArgumentError(
            f"{argument} must be an absolute path, the same on all nodes, got {path!r}"
        )
    return os.fspath(path)


def _seconds(timeout_ms: int | None) -> float:
    """Returns a timeout of milliseconds in seconds; infinite for `None`.

    Raises:
      InvalidArgumentError: If it is below 0.
    """
    if timeout_ms is None:
        return math.inf
    if (value := operator.index(timeout_ms)) < 0:
        raise InvalidArgumentError(
            "timeout_ms must be a number of milliseconds of at least 0, or None for no limit, got "
            f"{value}"
        )
    return value / 1_000


def _check_at_least_one(name: str, value: int) -> None:
    if value < 1:
        raise InvalidArgumentError(f"{name} must be at least 1, got {value}")
