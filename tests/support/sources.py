# SPDX-License-Identifier: Apache-2.0
"""The sources of a wheel."""

import pathlib

ROOT = pathlib.Path(__file__).parents[2]


def newest_source_time() -> float:
    """When a file that goes into the wheel was last changed."""
    sources = [ROOT / "pyproject.toml", ROOT / "LICENSE", ROOT / "README.md"]
    sources += (ROOT / "tools" / "build_backend.py", ROOT / "Cargo.toml", ROOT / "Cargo.lock")
    sources += (
        path for path in (ROOT / "reverb").rglob("*") if path.suffix in (".py", ".pyi", ".rs")
    )
    return max(path.stat().st_mtime for path in sources)
