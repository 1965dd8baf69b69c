# SPDX-License-Identifier: Apache-2.0
"""The only module that imports Gymnasium."""

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
        "pip install 'gymnasium>=1.0'",
        name="gymnasium",
    )


# Type checkers would confuse this package with Gymnasium.
gymnasium: Any = _import_gymnasium()
