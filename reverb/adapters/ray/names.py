# SPDX-License-Identifier: Apache-2.0
"""Names of a group's actors, and calls of actors."""

import re
from typing import Any

from reverb.adapters.ray.engine import ray
from reverb.errors import (
    DeadlineExceededError,
    FailedPreconditionError,
    InvalidArgumentError,
    UnavailableError,
)

NAMESPACE = "reverb"
"""Ray's namespace of all groups, so that every program of the cluster finds them."""

DESCRIBE_TIMEOUT_S = 5.0
"""How long a shard may take to report its status."""

POLL_S = 0.05

_GROUP_NAME = re.compile(r"[A-Za-z0-9_.-]{1,32}")


def check_group_name(name: str) -> str:
    """Returns the name.

    Raises:
      InvalidArgumentError: If it is not allowed.
    """
    if not isinstance(name, str) or not _GROUP_NAME.fullmatch(name):
        raise InvalidArgumentError(
            f"name must have 1 to 32 characters of A-Z, a-z, 0-9, '_', '-', '.', got {name!r}"
        )
    return name


def directory_name(group: str) -> str:
    """Returns the name of a group's directory actor."""
    return f"reverb:{group}"


def shard_name(group: str, index: int) -> str:
    """Returns the name of the actor of a shard."""
    return f"reverb:{group}:shard-{index}"


def shard_indices(group: str) -> list[int]:
    """Returns the indices of a group's shards that are actors of Ray."""
    prefix = f"reverb:{group}:shard-"
    return sorted(
        int(actor["name"].removeprefix(prefix))
        for actor in ray.util.list_named_actors(all_namespaces=True)
        if actor["namespace"] == NAMESPACE and actor["name"].startswith(prefix)
    )


def group_names() -> list[str]:
    """Returns the names of the groups on this Ray cluster."""
    return sorted(
        actor["name"].removeprefix("reverb:")
        for actor in ray.util.list_named_actors(all_namespaces=True)
        if actor["namespace"] == NAMESPACE and actor["name"].count(":") == 1
    )


def check_initialized() -> None:
    """Checks that this process belongs to a Ray cluster.

    Raises:
      FailedPreconditionError: If it does not.
    """
    if not ray.is_initialized():
        raise FailedPreconditionError(
            "this process is not connected to a Ray cluster: call ray.init() first"
        )


def find_directory(group: str) -> Any:
    """Returns the handle of a group's directory actor.

    Raises:
      FailedPreconditionError: If there is no such group; the text names the existing ones.
    """
    check_initialized()
    check_group_name(group)
    try:
        return ray.get_actor(directory_name(group), namespace=NAMESPACE)
    except ValueError:
        raise FailedPreconditionError(
            f"there is no group '{group}' on this Ray cluster; groups: {group_names()}"
        ) from None


def ask_directory(group: str, method: str, *arguments: Any, timeout_s: float | None) -> Any:
    """Calls a method of a group's directory actor; raises as `find_directory` and `result_of`."""
    call = getattr(find_directory(group), method).remote(*arguments)
    return result_of(call, timeout_s, f"the directory of group '{group}'")


def result_of(reference: Any, timeout_s: float | None, what: str) -> Any:
    """Waits for the result of an actor's method; raises its errors unchanged.

    Raises:
      DeadlineExceededError: If it does not answer in time.
      UnavailableError: If the actor has died.
    """
    try:
        return ray.get(reference, timeout=timeout_s)
    except ray.exceptions.GetTimeoutError:
        raise DeadlineExceededError(f"{what} did not answer within {timeout_s} s") from None
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, Exception):
            raise error.cause from None
        raise
    except ray.exceptions.RayError as error:
        raise UnavailableError(f"{what} cannot be reached: {error}") from None
