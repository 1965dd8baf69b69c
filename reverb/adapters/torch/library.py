# SPDX-License-Identifier: Apache-2.0
"""The only module that imports PyTorch."""

import importlib
from typing import Any

__all__ = ["import_tensordict", "torch"]


def _import(module: str, name: str, requirement: str) -> Any:
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name != module:
            raise
    raise ModuleNotFoundError(
        f"reverb.adapters.torch needs {name}, which is not installed: pip install '{requirement}'",
        name=module,
    )


# Type checkers would confuse this package with PyTorch.
torch: Any = _import("torch", "PyTorch", "torch>=2.3")


def import_tensordict() -> Any:
    """Returns the module `tensordict`.

    Raises:
      ModuleNotFoundError: If it is not installed; the text says what to install.
    """
    return _import("tensordict", "TensorDict for output='tensordict'", "tensordict")
