# SPDX-License-Identifier: Apache-2.0
"""Import paths of dm-reverb: the protobuf modules."""

import importlib as _importlib
from typing import Any as _Any


def __getattr__(name: str) -> _Any:
    # With dm-reverb they are available after a plain `import reverb`.
    if name in ("patterns_pb2", "schema_pb2"):
        return _importlib.import_module(f"reverb.cc.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
