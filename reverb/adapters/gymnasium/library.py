# SPDX-License-Identifier: Apache-2.0
"""The one place that imports Gymnasium."""

import importlib
from typing import Any

__all__ = ["gymnasium"]


def _import_gymnasium() -> Any:
    try:
        return importlib.import_module("gymnasium")
    except ModuleNotFoundError as error:
        if error.name != "gymnasium":
            raise
    raise ModuleNotFoundError(
        "reverb.adapters.gymnasium needs Gymnasium, which is not installed: "
        "pip install 'reverb-replay[gymnasium]'",
        name="gymnasium",
    )


# Type checkers would take the package that this file is in for Gymnasium.
gymnasium: Any = _import_gymnasium()
