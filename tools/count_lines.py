# SPDX-License-Identifier: Apache-2.0
"""Counts lines of Rust and Python below `reverb/`, by room, and names the long files.

    python tools/count_lines.py [--at REVISION] [--limit 500]

Tests, `#[cfg(test)]` modules, generated code and stubs are left out; comments and empty lines
count. `--at` counts a revision of git instead of the working tree.
"""

from __future__ import annotations

import argparse
import collections
import io
import pathlib
import re
import subprocess
import tarfile
from collections.abc import Mapping

ROOT = pathlib.Path(__file__).parents[1]
_PACKAGE = "reverb"
_TEST_FOLDERS = {"tests", "examples", "benches"}
_TEST_MODULE = re.compile(
    r"^(?P<indent> *)#\[cfg\(test\)\]\n(?: *#\[.*\]\n)*"
    r" *(?:pub(?:\([^)]*\))? )?mod (?P<name>\w+)(?P<inline> \{)?",
    re.MULTILINE,
)


# Parts of a file that `make clients` writes; the markers count.
_GENERATED_PART = re.compile(
    r"(?<=^    # --- generated from )(.*\n)(?:.*\n)*?(?=    # --- end of generated code ---$)",
    re.MULTILINE,
)


def main() -> None:
    """Prints the lines of each room, their sum, and the files over the limit."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--at", metavar="REVISION", help="a revision of git; default: the tree")
    parser.add_argument("--limit", type=int, default=500, help="lines of a long file")
    options = parser.parse_args()
    counts = count(working_tree() if options.at is None else revision(options.at))

    rooms = collections.Counter[str]()
    for path, lines in counts.items():
        rooms[room_of(path)] += lines
    for room, lines in sorted(rooms.items()):
        print(f"{lines:7,}  {room}")
    for suffix, language in ((".rs", "Rust"), (".py", "Python")):
        lines = sum(lines for path, lines in counts.items() if path.suffix == suffix)
        print(f"{lines:7,}  {language}")
    print(f"{sum(counts.values()):7,}  both, in {len(counts):,} files\n")
    for limit in (700, options.limit):
        print(f"files over {limit} lines: {sum(lines > limit for lines in counts.values())}")
    for path, lines in sorted(counts.items(), key=lambda item: -item[1]):
        if lines > options.limit:
            print(f"{lines:7,}  {path}")


def count(files: Mapping[pathlib.PurePosixPath, str]) -> dict[pathlib.PurePosixPath, int]:
    """Lines of each file that people maintain by hand and that ships."""
    tests = {
        path for path in files if path.suffix == ".rs" for path in _files_of_tests(path, files)
    }
    folders = {path.with_suffix("") for path in tests}
    return {
        path: _GENERATED_PART.sub(r"\1", _without_test_modules(text)).count("\n")
        for path, text in files.items()
        if not (_is_left_out(path) or path in tests or folders & set(path.parents))
    }


def room_of(path: pathlib.PurePosixPath) -> str:
    """A crate, a package of Python, or an adapter; `reverb` is the top."""
    folders = path.parts[:-1]
    is_deep = len(folders) > 1 and folders[1] in ("adapters", "core", "tf_ops")
    return "/".join(folders[: 3 if is_deep else 2])


def working_tree() -> dict[pathlib.PurePosixPath, str]:
    """The tracked and new files of the package."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", _PACKAGE]
    names = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    paths = [pathlib.PurePosixPath(name) for name in names.splitlines()]
    return {
        path: (ROOT / path).read_text(encoding="utf-8")
        for path in paths
        if path.suffix in (".py", ".rs") and (ROOT / path).is_file()
    }


def revision(name: str) -> dict[pathlib.PurePosixPath, str]:
    """The files of the package as they were at a revision."""
    command = ["git", "archive", "--format=tar", name, _PACKAGE]
    archive = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, check=True).stdout
    files = {}
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        for member in tar:
            content = tar.extractfile(member)
            if content is not None and member.name.endswith((".py", ".rs")):
                files[pathlib.PurePosixPath(member.name)] = content.read().decode()
    return files


def _is_left_out(path: pathlib.PurePosixPath) -> bool:
    folders = set(path.parts[:-1])
    return bool(folders & (_TEST_FOLDERS | {"generated"})) or path.stem.endswith("_pb2")


def _files_of_tests(
    path: pathlib.PurePosixPath, files: Mapping[pathlib.PurePosixPath, str]
) -> list[pathlib.PurePosixPath]:
    """Files that a Rust file declares as modules of tests."""
    is_root = path.stem in ("lib", "main", "mod")
    folder = path.parent if is_root else path.with_suffix("")
    modules = _TEST_MODULE.finditer(files[path])
    return [folder / f"{module['name']}.rs" for module in modules if not module["inline"]]


def _without_test_modules(text: str) -> str:
    """A Rust file without the modules of tests that are written in it."""
    while module := next((it for it in _TEST_MODULE.finditer(text) if it["inline"]), None):
        end = text.index(f"\n{module['indent']}}}\n", module.end()) + len(module["indent"]) + 3
        text = text[: module.start()] + text[end:]
    return text


if __name__ == "__main__":
    main()
