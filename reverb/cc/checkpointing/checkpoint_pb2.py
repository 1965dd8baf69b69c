# SPDX-License-Identifier: Apache-2.0
"""The messages of `checkpoint.proto` under their old import path."""

from typing import Any

from reverb.core import protos as _protos

DESCRIPTOR = _protos.file_descriptor("checkpoint.proto")

globals().update(_protos.messages_of("checkpoint.proto"))


def __getattr__(name: str) -> Any:  # Reached for unknown names only; type checkers read it too.
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
