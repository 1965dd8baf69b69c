# SPDX-License-Identifier: Apache-2.0
"""The only module that imports Ray."""

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
        "reverb.adapters.ray needs Ray, which is not installed: pip install 'ray>=2.40'",
        name="ray",
    )


# `Any`, because type checkers take the package `reverb.adapters.ray` for Ray.
ray: Any = _import_ray()


def free_resources() -> Mapping[str, Mapping[str, float]]:
    """Returns the free resources of each node by its id; empty if Ray does not report them."""
    try:
        # Ray has no public API for this; its own libraries use this name.
        state = importlib.import_module("ray._private.state")
        return state.available_resources_per_node()
    except (ImportError, AttributeError):
        return {}
