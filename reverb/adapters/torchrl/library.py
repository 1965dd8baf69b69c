# SPDX-License-Identifier: Apache-2.0
"""The only module that imports TorchRL, TensorDict and PyTorch."""

from reverb.adapters.library import imported

__all__ = ["as_one_step", "samplers", "storages", "tensordict", "torch", "torchrl_data", "writers"]

_TORCHRL = ("torchrl", "TorchRL", "torchrl>=0.11", "tensordict", "torch")

torchrl_data = imported("torchrl.data", *_TORCHRL)
samplers = imported("torchrl.data.replay_buffers.samplers", *_TORCHRL)
storages = imported("torchrl.data.replay_buffers.storages", *_TORCHRL)
writers = imported("torchrl.data.replay_buffers.writers", *_TORCHRL)
tensordict = imported("tensordict", *_TORCHRL)
torch = imported("torch", *_TORCHRL)
# Excludes a call from `torch.compile`: calls of a server have nothing to compile, and changing
# values in them would cause recompilations.
as_one_step = torch.compiler.disable
