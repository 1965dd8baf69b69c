# SPDX-License-Identifier: Apache-2.0
"""The only module that imports PyTorch."""

from typing import Any

from reverb.adapters.library import imported

__all__ = ["import_tensordict", "torch"]

torch = imported("torch", "torch", "PyTorch", "torch>=2.3")


def import_tensordict() -> Any:
    """Returns the module `tensordict`.

    Raises:
      ModuleNotFoundError: If it is not installed; the text says what to install.
    """
    return imported("tensordict", "torch", "TensorDict for output='tensordict'", "tensordict")
