# SPDX-License-Identifier: Apache-2.0
"""Imports the libraries of adapters."""

import importlib
from typing import Any

__all__ = ["imported"]


def imported(module: str, adapter: str, name: str, requirement: str, *others: str) -> Any:
    """Imports a library, or a module of it; `others` are libraries that it needs.

    The result is `Any`: type checkers would confuse an adapter with the library of its name.

    Raises:
      ModuleNotFoundError: If one is not installed; the text has the line to type.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing not in (module.partition(".")[0], *others):
            raise
    raise ModuleNotFoundError(
        f"reverb.adapters.{adapter} needs {name}, which is not installed: "
        f"pip install '{requirement}'",
        name=missing,
    )
