# SPDX-License-Identifier: Apache-2.0
"""Old import paths of the protobuf modules."""

import importlib as _importlib
from typing import Any as _Any


def __getattr__(name: str) -> _Any:
    # Programs for the original find them after a plain `import reverb`.
    if name in ("patterns_pb2", "schema_pb2"):
        return _importlib.import_module(f"reverb.cc.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
