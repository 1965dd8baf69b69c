# SPDX-License-Identifier: Apache-2.0
"""PyTorch and TensorDict, which tensors of TransferQueue's interface are made of, and msgpack."""

from reverb.adapters.library import imported

__all__ = ["msgpack", "tensordict", "torch"]

_REQUIREMENT = "tensordict>=0.10"
tensordict = imported("tensordict", "transfer_queue", "TensorDict", _REQUIREMENT, "torch")
torch = imported("torch", "transfer_queue", "PyTorch", "torch>=2.3")
msgpack = imported("msgpack", "transfer_queue", "msgpack", "msgpack>=1.0")
