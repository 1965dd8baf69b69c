# SPDX-License-Identifier: Apache-2.0
"""Runs the nets, or the tests of parts of the package.

    .venv/bin/python tools/part_tests.py nets
    .venv/bin/python tools/part_tests.py core/shards cluster

Nets find a place that a change forgot: `tests/package`, and the tests that CONTRIBUTING.md names
under "Forgotten places". Parts and the rooms of their tests are a table in `tests/README.md`.
"""

from __future__ import annotations

import pathlib
import re
import subprocess
import sys
from collections.abc import Sequence

import rust_tests
from pytest_runs import ROOT, Pytest


def main() -> int:
    """Returns 0 if the tests passed."""
    parts = sys.argv[1:]
    if parts == ["nets"]:
        rust, files, names = nets()
        binaries = rust_tests.compiled()
        for status, output in [binary.run_all(*rust) for binary in binaries or ()]:
            if status != 0:
                print(output)
                return 1
        passed = binaries and pytest(["tests/package"]) and pytest(files, "-k", " or ".join(names))
        return 0 if passed else 1
    rooms_of = rooms_of_parts()
    if not parts or not set(parts) <= set(rooms_of):
        raise SystemExit(f"Name parts of the table in tests/README.md: {', '.join(rooms_of)}")
    for manifest in (ROOT / "reverb" / part / "Cargo.toml" for part in parts):
        tests = ["cargo", "test", "--manifest-path", str(manifest), "--lib", "--tests"]
        if manifest.exists() and subprocess.run(tests, check=False).returncode != 0:
            return 1
    rooms = sorted({room for part in parts for room in rooms_of[part]})
    here = [f"tests/{room}" for room in rooms if not room.startswith("with_")]
    if elsewhere := [room for room in rooms if room.startswith("with_")]:
        print(f"Not run here: {', '.join(elsewhere)}; tests/README.md has their commands.")
    return 0 if not here or pytest(here) else 1


def pytest(tests: Sequence[str], *options: str) -> bool:
    """Runs tests that are fast; returns whether they passed."""
    python = pathlib.Path(sys.executable)
    return Pytest("nets", python, options).run(tests, "not slow and not conformance").passed


def nets() -> tuple[list[str], list[str], list[str]]:
    """Returns names of Rust tests, files of Python tests, and names of tests in these."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    paragraphs = "".join(re.findall(r"^Forgotten places:.*?\n\n", text, re.MULTILINE | re.DOTALL))
    quoted = sorted(set(re.findall(r"`([\w/.]+)`", paragraphs)))
    sources = "".join(path.read_text() for path in (ROOT / "reverb").rglob("*.rs"))
    rust = [name for name in quoted if "_" in name and f"fn {name}()" in sources]
    # Rooms of a library run beside it: `make test-LIBRARY`.
    files = [name for name in quoted if re.match(r"tests/(?!with_).*\.py", name)]
    return rust, files, [name for name in quoted if re.match("test_|Test", name)]


def rooms_of_parts() -> dict[str, list[str]]:
    """Returns the rooms of the tests of each part, by its path below `reverb/`."""
    text = (ROOT / "tests/README.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `reverb/(.+?)/?` \| (.*) \|$", text, re.MULTILINE)
    return {part: re.findall(r"`(\w+)/`", rooms) for part, rooms in rows}


if __name__ == "__main__":
    sys.exit(main())
