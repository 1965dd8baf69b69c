# SPDX-License-Identifier: Apache-2.0
"""The one place that imports Ray."""

import importlib
from collections.abc import Mapping
from typing import Any

__all__ = ["free_resources", "ray"]


def _import_ray() -> Any:
    try:
        return importlib.import_module("ray")
    except ModuleNotFoundError as error:
        if error.name != "ray":
            raise
    raise ModuleNotFoundError(
        "reverb.adapters.ray needs Ray, which is not installed: pip install 'reverb-replay[ray]'",
        name="ray",
    )


# Type checkers would take the package that this file is in for Ray.
ray: Any = _import_ray()


def free_resources() -> Mapping[str, Mapping[str, float]]:
    """Returns what nobody uses on each node, by its id; empty if this Ray does not tell it."""
    try:
        # Ray has no public name for it; its own libraries use this one.
        state = importlib.import_module("ray._private.state")
        return state.available_resources_per_node()
    except (ImportError, AttributeError):
        return {}
