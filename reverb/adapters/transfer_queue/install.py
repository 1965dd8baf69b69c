# SPDX-License-Identifier: Apache-2.0
"""Puts this module in the place of `transfer_queue`; importing this file does it, too."""

import importlib
import sys

__all__ = ["install"]

_OURS = "reverb.adapters.transfer_queue"
# Modules of TransferQueue that programs import names from.
_MODULES = ("client", "interface", "metadata", "storage", "storage.simple_storage")


def install() -> None:
    """Makes `import transfer_queue` give this module, in this process.

    Call it before the program imports `transfer_queue`: names that were imported stay.
    """
    sys.modules["transfer_queue"] = importlib.import_module(_OURS)
    for name in _MODULES:
        sys.modules[f"transfer_queue.{name}"] = importlib.import_module(f"{_OURS}.{name}")


install()
