# SPDX-License-Identifier: Apache-2.0
"""Programs of the repository, outside the package, as modules."""

import contextlib
import importlib
import pathlib
import sys
from collections.abc import Iterator
from types import ModuleType

import pytest

ROOT = pathlib.Path(__file__).parents[2]


@contextlib.contextmanager
def program_as_module(name: str) -> Iterator[ModuleType]:
    """The program at a path from the root, such as `tools/x.py`; it finds the modules beside it.

    Afterwards all of them are forgotten, because their names are not those of a package.
    """
    path = ROOT / name
    before = set(sys.modules)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(path.parent)
        try:
            yield importlib.import_module(path.stem)
        finally:
            for new in sys.modules.keys() - before:
                file = getattr(sys.modules[new], "__file__", None)
                if file and pathlib.Path(file).parent == path.parent:
                    del sys.modules[new]
