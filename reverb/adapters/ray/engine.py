# SPDX-License-Identifier: Apache-2.0
"""The one place that imports Ray."""

import importlib
from typing import Any

__all__ = ["ray"]


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
