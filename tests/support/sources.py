# SPDX-License-Identifier: Apache-2.0
"""The sources of a wheel."""

import pathlib
import sys
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    from pip._vendor import tomli as tomllib

ROOT = pathlib.Path(__file__).parents[2]


def project() -> dict[str, Any]:
    """The table `project` of `pyproject.toml`."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def extra_of(adapter: str) -> str:
    """The extra for an adapter; it has the name of the library on PyPI."""
    return {"transfer_queue": "transferqueue"}.get(adapter, adapter.replace("_", "-"))


def newest_source_time() -> float:
    """When a file that goes into the wheel was last changed."""
    sources = [ROOT / "pyproject.toml", ROOT / "LICENSE", ROOT / "README.md"]
    sources += (ROOT / "tools" / "build_backend.py", ROOT / "Cargo.toml", ROOT / "Cargo.lock")
    sources += (
        path for path in (ROOT / "reverb").rglob("*") if path.suffix in (".py", ".pyi", ".rs")
    )
    return max(path.stat().st_mtime for path in sources)
