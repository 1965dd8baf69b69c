# SPDX-License-Identifier: Apache-2.0
"""Old import paths of private modules that moved. They are kept for one release."""

import importlib
import sys

# Old path: new path.
MOVED = {
    "reverb.column_nest": "reverb._nests.column_nest",
    "reverb.dtypes": "reverb._nests.dtypes",
    "reverb.nest_writer": "reverb._nests.nest_writer",
    "reverb.server_executable.text_places": "reverb.server_executable.field_positions",
    "reverb.structured_value": "reverb._nests.structured_value",
}


def alias_old_paths() -> None:
    """Makes each old path a second name of the module at the new path."""
    for old, new in MOVED.items():
        module = importlib.import_module(new)
        sys.modules[old] = module
        parent, _, name = old.rpartition(".")
        setattr(importlib.import_module(parent), name, module)
