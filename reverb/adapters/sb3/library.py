# SPDX-License-Identifier: Apache-2.0
"""The only module that imports Stable-Baselines3."""

import importlib
from typing import Any

__all__ = ["buffers", "spaces", "type_aliases"]


def _import(module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "stable_baselines3":
            raise
    raise ModuleNotFoundError(
        "reverb.adapters.sb3 needs Stable-Baselines3, which is not installed: "
        "pip install 'stable-baselines3>=2.4'",
        name="stable_baselines3",
    )


buffers: Any = _import("stable_baselines3.common.buffers")
type_aliases: Any = _import("stable_baselines3.common.type_aliases")
spaces: Any = importlib.import_module("gymnasium.spaces")
