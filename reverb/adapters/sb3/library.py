# SPDX-License-Identifier: Apache-2.0
"""The only module that imports Stable-Baselines3."""

import importlib
from typing import Any

from reverb.adapters.library import imported

__all__ = ["buffers", "spaces", "type_aliases"]

_SB3 = ("sb3", "Stable-Baselines3", "stable-baselines3>=2.4")

buffers = imported("stable_baselines3.common.buffers", *_SB3)
type_aliases = imported("stable_baselines3.common.type_aliases", *_SB3)
spaces: Any = importlib.import_module("gymnasium.spaces")
