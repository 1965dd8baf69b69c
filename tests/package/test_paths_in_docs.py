# SPDX-License-Identifier: Apache-2.0
"""Paths and names in the documents about the code lead to what they say; CONTRIBUTING.md has the
rule."""

import fnmatch
import functools
import os
import pathlib
import re
import subprocess

import pytest

ROOT = pathlib.Path(__file__).parents[2]
DESIGN = ROOT / "docs" / "design"
DOCUMENTS = sorted(
    [
        *(ROOT / name for name in ("ARCHITECTURE.md", "CONTRIBUTING.md", "tests/README.md")),
        *DESIGN.glob("*.md"),
    ]
)

# Text in backticks: a path has a slash or ends like one of our files.
_ENDINGS = "rs|py|pyi|md|rst|toml|proto|bin|html|txt|yml|yaml|sh|ipynb|json|textproto"
_QUOTED = re.compile(r"`([^`\n]+)`")
_PATH = re.compile(rf"(?=.*/|.*\.(?:{_ENDINGS})(?:::|$))[\w.*/-]+(?:::[\w.:]+)?")
_SOURCE = re.compile(r".*\.(?:rs|py|pyi|proto|html)")
_NAME = re.compile(r"(?:\w+(?:\.|::))*([A-Za-z_]\w+)(?:\(\)|!)?")
# A placeholder of a recipe stands for any name.
_PLACEHOLDER = re.compile(r"(?<![A-Za-z])(?:NAME|LIBRARY|TF|ROOM|FEATURE)(?![a-z])")
_FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
# Drawings have no backticks; a path in one has a slash and the ending of a source file.
_DRAWING = re.compile(r"^```text\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_DRAWN_PATH = re.compile(r"\w+(?:/\w+)*/\w+\.(?:rs|py)\b")
_SENTENCE = re.compile(r"(?<=[.;])\s+(?=[A-Z*`(\d])|\n\n|\n(?=\d+\. |\* |\| )")


@functools.cache
def ignored():
    """Names that git ignores: what `make` leaves in the tree."""
    lines = (ROOT / ".gitignore").read_text().splitlines()
    return {line.strip("/") for line in lines if line and not line.startswith("#")}


@functools.cache
def all_paths():
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    files = set(result.stdout.splitlines())
    folders = {str(parent) for file in files for parent in pathlib.PurePath(file).parents}
    return files | folders


def spellings(path, beside):
    """The paths from the root that `path` may mean, in the order of the rule."""
    yield path
    yield f"{beside}{path}"
    yield f"reverb/{path}"
    yield f"reverb/core/{path}"
    for prefix in ("reverb/core/", "reverb/tf_ops/"):
        for start in ("", "core/", "tf_ops/"):
            crate, _, rest = path.removeprefix(start).partition("/")
            if rest:
                yield f"{prefix}{crate}/src/{rest}"


@functools.cache
def resolved(path, beside):
    """The path from the root of a file or folder, or of the first that fits a pattern; or None."""
    pattern = _PLACEHOLDER.sub("*", path).rstrip("/")
    for spelling in spellings(pattern, beside):
        if spelling in all_paths():
            return spelling
        if "*" in spelling and (found := sorted(fnmatch.filter(all_paths(), spelling))):
            return found[0]
    return None


@functools.cache
def words_of(path):
    return set(re.findall(r"\w+", (ROOT / path).read_text()))


def defines(path, name):
    """Whether a file of tests has a class or a function of that name."""
    return re.search(rf"\b(?:class|def|fn) {name}\b", (ROOT / path).read_text()) is not None


def path_of(quoted):
    """The path that a text in backticks is, with the name of a test; or None."""
    text = _PLACEHOLDER.sub("*", quoted)
    is_outside = text.startswith(("/", "-")) or (text[0] == "." and not (ROOT / text).exists())
    if is_outside or not _PATH.fullmatch(text):
        return None
    if any(fnmatch.fnmatch(text.rstrip("/"), name) for name in ignored()) or any(
        text.startswith(f"{name}/") for name in ignored()
    ):
        return None
    return quoted


def faults(text, beside=""):
    """Names that do not exist: a path, or a name in the files that its sentence names before it.

    Args:
      text: Markdown.
      beside: Folder of the document, from the root, with a slash at its end.
    """
    for drawing in _DRAWING.findall(text):
        for path in _DRAWN_PATH.findall(drawing):
            if resolved(path, beside) is None:
                yield f"{path} does not exist"
    for sentence in _SENTENCE.split(_FENCE.sub("", text)):
        files = []  # Those that are named so far.
        parts = _QUOTED.split(sentence)  # Texts, and between them what is quoted.
        for quoted, after, following in zip(
            parts[1::2], parts[2::2], [*parts[3::2], ""], strict=False
        ):
            path = path_of(quoted)
            if path is None:
                name = _NAME.fullmatch(quoted)
                if name is None or _PLACEHOLDER.search(quoted):
                    continue
                # "`name` in `file`" speaks of that file alone.
                place = path_of(following) if after.split() in (["in"], ["of"]) else None
                found = resolved(place, beside) if place else None
                candidates = [found] if found and _SOURCE.fullmatch(found) else files
                if candidates and not any(name[1] in words_of(file) for file in candidates):
                    yield f"{quoted} is not in {', '.join(candidates)}"
                continue
            file, _, name = path.partition("::")
            found = resolved(file, beside)
            if found is None:
                yield f"{file} does not exist"
            elif name and not all(defines(found, part) for part in name.split("::")):
                yield f"{name} is not in {found}"
            elif _SOURCE.fullmatch(found) and not _PLACEHOLDER.search(file):
                files.append(found)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: os.path.relpath(path, ROOT))
