# SPDX-License-Identifier: Apache-2.0
"""Imports the libraries of formats, on first use."""

import importlib
from typing import Any

from reverb import errors

__all__ = ["library"]


def library(name: str, requirement: str, format_: str, module: str | None = None) -> Any:
    """Imports a package, or a module of it, for a format; `requirement` is that of the extra.

    Raises:
      FailedPreconditionError: If it cannot be imported; the text has the line to type.
    """
    try:
        return importlib.import_module(module or name)
    except ImportError as error:
        raise errors.FailedPreconditionError(
            f"the format {format_} needs {name}, which cannot be imported ({error}); "
            f"pip install '{requirement}'"
        ) from None
