# SPDX-License-Identifier: Apache-2.0
"""The only module that imports Ray."""

import importlib
from collections.abc import Mapping

from reverb.adapters.library import imported

__all__ = ["free_resources", "ray"]

ray = imported("ray", "ray", "Ray", "ray>=2.40")


def free_resources() -> Mapping[str, Mapping[str, float]]:
    """Returns the free resources of each node by its id; empty if Ray does not report them."""
    try:
        # Ray has no public API for this; its own libraries use this name.
        state = importlib.import_module("ray._private.state")
        return state.available_resources_per_node()
    except (ImportError, AttributeError):
        return {}
