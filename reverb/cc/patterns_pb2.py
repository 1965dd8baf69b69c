# SPDX-License-Identifier: Apache-2.0
"""Import path of dm-reverb: the messages of `patterns.proto`."""

from typing import Any

from reverb.core import protos as _protos

DESCRIPTOR = _protos.file_descriptor("patterns.proto")

globals().update(_protos.messages_of("patterns.proto"))


def __getattr__(name: str) -> Any:  # Reached for unknown names only; type checkers read it too.
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
