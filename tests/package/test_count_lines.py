# SPDX-License-Identifier: Apache-2.0
"""tools/count_lines.py leaves out tests and generated code, and can count a revision of git."""

import pathlib
import shutil
import subprocess
import sys

import pytest

TOOL = pathlib.Path(__file__).parents[2] / "tools" / "count_lines.py"
LIB = """fn ships() {}

#[cfg(test)]
mod tests {
    fn is_left_out() {
    }
}

#[cfg(test)]
mod model;
fn ships_too() {}
"""
PART = "    # --- generated from a text ---\n{}    # --- end of generated code ---\n"
FILES = {
    "reverb/client.py": "a = 1\n" * 501,
    "reverb/aio/client.py": "a = 1\n" + PART.format("    b = 2\n" * 1000) + "c = 3\n",
    "reverb/reverb_pb2.py": "a = 1\n" * 1000,
    "reverb/core/_native.pyi": "a: int\n" * 1000,
    "reverb/core/data/src/lib.rs": LIB,
    "reverb/core/data/src/model.rs": "\n" * 1000,
    "reverb/core/data/src/model/deep.rs": "\n" * 1000,
    "reverb/core/data/src/generated/x.rs": "\n" * 1000,
    "reverb/core/data/tests/it/main.rs": "\n" * 1000,
    "reverb/adapters/sb3/step.py": "a = 1\n" * 7,
    "tests/test_x.py": "a = 1\n" * 1000,
}


@pytest.fixture
def tree(tmp_path):
    for name, text in {**FILES, "tools/count_lines.py": TOOL.read_text(encoding="utf-8")}.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    if shutil.which("git") is None:
        pytest.skip("git is not on the path")
    git(tmp_path, "init", "--quiet")
    return tmp_path


def git(tree, *arguments):
    author = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
    subprocess.run(["git", *author, *arguments], cwd=tree, check=True)


def lines_of(tree, *arguments):
    command = [sys.executable, tree / "tools/count_lines.py", *arguments]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    return [" ".join(line.split()) for line in result.stdout.splitlines()]


def test_tests_generated_code_and_stubs_do_not_count(tree):
    assert lines_of(tree) == [
        "501 reverb",
        "7 reverb/adapters/sb3",
        "4 reverb/aio",
        "6 reverb/core/data",
        "6 Rust",
        "512 Python",
        "518 both, in 4 files",
        "",
        "files over 700 lines: 0",
        "files over 500 lines: 1",
        "501 reverb/client.py",
    ]


def test_a_revision_is_counted_as_it_was(tree):
    git(tree, "add", ".")
    git(tree, "commit", "--quiet", "--message", "first")
    before = lines_of(tree)
    (tree / "reverb/client.py").write_text("a = 1\n", encoding="utf-8")
    assert lines_of(tree)[0] == "1 reverb"
    assert lines_of(tree, "--at", "HEAD") == before
