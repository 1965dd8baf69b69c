# SPDX-License-Identifier: Apache-2.0
"""The only module that imports TorchRL, TensorDict and PyTorch."""

import importlib
from typing import Any

__all__ = ["as_one_step", "samplers", "storages", "tensordict", "torch", "torchrl_data", "writers"]


def _import(module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing not in ("torchrl", "tensordict", "torch"):
            raise
    raise ModuleNotFoundError(
        "reverb.adapters.torchrl needs TorchRL, which is not installed: "
        "pip install 'torchrl>=0.11'",
        name=missing,
    )


torchrl_data: Any = _import("torchrl.data")
samplers: Any = _import("torchrl.data.replay_buffers.samplers")
storages: Any = _import("torchrl.data.replay_buffers.storages")
writers: Any = _import("torchrl.data.replay_buffers.writers")
tensordict: Any = _import("tensordict")
torch: Any = _import("torch")
# Excludes a call from `torch.compile`: calls of a server have nothing to compile, and changing
# values in them would cause recompilations.
as_one_step: Any = torch.compiler.disable