def test_paths_and_names_exist(document):
    # Only the list of the rooms of tests is read where its rooms are.
    beside = "tests/" if document.parent.name == "tests" else ""
    found = list(faults(document.read_text(), beside))
    assert not found, "\n".join(found)


def test_the_map_fits_on_a_few_screens():
    lines = (ROOT / "ARCHITECTURE.md").read_text().splitlines()
    assert len(lines) <= 300
    assert [line for line in lines if len(line) > 100] == []


@pytest.mark.parametrize("page", sorted(DESIGN.glob("*.md")), ids=lambda page: page.stem)
def test_a_design_page_has_short_lines(page):
    lines = page.read_text().splitlines()
    long = [line for line in lines if len(line) > 110]
    assert all(line.startswith("|") for line in long), long  # A row of a table is one line.


@pytest.mark.parametrize("page", sorted(DESIGN.glob("*.md")), ids=lambda page: page.stem)
def test_a_design_page_draws_its_states_or_data(page):
    blocks = re.findall(r"^```text\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)
    assert page.stem == "index" or any(10 <= len(block.splitlines()) <= 22 for block in blocks)


def rooms():
    """The first lines of each crate and of each room of Python."""
    yield from ROOT.glob("reverb/core/*/src/lib.rs")
    yield from ROOT.glob("reverb/tf_ops/*/src/lib.rs")
    old_paths = {"cc", "platform", "core"}  # Aliases, and the door to the crates.
    for path in ROOT.glob("reverb/*/__init__.py"):
        if path.parent.name not in old_paths:
            yield path
    yield from ROOT.glob("reverb/adapters/*/__init__.py")


@pytest.mark.parametrize("room", sorted(rooms()), ids=lambda path: os.path.relpath(path, ROOT))
def test_a_room_names_its_design_page(room):
    first_lines = "\n".join(room.read_text().splitlines()[:16])
    pages = re.findall(r"docs/design/\w+\.md", first_lines)
    assert pages
    assert all((ROOT / page).exists() for page in pages)


class TestFaults:
    """The checks above can fail."""

    @pytest.mark.parametrize(
        "text",
        [
            "The state is in `engine/table/state.rs`.",
            "The state is in `core/engine/table/state.rs`.",
            "The state is in `reverb/core/engine/src/table/state.rs`.",
            "`engine/table/state.rs` has `TableState`. Elsewhere is `Nothing`.",
            "A handler lies in `server/service/calls/NAME.rs`.",
            "`wire/calls.rs` asks; `evict_surplus` in `engine/table/state/limits.rs` decides.",
            "Guarded by `tests/api/test_selectors.py::TestEverySelector`.",
            "The page is at `/api/status`, the package in `dist/`, `B / T` is no path.",
            "```text\nappend ─▶ client/writer/capture/history.rs\n```",
            "```sh\npython engine/nothing.rs\n```",
        ],
    )
    def test_right_texts_have_none(self, text):
        assert list(faults(text)) == []

    @pytest.mark.parametrize(
        "text",
        [
            "The memory is in `kernels/memory.rs`.",
            "The state is in `table/state.rs`.",
            "The state is in `state.rs`.",
            "The rooms are `engine/` and `engines/`.",
            "`engine/table/state.rs` decides it by\n`NoSuchName`.",
            "A handler lies in `server/callers/NAME.rs`.",
            "Guarded by `tests/api/test_selectors.py::TestNoSelector`.",
            "Guarded by `tests/api/test_no_such_thing.py`.",
            "`evict_surplus` in `engine/table/state/batch.rs` decides.",
            "```text\nappend ─▶ writer/lane.rs\n```",
        ],
    )
    def test_wrong_texts_have_one(self, text):
        assert len(list(faults(text))) == 1
